"""Fibonacci numbers: a recurrence that looks two steps back.

    F[0] = a,  F[1] = b,  F[t] = F[t - 1] + F[t - 2]

Every number is a sum of a's and b's; the gradient of the last one counts them, in Fibonacci numbers.
"""

import tempo as tp


def build(dtype=tp.float32):
    """The program and its bound. Inputs: a, b. Outputs: F (T,), da and db: the gradient of F[T - 1]."""
    with tp.Program("fibonacci") as prog:
        t, T = prog.dim("t")
        a = prog.input("a", dtype=dtype)
        b = prog.input("b", dtype=dtype)

        F = prog.recurrent("F", domain=(t,), dtype=dtype)
        F[0] = a
        F[1] = b
        F[t] = F[t - 1] + F[t - 2]

        da, db = tp.grad(F[T - 1], (a, b))
        prog.output("F", F)
        prog.output("da", da)
        prog.output("db", db)
    return prog, T


def main():
    prog, T = build()
    result = prog.evaluate({T: 12}, a=0.0, b=1.0)
    print("F:", *(int(value) for value in result.F))
    print(f"F[11] is a {int(result.da)} times and b {int(result.db)} times")


if __name__ == "__main__":
    main()
