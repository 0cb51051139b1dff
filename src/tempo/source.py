"""Where in the user's program something was written."""

from __future__ import annotations

import contextlib
import copy
import linecache
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

_OURS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, contextlib.__file__, copy.__file__, pickle.__file__)
"""Files that are not the user's: Tempo's, and those of Python that call functions of Tempo's classes."""

IMPORTED_AT = time.time()
"""Sources of Tempo that are newer are not those that run."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a user's program."""

    file: str
    line: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line}"
        return f"{place}: {self.text}" if self.text else place


_attributed: ContextVar[SourceLine | None] = ContextVar("attributed", default=None)


@contextlib.contextmanager
def attributed_to(line: SourceLine) -> Iterator[None]:
    """What is made inside was asked for at this line, whoever is on the call stack."""
    token = _attributed.set(line)
    try:
        yield
    finally:
        _attributed.reset(token)


def user_line() -> SourceLine:
    """The innermost line on the call stack that is not Tempo's own."""
    attributed = _attributed.get()
    if attributed is not None:
        return attributed
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)
