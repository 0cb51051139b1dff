"""Dims that stop on data: what their stop conditions may depend on, and what must wait for them."""

from __future__ import annotations

from collections.abc import Iterator

from tempo.analysis.relations import Read, Relations
from tempo.errors import CausalityError, ProgramError
from tempo.graph.node import Edge, Graph, Node, attribute_symbols, find_dim, shape_symbols
from tempo.graph.structural import HOST
from tempo.graph.traversal import reachable
from tempo.symbolic import TRUE, Condition, Dim, Slice, Symbol, conjunction, constant, disjunction
from tempo.symbolic import index as indices
from tempo.symbolic.condition import And, AtLeastZero
from tempo.symbolic.intervals import at_least


def check_stops(graph: Graph) -> None:
    """A dim must be able to tell when it stops before its number of steps is known."""
    for dim, edge in graph.stops.items():
        for node in reachable([edge.node], graph.cases):
            if dim.bound in asked_for(graph, node):
                raise CausalityError(
                    f"the stop condition of {dim.name} depends on {dim.bound}, the number of steps that it decides",
                    places=[
                        ("stop condition", edge.node.source),
                        (f"uses {dim.bound}", node.source),
                    ],
                    hint=f"let it depend on steps up to the present one only, not on {dim.bound}",
                )


def asked_for(graph: Graph, node: Node) -> frozenset[Symbol]:
    """The symbols that must have numbers before a node can be computed at a point."""
    found = shape_symbols(node.shape) | attribute_symbols(tuple(node.attributes.values()))
    for edge in node.edges:
        found |= indices.symbols(edge.index)
    for case in graph.cases.get(node, ()):
        found |= indices.symbols(case.value.index) | case.condition.symbols()
    for scatter in node.scatters:
        found |= indices.symbols(scatter.index) | scatter.condition.symbols()
    if node.op is HOST:
        found = found.union(*(d.bound.symbols() for d in node.attributes["batch"]))
    return found


def waits(relations: Relations) -> Iterator[Read]:
    """Reads of stop conditions that nobody wrote: by what needs the number of steps, and by what may happen only at a
    step that is made."""
    graph = relations.graph
    emitted = {edge.node for edge in graph.emits.values()}
    for dim, edge in graph.stops.items():
        before = set(reachable([edge.node], graph.cases))
        for node in graph.nodes:
            needs = dim.bound in asked_for(graph, node) or _falls_through(relations, node, dim)
            if needs and not _is_known_in_time(graph, node, dim):
                if node in before:
                    raise ProgramError(
                        f"which case of {node.label} applies depends on {dim.bound}, "
                        f"and the stop condition of {dim.name} depends on {node.label}",
                        places=[(node.label, node.source), ("stop condition", edge.node.source)],
                        hint="write the condition under which its last case applies as one on dims: x[t < ...] = ...",
                    )
                whole = tuple(Slice(constant(0), d.bound) for d in edge.node.domain)
                yield relations.through(node, Edge(edge.node, whole), TRUE)
            elif needs or node.op is HOST or node in emitted:
                for own in (d for d in node.domain if d.origin is dim):
                    last = tuple(own + own.start - 1 for _ in edge.node.domain)
                    yield relations.through(node, Edge(edge.node, last), own + own.start >= 1)


def _is_known_in_time(graph: Graph, node: Node, dim: Dim) -> bool:
    """Whether the number of steps of a dim only decides which case of a node applies at a step, and that is known as
    soon as it is known that the step is made: ``x[t < T] = ...`` in a tensor with a step more."""
    own = find_dim(node, dim)
    cases = graph.cases.get(node, ())
    values = frozenset[Symbol]().union(shape_symbols(node.shape), *(indices.symbols(c.value.index) for c in cases))
    if own is None or not cases or dim.bound in values:
        return False
    about = [part for case in cases for part in _parts(case.region) if dim.bound in part.symbols()]
    made = {dim.bound: own + own.start + 1}
    return all(
        isinstance(part, AtLeastZero)
        and dict(part.expr.terms).get(dim.bound, 0) > 0
        and at_least(part.expr.substitute(made), 0)
        for part in about
    )


def _parts(condition: Condition) -> tuple[Condition, ...]:
    return condition.parts if isinstance(condition, And) else (condition,)


def _falls_through(relations: Relations, node: Node, dim: Dim) -> bool:
    """Whether a later case of a node may apply where an earlier one would, were it not for the number of steps."""
    cases = relations.graph.cases.get(node, ())
    for n, case in enumerate(cases):
        later = disjunction(c.region for c in cases[n + 1 :])
        for guard in case.guards:
            if guard[1].origin is dim:
                others: list[Condition] = [case.condition]
                others += [part for e, d in case.guards if (e, d) != guard for part in (e >= 0, e < d.bound)]
                step, of = guard
                region = conjunction([*others, step >= of.bound, later])
                if not relations.points(region, node.domain).is_empty():
                    return True
    return False
