"""Calls of cells, recorded while a model runs.

Calls of one cell with arguments of one form are a *stream*, to which a call adds what it was given: data, or the number
of a result. Every result of a mini-batch has a number. So a call costs little Python, and everything after it is
computed with NumPy, for a stream at once.

Two calls can be one launch if they have the same cell, kinds of arguments and level. Levels are counted within a
*phase*: cells that depend on each other's results, directly or around some corners, are one phase, and phases follow
each other as their dependences say. So a classifier behind a recurrence is one launch for all of its calls, at
whatever depth their arguments were made, and so is what only prepares arguments. Within a phase a call's level is one
more than the highest among its arguments' (in a tree: its height).

Where several cells are one phase, instances drift apart: one that takes a branch of two calls is a level behind one
that takes none, and never meets it again. So one of the cells may be the phase's *anchor*: its calls are only made at
levels that are multiples of ``STRIDE``, as if whoever is there early made ghost steps until the others are there, too.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import tree_util

from tempo.batching.cell import Cell, Kind, Trace, cell, kind_of, local
from tempo.batching.phases import Phases
from tempo.errors import ProgramError, user_line

if TYPE_CHECKING:
    from tempo.batching.fibers import Fibers


STRIDE = 1 << 20
EPOCH = 1 << 40
"""Levels begin at a multiple of it, the next one whenever something was computed: so what was computed has lower levels
than whatever needs it. Larger than any level of a mini-batch, and a multiple of ``STRIDE``."""


OFTEN = 16
"""How many calls that look alike are counted."""


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
        fibers = self.source.stream.recorder.fibers
        if fibers is None:
            raise Reading
        return fibers.read(self)

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


class Stream:
    """Calls of one cell with arguments of one form."""

    __slots__ = (
        "anchor",
        "data",
        "direct",
        "flat",
        "found",
        "inside",
        "installed",
        "is_value",
        "known",
        "numbers",
        "phase",
        "put_off",
        "record",
        "recorder",
        "since",
        "sources",
        "trace",
    )

    def __init__(self, recorder: Recorder, trace: Trace, is_value: tuple[bool, ...], form: tuple[Any, ...]) -> None:
        self.recorder = recorder
        self.trace = trace
        self.is_value = is_value
        self.sources = tuple([Source(self, kind) for kind in trace.results])
        leaf = tree_util.tree_structure(0)
        several = tree_util.tree_structure((0,) * self.size)
        self.flat = 0 if trace.structure == leaf else 1 if trace.structure == several else 2
        """Whether the results are one tensor (0), a tuple of them (1), or something else (2)."""
        self.phase = recorder.phases.join(trace)
        self.anchor = trace in recorder.phases.anchors
        values = sum(is_value)
        self.inside: list[set[Source]] = [set() for _ in range(values)]
        """Per argument that is a result, whose it was: of cells of this phase."""
        self.known: list[set[Source]] = [set() for _ in range(values)]
        """The same of other cells."""
        self.numbers: list[int] = []
        """Per call the numbers of its arguments that are results, that of its own first result, and its level."""
        self.data: list[list[Any]] = [[] for _ in range(len(is_value) - values)]
        """Per other argument what the calls were given."""
        self.put_off: Any = None
        """Calls of earlier, which nothing has needed so far."""
        self.record, self.direct = specialised(self, form) if self.flat < 2 else (None, None)
        self.installed = False
        self.found, self.since = 0, 0
        """How often a call was not found at once, since so many results had been recorded."""

    @property
    def size(self) -> int:
        """How many results a call has."""
        return len(self.trace.results)

    def clear(self) -> None:
        for column in (self.numbers, *self.data):
            column.clear()


class Source:
    """What the results at one place of a stream's calls have in common."""

    __slots__ = ("kind", "stream")

    def __init__(self, stream: Stream, kind: Kind) -> None:
        self.stream = stream
        self.kind = kind


