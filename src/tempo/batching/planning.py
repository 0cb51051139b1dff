"""From recorded calls to launches: which calls are computed together, in which order, and where their results are.

Nearly all of it is NumPy, for all calls of a cell at once. Calls of a cell are ordered by level; those of one level are
a launch, or several. (On a CPU, ``packing.py`` may give calls other levels before.) A launch may have more *lanes* than
calls, so that its width is one of a few. Launches of one cell and width that follow each other are one run: a loop
inside one XLA program.

Every result has a row in the arena of its kind. Launches get rows in the order in which they are made, as many as they
make calls: what lanes of padding write is overwritten by the launch after.

Calls of a cell with the same numbers (the same word) have the same results, and are made once.

An argument that is a result of a cell in one call and data in another (the state before the first step) would keep
these calls apart. Such data are put into an arena first, by the cell ``data``; a piece of data that many calls are
given is put there once.
"""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tempo.batching.columns import Column
from tempo.batching.demand import Block, taken
from tempo.batching.hoisting import Hoisting
from tempo.batching.packing import packed
from tempo.batching.recording import Recorder, data_trace
from tempo.batching.repeats import first_calls
from tempo.batching.trace import Kind, Trace
from tempo.batching.value import Value
from tempo.batching.widths import FEW, launches, packing, room

Array = Any


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

    @cached_property
    def read_kinds(self) -> tuple[Kind, ...]:
        """The kinds of the gathered arguments."""
        pairs = zip(self.trace.arguments, self.gathered, strict=True)
        return tuple(dict.fromkeys(kind for kind, gathered in pairs if gathered))

    @cached_property
    def kinds(self) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
        """The arenas that a kernel writes, and those that it only reads."""
        written = tuple(dict.fromkeys(self.trace.results))
        return written, tuple(kind for kind in self.read_kinds if kind not in written)

    @cached_property
    def moved_kinds(self) -> tuple[Kind, ...]:
        """The kinds through which gradients flow."""
        return tuple(kind for kind in dict.fromkeys([*self.trace.results, *self.read_kinds]) if kind.is_float)


_lock = threading.RLock()
"""Of all planners: models can be copied, locks cannot."""


class Groups(dict[Trace, Group]):
    """How every cell gets its arguments: what was a row of an arena in some call is one in all calls after it."""

    def see(self, trace: Trace, gathered: Sequence[bool]) -> None:
        group = self.get(trace)
        if group is not None and group.gathered == gathered:
            return
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
    same: np.ndarray[Any, Any] | None = None
    """The same with the numbers that are ``recorded``."""
    width: int | None = None
    """That of all launches, if there is one for each level."""
    recorded: Array = None
    """Per call the number of the first result of the model's call that it is, or is a part of: by default its own."""

    def __post_init__(self) -> None:
        if self.recorded is None:
            self.recorded = self.bases


