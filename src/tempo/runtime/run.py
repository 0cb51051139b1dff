"""One run of a program, from one place where it can stop to the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tempo.errors import TempoError
from tempo.given import Record
from tempo.graph.node import Node
from tempo.runtime.interrupts import HeldBack
from tempo.schedule.looptree import BlockSteps, Loop
from tempo.schedule.script import END, START, Call, Chunks, Each, Item, Part, Position, Script
from tempo.symbolic import Dim

At = Mapping[Dim, int | BlockSteps]
Records = Iterable[tuple[str, Record]]

# A chunk of iterations is made longer while it takes less than the first, shorter if it takes more than the second:
# a person sees values several times a second, and starting chunks takes no noticeable part of the time.
SHORT_SECONDS = 0.1
LONG_SECONDS = 0.4


class Worker(Protocol):
    """What a backend does for a run. It has the stores."""

    def part(self, item: Part, at: At) -> Records:
        """Compute trees; what they emit."""

    def chunk(self, item: Chunks, at: At, steps: range) -> Records:
        """Make some iterations of a loop; what they emit."""

    def call(self, node: Node, at: At) -> None:
        """Make a host call."""

    def last_step(self, loop: Loop) -> int:
        """The step before which a loop with this stop condition ends, as far as that is known."""

    def outputs(self) -> dict[str, Any]:
        """The outputs, when everything is done."""

    def kept(self, needed: set[Node]) -> dict[Any, Any]:
        """What a checkpoint must have: stores and the results of host calls, by node, and steps made, by bound."""


class Run:
    """Where a run is in its script, and the records that it has made and not handed out yet.

    A run is at a position at all times, also after an error, unless something went wrong within a part of the script
    that is done in one go; then it is ``broken``.
    """

    def __init__(
        self,
        script: Script,
        worker: Worker,
        seed: int,
        position: Position = START,
        pending: Records = (),
        counts: dict[Chunks, int] | None = None,
    ) -> None:
        """``counts`` has how many iterations of a loop take neither too short nor too long a time, as far as it is
        known; what this run finds is added."""
        self.script = script
        self.worker = worker
        self.seed = seed
        self.position = position if script.items else END
        self.pending = deque(pending)
        self.broken = False
        self.counts = {} if counts is None else counts
        self.held_back = HeldBack()

    def advance(self) -> bool:
        """Do what is next. False if there is nothing left to do."""
        if not self.position:
            return False
        if self.broken:
            raise TempoError(
                "this run failed in the middle of an iteration and cannot go on",
                hint="start another one, or load a checkpoint",
            )
        if self._calls_host(self.script.items, self.position):
            self._proceed()  # whoever presses Ctrl-C wants to stop the host function
            return True
        with self.held_back:
            self.broken = True
            self._proceed()
            self.broken = False
        return True

    def _proceed(self) -> None:
        records, position = self._step(self.script.items, {}, self.position)
        self.pending.extend(records)
        self.position = position

    def _calls_host(self, items: Sequence[Item], position: Position) -> bool:
        number, *inside = position
        item = items[number]
        if isinstance(item, Each):
            return self._calls_host(item.body, tuple(inside[1:]) or START)
        return isinstance(item, Call)

    def _step(self, items: Sequence[Item], at: At, position: Position) -> tuple[Records, Position]:
        """Do the one thing at a position; what it emits, and the position after it."""
        number, *inside = position
        item = items[number]
        done = inside[0] if inside else 0
        records: Records = ()
        rest: Position = ()
        match item:
            case Part():
                records = list(self.worker.part(item, at))
            case Call():
                self.worker.call(item.node, at)
            case Chunks() if not self._is_over(item.loop, done):
                count = min(self.counts.get(item, 1), len(item.loop.steps) - done)
                records = self._chunk(item, at, item.loop.steps[done : done + count])
                rest = () if self._is_over(item.loop, done + count) else (done + count,)
            case Each() if not self._is_over(item.loop, done):
                within = {**at, item.loop.dim: item.loop.at(item.loop.steps[done], at.get(item.loop.dim))}
                records, inner = self._step(item.body, within, tuple(inside[1:]) or START)
                rest = (done, *inner) if inner else () if self._is_over(item.loop, done + 1) else (done + 1,)
        if rest:
            return records, (number, *rest)
        return records, (number + 1,) if number + 1 < len(items) else END

    def _is_over(self, loop: Loop, done: int) -> bool:
        """Whether a loop ends after some of its iterations."""
        if done == len(loop.steps):
            return True
        if loop.until is None or loop.backwards:
            return False
        return loop.steps[done] >= self.worker.last_step(loop)

    def _chunk(self, item: Chunks, at: At, steps: range) -> Records:
        start = time.perf_counter()
        records = list(self.worker.chunk(item, at, steps))
        seconds = time.perf_counter() - start
        if seconds < SHORT_SECONDS:
            # The last chunk of a loop may be a short one.
            self.counts[item] = min(max(2 * len(steps), self.counts.get(item, 1)), item.most)
        elif seconds > LONG_SECONDS:
            self.counts[item] = max(len(steps) // 2, 1)
        return records
