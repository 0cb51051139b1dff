"""Loops around loops: what must be computed step by step, in which order, and what can be computed at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tempo.analysis.stops import asked_for
from tempo.errors import TempoError
from tempo.graph.node import Graph, Node, dim_of
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import components, dependents, reachable
from tempo.schedule.buckets import Buckets
from tempo.schedule.dependences import Among, Dependence, allowed, delays, stays
from tempo.schedule.extents import Extents
from tempo.schedule.folds import Fold
from tempo.schedule.groups import Group, join
from tempo.schedule.looptree import Compute, Loop, Tree, only
from tempo.schedule.points import point_order
from tempo.schedule.segments import Segment, Segments
from tempo.schedule.sinking import Sinking
from tempo.schedule.tiles import Tiling
from tempo.symbolic import Dim
from tempo.symbolic import index as indices
from tempo.symbolic.intervals import decide

# A circle that no dim carries is unrolled up to this many values.
MOST_UNROLLED = 5000

Place = tuple[tuple[Dim, int], ...]
"""Where a node is computed: the dims of the loops around it, each with a number that tells loops apart. Pieces of
one loop that was cut have one number."""


@dataclass(frozen=True)
class Part:
    """A part of the loop with the number ``of``, before the step ``stop``, that has a number of its own."""

    of: int
    stop: int


class ScheduleError(TempoError):
    """No loops were found for a program that passed all checks: a bug in Tempo."""


class TangledError(Exception):
    """A circle inside a loop that no dim carries, or not in the same way in all pieces of the loop."""


class Nesting:
    """Finds loops for nodes, and notes where it puts them."""

    def __init__(
        self,
        graph: Graph,
        extents: Extents,
        sizes: Mapping[Dim, int],
        unrolled: frozenset[Dim],
        buckets: Buckets,
    ) -> None:
        self.graph = graph
        self.extents = extents
        self.sizes = sizes
        self.unrolled = unrolled
        self.blocks: dict[int, int] = {}
        self.parts: dict[int, Part] = {}
        self.tiled_loops: set[int] = set()
        self.tangled = False
        self.folds: dict[Node, dict[Dim, Fold]] = {}
        self.delays: dict[tuple[Node, Dim], int] = {}
        self.reasons: dict[tuple[Node, Dim], str] = {}
        self.backwards: set[int] = set()
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
        self.segments = Segments(graph, extents, sizes, buckets, self.folds)

    def sequence(
        self,
        nodes: Sequence[Node],
        dependences: Sequence[Dependence],
        outer: Place,
        tiles: Mapping[Dim, int] = MappingProxyType({}),
    ) -> list[Tree]:
        """The trees that compute some nodes, inside the loops ``outer``, for blocks of the dims in ``tiles``."""
        members = set(nodes)
        dependences = [d for d in dependences if d.consumer in members and d.producer in members]
        among = Among(dependences)
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
                inside = among(ordered)
                units.append(self.carried(ordered, inside, ahead))
                self.explain(units[-1], inside)
            else:
                units.append(Group(None, False, ordered))
        groups = self.tiled(units, dependences, outer)
        if groups is None:
            self.sink(units, dependences, outer)
            self.unroll(units, outer)
            groups = join(units, dependences)
        else:
            groups = [part for group in groups for part in self.unrolled_parts(group, among(group.nodes), outer)]
        trees: list[Tree] = []
        for group in groups:
            if group.tangled:
                if outer:
                    raise TangledError
                trees.extend(self.point_by_point(group.nodes))
            elif group.family is None:
                for node in group.nodes:
                    self.places.setdefault(node, set()).add(outer)
                    trees.append(self.compute(node, {}, self.folds_in(node, outer)))
            elif group.block:
                trees.extend(self.block_loop(group, group.family, among(group.nodes), outer))
            elif group.family in tiles:
                trees.append(self.inner_loop(group, group.family, among(group.nodes), outer, tiles))
            else:
                trees.extend(self.loop_or_points(group, group.family, among(group.nodes), outer))
        return trees

    def sink(
        self, units: Sequence[Group], dependences: Sequence[Dependence], outer: Place, tiled: Dim | None = None
    ) -> None:
        """Take units without a loop into one, but not into one over a dim that is ``tiled``."""
        around = {family for family, _ in outer}

        def bytes_of(node: Node) -> int:
            return self.extents.bytes(node, around)

        sinking = Sinking(units, dependences, bytes_of, self.along, tiled)
        for node, family, reason in sinking.into_loops():
            self.reasons.setdefault((node, family), reason)

    def tiled(self, units: Sequence[Group], dependences: Sequence[Dependence], outer: Place) -> Sequence[Group] | None:
        """Units in groups, some of which share blocks of a dim, if blocks are wanted of any that has no loop here."""
        looped = {family for family, _ in outer}
        own = {d.origin for unit in units if unit.family is None for node in unit.nodes for d in node.domain}
        # How many steps a dim makes that stops on data is not known when a block of them begins.
        stopping = self.extents.limits.keys()
        wanted = [d for d in self.sizes if d in own and d not in looped and not d.bound.symbols() & stopping]
        if not wanted:
            return None
        # Where steps are made one after the other anyway, blocks of them cost least.
        carried = {unit.family for unit in units}
        family = next((d for d in wanted if d in carried), wanted[0])
        # Inside another loop, a block is all that is kept of a value.
        self.sink(units, dependences, outer, family)
        # What is delayed by half of all steps needs the stores of half of all steps.
        most = family.bound.evaluate(self.extents.numbers) // 2
        # The parts of a loop around these blocks share what was found for the first of them.
        fixed = {node: late for (node, d), late in self.delays.items() if d is family}
        tiling = Tiling(units, dependences, family, self.sizes[family], most, self.extents.numbers, fixed)
        if tiling.contradicts:
            raise TangledError
        tiling.put_off(units, self.extents.bytes, {edge.node for edge in self.graph.outputs.values()} | self.handed)
        for node, late in tiling.delays.items():
            if node not in tiling.folds and (node, family) not in self.delays:
                later = -late if tiling.groups[tiling.place[node]].backwards else late
                self.delays[node, family] = later
                self.extents.shifts[node, family] = self.extents.shifts.get((node, family), 0) + later
        for group in tiling.groups:
            for node in group.nodes if group.block else ():
                late = abs(self.delays.get((node, family), 0))
                delay = f", {late} steps late" if late else ""
                self.reasons.setdefault((node, family), f"blocks of {family.name}{delay}")
        for node, found in tiling.folds.items():
            steps = [
                (edge.node, start + self.extents.offset(edge.node, dim_of(edge.node, family)))
                for edge, start in zip(node.edges, found.starts, strict=True)
                if start is not None
            ]
            # What other loops have computed is there at any step.
            inside = [step for other, step in steps if tiling.place.get(other) == tiling.place[node]]
            last = min if found.backwards else max
            based = replace(found, base=last(inside or [step for _, step in steps]))
            if self.folds.setdefault(node, {}).setdefault(family, based) != based:
                raise TangledError
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
        return join(units, dependences)

    def explain(self, circle: Group, dependences: Sequence[Dependence]) -> None:
        """Note why a circle needs its loop: one of the reads within it that the loop carries."""
        family = circle.family
        if family is None:
            return
        carried = [d for d in dependences if not stays(d.distance(family))]
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

    def carried(self, circle: Sequence[Node], inside: Sequence[Dependence], ahead: Sequence[Dim]) -> Group:
        """The loop that a circle of nodes needs because of the reads within it; if it has a host call, one over the
        dims ``ahead`` in any case."""
        shared = set.intersection(*({d.origin for d in node.domain} for node in circle))
        # A call is made for its whole batch.
        shared -= {d.origin for node in circle if node.op is HOST for d in node.attributes["batch"]}
        for family in sorted(shared, key=lambda d: d.number):
            distances = [d.distance(family) for d in inside]
            for backwards in (False, True):
                if all(allowed(x, backwards) for x in distances) and any(not stays(x) for x in distances):
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
        if shift == self.extents.shifts.get((node, family), 0):
            return
        if any(family in (f for f, _ in place) for place in self.places.get(node, ())):
            raise TangledError
        self.extents.shifts[node, family] = shift

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
        stopping = self.extents.limits
        limits = {bound: (first if bound in asked else last, last) for bound, (first, last) in stopping.items()}
        order = point_order(self.graph, self.extents.numbers, limits, members, MOST_UNROLLED)
        # What happens only at steps that are made cannot come before it is known whether they are.
        waiting = bool(stopping) and any(node.op is HOST or node in self.handed - self.stops for node in circle)
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
                at = step + d.start.evaluate(self.extents.numbers)
                tree = Loop(d.origin, at, at + 1, False, (tree,))
                self.loops += 1
                place = ((d.origin, self.loops), *place)
            self.places.setdefault(node, set()).add(place)
            trees.append(self._specialise(tree, {}))
        return trees

    def loop_or_points(self, group: Group, family: Dim, dependences: Sequence[Dependence], outer: Place) -> list[Tree]:
        """The loop of a group; if no order of steps is found for what is inside it, all its points without loops."""
        if outer:
            return self.loop(group, family, dependences, outer)
        spans = {node: dict(self.extents.spans[node]) for node in group.nodes}
        with contextlib.suppress(TangledError):
            return self.loop(group, family, dependences, outer)
        self.extents.spans.update(spans)
        for key in [key for key in self.extents.shifts if key[0] in spans]:
            del self.extents.shifts[key]  # without a loop nothing is late
        for node in group.nodes:
            self.places.pop(node, None)
        return self.point_by_point(group.nodes)

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
        segments = self.segments.of_loop(group, family, dependences)
        buckets = [self.segments.bucketed(segment, family) for segment in segments]
        # A store that a loop around this one carries has one shape for all of its iterations.
        grows = sum(map(len, buckets)) > len(segments) and not outer and not group.backwards
        for segment, ranges in zip(segments, buckets, strict=True):
            start, stop, active = segment
            within = self.segments.independent(start, stop, active, family, dependences)
            if within is not None and (block := self.segments.fitting(active, family, start, stop, group.backwards)):
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
        piece: Segment,
        grows: bool,
    ) -> Tree:
        """A range of a loop's steps."""
        start, stop, active = piece
        body = self.sequence(active, rest, here)
        body = [self.specialise(tree, family, start, stop) for tree in body]
        until = None if group.backwards else next((node for node in active if node in self.stops), None)
        return Loop(family, start, stop, group.backwards, tuple(body), until, grows=grows, number=here[-1][1])

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
        self.parts[self.loops] = Part(whole_loop, stop)
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

    def step_by_step(self, group: Group, family: Dim, body: Sequence[Tree]) -> list[Tree]:
        """A piece per step of an unrolled dim, with what is needed of a body at that step."""
        spans = {node: self.extents.in_loop(node, family) for node in group.nodes}
        pieces: list[Tree] = []
        for step in sorted(set().union(*spans.values()), reverse=group.backwards):
            needed = only({node for node, steps in spans.items() if step in steps}, body)
            trees = [self.specialise(tree, family, step, step + 1) for tree in needed]
            pieces.append(Loop(family, step, step + 1, False, tuple(trees)))
        return pieces

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
            for start, stop, active in self.segments.of_blocks(group.nodes, family, 1):
                body = self.sequence(active, rest, here)
                body = [self.specialise(tree, family, start, stop) for tree in body]
                pieces.append(Loop(family, start, stop, group.backwards, tuple(body), tiled=True))
            return pieces[::-1] if group.backwards else pieces
        self.blocks[self.loops] = group.block
        for start, stop, active in self.segments.of_blocks(group.nodes, family, group.block):
            whole = start + (stop - start) // group.block * group.block
            for first, last, block in ((start, whole, group.block), (whole, stop, stop - whole)):
                if first < last:
                    body = self.sequence(active, dependences, here, {family: block})
                    body = [self.specialise(tree, family, first, last) for tree in body]
                    pieces.append(Loop(family, first, last, group.backwards, tuple(body), block=block, tiled=True))
        return pieces[::-1] if group.backwards else pieces

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

    def uncarried(self, group: Group, family: Dim, dependences: Sequence[Dependence]) -> list[Dependence]:
        """The reads among the nodes of a loop that may stay within one iteration."""
        return [d for d in dependences if family in self.folds.get(d.consumer, {}) or stays(d.distance(family))]

    def folds_in(self, node: Node, outer: Place) -> tuple[Fold, ...]:
        """How a node inside some loops is put together from their blocks, if it is: it may be in one piece of a loop,
        and not in another, in which what it reduces is not computed."""
        around = {family for family, _ in outer}
        return tuple(fold for family, fold in self.folds.get(node, {}).items() if family in around)

    def compute(self, node: Node, ranges: Mapping[Dim, tuple[int, int]], folds: tuple[Fold, ...] = ()) -> Compute:
        """A node, with the cases that may apply when the loops are within some ranges."""
        if node.op is not RECURRENT:
            return Compute(node, folds=folds, within=ranges)
        known = {**self.extents.limits, **self.extents.spans[node]}
        for d in node.domain:
            if d.origin in ranges:
                start = self.extents.offset(node, d)
                known[d] = (ranges[d.origin][0] - start, ranges[d.origin][1] - start)
        kept = []
        for n, case in enumerate(self.graph.cases[node]):
            truth = decide(case.region, known, self.extents.numbers)
            # A case that reads what nobody needs does not apply anywhere, even if that is hard to see.
            if truth is not False and case.value.node in self.extents.spans:
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
