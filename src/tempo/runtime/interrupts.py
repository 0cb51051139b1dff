"""Ctrl-C that waits until a program can be stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block; if it is pressed twice, at once."""
    handler = signal.getsignal(signal.SIGINT)
    # Python gives signals to the main thread alone; a handler that is none was set by somebody to ignore them.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed: list[FrameType | None] = []

    def note(signum: int, frame: FrameType | None) -> None:
        pressed.append(frame)
        if len(pressed) > 1:
            handler(signum, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        handler(signal.SIGINT, pressed[0])
