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
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tempo.analysis.coverage import needed_points
from tempo.analysis.relations import Points, Read, Relation, Relations
from tempo.analysis.stops import asked_for, waits
from tempo.errors import ProgramError, TempoError
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import components, dependents, reachable
from tempo.schedule.buckets import Buckets, Sizes
from tempo.schedule.dependences import Dependence, Distance, Shifts, allowed, delays, stays
from tempo.schedule.folds import Fold
from tempo.schedule.groups import Group, join, merged, same_kind
from tempo.schedule.looptree import Compute, Loop, Tree, only
from tempo.schedule.points import point_order
from tempo.schedule.results import handed_out
from tempo.schedule.tiles import Tiling
from tempo.symbolic import Condition, Dim, as_expr, conjunction, equal
from tempo.symbolic import index as indices
from tempo.symbolic.condition import And, AtLeastZero, EqualsZero, Not, Or
from tempo.symbolic.intervals import decide, interval
from tempo.symbolic.polyhedral import most_above, span, to_set

# Values of all steps of a loop are kept up to this size so that others can be computed from them at once.
KEEP_BYTES = 256 * 2**20

# A part of a loop that needs none is computed at once if it has at least this many steps.
FEWEST_AT_ONCE = 4

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
    needed: Mapping[Node, Points]
    """Where each node is needed, as an isl set: it is computed at all points of a box around that."""
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
    part_of: Mapping[int, int]
    """Of loops that are parts of another one, computed at once, the number of that one."""
    tiles: frozenset[Dim]
    """Dims that count the tiles of ranges."""
    tiled: frozenset[int]
    """The numbers of the loops whose steps the plan has put into blocks, of several steps or of one."""
    folds: Mapping[Node, Mapping[Dim, Fold]]
    """Reductions that are put together block by block, of one dim or of several."""
    tangled: bool
    """Whether some nodes were computed point by point, because no dim has an order for them."""
    unrolled: frozenset[Dim]
    """Dims whose steps are computed each by code of its own."""
    backwards: frozenset[int]
    """The numbers of the loops that run backwards."""
    reasons: Mapping[tuple[Node, Dim], str]
    """Why the steps of a node's dim are not computed at once."""

    def own_step(self, node: Node, dim: Dim, step: Any) -> Any:
        """The step of a node's dim that is computed at a step of the loop over it."""
        offset = dim.start.evaluate(self.numbers) + self.shifts.get((node, dim.origin), 0)
        # A step may be traced, and subtracting nothing then takes a tenth of all tracing.
        return step - offset if offset else step

    def steps(self, node: Node, dim: Dim) -> tuple[int, int]:
        """The first step of a dim at which a node is needed, and the one after the last."""
        first, last = self.spans[node][dim]
        return first, last + 1

    def is_needed_throughout(self, node: Node) -> bool:
        """Whether a node is needed at all points at which it is computed, if no dim stops early."""
        inside = [part for d, (first, last) in self.spans[node].items() for part in (d >= first, d <= last)]
        most = [equal(bound, steps) for bound, (_, steps) in self.open.items()]
        box = to_set(conjunction([*inside, *most]), node.domain)
        return bool(box.is_subset(self.needed[node]))


