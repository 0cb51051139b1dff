"""Calls of cells, recorded while a model runs, and the order in which they are made.

Two calls can be one launch if they have the same cell, kinds of arguments and level. Levels are counted within a
*phase*: cells that depend on each other's results, directly or around some corners, are one phase, and phases follow
each other as their dependences say. So a classifier behind a recurrence is one launch for all of its calls, at
whatever depth their arguments were made, and so is what only prepares arguments. Within a phase a call's level is one
more than the highest among its arguments' (in a tree: its height).

An argument that is a result of a cell in one call and data in another (the state before the first step) would keep
these calls apart. Such data are put into an arena first, by the cell ``data``.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import tree_util

from tempo.batching.cell import Cell, Kind, Trace, as_array, cell, kind
from tempo.errors import ProgramError, user_line

if TYPE_CHECKING:
    from tempo.batching.fibers import Fibers
    from tempo.batching.hoisting import Hoisting


class Call:
    """One recorded call; ``rows`` are where its results are, once they are computed, each in the arena of its kind."""

    __slots__ = ("arguments", "level", "phase", "rows", "trace")

    def __init__(self, trace: Trace, arguments: list[Any]) -> None:
        self.trace = trace
        self.arguments = arguments
        self.phase = self.level = 0
        self.rows: tuple[int, ...] | None = None


class Value:
    """A result of a cell: a tensor that is computed later, together with those of other instances.

    Reading it (``float(v)``, ``bool(v)``, ``v > 0.5``, ``np.asarray(v)``) makes this instance wait until it is.
    """

    __slots__ = ("call", "position", "recorder")

    def __init__(self, call: Call, position: int, recorder: Recorder) -> None:
        self.call = call
        self.position = position
        self.recorder = recorder

    @property
    def kind(self) -> Kind:
        return self.call.trace.results[self.position]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.kind.dtype

    def read(self) -> np.ndarray[Any, Any]:
        """The value as an array, for decisions of the model."""
        return self.recorder.read(self)

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
        return f"<{self.kind} of cell {self.call.trace.cell.name}>"

    def _compute(self, *_: Any) -> Any:
        raise ProgramError(
            f"{self!r} is computed with outside of a cell",
            places=[("here", user_line())],
            hint="what is computed from results of cells belongs into a cell: write a function, with @tp.cell",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _compute
    __matmul__ = __rmatmul__ = __neg__ = __pow__ = __getitem__ = _compute
    __iter__ = None
    __array_ufunc__ = None


class Recorder:
    """What the instances of one mini-batch have called so far, and not computed yet."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = set(cells)
        self.traces: dict[Any, Trace] = {}
        self.pending: list[Call] = []
        self.fibers: Fibers | None = None

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = tree_util.tree_flatten((args, kwargs))
        arguments = []
        kinds = []
        for leaf in leaves:
            if type(leaf) is not Value:
                leaf = as_array(leaf, cell.name)
                kinds.append(kind(leaf.shape, leaf.dtype))
            elif leaf.recorder is self:
                kinds.append(leaf.call.trace.results[leaf.position])
            else:
                raise ProgramError(
                    f"cell {cell.name}: {leaf!r} is of another mini-batch",
                    places=[("here", user_line())],
                    hint="do not keep results of cells from one mini-batch to the next",
                )
            arguments.append(leaf)
        key = (cell, structure, tuple(kinds))
        trace = self.traces.get(key)
        if trace is None:
            if cell.module is not None and cell not in self.cells:
                raise ProgramError(
                    f"cell {cell.name} has parameters, and is not among the cells of this model",
                    places=[("here", user_line())],
                    hint=f'name it: tp.batch(model, cells={{"{cell.name}": ...}})',
                )
            trace = self.traces[key] = cell.trace(structure, tuple(kinds))
        call = Call(trace, arguments)
        self.pending.append(call)
        results = [Value(call, n, self) for n in range(len(trace.results))]
        return tree_util.tree_unflatten(trace.structure, results)

    def read(self, value: Value) -> np.ndarray[Any, Any]:
        if self.fibers is None:
            raise Reading
        return self.fibers.read(value)

    def take(self, groups: Groups, hoisting: Hoisting) -> list[Call]:
        """What is recorded, from now on no longer pending: what need not wait for a recursion is taken out of it, and
        data are put into arenas where ``groups`` says so."""
        calls, self.pending = self.pending, []
        calls = hoisting.apply(calls, self)
        for call in calls:
            groups.see(call)
        put: dict[int, Value] = {}
        for call in calls:
            for n, gathered in enumerate(groups[call.trace].gathered):
                leaf = call.arguments[n]
                if gathered and type(leaf) is not Value:
                    if id(leaf) not in put:
                        put[id(leaf)] = Value(Call(_data(call.trace.arguments[n]), [leaf]), 0, self)
                    call.arguments[n] = put[id(leaf)]
        data = [value.call for value in put.values()]
        for call in data:
            groups.see(call)
        return data + calls


