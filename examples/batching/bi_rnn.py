"""BiRNN: two recurrences over a sentence, there and back, and a classifier of every word.

python examples/batching/bi_rnn.py [--size 256] [--count 16]
"""

import argparse

import numpy as np
from workload import CLASSES, WORDS, demonstrate, sentences

import tempo as tp
from tempo import nn

SMALL, LARGE = 256, 512
instances = sentences


class Step(nn.Module):
    """A GRU that takes words."""

    def __init__(self, size):
        self.embed = nn.Embedding(WORDS, size)
        self.gru = nn.GRUCell(size, size)

    def __call__(self, word, h):
        return self.gru(self.embed(word), h)


class Classify(nn.Module):
    def __init__(self, size):
        self.out = nn.Linear(2 * size, CLASSES)

    def __call__(self, there, back):
        return self.out(tp.concatenate([there, back]))


class Score(Classify):
    def __call__(self, there, back, label):
        return nn.cross_entropy(super().__call__(there, back), label)


class BiRNN(nn.Module):
    """Logits for every word."""

    def __init__(self, size=SMALL):
        self.start = np.zeros(size, np.float32)
        self.there = Step(size)
        self.back = Step(size)
        self.classify = Classify(size)

    def states(self, step, sentence):
        states = [self.start]
        for word in sentence:
            states.append(step(word, states[-1]))
        return states[1:]

    def both(self, sentence):
        return zip(self.states(self.there, sentence), reversed(self.states(self.back, sentence[::-1])), strict=True)

    def __call__(self, sentence):
        return [self.classify(there, back) for there, back in self.both(sentence)]


class Training(BiRNN):
    """The losses of a sentence's words, each with a label."""

    def __init__(self, size=SMALL):
        super().__init__(size)
        self.classify = Score(size)

    def __call__(self, instance):
        sentence, labels = instance
        return [self.classify(*states, label) for states, label in zip(self.both(sentence), labels, strict=True)]


def labelled(sentences):
    """Every word with a label: from which fifth of the vocabulary the word before it is."""
    return [(s, [before * CLASSES // WORDS for before in [0, *s[:-1]]]) for s in sentences]


MODEL = BiRNN


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=SMALL)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()
    demonstrate("BiRNN", BiRNN(options.size), instances(options.count))


if __name__ == "__main__":
    main()
