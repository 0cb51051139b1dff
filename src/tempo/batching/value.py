"""Results of cells, while a model runs: nothing is computed yet. And what there is to do with structures of them."""

from __future__ import annotations

import copy
import dataclasses
import operator
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import tempo as tp
from tempo.batching.cell import Cell, cell, local
from tempo.batching.trace import Kind, kind
from tempo.errors import ProgramError, ShapeError, user_line

if TYPE_CHECKING:
    from tempo.batching.batched import Errors
    from tempo.batching.recording import Source


class StartAgainError(BaseException):
    """A model does what it cannot do as it is run: it is run again, in another way."""


class Tensor(ABC):
    """A result of a cell, as a model has it: operators on it are calls of small cells, comparisons and conversions
    (``float(v)``, ``bool(v)``, ``v > 0.5``, ``np.asarray(v)``) read it."""

    __slots__ = ()

    @property
    @abstractmethod
    def kind(self) -> Kind: ...

    @property
    @abstractmethod
    def recorder(self) -> Any:
        """Where calls with it are recorded, or computed."""

    @abstractmethod
    def read(self) -> np.ndarray[Any, Any]:
        """The value as an array of its reader's own, for decisions of the model."""

    def _called(self, cell: Cell, *args: Any) -> Any:
        """A call of one of the small cells: where the model runs, it is recorded as fast as those of other cells."""
        recorder = self.recorder
        return cell(*args) if local.recorder is recorder else recorder.call(cell, args, {})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.kind.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        # Of one number, what is read is a scalar of NumPy's.
        return np.asarray(self.read(), dtype)

    def __bool__(self) -> bool:
        return bool(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __float__(self) -> float:
        return float(self.read())

    def __index__(self) -> int:
        return operator.index(self.read())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.read(), digits)  # type: ignore[call-overload]

    def __format__(self, spec: str) -> str:
        return format(self.read(), spec) if spec else str(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _: Any) -> Any:
        # Nobody can change it; and what it comes from is the whole mini-batch.
        return self

    def __lt__(self, other: Any) -> Any:
        return self.read() < other

    def __le__(self, other: Any) -> Any:
        return self.read() <= other

    def __gt__(self, other: Any) -> Any:
        return self.read() > other

    def __ge__(self, other: Any) -> Any:
        return self.read() >= other

    def __eq__(self, other: Any) -> Any:
        return self.read() == other

    def __ne__(self, other: Any) -> Any:
        return self.read() != other

    __hash__ = object.__hash__

    def __getitem__(self, index: Any) -> Any:
        given = index if isinstance(index, tuple) else (index,)
        for part in given:
            # Truth values are numbers, too, and True is found in a cache where 1 was put.
            if isinstance(part, bool) or not isinstance(part, int | np.integer | slice | type(None) | type(...)):
                raise ProgramError(
                    f"{self!r} is indexed with {part!r}",
                    places=[("here", user_line())],
                    hint="outside of a cell an index is made of numbers and slices; inside, tp.take takes any",
                )
        named = sum(part is not None and part is not ... for part in given)
        if named > self.ndim:
            raise ShapeError(
                f"{self!r} is indexed with {index!r}: {named} indices for {self.ndim} axes",
                places=[("here", user_line())],
            )
        axes, numbers, parts, axis = [], [], [], 0
        for part in given:
            if part is ...:
                axis += self.ndim - named
            elif isinstance(part, int | np.integer):
                axes.append(axis)
                numbers.append(self._inside(int(part), axis))
                axis += 1
                continue
            elif part is not None:
                axis += 1
            # Slices cannot be hashed before Python 3.12.
            parts.append(("slice", part.start, part.stop, part.step) if isinstance(part, slice) else part)
        return self._called(_item(tuple(axes), tuple(parts)), self, *numbers)

    def _inside(self, number: int, axis: int) -> int:
        """An index, counted from the beginning of an axis."""
        size = self.shape[axis]
        if not -size <= number < size:
            raise ShapeError(
                f"{self!r} is indexed with {number}, which is out of range for axis {axis}",
                places=[("here", user_line())],
                hint=f"indices go from {-size} to {size - 1}" if size else "the axis has no elements",
            )
        return number % size

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self!r} has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[n] for n in range(len(self)))

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return self._called(_operator("neg"), self)

    def __invert__(self) -> Any:
        return self._called(_operator("invert"), self)

    def __abs__(self) -> Any:
        return self._called(_operator("abs"), self)

    __array_ufunc__ = None


