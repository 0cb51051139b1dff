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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tempo.analysis.coverage import needed_points
from tempo.analysis.relations import Points, Read, Relations
from tempo.analysis.stops import waits
from tempo.errors import ProgramError
from tempo.graph.node import Graph, Node
from tempo.graph.structural import RECURRENT
from tempo.schedule.buckets import Buckets
from tempo.schedule.dependences import Dependence, Shifts
from tempo.schedule.extents import Extents
from tempo.schedule.folds import Fold
from tempo.schedule.looptree import Loop, Tree, computes
from tempo.schedule.nesting import Nesting, Part, Place, TangledError
from tempo.schedule.results import handed_out
from tempo.symbolic import Bound, Dim, conjunction, equal
from tempo.symbolic.polyhedral import most_above, span, to_set


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
    beyond: Mapping[int, int]
    """By the number of a loop that ends where a dim has stopped, how many further steps of it are needed then."""
    results: Mapping[str, tuple[range, ...]]
    """Per output, the steps that are handed out, or may be."""
    blocks: Mapping[int, int]
    """The most steps that a loop computes at once, by the number of the loop, where it computes blocks."""
    parts: Mapping[int, Part]
    """Loops that are parts of another one, computed at once."""
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

    def is_inline(self, loop: Loop) -> bool:
        """Whether a loop is none: a single step, before which no dim can have stopped."""
        if len(loop.steps) != 1 or loop.until is None:
            return len(loop.steps) == 1
        fewest, _ = self.open[loop.dim.bound]
        return loop.start < fewest + self.beyond[loop.number]

    def is_needed_throughout(self, node: Node, within: Mapping[Dim, tuple[int, int]]) -> bool:
        """Whether a node is needed at all points at which it is computed, of some dims ``within`` the first and the
        last of some steps, if no dim stops early."""
        spans = {**self.spans[node], **within}
        inside = [part for d, (first, last) in spans.items() for part in (d >= first, d <= last)]
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
        self.spans = {n: {d: span(points, d) or (0, -1) for d in n.domain} for n, points in self.needed.items()}

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
            with contextlib.suppress(TangledError):
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
    extents = Extents(relations.numbers, limits, spans, shifts)
    builder = Nesting(graph, extents, sizes, unrolled, buckets)
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
    trees = list(_ending(trees, {dim: edge.node for dim, edge in graph.stops.items()}, builder.folds, {}))
    ends = {loop.number: loop for loop in _loops(trees) if loop.until is not None}
    beyond = {number: _beyond(builder, loop, needed) for number, loop in ends.items()}
    return Schedule(
        tuple(trees),
        places,
        dependences,
        extents.spans,
        needed,
        shifts,
        relations.numbers,
        limits,
        beyond,
        results,
        builder.blocks,
        builder.parts,
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


def _ending(
    trees: Iterable[Tree], stops: Mapping[Dim, Node], folds: Mapping[Node, Any], over: Mapping[Dim, Node]
) -> Iterator[Tree]:
    """The trees with loops over dims that have stopped before, those in ``over`` and others on the way, ending there,
    too. (Not those that put a sum together, which begins with their first step.)"""
    for tree in trees:
        inside = {c.node for c in computes((tree,))}
        if isinstance(tree, Loop) and over:
            tree = replace(tree, body=tuple(_ending(tree.body, {}, folds, over)))
            if tree.number and tree.until is None and not inside & folds.keys():
                tree = replace(tree, until=over.get(tree.dim))
        yield tree
        over = {**over, **{dim: node for dim, node in stops.items() if node in inside}}


def _loops(trees: Iterable[Tree]) -> Iterator[Loop]:
    for tree in trees:
        if isinstance(tree, Loop):
            yield tree
            yield from _loops(tree.body)


def _beyond(builder: Nesting, loop: Loop, needed: Mapping[Node, Points]) -> int:
    """How many steps after the last one of a stopped dim something is still computed in a loop over it: ``x[T]``, or
    what is computed later than its own step says."""
    dim = loop.dim
    assert isinstance(dim.bound, Bound)  # only dims that a user declared stop
    most = 0
    for node, places in builder.places.items():
        if any((dim, loop.number) in place for place in places):
            for d in (d for d in node.domain if d.origin is dim):
                above = most_above(needed[node], d, dim.bound)
                most = max(most, 0 if above is None else above + 1 + builder.extents.offset(node, d))
    return most
