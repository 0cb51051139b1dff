"""BERxiT (Xin et al. 2021): a transformer that stops at the layer at which it is sure enough.

All layers share their weights. After each one a classifier looks at the first position; an instance leaves where the
classifier is certain, so that easy instances cost less than hard ones.

    python examples/batching/berxit.py [--size 768] [--length 128] [--count 4]
"""

import argparse

import numpy as np
from workload import demonstrate

import tempo as tp
from tempo import nn

SMALL, LARGE = 768, 1024
LENGTH, LAYERS, HEADS = 128, 12, 4
CERTAIN = 0.62


def instances(count, seed=0, size=SMALL, length=LENGTH):
    """Embedded sentences."""
    return list(np.random.default_rng(seed).normal(size=(count, length, size)).astype(np.float32))


class Layer(nn.Module):
    def __init__(self, size):
        self.size = size
        self.project = nn.Linear(size, 3 * size)
        self.merge = nn.Linear(size, size)
        self.first = nn.LayerNorm(size)
        self.widen = nn.Linear(size, 4 * size)
        self.narrow = nn.Linear(4 * size, size)
        self.second = nn.LayerNorm(size)

    def __call__(self, x):
        length, width = x.shape[0], self.size // HEADS

        def heads(y):
            return tp.transpose(tp.reshape(y, (length, HEADS, width)), (1, 0, 2))

        q, k, v = map(heads, tp.split(self.project(x), 3, axis=-1))
        weights = tp.softmax(q @ tp.transpose(k, (0, 2, 1)) * width**-0.5, axis=-1)
        mixed = tp.reshape(tp.transpose(weights @ v, (1, 0, 2)), (length, self.size))
        x = self.first(x + self.merge(mixed))
        return self.second(x + self.narrow(tp.gelu(self.widen(x))))


class Exit(nn.Module):
    def __init__(self, size):
        self.out = nn.Linear(size, 2)

    def __call__(self, x):
        probabilities = tp.softmax(self.out(x.space[0]))
        return probabilities, tp.max(probabilities)


class Berxit(nn.Module):
    """Probabilities, and how many layers it took."""

    def __init__(self, size=SMALL):
        self.layer = Layer(size)
        self.exit = Exit(size)

    def __call__(self, x):
        depth, certainty = 0, 0.0
        while depth < LAYERS and certainty <= CERTAIN:
            x = self.layer(x)
            probabilities, certainty = self.exit(x)
            depth += 1
        return probabilities, depth


MODEL = Berxit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=SMALL)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--count", type=int, default=4)
    options = parser.parse_args()
    demonstrate("Berxit", Berxit(options.size), instances(options.count, size=options.size, length=options.length))


if __name__ == "__main__":
    main()
