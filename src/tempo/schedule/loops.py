"""Choosing loops: what must be computed step by step, in which order, and what can be computed at once.

Nodes that need each other's values at other steps form circles, and a circle needs a loop over a dim that carries it:
one along which no read goes forward, or none goes back. Everything else is computed for all steps of a dim at once.
Inside a loop the reads that it carries no longer matter, and what remains is scheduled in the same way. Loops over the
same dim are joined where no read forbids it.

(Allen and Kennedy's loop distribution, and typed fusion. isl gives the distances of reads; its own scheduler
was not needed: with loops only where circles force them, the order of nodes in a loop body is a topological sort.)
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tempo.analysis.coverage import needed_points
from tempo.analysis.relations import Points, Read, Relations
from tempo.analysis.stops import asked_for, waits
from tempo.analysis.walk import walk
from tempo.errors import CausalityError, ProgramError, TempoError
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import components, reachable
from tempo.schedule.buckets import Buckets, Sizes
from tempo.schedule.dependences import Dependence, Distance, Shifts, allowed, delays, stays
from tempo.schedule.folds import Fold
from tempo.schedule.groups import Group, join, merged, same_kind
from tempo.schedule.looptree import Compute, Loop, Tree
from tempo.schedule.results import handed_out
from tempo.schedule.tiles import Tiling
from tempo.symbolic import Condition, Dim, as_expr
from tempo.symbolic.condition import And, AtLeastZero, EqualsZero, Not, Or
from tempo.symbolic.intervals import decide, interval
from tempo.symbolic.polyhedral import most_above, span

# Values of all steps of a loop are kept up to this size so that others can be computed from them at once.
KEEP_BYTES = 256 * 2**20

# A circle that no dim carries is unrolled up to this many values.
MOST_UNROLLED = 5000

# Operations that gain from being done for all steps of a loop at once, beside it: matrix products become larger ones,
# random numbers are drawn in one go. Everything else is as fast inside the loop, where its results need no store.
WORTH_HOISTING = {"einsum", "convolution", "argsort", "random_bits", "cumsum", "cumprod", "linear_scan"}
WORTH_HOISTING |= {"linear_recurrence"}


class ScheduleError(TempoError):
    """No loops were found for a program that passed all checks: a bug in Tempo."""


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
    open: Mapping[Any, tuple[int, int]]
    """The bounds of dims that stop on data: the fewest and the most steps they may make. ``numbers`` has the others."""
    beyond: Mapping[Node, int]
    """Per stop condition that a loop computes, how many further steps of that loop are needed once it holds."""
    results: Mapping[str, tuple[range, ...]]
    """Per output, the steps that are handed out, or may be."""
    blocks: Mapping[int, int]
    """The most steps that a loop computes at once, by the number of the loop, where it computes blocks."""
    folds: Mapping[Node, Fold]
    """Reductions that are put together block by block."""

    def own_step(self, node: Node, dim: Dim, step: Any) -> Any:
        """The step of a node's dim that is computed at a step of the loop over it."""
        return step - dim.start.evaluate(self.numbers) - self.shifts.get((node, dim.origin), 0)

    def steps(self, node: Node, dim: Dim) -> tuple[int, int]:
        """The first step of a dim at which a node is needed, and the one after the last."""
        first, last = self.spans[node][dim]
        return first, last + 1


def schedule(
    graph: Graph,
    numbers: Mapping[Any, int],
    blocks: Mapping[Dim, int] = MappingProxyType({}),
    buckets: Buckets | None = None,
) -> Schedule:
    """Loops for a graph, with its bounds' numbers: for dims that stop on data, the most steps they may make.

    ``blocks`` says of some dims how many steps are computed at once where all of them could be, ``buckets`` where loops
    are cut whose bodies have ranges of varying size.
    """
    buckets = buckets or Buckets()
    stopped = {dim.bound for dim in graph.stops}
    fixed = {d: b for d, b in blocks.items() if not d.bound.symbols() & stopped}
    sizes = {d: b for d, b in fixed.items() if b < d.bound.evaluate(numbers)}
    if sizes:
        # What has no order of steps in blocks is computed without them.
        with contextlib.suppress(_TangledError):
            return _schedule(graph, numbers, sizes, buckets)
    return _schedule(graph, numbers, {}, buckets)


