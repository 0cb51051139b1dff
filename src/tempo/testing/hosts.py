"""Host functions of random programs: they depend on their arguments only, and calls can be written down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tempo import dtypes

Array = np.ndarray[Any, Any]
Calls = list[tuple[str, list[int]]]
"""Every call, in order: the function's name, and what it was given as its point, for each point of its batch."""

_recording: list[Calls] = []


@contextlib.contextmanager
def recorded() -> Iterator[Calls]:
    """The calls that are made meanwhile."""
    calls: Calls = []
    _recording.append(calls)
    try:
        yield calls
    finally:
        _recording.remove(calls)


def host_function(name: str, shape: tuple[int, ...], dtype: str) -> Callable[..., Array]:
    """A function for ``tp.host``. Its first argument is a number for the point at which it is called."""

    def function(point: Array, *arguments: Array) -> Array:
        for calls in _recording:
            calls.append((name, point.ravel().tolist()))
        return mixed(point, arguments, shape, dtype)

    function.__name__ = name
    return function


def mixed(point: Array, arguments: tuple[Array, ...], shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers that depend on every element of the arguments, and on where it stands in them.

    Integers and truth values depend on integers only: rounding must not change them.
    """
    target = dtypes.as_dtype(dtype)
    places = np.arange(int(np.prod(shape))).reshape(shape)
    here = point.reshape((*point.shape, *(1 for _ in shape)))
    if not dtypes.is_float(target):
        whole = [a.astype(np.int64) for a in arguments if not dtypes.is_float(a.dtype)]
        total = sum(int(np.dot(a.ravel(), np.arange(a.size) + n)) for n, a in enumerate(whole))
        numbers = here + places + total
        return np.asarray((numbers % 5 if dtypes.is_integer(target) else numbers % 2 == 0), target)
    mean = 0.0
    for n, a in enumerate(arguments):
        mean += float(a.astype(np.float64).ravel() @ np.cos(np.arange(a.size) + n)) / max(a.size, 1)
    return np.asarray(np.sin(mean + here + 0.5 * places), target)
