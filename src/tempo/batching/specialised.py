"""Functions that record calls of one form, written out as code.

Recording is what a mini-batch costs the host. So it has no loops over arguments and results, and no test that a form
does not need: a third of the time that ``Recorder.call`` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import tree_util

from tempo.batching.cell import Cell, local
from tempo.batching.phases import STRIDE
from tempo.batching.trace import Kind
from tempo.batching.value import Value

if TYPE_CHECKING:
    from tempo.batching.recording import Stream

_MISSING = object()


def form_of(cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call looks like: the kinds of results, the types of data, and what holds them. None if functions for it
    cannot be written."""
    names = tuple(sorted(kwargs))
    try:
        return cell, names, *map(_form, args), *[_form(kwargs[name]) for name in names]
    except _UnknownError:
        return None


class _UnknownError(Exception):
    pass


def _form(arg: Any) -> Any:
    what = type(arg)
    if what is Value:
        return arg.source.kind
    if what is int or what is float or what is bool or isinstance(arg, np.generic):
        return what
    if what is tuple or what is list:
        return what, *map(_form, arg)
    if what is np.ndarray:
        return what, arg.shape, arg.dtype
    if what is dict and all(type(key) is str for key in arg):
        keys = tuple(sorted(arg))  # as JAX sorts them
        return what, keys, *[_form(arg[key]) for key in keys]
    if arg is None:
        return None
    raise _UnknownError


def specialised(stream: Stream, form: tuple[Any, ...]) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Functions that record a call of this form. The first takes a tuple of arguments, and a dict: it gives None, and
    does nothing, where a call has another form. The second is a cell's ``__call__``, and goes the long way then."""
    trace = stream.trace
    code = _code(form[1:], trace.structure, stream.size, stream.anchor, trace.draws)
    if code is None:
        return None, None
    constants: dict[str, Any] = {**code.constants, "recorder": stream.recorder, "extend": stream.numbers.extend}
    for n, (inside, known) in enumerate(zip(stream.inside, stream.known, strict=True)):
        constants[f"inside{n}"], constants[f"known{n}"] = inside, known
    for n, column in enumerate(stream.data):
        constants[f"append{n}"] = column.append
    for n, source in enumerate(stream.sources):
        constants[f"source{n}"] = source
    exec(code.record, constants)
    exec(code.direct, constants)
    return constants["record"], constants["direct"]


@dataclass(frozen=True)
class _Code:
    """That of both functions, and what is the same for all streams with calls of one form: to make it takes 50 us, and
    to make functions of it 5."""

    record: Any
    direct: Any
    constants: dict[str, Any]


@lru_cache(1024)
def _code(form: tuple[Any, ...], structure: Any, size: int, anchor: bool, draws: bool) -> _Code | None:
    """None if results are not only in tuples, lists and dicts."""
    try:
        found = _written(tree_util.tree_unflatten(structure, [f"r{n}" for n in range(size)]))
    except _UnknownError:
        return None
    constants: dict[str, Any] = {"Value": Value, "ndarray": np.ndarray}
    constants |= {"local": local, "missing": _MISSING, "other": _other}
    checks: list[str] = []
    levels: list[str] = []
    numbers: list[str] = []
    appends: list[str] = []

    def value(name: str, kind: Kind) -> None:
        n = len(numbers)
        constants[f"kind{n}"] = kind
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

    def argument(name: str, part: Any) -> None:
        k = len(appends)
        if isinstance(part, Kind):
            value(name, part)
        elif part is None:
            checks.append(f"if {name} is not None: raise ValueError")
        elif isinstance(part, type):
            constants[f"type{k}"] = part
            checks.append(f"if type({name}) is not type{k}: raise ValueError")
            appends.append(f"append{k}({name})")
        elif part[0] is np.ndarray:
            constants[f"shape{k}"], constants[f"dtype{k}"] = part[1:]
            same = f"type({name}) is ndarray and {name}.shape == shape{k} and {name}.dtype == dtype{k}"
            checks.append(f"if not ({same}): raise ValueError")
            appends.append(f"append{k}({name})")
        else:
            keys, inner = (part[1], part[2:]) if part[0] is dict else (None, part[1:])
            parts = [f"{name}_{n}" for n in range(len(inner))]
            checks.append(f"if type({name}) is not {part[0].__name__}: raise ValueError")
            if parts and keys is None:
                checks.append(f"{', '.join(parts)}, = {name}")
            else:
                checks.append(f"if len({name}) != {len(parts)}: raise ValueError")
                checks.extend([f"{one} = {name}[{key!r}]" for one, key in zip(parts, keys or (), strict=True)])
            for one, its_form in zip(parts, inner, strict=True):
                argument(one, its_form)

    given = form[0]
    names = [f"a{n}" for n in range(len(form) - 1 - len(given))]
    named = [f"b{n}" for n in range(len(given))]
    for name, part in zip(names + named, form[1:], strict=True):
        argument(name, part)
    if draws:
        appends.append(f"append{len(appends)}(recorder.draws.next())")
    together = "".join(f"{name}, " for name in names)

    def function(signature: str, first: str, otherwise: str) -> Any:
        lines = [
            # What has no source, or another length, is of another form: to find out costs nothing where it is not.
            "try:",
            f"    {first}",
            *(f"    {name} = others[{key!r}]" for name, key in zip(named, given, strict=True)),
            *(f"    {line}" for line in checks),
            "    level = ground = recorder.ground",
            *(f"    {line}" for line in levels),
            "except (AttributeError, KeyError, TypeError, ValueError): level = -1",
            f"if level < 0: return {otherwise}",
            *([f"level = -(-level // {STRIDE}) * {STRIDE}"] if anchor else []),
            *appends,
            f"base = recorder.count; recorder.count = base + {size}",
            f"extend(({''.join(f'{number}, ' for number in numbers)}base, level))",
            *(
                f"r{n} = Value(); r{n}.source = source{n}; r{n}.number = base + {n}; r{n}.level = level"
                for n in range(size)
            ),
            f"return {found}",
        ]
        # A name in this package: what stands in an error is the user's line, not one of these.
        return compile("\n    ".join([f"def {signature}:", *lines]), f"{__file__}: a form", "exec")

    defaults = "".join(f"{name}=missing, " for name in names)
    wrong = f"len(others) != {len(given)}" if given else "others"
    record = function("record(args, others)", f"{together or '()'} = args if not ({wrong}) else None", "None")
    direct = function(
        f"direct(self, {defaults}/, *rest, **others)",
        f"if rest or {wrong} or local.recorder is not recorder: raise ValueError",
        f"other(self, ({together}), rest, others)",
    )
    return _Code(record, direct, constants)


def _written(structure: Any) -> str:
    """The expression that makes a structure of names."""
    what = type(structure)
    if what is str:
        return str(structure)
    if structure is None:
        return "None"
    if what is tuple:
        return f"({''.join(f'{_written(part)}, ' for part in structure)})"
    if what is list:
        return f"[{', '.join(map(_written, structure))}]"
    if what is dict and all(type(key) is str for key in structure):
        return f"{{{', '.join(f'{key!r}: {_written(part)}' for key, part in structure.items())}}}"
    raise _UnknownError


def _other(cell: Cell, args: tuple[Any, ...], rest: tuple[Any, ...], others: dict[str, Any]) -> Any:
    """A call that does not look like the others of a cell."""
    given = [arg for arg in args if arg is not _MISSING]
    return Cell.__call__(cell, *given, *rest, **others)