class Recorder:
    """What the instances of one mini-batch have called so far."""

    def __init__(self, cells: Iterable[Cell], phases: Phases) -> None:
        self.cells = set(cells)
        self.phases = phases
        self.streams: dict[Any, Stream] = {}
        self.fast: dict[Cell, list[Stream]] = {}
        """Per cell the streams of calls that look like earlier ones, the latest first."""
        self.count = 0
        self.ground = 0
        """The lowest level of calls from now on: results of lower ones are computed, or put off."""
        self.put_off = b""
        """Per number of a result of a lower level whether it is put off."""
        self.stale = False
        """Whether phases have changed since calls were given their levels."""
        self.starts: list[tuple[int, int]] = []
        """From which number on results are an instance's."""
        self.fibers: Fibers | None = None

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # What a call looks like: kinds of results, types of data, lengths of tuples. Anything else goes the long way.
        form: list[Any] = [cell]
        known = not kwargs
        for arg in args:
            what = type(arg)
            if what is Value:
                form.append(arg.kind)
            elif what is int or what is float:
                form.append(what)
            elif what is tuple and arg and all(type(part) is Value for part in arg):
                form.append(tuple([part.kind for part in arg]))
            elif what is np.ndarray and arg.dtype.kind in "biuf":
                form.append((arg.shape, arg.dtype))
            else:
                known = False
        stream, leaves = self._stream(cell, args, kwargs, tuple(form) if known else None)
        values = [leaf for leaf in leaves if type(leaf) is Value]
        level = self.ground
        for n, value in enumerate(values):
            source = value.source
            if source.stream.recorder is not self:
                raise _kept(cell, value)
            if source not in stream.inside[n] and source not in stream.known[n] and self.is_pending(value):
                self._connect(stream, n, source)
            if source.stream.phase == stream.phase and value.level >= level:
                level = value.level + 1
        if stream.anchor:
            level = -(-level // STRIDE) * STRIDE
        for column, leaf in zip(stream.data, [leaf for leaf in leaves if type(leaf) is not Value], strict=True):
            column.append(leaf)
        base = self.count
        stream.numbers.extend([*(value.number for value in values), base, level])
        self.count = base + stream.size
        if known and stream.record is not None:
            streams = self.fast.setdefault(cell, [])
            if stream in streams:
                streams.remove(stream)
            else:
                self._install(cell, stream)
            streams.insert(0, stream)
        results = [_value(source, base + n, level) for n, source in enumerate(stream.sources)]
        if stream.flat == 0:
            return results[0]
        return tuple(results) if stream.flat == 1 else tree_util.tree_unflatten(stream.trace.structure, results)

    def _install(self, cell: Cell, stream: Stream) -> None:
        """Let calls of a cell go to a stream at once, for as long as they look like it."""
        stream.installed = True
        type(cell).__call__ = stream.direct  # type: ignore[assignment]

    def notice(self, cell: Cell, stream: Stream) -> None:
        """A call of a cell was not found at once: where that is so for every fourth call of all, it should be. Not if
        it was before: then there are many calls of two streams, and to find out that one does not fit takes time."""
        stream.found += 1
        if stream.found == OFTEN:
            if self.count - stream.since <= 4 * OFTEN * stream.size:
                if not stream.installed:
                    self._install(cell, stream)
                elif type(cell).__call__ is not Cell.__call__:
                    type(cell).__call__ = Cell.__call__  # type: ignore[method-assign]
            stream.found, stream.since = 0, self.count

    def close(self) -> None:
        """Nothing more is recorded: let no cell keep what was."""
        for one in self.fast:
            type(one).__call__ = Cell.__call__  # type: ignore[method-assign]

    def is_pending(self, value: Value) -> bool:
        """Whether a value is still to be computed."""
        return value.level >= self.ground or bool(self.put_off[value.number])

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
            stream = self.streams[form] = Stream(self, cell.trace(structure, kinds), is_value, form)
        return stream, leaves

    def _connect(self, stream: Stream, argument: int, source: Source) -> None:
        """Take note that a stream has an argument from another one."""
        other = source.stream
        if self.phases.connect(stream.trace, other.trace):
            self.stale = True
            for one in self.streams.values():
                one.phase = self.phases.number[one.trace]
                for sources in (*one.inside, *one.known):
                    sources.clear()
        (stream.inside if other.phase == stream.phase else stream.known)[argument].add(source)

    def instance(self, number: int) -> int | None:
        """The instance that a result is of, where instances were recorded one after another."""
        found = [instance for start, instance in self.starts if start <= number]
        return found[-1] if found else None


def _value(source: Source, number: int, level: int) -> Value:
    value = Value()
    value.source, value.number, value.level = source, number, level
    return value


_MISSING = object()


def specialised(stream: Stream, form: tuple[Any, ...]) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Functions that record a call of this form. The first takes a tuple of arguments: it gives None, and does nothing,
    where a call has another form. The second is a cell's ``__call__``, and goes the long way then.

    Recording is what a mini-batch costs the host, so it is written out for each form of arguments, without loops: a
    third of the time that ``Recorder.call`` takes.
    """
    if any(part is not int and part is not float and not isinstance(part, Kind | tuple) for part in form[1:]):
        return None, None
    constants: dict[str, Any] = {"Value": Value, "ndarray": np.ndarray, "recorder": stream.recorder}
    constants |= {"local": local, "missing": _MISSING, "other": _other}
    checks: list[str] = []
    levels: list[str] = []
    numbers: list[str] = []
    appends: list[str] = []

    def value(name: str, kind: Kind) -> None:
        n = len(numbers)
        constants[f"kind{n}"], constants[f"inside{n}"], constants[f"known{n}"] = kind, stream.inside[n], stream.known[n]
        levels.extend(
            [
                f"s = {name}.source",
                f"if s in inside{n}:",
                f"    if {name}.level >= level: level = {name}.level + 1",
                f"elif s not in known{n}:",
                f"    if s.kind is not kind{n} or s.stream.recorder is not recorder: raise ValueError",
                f"    if {name}.level >= ground or recorder.put_off[{name}.number]: raise ValueError",
            ]
        )
        numbers.append(f"{name}.number")

    for n, part in enumerate(form[1:]):
        name = f"a{n}"
        if isinstance(part, Kind):
            value(name, part)
        elif isinstance(part, tuple) and isinstance(part[0], Kind):
            parts = [f"{name}_{k}" for k in range(len(part))]
            checks.append(f"if type({name}) is not tuple: raise ValueError")
            checks.append(f"{', '.join(parts)}, = {name}")
            for inner, kind in zip(parts, part, strict=True):
                value(inner, kind)
        else:
            k = len(appends)
            constants[f"append{k}"] = stream.data[k].append
            if isinstance(part, tuple):
                constants[f"shape{k}"], constants[f"dtype{k}"] = part
                same = f"type({name}) is ndarray and {name}.shape == shape{k} and {name}.dtype == dtype{k}"
            else:
                same = f"type({name}) is {part.__name__}"
            checks.append(f"if not ({same}): raise ValueError")
            appends.append(f"append{k}({name})")
    constants["extend"] = stream.numbers.extend
    results = []
    for n, source in enumerate(stream.sources):
        constants[f"source{n}"] = source
        results.append(f"r{n} = Value(); r{n}.source = source{n}; r{n}.number = base + {n}; r{n}.level = level")
    names = [f"a{n}" for n in range(len(form) - 1)]
    together = "".join(f"{name}, " for name in names)

    def function(signature: str, first: str, otherwise: str) -> Callable[..., Any]:
        lines = [
            # What has no source, or another length, is of another form: to find out costs nothing where it is not.
            "try:",
            f"    {first}",
            *(f"    {line}" for line in checks),
            "    level = ground = recorder.ground",
            *(f"    {line}" for line in levels),
            "except (AttributeError, TypeError, ValueError): level = -1",
            f"if level < 0: return {otherwise}",
            *([f"level = -(-level // {STRIDE}) * {STRIDE}"] if stream.anchor else []),
            *appends,
            f"base = recorder.count; recorder.count = base + {stream.size}",
            f"extend(({''.join(f'{number}, ' for number in numbers)}base, level))",
            *results,
            "return r0" if stream.flat == 0 else f"return ({''.join(f'r{n}, ' for n in range(stream.size))})",
        ]
        exec(_code("\n    ".join([f"def record({signature}):", *lines])), constants)
        found: Callable[..., Any] = constants["record"]
        return found

    defaults = "".join(f"{name}=missing, " for name in names)
    direct = function(
        f"self, {defaults}/, *rest, **others",
        "if rest or others or local.recorder is not recorder: raise ValueError",
        f"other(self, ({together}), rest, others)",
    )
    return function("args", f"{together or '()'} = args", "None"), direct


def _other(cell: Cell, args: tuple[Any, ...], rest: tuple[Any, ...], others: dict[str, Any]) -> Any:
    """A call that does not look like the others of a cell."""
    given = [arg for arg in args if arg is not _MISSING]
    return Cell.__call__(cell, *given, *rest, **others)


@cache
def _code(source: str) -> Any:
    return compile(source, "<recording of a call>", "exec")


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


def use(recorder: Any) -> None:
    """Let this thread's calls of cells be recorded there."""
    local.recorder = recorder


def current() -> Recorder | None:
    found: Recorder | None = local.recorder
    return found


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
