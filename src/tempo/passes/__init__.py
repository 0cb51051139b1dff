"""Passes: functions from graph to graph, applied in this order."""

from collections.abc import Callable, Container

from tempo.graph.node import Graph
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