class Scheduler:
    """What all schedules of a graph share: which points are needed, and who reads whom.

    ``numbers`` are those of its bounds: for dims that stop on data, the most steps they may make.
    """

    def __init__(self, graph: Graph, numbers: Mapping[Any, int]) -> None:
        self.graph = graph
        self.numbers = numbers
        self.relations = relations = Relations(graph, numbers)
        _check_starts(graph, relations.numbers)
        self.needed = {n: points for n, points in needed_points(relations)[0].items() if not points.is_empty()}
        reads = [r for node in graph.nodes if node in self.needed for r in relations.reads(node)]
        self.dependences = tuple(
            Dependence(
                Read(r.consumer, r.producer, r.relation.intersect_domain(self.needed[r.consumer]), r.index),
                relations.numbers,
                {},
            )
            for r in (*reads, *waits(relations))
            if r.consumer in self.needed and r.producer in self.needed
        )
        self.spans = {n: {d: span(points, d.name) or (0, -1) for d in n.domain} for n, points in self.needed.items()}

    def schedule(
        self,
        blocks: Mapping[Dim, int] = MappingProxyType({}),
        unrolled: frozenset[Dim] = frozenset(),
        buckets: Buckets | None = None,
        tiles: Iterable[Dim] = (),
    ) -> Schedule:
        """Loops. ``blocks`` says of some dims how many steps are computed at once where all of them could be;
        ``unrolled`` dims get a piece of code per step instead of a loop; ``buckets`` say where loops with ranges of
        varying size are cut; of the dims that count ``tiles`` one step is computed at a time, inside of blocks."""
        buckets = buckets or Buckets()
        sizes = {d: b for d, b in blocks.items() if b < d.bound.evaluate(self.numbers)}
        sizes |= dict.fromkeys(tiles, 1)
        if sizes:
            # What has no order of steps in blocks is computed without them.
            with contextlib.suppress(_TangledError):
                return _schedule(self, sizes, unrolled, buckets, frozenset(tiles))
        return _schedule(self, {}, unrolled, buckets)


def _schedule(
    scheduler: Scheduler,
    sizes: Mapping[Dim, int],
    unrolled: frozenset[Dim],
    buckets: Buckets,
    tiles: frozenset[Dim] = frozenset(),
) -> Schedule:
    graph, numbers, relations, needed = scheduler.graph, scheduler.numbers, scheduler.relations, scheduler.needed
    shifts: Shifts = {}
    # The steps that reads look back are the same in every schedule, the shifts are not.
    dependences = tuple(Dependence(d.read, d.numbers, shifts, d.distances) for d in scheduler.dependences)
    limits = {dim.bound: (1, numbers[dim.bound]) for dim in graph.stops}
    spans = {node: dict(own) for node, own in scheduler.spans.items()}
    builder = _Builder(graph, relations.numbers, limits, spans, shifts, sizes, unrolled, buckets)
    exact = scheduler.spans
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
        needed,
        shifts,
        relations.numbers,
        limits,
        beyond,
        results,
        builder.blocks,
        builder.part_of,
        tiles,
        frozenset(builder.tiled_loops),
        builder.folds,
        builder.tangled,
        unrolled,
        frozenset(builder.backwards),
        builder.reasons,
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


class _TangledError(Exception):
    """A circle inside a loop that no dim carries, or not in the same way in all pieces of the loop."""