@dataclass(eq=False)
class Lanes:
    """The calls of one cell in the order of its launches, on the device; or those of one launch, not there yet."""

    group: Group
    index: Array
    """Two tables behind each other, as one array, which is one transfer. The first has a row for each of ``depth``
    launches: the first lane, the number of calls, the first rows of results, those of aligned arguments. The second has
    for every other gathered argument the rows of all lanes."""
    depth: int
    """Zero for one launch: ``index`` has one row then, and as many lanes as the launch, padding included."""
    data: tuple[Array, ...]
    """The other arguments."""
    launches: int
    recorded: np.ndarray[Any, Any]
    """Per lane the number of the first result of the model's call that it is, or is a part of."""
    same: np.ndarray[Any, Any] | None
    """Other calls that were the same as some of these, or of other launches: (2, calls), their numbers, and these'."""
    repeated: int
    """How many other calls were the same as some of these."""
    status: Array = None
    """After computing: (launches done, the first lane with an index that is out of range, counted from one); of one
    launch None, if the cell has no indices."""
    apart: dict[int, Array] = field(default_factory=dict)
    """Results of one launch, by position, that need not be looked for in the arena."""

    def pieces(self) -> list[tuple[Kind, int, int, Array]]:
        """Of each of these the kind, the first row in the arena, how many there are, and they themselves."""
        trace = self.group.trace
        return [(trace.results[k], int(self.index[2 + k]), int(self.index[1]), a) for k, a in self.apart.items()]

    def calls(self, lanes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The numbers of all of the model's calls that some lanes are made for."""
        own = self.recorded[lanes]
        return own if self.same is None else np.concatenate([own, self.same[0, np.isin(self.same[1], own)]])


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
    kernels reach as far as ``needed``. Behind the last result there may be more numbers."""

    of: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int32))
    taken: dict[Kind, int] = field(default_factory=dict)
    needed: dict[Kind, int] = field(default_factory=dict)

    def grow(self, count: int) -> None:
        if count > len(self.of):
            # Twice as long, since it grows with every wait.
            self.of = np.concatenate([self.of, np.zeros(max(count - len(self.of), len(self.of)), np.int32)])

    def row(self, value: Value) -> int:
        return int(self.of[value.number])

    def take(self, kind: Kind, count: int) -> int:
        """So many rows, of which this is the first."""
        first = self.taken.get(kind, 0)
        self.taken[kind] = first + count
        return first

    def reach(self, kind: Kind, end: int) -> None:
        """Let a kernel write or read up to there."""
        if end > self.needed.get(kind, 0):
            self.needed[kind] = end


@dataclass
class Planner:
    """What is kept from one mini-batch to the next, so that the same cells find the same kernels. Threads plan one
    after the other: what one finds out about a cell's arguments must not change while another goes by it."""

    groups: Groups = field(default_factory=Groups)
    hoisting: Hoisting = field(default_factory=Hoisting)
    capacities: dict[Any, int] = field(default_factory=dict)

    def plan(self, recorder: Recorder, rows: Rows, put: Put, wanted: Sequence[int] | None) -> list[Run]:
        """What is recorded and to be computed now, as runs: whatever the results with the numbers ``wanted`` need, or
        (None) everything."""
        with _lock:
            calls = [_calls(block) for block in taken(recorder, wanted)]
            if not calls:
                return []
            calls = self.hoisting.apply(calls, recorder)
            for one in calls:
                self.groups.see(one.trace, put.wanted_columns(one))
            calls = put.apply(calls, self.groups, recorder) + calls
            rows.grow(recorder.count)
            return self._runs(_by_trace(calls), rows, wanted is not None)

    def _runs(self, together: Sequence[Calls], rows: Rows, waiting: bool) -> list[Run]:
        if not waiting:
            _pack(together, len(rows.of))
        # What is computed for others lane by lane has a lane for each of theirs.
        aligned = {calls.trace.early for calls in together}
        parts = [_Part(calls if calls.trace in aligned else _distinct(calls)) for calls in together]
        number = {calls.trace: n for n, calls in enumerate(together)}
        for part in parts:
            if part.calls.trace.early is not None:
                # In the order of the lanes that read it.
                n = number[part.calls.trace.early]
                part.before = parts[n] = _Part(together[n] if part.order is None else _chosen(together[n], part.order))
        order = sorted(
            (part.calls.phase, level, n, k) for n, part in enumerate(parts) for k, level in enumerate(part.levels)
        )
        _place([(parts[n], k) for _, _, n, k in order], rows)
        for part in parts:
            part.number(rows)
            if part.calls.repeats is not None:
                for position in range(len(part.starts)):
                    repeated, made = part.calls.repeats + position
                    rows.of[repeated] = rows.of[made]
        lanes = [part.lanes(self.groups[part.calls.trace], rows, self.capacities, waiting) for part in parts]
        runs: list[Run] = []
        for _, _, n, k in order:
            width, count = parts[n].widths[k], parts[n].counts[k]
            own = lanes[n][k] if len(lanes[n]) > 1 else lanes[n][0]
            if runs and runs[-1].lanes is own and runs[-1].width == width:
                runs[-1].launches += 1
                runs[-1].calls += count
            else:
                runs.append(Run(own, width, 1, count))
        # What few launches read, their kernels take along, which is faster; on a CPU also what few loops read: for each
        # that takes 10 us more, and to send it beforehand 130.
        readers = Counter(id(run.lanes) for run in runs)
        few = FEW if jax.default_backend() == "cpu" else 0
        often = [one for some in lanes for one in some if one.launches > FEW and readers[id(one)] > few]
        if often:
            for one, (index, data) in zip(often, jax.device_put([(o.index, o.data) for o in often]), strict=True):
                one.index, one.data = index, data
        return runs


def _calls(block: Block) -> Calls:
    """Recorded calls as the planner has them."""
    stream = block.stream
    numbers, data = iter(block.numbers[:-1].astype(np.int32)), iter(block.data)
    columns = [next(numbers) if is_value else next(data) for is_value in stream.is_value]
    return Calls(stream.trace, 2 * stream.phase + 1, block.numbers[-1], next(numbers), columns, stream.is_value)


@dataclass
class Put:
    """Data that are in arenas: by identity, with the numbers that they have as results of the cell ``data``."""

    wanted: frozenset[int] = frozenset()
    """Identities of data that gradients are wanted for, so that they must be there."""
    found: dict[tuple[int, Kind], tuple[int, Any]] = field(default_factory=dict)
    """The objects are kept, since another could get the identity of one that is gone."""

    def wanted_columns(self, calls: Calls) -> Sequence[bool]:
        """Which arguments have to be rows of arenas for what these calls were given."""
        if not self.wanted:
            return calls.is_value
        return [
            is_value or (kind.is_float and not self.wanted.isdisjoint(map(id, column)))
            for column, is_value, kind in zip(calls.columns, calls.is_value, calls.trace.arguments, strict=True)
        ]

    def apply(self, calls: Sequence[Calls], groups: Groups, recorder: Recorder) -> list[Calls]:
        """Put data into arenas where ``groups`` says so: the calls that do it."""
        new: dict[Kind, tuple[list[Any], list[int]]] = {}
        for one in calls:
            gathered = groups[one.trace].gathered
            if one.is_value == gathered:
                continue
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
    found.repeats, found.same = [
        np.stack([numbers[~made], numbers[firsts[~made]]]) for numbers in (calls.bases, calls.recorded)
    ]
    return found


def _pack(together: Sequence[Calls], count: int) -> None:
    """Give calls of a recursion the levels that are best for launches, where it is one of a single cell: several wait
    for each other. ``count`` is how many results there are. On a GPU it is the number of levels that counts, and that
    is the least already."""
    phases = [calls.phase for calls in together]
    for calls in together if jax.default_backend() == "cpu" else ():
        heights = calls.levels - calls.levels.min()
        if phases.count(calls.phase) == 1 and 0 < heights.max() < len(heights):
            owner = np.full(count, -1, np.int32)
            for position in range(len(calls.trace.results)):
                owner[calls.bases + position] = np.arange(len(heights), dtype=np.int32)
            children = [owner[c] for c, is_value in zip(calls.columns, calls.is_value, strict=True) if is_value]
            counts = np.bincount(heights).tolist()
            found = packed(heights, children, *packing(counts, calls.trace.work, calls.trace.size))
            # Few levels would be no loop.
            if found is not None and found[0].max() >= FEW:
                calls.levels, calls.width = found


def _chosen(calls: Calls, which: np.ndarray[Any, Any]) -> Calls:
    """Some of the calls, in another order."""
    columns = [c[which] if v else [c[k] for k in which] for c, v in zip(calls.columns, calls.is_value, strict=True)]
    return replace(
        calls, levels=calls.levels[which], bases=calls.bases[which], columns=columns, recorded=calls.recorded[which]
    )


def _by_trace(calls: Sequence[Calls]) -> list[Calls]:
    """Calls of one cell together, in whatever form their arguments were."""
    found: dict[Trace, list[Calls]] = {}
    for one in calls:
        found.setdefault(one.trace, []).append(one)
    together = []
    for some in found.values():
        if len(some) == 1:
            together += some
            continue
        columns: list[Any] = [
            np.concatenate(parts) if is_value else [leaf for part in parts for leaf in part]
            for is_value, *parts in zip(some[0].is_value, *(one.columns for one in some), strict=True)
        ]
        levels = np.concatenate([one.levels for one in some])
        bases = np.concatenate([one.bases for one in some])
        recorded = np.concatenate([one.recorded for one in some])
        together.append(replace(some[0], levels=levels, bases=bases, columns=columns, recorded=recorded))
    return together


class _Part:
    """The launches of one cell: lists of numbers, which are few, where calls are arrays."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        levels = calls.levels
        self.order: np.ndarray[Any, Any] | None = None
        """Which calls the lanes make, if not one after another."""
        changes = levels[1:] - levels[:-1]
        if changes.any():
            if changes.min() < 0:
                self.order = np.argsort(levels, kind="stable")
                levels = levels[self.order]
                changes = levels[1:] - levels[:-1]
            ends = [*(np.flatnonzero(changes) + 1).tolist(), len(levels)]
        else:
            ends = [len(levels)]
        self.widths: list[int] = []
        self.counts: list[int] = []
        self.firsts: list[int] = []
        first = 0
        for end in ends:
            own = launches(end - first, calls.trace.work, calls.trace.size)
            for width, count in own if calls.width is None else ((calls.width, end - first),):
                self.widths.append(width)
                self.counts.append(count)
                self.firsts.append(first)
                first += count
        self.levels: list[int] = levels[self.firsts].tolist()
        self.starts: list[list[int]] = [[] for _ in calls.trace.results]
        """Per result the first rows of every launch."""
        self.before: _Part | None = None
        """The launches of what was taken out of the cell."""

    def number(self, rows: Rows) -> None:
        """Say where every result is."""
        bases = self.calls.bases if self.order is None else self.calls.bases[self.order]
        inside = np.arange(len(bases), dtype=np.int32)
        if len(self.counts) > 1:
            inside -= np.repeat(self.firsts, self.counts).astype(np.int32)
        for position, starts in enumerate(self.starts):
            rows.of[bases + position] = inside + (np.repeat(starts, self.counts) if len(starts) > 1 else starts[0])

    def lanes(self, group: Group, rows: Rows, capacities: dict[Any, int], waiting: bool) -> list[Lanes]:
        """For each launch, if they are few and instances wait, else for all."""
        calls, trace = self.calls, self.calls.trace
        entries = [self.firsts, self.counts, *self.starts]
        for n in range(trace.aligned):
            assert self.before is not None
            entries.append([self.before.starts[n][0] + first for first in self.firsts])
            kind = trace.arguments[len(trace.arguments) - trace.aligned + n]
            rows.reach(kind, max(map(operator.add, entries[-1], self.widths)))
        gathered = [n for n in range(len(group.gathered) - trace.aligned) if group.gathered[n]]
        given = [n for n, is_gathered in enumerate(group.gathered) if not is_gathered]
        numbers = [calls.columns[n] if self.order is None else calls.columns[n][self.order] for n in gathered]
        data = [Column(calls.columns[n], trace.arguments[n], trace.name, self.order) for n in given]
        recorded = calls.recorded if self.order is None else calls.recorded[self.order]
        repeated = 0 if calls.repeats is None else calls.repeats.shape[1]
        if waiting and len(self.counts) <= FEW:
            # Kernels of their own, which others are not compiled for: it is with every wait that time is gained.
            found = []
            for k, (first, count, width) in enumerate(zip(self.firsts, self.counts, self.widths, strict=True)):
                own = slice(first, first + count)
                index = np.empty(len(entries) + len(gathered) * width, np.int32)
                index[: len(entries)] = [entry[k] for entry in entries]
                lanes = index[len(entries) :].reshape(len(gathered), width)
                for line, column in zip(lanes, numbers, strict=True):
                    line[:count] = rows.of[column[own]]
                lanes[:, count:] = lanes[:, count - 1 : count]
                some = tuple([column.rows(first, count, width) for column in data])
                found.append(Lanes(group, index, 0, some, 1, recorded[own], calls.same, 0 if k else repeated))
            return found
        size = len(calls.bases)
        bytes_ = 4 + sum(trace.arguments[n].bytes for n in given)
        capacity = capacities[group] = room(size, capacities.get(group, 0), min(max((1 << 16) // bytes_, 64), 4096))
        depth = capacities[group, "launches"] = room(len(self.counts), capacities.get((group, "launches"), 0), 64)
        index = np.zeros(depth * len(entries) + len(gathered) * capacity, np.int32)
        index[: len(self.counts) * len(entries)] = np.array(entries, np.int32).T.ravel()
        lanes = index[depth * len(entries) :].reshape(len(gathered), capacity)
        for line, column in zip(lanes, numbers, strict=True):
            line[:size] = rows.of[column]
        all_data = tuple([column.rows(0, size, capacity) for column in data])
        return [Lanes(group, index, depth, all_data, len(self.counts), recorded, calls.same, repeated)]


def _place(order: Sequence[tuple[_Part, int]], rows: Rows) -> None:
    """Give all results their rows, launch by launch in their order."""
    for part, k in order:
        trace, count, width = part.calls.trace, part.counts[k], part.widths[k]
        for starts, kind in zip(part.starts, trace.results, strict=True):
            if not trace.auxiliary:
                starts.append(rows.take(kind, count))
            elif k == 0:
                # What is no cell of the user's has each of its results in consecutive rows, for all of its launches,
                # of which the last may reach further. Otherwise a launch has its own.
                first = rows.take(kind, len(part.calls.bases) + part.widths[-1] - part.counts[-1])
                starts.extend([first + own for own in part.firsts])
            rows.reach(kind, starts[k] + width)
