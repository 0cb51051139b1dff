"""How long something may compute."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooSlowError(Exception):
    """Something that computes for longer than it may."""


@contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    """Raise ``TooSlowError`` inside of what computes for longer, wherever it is then in Python.

    The processor's time counts, which is about the same however much else a machine does. Only a process's first thread
    can be interrupted, and not on every system: elsewhere there is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TooSlowError(f"{what} takes more than {seconds:g} seconds")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
