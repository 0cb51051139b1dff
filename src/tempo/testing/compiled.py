"""Compiled programs against the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tempo.errors import ProgramError
from tempo.given import Result, check_bounds
from tempo.graph.node import Edge, Graph
from tempo.graph.traversal import reachable
from tempo.passes import PASSES
from tempo.runtime.executable import Executable
from tempo.schedule.loops import ScheduleError
from tempo.schedule.plan import Plan
from tempo.testing.choices import Choices
from tempo.testing.hosts import Calls, recorded

# How far a result may be from the oracle's, relative to the largest number in it: by the coarsest dtype that it is
# computed from. Backends add up in another order, and round half precision more or less often.
TOLERANCES = {"bfloat16": 5e-2, "float32": 1e-3, "float64": 1e-8}


def check_compiled(
    graph: Graph,
    bounds: Mapping[Any, int],
    inputs: Mapping[str, Any],
    expected: Result,
    calls: Calls,
    backend: str,
    choices: Choices,
) -> bool:
    """Raise unless a backend, with some of the passes left out and a random plan, gives the oracle's outputs and emits.

    Host functions must be called in the order in which the oracle called each of them.

    False if it was refused: definitions whose steps follow no dim's order are only scheduled outside of other loops so
    far, and some stop conditions are not compiled.
    """
    skip = [name for name, _ in PASSES if choices.boolean(0.3)]
    parallel = choices.boolean(0.5)
    plan = random_plan(graph, bounds, choices) if choices.boolean(0.5) else None
    try:
        run = Executable(graph, bounds, backend, skip=skip, parallel=parallel, plan=plan)
    except ScheduleError:
        return False
    except ProgramError:
        if not graph.stops:
            raise
        return False
    with np.errstate(all="ignore"), recorded() as made:
        found = run(**inputs)
    for function in {name for name, _ in (*calls, *made)}:
        theirs, ours = ([point for name, point in listed if name == function] for listed in (calls, made))
        if ours != theirs:
            raise AssertionError(f"{function} is called at {ours}, not at {theirs}")
    for name, array in expected.outputs.items():
        compare(f"output {name}", found[name], array, tolerance(graph, graph.outputs[name]))
    for name, records in expected.emits.items():
        by_point = {tuple(r.point.items()): r.value for r in found.emits[name]}
        if sorted(by_point) != sorted(tuple(r.point.items()) for r in records):
            raise AssertionError(f"emit {name}: emitted at other points")
        for r in records:
            value = by_point[tuple(r.point.items())]
            compare(f"emit {name} at {dict(r.point)}", value, r.value, tolerance(graph, graph.emits[name]))
    return True


def random_plan(graph: Graph, bounds: Mapping[Any, int], choices: Choices) -> Plan:
    """Blocks and buckets of some of a program's dims; some others unrolled."""
    numbers = check_bounds(graph, bounds)
    dims = [d for d in graph.dims if d.origin is d and choices.boolean()]
    unrolled = [d for d in dims if d not in graph.stops and choices.boolean()]
    blocks = {d.name: choices.integer(1, d.bound.evaluate(numbers)) for d in dims if d not in unrolled}
    buckets = {
        d.name: [step for step in range(1, d.bound.evaluate(numbers) + 1) if choices.boolean(0.3)]
        for d in graph.dims
        if d.origin is d and choices.boolean()
    }
    return Plan(blocks, buckets, tuple(d.name for d in unrolled))


def tolerance(graph: Graph, edge: Edge) -> float:
    """How far a result may be from the oracle's."""
    found = {node.dtype.name for node in reachable([edge.node], graph.cases)}
    return max((TOLERANCES[dtype] for dtype in found if dtype in TOLERANCES), default=0.0)


def compare(what: str, found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise AssertionError(f"{what}: {found.dtype}{found.shape} is not {expected.dtype}{expected.shape}")
    scale = max(1.0, float(np.max(np.abs(expected.astype(np.float64)), initial=0)))
    apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    if not np.all(apart <= tolerance * scale):
        raise AssertionError(f"{what}: {found} is not {expected}")
