"""Choosing loops: what must be computed step by step, in which order, and what can be computed at once.

Nodes that need each other's values at other steps form circles, and a circle needs a loop over a dim that carries it:
one along which no read goes forward, or none goes back. Everything else is computed for all steps of a dim at once.
Inside a loop the reads that it carries no longer matter, and what remains is scheduled in the same way. Loops over the
same dim are joined where no read forbids it.

(Allen and Kennedy's loop distribution, and typed fusion. isl gives the distances of reads; its own scheduler
was not needed: with loops only where circles force them, the order of nodes in a loop body is a topological sort.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tempo.analysis.causality import steps_back
from tempo.analysis.coverage import needed_points
from tempo.analysis.relations import Points, Read, Relations
from tempo.analysis.walk import walk
from tempo.errors import CausalityError, TempoError
from tempo.graph.node import Edge, Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import components, reachable
from tempo.schedule.looptree import Compute, Loop, Tree
from tempo.symbolic import Condition, Dim, Slice, as_expr, conjunction
from tempo.symbolic.condition import And, AtLeastZero, EqualsZero, Not, Or
from tempo.symbolic.intervals import interval
from tempo.symbolic.polyhedral import span

# Values of all steps of a loop are kept up to this size so that others can be computed from them at once.
KEEP_BYTES = 256 * 2**20

# A circle that no dim carries is unrolled up to this many values.
MOST_UNROLLED = 5000

# Operations that gain from being done for all steps of a loop at once, beside it: matrix products become larger ones,
# random numbers are drawn in one go. Everything else is as fast inside the loop, where its results need no store.
WORTH_HOISTING = ("einsum", "convolution", "argsort", "random_bits", "cumsum", "cumprod", "linear_scan")


class ScheduleError(TempoError):
    """No loops were found for a program that passed all checks: a bug in Tempo."""


Distance = tuple[int | None, int | None] | None

Shifts = dict[tuple[Node, Dim], int]
"""By how many steps of a loop over a dim a node is computed later than its own step says."""


@dataclass(eq=False)
class Dependence:
    """A read, with the steps it looks back along each dim."""

    read: Read
    numbers: Mapping[Any, int]
    shifts: Shifts
    distances: dict[Dim, Distance] = field(default_factory=dict)

    @property
    def consumer(self) -> Node:
        return self.read.consumer

    @property
    def producer(self) -> Node:
        return self.read.producer

    def distance(self, family: Dim) -> Distance:
        """The least and greatest number of a loop's steps back; None if nothing is read at all."""
        steps = self.unshifted(family)
        shift = self.shifts.get((self.consumer, family), 0) - self.shifts.get((self.producer, family), 0)
        if steps is None or shift == 0:
            return steps
        low, high = steps
        return None if low is None else low + shift, None if high is None else high + shift

    def unshifted(self, family: Dim) -> Distance:
        """The same where every node is computed at the loop's own step."""
        if family not in self.distances:
            self.distances[family] = self._distance(family)
        return self.distances[family]

    def _distance(self, family: Dim) -> Distance:
        own = next(d for d in self.consumer.domain if d.origin is family)
        theirs = next(d for d in self.producer.domain if d.origin is family)
        if self.read.index is not None:
            item = self.read.index[self.producer.domain.index(theirs)]
            if not isinstance(item, Slice):
                back = (own + own.start) - (item + theirs.start)
                if back.is_constant:
                    return back.constant, back.constant
        return steps_back(self.read, own, theirs, self.numbers)


Place = tuple[tuple[Dim, int], ...]
"""Where a node is computed: the dims of the loops around it, each with a number that tells loops apart. Pieces of
one loop that was cut have one number."""


@dataclass(frozen=True)
class Schedule:
    """The loop tree and what was found on the way to it."""

    trees: tuple[Tree, ...]
    places: Mapping[Node, frozenset[Place]]
    dependences: tuple[Dependence, ...]
    spans: Mapping[Node, Mapping[Dim, tuple[int, int]]]
    """Per node and dim, the first and the last step at which it is needed."""
    shifts: Shifts
    numbers: Mapping[Any, int]
    results: Mapping[str, tuple[range, ...]]
    """Per output, the steps that are handed out."""

    def own_step(self, node: Node, dim: Dim, step: Any) -> Any:
        """The step of a node's dim that is computed at a step of the loop over it."""
        return step - dim.start.evaluate(self.numbers) - self.shifts.get((node, dim.origin), 0)

    def steps(self, node: Node, dim: Dim) -> tuple[int, int]:
        """The first step of a dim at which a node is needed, and the one after the last."""
        first, last = self.spans[node][dim]
        return first, last + 1


