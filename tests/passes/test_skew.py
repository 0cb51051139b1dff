"""Recurrences over two dims run along their diagonals: which loops they get, and that they compute the same."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tempo as tp
from tempo.graph.validate import validate
from tempo.passes import apply_passes
from tempo.runtime.executable import Executable
from tempo.schedule.looptree import Loop, Tree
from tests.schedule.common import outline

SIZES = ((1, 1), (1, 5), (5, 1), (2, 5), (4, 3))


def depth(trees: Sequence[Tree]) -> int:
    """How many loops are in each other."""
    return max(
        ((tree.stop - tree.start > 1) + depth(tree.body) if isinstance(tree, Loop) else 0 for tree in trees), default=0
    )


def check(prog: tp.Program, bounds: dict[Any, int], tolerance: float = 1e-5, **inputs: Any) -> Executable:
    """The program compiled for NumPy; both backends compute what the oracle does."""
    validate(apply_passes(prog.graph))
    expected = prog.evaluate(bounds, **inputs)
    for backend in ("jax", "numpy"):
        run = prog.compile(bounds, backend)
        found = run(**inputs)
        for name, array in expected.outputs.items():
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=f"{backend} {name}")
    return run


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def alignment(whole: bool) -> tuple[tp.Program, Any, Any]:
    with tp.Program("alignment") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        a = prog.input("a", domain=i, dtype="int32")
        b = prog.input("b", domain=j, dtype="int32")
        D = prog.recurrent("D", domain=(i, j), dtype="int32")
        D[-1, j] = j.value + 1
        D[i, -1] = i.value + 1
        D[-1, -1] = 0
        D[i, j] = tp.minimum(
            D[i - 1, j - 1] + tp.where(a[i] == b[j], 0, 1),
            tp.minimum(D[i, j - 1], D[i - 1, j]) + 1,
        )
        prog.output("D", D if whole else D[I - 1, J - 1])
    return prog, I, J


def letters(word: str) -> np.ndarray[Any, Any]:
    return np.array([ord(letter) for letter in word], np.int32)


def test_an_edit_distance_is_one_loop_over_its_diagonals() -> None:
    prog, I, J = alignment(whole=False)
    run = check(prog, {I: 2, J: 3}, a=letters("ab"), b=letters("cab"))
    assert run(a=letters("ab"), b=letters("cab")).D == 1
    assert outline(run.schedule.trees, "D'", "where", "minimum") == "\n".join(
        [
            "for (i+j) in -2 .. -1:",
            "    D' = recurrent() (case 1, 2, 3, 4)",
            "for (i+j) in 0 .. 3:",
            "    where_1 = where(equal_1, constant_1, constant_2)",
            "    minimum_1 = minimum(D'[(i+j) - 1, i], D'[(i+j) - 1, i - 1])",
            "    minimum_2 = minimum(add_1, add_2)",
            "    D' = recurrent() (case 1, 2, 3, 4)",
        ]
    )


def test_the_shorter_dim_is_done_at_once() -> None:
    prog, I, J = alignment(whole=False)
    words = {"a": np.zeros(9, np.int32), "b": np.zeros(3, np.int32)}
    run = check(prog, {I: 9, J: 3}, **words)
    assert "minimum_1 = minimum(D'[(i+j) - 1, j - 1], D'[(i+j) - 1, j])" in outline(run.schedule.trees, "minimum")


def test_the_whole_table_is_read_back_from_the_diagonals() -> None:
    prog, I, J = alignment(whole=True)
    run = check(prog, {I: 3, J: 2}, a=letters("cab"), b=letters("ab"))
    assert run(a=letters("cab"), b=letters("ab")).D.tolist() == [[0, 1, 2], [1, 1, 2], [2, 1, 2], [3, 2, 1]]


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("whole", [True, False])
def test_edit_distances_of_any_size(n: int, m: int, whole: bool) -> None:
    prog, I, J = alignment(whole)
    word = np.random.default_rng(0).integers(3, size=10, dtype=np.int32)
    assert depth(check(prog, {I: n, J: m}, a=word[:n], b=word[-m:]).schedule.trees) <= 1


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_a_local_alignment_with_its_best_score(n: int, m: int) -> None:
    """Smith and Waterman's."""
    with tp.Program("smith_waterman") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        score = prog.input("score", domain=(i, j))
        H = prog.recurrent("H", domain=(i, j))
        H[-1, j] = 0
        H[i, -1] = 0
        H[-1, -1] = 0
        H[i, j] = tp.maximum(tp.maximum(H[i - 1, j - 1] + score, 0), tp.maximum(H[i - 1, j] - 0.5, H[i, j - 1] - 0.25))
        prog.output("best", tp.max(H[0:I, 0:J]))
    assert depth(check(prog, {I: n, J: m}, score=random(n, m)).schedule.trees) <= 1


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_a_batch_of_time_warpings_and_their_gradient(n: int, m: int) -> None:
    """The batch stays a vector beside the diagonals; the gradient is a loop over them backwards."""
    with tp.Program("warping") as prog:
        k, K = prog.dim("k")
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(k, i))
        y = prog.input("y", domain=(k, j))
        D = prog.recurrent("D", domain=(k, i, j))
        cost = tp.square(x - y)
        D[k, 0, 0] = cost[k, 0, 0]
        D[k, 0, j] = D[k, 0, j - 1] + cost[k, 0, j]
        D[k, i, 0] = D[k, i - 1, 0] + cost[k, i, 0]
        D[k, i, j] = cost + tp.minimum(D[k, i - 1, j - 1], tp.minimum(D[k, i - 1, j], D[k, i, j - 1]))
        prog.output("D", D[k, I - 1, J - 1])
        prog.output("dx", tp.grad(D[k, I - 1, J - 1], x))
    assert depth(check(prog, {K: 3, I: n, J: m}, x=random(3, n), y=random(3, m)).schedule.trees) <= 1


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_a_network_over_two_dims_and_its_training(n: int, m: int) -> None:
    with tp.Program("grid") as prog:
        k, K = prog.dim("k")
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", 3, domain=(i, j))
        U = prog.input("U", (2, 3))
        W = prog.state("W", prog.input("W0", (2, 2)), over=k)
        h = prog.recurrent("h", 2, domain=(k, i, j))
        h[k, -1, j] = 0.0
        h[k, i, -1] = 0.0
        h[k, i, j] = tp.tanh(W @ (h[k, i - 1, j] - 0.5 * h[k, i, j - 1]) + U @ x)
        loss = tp.sum(tp.square(h[k, I - 1, J - 1] - 0.5))
        W.next = W - 0.1 * tp.grad(loss, W)
        prog.output("loss", loss)
        prog.output("W", W.final)
    run = check(prog, {K: 3, I: n, J: m}, 1e-4, x=random(n, m, 3), U=random(2, 3), W0=random(2, 2))
    assert depth(run.schedule.trees) <= 2


