"""What Python's ``copy`` and ``pickle`` make of programs: those have one of each tensor and dim, known by identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn, Self

from tempo.errors import ProgramError, user_line

_WRITTEN_AGAIN = (
    "where another one is needed, write it there: put 'with tp.Program(...)' into a function, and call that"
)


class PartOfProgram:
    """Immutable, or known by its identity: a copy of it is itself. It is not pickled without its program."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ProgramError(
            f"{self._named()} is part of a program, which cannot be pickled",
            places=[("here", user_line())],
            hint=_WRITTEN_AGAIN,
        )

    def _named(self) -> str:
        return str(self)


class OneOfAKind(ABC):
    """What changes while it is used, and refers to parts of a program: there are no copies of it."""

    __slots__ = ()
    _instead = _WRITTEN_AGAIN

    def __copy__(self) -> NoReturn:
        raise self._error("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._error("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._error("pickled")

    def _error(self, done: str) -> ProgramError:
        return ProgramError(
            f"{self._named()} cannot be {done}", places=[("here", user_line())], hint=type(self)._instead
        )

    @abstractmethod
    def _named(self) -> str:
        """What an error calls it."""
