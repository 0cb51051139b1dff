"""Data that cells are given, from lists of them to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tempo.backends.jax import transfer
from tempo.backends.jax.near import default_device
from tempo.batching.trace import Kind

Array = Any


@dataclass(frozen=True)
class Column:
    """What calls were given for one argument, and in which order their lanes are, if not in this one."""

    leaves: Sequence[Any]
    kind: Kind
    order: np.ndarray[Any, Any] | None

    def rows(self, first: int, count: int, length: int) -> Array:
        """So many of them from the first on, filled up with the last to a length: an array of NumPy's or, if there is
        much to send, one that is on its way to the device."""
        if self.kind.bytes * count >= transfer.LEAST:
            numbers = range(first, first + count) if self.order is None else self.order[first : first + count]
            leaves = [self.leaves[n] for n in numbers]
            leaves += leaves[-1:] * (length - count)
            found = transfer.put_stacked(leaves, self.kind.dtype, default_device())
            if found is not None:
                return found
        array = self.array[first : first + count]
        if count == length:
            return array
        filled = np.empty((length, *array.shape[1:]), array.dtype)
        filled[:count] = array
        filled[count:] = array[-1]
        return filled

    @cached_property
    def array(self) -> np.ndarray[Any, Any]:
        array = stacked(self.leaves, self.kind)
        return array if self.order is None else array[self.order]


def stacked(leaves: Sequence[Any], kind: Kind) -> np.ndarray[Any, Any]:
    """Data of one kind as one array."""
    if kind.shape:
        return transfer.stacked(leaves, kind.dtype)
    return np.asarray(leaves).astype(kind.dtype)
