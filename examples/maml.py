"""Model-agnostic meta-learning (Finn et al., 2017): first weights from which a few gradient steps learn a new task.

    fast[0] = w,  fast[s + 1] = fast[s] - alpha d loss(fast[s]) / d fast[s]        on a few samples of a task
    w <- w - beta d (mean over tasks of the loss of fast[S] on other samples) / d w

Tasks k and inner steps s are dims like iterations i. The gradient by w goes through all inner steps, and so through the
gradients in them. The task is the paper's: a sine of random amplitude and phase.
"""

import numpy as np

import tempo as tp
from tempo import nn


def build(samples=10, hidden=16, alpha=0.05, beta=0.05, dtype=tp.float32):
    """The program and its bounds. Inputs: x, y, x_test and y_test, each (I, K, samples), and the first weights by name.

    Outputs: before and after (I,), the mean loss on test samples with w and with fast[S], and the weights in the end.
    """
    model = nn.MLP([1, hidden, 1], tp.tanh)
    with tp.Program("maml") as prog:
        i, I = prog.dim("i")
        k, K = prog.dim("k")
        s, S = prog.dim("s")
        x, y, x_test, y_test = (prog.input(name, samples, (i, k), dtype) for name in ("x", "y", "x_test", "y_test"))
        with prog.training(over=i):
            net = model.declare(prog, init=False, dtype=dtype)
        w = net.parameters()

        def loss(weights, x, y):
            predicted = net.with_parameters(weights)(tp.expand_dims(x, -1))
            return tp.mean(tp.square(tp.squeeze(predicted, -1) - y))

        fast = {name: prog.recurrent(f"fast.{name}", v.shape, (i, k, s), dtype) for name, v in w.items()}
        slopes = tp.grad(loss(fast, x, y), fast)
        for name, v in fast.items():
            v[i, k, 0] = w[name]
            v[i, k, s + 1] = v - alpha * slopes[name]

        adapted = {name: v[i, k, S] for name, v in fast.items()}
        after = tp.mean(loss(adapted, x_test, y_test)[i, 0:K])
        gradients = tp.grad(after, w)
        for name, v in w.items():
            v.next = v - beta * gradients[name]
            prog.output(name, v.final)
        prog.output("before", tp.mean(loss(w, x_test, y_test)[i, 0:K]))
        prog.output("after", after)
    return prog, I, K, S


def data(iterations, tasks, samples=10, seed=0):
    rng = np.random.default_rng(seed)
    amplitude = rng.uniform(0.1, 5.0, size=(iterations, tasks, 1))
    phase = rng.uniform(0.0, np.pi, size=(iterations, tasks, 1))
    x, x_test = rng.uniform(-5.0, 5.0, size=(2, iterations, tasks, samples))
    return {
        "x": x,
        "y": amplitude * np.sin(x - phase),
        "x_test": x_test,
        "y_test": amplitude * np.sin(x_test - phase),
    }


def initial(hidden=16, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "layers.0.weight": rng.normal(size=(hidden, 1)),
        "layers.0.bias": rng.normal(size=hidden),
        "layers.1.weight": rng.normal(size=(1, hidden)) / np.sqrt(hidden),
        "layers.1.bias": np.zeros(1),
    }


def main():
    prog, I, K, S = build()
    tasks = {name: np.repeat(value, 13, axis=0) for name, value in data(1, 4).items()}  # the same in all iterations
    result = prog.evaluate({I: 13, K: 4, S: 3}, **tasks, **initial())
    print("loss on new samples of a task, before and after three gradient steps:")
    for i in range(0, 13, 3):
        print(f"iteration {i:2}: {result.before[i]:.2f} -> {result.after[i]:.2f}")


if __name__ == "__main__":
    main()
