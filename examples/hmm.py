"""A hidden Markov model: forward-backward for the posterior marginals, Viterbi for the likeliest path.

Everything is in log space. pi is the distribution of the first state, A[s, s'] the probability of going from
s to s', B[s, o] that of seeing o in s, and b[t] = B[:, o[t]]. The gradient of the log-likelihood with respect
to log b[t] is the posterior.
"""

import numpy as np

import tempo as tp


def build(states=2, symbols=3, dtype=tp.float32):
    """The program and its bound.

    Inputs: log_pi (states,), log_A (states, states), log_B (states, symbols) and o (T,).
    Outputs: log_likelihood, posterior (T, states), gradient (T, states), path (T,), path_log_probability.
    """
    with tp.Program("hmm") as prog:
        t, T = prog.dim("t")
        log_pi = prog.input("log_pi", states, dtype=dtype)
        log_A = prog.input("log_A", (states, states), dtype=dtype)
        log_B = prog.input("log_B", (states, symbols), dtype=dtype)
        o = prog.input("o", domain=(t,), dtype=tp.int32)
        log_b = log_B.take(o, axis=1)

        alpha = prog.recurrent("alpha", states, domain=(t,), dtype=dtype)
        alpha[0] = log_pi + log_b[0]
        alpha[t] = tp.logsumexp(alpha[t - 1].space[:, None] + log_A, axis=0) + log_b[t]

        beta = prog.recurrent("beta", states, domain=(t,), dtype=dtype)
        beta[T - 1] = 0
        beta[t] = tp.logsumexp(log_A + log_b[t + 1] + beta[t + 1], axis=1)

        log_likelihood = tp.logsumexp(alpha[T - 1])
        posterior = tp.exp(alpha + beta - log_likelihood)

        # delta[t] is the best log-probability of a path to each state, psi[t] the state before on that path.
        delta = prog.recurrent("delta", states, domain=(t,), dtype=dtype)
        scores = delta[t - 1].space[:, None] + log_A
        psi = tp.argmax(scores, axis=0)
        delta[0] = log_pi + log_b[0]
        delta[t] = tp.max(scores, axis=0) + log_b[t]

        path = prog.recurrent("path", domain=(t,), dtype=tp.int32)
        path[T - 1] = tp.argmax(delta[T - 1])
        path[t] = psi[t + 1].take(path[t + 1])

        prog.output("log_likelihood", log_likelihood)
        prog.output("posterior", posterior)
        prog.output("gradient", tp.grad(log_likelihood, log_b))
        prog.output("path", path)
        prog.output("path_log_probability", tp.max(delta[T - 1]))
    return prog, T


def main():
    prog, T = build()
    pi = [0.6, 0.4]  # healthy, feverish
    A = [[0.7, 0.3], [0.4, 0.6]]
    B = [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]]  # normal, cold, dizzy
    o = [0, 1, 2, 2, 0]
    result = prog.evaluate({T: len(o)}, log_pi=np.log(pi), log_A=np.log(A), log_B=np.log(B), o=o)
    print(f"log-likelihood {result.log_likelihood:.4f}")
    print("P(feverish)   ", *(f"{p:.3f}" for p in result.posterior[:, 1]))
    print("likeliest path", *(["healthy", "feverish"][s] for s in result.path))


if __name__ == "__main__":
    main()
