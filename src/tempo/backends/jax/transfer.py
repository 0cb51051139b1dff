"""Large arrays of NumPy's on their way to a GPU.

A GPU reads pinned memory at 50 GB a second. But NumPy's arrays have to be copied there first, by one thread: 7 GB a
second for an array of 25 MB. In pieces, each of which has a thread, it is 20 in all, with what it takes to put them
together again (25 and 200 MB, an H200 with 16 cores: 3.5 -> 1.2 ms and 24 -> 9.2; 4 MB: 0.7 -> 0.8).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any

PIECES = 8
THREADS = 4
"""Threads that stack arrays. More of them take longer."""
LEAST = 8 * 2**20
"""Bytes of an array that is sent in pieces."""
SHARE = 32
"""What is larger than such a part of a device's memory goes in one piece: until they are put together, pieces take as
much memory again."""
MOST_STAGED = 2**28
"""Bytes of memory that is kept to stack arrays in: new memory would have to be mapped page by page, which takes longer
than to copy them."""


class _Staging(threading.local):
    """This thread's memory to stack arrays in."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array to write to."""
        size = math.prod(shape) * dtype.itemsize
        if size > MOST_STAGED:
            return np.empty(shape, dtype)
        if size > len(self.memory):
            self.memory = np.empty(size, np.uint8)
        return self.memory[:size].view(dtype).reshape(shape)


_staging = _Staging()


def goes_in_pieces(array: Any, device: Any) -> bool:
    """Whether that is the fastest way for an array to a device."""
    return isinstance(array, np.ndarray) and array.flags.c_contiguous and LEAST <= array.nbytes <= _most(device)


def put(array: Any, device: Any) -> Array:
    """An array on a device."""
    if not goes_in_pieces(array, device):
        return jax.device_put(array, device)
    return _joined(jax.device_put(np.array_split(array.reshape(-1), PIECES), device), array.shape)


def put_stacked(arrays: Sequence[Any], dtype: np.dtype[Any], device: Any) -> Array | None:
    """Arrays of one shape as one with another axis in front, on a device. None if one by itself is not worth it."""
    shape = (len(arrays), *np.shape(arrays[0]))
    if len(arrays) < THREADS or not LEAST <= math.prod(shape) * dtype.itemsize <= _most(device):
        return None
    whole = _staging.take(shape, dtype)

    def fill(part: int) -> None:
        own = slice(len(arrays) * part // THREADS, len(arrays) * (part + 1) // THREADS)
        np.stack(arrays[own], out=whole[own], casting="unsafe")

    list(_threads(os.getpid()).map(fill, range(THREADS)))
    # When it is there, others may write to this memory.
    return put(whole, device).block_until_ready()


def put_listed(values: Sequence[Any], device: Any) -> Array | None:
    """A list of NumPy's arrays as one array on a device. None if they are not of one shape and of one type that JAX has
    in any case, or if one by itself is not worth it."""
    first = values[0] if len(values) else None
    if not isinstance(first, np.ndarray) or first.dtype.itemsize > 4 or not first.dtype.isnative:
        return None
    if not all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values):
        return None
    return put_stacked(values, first.dtype, device)


def stacked(arrays: Sequence[Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Arrays of one shape as one with another axis in front."""
    return np.stack([np.asarray(array) for array in arrays], dtype=dtype, casting="unsafe")


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Those of a process: one that was forked off has not those of its parent."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="tempo-stack")


@cache
def _most(device: Any) -> int:
    """The bytes of the largest array that is sent to a device in pieces: none where NumPy's memory is the device's."""
    if device.platform == "cpu":
        return 0
    return int((device.memory_stats() or {}).get("bytes_limit", 0)) // SHARE


@partial(jax.jit, static_argnums=1)
def _joined(pieces: Sequence[Array], shape: tuple[int, ...]) -> Array:
    return jnp.concatenate(pieces).reshape(shape)