class _Builder:
    def __init__(
        self,
        graph: Graph,
        numbers: Mapping[Any, int],
        limits: Mapping[Any, tuple[int, int]],
        spans: dict[Node, dict[Dim, tuple[int, int]]],
        shifts: Shifts,
        sizes: Mapping[Dim, int],
        unrolled: frozenset[Dim],
        buckets: Buckets,
    ) -> None:
        self.shifts = shifts
        self.sizes = sizes
        self.unrolled = unrolled
        self.buckets = buckets
        self.blocks: dict[int, int] = {}
        self.part_of: dict[int, int] = {}
        self.tiled_loops: set[int] = set()
        self.tangled = False
        self.folds: dict[Node, dict[Dim, Fold]] = {}
        self.delays: dict[tuple[Node, Dim], int] = {}
        self.reasons: dict[tuple[Node, Dim], str] = {}
        self.backwards: set[int] = set()
        self.graph = graph
        self.numbers = numbers
        self.limits = limits
        self.places: dict[Node, set[Place]] = {}
        self.loops = 0
        # What is handed out while the program runs, and all that it needs, is computed when its operands are: in the
        # loops over the dims that it is handed out along.
        self.stops = {edge.node for edge in graph.stops.values()}
        self.handed = {edge.node for edge in graph.emits.values()} | self.stops
        self.along: dict[Node, set[Dim]] = {}
        for handed in self.handed:
            for node in reachable([handed], {}):
                self.along.setdefault(node, set()).update(d.origin for d in handed.domain)
        self.spans = spans
        self.known_bytes: dict[Any, int] = {}

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
                self.explain(units[-1], dependences)
            else:
                units.append(Group(None, False, ordered))
        groups = self.tiled(units, dependences, outer)
        if groups is None:
            self.sink(units, dependences, outer)
            self.unroll(units, outer)
            groups = join(units, dependences)
        else:
            groups = [part for group in groups for part in self.unrolled_parts(group, dependences, outer)]
        trees: list[Tree] = []
        for group in groups:
            if group.tangled:
                if outer:
                    raise _TangledError
                trees.extend(self.point_by_point(group.nodes))
            elif group.family is None:
                for node in group.nodes:
                    self.places.setdefault(node, set()).add(outer)
                    trees.append(self.compute(node, {}, self.folds_in(node, outer)))
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
        # How many steps a dim makes that stops on data is not known when a block of them begins.
        wanted = [d for d in self.sizes if d in own and d not in looped and not d.bound.symbols() & set(self.limits)]
        if not wanted:
            return None
        # Where steps are made one after the other anyway, blocks of them cost least.
        carried = {unit.family for unit in units}
        family = next((d for d in wanted if d in carried), wanted[0])
        # Inside another loop, a block is all that is kept of a value.
        self.sink(units, dependences, outer, family)
        # What is delayed by half of all steps needs the stores of half of all steps.
        most = family.bound.evaluate(self.numbers) // 2
        # The parts of a loop around these blocks share what was found for the first of them.
        fixed = {node: late for (node, d), late in self.delays.items() if d is family}
        tiling = Tiling(units, dependences, family, self.sizes[family], most, self.numbers, fixed)
        if tiling.contradicts:
            raise _TangledError
        tiling.put_off(units, self.bytes, {edge.node for edge in self.graph.outputs.values()} | self.handed)
        for node, late in tiling.delays.items():
            if node not in tiling.folds and (node, family) not in self.delays:
                later = -late if tiling.groups[tiling.place[node]].backwards else late
                self.delays[node, family] = later
                self.shifts[node, family] = self.shifts.get((node, family), 0) + later
        for group in tiling.groups:
            for node in group.nodes if group.block else ():
                late = abs(self.delays.get((node, family), 0))
                delay = f", {late} steps late" if late else ""
                self.reasons.setdefault((node, family), f"blocks of {family.name}{delay}")
        for node, found in tiling.folds.items():
            steps = [
                (edge.node, start + self.offset(edge.node, next(d for d in edge.node.domain if d.origin is family)))
                for edge, start in zip(node.edges, found.starts, strict=True)
                if start is not None
            ]
            # What other loops have computed is there at any step.
            inside = [step for other, step in steps if tiling.place.get(other) == tiling.place[node]]
            last = min if found.backwards else max
            based = replace(found, base=last(inside or [step for _, step in steps]))
            if self.folds.setdefault(node, {}).setdefault(family, based) != based:
                raise _TangledError
        return tiling.groups

    def unroll(self, units: Sequence[Group], outer: Place) -> None:
        """Put what needs no loop into those over unrolled dims, which are none: its values are never in one array."""
        looped = {family for family, _ in outer}
        for unit in units:
            (node, *others) = unit.nodes
            if unit.family is None and not others and not unit.tangled and node.op is not INPUT:
                batch = node.attributes["batch"] if node.op is HOST else ()
                own = (d.origin for d in node.domain if d not in batch)
                unit.family = next((d for d in own if d in self.unrolled and d not in looped), None)

    def unrolled_parts(self, group: Group, dependences: Sequence[Dependence], outer: Place) -> list[Group]:
        """A group without a loop, as groups of which some have one over an unrolled dim."""
        if group.family is not None or group.tangled or not self.unrolled:
            return [group]
        units = [Group(None, False, [node]) for node in group.nodes]
        self.unroll(units, outer)
        inside = set(group.nodes)
        return join(units, [d for d in dependences if d.consumer in inside and d.producer in inside])

    def block_loop(self, group: Group, family: Dim, dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The loop of a group in blocks: as many whole ones as there are, and what is left."""
        self.loops += 1
        here = (*outer, (family, self.loops))
        self.tiled_loops.add(self.loops)
        if group.backwards:
            self.backwards.add(self.loops)
        pieces: list[Tree] = []
        if group.block == 1:  # an ordinary loop
            rest = self.uncarried(group, family, dependences)
            for start, stop, active in self.block_segments(group.nodes, family, 1):
                body = self.sequence(active, rest, here)
                body = [self.specialise(tree, family, start, stop) for tree in body]
                pieces.append(Loop(family, start, stop, group.backwards, tuple(body), tiled=True))
            return pieces[::-1] if group.backwards else pieces
        self.blocks[self.loops] = group.block
        for start, stop, active in self.block_segments(group.nodes, family, group.block):
            whole = start + (stop - start) // group.block * group.block
            for first, last, block in ((start, whole, group.block), (whole, stop, stop - whole)):
                if first < last:
                    body = self.sequence(active, dependences, here, {family: block})
                    body = [self.specialise(tree, family, first, last) for tree in body]
                    pieces.append(Loop(family, first, last, group.backwards, tuple(body), block=block, tiled=True))
        return pieces[::-1] if group.backwards else pieces

    def block_segments(self, nodes: Sequence[Node], family: Dim, block: int) -> list[tuple[int, int, list[Node]]]:
        """The ranges of a loop in blocks over which the same nodes are active.

        Most nodes may be computed for a few steps more than they are needed: whole blocks of all are better than a cut.
        """
        spans = {}
        stops: dict[int, list[int]] = {}
        for node in nodes:
            if fold := self.folds.get(node, {}).get(family):
                spans[node] = (fold.base, fold.base + fold.count)
            else:
                own = next(d for d in node.domain if d.origin is family)
                low, high = self.spans[node][own]
                offset = self.offset(node, own)
                spans[node] = (low + offset, high + 1 + offset)
                stops.setdefault(self.shifts.get((node, family), 0), []).append(high + 1 + offset)
        first = min(low for low, _ in spans.values())
        for node, (low, high) in spans.items():
            if node.op is not HOST and family not in self.folds.get(node, {}):
                near = max(stop for stop in stops[self.shifts.get((node, family), 0)] if stop < high + block)
                spans[node] = (first + (low - first) // block * block, near)
        cuts = sorted({step for ends in spans.values() for step in ends})
        pieces = []
        for start, stop in itertools.pairwise(cuts):
            active = [n for n, (low, high) in spans.items() if low <= start and stop <= high]
            if active:
                pieces.append((start, stop, active))
                for node in active:
                    if family not in self.folds.get(node, {}):
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
        # Without a loop nothing is late.
        self.shifts.update({key: shift for key, shift in shifts.items() if key[0] not in group.nodes})
        for node in group.nodes:
            self.places.pop(node, None)
        return self.point_by_point(group.nodes)

    def explain(self, circle: Group, dependences: Sequence[Dependence]) -> None:
        """Note why a circle needs its loop: one of the reads that the loop carries."""
        family = circle.family
        if family is None:
            return
        inside = [d for d in dependences if d.consumer in circle.nodes and d.producer in circle.nodes]
        carried = [d for d in inside if not stays(d.distance(family), circle.backwards)]
        # Users know the names that they gave.
        carried.sort(key=lambda d: (not d.producer.name, not d.consumer.name))
        reads = (
            f"{carried[0].consumer.label} needs {carried[0].producer.label} of another {family.name}" if carried else ""
        )
        for node in circle.nodes:
            self.reasons.setdefault((node, family), reads or f"calls are made one {family.name} after the other")

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
                    for node, shift in shifts.items():
                        self.delay(node, family, shift)
                    return Group(family, backwards, list(circle))
        if ahead and ahead[0] in shared and all(d.distance(ahead[0]) in (None, (0, 0)) for d in inside):
            return Group(ahead[0], False, list(circle))
        return Group(None, False, list(circle), tangled=True)

    def delay(self, node: Node, family: Dim, shift: int) -> None:
        """Compute a node later than its own steps say, in every piece of the loops around it alike."""
        if shift == self.shifts.get((node, family), 0):
            return
        if any(family in (f for f, _ in place) for place in self.places.get(node, ())):
            raise _TangledError
        self.shifts[node, family] = shift

    def point_by_point(self, circle: Sequence[Node]) -> list[Tree]:
        """A circle that no dim carries, unrolled in the order in which its points need each other."""
        members = set(circle)
        names = ", ".join(n.label for n in circle if n.name) or circle[0].label
        # How many steps a dim makes may change what a point needs, and at which points the circle is needed.
        asking = dependents(circle, self.graph)
        results = (edge for edge in self.graph.outputs.values() if edge.node in asking)
        asked = frozenset().union(
            *(asked_for(self.graph, node) for node in asking), *(indices.symbols(edge.index) for edge in results)
        )
        limits = {bound: (first if bound in asked else last, last) for bound, (first, last) in self.limits.items()}
        order = point_order(self.graph, self.numbers, limits, members, MOST_UNROLLED)
        # What happens only at steps that are made cannot come before it is known whether they are.
        waiting = bool(self.limits) and any(node.op is HOST or node in self.handed - self.stops for node in circle)
        if order is None or (waiting and members & self.stops):
            raise ScheduleError(
                f"Tempo found no order of steps for the definitions of {names}, although there must be one; "
                f"please report this program:\n\n{self.graph}"
            )
        self.tangled = True
        trees: list[Tree] = []
        for node, point in order:
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

    def sink(
        self, units: Sequence[Group], dependences: Sequence[Dependence], outer: Place, tiled: Dim | None = None
    ) -> None:
        """Take nodes that need no loop into one that their operands or their readers are in, where keeping values
        for all of its steps would cost memory and gain nothing; but not into one over a dim that is ``tiled``."""
        around = {family for family, _ in outer}
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
            if group.family is tiled:
                return None
            inside = [d for other, d in neighbours if unit_of[other].family is not None]

            def near(distance: Distance) -> bool:
                return distance == (0, 0) if exactly else allowed(distance, group.backwards)

            fits = (
                all(same_kind(group, loop) for loop in loops)
                and any(d.origin is group.family for d in node.domain)
                and all(group.family is not None and near(d.distance(group.family)) for d in inside)
            )
            return group if fits else None

        def smaller(node: Node, operand: Node) -> bool:
            return 2 * self.bytes(node, around) < self.bytes(operand, around)

        def spared(operand: Node, node: Node) -> bool:
            """Whether a node is so much smaller than an operand that it is kept in its place: not where others, which
            stay outside of the loop, have the operand kept for all steps anyway."""
            after = [d.consumer for d in readers[operand] if unit_of[d.consumer].family is None]
            return smaller(node, operand) and all(
                smaller(other, operand) and other.op.name not in WORTH_HOISTING for other in after
            )

        for unit in units:
            (node, *others) = unit.nodes
            # A call that needs no loop is made once, for its whole batch.
            if unit.family is None and not others and not unit.tangled and node.op is not HOST:
                operands = [(d.producer, d) for d in reads.get(node, ())]
                group = joins(node, operands, exactly=node not in self.handed)
                if group is None:
                    continue
                soon = group.family in self.along.get(node, ()) or node.op is HOST_RESULT
                largest = max((self.bytes(p, around) for p, _ in operands), default=0)
                shrinks = node.op.name not in WORTH_HOISTING and any(spared(p, node) for p, _ in operands)
                if soon or shrinks or largest > KEEP_BYTES:
                    unit.family, unit.backwards = group.family, group.backwards
                    self.note(node, group, "with what it reads")

        def may_move(unit: Group) -> bool:
            (node, *others) = unit.nodes
            large = self.bytes(node, around) > KEEP_BYTES
            hoist = node.op in (INPUT, HOST) or (node.op.name in WORTH_HOISTING and not large)
            return unit.family is None and not others and not hoist and not unit.tangled

        def kept_instead(node: Node, family: Dim, found: set[Node]) -> None:
            """Find what else is kept for all steps of a loop if a node is computed in it."""
            for p in {d.producer for d in reads.get(node, ())}:
                unit = unit_of[p]
                mine = all(d.consumer is node for d in readers[p]) and p.op is not INPUT
                if mine and unit.family is None and any(d.origin is family for d in p.domain):
                    if may_move(unit):
                        kept_instead(p, family, found)
                    else:
                        found.add(p)

        for unit in reversed(units):
            if not may_move(unit):
                continue
            (node,) = unit.nodes
            consumers = [(d.consumer, d) for d in readers.get(node, ())]
            group = joins(node, consumers)
            if group is None or group.family is None or any(unit_of[c].family is None for c, _ in consumers):
                continue
            own, instead = self.bytes(node, around), set[Node]()
            if own <= KEEP_BYTES:
                kept_instead(node, group.family, instead)
            if sum(self.bytes(p, around) for p in instead) <= own:
                unit.family, unit.backwards, unit.sunk = group.family, group.backwards, True
                self.note(node, group, "with what reads it")

    def note(self, node: Node, group: Group, reason: str) -> None:
        if group.family is not None:
            self.reasons.setdefault((node, group.family), reason)

    def bytes(self, node: Node, around: Set[Dim] = frozenset()) -> int:
        """What all values of a node take: at one step of the loops ``around``."""
        spans = self.spans[node]
        key = node, frozenset(around), tuple(spans.values())
        if key not in self.known_bytes:
            steps = math.prod(max(last - first + 1, 0) for d, (first, last) in spans.items() if d.origin not in around)
            ranges = {**self.limits, **spans}
            sizes = (interval(as_expr(s).substitute(self.numbers), ranges)[1] for s in node.shape)
            self.known_bytes[key] = steps * math.prod(sizes) * node.dtype.itemsize
        return self.known_bytes[key]

    def loop(self, group: Group, family: Dim, dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The loop of a group, cut where other nodes or cases become active."""
        rest = self.uncarried(group, family, dependences)
        self.loops += 1
        here = (*outer, (family, self.loops))
        if group.backwards:
            self.backwards.add(self.loops)
        if family in self.unrolled:
            return self.step_by_step(group, family, self.sequence(group.nodes, rest, here))
        pieces: list[Tree] = []
        segments = self.segments(group, family, dependences)
        buckets = [self.bucketed(segment, family) for segment in segments]
        # A store that a loop around this one carries has one shape for all of its iterations.
        grows = sum(map(len, buckets)) > len(segments) and not outer and not group.backwards
        for segment, ranges in zip(segments, buckets, strict=True):
            start, stop, active = segment
            within = self.independent(start, stop, active, family, dependences)
            if within is not None and (block := self.fitting(active, family, start, stop, group.backwards)):
                pieces += self.at_once_piece(start, stop, active, family, within, here, block, grows)
                continue
            pieces += [self.piece(group, family, rest, here, piece, grows) for piece in ranges]
        return pieces[::-1] if group.backwards else pieces

    def piece(
        self,
        group: Group,
        family: Dim,
        rest: Sequence[Dependence],
        here: Place,
        piece: tuple[int, int, list[Node]],
        grows: bool,
    ) -> Tree:
        """A range of a loop's steps."""
        start, stop, active = piece
        body = self.sequence(active, rest, here)
        body = [self.specialise(tree, family, start, stop) for tree in body]
        until = None if group.backwards else next((node for node in active if node in self.stops), None)
        return Loop(family, start, stop, group.backwards, tuple(body), until, grows=grows)

    def at_once_piece(
        self,
        start: int,
        stop: int,
        active: Sequence[Node],
        family: Dim,
        dependences: Sequence[Dependence],
        loop: Place,
        block: int,
        grows: bool,
    ) -> list[Tree]:
        """A part of a loop that needs none, in as few blocks as fit."""
        for node in active:
            self.reasons[node, family] = f"{start} .. {stop - 1} need no loop; {self.reasons.get((node, family), '')}"
        *outer, (_, whole_loop) = loop
        self.loops += 1
        self.part_of[self.loops] = whole_loop
        self.blocks[self.loops] = block
        here = (*outer, (family, self.loops))
        whole = start + (stop - start) // block * block
        pieces: list[Tree] = []
        for first, last, size in ((start, whole, block), (whole, stop, stop - whole)):
            if first < last:
                body = self.sequence(active, dependences, here, {family: size})
                body = [self.specialise(tree, family, first, last) for tree in body]
                pieces.append(Loop(family, first, last, False, tuple(body), block=size, grows=grows))
        return pieces

    def fitting(self, active: Sequence[Node], family: Dim, start: int, stop: int, backwards: bool) -> int:
        """How many steps of a part of a loop can be computed at once; 0 if too few."""
        largest = 1
        for node in active:
            low, high = self.spans[node][next(d for d in node.domain if d.origin is family)]
            largest = max(largest, self.bytes(node) // max(high - low + 1, 1))
        block = min(KEEP_BYTES // largest, stop - start, self.sizes.get(family, stop))
        return 0 if block < FEWEST_AT_ONCE or (backwards and block < stop - start) else block

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
            own = next(d for d in node.domain if d.origin is family)
            offset = self.offset(node, own)
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
                    within.append(Dependence(read, self.numbers, self.shifts))
        return within if self.needs_no_loop(active, within, family) else None

    def needs_no_loop(self, nodes: Sequence[Node], dependences: Sequence[Dependence], family: Dim) -> bool:
        """Whether all circles are carried by other dims."""
        following: dict[Node, list[Node]] = {node: [] for node in nodes}
        for d in dependences:
            following[d.consumer].append(d.producer)
        return all(
            self.carried_without(component, dependences, family)
            for component in components(following)
            if len(component) > 1 or any(n in following[n] for n in component)
        )

    def carried_without(self, circle: set[Node], dependences: Sequence[Dependence], family: Dim) -> bool:
        inside = [d for d in dependences if d.consumer in circle and d.producer in circle]
        shared = set.intersection(*({d.origin for d in node.domain} for node in circle)) - {family}
        for other in sorted(shared, key=lambda d: d.number):
            distances = [d.distance(other) for d in inside]
            for backwards in (False, True):
                if all(allowed(x, backwards) for x in distances):
                    rest = [d for d, x in zip(inside, distances, strict=True) if stays(x, backwards)]
                    if len(rest) < len(inside):
                        return self.needs_no_loop(list(circle), rest, family)
        return False

    def step_by_step(self, group: Group, family: Dim, body: Sequence[Tree]) -> list[Tree]:
        """A piece per step of an unrolled dim, with what is needed of a body at that step."""
        spans = {}
        for node in group.nodes:
            own = next(d for d in node.domain if d.origin is family)
            low, high = self.spans[node][own]
            offset = self.offset(node, own)
            spans[node] = range(low + offset, high + 1 + offset)
        pieces: list[Tree] = []
        for step in sorted(set().union(*spans.values()), reverse=group.backwards):
            needed = only({node for node, steps in spans.items() if step in steps}, body)
            trees = [self.specialise(tree, family, step, step + 1) for tree in needed]
            pieces.append(Loop(family, step, step + 1, False, tuple(trees)))
        return pieces

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
            if d.consumer in members
            and d.producer in members
            and (family in self.folds.get(d.consumer, {}) or stays(d.distance(family), group.backwards))
        ]

    def segments(
        self, group: Group, family: Dim, dependences: Sequence[Dependence]
    ) -> list[tuple[int, int, list[Node]]]:
        """The ranges of a loop over which the same nodes are active, or which need no loop."""
        spans = {}
        cuts: set[int] = set()
        for node in group.nodes:
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
        # Neighbours that need no loop together are one piece.
        apart: list[tuple[int, int, list[Node]]] = []
        result: list[tuple[int, int, list[Node]]] = []
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
                self.widen(node, family, start, stop)
        return result

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

    def folds_in(self, node: Node, outer: Place) -> tuple[Fold, ...]:
        """How a node inside some loops is put together from their blocks, if it is: it may be in one piece of a loop,
        and not in another, in which what it reduces is not computed."""
        around = {family for family, _ in outer}
        return tuple(fold for family, fold in self.folds.get(node, {}).items() if family in around)

    def compute(self, node: Node, ranges: Mapping[Dim, tuple[int, int]], folds: tuple[Fold, ...] = ()) -> Compute:
        """A node, with the cases that may apply when the loops are within some ranges."""
        if node.op is not RECURRENT:
            return Compute(node, folds=folds, within=ranges)
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
            return self.compute(tree.node, ranges, tree.folds)
        inner = ranges if tree.inner else {**ranges, tree.dim: (tree.start, tree.stop - 1)}
        return replace(tree, body=tuple(self._specialise(t, inner) for t in tree.body))
