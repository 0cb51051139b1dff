"""The gradient of a training's outcome with respect to its learning rate, through the whole training.

    w[0] = w0,  w[i + 1] = w[i] - lr d loss(w[i]) / d w[i],        outcome = validation loss of w[I]

The learning rate has no dims, so its gradient flows through all I updates, and through the gradients in them.
"""

import numpy as np

import tempo as tp


def build(samples=8, features=3, dtype=tp.float32):
    """The program and its bound. Inputs: X (samples, features), y (samples,), X_valid, y_valid, w0 and lr.

    Outputs: losses (I,), outcome, and d_lr and d_w0: the gradients of the outcome.
    """
    with tp.Program("hypergradient") as prog:
        i, I = prog.dim("i")
        X = prog.input("X", (samples, features), dtype=dtype)
        y = prog.input("y", samples, dtype=dtype)
        X_valid = prog.input("X_valid", (samples, features), dtype=dtype)
        y_valid = prog.input("y_valid", samples, dtype=dtype)
        w0 = prog.input("w0", features, dtype=dtype)
        lr = prog.input("lr", dtype=dtype)

        def loss(X, y, w):
            return tp.mean((tp.tanh(X @ w) - y) ** 2)

        w = prog.state("w", w0, over=i)
        training_loss = loss(X, y, w)
        w.next = w - lr * tp.grad(training_loss, w)

        outcome = loss(X_valid, y_valid, w.final)
        d_lr, d_w0 = tp.grad(outcome, (lr, w0))
        prog.output("losses", training_loss)
        prog.output("outcome", outcome)
        prog.output("d_lr", d_lr)
        prog.output("d_w0", d_w0)
    return prog, I


def data(samples=8, features=3, seed=0):
    rng = np.random.default_rng(seed)
    X, X_valid = rng.normal(size=(2, samples, features))
    truth = rng.normal(size=features)
    return {
        "X": X,
        "y": np.tanh(X @ truth),
        "X_valid": X_valid,
        "y_valid": np.tanh(X_valid @ truth),
        "w0": np.zeros(features),
    }


def main():
    prog, I = build(dtype=tp.float64)
    given = data()

    def run(lr):
        return prog.evaluate({I: 5}, lr=lr, **given)

    print("  lr  outcome  d outcome / d lr  (measured)")
    for lr in (0.05, 0.2, 0.8):
        result = run(lr)
        measured = (run(lr + 1e-5).outcome - run(lr - 1e-5).outcome) / 2e-5
        print(f"{lr:4.2f} {result.outcome:8.4f} {result.d_lr:17.5f}  ({measured:.5f})")


if __name__ == "__main__":
    main()
