"""The ranges of a loop's steps in which the same is computed, and those that need no loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from tempo.analysis.relations import Points, Read, Relation
from tempo.graph.node import Graph, Node, dim_of
from tempo.graph.structural import HOST
from tempo.graph.traversal import circles
from tempo.schedule.buckets import Buckets, Sizes
from tempo.schedule.dependences import Dependence, allowed, stays
from tempo.schedule.extents import Extents
from tempo.schedule.folds import Fold
from tempo.schedule.groups import Group, merged
from tempo.schedule.sinking import KEEP_BYTES
from tempo.symbolic import Condition, Dim
from tempo.symbolic.condition import And, AtLeastZero, EqualsZero, Not, Or
from tempo.symbolic.polyhedral import to_set

# A part of a loop that needs none is computed at once if it has at least this many steps.
FEWEST_AT_ONCE = 4

Segment = tuple[int, int, list[Node]]
"""A range of a loop's steps, and the nodes that are computed in it."""


class Segments:
    def __init__(
        self,
        graph: Graph,
        extents: Extents,
        sizes: Mapping[Dim, int],
        buckets: Buckets,
        folds: Mapping[Node, Mapping[Dim, Fold]],
    ) -> None:
        self.graph = graph
        self.extents = extents
        self.sizes = sizes
        self.buckets = buckets
        self.folds = folds

    def of_loop(self, group: Group, family: Dim, dependences: Sequence[Dependence]) -> list[Segment]:
        """The ranges of a loop over which the same nodes are active, or which need no loop."""
        spans = {}
        cuts: set[int] = set()
        for node in group.nodes:
            steps = self.extents.in_loop(node, family)
            if steps:
                spans[node] = steps.start, steps.stop
                cuts |= {steps.start, steps.stop}
            own = dim_of(node, family)
            offset = self.extents.offset(node, own)
            for case in self.graph.cases.get(node, ()):
                changes = {step + offset for step in self.thresholds(case.region, own)}
                cuts |= {step for step in changes if steps.start < step < steps.stop}
        pieces = _between(cuts, spans)
        # Neighbours that need no loop together are one piece.
        apart: list[Segment] = []
        result: list[Segment] = []
        for start, stop, active in pieces:
            if self.independent(start, stop, active, family, dependences) is None:
                apart.append((start, stop, active))
                continue
            while apart and apart[-1][1] == start:
                both = sorted({*apart[-1][2], *active}, key=lambda n: n.number)
                if self.independent(apart[-1][0], stop, both, family, dependences) is None:
                    break
                start, active = apart.pop()[0], both
            result += [*merged(apart), (start, stop, active)]
            apart = []
        result += merged(apart)
        for start, stop, active in result:
            for node in active:
                self.extents.widen(node, family, start, stop)
        return result

    def of_blocks(self, nodes: Sequence[Node], family: Dim, block: int) -> list[Segment]:
        """The ranges of a loop in blocks over which the same nodes are active.

        Most nodes may be computed for a few steps more than they are needed: whole blocks of all are better than a cut.
        """
        spans = {}
        stops: dict[int, set[int]] = {}
        for node in nodes:
            if fold := self.folds.get(node, {}).get(family):
                spans[node] = (fold.base, fold.base + fold.count)
            else:
                steps = self.extents.in_loop(node, family)
                spans[node] = steps.start, steps.stop
                stops.setdefault(self.extents.shifts.get((node, family), 0), set()).add(steps.stop)
        first = min(low for low, _ in spans.values())
        for node, (low, high) in spans.items():
            if node.op is not HOST and family not in self.folds.get(node, {}):
                near = max(stop for stop in stops[self.extents.shifts.get((node, family), 0)] if stop < high + block)
                spans[node] = (first + (low - first) // block * block, near)
        pieces = _between({step for ends in spans.values() for step in ends}, spans)
        if block == 1:
            pieces = merged(pieces, {node for node in nodes if family in self.folds.get(node, {})})
        for start, stop, active in pieces:
            for node in active:
                if family not in self.folds.get(node, {}):
                    self.extents.widen(node, family, start, stop)
        return pieces

    def bucketed(self, segment: Segment, family: Dim) -> list[Segment]:
        """A range of a loop in pieces that differ in the sizes of what its nodes read."""
        start, stop, active = segment
        sizes = Sizes(self.extents.numbers)
        for node in active:
            own = dim_of(node, family)
            spans = self.extents.spans[node]
            # All steps of dims without a loop at once, or again in every iteration of one around.
            times = math.prod(high - low + 1 for d, (low, high) in spans.items() if d is not own)
            known = {**self.extents.limits, **spans}
            sizes.add(node, own, self.extents.offset(node, own), self.graph.cases.get(node, ()), known, times)
        return [(low, high, active) for low, high in self.buckets.pieces(family, start, stop, sizes)]

    def independent(
        self, start: int, stop: int, active: Sequence[Node], family: Dim, dependences: Sequence[Dependence]
    ) -> list[Dependence] | None:
        """The reads among nodes within a range of a loop's steps, if there they need no loop: a prompt's known tokens
        do not depend on what is computed from those before. None if they do."""
        if stop - start < FEWEST_AT_ONCE or any(node.op is HOST for node in active):
            return None
        points: dict[Node, Points] = {}
        ranges: dict[Any, Points] = {}
        for node in active:
            own = dim_of(node, family)
            offset = self.extents.offset(node, own)
            if (own, offset, node.domain) not in ranges:
                inside = (own >= start - offset) & (own < stop - offset)
                ranges[own, offset, node.domain] = to_set(inside, node.domain)
            points[node] = ranges[own, offset, node.domain]
        within = []
        relations: dict[Any, Relation | None] = {}  # few of them differ in a model of many layers
        for d in dependences:
            if d.consumer in points and d.producer in points:
                # isl takes sets for equal whose dims have other names.
                key = d.read.relation, points[d.consumer], points[d.producer], d.consumer.domain, d.producer.domain
                if key not in relations:
                    relation = d.read.relation.intersect_domain(points[d.consumer])
                    relation = relation.intersect_range(points[d.producer])
                    relations[key] = None if relation.is_empty() else relation
                if relations[key] is not None:
                    read = Read(d.consumer, d.producer, relations[key], d.read.index)
                    within.append(Dependence(read, self.extents.numbers, self.extents.shifts))
        return within if self.needs_no_loop(active, within, family) else None

    def needs_no_loop(self, nodes: Sequence[Node], dependences: Sequence[Dependence], family: Dim) -> bool:
        """Whether all circles are carried by other dims."""
        following: dict[Node, list[Node]] = {node: [] for node in nodes}
        for d in dependences:
            following[d.consumer].append(d.producer)
        return all(self.carried_without(component, dependences, family) for component in circles(following))

    def carried_without(self, circle: set[Node], dependences: Sequence[Dependence], family: Dim) -> bool:
        inside = [d for d in dependences if d.consumer in circle and d.producer in circle]
        shared = set.intersection(*({d.origin for d in node.domain} for node in circle)) - {family}
        for other in sorted(shared, key=lambda d: d.number):
            distances = [d.distance(other) for d in inside]
            for backwards in (False, True):
                if all(allowed(x, backwards) for x in distances):
                    rest = [d for d, x in zip(inside, distances, strict=True) if stays(x)]
                    if len(rest) < len(inside):
                        return self.needs_no_loop(list(circle), rest, family)
        return False

    def fitting(self, active: Sequence[Node], family: Dim, start: int, stop: int, backwards: bool) -> int:
        """How many steps of a part of a loop can be computed at once; 0 if too few."""
        largest = 1
        for node in active:
            steps = len(self.extents.in_loop(node, family))
            largest = max(largest, self.extents.bytes(node) // max(steps, 1))
        block = min(KEEP_BYTES // largest, stop - start, self.sizes.get(family, stop))
        return 0 if block < FEWEST_AT_ONCE or (backwards and block < stop - start) else block

    def thresholds(self, condition: Condition, dim: Dim) -> set[int]:
        """The steps of a dim at which a condition on it alone changes."""
        match condition:
            case And() | Or():
                return set().union(*(self.thresholds(p, dim) for p in condition.parts))
            case Not():
                return self.thresholds(condition.condition, dim)
            case AtLeastZero() | EqualsZero():
                expr = condition.expr.substitute(self.extents.numbers)
                factor = dict(expr.terms).get(dim, 0)
                if expr.symbols() != {dim} or factor == 0 or expr - factor * dim != expr.constant:
                    return set()
                first = -(expr.constant // factor) if factor > 0 else expr.constant // -factor + 1
                return {first, first + 1} if isinstance(condition, EqualsZero) else {first}
        return set()


def _between(cuts: Set[int], spans: Mapping[Node, tuple[int, int]]) -> list[Segment]:
    """The ranges between neighbouring cuts in which anything is computed, each with all that is."""
    found = []
    for start, stop in itertools.pairwise(sorted(cuts)):
        active = [node for node, (low, high) in spans.items() if low <= start and stop <= high]
        if active:
            found.append((start, stop, active))
    return found
