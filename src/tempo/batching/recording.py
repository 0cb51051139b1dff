"""Calls of cells, recorded while a model runs.

Calls of one cell with arguments of one form are a *stream*: a column for every argument, to which a call adds what it
was given: data, or the number of a result. Every result of a mini-batch has a number. So a call costs little Python,
and everything after it is computed with NumPy, for a stream at once.

Two calls can be one launch if they have the same cell, kinds of arguments and level. Levels are counted within a
*phase*: cells that depend on each other's results, directly or around some corners, are one phase, and phases follow
each other as their dependences say. So a classifier behind a recurrence is one launch for all of its calls, at
whatever depth their arguments were made, and so is what only prepares arguments. Within a phase a call's level is one
more than the highest among its arguments' (in a tree: its height).
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import tree_util

from tempo.batching.cell import Cell, Kind, Trace, cell, kind_of
from tempo.errors import ProgramError, user_line

if TYPE_CHECKING:
    from tempo.batching.fibers import Fibers


class Value:
    """A result of a cell: a tensor that is computed later, together with those of other instances.

    Operators on it are recorded, too, each as a small cell. Reading it (``float(v)``, ``bool(v)``, ``v > 0.5``,
    ``np.asarray(v)``) makes this instance wait until it is computed.
    """

    __slots__ = ("kind", "level", "number", "stream")

    def __init__(self, stream: Stream, kind: Kind, number: int, level: int) -> None:
        self.stream = stream
        self.kind = kind
        self.number = number
        self.level = level

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.kind.dtype

    def read(self) -> np.ndarray[Any, Any]:
        """The value as an array, for decisions of the model."""
        return self.stream.recorder.read(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.read(), dtype)

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
        return f"<{self.kind} of cell {self.stream.trace.cell.name}>"

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
        return self.stream.recorder.call(_item(key), (self,), {})

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self!r} has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[n] for n in range(len(self)))

    def __neg__(self) -> Any:
        return self.stream.recorder.call(_operator("neg"), (self,), {})

    def __abs__(self) -> Any:
        return self.stream.recorder.call(_operator("abs"), (self,), {})

    __array_ufunc__ = None


def _binary(name: str) -> None:
    """Let ``Value`` have an operator, and its reflection."""

    def there(self: Value, other: Any) -> Any:
        return self.stream.recorder.call(_operator(name), (self, other), {})

    def back(self: Value, other: Any) -> Any:
        return self.stream.recorder.call(_operator(name), (other, self), {})

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


@dataclass(frozen=True, eq=False, slots=True)
class Data:
    """Stands for data of one kind in the form of a call's arguments."""

    kind: Kind


@cache
def _data(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Data | None:
    return Data(kind_of(np.empty(shape, dtype), "")) if dtype.kind in "biuf" else None


class Stream:
    """Calls of one cell with arguments of one form: ``columns`` are what they were given, ``bases`` the numbers of
    their first results."""

    __slots__ = (
        "bases",
        "columns",
        "flat",
        "is_value",
        "levels",
        "needs",
        "phase",
        "recorder",
        "results",
        "size",
        "trace",
    )

    def __init__(self, recorder: Recorder, trace: Trace, is_value: tuple[bool, ...]) -> None:
        self.recorder = recorder
        self.trace = trace
        self.is_value = is_value
        self.results = trace.results
        self.size = len(trace.results)
        leaf = tree_util.tree_structure(0)
        several = tree_util.tree_structure((0,) * self.size)
        self.flat = 0 if trace.structure == leaf else 1 if trace.structure == several else 2
        """Whether the results are one tensor (0), a tuple of them (1), or something else (2)."""
        self.needs, self.phase = recorder.phases.join(trace)
        self.clear()

    def clear(self) -> None:
        self.columns: list[list[Any]] = [[] for _ in self.is_value]
        self.bases: list[int] = []
        self.levels: list[int] = []


class Recorder:
    """What the instances of one mini-batch have called so far; results from ``computed`` on are not computed yet."""

    def __init__(self, cells: Iterable[Cell], phases: Phases) -> None:
        self.cells = set(cells)
        self.phases = phases
        self.streams: dict[Any, Stream] = {}
        self.count = 0
        self.computed = 0
        self.stale = False
        """Whether phases have changed since calls were given their levels."""
        self.starts: list[tuple[int, int]] = []
        """From which number on results are an instance's."""
        self.fibers: Fibers | None = None

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # What a call looks like: kinds of results, types of data, lengths of tuples. Anything else goes the long way.
        form: list[Any] = [cell]
        leaves: list[Any] = []
        known = not kwargs
        for arg in args:
            what = type(arg)
            if what is Value:
                form.append(arg.kind)
                leaves.append(arg)
            elif what is int or what is float:
                form.append(what)
                leaves.append(arg)
            elif what is tuple:
                form.append(len(arg))
                for part in arg:
                    if type(part) is Value:
                        form.append(part.kind)
                        leaves.append(part)
                    else:
                        known = False
            elif what is np.ndarray:
                form.append(_data(arg.shape, arg.dtype))
                leaves.append(arg)
                known = known and form[-1] is not None
            else:
                known = False
        stream = self.streams.get(tuple(form)) if known else None
        if stream is None:
            stream, leaves = self._stream(cell, args, kwargs, tuple(form) if known else None)
        level = 0
        phase = stream.phase
        for column, leaf in zip(stream.columns, leaves, strict=True):
            if type(leaf) is Value:
                other = leaf.stream
                number = leaf.number
                if other.recorder is not self:
                    raise _kept(cell, leaf)
                column.append(number)
                if number >= self.computed:
                    if other.trace not in stream.needs:
                        self._connect(stream, other)
                        phase = stream.phase
                    if other.phase == phase and leaf.level >= level:
                        level = leaf.level + 1
            else:
                column.append(leaf)
        base = self.count
        stream.bases.append(base)
        stream.levels.append(level)
        self.count = base + stream.size
        if stream.flat == 0:
            return Value(stream, stream.results[0], base, level)
        values = [Value(stream, kind, base + n, level) for n, kind in enumerate(stream.results)]
        return tuple(values) if stream.flat == 1 else tree_util.tree_unflatten(stream.trace.structure, values)

    def _stream(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any], form: Any) -> tuple[Stream, list[Any]]:
        """The stream of a call, and its arguments as a list."""
        leaves, structure = tree_util.tree_flatten((args, kwargs))
        is_value = tuple([type(leaf) is Value for leaf in leaves])
        kinds = tuple([leaf.kind if type(leaf) is Value else kind_of(leaf, cell.name) for leaf in leaves])
        form = (cell, structure, is_value, kinds) if form is None else form
        stream = self.streams.get(form)
        if stream is None:
            if cell.module is not None and cell not in self.cells:
                raise ProgramError(
                    f"cell {cell.name} has parameters, and is not among the cells of this model",
                    places=[("here", user_line())],
                    hint=f'name it: tp.batch(model, cells={{"{cell.name}": ...}})',
                )
            stream = self.streams[form] = Stream(self, cell.trace(structure, kinds), is_value)
        return stream, leaves

    def _connect(self, stream: Stream, other: Stream) -> None:
        self.phases.connect(stream.trace, other.trace)
        self.stale = True
        for one in self.streams.values():
            one.phase = self.phases.number[one.trace]

    def read(self, value: Value) -> np.ndarray[Any, Any]:
        if self.fibers is None:
            raise Reading
        return self.fibers.read(value)

    def instance(self, number: int) -> int | None:
        """The instance that a result is of, where instances were recorded one after another."""
        found = [instance for start, instance in self.starts if start <= number]
        return found[-1] if found else None


