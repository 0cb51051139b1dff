"""MV-RNN (Socher et al. 2012): every phrase has a vector, its meaning, and a matrix, what it does to its neighbour.
Vectors are rows here.

python examples/batching/mv_rnn.py [--size 64] [--count 16]
"""

import argparse

from workload import CLASSES, WORDS, demonstrate, trees

import tempo as tp
from tempo import nn

SMALL, LARGE = 64, 128
instances = trees


class Word(nn.Module):
    def __init__(self, size):
        self.vector = nn.Embedding(WORDS, size)
        self.matrix = nn.Parameter((WORDS, size, size), nn.init.normal(size**-0.5))

    def __call__(self, word):
        return self.vector(word), tp.take(self.matrix, word)


class Compose(nn.Module):
    def __init__(self, size):
        self.vector = nn.Linear(2 * size, size)
        self.left = nn.Parameter((size, size), nn.init.normal((2 * size) ** -0.5))
        self.right = nn.Parameter((size, size), nn.init.normal((2 * size) ** -0.5))

    def __call__(self, left, right):
        (a, A), (b, B) = left, right
        return tp.tanh(self.vector(tp.concatenate([a @ B, b @ A]))), A @ self.left + B @ self.right


class Score(nn.Module):
    def __init__(self, size):
        self.out = nn.Linear(size, CLASSES)

    def __call__(self, state, label):
        vector, _ = state
        return nn.cross_entropy(self.out(vector), label)


class MVRNN(nn.Module):
    """The vector and the matrix of a tree's root."""

    def __init__(self, size=SMALL):
        self.word = Word(size)
        self.compose = Compose(size)

    def __call__(self, tree):
        if isinstance(tree, int):
            return self.word(tree)
        left, right = tree
        return self.compose(MVRNN.__call__(self, left), MVRNN.__call__(self, right))


class Training(MVRNN):
    """The loss of a tree with a label."""

    def __init__(self, size=SMALL):
        super().__init__(size)
        self.score = Score(size)

    def __call__(self, instance):
        tree, label = instance
        return self.score(super().__call__(tree), label)


def labelled(trees):
    """Every tree with a label: how deep its first word is."""

    def depth(tree):
        return 0 if isinstance(tree, int) else 1 + depth(tree[0])

    return [(tree, min(depth(tree), CLASSES - 1)) for tree in trees]


# -- the same for trees given as arrays -----------------------------------------------------------------------


class Join(Compose):
    """Compose, with the children's states along an axis."""

    def __call__(self, children):
        vectors, matrices = children
        left = vectors.space[0], matrices.space[0]
        right = vectors.space[1], matrices.space[1]
        return super().__call__(left, right)


def folded(size=SMALL):
    return tp.fold(Word(size), Join(size), loss=Score(size))


MODEL = MVRNN


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=SMALL)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()
    demonstrate("MV-RNN", MVRNN(options.size), instances(options.count))


if __name__ == "__main__":
    main()