class Value(Tensor):
    """One that is computed later, together with those of other instances: reading it makes this instance wait."""

    # No __init__: one would take as long again as all that is done here (140 ns instead of 70, for every result).
    __slots__ = ("level", "number", "source")

    source: Source
    number: int
    level: int

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def recorder(self) -> Any:
        return self.source.stream.recorder

    def read(self) -> np.ndarray[Any, Any]:
        recorder = self.recorder
        if recorder.fibers is None:
            if recorder.closed:
                raise ProgramError(
                    f"{self!r} is read after its mini-batch",
                    places=[("here", user_line())],
                    hint="what a model returns has arrays: numbers, lists, tuples, dicts and dataclasses of results",
                )
            recorder.reads = True
            raise StartAgainError
        found: np.ndarray[Any, Any] = recorder.fibers.read(self)
        return found

    def __repr__(self) -> str:
        return f"<{self.kind} of cell {self.source.stream.trace.cell.name}>"


class Computed(Tensor):
    """One that is computed already, where every call is made by itself."""

    __slots__ = ("_recorder", "array")

    def __init__(self, array: Any, recorder: Any) -> None:
        self.array = array
        self._recorder = recorder

    @property
    def recorder(self) -> Any:
        return self._recorder

    @property
    def kind(self) -> Kind:
        return kind(self.array.shape, self.array.dtype)

    def read(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = np.array(self.array)[()]
        return found

    def __repr__(self) -> str:
        return repr(self.array)


NO_OPERANDS = (list, tuple, dict, str, type(None))
"""What Python knows better: ``[x] * count`` repeats a list, and most else is a mistake."""


def _binary(name: str) -> None:
    """Let tensors have an operator, and its reflection."""

    def there(self: Tensor, other: Any) -> Any:
        if isinstance(other, NO_OPERANDS):
            return NotImplemented
        return self._called(_operator(name), self, other)

    def back(self: Tensor, other: Any) -> Any:
        if isinstance(other, NO_OPERANDS):
            return NotImplemented
        return self._called(_operator(name), other, self)

    setattr(Tensor, f"__{name}__", there)
    setattr(Tensor, f"__r{name}__", back)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    _binary(_name)


def _missing(name: str) -> None:
    """Let tensors not have an attribute, and say so."""

    def missing(_: Tensor) -> Any:
        raise AttributeError(
            f"a result of a cell has no attribute '{name}' outside of cells\n"
            "  hint: float(v), int(v) and np.asarray(v) read it; functions of tensors belong into a cell, tp.cell"
        )

    setattr(Tensor, name, property(missing))


# Each by itself: with a __getattr__, all attributes would take Python longer (10% of what a call of a cell takes).
for _name in ("item", "tolist", "numpy", "size", *vars(tp.RecurrentTensor)):
    if not _name.startswith("_") and not hasattr(Tensor, _name):
        _missing(_name)


@cache
def _operator(name: str) -> Cell:
    return cell(getattr(operator, f"__{name}__"), name=name)


@cache
def _item(axes: tuple[int, ...], parts: tuple[Any, ...]) -> Cell:
    """Something of a tensor: at some axes what is at one place, and then parts of it.

    Places are data: as constants they would be a kernel each, of which all elements of a vector are one launch."""
    rest = tuple(slice(*part[1:]) if isinstance(part, tuple) else part for part in parts)

    def item(x: Any, *places: Any) -> Any:
        for axis, place in zip(reversed(axes), reversed(places), strict=True):
            x = tp.take(x, place, axis=axis)
        return x.space[rest] if rest else x

    return cell(item)


ATOMS = frozenset({int, float, bool, str, type(None), np.ndarray})
VALUES = {Value}


def values_in(result: Any, found: list[Value]) -> None:
    """Add all values of a result, in the order in which ``replaced`` meets them."""
    what = type(result)
    if what is Value:
        found.append(result)
    elif what not in ATOMS:
        if (what is list or what is tuple) and set(map(type, result)) == VALUES:
            found.extend(result)
            return

        def noted(value: Any) -> Any:
            found.append(value)
            return value

        replaced(result, noted)


def for_each(results: Iterable[Any], function: Callable[[Any], Any], errors: Errors = "raise") -> list[Any]:
    """What a function that goes through structures gives for the results of all instances, or its errors."""
    found: list[Any] = []
    for n, result in enumerate(results):
        try:
            found.append(function(result))
        except (RecursionError, SystemError) as cause:  # JAX makes the one of the other
            error = ProgramError(
                f"the model's result for instance {n} is nested deeper than Python allows, "
                f"{sys.getrecursionlimit()} calls",
                hint="let it return a list in place of nested pairs, or raise the limit: sys.setrecursionlimit",
            )
            if errors == "raise":
                raise error from cause
            error.__cause__ = cause
            found.append(error)
    return found


def replaced(result: Any, of: Callable[[Any], Any]) -> Any:
    """A result of the same structure with something else for each tensor. What is in it twice is one thing there, too,
    and a circle stays one; only tensors are another each time."""
    what = type(result)
    if what is Value or what is Computed:
        return of(result)
    if what in ATOMS:
        return result
    if what is list and set(map(type, result)) == VALUES:
        return list(map(of, result))
    return _Replacing(of).part(result)


class _Replacing:
    """What a result becomes, part by part."""

    __slots__ = ("found", "of")

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self.of = of
        self.found: dict[int, tuple[Any, Any]] = {}
        """By identity parts, which are kept so that no other gets it, and what they have become: None if that is not
        known yet."""

    def part(self, part: Any) -> Any:
        # One frame for each level of lists, tuples and dicts: there are not many.
        what = type(part)
        if what is Value or what is Computed:
            return self.of(part)
        if what in ATOMS:
            return part
        if id(part) in self.found:
            return self._again(part)
        new: Any
        if what is list:
            self.found[id(part)] = part, (new := [])
            for one in part:
                new.append(self.part(one))
            return new
        if what is dict:
            self.found[id(part)] = part, (new := {})
            for key, one in part.items():
                new[key] = self.part(one)
            return new
        if isinstance(part, dict):
            return self._changed(part, dict(part), what.__setitem__)
        if isinstance(part, list | deque):
            return self._changed(part, dict(enumerate(part)), what.__setitem__)
        if isinstance(part, tuple):
            new = []
            for one in part:
                new.append(self.part(one))
            if id(part) in self.found:  # it is inside of a list that is inside of it
                return self._again(part)
            if what is tuple or any(a is not b for a, b in zip(new, part, strict=True)):
                # As it is made of its parts, whatever its own __new__ takes.
                self.found[id(part)] = part, tuple.__new__(what, new)
            else:
                self.found[id(part)] = part, part
            return self.found[id(part)][1]
        if dataclasses.is_dataclass(part) and not isinstance(part, type | Cell):
            fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if hasattr(part, f.name)}
            # Not made anew: what its __init__ does was done with the model's own results.
            return self._changed(part, fields, object.__setattr__)
        return part

    def _again(self, part: Any) -> Any:
        """A part that was met before; if it is inside of itself, it is copied before that is known to be necessary."""
        _, new = self.found[id(part)]
        if new is None:
            new = copy.copy(part)
            self.found[id(part)] = part, new
        return new

    def _changed(self, part: Any, held: dict[Any, Any], change: Callable[[Any, Any, Any], None]) -> Any:
        """The same for what else holds something: a defaultdict stays one. It stays what it is if nothing changes."""
        self.found[id(part)] = part, None
        changed = {}
        for key, before in held.items():
            after = self.part(before)
            if after is not before:
                changed[key] = after
        _, new = self.found[id(part)]
        if new is None:
            new = copy.copy(part) if changed else part
            self.found[id(part)] = part, new
        for key, one in changed.items():
            change(new, key, one)
        return new
