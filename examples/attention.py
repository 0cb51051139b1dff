"""Attention over four windows of time: the slice of the keys and values says which.

    y[t] = softmax(q[t] k[window].T / sqrt(d)) v[window]

Windows differ in length from step to step; there are no masks and no caches here.
"""

import math

import numpy as np

import tempo as tp

WINDOWS = ("causal", "sliding", "look_ahead", "two_sided")


def build(d=4, w=3, dtype=tp.float32):
    """The program and its bound. Inputs: q, k, v and target, all (T, d).

    Outputs, for every window: NAME (T, d), and NAME_dq, NAME_dk, NAME_dv: the gradients of the squared
    distance of NAME from the target.
    """
    with tp.Program("attention") as prog:
        t, T = prog.dim("t")
        q, k, v, target = (prog.input(n, d, domain=(t,), dtype=dtype) for n in ("q", "k", "v", "target"))
        windows = (
            slice(0, t + 1),
            slice(tp.max(0, t - w + 1), t + 1),
            slice(t, T),
            slice(tp.max(0, t - w), tp.min(t + w + 1, T)),
        )
        for name, window in zip(WINDOWS, windows, strict=True):
            y = tp.softmax(q @ k[window].T / math.sqrt(d)) @ v[window]
            loss = tp.sum((y[0:T] - target[0:T]) ** 2)
            dq, dk, dv = tp.grad(loss, (q, k, v))

            prog.output(name, y)
            prog.output(f"{name}_dq", dq)
            prog.output(f"{name}_dk", dk)
            prog.output(f"{name}_dv", dv)
    return prog, T


def main():
    prog, T = build(d=2, w=2)
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=(6, 2)) for name in ("q", "k", "v", "target")}
    result = prog.evaluate({T: 6}, **data)
    print("first component of y[t], then the size of the gradient of k[t], t = 0, ..., 5")
    for name in WINDOWS:
        sizes = np.linalg.norm(result[f"{name}_dk"], axis=1)
        print(f"{name:10}", *(f"{y:6.2f}" for y in result[name][:, 0]), " |", *(f"{g:5.2f}" for g in sizes))


if __name__ == "__main__":
    main()
