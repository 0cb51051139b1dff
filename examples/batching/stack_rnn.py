"""StackRNN: a shift-reduce parser. At every step the network decides by what it sees on its stack and in its buffer
whether to push the next word or to combine the two topmost phrases.

    python examples/batching/stack_rnn.py [--size 256] [--count 16]
"""

import argparse

import numpy as np
from workload import WORDS, demonstrate, sentences

import tempo as tp
from tempo import nn

SMALL, LARGE = 256, 512
SHIFT, REDUCE = 0, 1
instances = sentences


class Decide(nn.Module):
    """Above zero: reduce."""

    def __init__(self, size):
        self.hidden = nn.Linear(3 * size, size)
        self.out = nn.Linear(size, 1)

    def __call__(self, below, top, ahead):
        return self.out(tp.tanh(self.hidden(tp.concatenate([below, top, ahead])))).space[0]


class Reduce(nn.Module):
    def __init__(self, size):
        self.gates = nn.Linear(2 * size, 2 * size)

    def __call__(self, below, top):
        gate, candidate = tp.split(self.gates(tp.concatenate([below, top])), 2)
        return tp.sigmoid(gate) * tp.tanh(candidate) + (1 - tp.sigmoid(gate)) * 0.5 * (below + top)


class StackRNN(nn.Module):
    """The vector of a sentence, and what was done for it: a list of SHIFT and REDUCE."""

    def __init__(self, size=SMALL):
        self.nothing = np.zeros(size, np.float32)
        self.embed = nn.Embedding(WORDS, size)
        self.decide = Decide(size)
        self.reduce = Reduce(size)

    def __call__(self, sentence):
        buffer = [self.embed(word) for word in reversed(sentence)]
        stack = []
        actions = []
        while buffer or len(stack) > 1:
            if len(stack) < 2:
                action = SHIFT
            elif not buffer:
                action = REDUCE
            else:
                action = REDUCE if self.decide(stack[-2], stack[-1], buffer[-1]) > 0 else SHIFT
            if action == SHIFT:
                stack.append(buffer.pop())
            else:
                top, below = stack.pop(), stack.pop()
                stack.append(self.reduce(below, top))
            actions.append(action)
        return stack[0], actions


MODEL = StackRNN


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=SMALL)
    parser.add_argument("--count", type=int, default=16)
    options = parser.parse_args()
    demonstrate("StackRNN", StackRNN(options.size), instances(options.count))


if __name__ == "__main__":
    main()
