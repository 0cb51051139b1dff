"""A proof that nothing depends on itself.

Nodes that read each other in a circle are harmless if some dim carries the circle: along that dim no read goes
forward (or none goes back), so reads that go strictly back can never be part of a cycle of points. Leaving those out
and looking at what circles remain, dim by dim, ends with none for every program that a loop nest over its dims (in any
order, in either direction) could run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tempo.analysis.relations import Read, Relations
from tempo.graph import traversal
from tempo.graph.node import Edge, Graph, Node, Scatter, dim_of
from tempo.graph.traversal import components, edges_of, producers
from tempo.symbolic import Dim, Expr, Slice, conjunction, equal
from tempo.symbolic.polyhedral import deltas_sign
from tempo.symbolic.regions import pinned

Distance = tuple[int | None, int | None] | None

# Steps that are kept apart in a proof: a node of two dims with one in each has four parts.
MOST_PINS = 4


def is_causal(relations: Relations) -> bool:
    """Whether the circles among a graph's nodes are all carried by dims."""
    nodes = relations.graph.nodes
    reads = [
        Read(r.consumer, r.producer, r.relation.intersect_domain(relations.defined[r.consumer]))
        for node in nodes
        for r in relations.reads(node)
    ]
    return all(
        _is_carried(circle, reads, relations.numbers) or _is_carried_in_parts(circle, reads, relations)
        for circle in circles(nodes, reads)
    )


def _is_carried(circle: set[Node], reads: Iterable[Read], numbers: Mapping[Any, int]) -> bool:
    return next(uncarried(circle, reads, numbers), None) is None


def uncarried(
    circle: set[Node], reads: Iterable[Read], numbers: Mapping[Any, int]
) -> Iterator[tuple[set[Node], list[Read]]]:
    """What is left of a circle when every dim that carries some of its reads has been made use of: the circles within
    it that no dim carries, each with the reads that are left among its nodes."""
    inside = [r for r in reads if r.consumer in circle and r.producer in circle]
    for family in _families(circle):
        # An empty relation reads nothing.
        spans = [(r, s) for r in inside if (s := _distance(r, family, numbers)) is not None]
        for direction in (1, -1):
            back = [(r, direction * s[0 if direction == 1 else 1]) for r, s in spans if None not in s]  # type: ignore[operator]
            slack = _slack(back) if len(back) == len(spans) else None
            if slack is None:
                continue
            rest = [r for (r, _), steps in zip(back, slack, strict=True) if steps == 0]
            if len(rest) < len(inside):
                for within in circles(tuple(circle), rest):
                    yield from uncarried(within, rest, numbers)
                return
    yield circle, inside


def _slack(back: Sequence[tuple[Read, int]]) -> list[int] | None:
    """By how many steps each read looks back when nodes are delayed so that none looks ahead, if that can be."""
    delay = retimed([(r.consumer, r.producer, steps) for r, steps in back])
    return None if delay is None else [steps + delay[r.consumer] - delay[r.producer] for r, steps in back]


def retimed(reads: Sequence[tuple[Node, Node, int]]) -> dict[Node, int] | None:
    """By how many steps to delay nodes so that no read looks ahead; None if that cannot be. Of every read there are
    the consumer, the producer, and how many steps it looks back.

    ``D[t + 1] = f(D[t])`` reads f one step back, which may therefore read D up to one step ahead: what matters is the
    sum around a circle. (Shortest paths, as in the retiming of circuits.)
    """
    delay = {node: 0 for consumer, producer, _ in reads for node in (consumer, producer)}
    for _ in range(len(delay) + 1):
        late = [(p, delay[c] + back) for c, p, back in reads if delay[c] + back < delay[p]]
        if not late:
            return delay
        for node, most in late:
            delay[node] = min(delay[node], most)
    return None


def _is_carried_in_parts(circle: set[Node], reads: Iterable[Read], relations: Relations) -> bool:
    """Whether a circle is carried when the steps that cases pin are kept apart from all others: ``D[-1, j]`` may need
    nodes that do not vary over i, where the rest of D does not."""
    conditions = [(case.condition, n.domain) for n in circle for case in relations.graph.cases.get(n, ())]
    conditions += [(scatter.condition, scatter.node.domain) for n in circle for scatter in n.scatters]
    pins = {
        (d.origin, step + d.start)
        for condition, domain in conditions
        for d, step in pinned(condition, domain)
        if step.symbols() <= set(relations.numbers)
    }
    if not 0 < len(pins) <= MOST_PINS:
        return False
    parts = {}
    for node in circle:
        own = [equal(d + d.start, step) for family, step in pins for d in node.domain if d.origin is family]
        choices = itertools.product(*((here, ~here) for here in own))
        parts[node] = [(replace(node), relations.points(conjunction(choice), node.domain)) for choice in choices]
    split = []
    for r in reads:
        if r.consumer in circle and r.producer in circle:
            for consumer, there in parts[r.consumer]:
                some = r.relation.intersect_domain(there)
                for producer, here in parts[r.producer] if not some.is_empty() else ():
                    split.append(Read(consumer, producer, some.intersect_range(here)))
    split = [r for r in split if not r.relation.is_empty()]
    nodes = [part for found in parts.values() for part, _ in found]
    return all(_is_carried(c, split, relations.numbers) for c in circles(nodes, split))