def _schedule(graph: Graph, numbers: Mapping[Any, int], sizes: Mapping[Dim, int], buckets: Buckets) -> Schedule:
    relations = Relations(graph, numbers)
    _check_starts(graph, relations.numbers)
    needed = {node: points for node, points in needed_points(relations)[0].items() if not points.is_empty()}
    shifts: Shifts = {}
    reads = [r for node in graph.nodes if node in needed for r in relations.reads(node)]
    dependences = tuple(
        Dependence(
            Read(r.consumer, r.producer, r.relation.intersect_domain(needed[r.consumer]), r.index),
            relations.numbers,
            shifts,
        )
        for r in (*reads, *waits(relations))
        if r.consumer in needed and r.producer in needed
    )
    limits = {dim.bound: (1, numbers[dim.bound]) for dim in graph.stops}
    builder = _Builder(graph, relations.numbers, limits, needed, shifts, sizes, buckets)
    exact = {node: dict(spans) for node, spans in builder.spans.items()}
    nodes = [node for node in graph.nodes if node in needed]
    trees = builder.sequence(nodes, dependences, ())
    places = {node: frozenset(found) for node, found in builder.places.items()}
    results = {}
    for name, edge in graph.outputs.items():
        if graph.stops and edge.node.op is RECURRENT and edge.is_here:
            # What is handed out is known when the program has run: a part of all that may be there.
            results[name] = tuple(range(first, last + 1) for first, last in exact[edge.node].values())
        else:
            results[name] = handed_out(relations, numbers, edge)
    beyond = {edge.node: _beyond(builder, dim, edge.node, needed) for dim, edge in graph.stops.items()}
    return Schedule(
        tuple(trees),
        places,
        dependences,
        builder.spans,
        shifts,
        relations.numbers,
        limits,
        beyond,
        results,
        builder.blocks,
        builder.folds,
    )


def _check_starts(graph: Graph, numbers: Mapping[Any, int]) -> None:
    """Loops count steps from where dims start, which must not depend on when another dim stops."""
    for d in graph.dims:
        unknown = sorted(s.name for s in d.start.symbols() if s not in numbers)
        if unknown:
            raise ProgramError(
                f"steps of {d.origin.name} are counted from {d.start}, but {unknown[0]} is not known before the run",
                hint="compiled programs cannot have definitions that only start at a step that depends on a stop",
            )


def _beyond(builder: _Builder, dim: Dim, stop: Node, needed: Mapping[Node, Points]) -> int:
    """How many steps after the last one of a stopped dim something is still computed in the stop condition's loop:
    ``x[T]``, or what is computed later than its own step says."""
    loops = builder.places[stop]
    most = 0
    for node, places in builder.places.items():
        if places & loops:
            for d in (d for d in node.domain if d.origin is dim):
                above = most_above(needed[node], d.name, str(dim.bound))
                most = max(most, 0 if above is None else above + 1 + builder.offset(node, d))
    return most


def _results_after_calls(order: Sequence[tuple[Node, Any]]) -> Iterator[tuple[Node, Any]]:
    """Points in the same order, but the results of a host call next to it: they are there until the next one."""

    def call_of(node: Node, point: Any) -> Any:
        call = node.edges[0].node if node.op is HOST_RESULT else node
        steps = dict(zip(node.domain, point, strict=True))
        return call, tuple(steps[d] for d in call.attributes["sequence"])

    results: dict[Any, list[tuple[Node, Any]]] = {}
    for node, point in order:
        if node.op is HOST_RESULT:
            results.setdefault(call_of(node, point), []).append((node, point))
    for node, point in order:
        if node.op is not HOST_RESULT:
            yield node, point
        if node.op is HOST:
            yield from results.get(call_of(node, point), ())


