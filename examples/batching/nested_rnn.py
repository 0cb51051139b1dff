"""NestedRNN: a loop inside a loop. A recurrence over the sentences of a document steps through each one's words.

python examples/batching/nested_rnn.py [--size 256] [--count 4]
"""

import argparse

import numpy as np
from workload import CLASSES, WORDS, demonstrate, documents

import tempo as tp
from tempo import nn

SMALL, LARGE = 256, 512
instances = documents


class Word(nn.Module):
    """A step of the inner recurrence."""

    def __init__(self, size):
        self.embed = nn.Embedding(WORDS, size)
        self.input = nn.Linear(size, size)
        self.hidden = nn.Linear(size, size, bias=False)

    def __call__(self, word, h):
        return tp.tanh(self.input(self.embed(word)) + self.hidden(h))


class Score(nn.Module):
    def __init__(self, size):
        self.out = nn.Linear(size, CLASSES)

    def __call__(self, state, label):
        return nn.cross_entropy(self.out(state), label)


class NestedRNN(nn.Module):
    """The state after a document."""

    def __init__(self, size=SMALL):
        self.start = np.zeros(size, np.float32)
        self.word = Word(size)
        self.sentence = nn.GRUCell(size, size)

    def __call__(self, document):
        state = self.start
        for sentence in document:
            h = state
            for word in sentence:
                h = self.word(word, h)
            state = self.sentence(h, state)
        return state


class Training(NestedRNN):
    """The loss of a document with a label."""

    def __init__(self, size=SMALL):
        super().__init__(size)
        self.score = Score(size)

    def __call__(self, instance):
        document, label = instance
        return self.score(super().__call__(document), label)


def labelled(documents):
    """Every document with a label: how long its last sentence is."""
    return [(document, len(document[-1]) % CLASSES) for document in documents]


MODEL = NestedRNN


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=SMALL)
    parser.add_argument("--count", type=int, default=4)
    options = parser.parse_args()
    demonstrate("NestedRNN", NestedRNN(options.size), instances(options.count))


if __name__ == "__main__":
    main()
