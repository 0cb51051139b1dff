"""Whether a Python function is the one that it was: a digest of what it does, as far as Python tells.

It is the bytecode of the function, of functions in it, and of those of its module that it calls. Of a pure function
it is also the numbers, texts and arrays that it holds; others may have changed theirs while they ran. That is not
everything (a method calls others of its class), and more than what matters (another text of the same mathematics), so
nothing is refused because of it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from tempo.graph.fingerprint import digest, numbered
from tempo.graph.node import Graph
from tempo.graph.structural import HOST


def functions(graph: Graph) -> list[tuple[str, str]]:
    """The name and the digest of every function of the user's that a program calls, in the order of its operations."""
    found: dict[int, tuple[str, str]] = {}
    for node in numbered(graph):
        function = node.attributes.get("function")
        if callable(function) and not str(getattr(function, "__module__", "")).startswith("tempo."):
            name = getattr(function, "__name__", type(function).__name__)
            found.setdefault(id(function), (name, digest_of(function, pure=node.op is not HOST)))
    return list(found.values())


def digest_of(function: Any, pure: bool) -> str:
    return digest(_parts(function, pure, set()))


def _parts(value: Any, pure: bool, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:  # a function that calls itself
        return
    seen.add(id(value))
    match value:
        case functools.partial():
            for part in (value.func, *value.args, *(v for _, v in sorted(value.keywords.items()))):
                yield from _parts(part, pure, seen)
        case FunctionType():
            yield from _code(value.__code__)
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            called = [value.__globals__.get(name) for name in sorted(_names(value.__code__))]
            theirs = [f for f in called if isinstance(f, FunctionType) and f.__module__ == value.__module__]
            for part in (*cells, *(value.__defaults__ or ()), *theirs):
                yield from _parts(part, pure, seen)
        case bool() | int() | float() | complex() | str() | bytes() | None | np.generic():
            if pure:
                yield f"{type(value).__name__} {value!r}"
        case np.ndarray():
            if pure:
                yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        case tuple() | list():
            for part in value:
                yield from _parts(part, pure, seen)
        case _ if callable(value) and not isinstance(value, type):
            # Of a method, of what jax.jit or functools.wraps made, or of an object that can be called.
            inside = getattr(value, "__func__", None) or getattr(value, "__wrapped__", None) or type(value).__call__
            yield from _parts(inside, pure, seen) if isinstance(inside, FunctionType) else (type(value).__name__,)
        case _:
            yield type(value).__name__


def _code(code: CodeType) -> Iterator[str]:
    """What is compiled, without the lines that it stands in."""
    yield f"{code.co_code.hex()} {code.co_names}"
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _code(value)
        else:
            # The elements of a set come in another order in another process.
            yield repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # of a function that is defined after this one
        return False
