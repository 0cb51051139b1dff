"""Where values live, and for how long.

A node has one store, with an axis per dim of its domain in front of its value: all steps of the dim, the last few of
them in a circle, or none where a step's value is only used within the same iteration of the loop that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from tempo.analysis.causality import Distance
from tempo.graph.node import Edge, Graph, Node, dim_of
from tempo.graph.structural import HOST, INPUT
from tempo.schedule.dependences import Dependence, by_producer
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Loop
from tempo.schedule.nesting import Place
from tempo.schedule.peak import Habits, Lifetimes
from tempo.symbolic import Dim, Expr, Slice
from tempo.symbolic.intervals import extent


@dataclass(frozen=True)
class Steps:
    """The steps ``start .. start + size - 1`` of a dim, all kept. (The start of a slice that a device has of a store in
    host memory is traced.)"""

    start: Any
    size: int

    def slot(self, step: int) -> int:
        slot: int = step - self.start
        return slot

    def __str__(self) -> str:
        return f"{self.size} steps"


@dataclass(frozen=True)
class Window:
    """The last ``size`` steps of a loop, kept in a circle, of which the last ``final`` are read after the loop."""

    size: int
    final: int = 0
    short: bool = False
    """Whether a block of steps that is computed at once is not read out of the circle, which has no room for it."""

    def slot(self, step: int) -> int:
        return step % self.size

    def __str__(self) -> str:
        return f"window of {self.size}"


@dataclass(frozen=True)
class Latest:
    """Only the value of the present iteration."""

    def __str__(self) -> str:
        return "one value"


@dataclass(frozen=True)
class Present:
    """Only the values of the present block of a loop, which has at most ``size`` steps."""

    size: int

    def slot(self, step: int) -> int:
        return step % self.size

    def __str__(self) -> str:
        return f"block of {self.size}"


@dataclass(frozen=True)
class Apart:
    """The steps ``start .. start + size - 1`` of a dim, all kept, each in an array of its own."""

    start: int
    size: int

    def slot(self, step: int) -> int:
        return step - self.start

    def __str__(self) -> str:
        return f"{self.size} steps apart"


Keeping = Steps | Window | Latest | Present | Apart


def is_short(kept: Keeping) -> TypeGuard[Window]:
    """Whether blocks are read beside it."""
    return isinstance(kept, Window) and kept.short


@dataclass(frozen=True)
class Store:
    """The layout of a node's values."""

    node: Node
    dims: Mapping[Dim, Keeping]
    value: tuple[int, ...]
    host: str = ""
    """What plans call it, if it is in host memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        axes = (k.size for k in self.dims.values() if not isinstance(k, Latest))
        return (*axes, *self.value)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.node.dtype.itemsize

    def room(self, loops: Sequence[Loop], schedule: Schedule) -> tuple[int, ...]:
        """The shape inside of some loops that compute the node: with no more steps than there are at the end of one
        that lets it grow. (Steps that are apart have arrays of their own, which do not.)"""
        is_apart = any(isinstance(kept, Apart) for kept in self.dims.values())
        ends = {} if is_apart else {loop.dim: loop.stop - 1 for loop in loops if loop.grows}
        steps = []
        for d, kept in self.dims.items():
            if isinstance(kept, Steps) and d.origin in ends:
                last = schedule.own_step(self.node, d, ends[d.origin])
                steps.append(min(max(last + 1 - kept.start, 1), kept.size))
            elif not isinstance(kept, Latest):
                steps.append(kept.size)
        return (*steps, *self.value)

    def beside(self, around: Mapping[Dim, int]) -> int:
        """The bytes of what is read beside a short circle, in loops that compute so many steps of dims at once."""
        short = [(kept.size, around.get(d.origin, 1)) for d, kept in self.dims.items() if is_short(kept)]
        return sum(self.bytes // size * (size - 1 + block) for size, block in short if block > 1)

    def outlives(self, family: Dim) -> bool:
        """Whether values are kept beyond an iteration of the loop over a dim."""
        return any(d.origin is family and not isinstance(kept, Latest | Present) for d, kept in self.dims.items())

    def __str__(self) -> str:
        kept = ", ".join(f"{d.name}: {k}" for d, k in self.dims.items())
        where = f", on the host{'' if self.host == self.node.label else f' as {self.host}'}" if self.host else ""
        array = f"{self.node.dtype.name}{list(self.shape)}"
        return f"{self.node.label}: {array}, {self.bytes:,} bytes ({kept or 'no dims'}){where}"


@dataclass(frozen=True)
class Storage:
    """The stores of a program, and the most bytes that it takes on the device at the same time."""

    stores: Mapping[Node, Store]
    peak: int = 0
    library: int = 0
    """How much of the peak is for the device's library of matrix products, which XLA may not use."""
    local: Mapping[Node, Store] = field(default_factory=dict)
    """What the device has of stores in host memory while the loops that write them run."""
    homes: Mapping[Node, tuple[Dim, int]] = field(default_factory=dict)
    """These loops, as in the places of a schedule."""
    lifetimes: Lifetimes | None = field(default=None, repr=False)
    """From which the peak was found."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """The bytes of those outputs that the device has."""

    @property
    def on_device(self) -> dict[Node, Store]:
        """What the device has of the stores."""
        found = {node: self.local.get(node, store) for node, store in self.stores.items()}
        return {node: store for node, store in found.items() if node in self.local or not store.host}

    def over_time(self) -> list[int]:
        """The bytes taken on the device while each statement of the loop tree runs, in an iteration of the loops around
        it. The most of them is the peak, unless that is where a store has not grown to its size yet."""
        assert self.lifetimes is not None, "these are the stores of a whole program"
        stores = self.on_device
        # What is on its way to or from the host is taken to be there all the time.
        on_its_way = self.peak - self.lifetimes.peak(stores, self.outputs)[0]
        return [total + on_its_way for total, _ in self.lifetimes.over_time(stores, self.outputs, growing=True)]

    def __str__(self) -> str:
        lines = [str(store) for store in self.stores.values()]
        lines.append(f"total: {sum(s.bytes for s in self.stores.values()):,} bytes")
        library = f" ({self.library:,} fewer if XLA multiplies without its library)" if self.library else ""
        lines.append(f"peak: {self.peak:,} bytes{library}")
        host = sum(store.bytes for store in self.stores.values() if store.host)
        return "\n".join([*lines, f"host: {host:,} bytes"] if host else lines)


def plan_storage(graph: Graph, schedule: Schedule, habits: Habits) -> Storage:
    """A store for every node that is computed."""
    readers = by_producer(schedule.dependences)
    results: dict[Node, list[Edge]] = {}
    for edge in graph.outputs.values():
        results.setdefault(edge.node, []).append(edge)
    # Whoever needs the number of steps waits for a stop condition, but nobody reads it once it is computed.
    for edge in graph.stops.values():
        readers.pop(edge.node, None)
    stores = {}
    for node in schedule.places:
        if node.op is HOST:
            continue
        ranges = {d: schedule.steps(node, d) for d in node.domain}
        kept: dict[Dim, Keeping] = {}
        for d in node.domain:
            start, stop = ranges[d]
            whole = Steps(start, stop - start)
            single = [final_step(edge, d, schedule) for edge in results.get(node, ())]
            short = habits.reads_blocks_beside
            found = None if None in single else keeping(d, node, readers.get(node, ()), schedule, single, short=short)
            # A circle with room for all steps is none: what is read of it is then a part, not a gather.
            full = isinstance(found, Window) and found.size >= whole.size
            kept[d] = whole if found is None or full else found
            if not isinstance(kept[d], Latest) and _is_apart(node, d, schedule):
                kept[d] = Apart(start, stop - start)
        boxes = {**schedule.open, **{d: (start, stop - 1) for d, (start, stop) in ranges.items()}}
        value = tuple(extent(size, boxes, schedule.numbers) for size in node.shape)
        stores[node] = Store(node, kept, value)
    outputs = {name: output_bytes(name, edge, schedule) for name, edge in graph.outputs.items()}
    lifetimes = Lifetimes(graph, schedule, habits)
    return Storage(stores, *lifetimes.peak(stores, outputs), lifetimes=lifetimes, outputs=outputs)


def output_bytes(name: str, edge: Edge, schedule: Schedule) -> int:
    """What an output takes: of a dim that stops on data, at most."""
    steps = [len(span) for span in schedule.results[name]]
    sizes = (extent(size, schedule.open, schedule.numbers) for size in edge.shape)
    return math.prod((*steps, *sizes)) * edge.dtype.itemsize


def single_step(edge: Edge, dim: Dim, schedule: Schedule) -> int | None:
    """The one step of a dim that an edge reads, if it is one whatever the point, and known before the run."""
    step = final_step(edge, dim, schedule)
    return step.constant if step is not None and step.is_constant else None


def final_step(edge: Edge, dim: Dim, schedule: Schedule) -> Expr | None:
    """The one step of a dim that an edge reads, if it is one whatever the point: of a dim that stops on data it may be
    counted from there."""
    item = edge.index[edge.node.domain.index(dim)]
    step = None if isinstance(item, Slice) else item.substitute(schedule.numbers)
    return step if step is not None and step.symbols() <= dim.origin.bound.symbols() else None


def keeping(
    dim: Dim,
    node: Node,
    readers: Sequence[Dependence],
    schedule: Schedule,
    finally_read: Sequence[Expr | None] = (),
    by_block: bool = False,
    short: bool = False,
) -> Keeping | None:
    """How few steps of a dim will do, if some of them are read when all is done: None for all of them. All of a block,
    if it is ``by_block`` that they are read. A circle of steps may be ``short``, beside a block that is read itself."""
    family = dim.origin
    own = {_loops(place, family) for place in schedule.places[node]}
    if () in own:
        return None
    # Of a loop whose parts differ, some may be computed in blocks and others step by step.
    parts = {path[0] for path in own}
    block = max(schedule.blocks.get(number, 0) for number in parts)
    finals = [*finally_read]
    furthest = 0
    whole_blocks = len({len(path) for path in own}) > 1 or (by_block and any(len(path) > 1 for path in own))
    around = {f for place in schedule.places[node] for f in _outside(place, family) if _varies(node, f)}
    for d in readers:
        theirs = {_loops(place, family) for place in schedule.places.get(d.consumer, ())}
        if not theirs:
            continue
        elsewhere = [path[:1] not in {(number,) for number in parts} for path in theirs]
        if any(elsewhere) != all(elsewhere):
            return None
        # After the loop, and in other iterations of a loop around it, its last steps may be what is read.
        if any(elsewhere) or any(steps_back(d, outer, schedule) not in (None, (0, 0)) for outer in around):
            final = None if d.read.index is None else final_step(Edge(node, d.read.index), dim, schedule)
            if final is None:
                return None
            finals.append(final)
            continue
        # What is computed in several parts is read in the same part only if it is read wherever it is computed.
        if len(parts) > 1 and not schedule.places[d.consumer] <= schedule.places[node]:
            return None
        # A loop over the steps of a block has done all of them when others of the block read what it has computed.
        whole_blocks = whole_blocks or not theirs <= own
        distance = steps_back(d, family, schedule)
        if distance is None:
            continue
        low, high = distance
        if low is None or high is None:
            return None
        furthest = max(furthest, abs(low), abs(high))
    if finals:
        return None if whole_blocks else _last_steps(dim, node, finals, furthest, schedule, own)
    if len(parts) > 1 and (furthest or whole_blocks) and not _one_after_the_other(own, schedule):
        return None
    if block and (whole_blocks or any(len(path) == 1 for path in own)):
        if furthest == 0 and not whole_blocks:
            return Present(block)
        if len(parts) > 1:
            # Inside of other loops the programs of a block may be several, which hand on stores and nothing else.
            if short and not whole_blocks and all(len(place) == 1 for place in schedule.places[node]):
                return Window(furthest + 1, short=True)
            return Window(max(_live(dim, node, number, furthest, schedule) for number in parts))
        # Blocks that follow each other all the way never end in the middle of a window of whole ones.
        return Window(-(-(furthest + block) // block) * block)
    return Window(furthest + 1) if furthest else Latest()


def _live(dim: Dim, node: Node, number: int, furthest: int, schedule: Schedule) -> int:
    """How many steps of a node there are at most that a loop still reads, with those that it computes: in a part of a
    loop that is computed at once, no more than have been computed when it ends."""
    most = furthest + schedule.blocks.get(number, 1)
    if number not in schedule.parts:
        return most
    first, _ = schedule.steps(node, dim)
    computed: int = schedule.own_step(node, dim, schedule.parts[number].stop) - first
    return min(most, computed)


def _one_after_the_other(own: Set[tuple[int, ...]], schedule: Schedule) -> bool:
    """Whether loops are the parts of one that goes forward: what one of them leaves in a window the next one finds."""
    whole = {schedule.parts[path[0]].of if path[0] in schedule.parts else path[0] for path in own}
    return len(whole) == 1 and not whole & schedule.backwards and all(len(path) == 1 for path in own)


def _last_steps(
    dim: Dim, node: Node, finals: Sequence[Expr | None], furthest: int, schedule: Schedule, own: set[tuple[int, ...]]
) -> Keeping | None:
    """A window at the end of which are the steps that are read after a loop, if they are its last ones: a loop of
    single steps, or those over the steps of one block after the other."""
    (number, *others) = {path[0] for path in own}
    blocked = number in schedule.blocks
    if others or any((len(path) > 1) != blocked or path[-1] in schedule.blocks for path in own):
        return None
    if (blocked or len(own) > 1) and number in schedule.backwards:
        return None
    first, stop = schedule.steps(node, dim)
    end: Any = first - 1 if number in schedule.backwards else stop
    if dim.origin.bound in schedule.open:
        end = _last_of_open(dim, node, number, schedule)
    if end is None:
        return None
    back = [end - step for step in finals if step is not None]
    if not all(steps.is_constant for steps in back):
        return None
    final = max(abs(steps.constant) for steps in back)
    size = max(final, furthest + 1)
    return Window(size, final) if size <= (stop - first) // 2 else None


def _last_of_open(dim: Dim, node: Node, number: int, schedule: Schedule) -> Expr | None:
    """The step of a dim that stops on data behind the last one that a loop computes of a node, if the loop goes there.
    (Another one makes all steps that there may be, and its circles have nothing but the last of these.)"""
    if number not in schedule.beyond or number in schedule.backwards:
        return None
    behind: Expr = schedule.own_step(node, dim, dim.origin.bound + schedule.beyond[number])
    return behind


def _is_apart(node: Node, dim: Dim, schedule: Schedule) -> bool:
    """Whether every step of a dim is computed by code of its own, or given."""
    if dim.origin not in schedule.unrolled:
        return False
    return node.op is INPUT or all(_loops(place, dim.origin) for place in schedule.places[node])


def _outside(place: Place, family: Dim) -> list[Dim]:
    """The dims of the loops around those over a dim."""
    dims = [d for d, _ in place]
    return dims[: dims.index(family)]


def _varies(node: Node, family: Dim) -> bool:
    return any(d.origin is family for d in node.domain)


def _loops(place: Place, family: Dim) -> tuple[int, ...]:
    """The numbers of the loops over a dim: two where one is over the steps of the other's blocks."""
    return tuple(number for d, number in place if d is family)


def steps_back(d: Dependence, family: Dim, schedule: Schedule) -> Distance:
    """The least and greatest number of a loop's steps that a read looks back from where the loop is."""
    fold = schedule.folds.get(d.consumer, {}).get(family)
    if fold is None:
        return d.distance(family)
    found = []
    for edge, start in zip(d.consumer.edges, fold.starts, strict=True):
        if edge.node is d.producer and start is not None:
            found.append(fold.base - start + schedule.own_step(d.producer, dim_of(d.producer, family), 0))
    return min(found), max(found)
