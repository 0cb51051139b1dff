"""From recorded calls to launches: which calls are computed together, in which order, and where their results are.

All of it is NumPy, for all calls of a cell at once. Calls of a cell are ordered by level; those of one level are a
launch, or several. A launch may have more *lanes* than calls, so that its width is one of a few. Launches of one cell
and width that follow each other are one run: a loop inside one XLA program.

Every result has a row in the arena of its kind. Launches get rows in the order in which they are made, as many as they
make calls: what lanes of padding write is overwritten by the launch after.

Calls of a cell with the same numbers (the same word) have the same results, and are made once.

An argument that is a result of a cell in one call and data in another (the state before the first step) would keep
these calls apart. Such data are put into an arena first, by the cell ``data``; a piece of data that many calls are
given is put there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tempo.batching.cell import Kind, Trace
from tempo.batching.hoisting import Hoisting
from tempo.batching.recording import STRIDE, Recorder, Stream, Value, data_trace
from tempo.batching.repeats import first_calls
from tempo.batching.widths import launches, room

Array = Any


FEW = 3
"""So many launches are one kernel each, more are a loop: its body is compiled apart, and starting a loop costs time."""


@dataclass(frozen=True, eq=False)
class Group:
    """What kernels are made for."""

    trace: Trace
    gathered: tuple[bool, ...]
    """Per argument whether it is a row of an arena."""

    @cached_property
    def form(self) -> tuple[object, tuple[bool, ...]]:
        """Groups of one form, such as two layers of one size, have the same kernels."""
        return self.trace.form, self.gathered


class Groups(dict[Trace, Group]):
    """How every cell gets its arguments: what was a row of an arena in some call is one in all calls after it."""

    def see(self, trace: Trace, gathered: Sequence[bool]) -> None:
        group = self.get(trace)
        before = (False,) * len(gathered) if group is None else group.gathered
        after = tuple([a or b for a, b in zip(before, gathered, strict=True)])
        if group is None or after != before:
            self[trace] = Group(trace, after)


@dataclass(eq=False)
class Calls:
    """Calls of one cell: per argument numbers of results (an array), or data (a list)."""

    trace: Trace
    phase: int
    levels: np.ndarray[Any, Any]
    bases: np.ndarray[Any, Any]
    columns: list[Any]
    is_value: tuple[bool, ...]
    repeats: np.ndarray[Any, Any] | None = None
    """Where some calls are not made, since others are the same: (2, repeated calls), the numbers of their first
    results, and of these others'."""


@dataclass(eq=False)
class Lanes:
    """The calls of one cell in the order of its launches, on the device."""

    group: Group
    table: Array
    """(launches, ...): the first lane, the number of calls, the first rows of results, those of aligned arguments."""
    numbers: Array
    """(other gathered arguments, lanes): their rows."""
    data: tuple[Array, ...]
    """The other arguments."""
    launches: int
    bases: np.ndarray[Any, Any]
    """Per lane the number of its first result."""
    repeated: int
    """How many other calls were the same as some of these."""
    status: Array = None
    """After computing: (launches done, the first lane with an index that is out of range, counted from one)."""


@dataclass(eq=False)
class Run:
    """Launches of one cell and width that follow each other."""

    lanes: Lanes
    width: int
    launches: int
    calls: int


@dataclass
class Rows:
    """Where results are: ``of[number]``, in the arena of the result's kind; ``taken`` rows there are in use, and
    kernels reach as far as ``needed``."""

    of: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int32))
    taken: dict[Kind, int] = field(default_factory=dict)
    needed: dict[Kind, int] = field(default_factory=dict)

    def grow(self, count: int) -> None:
        if count > len(self.of):
            self.of = np.concatenate([self.of, np.zeros(count - len(self.of), np.int32)])

    def row(self, value: Value) -> int:
        return int(self.of[value.number])


