"""A small LSTM, trained by back-propagation through time to predict the next sample of a wave.

Two dims: iterations i of the training, steps t of the sequence. The parameters are states over i, so at every
iteration the network is run, differentiated and updated with that iteration's weights.
"""

import numpy as np

import tempo as tp


def build(hidden=4, lr=0.5, dtype=tp.float32):
    """The program and its bounds. Inputs: x (T,) and the initial parameters.

    Those are W (4 hidden, 1 + hidden) and b (4 hidden,) of the gates, and w (hidden,) of the prediction.
    Emits the loss of every iteration; outputs: losses (I,) and final_W, final_b, final_w.
    """
    with tp.Program("lstm_training") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=dtype)

        with prog.training(over=i):
            W = prog.param("W", (4 * hidden, 1 + hidden), dtype)
            b = prog.param("b", 4 * hidden, dtype)
            w = prog.param("w", hidden, dtype)

        h = prog.recurrent("h", hidden, domain=(i, t), dtype=dtype)
        c = prog.recurrent("c", hidden, domain=(i, t), dtype=dtype)
        before = tp.concatenate([tp.reshape(x, 1), h[i, t - 1]])
        input_gate, forget_gate, output_gate, candidate = tp.split(W @ before + b, 4)
        c[i, -1] = 0
        c[i, t] = tp.sigmoid(forget_gate) * c[i, t - 1] + tp.sigmoid(input_gate) * tp.tanh(candidate)
        h[i, -1] = 0
        h[i, t] = tp.sigmoid(output_gate) * tp.tanh(c)

        prediction = w @ h
        loss = tp.mean((prediction[i, 0 : T - 1] - x[1:T]) ** 2)
        for parameter, gradient in zip((W, b, w), tp.grad(loss, (W, b, w)), strict=True):
            parameter.next = parameter - lr * gradient

        prog.emit("loss", loss)
        prog.output("losses", loss)
        for parameter in (W, b, w):
            prog.output(f"final_{parameter.name}", parameter.final)
    return prog, I, T


def initial(hidden=4, seed=0):
    """Random initial weights, the bias of the forget gate being 1."""
    rng = np.random.default_rng(seed)
    b = np.zeros(4 * hidden)
    b[hidden : 2 * hidden] = 1
    return {
        "W": 0.5 * rng.normal(size=(4 * hidden, 1 + hidden)),
        "b": b,
        "w": 0.5 * rng.normal(size=hidden),
    }


def main():
    prog, I, T = build()
    wave = np.sin(np.arange(8) * 2 * np.pi / 8)
    result = prog.evaluate({I: 6, T: len(wave)}, x=wave, **initial())
    for record in result.emits["loss"]:
        print(f"iteration {record.point['i']}: loss {record.value:.4f}")


if __name__ == "__main__":
    main()
