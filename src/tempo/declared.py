"""What the declarations of a program give: dims, bounds and states, and which names they may have."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tempo.errors import ProgramError
from tempo.graph.node import Domain, Edge
from tempo.source import SourceLine, user_line
from tempo.symbolic import TRUE, Bound, Expr, constant
from tempo.symbolic import Dim as SymbolicDim
from tempo.temporal import add_case
from tempo.tensor import RecurrentTensor, TensorLike, as_tensor, is_weak

if TYPE_CHECKING:
    from tempo.program import Program

# Arguments of Program.evaluate, which takes the inputs by name beside them.
RESERVED = ("bounds", "progress", "seed")


class _Declared:
    """What a program has declared. A program lasts as long as its tensors, not as long as its dims and bounds: caches
    of the whole process keep these."""

    __slots__ = ()
    _program: weakref.ref[Program]

    @property
    def program(self) -> Program:
        found = self._program()
        if found is None:
            raise ProgramError(
                f"the program of {self} is no longer there",
                places=[("here", user_line())],
                hint="keep the program, or a tensor of it",
            )
        return found


class Dim(_Declared, SymbolicDim):
    """A temporal dimension of a program."""

    __slots__ = ("_program",)

    def __init__(
        self, program: Program, name: str, bound: Expr, origin: SymbolicDim | None = None, start: Expr | int = 0
    ) -> None:
        super().__init__(name, bound, origin, start)
        self._program = weakref.ref(program)

    @property
    def value(self) -> RecurrentTensor:
        """The step as a tensor: at ``t = 3`` it is 3 (int32)."""
        return as_tensor(self)


class ProgramBound(_Declared, Bound):
    """The bound of a program's dim."""

    __slots__ = ("_program",)

    def __init__(self, program: Program, name: str) -> None:
        super().__init__(name)
        self._program = weakref.ref(program)


class State(RecurrentTensor):
    """A tensor carried from point to point in lexicographic order; ``next`` says what it becomes."""

    __slots__ = ("_next", "_next_source", "over")

    def __init__(self, program: Program, edge: Edge, over: Domain) -> None:
        super().__init__(program, edge)
        self.over = over
        self._next: RecurrentTensor | None = None
        self._next_source: SourceLine | None = None

    def __setitem__(self, key: Any, value: TensorLike) -> None:
        raise ProgramError(
            f"state {self.name} is defined by its next value, not by cases",
            places=[("here", user_line()), (self.name, self.edge.node.source)],
            hint=f"write {self.name}.next = ..., in terms of {self.name} at this point",
        )

    @property
    def next(self) -> RecurrentTensor:
        """The value at the next point, in terms of values at this one."""
        if self._next is None:
            raise ProgramError(
                f"state {self.name} has no next value yet",
                places=[("here", user_line()), (self.name, self.edge.node.source)],
                hint=f"assign it first: {self.name}.next = ...",
            )
        return self._next

    @next.setter
    def next(self, value: TensorLike) -> None:
        here = user_line()
        if self._next is not None:
            raise ProgramError(
                f"state {self.name} has two next values",
                places=[("here", here), ("earlier", self._next_source)],
                hint="assign .next once; a choice between values is tp.where(...)",
            )
        tensor = as_tensor(value, self.program, self.dtype if is_weak(value) else None)
        # Where a dim goes one step on, the dims inside it start again, coming from their last steps.
        for position, d in reversed(list(enumerate(self.over))):
            inner = self.over[position + 1 :]
            step: dict[SymbolicDim, Expr] = {d: d + 1, **{e: constant(0) for e in inner}}
            last = {e: e.bound - 1 for e in inner}
            previous = tensor[tuple(last.get(e, e) for e in tensor.domain)]
            # Only the outermost dim has one point more, for the value after the last step.
            within = TRUE if position == 0 else d + 1 < d.bound
            target = tuple(step.get(e, e) for e in self.edge.node.domain)
            add_case(self, target, within, previous, here, f"{self.name}.next")
        self._next, self._next_source = tensor, here

    @property
    def final(self) -> RecurrentTensor:
        """The value after the last point."""
        first, *inner = self.over
        end: dict[SymbolicDim, Expr] = {first: first.bound, **{d: constant(0) for d in inner}}
        return self[tuple(end.get(d, d) for d in self.edge.node.domain)]


def check_name(name: str, what: str, reserved: Sequence[str] = RESERVED) -> None:
    """Raise an error unless something may have this name, by which it is given or found."""
    if isinstance(name, str) and name and name not in reserved:
        return check_text(name, what)
    others = ", ".join(map(repr, reserved[:-1]))
    raise ProgramError(
        f"{what} {name!r}: this cannot be a name",
        places=[("here", user_line())],
        hint=f"names come first and are non-empty strings other than {others} and {reserved[-1]!r}",
    )


def check_text(name: str, what: str) -> None:
    """Raise an error unless this can be written as a name: of what is called so, but never looked up by it."""
    if not isinstance(name, str) or any("\ud800" <= character <= "\udfff" for character in name):
        raise ProgramError(
            f"{what} {name!r}: this cannot be a name",
            places=[("here", user_line())],
            hint="names are strings, without halves of characters (surrogates), which files cannot hold",
        )
