"""Ctrl-C that waits until a program can be stopped."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class HeldBack:
    """A block at the end of which Ctrl-C takes effect; at once, if it is pressed twice.

    Setting the handler takes about 10 us. Within a ``watched`` block that is done once for all blocks.
    """

    def __init__(self) -> None:
        self._before: Any = None
        """The handler that there was before ours."""
        self._holding = False
        self._pressed: list[FrameType | None] = []
        self.watched = _Watched(self)

    def __enter__(self) -> None:
        self._own = self._before is None and self.watch()
        self._pressed.clear()
        self._holding = True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._holding = False
        before = self._before
        if self._own:
            self.unwatch()
        if self._pressed and kind is None:
            before(signal.SIGINT, self._pressed[0])

    def watch(self) -> bool:
        """Set the handler; False if there is nothing to be set."""
        before = signal.getsignal(signal.SIGINT)
        # Python gives signals to the main thread alone; a handler that is none was set by somebody to ignore them.
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            return False
        self._before = before
        signal.signal(signal.SIGINT, self._note)
        return True

    def unwatch(self) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._before = None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._holding:
            self._pressed.append(frame)
            if len(self._pressed) == 1:
                return
        self._before(signum, frame)


class _Watched:
    """A block in which a handler for Ctrl-C is set."""

    def __init__(self, held_back: HeldBack) -> None:
        self.held_back = held_back
        self.ours = False

    def __enter__(self) -> None:
        self.ours = self.held_back._before is None and self.held_back.watch()

    def __exit__(self, *_: Any) -> None:
        if self.ours:
            self.held_back.unwatch()
            self.ours = False
