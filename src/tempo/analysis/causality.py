"""A proof that nothing depends on itself.

Nodes that read each other in a circle are harmless if some dim carries the circle: along that dim no read goes
forward (or none goes back), so reads that go strictly back can never be part of a cycle of points. Leaving those out
and looking at what circles remain, dim by dim, ends with none for every program that a loop nest over its dims (in any
order, in either direction) could run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tempo.analysis.relations import Read, Relations
from tempo.graph.node import Graph, Node
from tempo.graph.traversal import components, producers
from tempo.symbolic import Dim
from tempo.symbolic.polyhedral import deltas_sign

Distance = tuple[int | None, int | None] | None


def is_causal(relations: Relations) -> bool:
    """Whether the circles among a graph's nodes are all carried by dims."""
    nodes = relations.graph.nodes
    reads = [
        Read(r.consumer, r.producer, r.relation.intersect_domain(relations.defined[r.consumer]))
        for node in nodes
        for r in relations.reads(node)
    ]
    return all(_is_carried(circle, reads, relations.numbers) for circle in circles(nodes, reads))


def _is_carried(circle: set[Node], reads: Iterable[Read], numbers: Mapping[Any, int]) -> bool:
    inside = [r for r in reads if r.consumer in circle and r.producer in circle]
    for family in _families(circle):
        spans = [_distance(r, family, numbers) for r in inside]
        # An empty relation reads nothing.
        backward = all(s is None or (s[0] is not None and s[0] >= 0) for s in spans)
        forward = all(s is None or (s[1] is not None and s[1] <= 0) for s in spans)
        if not (backward or forward):
            continue
        rest = [
            r for r, s in zip(inside, spans, strict=True) if s is not None and (s[0] == 0 if backward else s[1] == 0)
        ]
        if len(rest) < len(inside):
            return all(_is_carried(c, rest, numbers) for c in circles(tuple(circle), rest))
    return False


def _families(circle: set[Node]) -> list[Dim]:
    """The dims that all nodes of a circle have, each in its own form (see ``Dim.origin``)."""
    shared = [{d.origin for d in node.domain} for node in circle]
    return sorted(set.intersection(*shared), key=lambda d: d.number)


def _distance(read: Read, family: Dim, numbers: Mapping[Any, int]) -> Distance:
    """By how many steps a read looks back, at least and at most."""
    consumer = next(d for d in read.consumer.domain if d.origin is family)
    producer = next(d for d in read.producer.domain if d.origin is family)
    return steps_back(read, consumer, producer, numbers)


def steps_back(read: Read, own: Dim, theirs: Dim, numbers: Mapping[Any, int]) -> Distance:
    """By how many steps of the dim that both come from a read looks back, at least and at most."""
    ends = deltas_sign(read.relation, own.name, theirs.name)
    if ends is None:
        return None
    shift = (own.start - theirs.start).evaluate(numbers)
    low, high = ends
    return None if low is None else low + shift, None if high is None else high + shift


def circles(nodes: Sequence[Node], reads: Iterable[Read]) -> list[set[Node]]:
    """The sets of nodes that read each other in circles."""
    following: dict[Node, list[Node]] = {node: [] for node in nodes}
    for r in reads:
        if r.consumer in following and r.producer in following:
            following[r.consumer].append(r.producer)
    return [c for c in components(following) if len(c) > 1 or any(n in following[n] for n in c)]


def node_circles(graph: Graph) -> list[set[Node]]:
    """The sets of nodes that read each other in circles, whatever the points."""
    following = {node: list(producers(node, graph.cases)) for node in graph.nodes}
    return [c for c in components(following) if len(c) > 1]
