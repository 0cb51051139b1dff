"""Values that are computed again in place of being kept: which ones, that results are the same, and when it is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.planning import Planner
from tempo.schedule.recompute import recomputing, worth_recomputing

SIZE = 6
STEPS = 24
RNG = np.random.default_rng(0)
INPUTS = {"x": RNG.normal(size=(STEPS, SIZE)), "w": RNG.normal(size=(SIZE, SIZE)) / 3}


def training() -> tuple[tp.Program, Any]:
    """A recurrence of several operations, and the gradient through all of its steps."""
    with tp.Program("training") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (SIZE,), t)
        w = prog.input("w", (SIZE, SIZE))
        h = prog.recurrent("h", (SIZE,), t)
        h[0] = x[0]
        inner = tp.sigmoid(w @ h[t - 1])
        h[t] = tp.tanh(inner * x) + tp.exp(-inner)
        prog.output("g", tp.grad(tp.sum(h[T - 1]), w))
    return prog, T


def kept_bytes(run: Any, T: Any) -> int:
    """What is kept of all steps, apart from inputs."""
    steps = run.numbers[T]
    sizes = (store.bytes for node, store in run.storage.stores.items() if store.shape[:1] >= (steps - 1,))
    return sum(sizes) - INPUTS["x"].astype(np.float32).nbytes


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("block", [1, 5, STEPS])
def test_results_stay_the_same(block: int, backend: str) -> None:
    prog, T = training()
    plan = tp.Plan({"t": block}, recompute=True)
    found = prog.compile({T: STEPS}, backend, plan=plan)(**INPUTS).g
    np.testing.assert_allclose(found, prog.evaluate({T: STEPS}, **INPUTS).g, rtol=1e-4, atol=1e-6)


def test_only_what_cannot_be_computed_again_is_kept() -> None:
    prog, T = training()
    kept, again = (
        prog.compile({T: STEPS}, "numpy", plan=tp.Plan({"t": 4}, recompute=recompute)) for recompute in (False, True)
    )
    one = STEPS * SIZE * 4
    assert kept_bytes(kept, T) >= 3 * one
    assert kept_bytes(again, T) < 2 * one  # h alone
    assert "recompute: what takes fewer bytes" in str(again.plan)


def test_within_an_iteration_of_a_training() -> None:
    with tp.Program("training") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", (SIZE,), t)
        w = prog.state("weights", prog.input("w", (SIZE, SIZE)), over=i)
        h = prog.recurrent("h", (SIZE,), (i, t))
        h[i, 0] = x[0]
        inner = tp.sigmoid(w @ h[i, t - 1])
        h[i, t] = tp.tanh(inner * x) + tp.exp(-inner)
        w.next = w - 0.1 * tp.grad(tp.sum(h[i, T - 1]), w)
        prog.output("w", w.final)
    bounds = {I: 3, T: STEPS}
    kept, again = (
        prog.compile(bounds, "numpy", plan=tp.Plan({"t": 4}, recompute=recompute)) for recompute in (False, True)
    )
    one = STEPS * SIZE * 4
    assert kept_bytes(kept, T) >= 3 * one
    assert kept_bytes(again, T) < 2 * one
    np.testing.assert_allclose(again(**INPUTS).w, kept(**INPUTS).w, rtol=1e-4)


def test_the_cheapest_cut() -> None:
    prog, T = training()
    run = Executable(prog.graph, {T: STEPS}, "numpy")
    again = worth_recomputing(run.graph, run.schedule, run.storage)
    names = {node.op.name for nodes in again.values() for node in nodes}
    assert {"sigmoid", "tanh", "exp"} <= names
    assert "recurrent" not in names
    assert len(recomputing(run.graph, again).nodes) > len(run.graph.nodes)


def test_a_program_without_a_later_loop() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = tp.tanh(y[t - 1]) + x
        prog.output("y", y)
    run = prog.compile({T: 5}, "numpy", plan=tp.Plan(recompute=True))
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(run(x=x).y, prog.evaluate({T: 5}, x=x).y, rtol=1e-6)
    assert Planner(run.graph, run.numbers, tp.Plan()).recomputing is None


def test_a_budget_has_values_computed_again_where_that_takes_less_time() -> None:
    prog, T = training()
    free = prog.compile({T: STEPS}, "numpy")
    budget = int(free.storage.peak * 0.62)
    run = prog.compile({T: STEPS}, "numpy", memory=budget)
    assert run.plan.recompute
    assert not run.plan.host
    assert run.storage.peak <= budget
    np.testing.assert_allclose(run(**INPUTS).g, free(**INPUTS).g, rtol=1e-4, atol=1e-6)
    # What was decided can be given back.
    same = prog.compile({T: STEPS}, "numpy", plan=run.plan)
    assert same.plan == run.plan
    assert same.storage.peak == run.storage.peak
