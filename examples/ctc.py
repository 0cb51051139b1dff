"""Connectionist temporal classification (Graves et al., 2006): how likely labels are, however they fall in time.

At every step a network says a label or a blank, 0. Repeated labels count once, blanks do not count: "_cc_a_t" says cat.
With blanks around and between the labels, l' = _c_a_t_, alpha[t, s] adds up all ways to have said l'[0], ..., l'[s] by
step t. One may stay at a place, go to the next one, or skip a blank between two different labels:

    alpha[t, s] = y[t, l'[s]] (alpha[t - 1, s] + alpha[t - 1, s - 1] + alpha[t - 1, s - 2])

in logarithms here. Both t and s are dims; what is compiled is one loop over t, with all places at once. The gradient is
the network's probabilities, less the share of those ways that say a symbol at a step.
"""

import numpy as np

import tempo as tp

NEVER = -1e9


def build(symbols=4, dtype=tp.float32):
    """The program and its bounds. Inputs: logits (T, symbols) and places (S,), the labels with blanks: l'.

    Outputs: loss, minus the log-probability of the labels, and its gradient with respect to the logits (T, symbols).
    """
    with tp.Program("ctc") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        logits = prog.input("logits", symbols, domain=t, dtype=dtype)
        places = prog.input("places", domain=s, dtype=tp.int32)
        log_y = tp.log_softmax(logits).take(places)

        before = prog.recurrent("before", domain=s, dtype=tp.int32)
        before[s < 2] = 0
        before[s] = places[s - 2]
        skip = tp.where((places != 0) & (places != before), 0.0, NEVER).astype(dtype)

        alpha = prog.recurrent("alpha", domain=(t, s), dtype=dtype)
        alpha[-1, s] = NEVER
        alpha[t, -1] = NEVER
        alpha[t, -2] = NEVER
        alpha[tp.equal(t, 0) & (s < 2)] = log_y
        ways = tp.stack([alpha[t - 1, s], alpha[t - 1, s - 1], alpha[t - 1, s - 2] + skip])
        alpha[t, s] = log_y + tp.logsumexp(ways)

        loss = -tp.logaddexp(alpha[T - 1, S - 1], alpha[T - 1, S - 2])
        prog.output("loss", loss)
        prog.output("gradient", tp.grad(loss, logits))
    return prog, T, S


def with_blanks(labels):
    """The labels with blanks around and between them."""
    return np.insert(np.zeros(len(labels) + 1, np.int32), np.arange(len(labels)) + 1, labels)


def main():
    letters = "_act"
    said, word = "_cc_a_t", "cat"
    prog, T, S = build(len(letters))
    logits = 3 * np.eye(len(letters))[[letters.index(letter) for letter in said]]
    places = with_blanks([letters.index(letter) for letter in word])
    result = prog.evaluate({T: len(said), S: len(places)}, logits=logits, places=places)
    print(f"P({word}) = {np.exp(-result.loss):.3f} where the likeliest at each step is {said}")
    print("what would make it likelier:")
    for letter, slope in zip(letters, -result.gradient.T, strict=True):
        print("   ", letter, *(f"{value:6.2f}" for value in slope))


if __name__ == "__main__":
    main()
