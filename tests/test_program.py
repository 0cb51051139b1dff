"""Programs while they are written."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import tempo as tp


def test_threads_write_programs_of_their_own() -> None:
    """What has no tensor to tell its program by, such as a constant, belongs to the program of its thread."""
    both = Barrier(2, timeout=30)

    def build(rate: float) -> Any:
        with tp.Program(f"with {rate}") as prog:
            both.wait()
            t, T = prog.dim("t")
            y = prog.recurrent("y", domain=t)
            both.wait()
            y[0] = tp.constant(1.0) * rate
            y[t] = y[t - 1] * tp.full((), rate)
            both.wait()
            prog.output("y", y)
        return prog.evaluate({T: 3}).y

    with ThreadPoolExecutor(2) as pool:
        halves, powers = pool.map(build, (0.5, 2.0))
    np.testing.assert_array_equal(halves, [0.5, 0.25, 0.125])
    np.testing.assert_array_equal(powers, [2, 4, 8])


def test_a_thread_does_not_write_into_another_ones_program() -> None:
    with tp.Program("here"), ThreadPoolExecutor(1) as pool:
        found = pool.submit(tp.constant, 1.0)
    with pytest.raises(tp.errors.ProgramError, match="no program is being written here"):
        found.result()


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_programs_do_not_stay_behind(backend: str) -> None:
    """With them their constants would stay in memory, and what host functions hold."""

    def compiled() -> tuple[Any, weakref.ref[tp.Program]]:
        with tp.Program("large") as prog:
            t, T = prog.dim("t")
            x = prog.recurrent("x", 3, domain=t)
            x[0] = tp.constant([1.0, 2.0, 3.0])
            x[t] = 0.5 * x[t - 1]
            prog.output("sum", tp.sum(x[0:T], axis=0))
        assert prog.evaluate({T: 2}).sum.tolist() == [1.5, 3, 4.5]
        return prog.compile({T: 2}, backend=backend), weakref.ref(prog)

    run, prog = compiled()
    gc.collect()
    assert prog() is None
    assert run().sum.tolist() == [1.5, 3, 4.5]


def test_a_dim_is_not_a_program() -> None:
    t, T = tp.Program("gone").dim("t")
    gc.collect()
    assert str(T - t) == "T - t"
    with tp.Program("here"), pytest.raises(tp.errors.ProgramError, match="the program of t is no longer there"):
        t.value
    with tp.Program("here"), pytest.raises(tp.errors.ProgramError, match="the program of T is no longer there"):
        tp.zeros(T)
