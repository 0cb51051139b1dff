"""A TreeLSTM learns the sentiment of synthetic sentences. The training is a program over iterations, whose gradients
come from a batched model; it can be stopped, saved, and resumed where it was.

Words are good, bad or neutral; one of them turns what stands to its right into its opposite. A tree's label is what
that makes of its words: bad, neutral or good.

    python examples/batching/sentiment.py [--iterations 60] [--checkpoint FILE]

With a checkpoint that exists, the training goes on from there.
"""

import argparse
import os

import numpy as np
from tree_lstm import Inner, Leaf
from workload import tree

import tempo as tp
from tempo import nn, optim

NEGATION = 0
LABELS = 3


def mood(tree):
    """How good a phrase is."""
    if isinstance(tree, int):
        return 0 if tree == NEGATION else tree % 3 - 1
    left, right = tree
    return -mood(right) if left == NEGATION else mood(left) + mood(right)


def data(count, most=8, seed=0):
    """Trees of a few words with labels; a tenth of the left children is the negation."""
    rng = np.random.default_rng(seed)

    def some(tree):
        if isinstance(tree, int):
            return tree
        left, right = map(some, tree)
        return (NEGATION if rng.random() < 0.1 else left), right

    trees = [some(tree(rng, int(rng.integers(1, most + 1)))) for _ in range(count)]
    return [(one, int(np.sign(mood(one))) + 1) for one in trees]


class Score(nn.Module):
    def __init__(self, size):
        self.out = nn.Linear(size, LABELS)

    def __call__(self, h, label):
        return nn.cross_entropy(self.out(h), label)


class Sentiment(nn.Module):
    """The loss of a tree with a label."""

    def __init__(self, size):
        self.leaf = Leaf(size)
        self.inner = Inner(size)
        self.score = Score(size)

    def state(self, tree):
        if isinstance(tree, int):
            return self.leaf(tree)
        left, right = tree
        return self.inner(self.state(left), self.state(right))

    def __call__(self, instance):
        tree, label = instance
        h, _ = self.state(tree)
        return self.score(h, label)


def build(size=32, batch=32, count=256, lr=0.01):
    """The program that trains, and its bound: the number of iterations. Emits every iteration's loss."""
    batched = tp.batch(Sentiment(size))
    instances = data(count)
    start = batched.parameters
    names = list(start)

    def step(i, *values):
        chosen = [instances[(int(i) * batch + n) % count] for n in range(batch)]
        loss, gradients = batched.value_and_grad(chosen, dict(zip(names, values, strict=True)))
        return [np.float32(loss), *(np.asarray(gradients[name]) for name in names)]

    with tp.Program("sentiment") as prog:
        i, I = prog.dim("i")
        with prog.training(over=i):
            parameters = {name: prog.param(name, value.shape, init=np.asarray(value)) for name, value in start.items()}
        out = [tp.spec(()), *(tp.spec(value.shape) for value in start.values())]
        loss, *gradients = tp.host(step, i, *parameters.values(), out=out, sequence=(i,))
        optim.Adam(lr).update(parameters, dict(zip(names, gradients, strict=True)))
        prog.emit("loss", loss)
    return prog, I


def train(prog, I, iterations, path=None, stop=None):
    """The losses of a training that goes on from a checkpoint, if there is one, and is saved at its end, or after some
    iterations."""
    run = prog.compile({I: iterations})
    if path is not None and os.path.exists(path):
        run.load(path)
    losses = []
    for record in run.stream():
        losses.append(float(record.value))
        if record.point["i"] + 1 == stop:
            break
    if path is not None and stop is not None:
        run.save(path)
    return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--checkpoint", help="a file to save to in the middle, and to go on from")
    options = parser.parse_args()
    prog, I = build(options.size)
    half = options.iterations // 2
    resumed = options.checkpoint is not None and os.path.exists(options.checkpoint)
    losses = train(prog, I, options.iterations, options.checkpoint, None if resumed or not options.checkpoint else half)
    first = np.mean(losses[:5])
    print(
        f"loss of the first iterations {first:.3f}, of the last {np.mean(losses[-5:]):.3f}, in {len(losses)} iterations"
    )


if __name__ == "__main__":
    main()
