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
from tempo.errors import InputError
from tempo.ops.creation import misfit

Array = Any


@dataclass(frozen=True)
class Column:
    """What calls were given for one argument, and in which order their lanes are, if not in this one."""

    leaves: Sequence[Any]
    kind: Kind
    cell: str | None
    """The name of the cell that they were given, if it is one of the user's."""
    order: np.ndarray[Any, Any] | None

    def rows(self, first: int, count: int, length: int) -> Array:
        """So many of them from the first on, filled up with the last to a length: an array of NumPy's or, if there is
        much to send, one that is on its way to the device."""
        # Integers are looked at first: whether they fit.
        if self.kind.bytes * count >= transfer.LEAST and self.kind.dtype.kind not in "iu":
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
        array = stacked(self.leaves, self.kind, self.cell)
        return array if self.order is None else array[self.order]


def stacked(leaves: Sequence[Any], kind: Kind, cell: str | None) -> np.ndarray[Any, Any]:
    """Data of one kind, which a cell was given, as one array."""
    if kind.dtype.kind in "iu":
        array = np.stack([np.asarray(leaf) for leaf in leaves]) if kind.shape else integers(leaves)
        return fitted(array, kind.dtype, cell)
    if kind.shape:
        return transfer.stacked(leaves, kind.dtype)
    return np.asarray(leaves).astype(kind.dtype)


def integers(leaves: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Integers, one for each call, as an array, however large they are."""
    array = np.asarray(leaves)
    # What has more than 63 bits, next to what has fewer, NumPy makes floats of.
    return array if array.dtype.kind in "iub" else np.array([int(leaf) for leaf in leaves], object)


def fitted(array: np.ndarray[Any, Any], dtype: np.dtype[Any], cell: str | None = None) -> np.ndarray[Any, Any]:
    """An array of this dtype, which has room for all of its numbers; its error names the cell that was given it."""
    if array.dtype == dtype:
        return array
    wrong = max(array.flat, key=abs) if array.dtype == object else misfit(array, dtype)
    if wrong is not None:
        given = "cells are given" if cell is None else f"cell {cell} is given"
        raise InputError(
            f"{given} {wrong}, which does not fit into {dtype.name}", hint="cells compute with 32 bits at most"
        )
    return array.astype(dtype)
