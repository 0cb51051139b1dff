"""TD(0) on the random walk of Sutton and Barto (example 6.2): learning over episodes i and steps t.

Five states in a row, 1 to 5, with an end on either side, 0 and 6. Each step goes left or right with equal
chance; only the right end gives a reward, 1. The true values are 1/6, ..., 5/6. At every step

    V(s) <- V(s) + alpha (r + gamma V(s') - V(s))

which is a gradient step on half the squared TD error with the target held fixed.
"""

import numpy as np

import tempo as tp

STATES = 7


def build(alpha=0.1, gamma=1.0, dtype=tp.float32):
    """The program and its bounds. Input: V0 (7,), the first values, 0 at the ends.

    Outputs: V (I, 7), the values at the start of every episode, final_V (7,), and s (I, T + 1), the walk.
    """
    with tp.Program("td_learning") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        V0 = prog.input("V0", STATES, dtype=dtype)

        right = tp.random.bernoulli(0.5, domain=(i, t))
        s = prog.recurrent("s", domain=(i, t), dtype=tp.int32)
        over = (s == 0) | (s == STATES - 1)
        s[i, 0] = STATES // 2
        s[i, t + 1] = tp.where(over, s, tp.where(right, s + 1, s - 1))
        r = tp.where(~over & (s[i, t + 1] == STATES - 1), 1.0, 0.0).astype(dtype)

        V = prog.state("V", V0, over=(i, t))
        target = tp.stop_gradient(r + gamma * V.take(s[i, t + 1]))
        loss = tp.where(over, 0.0, 0.5 * (target - V.take(s)) ** 2)
        V.next = V - alpha * tp.grad(loss, V)

        prog.output("V", V[i, 0])
        prog.output("final_V", V.final)
        prog.output("s", s)
    return prog, I, T


def main():
    prog, I, T = build()
    start = np.array([0, 0.5, 0.5, 0.5, 0.5, 0.5, 0])
    result = prog.evaluate({I: 12, T: 16}, V0=start)
    for i in (0, 4, 8):
        print(f"episode {i:2}:", *(f"{v:.2f}" for v in result.V[i, 1:-1]))
    print("afterwards:", *(f"{v:.2f}" for v in result.final_V[1:-1]))
    print("true      :", *(f"{n / 6:.2f}" for n in range(1, 6)))


if __name__ == "__main__":
    main()
