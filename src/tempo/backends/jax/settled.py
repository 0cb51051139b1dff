"""Whether what lies beside a value is a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tempo.graph.node import Edge, Graph, Node, attribute_symbols, dims_of, shape_symbols
from tempo.graph.structural import INPUT
from tempo.graph.traversal import dependents, edges_of
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop, Tree
from tempo.symbolic import Dim, Slice
from tempo.symbolic import index as indices


class Settled:
    """Knows what edges read beside the steps that there are."""

    def __init__(self, graph: Graph, schedule: Schedule, stopping: Mapping[Node, Dim]) -> None:
        self.schedule = schedule
        self.stopping = stopping
        self.ended = self.ends(schedule.trees)
        self.dependent = dependents((n for n in graph.nodes if _symbols(n, graph) & schedule.open.keys()), graph)
        self.full: dict[Any, bool] = {}

    def __call__(self, edge: Edge) -> bool:
        """Whether all padding of what an edge reads comes from slicing a store, at steps at which the program has a
        value: what is computed for others, behind a stop or beside a triangle of points, need not be a number."""
        node, stops = edge.node, self.schedule.open
        if shape_symbols(edge.shape) & stops.keys() or dims_of(shape_symbols(node.shape)):
            return False
        sliced = {d: item for d, item in zip(node.domain, edge.index, strict=True) if isinstance(item, Slice)}
        # Computed behind a stop, it is what it would have been without; unless it depends on where that is.
        behind = (d.origin for d in sliced if d.origin.bound in stops)
        if node in self.dependent and any(dim not in self.ended.get(node, ()) for dim in behind):
            return False
        if not sliced or node.op is INPUT or node not in self.schedule.needed:
            return True
        # A slice whose ends are known has no padding.
        within = {
            d: (item.start.constant, item.stop.constant - 1)
            for d, item in sliced.items()
            if item.start.is_constant and item.stop.is_constant
        }
        key = node, *within.items()
        if key not in self.full:
            self.full[key] = self.schedule.is_needed_throughout(node, within)
        return self.full[key]

    def ends(self, trees: Sequence[Tree], around: frozenset[Dim] = frozenset()) -> dict[Node, frozenset[Dim]]:
        """Per node, the dims that stop and of which it is computed for no step behind that: in the loop that stops."""
        found: dict[Node, frozenset[Dim]] = {}
        for tree in trees:
            inner = {tree.node: around} if isinstance(tree, Compute) else self.ends(tree.body, around | self.end(tree))
            for node, dims in inner.items():
                found[node] = found.get(node, dims) & dims
        return found

    def end(self, loop: Loop) -> frozenset[Dim]:
        """The dim at whose stop a loop ends. (The first step is computed in any case.)"""
        if loop.until is None or self.schedule.is_inline(loop):
            return frozenset()
        return frozenset({self.stopping[loop.until]})


def _symbols(node: Node, graph: Graph) -> frozenset[Any]:
    """What the values of a node at a point depend on beside its operands."""
    cases = graph.cases.get(node, ())
    edges = edges_of(node, graph.cases)
    found = attribute_symbols(tuple(node.attributes.values())) | shape_symbols(node.shape)
    return found.union(*(indices.symbols(e.index) for e in edges), *(case.condition.symbols() for case in cases))
