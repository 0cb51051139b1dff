"""Where values live, and for how long.

A node has one store, with an axis per dim of its domain in front of its value: all steps of the dim, the last few of
them in a circle, or none where a step's value is only used within the same iteration of the loop that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST
from tempo.schedule.loops import Dependence, Place, Schedule
from tempo.symbolic import Dim, Expr, as_expr
from tempo.symbolic.intervals import interval


@dataclass(frozen=True)
class Steps:
    """The steps ``start .. start + size - 1`` of a dim, all kept."""

    start: int
    size: int

    def slot(self, step: int) -> int:
        return step - self.start

    def __str__(self) -> str:
        return f"{self.size} steps"


@dataclass(frozen=True)
class Window:
    """The last ``size`` steps of a loop, kept in a circle."""

    size: int

    def slot(self, step: int) -> int:
        return step % self.size

    def __str__(self) -> str:
        return f"window of {self.size}"


@dataclass(frozen=True)
class Latest:
    """Only the value of the present iteration."""

    def __str__(self) -> str:
        return "one value"


Keeping = Steps | Window | Latest


@dataclass(frozen=True)
class Store:
    """The layout of a node's values."""

    node: Node
    dims: Mapping[Dim, Keeping]
    value: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        axes = (k.size for k in self.dims.values() if not isinstance(k, Latest))
        return (*axes, *self.value)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.node.dtype.itemsize

    def __str__(self) -> str:
        kept = ", ".join(f"{d.name}: {k}" for d, k in self.dims.items())
        return (
            f"{self.node.label}: {self.node.dtype.name}{list(self.shape)}, {self.bytes:,} bytes ({kept or 'no dims'})"
        )


@dataclass(frozen=True)
class Storage:
    """The stores of a program."""

    stores: Mapping[Node, Store]

    def __str__(self) -> str:
        lines = [str(store) for store in self.stores.values()]
        return "\n".join([*lines, f"total: {sum(s.bytes for s in self.stores.values()):,} bytes"])


def plan_storage(graph: Graph, schedule: Schedule, numbers: Mapping[Any, int]) -> Storage:
    """A store for every node that is computed."""
    readers: dict[Node, list[Dependence]] = {}
    for dependence in schedule.dependences:
        readers.setdefault(dependence.producer, []).append(dependence)
    results = {edge.node for edge in (*graph.outputs.values(), *graph.stops.values())}
    stores = {}
    for node in schedule.places:
        if node.op is HOST:
            continue
        ranges = {d: schedule.steps(node, d) for d in node.domain}
        kept: dict[Dim, Keeping] = {}
        for d in node.domain:
            start, stop = ranges[d]
            whole = Steps(start, stop - start)
            kept[d] = whole if node in results else _keeping(d, node, readers.get(node, ()), schedule.places) or whole
        boxes = {d: (start, stop - 1) for d, (start, stop) in ranges.items()}
        value = tuple(extent(size, boxes, numbers) for size in node.shape)
        stores[node] = Store(node, kept, value)
    return Storage(stores)


def extent(size: int | Expr, ranges: Mapping[Dim, tuple[int, int]], numbers: Mapping[Any, int]) -> int:
    """The most that a size can be."""
    return interval(as_expr(size).substitute(numbers), ranges)[1]


def _keeping(
    dim: Dim, node: Node, readers: list[Dependence] | tuple[()], places: Mapping[Node, frozenset[Place]]
) -> Keeping | None:
    """How few steps of a dim will do: None for all of them."""
    family = dim.origin
    own = {_loop(place, family) for place in places[node]}
    if None in own or len(own) != 1:
        return None
    furthest = 0
    for d in readers:
        theirs = {_loop(place, family) for place in places.get(d.consumer, ())}
        if not theirs:
            continue
        if theirs != own:
            return None
        distance = d.distance(family)
        if distance is None:
            continue
        low, high = distance
        if low is None or high is None:
            return None
        furthest = max(furthest, abs(low), abs(high))
    return Window(furthest + 1) if furthest else Latest()


def _loop(place: Place, family: Dim) -> int | None:
    return dict(place).get(family)
