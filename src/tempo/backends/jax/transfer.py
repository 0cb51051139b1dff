"""Large arrays of NumPy's on their way to a GPU.

A GPU reads pinned memory at 50 GB a second. But NumPy's arrays have to be copied there first, by one thread: 7 GB a
second for an array of 25 MB. In pieces, each of which has a thread, it is 20 in all, with what it takes to put them
together again (25 and 200 MB, an H200 with 16 cores: 3.5 -> 1.2 ms and 24 -> 9.2; 4 MB: 0.7 -> 0.8).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any

PIECES = 8
LEAST = 8 * 2**20
"""Bytes of an array that is sent in pieces."""
SHARE = 32
"""What is larger than such a part of a device's memory goes in one piece: until they are put together, pieces take as
much memory again."""


def put(array: Any, device: Any) -> Array:
    """An array on a device."""
    if isinstance(array, np.ndarray) and array.flags.c_contiguous and LEAST <= array.nbytes <= _most(device):
        pieces = np.array_split(array.reshape(-1), PIECES)
        return _joined(jax.device_put(pieces, device), array.shape)
    return jax.device_put(array, device)


def put_stacked(arrays: Sequence[Any], dtype: Any, device: Any) -> Array | None:
    """Arrays of one shape as one with another axis in front, on a device: each piece is stacked while those before it
    are on their way. None if that is not worth it."""
    shape = (len(arrays), *np.shape(arrays[0]))
    if len(arrays) < PIECES or not LEAST <= np.prod(shape) * dtype.itemsize <= _most(device):
        return None
    ends = [len(arrays) * n // PIECES for n in range(PIECES + 1)]
    pieces = (arrays[start:stop] for start, stop in itertools.pairwise(ends))
    return _joined([jax.device_put(stacked(piece, dtype), device) for piece in pieces], shape)


def stacked(arrays: Sequence[Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Arrays of one shape as one with another axis in front."""
    return np.stack([np.asarray(array) for array in arrays], dtype=dtype, casting="unsafe")


@cache
def _most(device: Any) -> int:
    """The bytes of the largest array that is sent to a device in pieces: none where NumPy's memory is the device's."""
    if device.platform == "cpu":
        return 0
    return int((device.memory_stats() or {}).get("bytes_limit", 0)) // SHARE


@partial(jax.jit, static_argnums=1)
def _joined(pieces: Sequence[Array], shape: tuple[int, ...]) -> Array:
    return jnp.concatenate(pieces).reshape(shape)
