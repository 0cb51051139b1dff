"""Compiled programs against the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from tempo.errors import BudgetError, ProgramError
from tempo.given import Result, check_bounds
from tempo.graph.build import make
from tempo.graph.node import Edge, Graph
from tempo.graph.traversal import reachable
from tempo.ops.reduction import SUM
from tempo.passes import PASSES, selected
from tempo.runtime.executable import Executable
from tempo.schedule.nesting import ScheduleError
from tempo.schedule.plan import Plan
from tempo.schedule.results import made
from tempo.symbolic import Slice, as_expr
from tempo.testing.choices import Choices
from tempo.testing.hosts import Calls, recorded
from tempo.testing.limits import at_most

# How far a result may be from the oracle's, relative to the largest number in it: by the coarsest dtype that it is
# computed from. Backends add up in another order, and round half precision more or less often.
TOLERANCES = {"bfloat16": 5e-2, "float32": 1e-3, "float64": 1e-8}

# For how long a program may be compiled.
COMPILING_SECONDS = 60.0
# More steps are not unrolled.
MOST_UNROLLED = 6
# How many buckets there are at most of a dim, about.
BUCKETS = 3


def check_compiled(
    graph: Graph,
    bounds: Mapping[Any, int],
    inputs: Mapping[str, Any],
    expected: Result,
    calls: Calls,
    backend: str,
    choices: Choices,
) -> bool:
    """Raise unless a backend, with some of the passes left out and a random plan or budget, gives the oracle's outputs
    and emits.

    Host functions must be called in the order in which the oracle called each of them.

    False if it was refused: definitions whose steps follow no dim's order are only scheduled outside of other loops so
    far, and some stop conditions are not compiled.
    """
    arrays = expected.outputs
    if not graph.stops and choices.boolean(0.4):
        graph, expected = reduced(graph, check_bounds(graph, bounds), expected)
    skip = [name for name, _ in PASSES if choices.boolean(0.3)]
    parallel = choices.boolean(0.5)
    # The values of these programs are so small that it rarely pays to compute only a part of them.
    gain = 0 if choices.boolean(0.5) else selected.GAIN
    try:
        with patch.object(selected, "GAIN", gain), at_most(COMPILING_SECONDS, "compiling"):
            run = planned(graph, bounds, backend, choices, skip=skip, parallel=parallel)
    except ScheduleError:
        return False
    except ProgramError:
        if not graph.stops:
            raise
        return False
    with np.errstate(all="ignore"), recorded() as ours:
        found = run(**inputs)
    for function in {name for name, _ in (*calls, *ours)}:
        wanted, found_at = ([point for name, point in listed if name == function] for listed in (calls, ours))
        if found_at != wanted:
            raise AssertionError(f"{function} is called at {found_at}, not at {wanted}")
    for name, array in expected.outputs.items():
        # The rounding of a sum is that of what is summed.
        scale = magnitude(arrays[name]) * arrays[name].size / max(array.size, 1)
        compare(f"output {name}", found[name], array, tolerance(graph, graph.outputs[name]) * scale)
    for name, records in expected.emits.items():
        by_point = {tuple(r.point.items()): r.value for r in found.emits[name]}
        if sorted(by_point) != sorted(tuple(r.point.items()) for r in records):
            raise AssertionError(f"emit {name}: emitted at other points")
        for r in records:
            value = by_point[tuple(r.point.items())]
            allowed = tolerance(graph, graph.emits[name]) * magnitude(r.value)
            compare(f"emit {name} at {dict(r.point)}", value, r.value, allowed)
    return True


def planned(graph: Graph, bounds: Mapping[Any, int], backend: str, choices: Choices, **options: Any) -> Executable:
    """A program compiled with a random plan, for a random budget, or as Tempo likes."""
    if choices.boolean(0.5):
        return Executable(graph, bounds, backend, plan=random_plan(graph, bounds, choices), **options)
    if choices.boolean(0.7):
        plan = Plan(kernels=True) if choices.boolean(0.3) else None
        return Executable(graph, bounds, backend, plan=plan, **options)
    try:
        return Executable(graph, bounds, backend, memory=2 ** choices.integer(4, 12), **options)
    except BudgetError as error:
        # What is said to fit does. (XLA may take more than is known before it has compiled the plan.)
        return Executable(graph, bounds, backend, memory=error.smallest if backend == "numpy" else None, **options)


def reduced(graph: Graph, numbers: Mapping[Any, int], expected: Result) -> tuple[Graph, Result]:
    """A program with sums over all steps in place of its outputs, and their values: stores need not keep every step."""
    outputs, values, sums = dict(graph.outputs), dict(expected.outputs), []
    for name, edge in graph.outputs.items():
        if edge.is_here and edge.domain and edge.dtype.name in ("float32", "float64"):
            axes = tuple(range(len(edge.domain)))
            # Definitions may go one step beyond a dim.
            steps = tuple(
                Slice(as_expr(own.start), d.bound + (own.stop - d.bound.evaluate(numbers)))
                for own, d in zip(made(graph, numbers, name), edge.domain, strict=True)
            )
            outputs[name] = make(SUM, Edge(edge.node, steps), axes=axes)
            sums.append(outputs[name].node)
            values[name] = expected.outputs[name].sum(axes)
    return replace(graph, nodes=(*graph.nodes, *sums), outputs=outputs), Result(values, expected.emits)


def random_plan(graph: Graph, bounds: Mapping[Any, int], choices: Choices) -> Plan:
    """Blocks, buckets and tiles of some of a program's dims; some others unrolled; some stores, or all, in host
    memory; what is repeated rolled, or not; loops as kernels, or not."""
    numbers = check_bounds(graph, bounds)
    dims = [d for d in graph.dims if d.origin is d and choices.boolean()]
    steps = {d: d.bound.evaluate(numbers) for d in graph.dims if d.origin is d}
    unrolled = [d for d in dims if d not in graph.stops and steps[d] <= MOST_UNROLLED and choices.boolean()]
    blocks = {d.name: choices.integer(1, steps[d]) for d in dims if d not in unrolled}
    buckets = {
        d.name: [step for step in range(1, steps[d] + 1) if choices.boolean(min(0.3, BUCKETS / steps[d]))]
        for d in steps
        if choices.boolean()
    }
    named = dict.fromkeys(node.name for node in graph.nodes if node.name)
    host = ("*",) if choices.boolean() else tuple(name for name in named if choices.boolean())
    again = choices.boolean(0.4)
    tiles = {d.name: choices.integer(1, (steps[d] + 1) // 2) for d in steps if choices.boolean(0.8)}
    rolled, kernels = choices.boolean(0.4), choices.boolean(0.4)
    return Plan(blocks, buckets, tuple(d.name for d in unrolled), host, again, tiles, rolled, kernels)


def tolerance(graph: Graph, edge: Edge) -> float:
    """How far a result may be from the oracle's."""
    found = {node.dtype.name for node in reachable([edge.node], graph.cases)}
    return max((TOLERANCES[dtype] for dtype in found if dtype in TOLERANCES), default=0.0)


def magnitude(array: np.ndarray[Any, Any]) -> float:
    """The largest number in an array, or 1 if that is more."""
    return max(1.0, float(np.max(np.abs(array.astype(np.float64)), initial=0)))


def compare(what: str, found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], allowed: float) -> None:
    """Raise unless an array is the expected one, but for so much."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise AssertionError(f"{what}: {found.dtype}{found.shape} is not {expected.dtype}{expected.shape}")
    apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    if not np.all(apart <= allowed):
        raise AssertionError(f"{what}: {found} is not {expected}")
