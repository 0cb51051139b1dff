"""TreeLSTM (Tai, Socher and Manning 2015, child-sum): the state of a sentence from those of its phrases.

python examples/batching/tree_lstm.py [--size 256] [--count 16]
"""

import argparse

from workload import CLASSES, WORDS, demonstrate, trees

import tempo as tp
from tempo import nn

SMALL, LARGE = 256, 512
instances = trees


class Leaf(nn.Module):
    def __init__(self, size):
        self.embed = nn.Embedding(WORDS, size)
        self.gates = nn.Linear(size, 3 * size)

    def __call__(self, word):
        i, o, u = tp.split(self.gates(self.embed(word)), 3)
        c = tp.sigmoid(i) * tp.tanh(u)
        return tp.sigmoid(o) * tp.tanh(c), c


class Inner(nn.Module):
    def __init__(self, size):
        self.gates = nn.Linear(size, 3 * size)
        self.forget = nn.Linear(size, size)

    def __call__(self, *children):
        i, o, u = tp.split(self.gates(sum(h for h, c in children)), 3)
        c = tp.sigmoid(i) * tp.tanh(u) + sum(tp.sigmoid(self.forget(h)) * c for h, c in children)
        return tp.sigmoid(o) * tp.tanh(c), c


class Score(nn.Module):
    def __init__(self, size):
        self.out = nn.Linear(size, CLASSES)

    def __call__(self, state, label):
        h, _ = state
        return nn.cross_entropy(self.out(h), label)


class TreeLSTM(nn.Module):
    """The state (h, c) of a tree's root."""

    def __init__(self, size=SMALL):
        self.leaf = Leaf(size)
        self.inner = Inner(size)

    def __call__(self, tree):
        if isinstance(tree, int):
            return self.leaf(tree)
        return self.inner(*(TreeLSTM.__call__(self, child) for child in tree))


class Training(TreeLSTM):
    """The loss of a tree with a label."""

    def __init__(self, size=SMALL):
        super().__init__(size)
        self.score = Score(size)

    def __call__(self, instance):
        tree, label = instance
        return self.score(super().__call__(tree), label)


def labelled(trees):
    """Every tree with a label: which fifth of the vocabulary its last word is from."""

    def last(tree):
        return tree if isinstance(tree, int) else last(tree[-1])

    return [(tree, last(tree) * CLASSES // WORDS) for tree in trees]


# -- the same for trees given as arrays -----------------------------------------------------------------------


class Join(Inner):
    """Inner, with the children's states along an axis."""

    def __call__(self, children):
        h, c = children
        i, o, u = tp.split(self.gates(tp.sum(h, axis=0)), 3)
        c = tp.sigmoid(i) * tp.tanh(u) + tp.sum(tp.sigmoid(self.forget(h)) * c, axis=0)
        return tp.sigmoid(o) * tp.tanh(c), c


def folded(size=SMALL):
    return tp.fold(Leaf(size), Join(size), loss=Score(size))


MODEL = TreeLSTM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=SMALL)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()
    demonstrate("TreeLSTM", TreeLSTM(options.size), instances(options.count))


if __name__ == "__main__":
    main()
