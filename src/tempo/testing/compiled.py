"""Compiled programs against the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tempo.given import Result
from tempo.graph.node import Graph
from tempo.passes import PASSES
from tempo.runtime.executable import Executable
from tempo.schedule.loops import ScheduleError
from tempo.testing.choices import Choices


def check_compiled(
    graph: Graph, bounds: Mapping[Any, int], inputs: Mapping[str, Any], expected: Result, choices: Choices
) -> None:
    """Raise unless a backend, with some of the passes left out, gives the oracle's outputs and emits."""
    # XLA takes a second per program, NumPy a few milliseconds.
    backend = "jax" if choices.boolean(0.05) else "numpy"
    skip = [name for name, _ in PASSES if choices.boolean(0.3)]
    try:
        run = Executable(graph, bounds, backend, skip=skip)
    except ScheduleError:
        # Definitions whose steps follow no dim's order are only scheduled outside of other loops so far.
        return
    with np.errstate(all="ignore"):
        found = run(**inputs)
    for name, array in expected.outputs.items():
        compare(f"{backend}, output {name}", found[name], array)
    for name, records in expected.emits.items():
        by_point = {tuple(r.point.items()): r.value for r in found.emits[name]}
        if sorted(by_point) != sorted(tuple(r.point.items()) for r in records):
            raise AssertionError(f"{backend}, emit {name}: emitted at other points")
        for r in records:
            compare(f"{backend}, emit {name} at {dict(r.point)}", by_point[tuple(r.point.items())], r.value)


def compare(what: str, found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise AssertionError(f"{what}: {found.dtype}{found.shape} is not {expected.dtype}{expected.shape}")
    # A float64 result may come of bfloat16 values, which one more rounding changes by a part in 100.
    scale = max(1.0, float(np.max(np.abs(expected.astype(np.float64)), initial=0)))
    apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    if not np.all(apart <= 5e-2 * scale):
        raise AssertionError(f"{what}: {found} is not {expected}")