class Reading(BaseException):
    """A model reads a value, so that its instances must be able to wait."""


@cache
def _data(kind: Kind) -> Trace:
    """The cell that puts data into an arena, as they are."""
    _, structure = tree_util.tree_flatten(((0,), {}))
    return dataclasses.replace(cell(lambda x: x, name="data").trace(structure, (kind,)), auxiliary=True)


@dataclass(frozen=True, eq=False)
class Group:
    """What kernels are made for."""

    trace: Trace
    gathered: tuple[bool, ...]
    """Per argument whether it is a row of an arena."""


class Groups(dict[Trace, Group]):
    """How every cell gets its arguments: what was a row of an arena in some call is one in all calls after it."""

    def see(self, call: Call) -> None:
        group = self.get(call.trace)
        if group is None:
            group = self[call.trace] = Group(call.trace, (False,) * len(call.arguments))
        for n, leaf in enumerate(call.arguments):
            if type(leaf) is Value and not group.gathered[n]:
                gathered = (*group.gathered[:n], True, *group.gathered[n + 1 :])
                group = self[call.trace] = Group(call.trace, gathered)


_local = threading.local()


def use(recorder: Recorder | None) -> None:
    """Let this thread's calls of cells be recorded there."""
    _local.recorder = recorder


def recorder(cell: Cell) -> Recorder:
    found: Recorder | None = getattr(_local, "recorder", None)
    if found is None:
        raise ProgramError(
            f"cell {cell.name} is called outside of a batched model",
            places=[("here", user_line())],
            hint="batched = tp.batch(model), then batched([instance, ...])",
        )
    return found


def current() -> Recorder | None:
    found: Recorder | None = getattr(_local, "recorder", None)
    return found


def launches(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Pending calls, those together that can be one launch, in an order in which they can be made."""
    before = needs(calls)
    phase = {trace: n for n, traces in enumerate(phases(before)) for trace in traces}
    order = {trace: n for n, trace in enumerate(before)}
    levels: dict[tuple[int, int, int], list[Call]] = {}
    for call in calls:  # recorded after its arguments
        call.phase = phase[call.trace]
        level = 0
        for leaf in call.arguments:
            if type(leaf) is Value and leaf.call.rows is None and leaf.call.phase == call.phase:
                level = max(level, leaf.call.level + 1)
        call.level = level
        levels.setdefault((call.phase, level, order[call.trace]), []).append(call)
    for key in sorted(levels):
        yield levels[key]


def needs(calls: Sequence[Call]) -> dict[Trace, set[Trace]]:
    """Whose results every cell needs that are not computed yet."""
    before: dict[Trace, set[Trace]] = {}
    for call in calls:
        own = before.setdefault(call.trace, set())
        for leaf in call.arguments:
            if type(leaf) is Value and leaf.call.rows is None:
                own.add(leaf.call.trace)
    return before


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
