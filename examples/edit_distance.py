"""The edit distance of two words: a dynamic program over two dims.

D[i, j] is the least cost of turning the first i letters of a into the first j letters of b. The gradient of
the distance with respect to the costs counts the insertions, deletions and substitutions of the best way.
"""

import numpy as np

import tempo as tp


def build(dtype=tp.float32):
    """The program and its bounds. Inputs: a (I,), b (J,), and the costs insert, delete and substitute.

    Outputs: D (I + 1, J + 1), distance, and inserted, deleted, substituted: how many of each.
    """
    with tp.Program("edit_distance") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        a = prog.input("a", domain=(i,), dtype=tp.int32)
        b = prog.input("b", domain=(j,), dtype=tp.int32)
        insert = prog.input("insert", dtype=dtype)
        delete = prog.input("delete", dtype=dtype)
        substitute = prog.input("substitute", dtype=dtype)

        D = prog.recurrent("D", domain=(i, j), dtype=dtype)
        D[0, 0] = 0
        D[0, j + 1] = D[0, j] + insert
        D[i + 1, 0] = D[i, 0] + delete
        D[i + 1, j + 1] = tp.minimum(
            D[i, j] + tp.where(a[i] == b[j], 0, substitute),
            tp.minimum(D[i + 1, j] + insert, D[i, j + 1] + delete),
        )

        distance = D[I, J]
        inserted, deleted, substituted = tp.grad(distance, (insert, delete, substitute))
        prog.output("D", D)
        prog.output("distance", distance)
        prog.output("inserted", inserted)
        prog.output("deleted", deleted)
        prog.output("substituted", substituted)
    return prog, I, J


def letters(word):
    return np.array([ord(letter) for letter in word], np.int32)


def main():
    prog, I, J = build()
    a, b = "kitten", "sitting"
    costs = {"insert": 1.0, "delete": 1.0, "substitute": 1.0}
    result = prog.evaluate({I: len(a), J: len(b)}, a=letters(a), b=letters(b), **costs)
    print("     ", *f" {b}")
    for letter, row in zip(f" {a}", result.D, strict=True):
        print("   ", letter, *(int(cost) for cost in row))
    print(
        f"{a} -> {b}: distance {result.distance:g} = {result.inserted:g} inserted"
        f" + {result.deleted:g} deleted + {result.substituted:g} substituted"
    )


if __name__ == "__main__":
    main()
