"""From recorded calls to launches: which calls are computed together, in which order, and where their results are.

All of it is NumPy, for all calls of a cell at once. Calls of a cell are ordered by level; those of one level are a
launch. Each launch has a few *lanes* more than calls, so that its width is one of a few. Launches of one cell and width
that follow each other are one run: a loop inside one XLA program.

Every result has a row in the arena of its kind. An argument that is a result of a cell in one call and data in another
(the state before the first step) would keep these calls apart. Such data are put into an arena first, by the cell
``data``; a piece of data that many calls are given is put there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from tempo.batching.cell import Kind, Trace
from tempo.batching.hoisting import Hoisting
from tempo.batching.recording import STRIDE, Recorder, Stream, Value, data_trace

Array = Any

SMALLEST = 64
"""How many lanes, and rows of an arena, there is room for at least."""
WIDEST = 1024
"""How many lanes a launch may have: what a kernel needs beside arenas does not grow with the mini-batch."""


def padded_width(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least ``count``."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


@dataclass(frozen=True, eq=False)
class Group:
    """What kernels are made for."""

    trace: Trace
    gathered: tuple[bool, ...]
    """Per argument whether it is a row of an arena."""


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


@dataclass(eq=False)
class Lanes:
    """The lanes of all launches of one cell, in their order, on the device."""

    group: Group
    numbers: Array
    """(results and gathered arguments, lanes): a launch's first rows of its results, then rows of arguments."""
    data: tuple[Array, ...]
    """The other arguments."""
    size: int
    bases: np.ndarray[Any, Any]
    """Per lane the number of its first result."""
    status: Array = None
    """After computing: (lanes done, the first lane with an index that is out of range, counted from one)."""


@dataclass(eq=False)
class Run:
    """Launches of one cell and width that follow each other."""

    lanes: Lanes
    width: int
    launches: int
    calls: int


@dataclass
class Rows:
    """Where results are: ``of[number]``, in the arena of the result's kind; ``taken`` rows there are in use."""

    of: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int32))
    taken: dict[Kind, int] = field(default_factory=dict)

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
        parts = [_Part(calls) for calls in together]
        number = {calls.trace: n for n, calls in enumerate(together)}
        for part in parts:
            if part.calls.trace.early is not None:
                # In the order of the lanes that read it.
                n = number[part.calls.trace.early]
                parts[n] = _Part(_chosen(together[n], part.source))
        order = sorted(
            (part.calls.phase, int(level), n, k) for n, part in enumerate(parts) for k, level in enumerate(part.levels)
        )
        for _, _, n, k in order:
            if parts[n].calls.trace.auxiliary:
                if k == 0:
                    parts[n].place_all(rows.taken)
            else:
                parts[n].place(k, rows.taken)
        for part in parts:
            part.number(rows)
        for part in parts:
            if part.calls.trace.early is not None:
                part.before = parts[number[part.calls.trace.early]]
        lanes = [part.lanes(self.groups[part.calls.trace], rows, self.capacities) for part in parts]
        runs: list[Run] = []
        for _, _, n, k in order:
            width, count = int(parts[n].widths[k]), int(parts[n].counts[k])
            if runs and runs[-1].lanes is lanes[n] and runs[-1].width == width:
                runs[-1].launches += 1
                runs[-1].calls += count
            else:
                runs.append(Run(lanes[n], width, 1, count))
        return runs


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


class _Part:
    """The launches of one cell."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        levels = calls.levels
        self.order: np.ndarray[Any, Any] | None = None
        if len(levels) > 1 and np.any(levels[1:] < levels[:-1]):
            self.order = np.argsort(levels, kind="stable")
            levels = levels[self.order]
        firsts = np.concatenate([[0], np.flatnonzero(levels[1:] != levels[:-1]) + 1])
        ends = np.concatenate([firsts[1:], [len(levels)]])
        if np.any(ends - firsts > WIDEST):
            cuts = [np.arange(first, end, WIDEST) for first, end in zip(firsts, ends, strict=True)]
            firsts = np.concatenate(cuts)
            ends = np.concatenate([firsts[1:], [len(levels)]])
        self.firsts = firsts
        self.counts = ends - firsts
        self.levels = levels[firsts]
        self.widths = np.array([padded_width(count) for count in self.counts.tolist()])
        self.starts = np.zeros((len(calls.trace.results), len(firsts)), np.int32)
        self.before: _Part | None = None
        """The launches of what was taken out of the cell."""
        # Lanes of padding repeat the last call, rather than compute with some row that may hold anything: in a
        # backward pass, zero times infinity is not zero.
        self.size = int(self.widths.sum())
        inside = np.arange(self.size) - np.repeat(np.cumsum(self.widths) - self.widths, self.widths)
        source = np.repeat(self.firsts, self.widths) + np.minimum(inside, np.repeat(self.counts - 1, self.widths))
        self.source = source if self.order is None else self.order[source]
        """Which call a lane makes."""

    def place(self, k: int, taken: dict[Kind, int]) -> None:
        """Give the results of a launch their rows."""
        width = int(self.widths[k])
        for position, kind in enumerate(self.calls.trace.results):
            first = taken.get(kind, 0)
            self.starts[position, k] = first
            taken[kind] = first + width

    def place_all(self, taken: dict[Kind, int]) -> None:
        """The same for all launches, with consecutive rows: they are of one level, and only the last one is padded."""
        for position, kind in enumerate(self.calls.trace.results):
            first = taken.get(kind, 0)
            self.starts[position] = first + self.firsts
            taken[kind] = first + self.size

    def number(self, rows: Rows) -> None:
        """Say where every result is."""
        bases = self.calls.bases if self.order is None else self.calls.bases[self.order]
        inside = np.arange(len(bases), dtype=np.int32) - np.repeat(self.firsts, self.counts).astype(np.int32)
        for position, starts in enumerate(self.starts):
            rows.of[bases + position] = np.repeat(starts, self.counts) + inside

    def lanes(self, group: Group, rows: Rows, capacities: dict[Any, int]) -> Lanes:
        calls, size, source = self.calls, self.size, self.source
        aligned = len(calls.columns) - calls.trace.aligned
        capacity = max(SMALLEST, capacities.get(group, 0), 1 << (size - 1).bit_length())
        capacities[group] = capacity
        results = len(self.starts)
        numbers = np.zeros((results + sum(group.gathered), capacity), np.int32)
        numbers[:results, :size] = np.repeat(self.starts, self.widths, 1)
        data = []
        line = results
        columns = zip(calls.columns, calls.trace.arguments, group.gathered, strict=True)
        for n, (column, kind, gathered) in enumerate(columns):
            if n >= aligned:
                assert self.before is not None
                numbers[line, :size] = self.before.starts[n - aligned, 0] + np.arange(size)
                line += 1
            elif gathered:
                numbers[line, :size] = rows.of[column[source]]
                line += 1
            else:
                held = np.zeros((capacity, *kind.shape), kind.dtype)
                held[:size] = stacked(column, kind)[source]
                data.append(held)
        if len(self.widths) == 1:
            # The one kernel that reads them takes them along, which is faster than to send them before.
            return Lanes(group, numbers, tuple(data), size, calls.bases[source])
        on_device, given = jax.device_put((numbers, tuple(data)))
        return Lanes(group, on_device, given, size, calls.bases[source])


def stacked(column: Sequence[Any], kind: Kind) -> np.ndarray[Any, Any]:
    """Data of one kind as one array."""
    if kind.shape:
        return np.stack([np.asarray(leaf) for leaf in column], dtype=kind.dtype, casting="unsafe")
    return np.asarray(column).astype(kind.dtype)
