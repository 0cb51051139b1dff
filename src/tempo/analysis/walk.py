"""An exact check: follow every read from the results back, point by point, without computing anything."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST
from tempo.mistakes import Point
from tempo.reference import Interpreter

Value = tuple[Node, Point]


class TooManyError(Exception):
    """More values of some nodes are needed than were to be followed."""


class _Walker(Interpreter):
    """The reference interpreter without values: its reads, its order, its errors."""

    def __init__(self, graph: Graph, numbers: Mapping[Any, int], members: Collection[Node], most: int) -> None:
        super().__init__(graph.cases, {}, numbers, {})
        self.needs: dict[Value, list[Value]] = {}
        self.members = members
        self.left = most

    def reads(self, node: Node, point: Point, *args: Any, **keywords: Any) -> list[Value]:
        found = super().reads(node, point, *args, **keywords)
        self.needs[node, point] = found
        return found

    def compute(self, node: Node, point: Point) -> None:
        if node in self.members:
            self.left -= 1
            if self.left < 0:
                raise TooManyError


def walk(graph: Graph, numbers: Mapping[Any, int]) -> list[Value]:
    """All values that are needed, each after those it needs. Raises the error of the first that is undefined or depends
    on itself."""
    return list(needs(graph, numbers))


def needs(
    graph: Graph, numbers: Mapping[Any, int], members: Collection[Node] = (), most: int = 0
) -> dict[Value, list[Value]]:
    """All values that are needed, each with those it needs. Raises ``TooManyError`` as soon as there are more than
    ``most`` of the ``members``: a program may have millions of values, and takes minutes to follow."""
    walker = _Walker(graph, numbers, members, most)
    for node in graph.nodes:
        if node.op is HOST:
            for point in itertools.product(*walker.box(node.attributes["sequence"])):
                walker.value(node, walker.host_point(node, point))
    for name, edge in graph.outputs.items():
        for point in itertools.product(*walker.output_spans(name, edge)):
            walker.visit(edge, dict(zip(edge.domain, point, strict=True)), f"output '{name}'")
    emits = [(f"emit '{name}'", edge) for name, edge in graph.emits.items()]
    stops = [(f"the stop of {dim.name}", edge) for dim, edge in graph.stops.items()]
    for wanted, edge in (*emits, *stops):
        for point in itertools.product(*walker.box(edge.domain)):
            walker.visit(edge, dict(zip(edge.domain, point, strict=True)), wanted)
    return {value: walker.needs[value] for value in walker.values}
