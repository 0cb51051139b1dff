"""The memory of a store on the host: one NumPy array, or the pieces that a device has sent.

A GPU copies to *pinned* host memory and back while it computes, at 53 GB/s on an H200; to a NumPy array it is 1.3 GB/s,
and Python waits for it. What a block has computed is therefore left in the pinned array that it was sent to, a piece of
the store. Only what is read in other parts than it was written is put together, by copying.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

Array = Any
NumPy = np.ndarray[Any, Any]
Box = tuple[tuple[int, int], ...]
"""Where something is in a store: from where to where, on each axis that stands for a dim."""

NOTHING = -1


class HostArray(Protocol):
    """A store in host memory, zero where nothing was written."""

    def fetched(self, array: Array) -> Array:
        """What a device has computed, on its way to the host."""

    def write(self, box: Box, array: Array) -> None:
        """Put what was fetched into its place, when it has arrived."""

    def read(self, box: Box) -> Array:
        """What can be sent to the device."""

    def numpy(self, box: Box) -> NumPy:
        """What is there, which may be the very memory that is written into."""


class OneArray:
    """A NumPy array. With ``copies``, what is read of it is another one: a CPU may compute with the very memory that it
    is given, which is written into later."""

    def __init__(self, array: NumPy, copies: bool) -> None:
        self.array = array
        self.copies = copies

    def fetched(self, array: Array) -> Array:
        array.copy_to_host_async()
        return array

    def write(self, box: Box, array: Array) -> None:
        self.array[_slices(box)] = np.asarray(array)

    def read(self, box: Box) -> NumPy:
        found = self.numpy(box)
        return np.array(found) if self.copies else found

    def numpy(self, box: Box) -> NumPy:
        return cut(self.array, box)


@dataclass
class _Piece:
    box: Box
    array: Array
    left: int
    """How many of its points no later piece has."""

    @property
    def is_whole(self) -> bool:
        return self.left == _points(self.box)


class Pieces:
    """What a device has sent, in host memory of a kind that it reads and writes by itself."""

    def __init__(self, shape: tuple[int, ...], axes: int, dtype: Any, kind: jax.sharding.Sharding) -> None:
        """``axes``: how many of the axes stand for dims."""
        self.shape = shape
        self.dtype = dtype
        self.kind = kind
        self.pieces: dict[int, _Piece] = {}
        """By number: the later one was written, the higher it is."""
        self.numbers: dict[Box, int] = {}
        self.count = itertools.count()
        self.latest = np.full(shape[:axes], NOTHING, np.int32)
        """The number of the piece that has a point."""

    def fetched(self, array: Array) -> Array:
        return jax.device_put(array, self.kind)

    def write(self, box: Box, array: Array) -> None:
        # Until it has arrived, the device has it as well.
        jax.block_until_ready(array)  # type: ignore[no-untyped-call]
        number = self.numbers.get(box)
        if number is None or not self.pieces[number].is_whole:
            self._make_room(box)
            number = next(self.count)
            self.latest[_slices(box)] = number
        self.pieces[number] = _Piece(box, array, _points(box))
        self.numbers[box] = number

    def _make_room(self, box: Box) -> None:
        """Take points from the pieces that have them; one without any is gone."""
        for number, taken in zip(*np.unique(self.latest[_slices(box)], return_counts=True), strict=True):
            if number == NOTHING:
                continue
            piece = self.pieces[number]
            piece.left -= int(taken)
            if not piece.left:
                del self.pieces[number], self.numbers[piece.box]

    def read(self, box: Box) -> Array:
        number = self.numbers.get(box)
        if number is not None and self.pieces[number].is_whole:
            return self.pieces[number].array
        return self.numpy(box)

    def numpy(self, box: Box) -> NumPy:
        found = np.zeros((*_lengths(box), *self.shape[len(box) :]), self.dtype)
        # In the order in which they were written: what is left is the latest.
        for number in np.unique(self.latest[_slices(_inside(box, self.shape))]):
            if number != NOTHING:
                piece = self.pieces[number]
                both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, piece.box, strict=True))
                found[_slices(both, box)] = np.asarray(piece.array)[_slices(both, piece.box)]
        return found


def cut(array: NumPy, box: Box) -> NumPy:
    """Ranges of an array's first axes, with zeros where they lie outside."""
    inside = _inside(box, array.shape)
    view = array[_slices(inside)]
    if view.shape[: len(box)] == _lengths(box):
        return view
    result = np.zeros((*_lengths(box), *view.shape[len(box) :]), array.dtype)
    if view.size:
        result[_slices(inside, box)] = view
    return result


def _inside(box: Box, shape: Sequence[int]) -> Box:
    """What of a box is in an array, which may be nothing."""
    ends = zip(box, shape, strict=False)
    return tuple((min(max(start, 0), size), min(max(stop, 0), size)) for (start, stop), size in ends)


def _slices(box: Box, within: Box | None = None) -> tuple[slice, ...]:
    """A box as an index, of an array that has the points ``within`` another one."""
    firsts = [0 for _ in box] if within is None else [first for first, _ in within]
    return tuple(slice(start - first, stop - first) for (start, stop), first in zip(box, firsts, strict=True))


def _lengths(box: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _points(box: Box) -> int:
    return math.prod(_lengths(box))
