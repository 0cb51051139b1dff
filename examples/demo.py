"""A first look at Tempo: two small programs, from their definitions to a plot. Run it with ``make demo``.

Most of it runs on the reference interpreter, which is exact and slow: it evaluates a program point by point. Part 5
compiles the same training.
"""

import inspect
import os
import time
from pathlib import Path

import numpy as np

import tempo as tp

OUT = Path(__file__).resolve().parent.parent / "out"


def moving_average():
    with tp.Program("ema") as prog:
        t, T = prog.dim("t")  # time steps 0, 1, ..., T - 1
        x = prog.input("x", domain=t)  # one number per step, given when the program runs
        y = prog.recurrent("y", domain=t)  # one number per step, defined by cases:
        y[0] = x[0]
        y[t] = 0.75 * y[t - 1] + 0.25 * x[t]
        prog.output("y", y)
    return prog, T


def echo():
    """A recurrent network with two units learns to say what its input was one step before."""
    with tp.Program("echo") as prog:
        i, I = prog.dim("i")  # iterations of training
        b, B = prog.dim("b")  # sequences
        t, T = prog.dim("t")  # steps of a sequence
        x = prog.input("x", domain=(b, t))

        with prog.training(over=i):  # parameters have a value at every iteration
            W = prog.param("W", shape=(2, 2), init=small)
            u = prog.param("u", shape=(2,), init=small)
            v = prog.param("v", shape=(2,), init=small)

        h = prog.recurrent("h", shape=(2,), domain=(i, b, t))
        h[i, b, 0] = tp.tanh(u * x[b, 0])
        h[i, b, t] = tp.tanh(W @ h[i, b, t - 1] + u * x[b, t])
        answer = v @ h
        error = answer - x[b, t - 1]
        loss = tp.mean(tp.square(error)[i, 0:B, 1:T])  # at step 0 there is nothing to say yet

        gradients = tp.grad(loss, prog.params)  # back-propagation through time
        for name, parameter in prog.params.items():
            parameter.next = parameter - 0.5 * gradients[name]

        prog.output("loss", loss)
        prog.output("answer", answer[I - 1])
    return prog, I, B, T


def small(shape, dtype):
    return tp.random.normal(shape, std=0.5, dtype=dtype)


def mistake():
    with tp.Program("returns") as prog:
        t, T = prog.dim("t")
        reward = prog.input("reward", domain=t)
        g = prog.recurrent("g", domain=t)
        g[t] = reward[t] + 0.9 * g[t + 1]  # and what is it at the last step?
        prog.output("g", g)
    return prog, T


def main(out=OUT):
    title("1. A program states what each tensor is at each step")
    print(inspect.getsource(moving_average))
    prog, T = moving_average()

    title("2. Its graph: who reads whom, and at which step")
    print(prog.graph)

    title("3. Its values")
    samples = noisy_step(40)
    average = prog.evaluate({T: 40}, x=samples).y
    print(f"{'t':>4}  {'x[t]':>7}  {'y[t]':>7}")
    for t in range(14, 26):
        print(f"{t:>4}  {samples[t]:>7.3f}  {average[t]:>7.3f}  {bar(average[t], 30)}".rstrip())

    title("4. Training: iterations are one more dimension of time")
    print(inspect.getsource(echo))
    sequences = np.random.default_rng(0).choice([-1.0, 1.0], size=(4, 6))
    prog, I, B, T = echo()
    run = prog.evaluate({I: 30, B: 4, T: 6}, seed=1, x=sequences)
    print("iteration   loss")
    for i in (*range(0, 30, 3), 29):
        print(f"{i:>9}   {run.loss[i]:.4f}  {bar(run.loss[i] / run.loss[0], 40)}".rstrip())
    print()
    print("On the first sequence, after training:")
    print("  input                " + row(sequences[0]))
    print("  one step before             " + row(sequences[0, :-1]))
    print("  the network's answer        " + row(run.answer[0, 1:]))

    title("5. The same program, compiled")
    compiled_training(prog, {I: 30, B: 4, T: 6}, sequences, run.loss)
    many = np.random.default_rng(1).choice([-1.0, 1.0], size=(64, 100))
    faster = compiled_training(prog, {I: 1000, B: 64, T: 100}, many)
    print("Its loops, and the matrix products in them; all else is left out here:")
    print()
    print(outline(faster))

    title("6. A mistake is found before anything runs")
    print(inspect.getsource(mistake))
    prog, T = mistake()
    try:
        prog.check({T: 5})
    except tp.TempoError as error:
        print(f"{type(error).__name__}: {error}")

    title("7. A plot, and what the compiler made of the training")
    out.mkdir(parents=True, exist_ok=True)
    plot(out / "demo.png", samples, average, run.loss)
    report = faster.report(out / "demo.html")
    print(f"its graph, loops, plan and memory, for a browser: {os.path.relpath(report)}")


def compiled_training(prog, bounds, sequences, expected=None):
    """Compile the training for these bounds, run it, and tell how long that took."""
    start = time.perf_counter()
    compiled = prog.compile(bounds)
    ready = time.perf_counter()
    loss = compiled(seed=1, x=sequences).loss
    done = time.perf_counter()
    print(", ".join(f"{bound} = {number}" for bound, number in bounds.items()))
    print(f"  compiled in {ready - start:.1f} s, ran in {done - ready:.3f} s")
    print(f"  loss: from {loss[0]:.4f} down to {loss[-1]:.6f}")
    if expected is not None:
        print(f"  largest difference from the interpreter: {np.abs(loss - expected).max():.1e}")
    print()
    return compiled


def outline(compiled):
    """The loop tree that explain() shows, without what is not a loop or a matrix product."""
    tree = compiled.explain().split("-- loop tree --\n")[1].split("\n\n-- ")[0]
    return "\n".join(line for line in tree.splitlines() if "for " in line or " = einsum(" in line)


def noisy_step(steps):
    noise = np.random.default_rng(7).normal(scale=0.15, size=steps)
    return np.where(np.arange(steps) < 16, 0.0, 1.0) + noise


def title(text):
    print(f"\n{text}\n{'-' * len(text)}\n")


def row(values):
    return "".join(f"{value:>7.2f}" for value in values)


def bar(value, width):
    return "#" * max(0, round(width * float(value)))


def plot(path, samples, average, loss):
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed, so there is no plot: pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    left.plot(samples, "o", color="0.6", markersize=4, label="input x[t]")
    left.plot(average, color="#0072B2", linewidth=2, label="average y[t]")
    left.set(title="y[t] = 0.75 y[t-1] + 0.25 x[t]", xlabel="step t")
    left.legend(frameon=False)
    right.plot(loss, color="#D55E00", linewidth=2)
    right.set(title="a two-unit RNN learns to echo its input", xlabel="iteration i", ylabel="loss[i]", yscale="log")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"the plot: {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
