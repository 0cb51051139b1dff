"""Several processes, one device: what is compiled at the same time is timed alone; what does not fit in waits."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition


@dataclass(frozen=True)
class Turns:
    """Who may use the device, among processes that know the same file; without a file there are no others."""

    path: Path | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """While others compile as well."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process does anything. Not within ``together``, of which each would wait for the others."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        if self.path is None:
            yield
            return
        with self.path.open("w") as file:
            fcntl.flock(file, kind)  # until the file is closed
            yield


class Room:
    """The bytes of a device, which threads share out among what they start."""

    def __init__(self, size: float) -> None:
        self.size = size
        self.taken = 0.0
        self.changed = Condition()

    @contextmanager
    def of(self, size: float) -> Iterator[None]:
        """So many bytes, as soon as others have left them; what is larger than all of it has it alone."""
        with self.changed:
            self.changed.wait_for(lambda: self.taken == 0 or self.taken + size <= self.size)
            self.taken += size
        try:
            yield
        finally:
            with self.changed:
                self.taken -= size
                self.changed.notify_all()
