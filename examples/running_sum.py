"""A running sum and an exponential moving average: the two smallest recurrences.

    total[t]   = total[t - 1] + x[t]
    average[t] = decay average[t - 1] + (1 - decay) x[t]

The gradient of the last average is the weight that it gives to every sample.
"""

import numpy as np

import tempo as tp


def build(decay=0.9, dtype=tp.float32):
    """The program and its bound. Input: x (T,). Outputs: total, average and weights, all (T,)."""
    with tp.Program("running_sum") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=dtype)

        total = prog.recurrent("total", domain=(t,), dtype=dtype)
        total[0] = x[0]
        total[t] = total[t - 1] + x[t]

        average = prog.recurrent("average", domain=(t,), dtype=dtype)
        average[0] = x[0]
        average[t] = decay * average[t - 1] + (1 - decay) * x[t]

        prog.output("total", total)
        prog.output("average", average)
        prog.output("weights", tp.grad(average[T - 1], x))
    return prog, T


def main():
    prog, T = build(decay=0.5)
    x = np.array([4.0, 2.0, 0.0, 2.0, 8.0])
    result = prog.evaluate({T: len(x)}, x=x)
    print("x             ", x)
    print("running sum   ", result.total)
    print("moving average", result.average)
    print("its weights   ", result.weights)


if __name__ == "__main__":
    main()
