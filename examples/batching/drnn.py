"""DRNN (Alvarez-Melis and Jaakkola 2017): a tree that grows from a vector, from the root downwards.

What a node is follows from its parent and from the sibling before it. The network itself decides whether a node has
children, and whether another sibling follows: a model whose control flow depends on what it computes.

    python examples/batching/drnn.py [--size 256] [--count 16]
"""

import argparse

import numpy as np
from workload import CLASSES, demonstrate

import tempo as tp
from tempo import nn

SMALL, LARGE = 256, 512
DEPTH, SIBLINGS = 5, 4


def instances(count, seed=0, size=SMALL):
    """What trees are grown from."""
    return list(np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32))


class Node(nn.Module):
    def __init__(self, size):
        self.ancestral = nn.GRUCell(size, size)
        self.fraternal = nn.GRUCell(size, size)
        self.mix = nn.Linear(2 * size, size)
        self.decide = nn.Linear(size, 2)
        self.label = nn.Linear(size, CLASSES)

    def __call__(self, parent, sibling):
        down, across = self.ancestral(parent, parent), self.fraternal(parent, sibling)
        h = tp.tanh(self.mix(tp.concatenate([down, across])))
        return down, across, self.label(h), self.decide(h)


class DRNN(nn.Module):
    """A tree of (logits, children)."""

    def __init__(self, size=SMALL):
        self.start = np.zeros(size, np.float32)
        self.node = Node(size)

    def siblings(self, parent, before, depth, position):
        """A node and those after it."""
        down, across, label, decision = self.node(parent, before)
        has_children, has_sibling = np.asarray(decision) > 0
        children, others = tp.parallel(
            lambda: self.siblings(down, self.start, depth + 1, 0) if has_children and depth < DEPTH else [],
            lambda: self.siblings(parent, across, depth, position + 1) if has_sibling and position < SIBLINGS else [],
        )
        return [(label, children), *others]

    def __call__(self, encoding):
        return self.siblings(encoding, self.start, 0, SIBLINGS)[0]


MODEL = DRNN


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=SMALL)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()
    demonstrate("DRNN", DRNN(options.size), instances(options.count, size=options.size))


if __name__ == "__main__":
    main()
