"""Programs that are compiled before they run."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.plan import Plan

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> list[float]:
    """How long each program took that XLA has compiled since."""
    found: list[float] = []

    def note(name: str, seconds: float, **_: object) -> None:
        if name == COMPILED:
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    return found


def growing(emit: bool) -> tuple[tp.Program, tp.Bound]:
    """Every step reads all before it, so that stores grow from piece to piece of the loop."""
    with tp.Program("growing") as prog:
        t, T = prog.dim("t")
        W = prog.input("W", shape=(8, 8))
        x = prog.recurrent("x", shape=(8,), domain=t)
        x[-1] = 1.0
        y = x[t - 1] @ W
        x[t] = tp.tanh(tp.softmax(y[0 : t + 1] @ y) @ y[0 : t + 1]) + t.value
        prog.output("x", x[T - 1])
        if emit:
            prog.emit("y", tp.sum(y))
    return prog, T


@pytest.mark.parametrize("emit", [False, True])
def test_nothing_is_compiled_where_stores_grow(emit: bool, compilations: list[float]) -> None:
    prog, T = growing(emit)
    W = np.eye(8, dtype=np.float32)
    sizes = (38, 54, 72) if emit else (37, 53, 71)  # that no other test has: they would be compiled already
    run = Executable(prog.graph, {T: sizes[-1]}, plan=Plan(buckets={"t": sizes[:-1]}))
    if run._machine.whole is not None:
        for program in run._machine.whole.compiled.programs:
            program.result()
    else:
        run._machine.compile_parts()
    compilations.clear()
    found = run(W=W)
    assert not compilations
    jax.jit(lambda array: array + 1)(W)
    assert compilations  # which are noted
    np.testing.assert_allclose(found.x, prog.evaluate({T: sizes[-1]}, W=W).x, rtol=1e-5)


def test_nothing_is_compiled_for_a_number_of_steps_that_is_new(compilations: list[float]) -> None:
    """Outputs are cut where a dim has stopped: small ones by NumPy."""
    with tp.Program("counting") as prog:
        t, T = prog.dim("t")
        limit = prog.input("limit")
        x = prog.recurrent("x", shape=(43,), domain=t)
        x[0] = 1.0
        x[t] = x[t - 1] + 1
        prog.stop(t, when=x.space[0] > limit)
        prog.output("x", x)
    run = prog.compile({T: 29})
    run(limit=3.0)
    compilations.clear()
    for limit in (1.0, 5.0, 26.0, 100.0):
        found = run(limit=limit).x
        np.testing.assert_array_equal(found[:, 0], np.arange(1, min(limit + 1, 29) + 1))
    assert not compilations
