"""Results of cells, while a model runs: nothing is computed yet. And what there is to do with structures of them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo.batching.cell import Cell, cell
from tempo.batching.trace import Kind
from tempo.errors import ProgramError, user_line

if TYPE_CHECKING:
    from tempo.batching.recording import Source


class StartAgainError(BaseException):
    """A model does what it cannot do as it is run: it is run again, in another way."""


class Value:
    """A result of a cell: a tensor that is computed later, together with those of other instances.

    Operators on it are recorded, too, each as a small cell. Reading it (``float(v)``, ``bool(v)``, ``v > 0.5``,
    ``np.asarray(v)``) makes this instance wait until it is computed.
    """

    # No __init__: one would take as long again as all that is done here (140 ns instead of 70, for every result).
    __slots__ = ("level", "number", "source")

    source: Source
    number: int
    level: int

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.kind.dtype

    def read(self) -> np.ndarray[Any, Any]:
        """The value as an array, for decisions of the model."""
        recorder = self.source.stream.recorder
        if recorder.fibers is None:
            recorder.reads = True
            raise StartAgainError
        return recorder.fibers.read(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        found = self.read()
        return found if dtype is None else found.astype(dtype)

    def __bool__(self) -> bool:
        return bool(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __float__(self) -> float:
        return float(self.read())

    def __index__(self) -> int:
        return self.read().__index__()

    def __lt__(self, other: Any) -> Any:
        return self.read() < other

    def __le__(self, other: Any) -> Any:
        return self.read() <= other

    def __gt__(self, other: Any) -> Any:
        return self.read() > other

    def __ge__(self, other: Any) -> Any:
        return self.read() >= other

    def __repr__(self) -> str:
        return f"<{self.kind} of cell {self.source.stream.trace.cell.name}>"

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if not isinstance(part, int | slice | type(None) | type(...)):
                raise ProgramError(
                    f"{self!r} is indexed with {part!r}",
                    places=[("here", user_line())],
                    hint="outside of a cell an index is made of numbers and slices; inside, tp.take takes any",
                )
        # Slices cannot be hashed before Python 3.12.
        key = tuple(("slice", p.start, p.stop, p.step) if isinstance(p, slice) else p for p in parts)
        return self.source.stream.recorder.call(_item(key), (self,), {})

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self!r} has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[n] for n in range(len(self)))

    def __neg__(self) -> Any:
        return self.source.stream.recorder.call(_operator("neg"), (self,), {})

    def __abs__(self) -> Any:
        return self.source.stream.recorder.call(_operator("abs"), (self,), {})

    __array_ufunc__ = None


def _binary(name: str) -> None:
    """Let ``Value`` have an operator, and its reflection."""

    def there(self: Value, other: Any) -> Any:
        return self.source.stream.recorder.call(_operator(name), (self, other), {})

    def back(self: Value, other: Any) -> Any:
        return self.source.stream.recorder.call(_operator(name), (other, self), {})

    setattr(Value, f"__{name}__", there)
    setattr(Value, f"__r{name}__", back)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    _binary(_name)


@cache
def _operator(name: str) -> Cell:
    return cell(getattr(operator, name), name=name)


@cache
def _item(parts: tuple[Any, ...]) -> Cell:
    index = tuple(slice(*part[1:]) if isinstance(part, tuple) else part for part in parts)
    return cell(lambda x: x.space[index], name="item")


ATOMS = frozenset({int, float, bool, str, type(None), np.ndarray})


def values_in(result: Any, found: list[Value]) -> None:
    """Add all values of a result, in the order in which ``replaced`` meets them."""
    what = type(result)
    if what is Value:
        found.append(result)
    elif what is list or what is tuple:
        for part in result:
            if type(part) is Value:
                found.append(part)
            else:
                values_in(part, found)
    elif what not in ATOMS:
        replaced(result, found.append)


def replaced(result: Any, of: Callable[[Value], Any]) -> Any:
    """A result of the same structure with something else for each ``Value``."""
    what = type(result)
    if what is Value:
        return of(result)
    if what in ATOMS:
        return result
    if what is list:
        return [replaced(part, of) for part in result]
    if what is tuple:
        return tuple([replaced(part, of) for part in result])
    if isinstance(result, dict):
        return {key: replaced(part, of) for key, part in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return what(*(replaced(part, of) for part in result))
    if dataclasses.is_dataclass(result) and not isinstance(result, type | Cell):
        before = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.init}
        after = {name: replaced(part, of) for name, part in before.items()}
        changed = any(after[name] is not part for name, part in before.items())
        return dataclasses.replace(result, **after) if changed else result
    return result
