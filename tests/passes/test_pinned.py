"""Rows of a table that are recurrences themselves become tensors of their own."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tempo as tp
from tempo.analysis.walk import _Walker
from tempo.graph.validate import validate
from tempo.passes import apply_passes
from tempo.passes.accumulations import resolve_accumulations
from tempo.passes.pinned import split_pinned
from tempo.passes.simplify import simplify
from tempo.runtime.executable import Executable
from tempo.schedule.looptree import show
from tests.schedule.common import outline


def check(prog: tp.Program, bounds: dict[Any, int], **inputs: Any) -> Executable:
    """The program compiled for NumPy without wavefronts; both backends compute what the oracle does."""
    validate(apply_passes(prog.graph, skip=("skew",)))
    expected = prog.evaluate(bounds, **inputs)
    for backend in ("jax", "numpy"):
        run = Executable(prog.graph, bounds, backend, skip=("skew",))
        found = run(**inputs)
        for name, array in expected.outputs.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=f"{backend} {name}")
    return run


def unrolled(run: Executable) -> bool:
    """Whether some node is computed at more places than a loop can be cut into."""
    return max(map(len, run.schedule.places.values())) > 4


def table(gradient: bool) -> tuple[tp.Program, Any, Any]:
    """A table both of whose borders are recurrences that are not linear."""
    with tp.Program("table") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j))
        w = prog.input("w")
        D = prog.recurrent("D", domain=(i, j))
        D[-1, -1] = w
        D[-1, j] = tp.sin(w * D[-1, j - 1])
        D[i, -1] = tp.cos(w * D[i - 1, -1])
        D[i, j] = tp.sin(D[i - 1, j - 1] + w * D[i, j - 1] - D[i - 1, j] + x)
        prog.output("D", D)
        if gradient:
            prog.output("dw", tp.grad(D[I - 1, J - 1], w))
            prog.output("dx", tp.grad(D[I - 1, J - 1], x))
    return prog, I, J


def test_the_borders_of_an_edit_distance_are_two_small_loops() -> None:
    with tp.Program("alignment") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        cost = prog.input("cost", domain=(i, j))
        D = prog.recurrent("D", domain=(i, j))
        D[-1, -1] = 0
        D[-1, j] = D[-1, j - 1] + 1
        D[i, -1] = D[i - 1, -1] + 1
        D[i, j] = tp.minimum(D[i - 1, j - 1] + cost, tp.minimum(D[i, j - 1], D[i - 1, j]) + 1)
        prog.output("D", D)
    cost_ = [[1, 1], [0, 1], [1, 0]]  # "cab" and "ab"
    run = check(prog, {I: 3, J: 2}, cost=cost_)
    assert run(cost=cost_).D.tolist() == [[0, 1, 2], [1, 1, 2], [2, 1, 2], [3, 2, 1]]
    assert outline(run.schedule.trees, "D", "D at i = -1", "D at j = -1").splitlines() == [
        "at j = -1:",
        "    D at i = -1 = recurrent() (case 1)",
        "for j in 0 .. 1:",
        "    D at i = -1 = recurrent() (case 2)",
        "at i = -1:",
        "    D at j = -1 = recurrent() (case 1)",
        "    D = recurrent() (case 1, 2)",
        "for i in 0 .. 2:",
        "    D at j = -1 = recurrent() (case 2)",
        "    at j = -1:",
        "        D = recurrent() (case 3)",
        "    for j in 0 .. 1:",
        "        D = recurrent() (case 4)",
    ]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (4, 1), (2, 5), (4, 3)])
def test_tables_and_their_gradients(n: int, m: int) -> None:
    prog, I, J = table(gradient=True)
    x = np.random.default_rng(0).normal(size=(n, m)).astype(np.float32)
    assert not unrolled(check(prog, {I: n, J: m}, x=x, w=0.7))


def test_a_large_table_compiles_with_its_gradient() -> None:
    prog, I, J = table(gradient=True)
    run = prog.compile({I: 512, J: 512}, "numpy")
    assert not unrolled(run) and sum(run.seconds.values()) < 10


def test_a_row_that_starts_another_recurrence_is_computed_before_it() -> None:
    """h[k, 0] only needs itself: t is looped over once, for all k."""
    with tp.Program() as prog:
        k, K = prog.dim("k")
        t, T = prog.dim("t")
        x = prog.input("x", domain=(k, t))
        h = prog.recurrent("h", domain=(k, t))
        h[-1, 0] = 1.0
        h[k, 0] = tp.sin(h[k - 1, 0] + x[k, 0])
        h[k, t] = tp.sin(h[k, t - 1] + x)
        prog.output("h", h[0:K, T - 1])
    run = check(prog, {K: 3, T: 4}, x=np.ones((3, 4)))
    assert outline(run.schedule.trees).splitlines() == [
        "at k = -1:",
        "for k in 0 .. 2:",
        "at t = 0:",
        "for t in 1 .. 3:",
    ]


def test_a_row_that_needs_the_end_of_another_stays_where_it_is() -> None:
    with tp.Program() as prog:
        k, K = prog.dim("k")
        t, T = prog.dim("t")
        h = prog.recurrent("h", domain=(k, t))
        h[0, 0] = 1.0
        h[k, 0] = tp.sin(h[k - 1, T - 1])
        h[k, t] = tp.cos(h[k, t - 1])
        prog.output("h", h)
    graph = simplify(resolve_accumulations(prog.graph))
    assert split_pinned(graph) is graph
    check(prog, {K: 3, T: 4})


@settings(max_examples=10, deadline=None)
@given(st.integers(-1, 1), st.integers(1, 2), st.booleans(), st.booleans(), st.integers(1, 4), st.integers(1, 4))
def test_random_borders(corner: int, back: int, row: bool, column: bool, n: int, m: int) -> None:
    with tp.Program("borders") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j))
        D = prog.recurrent("D", domain=(i, j))
        D[(i <= corner) & (j <= corner)] = x
        D[-1, -1] = 2.0
        D[-1, j] = 0.5 * (D[-1, tp.max(j - back, -1)] if row else 3.0) + 1
        D[i, -1] = 0.5 * (D[tp.max(i - back, -1), -1] if column else 3.0) - 1
        D[i, j] = tp.sin(D[i - 1, j - 1] + D[i, j - 1] + x)
        prog.output("D", D)
        prog.output("dx", tp.grad(D[I - 1, J - 1], x))
    inputs = np.random.default_rng(0).normal(size=(n, m)).astype(np.float32)
    assert not unrolled(check(prog, {I: n, J: m}, x=inputs))


def acting_then_updates() -> tp.Program:
    """Acting with the weights as they are, then several updates from all that was seen."""
    with tp.Program() as prog:
        i, _ = prog.dim("i")
        e, _ = prog.dim("e")
        t, T = prog.dim("t")
        w = prog.state("w", 1.0, over=(i, e))
        o = prog.recurrent("o", (), (i, t))
        o[0, 0] = 1.0
        o[i, t + 1] = tp.cos(o * w[i, 0])
        o[i + 1, 0] = o[i, T]
        w.next = 0.5 * w + tp.sin(o[i, 0:T].sum())
        prog.output("w", w.final)
    return prog


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_row_that_others_read_before_the_rest_is_known(backend: str) -> None:
    prog = acting_then_updates()
    bounds = {"I": 4, "E": 3, "T": 5}
    run = prog.compile(bounds, backend)
    np.testing.assert_allclose(run().w, prog.evaluate(bounds).w, rtol=1e-5)
    heads = [line.strip() for line in show(run.schedule.trees).splitlines() if line.lstrip().startswith("for ")]
    assert heads == ["for i in 0 .. 3:", "for t in 0 .. 4:", "for e in 0 .. 2:"]


def test_a_circle_with_many_points_is_not_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no order of single points for so many: that is known after a few thousand."""
    followed = 0
    reads = _Walker.reads

    def counted(self: _Walker, *args: Any, **keywords: Any) -> Any:
        nonlocal followed
        followed += 1
        return reads(self, *args, **keywords)

    monkeypatch.setattr(_Walker, "reads", counted)
    prog = acting_then_updates()
    assert not prog.compile({"I": 50, "E": 20, "T": 500}, "numpy").schedule.tangled
    assert 0 < followed < 20_000