def recurrence(distances: Sequence[tuple[int, int]], whole: bool = True) -> tuple[tp.Program, Any, Any]:
    """Every point reads those at some distances before it, where there are any."""
    with tp.Program("recurrence") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j))
        y = prog.recurrent("y", domain=(i, j))
        outside = [part for di, dj in distances for part in (i < di, i >= I + di, j < dj, j >= J + dj)]
        y[functools.reduce(operator.or_, outside)] = x
        total = x
        for n, (di, dj) in enumerate(distances):
            total = total + (0.5 + n / 8) * y[i - di, j - dj]
        y[i, j] = tp.sin(total)
        prog.output("y", y if whole else y[I - 1, J - 1])
        if whole:
            prog.output("dx", tp.grad(tp.sum(y[0:I, 0:J]), x))
    return prog, I, J


@pytest.mark.parametrize(
    ("distances", "name"),
    [
        (((1, 0), (0, 1)), "(i+j)"),
        (((-1, 0), (0, -1)), "(i+j)"),
        (((1, 0), (0, -1)), "(i-j)"),
        (((1, -1), (0, 1)), "(2*i+j)"),
        (((1, -2), (0, 1), (2, 1)), "(3*i+j)"),
    ],
)
def test_diagonals_are_as_steep_as_the_reads_need(distances: tuple[tuple[int, int], ...], name: str) -> None:
    prog, I, J = recurrence(distances)
    for n, m in ((1, 5), (5, 1), (6, 7)):
        run = check(prog, {I: n, J: m}, x=random(n, m))
        assert depth(run.schedule.trees) <= 1
    assert f"for {name} in" in outline(run.schedule.trees)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=4),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.booleans(),
)
def test_random_recurrences(steps: list[tuple[int, int]], size: tuple[int, int], flipped: bool) -> None:
    # Every distance is made to look back: lexicographically, in the order of the dims or in the other.
    distances = [(abs(di), dj) if di else (0, abs(dj) or 1) for di, dj in steps]
    prog, I, J = recurrence([(dj, di) for di, dj in distances] if flipped else distances)
    check(prog, {I: size[0], J: size[1]}, 1e-4, x=random(*size))


# -- where it must not be done ---------------------------------------------------------------------------------


def test_one_loop_that_carries_everything_stays_as_it_is() -> None:
    prog, I, J = recurrence([(1, 0), (1, 1), (1, -1)])
    assert outline(check(prog, {I: 4, J: 4}, x=random(4, 4)).schedule.trees).count("for i in") == 2


def test_reads_at_varying_distances_stay_two_loops() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j))
        y = prog.recurrent("y", domain=(i, j))
        y[-1, j] = 0
        y[i, -1] = 0
        y[i, j] = x + y[i, j - 1] + tp.sum(y[i - 1, 0 : j + 1])
        prog.output("y", y)
    assert depth(check(prog, {I: 3, J: 4}, x=random(3, 4)).schedule.trees) == 2


def test_large_values_stay_two_loops() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        y = prog.recurrent("y", (256, 256), domain=(i, j))
        y[-1, j] = 0
        y[i, -1] = 1
        y[i, j] = y[i, j - 1] + y[i - 1, j]
        prog.output("y", tp.sum(y[I - 1, J - 1]))
    assert depth(prog.compile({I: 3, J: 4}, "numpy").schedule.trees) == 2


@pytest.mark.parametrize("rank", [3, 4])
def test_a_cube_is_one_loop(rank: int) -> None:
    """Over the sum of all dims, although each of them carries a part of the reads. (With gradients, too, it ends.)"""
    with tp.Program() as prog:
        dims = [prog.dim(name) for name in "abcd"[:rank]]
        here = tuple(d for d, _ in dims)
        x = prog.input("x", domain=here)
        z = prog.recurrent("z", domain=here)
        for n in range(rank):
            border = tuple(0 if k == n else d for k, d in enumerate(here))
            z[border] = x[border]
        before = [z[tuple(d - 1 if k == n else d for k, d in enumerate(here))] for n in range(rank)]
        z[here] = 0.5 * sum(before) + x
        prog.output("z", z)
        prog.output("g", tp.grad(z[tuple(bound - 1 for _, bound in dims)], x))
    bounds = {bound: n + 2 for n, (_, bound) in enumerate(dims)}
    run = check(prog, bounds, x=random(*bounds.values()))
    forwards = [tree for tree in run.schedule.trees if isinstance(tree, Loop) and not tree.backwards]
    assert depth(forwards) == 1
