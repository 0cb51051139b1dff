"""A dim that stops on data must be able to tell when, before its number of steps is known."""

from __future__ import annotations

from tempo.errors import CausalityError
from tempo.graph.node import Graph, Node, attribute_symbols, shape_symbols
from tempo.graph.traversal import reachable
from tempo.symbolic import Symbol
from tempo.symbolic import index as indices


def check_stops(graph: Graph) -> None:
    for dim, edge in graph.stops.items():
        for node in reachable([edge.node], graph.cases):
            if dim.bound in _asked_for(graph, node):
                raise CausalityError(
                    f"the stop condition of {dim.name} depends on {dim.bound}, the number of steps that it decides",
                    places=[
                        ("stop condition", edge.node.source),
                        (f"uses {dim.bound}", node.source),
                    ],
                    hint=f"let it depend on steps up to the present one only, not on {dim.bound}",
                )


def _asked_for(graph: Graph, node: Node) -> frozenset[Symbol]:
    """The symbols that must have numbers before a node can be computed at a point."""
    found = shape_symbols(node.shape) | attribute_symbols(tuple(node.attributes.values()))
    for edge in node.edges:
        found |= indices.symbols(edge.index)
    for case in graph.cases.get(node, ()):
        found |= indices.symbols(case.value.index) | case.condition.symbols()
    for scatter in node.scatters:
        found |= indices.symbols(scatter.index) | scatter.condition.symbols()
    return found
