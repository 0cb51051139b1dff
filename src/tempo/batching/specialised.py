"""Functions that record calls of one form, written out as code.

Recording is what a mini-batch costs the host. So it has no loops over arguments and results, and no test that a form
does not need: a third of the time that ``Recorder.call`` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo.batching.cell import Cell, local
from tempo.batching.phases import STRIDE
from tempo.batching.trace import Kind
from tempo.batching.value import Value

if TYPE_CHECKING:
    from tempo.batching.recording import Stream

_MISSING = object()


def specialised(stream: Stream, form: tuple[Any, ...]) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Functions that record a call of this form. The first takes a tuple of arguments: it gives None, and does nothing,
    where a call has another form. The second is a cell's ``__call__``, and goes the long way then."""
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
    if stream.trace.draws:
        k = len(appends)
        constants[f"append{k}"] = stream.data[k].append
        appends.append(f"append{k}(recorder.draws.next())")
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
    # A name in this package: what stands in an error is the user's line, not one of these.
    return compile(source, f"{__file__}: a form", "exec")