@dataclass
class Planner:
    """What is kept from one mini-batch to the next, so that the same cells find the same kernels."""

    groups: Groups = field(default_factory=Groups)
    hoisting: Hoisting = field(default_factory=Hoisting)
    capacities: dict[Any, int] = field(default_factory=dict)

    def plan(self, recorder: Recorder, rows: Rows, put: Put) -> list[Run]:
        """What is recorded and not computed yet, as runs. From now on it counts as computed."""
        calls = _taken(recorder)
        if not calls:
            return []
        calls = self.hoisting.apply(calls, recorder)
        for one in calls:
            self.groups.see(one.trace, put.wanted_columns(one))
        calls = put.apply(calls, self.groups, recorder) + calls
        rows.grow(recorder.count)
        recorder.computed = recorder.count
        return self._runs(_by_trace(calls), rows)

    def _runs(self, together: Sequence[Calls], rows: Rows) -> list[Run]:
        # What is computed for others lane by lane has a lane for each of theirs.
        aligned = {calls.trace.early for calls in together}
        parts = [_Part(calls if calls.trace in aligned else _distinct(calls)) for calls in together]
        number = {calls.trace: n for n, calls in enumerate(together)}
        for part in parts:
            if part.calls.trace.early is not None:
                # In the order of the lanes that read it.
                n = number[part.calls.trace.early]
                part.before = parts[n] = _Part(together[n] if part.order is None else _chosen(together[n], part.order))
        owner = np.repeat(np.arange(len(parts)), [len(part.counts) for part in parts])
        phases = np.array([part.calls.phase for part in parts])[owner]
        order = np.lexsort((owner, np.concatenate([part.levels for part in parts]), phases))
        _place(parts, owner[order], rows)
        for part in parts:
            part.number(rows)
            if part.calls.repeats is not None:
                for position in range(len(part.starts)):
                    repeated, made = part.calls.repeats + position
                    rows.of[repeated] = rows.of[made]
        lanes = [part.lanes(self.groups[part.calls.trace], rows, self.capacities) for part in parts]
        counts = np.concatenate([part.counts for part in parts])[order]
        widths = np.concatenate([part.widths for part in parts])[order]
        owner = owner[order]
        firsts = _firsts((owner[1:] != owner[:-1]) | (widths[1:] != widths[:-1]))
        sizes = np.diff(firsts, append=len(order))
        calls = np.add.reduceat(counts, firsts)
        return [
            Run(lanes[n], width, size, count)
            for n, width, size, count in zip(
                owner[firsts].tolist(), widths[firsts].tolist(), sizes.tolist(), calls.tolist(), strict=True
            )
        ]


def _taken(recorder: Recorder) -> list[Calls]:
    streams = [stream for stream in recorder.streams.values() if stream.bases]
    if recorder.stale:
        _align(streams, recorder)
        recorder.stale = False
    calls = []
    for stream in streams:
        columns: list[Any] = [
            np.array(column, np.int32) if is_value else list(column)
            for column, is_value in zip(stream.columns, stream.is_value, strict=True)
        ]
        levels, bases = np.array(stream.levels, np.int64), np.array(stream.bases, np.int32)
        calls.append(Calls(stream.trace, 2 * stream.phase + 1, levels, bases, columns, stream.is_value))
        stream.clear()
    return calls


def _align(streams: Sequence[Stream], recorder: Recorder) -> None:
    """Count the levels again, since phases turned out to be others, with the anchors that make the fewest launches:
    from now on calls are recorded with them."""
    anchors = recorder.phases.anchors
    together: dict[int, dict[Trace, None]] = {}
    for stream in streams:
        together.setdefault(stream.phase, {})[stream.trace] = None
    anchors.difference_update(*together.values())
    order = sorted((base, n, k) for n, stream in enumerate(streams) for k, base in enumerate(stream.bases))
    for phase, traces in together.items():
        if len(traces) > 1:
            fewest = _levels(streams, order, recorder.computed, anchors, phase)
            for trace in traces:
                count = _levels(streams, order, recorder.computed, anchors - set(traces) | {trace}, phase)
                if count < fewest:
                    fewest = count
                    anchors.difference_update(traces)
                    anchors.add(trace)
    _levels(streams, order, recorder.computed, anchors, None)
    for stream in recorder.streams.values():
        stream.anchor = stream.trace in anchors


