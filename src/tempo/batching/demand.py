"""Which recorded calls are computed now: where instances wait, those that they wait for, and what these need.

The others are put off. A parser that has read its sentence only combines what is left on its stack: a chain of launches
of its own, while the others still decide. Put off, a call is made when something needs it, when its cell is launched
anyway and its arguments are there, or in the end, together with those of all other instances. (64 StackRNNs: 120
launches instead of 248.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np

from tempo.batching.phases import EPOCH, STRIDE
from tempo.batching.recording import Recorder, Stream
from tempo.batching.trace import Trace

Ints = np.ndarray[Any, Any]
Bools = np.ndarray[Any, Any]


MANY = 1000
"""So many calls that are put off are worth to find out whether they need to be looked at."""


@dataclass(eq=False)
class Block:
    """Recorded calls of one stream, the first ``old`` of which were put off before."""

    stream: Stream
    numbers: Ints
    """(arguments that are results + 2, calls): their numbers, those of the first results, the levels."""
    data: list[list[Any]]
    """The other arguments."""
    old: int

    @property
    def bases(self) -> Ints:
        found: Ints = self.numbers[-2]
        return found

    def chosen(self, which: Bools) -> Block:
        data = [list(compress(column, which)) for column in self.data]
        return Block(self.stream, self.numbers.compress(which, 1), data, int(np.count_nonzero(which[: self.old])))

    @property
    def results(self) -> Ints:
        """(results, calls): their numbers."""
        return self.bases[None] if self.stream.size == 1 else self.bases + np.arange(self.stream.size)[:, None]


def taken(recorder: Recorder, wanted: Sequence[int] | None) -> list[Block]:
    """What is to be computed, now that instances wait for the results with these numbers (None: everything)."""
    recorder.put_off.extend(bytes(recorder.count - len(recorder.put_off)))
    found = None
    if wanted is not None and recorder.old >= MANY and not recorder.stale:
        found = _without_old(recorder, wanted)
    if found is None:
        found = _of_all(recorder, wanted)
    recorder.ground += EPOCH
    return found


def _without_old(recorder: Recorder, wanted: Sequence[int]) -> list[Block] | None:
    """The same where calls that were put off before stay so, and are not even looked at, however many they are: None if
    they may be needed, or made along."""
    blocks = [_new(stream) for stream in recorder.streams.values() if stream.numbers]
    now, rest, _ = _needed(blocks, wanted, recorder)
    put_off = np.frombuffer(recorder.put_off, np.uint8)
    read = [np.array(wanted), *(block.numbers[:-2].ravel() for block in now)]
    old = {stream.trace for stream in recorder.streams.values() if stream.put_off}
    launched = {block.stream.trace for block in now if (block.numbers[-1] <= recorder.ground).any()}
    if old & launched or any(put_off[numbers].any() for numbers in read):
        return None
    for block in blocks:
        block.stream.clear()
    _put_off(rest, recorder, put_off)
    return now


def _put_off(blocks: Sequence[Block], recorder: Recorder, put_off: Ints) -> None:
    for block in blocks:
        block.old = block.numbers.shape[1]
        block.stream.put_off.append(block)
        recorder.old += block.old
        put_off[block.results] = 1


def _of_all(recorder: Recorder, wanted: Sequence[int] | None) -> list[Block]:
    """The same with a look at everything that is not computed."""
    blocks = [_recorded(stream) for stream in recorder.streams.values() if stream.numbers or stream.put_off]
    again = any(block.old for block in blocks)
    rest: list[Block] = []
    # Where every call is waited for, nothing needs to be found out.
    if wanted is not None and (again or sum(block.numbers.shape[1] for block in blocks) > len(wanted)):
        blocks, rest, again = _needed(blocks, wanted, recorder)
    if recorder.stale:
        _align(blocks, recorder)
        recorder.stale = False
    elif again:
        _levels(blocks, recorder.phases.anchors, recorder.ground, None)
    put_off = np.frombuffer(recorder.put_off, np.uint8)
    put_off[:] = recorder.old = 0
    _put_off(rest, recorder, put_off)
    return blocks


def _new(stream: Stream) -> Block:
    """The calls of a stream since something was computed."""
    numbers = np.array(stream.numbers, np.int64).reshape(-1, sum(stream.is_value) + 2).T
    return Block(stream, numbers, [list(column) for column in stream.data], 0)


def _recorded(stream: Stream) -> Block:
    """All calls of a stream that are not computed, which it then has no longer."""
    new, before = _new(stream), list(stream.put_off)
    stream.clear()
    stream.put_off.clear()
    if not before:
        return new
    some = [*before, new]
    data = [list(chain(*columns)) for columns in zip(*(block.data for block in some), strict=True)]
    old = sum(block.old for block in before)
    return Block(stream, np.concatenate([block.numbers for block in some], 1), data, old)


def _needed(blocks: list[Block], wanted: Sequence[int], recorder: Recorder) -> tuple[list[Block], list[Block], bool]:
    """The calls that are to be made, the others, and whether the levels of the first are to be counted again."""
    needed, pending = np.zeros(recorder.count, bool), np.zeros(recorder.count, bool)
    needed[list(wanted)] = True
    results = [block.results for block in blocks]
    made: list[Bools] = [needed] * len(blocks)
    # What a phase needs is of the same one, or of one before it.
    for phase in sorted({block.stream.phase for block in blocks}, reverse=True):
        own = [n for n, block in enumerate(blocks) if block.stream.phase == phase]
        circular = len(own) > 1 or recorder.phases.is_recursive(blocks[own[0]].stream.trace)
        counts: list[Any] = []
        while True:
            before = counts
            for n in own:
                found = needed[results[n]]
                made[n] = found[0] if len(found) == 1 else np.any(found, 0)
                needed[blocks[n].numbers[:-2].compress(made[n], 1)] = True
            if not circular or (counts := [np.count_nonzero(made[n]) for n in own]) == before:
                break
    # Levels were counted as if what was put off before were computed.
    again = any(block.old and bool(some[: block.old].any()) for block, some in zip(blocks, made, strict=True))
    is_whole = [bool(some.all()) for some in made]
    if all(is_whole):
        return blocks, [], again
    launched = {
        block.stream.trace
        for block, some in zip(blocks, made, strict=True)
        if (block.numbers[-1].compress(some) <= recorder.ground).any()
    }
    for numbers in results:
        pending[numbers] = True
    for n, block in enumerate(blocks):
        if not is_whole[n] and block.stream.trace in launched:
            made[n] |= ~pending[block.numbers[:-2]].any(0)
            is_whole[n] = bool(made[n].all())
            block.numbers[-1, : block.old] = recorder.ground
    now = [b if whole else b.chosen(some) for b, some, whole in zip(blocks, made, is_whole, strict=True) if some.any()]
    rest = [block.chosen(~some) for block, some, whole in zip(blocks, made, is_whole, strict=True) if not whole]
    return now, rest, again


def _align(blocks: Sequence[Block], recorder: Recorder) -> None:
    """Count the levels again, since phases turned out to be others, with the anchors that make the fewest launches:
    from now on calls are recorded with them."""
    anchors = recorder.phases.anchors
    together: dict[int, dict[Trace, None]] = {}
    for block in blocks:
        together.setdefault(block.stream.phase, {})[block.stream.trace] = None
    anchors.difference_update(*together.values())
    for phase, traces in together.items():
        if len(traces) > 1:
            fewest = _levels(blocks, anchors, recorder.ground, phase)
            for trace in traces:
                count = _levels(blocks, anchors - set(traces) | {trace}, recorder.ground, phase)
                if count < fewest:
                    fewest = count
                    anchors.difference_update(traces)
                    anchors.add(trace)
    _levels(blocks, anchors, recorder.ground, None)
    for stream in recorder.streams.values():
        stream.anchor = stream.trace in anchors


def _levels(blocks: Sequence[Block], anchors: set[Trace], ground: int, only: int | None) -> int:
    """Count the levels of all calls, or of one phase's: how many launches there are."""
    some = [block for block in blocks if only is None or block.stream.phase == only]
    calls = [block.numbers.T.tolist() for block in some]
    order = sorted((call[-2], n, k) for n, own in enumerate(calls) for k, call in enumerate(own))
    levels = [[0] * len(own) for own in calls]
    found: dict[int, tuple[int, int]] = {}
    launches = set()
    for base, n, k in order:
        stream = some[n].stream
        level = ground
        for number in calls[n][k][:-2]:
            phase, below = found.get(number, (-1, 0))
            if phase == stream.phase:
                level = max(level, below + 1)
        if stream.trace in anchors:
            level = -(-level // STRIDE) * STRIDE
        levels[n][k] = level
        launches.add((stream.trace, level))
        for position in range(stream.size):
            found[base + position] = stream.phase, level
    for block, own in zip(some, levels, strict=True):
        block.numbers[-1] = own
    return len(launches)
