"""Calls of cells, recorded while a model runs.

Calls of one cell with arguments of one form are a *stream*, to which a call adds what it was given: data, or the number
of a result. Every result of a mini-batch has a number. So a call costs little Python, and everything after it is
computed with NumPy, for a stream at once.

Two calls can be one launch if they have the same cell, kinds of arguments and level. Levels are counted within a
*phase*: cells that depend on each other's results, directly or around some corners, are one phase, and phases follow
each other as their dependences say. So a classifier behind a recurrence is one launch for all of its calls, at
whatever depth their arguments were made, and so is what only prepares arguments. Within a phase a call's level is one
more than the highest among its arguments' (in a tree: its height).

Where several cells are one phase, instances drift apart: one that takes a branch of two calls is a level behind one
that takes none, and never meets it again. So one of the cells may be the phase's *anchor*: its calls are only made at
levels that are multiples of ``STRIDE``, as if whoever is there early made ghost steps until the others are there, too.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import tree_util

from tempo.batching.cell import Cell, cell, check_is_known, kind_of, leaves_of, local
from tempo.batching.columns import stacked
from tempo.batching.draws import Draws, of_instance
from tempo.batching.phases import STRIDE, Phases
from tempo.batching.specialised import form_of, specialised
from tempo.batching.trace import Kind, Trace
from tempo.batching.value import StartAgainError, Value
from tempo.errors import InputError, ProgramError, user_line

if TYPE_CHECKING:
    from tempo.batching.fibers import Fibers


OFTEN = 16
"""How many calls that look alike are counted."""
LATEST = 3
"""With so many a call is compared, before it is found out what it looks like."""


class Stream:
    """Calls of one cell with arguments of one form."""

    __slots__ = (
        "anchor",
        "data",
        "direct",
        "flat",
        "found",
        "inside",
        "installed",
        "is_value",
        "known",
        "numbers",
        "phase",
        "put_off",
        "record",
        "recorder",
        "since",
        "sources",
        "trace",
    )

    def __init__(
        self, recorder: Recorder, trace: Trace, is_value: tuple[bool, ...], form: tuple[Any, ...] | None
    ) -> None:
        self.recorder = recorder
        self.trace = trace
        if trace.draws:
            is_value = (*is_value, False)  # the key
        self.is_value = is_value
        self.sources = tuple([Source(self, kind) for kind in trace.results])
        leaf = tree_util.tree_structure(0)
        several = tree_util.tree_structure((0,) * self.size)
        self.flat = 0 if trace.structure == leaf else 1 if trace.structure == several else 2
        """Whether the results are one tensor (0), a tuple of them (1), or something else (2)."""
        self.phase = recorder.phases.join(trace)
        self.anchor = trace in recorder.phases.anchors
        values = sum(is_value)
        self.inside: list[set[Source]] = [set() for _ in range(values)]
        """Per argument that is a result, whose it was: of cells of this phase."""
        self.known: list[set[Source]] = [set() for _ in range(values)]
        """The same of other cells."""
        self.numbers: list[int] = []
        """Per call the numbers of its arguments that are results, that of its own first result, and its level."""
        self.data: list[list[Any]] = [[] for _ in range(len(is_value) - values)]
        """Per other argument what the calls were given."""
        self.put_off: list[Any] = []
        """Calls of earlier, as blocks, which nothing has needed so far."""
        self.record, self.direct = specialised(self, form) if form else (None, None)
        self.installed = False
        self.found, self.since = 0, 0
        """How often a call was not found at once, since so many results had been recorded."""

    @property
    def size(self) -> int:
        """How many results a call has."""
        return len(self.trace.results)

    def clear(self) -> None:
        for column in (self.numbers, *self.data):
            column.clear()


class Source:
    """What the results at one place of a stream's calls have in common."""

    __slots__ = ("kind", "stream")

    def __init__(self, stream: Stream, kind: Kind) -> None:
        self.stream = stream
        self.kind = kind