class _TangledError(Exception):
    """A circle inside a loop that no dim carries."""


class _Builder:
    def __init__(
        self,
        graph: Graph,
        numbers: Mapping[Any, int],
        limits: Mapping[Any, tuple[int, int]],
        needed: Mapping[Node, Points],
        shifts: Shifts,
        sizes: Mapping[Dim, int],
        buckets: Buckets,
    ) -> None:
        self.shifts = shifts
        self.sizes = sizes
        self.buckets = buckets
        self.blocks: dict[int, int] = {}
        self.folds: dict[Node, Fold] = {}
        self.graph = graph
        self.numbers = numbers
        self.limits = limits
        self.places: dict[Node, set[Place]] = {}
        self.loops = 0
        # What is handed out while the program runs, and all that only it needs, is computed when its operands are.
        self.stops = {edge.node for edge in graph.stops.values()}
        self.handed = {edge.node for edge in graph.emits.values()} | self.stops
        self.at_once = set(reachable(list(self.handed), {}))
        self.spans = {
            node: {d: span(points, d.name) or (0, -1) for d in node.domain} for node, points in needed.items()
        }

    def sequence(
        self,
        nodes: Sequence[Node],
        dependences: Sequence[Dependence],
        outer: Place,
        tiles: Mapping[Dim, int] = MappingProxyType({}),
    ) -> list[Tree]:
        """The trees that compute some nodes, inside the loops ``outer``, for blocks of the dims in ``tiles``."""
        inside = set(nodes)
        dependences = [d for d in dependences if d.consumer in inside and d.producer in inside]
        following: dict[Node, list[Node]] = {node: [] for node in nodes}
        for d in dependences:
            following[d.consumer].append(d.producer)
        # Calls are made one by one, and their results are taken before the next one: a circle of their own.
        calls = {n: self.unlooped(n, outer, tiles) for n in nodes if n.op is HOST}
        for node in nodes:
            if node.op is HOST_RESULT and calls.get(node.edges[0].node):
                following[node.edges[0].node].append(node)
        units = []
        for component in components(following):
            ordered = sorted(component, key=lambda n: n.number)
            ahead = next((calls[n] for n in ordered if calls.get(n)), [])
            if len(component) > 1 or ahead or any(n in following[n] for n in component):
                units.append(self.carried(ordered, dependences, ahead))
            else:
                units.append(Group(None, False, ordered))
        groups = self.tiled(units, dependences, outer)
        if groups is None:
            self.sink(units, dependences)
            groups = join(units, dependences)
        trees: list[Tree] = []
        for group in groups:
            if group.tangled:
                if outer:
                    raise _TangledError
                trees.extend(self.point_by_point(group.nodes))
            elif group.family is None:
                for node in group.nodes:
                    self.places.setdefault(node, set()).add(outer)
                    trees.append(self.compute(node, {}))
            elif group.block:
                trees.extend(self.block_loop(group, group.family, dependences, outer))
            elif group.family in tiles:
                trees.append(self.inner_loop(group, group.family, dependences, outer, tiles))
            else:
                trees.extend(self.loop_or_points(group, group.family, dependences, outer))
        return trees

    def tiled(self, units: Sequence[Group], dependences: Sequence[Dependence], outer: Place) -> Sequence[Group] | None:
        """Units in groups, some of which share blocks of a dim, if blocks are wanted of any that has no loop here."""
        looped = {family for family, _ in outer}
        own = {d.origin for unit in units if unit.family is None for node in unit.nodes for d in node.domain}
        family = next((d for d in self.sizes if d in own and d not in looped), None)
        if family is None:
            return None
        # What is delayed by half of all steps needs the stores of half of all steps.
        most = family.bound.evaluate(self.numbers) // 2
        tiling = Tiling(units, dependences, family, self.sizes[family], most, self.numbers)
        for node, late in tiling.delays.items():
            if late and node not in tiling.folds:
                self.shifts[node, family] = self.shifts.get((node, family), 0) + late
        for node, found in tiling.folds.items():
            steps = (
                start + self.offset(edge.node, next(d for d in edge.node.domain if d.origin is family))
                for edge, start in zip(node.edges, found.starts, strict=True)
                if start is not None
            )
            self.folds[node] = replace(found, base=max(steps))
        return tiling.groups

    def block_loop(self, group: Group, family: Dim, dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The loop of a group in blocks: as many whole ones as there are, and what is left."""
        self.loops += 1
        self.blocks[self.loops] = group.block
        here = (*outer, (family, self.loops))
        pieces: list[Tree] = []
        for start, stop, active in self.block_segments(group.nodes, family, group.block):
            whole = start + (stop - start) // group.block * group.block
            for first, last, block in ((start, whole, group.block), (whole, stop, stop - whole)):
                if first < last:
                    body = self.sequence(active, dependences, here, {family: block})
                    body = [self.specialise(tree, family, first, last) for tree in body]
                    pieces.append(Loop(family, first, last, False, tuple(body), block=block))
        return pieces

    def block_segments(self, nodes: Sequence[Node], family: Dim, block: int) -> list[tuple[int, int, list[Node]]]:
        """The ranges of a loop in blocks over which the same nodes are active.

        Most nodes may be computed for a few steps more than they are needed: whole blocks of all are better than a cut.
        """
        spans = {}
        stops: dict[int, list[int]] = {}
        for node in nodes:
            if node in self.folds:
                spans[node] = (self.folds[node].base, self.folds[node].base + self.folds[node].count)
            else:
                own = next(d for d in node.domain if d.origin is family)
                low, high = self.spans[node][own]
                offset = self.offset(node, own)
                spans[node] = (low + offset, high + 1 + offset)
                stops.setdefault(self.shifts.get((node, family), 0), []).append(high + 1 + offset)
        first = min(low for low, _ in spans.values())
        for node, (low, high) in spans.items():
            if node.op is not HOST and node not in self.folds:
                near = max(stop for stop in stops[self.shifts.get((node, family), 0)] if stop < high + block)
                spans[node] = (first + (low - first) // block * block, near)
        cuts = sorted({step for ends in spans.values() for step in ends})
        pieces = []
        for start, stop in itertools.pairwise(cuts):
            active = [n for n, (low, high) in spans.items() if low <= start and stop <= high]
            if active:
                pieces.append((start, stop, active))
                for node in active:
                    if node not in self.folds:
                        self.widen(node, family, start, stop)
        return pieces

    def inner_loop(
        self,
        group: Group,
        family: Dim,
        dependences: Sequence[Dependence],
        outer: Place,
        tiles: Mapping[Dim, int],
    ) -> Tree:
        """The loop of a group over the steps of the block around it."""
        self.loops += 1
        others = {d: block for d, block in tiles.items() if d is not family}
        rest = self.uncarried(group, family, dependences)
        body = self.sequence(group.nodes, rest, (*outer, (family, self.loops)), others)
        return Loop(family, 0, tiles[family], group.backwards, tuple(body), inner=True)

    def loop_or_points(self, group: Group, family: Dim, dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The loop of a group; if no order of steps is found for what is inside it, all its points without loops."""
        if outer:
            return self.loop(group, family, dependences, outer)
        spans, shifts = {node: dict(found) for node, found in self.spans.items()}, dict(self.shifts)
        with contextlib.suppress(_TangledError):
            return self.loop(group, family, dependences, outer)
        self.spans.update(spans)
        self.shifts.clear()
        self.shifts.update(shifts)
        for node in group.nodes:
            self.places.pop(node, None)
        return self.point_by_point(group.nodes)

    def unlooped(self, call: Node, outer: Place, tiles: Mapping[Dim, int]) -> list[Dim]:
        """The dims over which a host call still needs a loop."""
        looped = {family for family, _ in outer if family not in tiles}
        return [d.origin for d in call.attributes["sequence"] if d.origin not in looped]

    def carried(self, circle: Sequence[Node], dependences: Sequence[Dependence], ahead: Sequence[Dim]) -> Group:
        """The loop that a circle of nodes needs; if it has a host call, one over the dims ``ahead`` in any case."""
        members = set(circle)
        inside = [d for d in dependences if d.consumer in members and d.producer in members]
        shared = set.intersection(*({d.origin for d in node.domain} for node in circle))
        # A call is made for its whole batch.
        shared -= {d.origin for node in circle if node.op is HOST for d in node.attributes["batch"]}
        for family in sorted(shared, key=lambda d: d.number):
            distances = [d.distance(family) for d in inside]
            for backwards in (False, True):
                if all(allowed(x, backwards) for x in distances) and any(not stays(x, backwards) for x in distances):
                    return Group(family, backwards, list(circle))
        for family in sorted(shared, key=lambda d: d.number):
            for backwards in (False, True):
                shifts = delays(inside, family, backwards)
                if shifts is not None:
                    self.shifts.update({(node, family): shift for node, shift in shifts.items() if shift})
                    return Group(family, backwards, list(circle))
        if ahead and ahead[0] in shared and all(d.distance(ahead[0]) in (None, (0, 0)) for d in inside):
            return Group(ahead[0], False, list(circle))
        return Group(None, False, list(circle), tangled=True)

    def point_by_point(self, circle: Sequence[Node]) -> list[Tree]:
        """A circle that no dim carries, unrolled in the order in which its points need each other."""
        members = set(circle)
        names = ", ".join(n.label for n in circle if n.name) or circle[0].label
        failure = ScheduleError(
            f"Tempo found no order of steps for the definitions of {names}, although there must be one; "
            f"please report this program:\n\n{self.graph}"
        )
        try:
            most = {**self.numbers, **{bound: limit for bound, (_, limit) in self.limits.items()}}
            order = [(node, point) for node, point in walk(self.graph, most) if node in members]
        except CausalityError:
            raise failure from None
        # How many steps a dim makes may change the order.
        open_ended = any(asked_for(self.graph, node) & set(self.limits) for node in circle)
        if open_ended or len(order) > MOST_UNROLLED:
            raise failure
        trees: list[Tree] = []
        for node, point in _results_after_calls(order):
            tree: Tree = self.compute(node, {})
            place: Place = ()
            together = node.attributes["batch"] if node.op is HOST else ()
            steps = [(d, step) for d, step in zip(node.domain, point, strict=True) if d not in together]
            for d, step in reversed(steps):
                at = step + d.start.evaluate(self.numbers)
                tree = Loop(d.origin, at, at + 1, False, (tree,))
                self.loops += 1
                place = ((d.origin, self.loops), *place)
            self.places.setdefault(node, set()).add(place)
            trees.append(self._specialise(tree, {}))
        return trees

    def sink(self, units: Sequence[Group], dependences: Sequence[Dependence]) -> None:
        """Take nodes that need no loop into one that their operands or their readers are in, where keeping values
        for all of its steps would cost memory and gain nothing."""
        unit_of = {node: unit for unit in units for node in unit.nodes}
        reads: dict[Node, list[Dependence]] = {}
        readers: dict[Node, list[Dependence]] = {}
        for d in dependences:
            reads.setdefault(d.consumer, []).append(d)
            readers.setdefault(d.producer, []).append(d)

        def joins(node: Node, neighbours: Sequence[tuple[Node, Dependence]], exactly: bool = True) -> Group | None:
            """The loop in which all these neighbours are read, at the same step or at most at earlier ones."""
            loops = [unit_of[other] for other, _ in neighbours if unit_of[other].family is not None]
            if not loops:
                return None
            group = loops[0]
            inside = [d for other, d in neighbours if unit_of[other].family is not None]

            def near(distance: Distance) -> bool:
                return distance == (0, 0) if exactly else allowed(distance, group.backwards)

            fits = (
                all(same_kind(group, loop) for loop in loops)
                and any(d.origin is group.family for d in node.domain)
                and all(group.family is not None and near(d.distance(group.family)) for d in inside)
            )
            return group if fits else None

        for unit in units:
            (node, *others) = unit.nodes
            if unit.family is None and not others and not unit.tangled:
                operands = [(d.producer, d) for d in reads.get(node, ())]
                at_once = node in self.at_once or node.op is HOST_RESULT
                group = joins(node, operands, exactly=node not in self.handed)
                largest = max((self.bytes(p) for p, _ in operands), default=0)
                shrinks = node.op.name not in WORTH_HOISTING and largest > 2 * self.bytes(node)
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
        ranges = {**self.limits, **spans}
        sizes = (interval(as_expr(s).substitute(self.numbers), ranges)[1] for s in node.shape)
        return steps * math.prod(sizes) * node.dtype.itemsize

    def loop(self, group: Group, family: Dim, dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The loop of a group, cut where other nodes or cases become active."""
        rest = self.uncarried(group, family, dependences)
        self.loops += 1
        here = (*outer, (family, self.loops))
        pieces: list[Tree] = []
        segments = self.segments(group.nodes, family)
        buckets = [self.bucketed(segment, family) for segment in segments]
        # A store that a loop around this one carries has one shape for all of its iterations.
        grows = sum(map(len, buckets)) > len(segments) and not outer and not group.backwards
        for start, stop, active in itertools.chain(*buckets):
            body = self.sequence(active, rest, here)
            body = [self.specialise(tree, family, start, stop) for tree in body]
            until = None if group.backwards else next((node for node in active if node in self.stops), None)
            pieces.append(Loop(family, start, stop, group.backwards, tuple(body), until, grows=grows))
        return pieces[::-1] if group.backwards else pieces

    def bucketed(self, segment: tuple[int, int, list[Node]], family: Dim) -> list[tuple[int, int, list[Node]]]:
        """A range of a loop in pieces that differ in the sizes of what its nodes read."""
        start, stop, active = segment
        sizes = Sizes(self.numbers)
        for node in active:
            own = next(d for d in node.domain if d.origin is family)
            spans = self.spans[node]
            # All steps of dims without a loop at once, or again in every iteration of one around.
            times = math.prod(high - low + 1 for d, (low, high) in spans.items() if d is not own)
            known = {**self.limits, **spans}
            sizes.add(node, own, self.offset(node, own), self.graph.cases.get(node, ()), known, times)
        return [(low, high, active) for low, high in self.buckets.pieces(family, start, stop, sizes)]

    def uncarried(self, group: Group, family: Dim, dependences: Sequence[Dependence]) -> list[Dependence]:
        """The reads among the nodes of a loop that may stay within one iteration."""
        members = set(group.nodes)
        return [
            d
            for d in dependences
            if d.consumer in members and d.producer in members and stays(d.distance(family), group.backwards)
        ]

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
        pieces = merged(pieces)
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
            return Compute(node, fold=self.folds.get(node), within=ranges)
        known = {**self.limits, **self.spans[node]}
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
        return Compute(node, tuple(kept), within=ranges)

    def specialise(self, tree: Tree, family: Dim, start: int, stop: int) -> Tree:
        return self._specialise(tree, {family: (start, stop - 1)})

    def _specialise(self, tree: Tree, ranges: Mapping[Dim, tuple[int, int]]) -> Tree:
        if isinstance(tree, Compute):
            return self.compute(tree.node, ranges)
        inner = ranges if tree.inner else {**ranges, tree.dim: (tree.start, tree.stop - 1)}
        return replace(tree, body=tuple(self._specialise(t, inner) for t in tree.body))