def _kept(cell: Cell, leaf: Value) -> ProgramError:
    return ProgramError(
        f"cell {cell.name}: {leaf!r} is of another mini-batch",
        places=[("here", user_line())],
        hint="do not keep results of cells from one mini-batch to the next",
    )


class Reading(BaseException):
    """A model reads a value, so that its instances must be able to wait."""


@cache
def data_trace(kind: Kind) -> Trace:
    """The cell that puts data into an arena, as they are."""
    _, structure = tree_util.tree_flatten(((0,), {}))
    return dataclasses.replace(cell(lambda x: x, name="data").trace(structure, (kind,)), auxiliary=True)


@dataclass
class Phases:
    """Which cells need which others' results, as far as was seen, and their phases: ``number`` says their order."""

    needs: dict[Trace, set[Trace]] = field(default_factory=dict)
    number: dict[Trace, int] = field(default_factory=dict)

    def join(self, trace: Trace) -> tuple[set[Trace], int]:
        if trace not in self.needs:
            self.needs[trace] = set()
            self._count()
        return self.needs[trace], self.number[trace]

    def connect(self, trace: Trace, other: Trace) -> None:
        self.needs[trace].add(other)
        self._count()

    def is_recursive(self, trace: Trace) -> bool:
        return any(self.number[other] == self.number[trace] for other in self.needs[trace])

    def _count(self) -> None:
        self.number = {trace: n for n, traces in enumerate(phases(self.needs)) for trace in traces}


def phases(before: Mapping[Trace, set[Trace]]) -> list[list[Trace]]:
    """Strongly connected components, each after those that it needs (Tarjan's algorithm)."""
    number: dict[Trace, int] = {}
    lowest: dict[Trace, int] = {}
    stack: list[Trace] = []
    found: list[list[Trace]] = []

    def visit(trace: Trace) -> None:
        number[trace] = lowest[trace] = len(number)
        stack.append(trace)
        for other in before[trace]:
            if other not in number:
                visit(other)
                lowest[trace] = min(lowest[trace], lowest[other])
            elif other in stack:
                lowest[trace] = min(lowest[trace], number[other])
        if lowest[trace] == number[trace]:
            start = stack.index(trace)
            found.append(stack[start:])
            del stack[start:]

    for trace in before:
        if trace not in number:
            visit(trace)
    return found


class _Local(threading.local):
    recorder: Any = None


_local = _Local()


def use(recorder: Any) -> None:
    """Let this thread's calls of cells be recorded there."""
    _local.recorder = recorder


def recorder(cell: Cell) -> Recorder:
    found: Recorder | None = _local.recorder
    if found is None:
        raise ProgramError(
            f"cell {cell.name} is called outside of a batched model",
            places=[("here", user_line())],
            hint="batched = tp.batch(model), then batched([instance, ...])",
        )
    return found


def current() -> Recorder | None:
    found: Recorder | None = _local.recorder
    return found


def replaced(result: Any, of: Callable[[Value], Any]) -> Any:
    """A result of the same structure with something else for each ``Value``."""
    if isinstance(result, Value):
        return of(result)
    if isinstance(result, dict):
        return {key: replaced(part, of) for key, part in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(replaced(part, of) for part in result))
    if type(result) in (list, tuple):
        return type(result)(replaced(part, of) for part in result)
    if dataclasses.is_dataclass(result) and not isinstance(result, type | Cell):
        before = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.init}
        after = {name: replaced(part, of) for name, part in before.items()}
        changed = any(after[name] is not part for name, part in before.items())
        return dataclasses.replace(result, **after) if changed else result
    return result
