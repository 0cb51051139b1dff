"""Passes: functions from graph to graph, applied in this order."""

from collections.abc import Callable, Container
from dataclasses import replace

from tempo.graph.build import make
from tempo.graph.node import Graph
from tempo.ops.elementwise import COPY
from tempo.passes.accumulations import resolve_accumulations
from tempo.passes.simplify import simplify

PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("resolve accumulations", resolve_accumulations),
    ("simplify", simplify),
)

# Backends know no accumulations, so that this one cannot be left out.
NEEDED = ("resolve accumulations",)


def apply_passes(graph: Graph, skip: Container[str] = ()) -> Graph:
    """The graph that is scheduled. Tests leave passes out to see that the results do not depend on them."""
    for name, change in PASSES:
        if name in NEEDED or name not in skip:
            graph = change(graph)
    return graph


def with_own_emits(graph: Graph) -> Graph:
    """The graph with a node of its own for everything that is emitted, computed where it is handed out."""
    emits = {name: make(COPY, edge, domain=edge.domain) for name, edge in graph.emits.items()}
    nodes = (*graph.nodes, *(edge.node for edge in emits.values()))
    return replace(graph, nodes=nodes, emits=emits)