class Recorder:
    """What the instances of one mini-batch have called so far."""

    def __init__(self, cells: Iterable[Cell], phases: Phases, seed: int | None) -> None:
        self.cells = set(cells)
        self.phases = phases
        self.changes = phases.changes
        """How many changes of the phases are known here."""
        self.seed = seed
        self.streams: dict[Any, Stream] = {}
        self.fast: dict[Cell, list[Stream]] = {}
        """Per cell the streams of calls that look like earlier ones, the latest first."""
        self.count = 0
        self.ground = 0
        """The lowest level of calls from now on: results of lower ones are computed, or put off."""
        self.old = 0
        """How many calls are put off."""
        self.put_off = bytearray()
        """Per number of a result of a lower level whether it is put off."""
        self.stale = False
        """Whether phases have changed since calls were given their levels."""
        self.starts, self.whose = array("q"), array("q")
        """From which number on results are an instance's, and which one's."""
        self.fibers: Fibers | None = None
        self.closed = False
        self.reads = False
        """Whether a model has read a value, and could not wait for it."""
        self.draws: Draws | None = None if seed is None else of_instance(seed, 0)
        """The keys of what is drawn where the model is; None as long as no cell is known to draw."""
        self.drew = False
        """Whether one has, without a key."""

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.closed:
            raise _kept(cell, next(leaf for leaf in args if type(leaf) is Value))
        form = form_of(cell, args, kwargs)
        stream = self.streams.get(form)
        if stream is not None and stream.record is not None and not self.drew:
            found = stream.record(args, kwargs)
            if found is not None:
                self._remember(cell, stream)
                self.notice(cell, stream)
                return found
        stream, leaves = self._stream(cell, args, kwargs, form)
        values = [leaf for leaf in leaves if type(leaf) is Value]
        level = self.ground
        for n, value in enumerate(values):
            source = value.source
            if source.stream.recorder is not self:
                if source.stream.recorder.closed:
                    raise _kept(cell, value)
                # That of a mini-batch which this one is inside of, where it is data.
                return self.call(cell, *tree_util.tree_map(self._own, (args, kwargs)))
            if source not in stream.inside[n] and source not in stream.known[n] and self.is_pending(value):
                self._connect(stream, n, source)
            if source.stream.phase == stream.phase and value.level >= level:
                level = value.level + 1
        if stream.anchor:
            level = -(-level // STRIDE) * STRIDE
        data = [leaf for leaf in leaves if type(leaf) is not Value]
        if stream.trace.draws:
            if self.draws is None:
                self.drew = True
                raise StartAgainError
            data.append(self.draws.next())
        for column, leaf in zip(stream.data, data, strict=True):
            column.append(leaf)
        base = self.count
        stream.numbers.extend([*(value.number for value in values), base, level])
        self.count = base + stream.size
        if stream.record is not None:
            self._remember(cell, stream)
        results = [_value(source, base + n, level) for n, source in enumerate(stream.sources)]
        if stream.flat == 0:
            return results[0]
        return tuple(results) if stream.flat == 1 else tree_util.tree_unflatten(stream.trace.structure, results)

    def _remember(self, cell: Cell, stream: Stream) -> None:
        """Let the next calls of a cell be compared with this one, among a few others, before anything else is done."""
        streams = self.fast.setdefault(cell, [])
        if stream in streams:
            streams.remove(stream)
        elif not stream.installed:
            self._install(cell, stream)
        streams.insert(0, stream)
        del streams[LATEST:]

    def _own(self, leaf: Any) -> Any:
        """An argument of a call, read if it is a value of another mini-batch."""
        return leaf.read() if type(leaf) is Value and leaf.recorder is not self else leaf

    def _install(self, cell: Cell, stream: Stream) -> None:
        """Let calls of a cell go to a stream at once, for as long as they look like it."""
        stream.installed = True
        type(cell).__call__ = stream.direct  # type: ignore[assignment]

    def notice(self, cell: Cell, stream: Stream) -> None:
        """A call of a cell was not found at once: where that is so for every fourth call of all, it should be. Not if
        it was before: then there are many calls of two streams, and to find out that one does not fit takes time."""
        stream.found += 1
        if stream.found == OFTEN:
            if self.count - stream.since <= 4 * OFTEN * stream.size:
                if not stream.installed:
                    self._install(cell, stream)
                elif type(cell).__call__ is not Cell.__call__:
                    type(cell).__call__ = Cell.__call__  # type: ignore[method-assign]
            stream.found, stream.since = 0, self.count

    def close(self) -> None:
        """Nothing more is recorded: let no cell keep what was."""
        self.closed = True
        for one in self.fast:
            type(one).__call__ = Cell.__call__  # type: ignore[method-assign]

    def is_pending(self, value: Value) -> bool:
        """Whether a value is still to be computed."""
        return value.level >= self.ground or bool(self.put_off[value.number])

    def _stream(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any], form: Any) -> tuple[Stream, list[Any]]:
        """The stream of a call, and its arguments as a list."""
        leaves, structure = leaves_of(cell, (args, kwargs))
        is_value = tuple([type(leaf) is Value for leaf in leaves])
        kinds = tuple([leaf.kind if type(leaf) is Value else kind_of(leaf, cell.name) for leaf in leaves])
        key = (cell, structure, is_value, kinds) if form is None else form
        stream = self.streams.get(key)
        if stream is None:
            check_is_known(cell, self.cells)
            stream = self.streams[key] = Stream(self, cell.trace(structure, kinds), is_value, form)
            self._follow()
        return stream, leaves

    def _connect(self, stream: Stream, argument: int, source: Source) -> None:
        """Take note that a stream has an argument from another one."""
        other = source.stream
        self.phases.connect(stream.trace, other.trace)
        self._follow()
        (stream.inside if other.phase == stream.phase else stream.known)[argument].add(source)

    def _follow(self) -> None:
        """Go by the phases as they are now, whichever mini-batch has changed them. (Where neither a stream nor an
        argument is new, those from before are still in an order that is right.)"""
        found = self.phases.since(self.changes)
        if found is not None:
            self.changes, number = found
            self.stale = True
            for one in self.streams.values():
                one.phase = number[one.trace]
                for sources in (*one.inside, *one.known):
                    sources.clear()

    def begin(self, instance: int) -> None:
        """What follows is of an instance, until another one begins."""
        self.starts.append(self.count)
        self.whose.append(instance)
        self.draws = None if self.seed is None else of_instance(self.seed, instance)

    def misfits(self) -> Iterator[tuple[int, InputError]]:
        """The numbers of calls that are given integers which do not fit, and their errors; these become zeros."""
        for stream in self.streams.values():
            trace, values = stream.trace, sum(stream.is_value)
            kinds = [kind for kind, is_value in zip(trace.arguments, stream.is_value, strict=True) if not is_value]
            for column, kind in zip(stream.data, kinds, strict=True):
                if kind.dtype.kind not in "iu" or _misfit(column, trace, kind) is None:
                    continue
                for n, number in enumerate(stream.numbers[values :: values + 2]):
                    error = _misfit(column[n : n + 1], trace, kind)
                    if error is not None:
                        column[n] = np.zeros(kind.shape, kind.dtype)[()]
                        yield number, error

    def instances(self, numbers: np.ndarray[Any, Any]) -> list[int]:
        """The instances that made the calls with these results."""
        turns = np.searchsorted(np.array(self.starts), numbers, "right") - 1
        found: list[int] = np.unique(np.array(self.whose)[turns]).tolist()
        return found


def _value(source: Source, number: int, level: int) -> Value:
    value = Value()
    value.source, value.number, value.level = source, number, level
    return value


def _misfit(column: Sequence[Any], trace: Trace, kind: Kind) -> InputError | None:
    """The error of data that do not fit into their kind, if some do not."""
    try:
        if column:
            stacked(column, kind, trace.name)
    except InputError as error:
        return error
    return None


def _kept(cell: Cell, leaf: Value) -> ProgramError:
    return ProgramError(
        f"cell {cell.name}: {leaf!r} is of another mini-batch",
        places=[("here", user_line())],
        hint="do not keep results of cells from one mini-batch to the next",
    )


@cache
def data_trace(kind: Kind) -> Trace:
    """The cell that puts data into an arena, as they are."""
    _, structure = tree_util.tree_flatten(((0,), {}))
    return dataclasses.replace(cell(lambda x: x, name="data").trace(structure, (kind,)), auxiliary=True)


def use(recorder: Any) -> None:
    """Let this thread's calls of cells be recorded there."""
    local.recorder = recorder


def current() -> Recorder | None:
    found: Recorder | None = local.recorder
    return found
