"""Programs while they are written."""

from __future__ import annotations

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
