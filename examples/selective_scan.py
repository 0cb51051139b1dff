"""A selective state-space model (Mamba; Gu and Dao, 2023) learns to remember what it is told to.

Numbers come one by one, some of them marked; the model is to say, at every step, which one was marked last. The state h
decays and is written to by amounts that the input decides, delta:

    h[t] = exp(-delta[t] A) h[t - 1] + delta[t] u[t] B[t]        y[t] = h[t] C[t]

Only h needs a loop over t. Everything around it, gradients of weights included, is computed for all sequences and steps
at once, as the loops that are printed in the end show.
"""

import numpy as np

import tempo as tp
from tempo import nn, optim


class SelectiveScan(nn.Module):
    """From inputs (inputs,) to a state (size, states), step by step, and what is read of it: a number."""

    def __init__(self, inputs, size, states):
        self.log_A = nn.Parameter((size, states), nn.init.zeros)
        self.u = nn.Linear(inputs, size)
        self.delta = nn.Linear(inputs, size)
        self.B = nn.Linear(inputs, states)
        self.C = nn.Linear(inputs, states)
        self.out = nn.Linear(size, 1)

    def __call__(self, x, before):
        delta = tp.softplus(self.delta(x))
        keep = tp.exp(-delta.space[:, None] * tp.exp(self.log_A))
        return keep * before + tp.outer(delta * self.u(x), self.B(x))

    def read(self, x, h):
        return self.out(h @ self.C(x)).space[0]


def build(size=8, states=4, rate=0.05, init=True, dtype=tp.float32):
    """The program and its bounds. Inputs: x (B, T, 2), a number and its mark, and wanted (B, T).

    With init=False, the initial parameters are inputs as well. Emits the loss of every iteration; outputs: said (B, T),
    what the trained model says, and the trained parameters by name.
    """
    with tp.Program("selective_scan") as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(b, t), dtype=dtype)
        wanted = prog.input("wanted", domain=(b, t), dtype=dtype)
        with prog.training(over=i):
            net = SelectiveScan(2, size, states).declare(prog, init=init, dtype=dtype)

        h = prog.recurrent("h", (size, states), domain=(i, b, t), dtype=dtype)
        h[i, b, -1] = 0
        h[i, b, t] = net(x, h[i, b, t - 1])
        said = net.read(x, h)

        loss = tp.mean(tp.square(said - wanted)[i, 0:B, 0:T])
        parameters = net.parameters()
        gradients = optim.clip_by_global_norm(tp.grad(loss, parameters), 1.0)
        optim.Adam(optim.cosine(rate, 0.0, steps=I)).update(parameters, gradients)

        prog.emit("loss", loss)
        prog.output("said", said[I - 1])
        for name, parameter in parameters.items():
            prog.output(name, parameter.final)
    return prog, I, B, T


def sequences(count, steps, seed=0):
    """Random numbers of which a third is marked, and always the first one; and which one was marked last."""
    rng = np.random.default_rng(seed)
    number, mark = rng.normal(size=(count, steps)), rng.random((count, steps)) < 1 / 3
    mark[:, 0] = True
    last = np.maximum.accumulate(np.where(mark, np.arange(steps), 0), axis=1)
    return np.stack([number, mark], axis=-1), np.take_along_axis(number, last, axis=1)


def main(iterations=300, count=64, steps=12):
    prog, I, B, T = build()
    x, wanted = sequences(count, steps)
    run = prog.compile({I: iterations, B: count, T: steps})
    stream = run.stream(x=x, wanted=wanted)
    for record in stream:
        n = record.point["i"]
        if n % (iterations // 5) == 0 or n == iterations - 1:
            print(f"iteration {n:3}: loss {record.value:.4f}")
    print("number", *(f"{v:5.1f}{'*' if marked else ' '}" for v, marked in x[0]))
    print("wanted", *(f"{v:5.1f} " for v in wanted[0]))
    print("said  ", *(f"{v:5.1f} " for v in stream.result.said[0]))
    print(run.loop_tree("h", "einsum"))


if __name__ == "__main__":
    main()