def schedule(graph: Graph, numbers: Mapping[Any, int]) -> Schedule:
    """Loops for a graph, with its bounds' numbers."""
    relations = Relations(graph, numbers)
    needed = {node: points for node, points in needed_points(relations)[0].items() if not points.is_empty()}
    shifts: Shifts = {}
    dependences = tuple(
        Dependence(Read(r.consumer, r.producer, r.relation.intersect_domain(needed[node]), r.index), numbers, shifts)
        for node in graph.nodes
        if node in needed
        for r in relations.reads(node)
        if r.producer in needed
    )
    builder = _Builder(graph, numbers, needed, shifts)
    exact = {node: dict(spans) for node, spans in builder.spans.items()}
    nodes = [node for node in graph.nodes if node in needed]
    trees = builder.sequence(nodes, dependences, ())
    places = {node: frozenset(found) for node, found in builder.places.items()}
    results = {name: _handed_out(relations, edge, exact) for name, edge in graph.outputs.items()}
    return Schedule(tuple(trees), places, dependences, builder.spans, shifts, numbers, results)


def _handed_out(
    relations: Relations, edge: Edge, spans: Mapping[Node, Mapping[Dim, tuple[int, int]]]
) -> tuple[range, ...]:
    """All points where an output is defined, if they are a box; the steps of its dims otherwise."""
    if edge.node.op is RECURRENT and edge.is_here:
        own = spans[edge.node]
        box = conjunction(part for d, (first, last) in own.items() for part in (d >= first, d <= last))
        if relations.points(box, edge.domain).is_subset(relations.defined[edge.node]):
            return tuple(range(first, last + 1) for first, last in own.values())
    return tuple(range(d.bound.evaluate(relations.numbers)) for d in edge.domain)


@dataclass
class _Group:
    """Nodes that share a loop, or that stand in no further loop (``family`` None). In a ``tangled`` circle the order of
    steps is not that of any dim; a ``sunk`` node is only in a loop because its readers are."""

    family: Dim | None
    backwards: bool
    nodes: list[Node]
    tangled: bool = False
    sunk: bool = False


