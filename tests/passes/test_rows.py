"""Rows that one iteration hands on to the next are tensors of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.validate import validate
from tempo.ops.elementwise import COPY
from tempo.passes.rows import hand_rows_on
from tempo.runtime.executable import Executable
from tempo.schedule.storage import Latest, Steps, Window


def walk(last: Any = -1) -> tuple[tp.Program, dict[Any, int]]:
    """x goes on from iteration to iteration: each starts where a step of the one before led to."""
    with tp.Program("walk") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        start = prog.state("start", prog.input("first", 2), over=i)
        x = prog.recurrent("x", 2, (i, t))
        x[i, 0] = start
        after = tp.sin(x * 1.5 + t.value.astype("float32"))
        x[t > 0] = after[i, t - 1]
        start.next = after[i, T + last]
        prog.output("total", tp.sum(x[i, 0:T], axis=0))
    return prog, {I: 4, T: 6}


def test_the_last_row_is_a_copy_that_the_next_iteration_reads() -> None:
    prog, _ = walk()
    graph = hand_rows_on(prog.graph)
    validate(graph)
    (row,) = (node for node in graph.nodes if node.op is COPY and node not in prog.graph.nodes)
    assert [d.name for d in row.domain] == ["i"]
    (start,) = (node for node in graph.cases if node.name == "start")
    assert row in {case.value.node for case in graph.cases[start]}
    assert hand_rows_on(graph) is graph


@pytest.mark.parametrize("last", [-1, -2])
@pytest.mark.parametrize("backend", ["jax", "numpy"])
@pytest.mark.parametrize("plan", [None, {"i": 1}, {"i": 1, "t": 1}, {"i": 1, "t": 2}])
def test_values_are_the_same(last: int, backend: str, plan: Any) -> None:
    prog, bounds = walk(last)
    first = np.array([0.3, -0.2], np.float32)
    expected = prog.evaluate(bounds, first=first)
    for skip in ((), ("hand rows on",)):
        plan_ = None if plan is None else tp.Plan(blocks=plan)
        found = Executable(prog.graph, bounds, backend, skip=skip, plan=plan_)(first=first)
        np.testing.assert_allclose(found.total, expected.total, rtol=1e-5, atol=1e-6)


def test_what_is_stepped_through_does_not_outlive_its_iteration() -> None:
    """Without the row, all steps of two iterations were kept."""
    prog, bounds = walk()
    run = prog.compile(bounds, plan=tp.Plan(blocks={"i": 1, "t": 1}))
    (sine,) = (node for node in run.storage.stores if node.op.name == "sin")
    kept = {d.name: kept for d, kept in run.storage.stores[sine].dims.items()}
    assert kept == {"i": Latest(), "t": Window(2, final=1)}


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_a_tensor_that_begins_where_it_ended_does_not_outlive_its_iteration(backend: str) -> None:
    """The row is the tensor's own. Two iterations' steps were kept, in one store that the loop read and wrote."""
    with tp.Program("sweeps") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.recurrent("x", 2, (i, t))
        x[0, 0] = prog.input("first", 2)
        x[i, 0] = x[i - 1, T]
        x[i, t + 1] = tp.sin(x * 1.5 + t.value.astype("float32"))
        prog.output("mean", tp.mean(x[i, 0 : T + 1], axis=0))
    bounds, first = {I: 4, T: 6}, np.array([0.3, -0.2], np.float32)
    run = prog.compile(bounds, backend)
    np.testing.assert_allclose(run(first=first).mean, prog.evaluate(bounds, first=first).mean, rtol=1e-5, atol=1e-6)
    (store,) = (store for node, store in run.storage.stores.items() if node.name == "x")
    assert {d.name: kept for d, kept in store.dims.items()} == {"i": Latest(), "t": Steps(0, 7)}


def test_a_row_that_is_read_in_its_own_iteration_stays_a_read() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.recurrent("x", (), (i, t))
        x[i, 0] = i.value.astype("float32")
        x[i, t] = tp.cos(x[i, t - 1])
        y = prog.recurrent("y", (), i)
        y[-1] = 0.0
        y[i] = y[i - 1] + tp.sin(x)[i, T - 1]
        prog.output("y", y)
    assert hand_rows_on(prog.graph) is prog.graph
    bounds = {I: 3, T: 4}
    np.testing.assert_allclose(prog.compile(bounds)().y, prog.evaluate(bounds).y, rtol=1e-5)
