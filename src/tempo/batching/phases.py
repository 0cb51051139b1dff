"""Phases: cells that need each other's results are one, and phases follow each other as their dependences say."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from tempo.batching.trace import Trace
from tempo.errors import user_line

STRIDE = 1 << 20
"""An anchor's calls are made at levels that are multiples of it."""
EPOCH = 1 << 40
"""Levels begin at a multiple of it, the next one whenever something was computed: so what was computed has lower levels
than whatever needs it. Larger than any level of a mini-batch, and a multiple of ``STRIDE``."""


MANY = 1000
"""No model has so many cells that are made once."""
_lock = threading.Lock()
"""Threads may find out something at the same time. Not one for each model: these can be copied."""


@dataclass
class Phases:
    """Which cells need which others' results, as far as was seen, and their phases: ``number`` says their order.

    Several mini-batches may be recorded at once, one inside of another or in threads, and what one finds out changes
    the phases that the others go by: ``changes`` counts how often."""

    needs: dict[Trace, set[Trace]] = field(default_factory=dict)
    number: dict[Trace, int] = field(default_factory=dict)
    anchors: set[Trace] = field(default_factory=set)
    recursive: set[Trace] = field(default_factory=set)
    """Those that need results of their own phase."""
    changes: int = 0

    def join(self, trace: Trace) -> int:
        """The phase of a cell. One that is new is behind all others, which stay where they are."""
        with _lock:
            if trace not in self.needs:
                self.needs[trace] = set()
                self._count()
                if len(self.needs) == MANY:
                    warnings.warn(
                        f"the model has called {MANY} different cells, one of them {trace.cell.name}: make cells once, "
                        f"outside of the model, since calls of two cells are never computed together ({user_line()})",
                        stacklevel=2,
                    )
            return self.number[trace]

    def connect(self, trace: Trace, other: Trace) -> None:
        """Let one need another."""
        with _lock:
            if other not in self.needs[trace]:
                self.needs[trace].add(other)
                self._count()
                self.changes += 1

    def since(self, changes: int) -> tuple[int, Mapping[Trace, int]] | None:
        """How many changes there are, and the phases: None if there are no more than so many."""
        with _lock:
            return None if self.changes == changes else (self.changes, self.number)

    def is_recursive(self, trace: Trace) -> bool:
        return trace in self.recursive

    def _count(self) -> None:
        self.number = {trace: n for n, traces in enumerate(phases(self.needs)) for trace in traces}
        self.recursive = {
            trace
            for trace, others in self.needs.items()
            if any(self.number[other] == self.number[trace] for other in others)
        }


def phases(before: Mapping[Trace, set[Trace]]) -> list[list[Trace]]:
    """Strongly connected components, each after those that it needs (Tarjan's algorithm)."""
    number: dict[Trace, int] = {}
    lowest: dict[Trace, int] = {}
    stack: list[Trace] = []
    found: list[list[Trace]] = []

    def visit(trace: Trace) -> None:
        number[trace] = lowest[trace] = len(number)
        stack.append(trace)
        for other in before[trace]:
            if other not in number:
                visit(other)
                lowest[trace] = min(lowest[trace], lowest[other])
            elif other in stack:
                lowest[trace] = min(lowest[trace], number[other])
        if lowest[trace] == number[trace]:
            start = stack.index(trace)
            found.append(stack[start:])
            del stack[start:]

    for trace in before:
        if trace not in number:
            visit(trace)
    return found