class _Builder:
    def __init__(self, graph: Graph, numbers: Mapping[Any, int], needed: Mapping[Node, Points], shifts: Shifts) -> None:
        self.shifts = shifts
        self.graph = graph
        self.numbers = numbers
        self.places: dict[Node, set[Place]] = {}
        self.loops = 0
        # What is handed out while the program runs, and all that only it needs, is computed when its operands are.
        self.at_once = set(reachable([e.node for e in (*graph.emits.values(), *graph.stops.values())], {}))
        self.spans = {
            node: {d: span(points, d.name) or (0, -1) for d in node.domain} for node, points in needed.items()
        }

    def sequence(self, nodes: Sequence[Node], dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The trees that compute some nodes, inside the loops ``outer``."""
        inside = set(nodes)
        dependences = [d for d in dependences if d.consumer in inside and d.producer in inside]
        following: dict[Node, list[Node]] = {node: [] for node in nodes}
        for d in dependences:
            following[d.consumer].append(d.producer)
        units = []
        for component in components(following):
            circle = len(component) > 1 or any(n in following[n] for n in component)
            ordered = sorted(component, key=lambda n: n.number)
            units.append(self.carried(ordered, dependences) if circle else _Group(None, False, ordered))
        self.sink(units, dependences)
        trees: list[Tree] = []
        for group in _join(units, dependences):
            if group.tangled:
                trees.extend(self.point_by_point(group.nodes, outer))
            elif group.family is None:
                for node in group.nodes:
                    self.places.setdefault(node, set()).add(outer)
                    trees.append(self.compute(node, {}))
            else:
                trees.extend(self.loop(group, group.family, dependences, outer))
        return trees

    def carried(self, circle: Sequence[Node], dependences: Sequence[Dependence]) -> _Group:
        """The loop that a circle of nodes needs."""
        members = set(circle)
        inside = [d for d in dependences if d.consumer in members and d.producer in members]
        shared = set.intersection(*({d.origin for d in node.domain} for node in circle))
        for family in sorted(shared, key=lambda d: d.number):
            distances = [d.distance(family) for d in inside]
            for backwards in (False, True):
                if all(_allowed(x, backwards) for x in distances) and any(not _stays(x, backwards) for x in distances):
                    return _Group(family, backwards, list(circle))
        for family in sorted(shared, key=lambda d: d.number):
            for backwards in (False, True):
                shifts = _shifts(inside, family, backwards)
                if shifts is not None:
                    self.shifts.update({(node, family): shift for node, shift in shifts.items() if shift})
                    return _Group(family, backwards, list(circle))
        return _Group(None, False, list(circle), tangled=True)

    def point_by_point(self, circle: Sequence[Node], outer: Place) -> list[Tree]:
        """A circle that no dim carries, unrolled in the order in which its points need each other."""
        members = set(circle)
        names = ", ".join(n.label for n in circle if n.name) or circle[0].label
        failure = ScheduleError(
            f"Tempo found no order of steps for the definitions of {names}, although there must be one; "
            f"please report this program:\n\n{self.graph}"
        )
        try:
            order = [(node, point) for node, point in walk(self.graph, self.numbers) if node in members]
        except CausalityError:
            raise failure from None
        if outer or len(order) > MOST_UNROLLED:
            raise failure
        trees: list[Tree] = []
        for node, point in order:
            tree: Tree = self.compute(node, {})
            place: Place = outer
            for d, step in reversed(list(zip(node.domain, point, strict=True))):
                at = step + d.start.evaluate(self.numbers)
                tree = Loop(d.origin, at, at + 1, False, (tree,))
                self.loops += 1
                place = ((d.origin, self.loops), *place)
            self.places.setdefault(node, set()).add(place)
            trees.append(self._specialise(tree, {}))
        return trees

    def sink(self, units: Sequence[_Group], dependences: Sequence[Dependence]) -> None:
        """Take nodes that need no loop into one that their operands or their readers are in, where keeping values
        for all of its steps would cost memory and gain nothing."""
        unit_of = {node: unit for unit in units for node in unit.nodes}
        reads: dict[Node, list[Dependence]] = {}
        readers: dict[Node, list[Dependence]] = {}
        for d in dependences:
            reads.setdefault(d.consumer, []).append(d)
            readers.setdefault(d.producer, []).append(d)

        def joins(node: Node, neighbours: Sequence[tuple[Node, Dependence]]) -> _Group | None:
            """The loop in which all these neighbours are read at the same step, if there is one."""
            loops = [unit_of[other] for other, _ in neighbours if unit_of[other].family is not None]
            if not loops:
                return None
            group = loops[0]
            inside = [d for other, d in neighbours if unit_of[other].family is not None]
            fits = (
                all(_same_kind(group, loop) for loop in loops)
                and any(d.origin is group.family for d in node.domain)
                and all(group.family is not None and d.distance(group.family) == (0, 0) for d in inside)
            )
            return group if fits else None

        for unit in units:
            (node, *others) = unit.nodes
            if unit.family is None and not others and not unit.tangled:
                operands = [(d.producer, d) for d in reads.get(node, ())]
                group = joins(node, operands)
                largest = max((self.bytes(p) for p, _ in operands), default=0)
                shrinks = node.op.name not in WORTH_HOISTING and largest > 2 * self.bytes(node)
                at_once = node in self.at_once or node.op is HOST_RESULT
                if group is not None and (at_once or shrinks or largest > KEEP_BYTES):
                    unit.family, unit.backwards = group.family, group.backwards
        for unit in reversed(units):
            (node, *others) = unit.nodes
            hoist = node.op is INPUT or (node.op.name in WORTH_HOISTING and self.bytes(node) <= KEEP_BYTES)
            if unit.family is None and not others and not hoist and not unit.tangled:
                consumers = [(d.consumer, d) for d in readers.get(node, ())]
                group = joins(node, consumers)
                if group is not None and all(unit_of[c].family is not None for c, _ in consumers):
                    unit.family, unit.backwards, unit.sunk = group.family, group.backwards, True

    def bytes(self, node: Node) -> int:
        """What all values of a node take."""
        spans = self.spans[node]
        steps = math.prod(max(last - first + 1, 0) for first, last in spans.values())
        sizes = (interval(as_expr(s).substitute(self.numbers), spans)[1] for s in node.shape)
        return steps * math.prod(sizes) * node.dtype.itemsize

    def loop(self, group: _Group, family: Dim, dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The loop of a group, cut where other nodes or cases become active."""
        members = set(group.nodes)
        rest = [
            d
            for d in dependences
            if d.consumer in members and d.producer in members and _stays(d.distance(family), group.backwards)
        ]
        self.loops += 1
        here = (*outer, (family, self.loops))
        pieces: list[Tree] = []
        for start, stop, active in self.segments(group.nodes, family):
            body = self.sequence(active, rest, here)
            body = [self.specialise(tree, family, start, stop) for tree in body]
            pieces.append(Loop(family, start, stop, group.backwards, tuple(body)))
        return pieces[::-1] if group.backwards else pieces

    def segments(self, nodes: Sequence[Node], family: Dim) -> list[tuple[int, int, list[Node]]]:
        """The ranges of a loop over which the same nodes are active."""
        spans = {}
        cuts: set[int] = set()
        for node in nodes:
            own = next(d for d in node.domain if d.origin is family)
            # A loop counts the steps of the dim that a user declared.
            start = self.offset(node, own)
            low, high = self.spans[node][own]
            if low <= high:
                spans[node] = (low + start, high + 1 + start)
                cuts |= {low + start, high + 1 + start}
            for case in self.graph.cases.get(node, ()):
                cuts |= {c + start for c in self.thresholds(case.region, own) if low < c <= high}
        ordered = sorted(cuts)
        pieces = []
        for start, stop in itertools.pairwise(ordered):
            active = [n for n, (low, high) in spans.items() if low <= start and stop <= high]
            if active:
                pieces.append((start, stop, active))
        pieces = _merged(pieces)
        for start, stop, active in pieces:
            for node in active:
                self.widen(node, family, start, stop)
        return pieces

    def offset(self, node: Node, dim: Dim) -> int:
        """How far a loop is ahead of the steps of a node's dim."""
        return dim.start.evaluate(self.numbers) + self.shifts.get((node, dim.origin), 0)

    def widen(self, node: Node, family: Dim, start: int, stop: int) -> None:
        """Let a node be computed at all steps of a loop that it is in, and have room for what comes of it."""
        own = next(d for d in node.domain if d.origin is family)
        shift = self.offset(node, own)
        low, high = self.spans[node][own]
        self.spans[node][own] = (min(low, start - shift), max(high, stop - 1 - shift))

    def thresholds(self, condition: Condition, dim: Dim) -> set[int]:
        """The steps of a dim at which a condition on it alone changes."""
        match condition:
            case And() | Or():
                return set().union(*(self.thresholds(p, dim) for p in condition.parts))
            case Not():
                return self.thresholds(condition.condition, dim)
            case AtLeastZero() | EqualsZero():
                expr = condition.expr.substitute(self.numbers)
                factor = dict(expr.terms).get(dim, 0)
                if expr.symbols() != {dim} or factor == 0 or expr - factor * dim != expr.constant:
                    return set()
                first = -(expr.constant // factor) if factor > 0 else expr.constant // -factor + 1
                return {first, first + 1} if isinstance(condition, EqualsZero) else {first}
        return set()

    def compute(self, node: Node, ranges: Mapping[Dim, tuple[int, int]]) -> Compute:
        """A node, with the cases that may apply when the loops are within some ranges."""
        if node.op is not RECURRENT:
            return Compute(node)
        known = dict(self.spans[node])
        for d in node.domain:
            if d.origin in ranges:
                start = self.offset(node, d)
                known[d] = (ranges[d.origin][0] - start, ranges[d.origin][1] - start)
        kept = []
        for n, case in enumerate(self.graph.cases[node]):
            truth = decide(case.region, known, self.numbers)
            # A case that reads what nobody needs does not apply anywhere, even if that is hard to see.
            if truth is not False and case.value.node in self.spans:
                kept.append(n)
            if truth is True:
                break
        return Compute(node, tuple(kept))

    def specialise(self, tree: Tree, family: Dim, start: int, stop: int) -> Tree:
        return self._specialise(tree, {family: (start, stop - 1)})

    def _specialise(self, tree: Tree, ranges: Mapping[Dim, tuple[int, int]]) -> Tree:
        if isinstance(tree, Compute):
            return self.compute(tree.node, ranges)
        inner = {**ranges, tree.dim: (tree.start, tree.stop - 1)}
        body = tuple(self._specialise(t, inner) for t in tree.body)
        return Loop(tree.dim, tree.start, tree.stop, tree.backwards, body)


def _shifts(dependences: Sequence[Dependence], family: Dim, backwards: bool) -> dict[Node, int] | None:
    """By how many steps to delay the nodes of a circle so that no read of it looks ahead, if that can be done.

    ``h[t + 1] = f(c[t + 1])`` reads f one step back, and f reads c one step ahead: computed one step later, f reads
    both where they are. (Retiming: shortest paths over the steps that each read looks back.)
    """
    sign = -1 if backwards else 1
    edges = []
    for d in dependences:
        steps = d.unshifted(family)
        if steps is None:
            continue
        back = steps[1] if backwards else steps[0]
        if back is None:
            return None
        edges.append((d.consumer, d.producer, sign * back))
    shift = {node: 0 for consumer, producer, _ in edges for node in (consumer, producer)}
    for _ in range(len(shift) + 1):
        late = [(p, shift[c] + back) for c, p, back in edges if shift[c] + back < shift[p]]
        if not late:
            break
        for node, most in late:
            shift[node] = min(shift[node], most)
    else:
        return None
    if all(back + shift[c] - shift[p] == 0 for c, p, back in edges):
        return None
    # Tensors with names keep their own steps where they can.
    named = [shift[node] for node in shift if node.op is RECURRENT] or [0]
    return {node: sign * (steps - max(named)) for node, steps in shift.items()}


def _allowed(distance: Distance, backwards: bool) -> bool:
    """Whether a loop in this direction has what a read needs by the time it is needed."""
    if distance is None:
        return True
    low, high = distance
    return (high is not None and high <= 0) if backwards else (low is not None and low >= 0)


def _stays(distance: Distance, backwards: bool) -> bool:
    """Whether a read may stay within one iteration of a loop."""
    if distance is None:
        return False
    low, high = distance
    return low is None or high is None or low <= 0 <= high


def _merged(pieces: list[tuple[int, int, list[Node]]]) -> list[tuple[int, int, list[Node]]]:
    """Join neighbouring ranges unless one has much less to do: a copy of a large loop body is not worth it."""
    result: list[tuple[int, int, list[Node]]] = []
    for start, stop, active in pieces:
        if result and result[-1][1] == start:
            before = result[-1][2]
            small, large = sorted((len(before), len(active)))
            if _hosts(before) != _hosts(active):  # a call is made at its own steps and at no others
                result.append((start, stop, active))
                continue
            if set(before) == set(active) or small > max(8, large // 4):
                union = sorted({*before, *active}, key=lambda n: n.number)
                result[-1] = (result[-1][0], stop, union)
                continue
        result.append((start, stop, active))
    return result


def _hosts(nodes: Sequence[Node]) -> set[Node]:
    return {node for node in nodes if node.op is HOST}


def _join(units: Sequence[_Group], dependences: Sequence[Dependence]) -> list[_Group]:
    """Put units, each after what it needs, into as few groups as their kinds and reads allow."""
    groups: list[_Group] = []
    place: dict[Node, int] = {}
    reads: dict[Node, list[Dependence]] = {}
    for d in dependences:
        reads.setdefault(d.consumer, []).append(d)
    for unit in units:
        earliest = 0
        members = set(unit.nodes)
        for d in (d for node in unit.nodes for d in reads.get(node, ())):
            if d.producer in members:
                continue
            at = place[d.producer]
            together = _same_kind(groups[at], unit) and (
                unit.family is None or _allowed(d.distance(unit.family), unit.backwards)
            )
            earliest = max(earliest, at if together else at + 1)
        fitting = (n for n in range(earliest, len(groups)) if _same_kind(groups[n], unit))
        at = next(fitting, len(groups))
        if at == len(groups):
            groups.append(_Group(unit.family, unit.backwards, []))
        groups[at].nodes.extend(unit.nodes)
        groups[at].tangled = unit.tangled
        place.update(dict.fromkeys(unit.nodes, at))
    # What was sunk into a loop goes where its readers went, which may be later than it could be.
    for unit in reversed(units):
        if unit.sunk:
            (node,) = unit.nodes
            at = min((place[d.consumer] for d in dependences if d.producer is node), default=place[node])
            if at != place[node] and _same_kind(groups[at], unit):
                groups[place[node]].nodes.remove(node)
                groups[at].nodes.insert(0, node)
                place[node] = at
    return [group for group in groups if group.nodes]


def _same_kind(a: _Group, b: _Group) -> bool:
    return a.family is b.family and a.backwards == b.backwards and not (a.tangled or b.tangled)


def decide(condition: Condition, ranges: Mapping[Dim, tuple[int, int]], numbers: Mapping[Any, int]) -> bool | None:
    """Whether a condition holds at all points of a box, at none, or (None) that is not seen."""
    match condition:
        case And():
            parts = [decide(p, ranges, numbers) for p in condition.parts]
            return False if False in parts else None if None in parts else True
        case Or():
            parts = [decide(p, ranges, numbers) for p in condition.parts]
            return True if True in parts else None if None in parts else False
        case Not():
            truth = decide(condition.condition, ranges, numbers)
            return None if truth is None else not truth
        case AtLeastZero() | EqualsZero():
            low, high = interval(condition.expr.substitute(numbers), ranges)
            if isinstance(condition, AtLeastZero):
                return True if low >= 0 else False if high < 0 else None
            return True if low == high == 0 else False if low > 0 or high < 0 else None
    return bool(condition)