def _levels(
    streams: Sequence[Stream],
    order: Sequence[tuple[int, int, int]],
    computed: int,
    anchors: set[Trace],
    only: int | None,
) -> int:
    """Count the levels of all streams, or of one phase's: how many launches there are."""
    found: dict[int, tuple[int, int]] = {}
    launches = set()
    for base, n, k in order:
        stream = streams[n]
        if only is not None and stream.phase != only:
            continue
        level = 0
        for column, is_value in zip(stream.columns, stream.is_value, strict=True):
            if is_value and column[k] >= computed:
                phase, below = found.get(column[k], (-1, 0))
                if phase == stream.phase:
                    level = max(level, below + 1)
        if stream.trace in anchors:
            level = -(-level // STRIDE) * STRIDE
        stream.levels[k] = level
        launches.add((stream.trace, level))
        for position in range(stream.size):
            found[base + position] = stream.phase, level
    return len(launches)


@dataclass
class Put:
    """Data that are in arenas: by identity, with the numbers that they have as results of the cell ``data``."""

    wanted: frozenset[int] = frozenset()
    """Identities of data that gradients are wanted for, so that they must be there."""
    found: dict[tuple[int, Kind], tuple[int, Any]] = field(default_factory=dict)
    """The objects are kept, since another could get the identity of one that is gone."""

    def wanted_columns(self, calls: Calls) -> list[bool]:
        """Which arguments have to be rows of arenas for what these calls were given."""
        if not self.wanted:
            return list(calls.is_value)
        return [
            is_value or (kind.is_float and not self.wanted.isdisjoint(map(id, column)))
            for column, is_value, kind in zip(calls.columns, calls.is_value, calls.trace.arguments, strict=True)
        ]

    def apply(self, calls: Sequence[Calls], groups: Groups, recorder: Recorder) -> list[Calls]:
        """Put data into arenas where ``groups`` says so: the calls that do it."""
        new: dict[Kind, tuple[list[Any], list[int]]] = {}
        for one in calls:
            gathered = groups[one.trace].gathered
            for n, (column, kind) in enumerate(zip(one.columns, one.trace.arguments, strict=True)):
                if not gathered[n] or one.is_value[n]:
                    continue
                numbers = []
                for leaf in column:
                    key = (id(leaf), kind)
                    if key not in self.found:
                        data, bases = new.setdefault(kind, ([], []))
                        data.append(leaf)
                        bases.append(recorder.count)
                        self.found[key] = recorder.count, leaf
                        recorder.count += 1
                    numbers.append(self.found[key][0])
                one.columns[n] = np.array(numbers, np.int32)
            one.is_value = gathered
        made = []
        for kind, (data, bases) in new.items():
            trace = data_trace(kind)
            groups.see(trace, (False,))
            made.append(Calls(trace, -1, np.zeros(len(bases), np.int64), np.array(bases, np.int32), [data], (False,)))
        return made


def _distinct(calls: Calls) -> Calls:
    """The same calls without those that others are the same as, if they are more than a few."""
    firsts = first_calls(calls.columns, calls.is_value, calls.trace)
    if firsts is None:
        return calls
    made = firsts == np.arange(len(firsts))
    found = _chosen(calls, np.flatnonzero(made))
    found.repeats = np.stack([calls.bases[~made], calls.bases[firsts[~made]]])
    return found


def _chosen(calls: Calls, which: np.ndarray[Any, Any]) -> Calls:
    """Some of the calls, in another order."""
    columns = [c[which] if v else [c[k] for k in which] for c, v in zip(calls.columns, calls.is_value, strict=True)]
    return Calls(calls.trace, calls.phase, calls.levels[which], calls.bases[which], columns, calls.is_value)


def _by_trace(calls: Sequence[Calls]) -> list[Calls]:
    """Calls of one cell together, in whatever form their arguments were."""
    found: dict[Trace, list[Calls]] = {}
    for one in calls:
        found.setdefault(one.trace, []).append(one)
    together = []
    for trace, some in found.items():
        if len(some) == 1:
            together += some
            continue
        columns: list[Any] = [
            np.concatenate(parts) if is_value else [leaf for part in parts for leaf in part]
            for is_value, *parts in zip(some[0].is_value, *(one.columns for one in some), strict=True)
        ]
        levels = np.concatenate([one.levels for one in some])
        bases = np.concatenate([one.bases for one in some])
        together.append(Calls(trace, some[0].phase, levels, bases, columns, some[0].is_value))
    return together


def _firsts(changes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where runs of equal things begin, given where something differs from the one before."""
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


class _Part:
    """The launches of one cell."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        levels = calls.levels
        self.order: np.ndarray[Any, Any] | None = None
        """Which calls the lanes make, if not one after another."""
        if len(levels) > 1 and np.any(levels[1:] < levels[:-1]):
            self.order = np.argsort(levels, kind="stable")
            levels = levels[self.order]
        sizes = [len(levels)]
        if levels[0] != levels[-1]:
            sizes = np.diff(_firsts(levels[1:] != levels[:-1]), append=len(levels)).tolist()
        work = calls.trace.work
        self.widths, self.counts = np.array([launch for size in sizes for launch in launches(size, work)]).T
        self.firsts = np.cumsum(self.counts) - self.counts
        self.levels = levels[self.firsts]
        self.starts = np.zeros((len(calls.trace.results), len(self.counts)), np.int32)
        """The first rows of every launch's results."""
        self.before: _Part | None = None
        """The launches of what was taken out of the cell."""

    def number(self, rows: Rows) -> None:
        """Say where every result is."""
        bases = self.calls.bases if self.order is None else self.calls.bases[self.order]
        inside = np.arange(len(bases), dtype=np.int32) - np.repeat(self.firsts, self.counts).astype(np.int32)
        for position, starts in enumerate(self.starts):
            rows.of[bases + position] = np.repeat(starts, self.counts) + inside

    def lanes(self, group: Group, rows: Rows, capacities: dict[Any, int]) -> Lanes:
        calls, trace = self.calls, self.calls.trace
        size = len(calls.bases)
        given = [n for n, gathered in enumerate(group.gathered) if not gathered]
        bytes_ = 4 + sum(calls.trace.arguments[n].bytes for n in given)
        capacity = capacities[group] = room(size, capacities.get(group, 0), min(max((1 << 16) // bytes_, 64), 4096))
        depth = capacities[group, "launches"] = room(len(self.counts), capacities.get((group, "launches"), 0), 64)
        results, aligned = len(self.starts), trace.aligned
        table = np.zeros((depth, 2 + results + aligned), np.int32)
        table[: len(self.counts), 0], table[: len(self.counts), 1] = self.firsts, self.counts
        table[: len(self.counts), 2 : 2 + results] = self.starts.T
        for n in range(aligned):
            assert self.before is not None
            starts = self.before.starts[n, 0] + self.firsts
            table[: len(self.counts), 2 + results + n] = starts
            kind = trace.arguments[len(trace.arguments) - aligned + n]
            rows.needed[kind] = max(rows.needed[kind], int(np.max(starts + self.widths)))
        gathered = [n for n in range(len(group.gathered) - aligned) if group.gathered[n]]
        numbers = np.zeros((len(gathered), capacity), np.int32)
        for line, n in enumerate(gathered):
            numbers[line, :size] = rows.of[calls.columns[n] if self.order is None else calls.columns[n][self.order]]
        data = []
        for n in given:
            kind = trace.arguments[n]
            held = np.zeros((capacity, *kind.shape), kind.dtype)
            column = stacked(calls.columns[n], kind)
            held[:size] = column if self.order is None else column[self.order]
            data.append(held)
        bases = calls.bases if self.order is None else calls.bases[self.order]
        arrays: tuple[Array, Array, tuple[Array, ...]] = (table, numbers, tuple(data))
        if len(self.counts) > FEW:
            # Otherwise the kernels that read them take them along, which is faster.
            arrays = jax.device_put(arrays)
        table, numbers, given_data = arrays
        repeated = 0 if calls.repeats is None else calls.repeats.shape[1]
        return Lanes(group, table, numbers, given_data, len(self.counts), bases, repeated)


def _place(parts: Sequence[_Part], owner: np.ndarray[Any, Any], rows: Rows) -> None:
    """Give all results their rows: ``owner`` says whose the launches are, in their order."""
    places = [np.flatnonzero(owner == n) for n in range(len(parts))]
    for kind in dict.fromkeys(kind for part in parts for kind in part.calls.trace.results):
        amounts = np.zeros(len(owner), np.int64)
        found = []
        for at, part in zip(places, parts, strict=True):
            positions = [position for position, one in enumerate(part.calls.trace.results) if one is kind]
            if positions:
                # What is no cell of the user's has each of its results in consecutive rows, for all of its launches,
                # of which the last may reach further. Otherwise a launch has its own.
                whole = len(part.calls.bases) + int(part.widths[-1] - part.counts[-1])
                amounts[at] = (
                    np.append(whole, np.zeros(len(at) - 1, int)) if part.calls.trace.auxiliary else part.counts
                )
                amounts[at] *= len(positions)
                found.append((part, positions, at, whole))
        taken = rows.taken.get(kind, 0)
        starts = taken + np.cumsum(amounts) - amounts
        for part, positions, at, whole in found:
            for k, position in enumerate(positions):
                if part.calls.trace.auxiliary:
                    part.starts[position] = starts[at[0]] + k * whole + part.firsts
                else:
                    part.starts[position] = starts[at] + k * part.counts
                reached = int(np.max(part.starts[position] + part.widths))
                rows.needed[kind] = max(rows.needed.get(kind, 0), reached)
        rows.taken[kind] = taken + int(amounts.sum())


def stacked(column: Sequence[Any], kind: Kind) -> np.ndarray[Any, Any]:
    """Data of one kind as one array."""
    if kind.shape:
        return np.stack([np.asarray(leaf) for leaf in column], dtype=kind.dtype, casting="unsafe")
    return np.asarray(column).astype(kind.dtype)