def _families(circle: set[Node]) -> list[Dim]:
    """The dims that all nodes of a circle have, each in its own form (see ``Dim.origin``)."""
    shared = [{d.origin for d in node.domain} for node in circle]
    return sorted(set.intersection(*shared), key=lambda d: d.number)


def _distance(read: Read, family: Dim, numbers: Mapping[Any, int]) -> Distance:
    """By how many steps a read looks back, at least and at most."""
    return steps_back(read, dim_of(read.consumer, family), dim_of(read.producer, family), numbers)


def steps_back(read: Read, own: Dim, theirs: Dim, numbers: Mapping[Any, int]) -> Distance:
    """By how many steps of the dim that both come from a read looks back, at least and at most."""
    ends = deltas_sign(read.relation, own, theirs)
    if ends is None:
        return None
    shift = (own.start - theirs.start).substitute(numbers)
    if not shift.is_constant:  # a dim that starts where another stops
        return None, None
    low, high = ends
    return None if low is None else low + shift.constant, None if high is None else high + shift.constant


def circles(nodes: Sequence[Node], reads: Iterable[Read]) -> list[set[Node]]:
    """The sets of nodes that read each other in circles."""
    following: dict[Node, list[Node]] = {node: [] for node in nodes}
    for r in reads:
        if r.consumer in following and r.producer in following:
            following[r.consumer].append(r.producer)
    return traversal.circles(following)


def node_circles(graph: Graph) -> list[set[Node]]:
    """The sets of nodes that read each other in circles, whatever the points."""
    following = {node: list(producers(node, graph.cases)) for node in graph.nodes}
    return [c for c in components(following) if len(c) > 1]


def remaining_circles(graph: Graph) -> list[set[Node]]:
    """The sets of nodes that still read each other in circles within a single step of every dim that carries one. A dim
    is seen to carry a circle if all of its reads look back along it by known numbers of steps, or all of them ahead."""
    return [circle for circle, carried in nested_circles(graph) if not carried]


def nested_circles(graph: Graph) -> list[tuple[set[Node], bool]]:
    """All sets of nodes that read each other in circles, from the outside in: a set is followed by those that are left
    within a single step of the dim that carries it. With each, whether a dim is seen to carry it."""
    found: list[tuple[set[Node], bool]] = []
    pending = [(circle, _reads_within(graph, circle)) for circle in node_circles(graph)]
    while pending:
        circle, reads = pending.pop()
        rest = next((kept for f in _families(circle) if (kept := _left(reads, f)) is not None), None)
        found.append((circle, rest is not None))
        if rest is None:
            continue
        following: dict[Node, list[Node]] = {node: [] for node in circle}
        for consumer, producer, _ in rest:
            following[consumer].append(producer)
        for c in components(following):
            if len(c) > 1:
                pending.append((c, [r for r in rest if r[0] in c and r[1] in c]))
    return found


_Looked = tuple[Node, Node, Callable[[Dim], Expr | None]]
"""A consumer, a producer, and by how many steps of a dim the first looks back when it reads the second."""


def _reads_within(graph: Graph, circle: set[Node]) -> list[_Looked]:
    found: list[_Looked] = []
    for node in circle:
        edges = (edge for edge in edges_of(node, graph.cases) if edge.node in circle)
        found += [(node, edge.node, partial(_back, node, edge)) for edge in edges]
        found += [(node, s.node, partial(_added_back, node, s)) for s in node.scatters if s.node in circle]
    return found


def _back(consumer: Node, edge: Edge, family: Dim) -> Expr | None:
    own, theirs = dim_of(consumer, family), dim_of(edge.node, family)
    item = edge.index[edge.node.domain.index(theirs)]
    return None if isinstance(item, Slice) else own + own.start - item - theirs.start


def _added_back(consumer: Node, scatter: Scatter, family: Dim) -> Expr | None:
    own, theirs = dim_of(consumer, family), dim_of(scatter.node, family)
    item = scatter.index[consumer.domain.index(own)]
    return None if isinstance(item, Slice) else item + own.start - theirs - theirs.start


def _left(reads: Sequence[_Looked], family: Dim) -> list[_Looked] | None:
    """The reads of a circle that stay at a step of a dim, if the dim carries all others in one direction."""
    steps = [back(family) for _, _, back in reads]
    known = [step.constant for step in steps if step is not None and step.is_constant]
    if len(known) < len(steps) or not any(known) or (min(known) < 0 < max(known)):
        return None
    return [r for r, step in zip(reads, known, strict=True) if not step]
