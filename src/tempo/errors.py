"""Every error a user can meet, written like documentation.

A message has a first line that says what is wrong in the user's names, then the lines of the program that
matter, then the likely fix. ``user_line()`` is the line that is being run, as a place:
``places=[("here", user_line())]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from tempo.source import SourceLine
from tempo.source import user_line as user_line


class TempoError(Exception):
    """The base of all errors raised by Tempo.

    ``message`` says what is wrong, ``places`` are ``(label, source line)`` pairs that locate it in the
    user's program, ``hint`` says what to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        places: Iterable[tuple[str, SourceLine | None]] = (),
        hint: str = "",
    ) -> None:
        self.message = message
        # Of several labels for one line the first says why it matters most.
        labels: dict[SourceLine, str] = {}
        for label, line in places:
            if line is not None:
                labels.setdefault(line, label)
        self.places = tuple((label, line) for line, label in labels.items())
        self.hint = hint
        lines = [message]
        lines.extend(f"  {label}: {line}" for label, line in self.places)
        if hint:
            lines.append(f"  hint: {hint}")
        super().__init__("\n".join(lines))


class IndexExpressionError(TempoError, TypeError):
    """An index is not a quasi-affine expression of dims, bounds and integers."""


class ShapeError(TempoError, ValueError):
    """Shapes do not fit together."""


class DtypeError(TempoError, TypeError):
    """Element types do not fit together."""


class DomainError(TempoError, ValueError):
    """A tensor varies over dims that it may not vary over here."""


class ProgramError(TempoError, ValueError):
    """A program is put together wrongly: names, missing definitions, tensors of another program."""


class DefinitionError(TempoError, ValueError):
    """A tensor is needed at a point where nothing defines it."""


class CausalityError(TempoError, ValueError):
    """A value depends on itself."""


class BoundError(TempoError, ValueError):
    """The numbers given for the bounds do not do."""


class InputError(TempoError, ValueError):
    """The data given for a run does not fit the program's inputs."""


class GradientError(TempoError, ValueError):
    """A gradient that cannot exist was asked for."""


class HostError(TempoError, RuntimeError):
    """A host function raised, or returned something other than it declared."""


class CheckpointError(TempoError, ValueError):
    """There is nothing to save, or a file is not a checkpoint of this program."""


class ModelError(TempoError, ValueError):
    """The files of a language model are missing, damaged, or say something that Tempo does not support."""


class PackageError(TempoError, ImportError):
    """An optional package is needed and not installed."""


class BudgetError(TempoError, MemoryError):
    """A program does not fit into the memory that it may take; ``smallest`` is what it would fit into."""

    def __init__(self, message: str, *, smallest: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.smallest = smallest

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), smallest=self.smallest), self.args, vars(self)
