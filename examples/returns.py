"""Returns and advantages of an episode: recurrences that run against time.

With rewards r[0], ..., r[T - 1] and the critic's values v[0], ..., v[T], v[T] standing for all that follows:

    discounted return   G[t] = r[t] + gamma G[t + 1],  G[T] = v[T]
    n-step return       R[t] = sum_{k < n} gamma^k r[t + k] + gamma^n v[t + n],  cut short at T
    GAE                 A[t] = delta[t] + gamma lambda A[t + 1],  A[T] = 0
                        delta[t] = r[t] + gamma v[t + 1] - v[t]
"""

import numpy as np

import tempo as tp


def build(gamma=0.99, lam=0.95, n=3, dtype=tp.float32):
    """The program and its bound. Inputs: r (T,), values (T,), last_value.

    Outputs: returns (T + 1,), n_step (T,), advantages (T + 1,), and credit (T,): the gradient of A[0] with
    respect to every reward.
    """
    with tp.Program("returns") as prog:
        t, T = prog.dim("t")
        r = prog.input("r", domain=(t,), dtype=dtype)
        values = prog.input("values", domain=(t,), dtype=dtype)
        last_value = prog.input("last_value", dtype=dtype)

        v = prog.recurrent("v", domain=(t,), dtype=dtype)
        v[T] = last_value
        v[t] = values

        G = prog.recurrent("G", domain=(t,), dtype=dtype)
        G[T] = v[T]
        G[t] = r + gamma * G[t + 1]

        end = tp.min(t + n, T)
        discount = gamma ** tp.arange(n + 1, dtype=dtype)
        R = tp.sum(discount.space[: end - t] * r[t:end]) + discount.space[end - t] * v[end]

        delta = r + gamma * v[t + 1] - v
        A = prog.recurrent("A", domain=(t,), dtype=dtype)
        A[T] = 0
        A[t] = delta + gamma * lam * A[t + 1]

        prog.output("returns", G)
        prog.output("n_step", R)
        prog.output("advantages", A)
        prog.output("credit", tp.grad(A[0], r))
    return prog, T


def main():
    prog, T = build(gamma=0.9, lam=0.8, n=3)
    r = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 2.0])
    result = prog.evaluate({T: len(r)}, r=r, values=np.full(len(r), 1.0), last_value=1.0)
    with np.printoptions(precision=3, suppress=True):
        print("rewards           ", r)
        print("discounted returns", result.returns)
        print("3-step returns    ", result.n_step)
        print("advantages        ", result.advantages)
        print("credit for A[0]   ", result.credit)


if __name__ == "__main__":
    main()
