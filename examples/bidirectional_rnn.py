"""A bidirectional recurrent network: one state runs with time, one against it.

    forward[t]  = tanh(W_f x[t] + U_f forward[t - 1])      forward[-1] = 0
    backward[t] = tanh(W_b x[t] + U_b backward[t + 1])     backward[T] = 0
    y[t]        = W_y [forward[t], backward[t]]

The gradients run the other way through each: nothing has to be said about that.
"""

import numpy as np

import tempo as tp


def shapes(inputs, hidden, outputs):
    """The parameters' names and shapes."""
    return {
        "W_f": (hidden, inputs),
        "U_f": (hidden, hidden),
        "W_b": (hidden, inputs),
        "U_b": (hidden, hidden),
        "W_y": (outputs, 2 * hidden),
    }


def build(inputs=2, hidden=3, outputs=1, dtype=tp.float32):
    """The program and its bound. Inputs: x (T, inputs), target (T, outputs) and the parameters by name.

    Outputs: y (T, outputs), loss, and d_W_f, ...: the loss's gradient with respect to every parameter.
    """
    with tp.Program("bidirectional_rnn") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", inputs, domain=(t,), dtype=dtype)
        target = prog.input("target", outputs, domain=(t,), dtype=dtype)
        for name, shape in shapes(inputs, hidden, outputs).items():
            prog.param(name, shape, dtype)
        W_f, U_f, W_b, U_b, W_y = prog.params.values()

        forward = prog.recurrent("forward", hidden, domain=(t,), dtype=dtype)
        forward[-1] = 0
        forward[t] = tp.tanh(W_f @ x[t] + U_f @ forward[t - 1])

        backward = prog.recurrent("backward", hidden, domain=(t,), dtype=dtype)
        backward[T] = 0
        backward[t] = tp.tanh(W_b @ x[t] + U_b @ backward[t + 1])

        y = W_y @ tp.concatenate([forward[t], backward[t]])
        loss = tp.mean((y[0:T] - target[0:T]) ** 2)

        prog.output("y", y)
        prog.output("loss", loss)
        for name, gradient in tp.grad(loss, prog.params).items():
            prog.output(f"d_{name}", gradient)
    return prog, T


def main():
    prog, T = build(inputs=1)
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape) for name, shape in shapes(1, 3, 1).items()}
    x = rng.normal(size=(6, 1))
    # The sum of both neighbours: neither direction alone could tell it.
    padded = np.pad(x, ((1, 1), (0, 0)))
    result = prog.evaluate({T: 6}, x=x, target=padded[:-2] + padded[2:], **params)
    print(f"loss {result.loss:.4f}")
    for name in params:
        print(f"gradient of {name}: norm {np.linalg.norm(result[f'd_{name}']):.4f}")


if __name__ == "__main__":
    main()
