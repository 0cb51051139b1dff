"""Rebuilding a graph with some of its nodes replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tempo.graph.build import make
from tempo.graph.node import Case, Edge, Graph, Node, dims_of
from tempo.graph.structural import HOST, RECURRENT
from tempo.graph.traversal import reachable
from tempo.ops.elementwise import COPY
from tempo.symbolic import Dim, Expr, Slice

Replace = Callable[[Node, "Rebuilt"], Edge | None]


class Rebuilt:
    """What each node of an old graph became: an edge over the old node's domain."""

    def __init__(self) -> None:
        self.edges: dict[Node, Edge] = {}
        self.cases: dict[Node, tuple[Case, ...]] = {}

    def edge(self, edge: Edge) -> Edge:
        """An old edge, reading what its producer became."""
        new = self.edges.get(edge.node)
        if new is None or new.node is edge.node:
            return edge
        return through(edge, new)


def through(edge: Edge, new: Edge) -> Edge:
    """What ``edge`` reads when its producer is replaced by ``new``, an edge over the producer's domain."""
    by_dim = dict(zip(edge.node.domain, edge.index, strict=True))
    sliced = [d for d, item in by_dim.items() if isinstance(item, Slice)]
    alone = all(d in new.index and sum(d in item.symbols() for item in new.index) == 1 for d in sliced) and not any(
        isinstance(item, Slice) for item in new.index
    )
    if sliced and not alone:
        new = make(COPY, new, domain=edge.node.domain, source=edge.node.source)
    points = {d: item for d, item in by_dim.items() if isinstance(item, Expr)}
    index = tuple(
        by_dim[item] if item in sliced else item.substitute(points)  # type: ignore[index]
        for item in new.index
    )
    return Edge(new.node, index)


def rebuild(
    graph: Graph,
    change: Replace,
    cases: Mapping[Node, tuple[Case, ...]] | None = None,
    recurrent: Mapping[Node, Node] = MappingProxyType({}),
) -> Graph:
    """The graph with every node that ``change`` gives an edge for replaced by it.

    Nodes are visited operands first. Recurrent nodes stay themselves, or become other ones that ``recurrent`` names;
    what their cases read is replaced. New recurrent nodes that ``change`` makes leave their cases in ``Rebuilt.cases``.
    """
    done = Rebuilt()
    for node in graph.nodes:
        if node.op is RECURRENT:
            done.edges[node] = recurrent.get(node, node).here()
    for node in graph.nodes:
        if node.op is RECURRENT:
            continue
        new = change(node, done)
        done.edges[node] = refreshed(node, done) if new is None else new
    listed = dict(cases or graph.cases)
    for node, old in listed.items():
        done.cases[node] = tuple(replace(case, value=done.edge(case.value)) for case in old)
    outputs = {name: handed_out(edge, done.edge(edge)) for name, edge in graph.outputs.items()}
    emits = {name: over(edge, done.edge(edge)) for name, edge in graph.emits.items()}
    stops = {dim: done.edge(edge) for dim, edge in graph.stops.items()}
    return assemble(graph, done.cases, outputs, emits, stops, done)


def handed_out(old: Edge, new: Edge) -> Edge:
    """What an output became. A recurrent tensor is handed out wherever it is defined; what was not one before has the
    steps of its dims."""
    is_defined = [edge.node.op is RECURRENT and edge.is_here for edge in (old, new)]
    if is_defined == [False, True]:
        return make(COPY, new, domain=old.domain, source=old.node.source)
    return over(old, new)


def over(old: Edge, new: Edge) -> Edge:
    """What an edge became, over the same dims as before."""
    if new.domain == old.domain:
        return new
    return make(COPY, new, domain=old.domain, source=old.node.source)


def refreshed(node: Node, done: Rebuilt) -> Edge:
    """The same operation on what its operands became."""
    edges = tuple(done.edge(edge) for edge in node.edges)
    if node.op is HOST:  # an argument has an axis for every batch dim over which it was written to vary
        edges = tuple(over(*both) for both in zip(node.edges, edges, strict=True))
    return node.here() if edges == node.edges else with_edges(node, edges).here()


def with_edges(node: Node, edges: tuple[Edge, ...]) -> Node:
    """Another node with the same operation on other operands."""
    return Node(
        node.op, edges, node.domain, node.shape, node.dtype, node.source, node.attributes, node.scatters, node.name
    )


def with_cases(graph: Graph, cases: Mapping[Node, tuple[Case, ...]]) -> Graph:
    """The graph with other cases, and without what nobody needs then."""
    unchanged = Rebuilt()
    unchanged.edges = {node: node.here() for node in graph.nodes}
    return assemble(graph, cases, graph.outputs, graph.emits, graph.stops, unchanged)


def assemble(
    graph: Graph,
    cases: Mapping[Node, tuple[Case, ...]],
    outputs: Mapping[str, Edge],
    emits: Mapping[str, Edge],
    stops: Mapping[Dim, Edge],
    done: Rebuilt,
) -> Graph:
    """A graph of what its results need."""
    hosts = [done.edges[n].node for n in graph.nodes if n.op is HOST]
    roots = [e.node for e in (*outputs.values(), *emits.values(), *stops.values())]
    nodes = reachable([*roots, *hosts], cases)
    dims = dims_of(frozenset(d for node in nodes for d in node.domain) | frozenset(graph.dims))
    kept = {node: tuple(cases[node]) for node in nodes if node in cases}
    return Graph(graph.name, dims, nodes, kept, outputs, emits, stops, graph.inputs)
