"""Programs of many operations one after the other: more of them than Python's stack is deep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.validate import validate
from tempo.runtime.executable import Executable
from tempo.schedule.recompute import recomputing, worth_recomputing

DEPTH = 1000
STEPS = 4


def deep(x: Any, depth: int = DEPTH) -> Any:
    z = x
    for n in range(depth):
        z = tp.sin(z) + x if n % 2 else 0.9 * z
    return z


def test_what_is_computed_for_a_loop() -> None:
    with tp.Program("before") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        z = deep(x)
        y[0] = z[0]
        y[t] = tp.tanh(y[t - 1]) + z[t]
        prog.output("y", y)
    data = np.linspace(0, 1, STEPS)
    found = prog.compile({T: STEPS}, "numpy")(x=data).y
    np.testing.assert_allclose(found, prog.evaluate({T: STEPS}, x=data).y, rtol=1e-5)


def test_a_linear_recurrence() -> None:
    with tp.Program("linear") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        z = y[t - 1]
        for n in range(DEPTH):
            z = z + x if n % 2 else 0.999 * z
        y[t] = z
        prog.output("y", y)
    data = np.linspace(0, 1, STEPS)
    run = Executable(prog.graph, {T: STEPS}, "numpy", parallel=True)
    assert any(node.op.name == "linear_recurrence" for node in run.graph.nodes)
    np.testing.assert_allclose(run(x=data).y, prog.evaluate({T: STEPS}, x=data).y, rtol=1e-3)


@pytest.mark.slow
def test_what_is_computed_again() -> None:
    with tp.Program("again") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        h = prog.recurrent("h", domain=t)
        h[0] = x[0]
        h[t] = deep(h[t - 1])
        prog.output("g", tp.grad(h[T - 1], x)[0])
    run = prog.compile({T: STEPS}, "numpy")
    again = worth_recomputing(run.graph, run.schedule, run.storage)
    graph = recomputing(run.graph, again)
    validate(graph)
    assert len(graph.nodes) > len(run.graph.nodes) + DEPTH


def test_a_tensor_that_was_cast_again_and_again() -> None:
    with tp.Program("cast"):
        x = tp.zeros(3)
        z = x
        for _ in range(DEPTH):
            z = z.astype("float16").astype("float32")
        assert str(z) == str(x)


@pytest.mark.timeout(20)
def test_a_gradient_held_at_steps_that_most_operations_do_not_vary_over() -> None:
    # Each of them was looked at from each: that took minutes, where it now takes a second or two.
    with tp.Program("held") as prog:
        t, _ = prog.dim("t")
        w = prog.recurrent("w", domain=t)
        w[0] = 1.0
        w[t] = 0.9 * w[t - 1]
        loss = deep(w[0], 3 * DEPTH) * w
        prog.output("g", tp.grad(loss, w))
    assert len(prog.graph.nodes) > 3 * DEPTH
