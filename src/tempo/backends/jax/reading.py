"""How a node's operands are cut out of the stores they live in.

A read has, per dim of the producer, a point or a slice. Steps that are the same for all points of the consumer are
looked up; a dim that the consumer computes at once and reads at a fixed distance is a shifted view of the whole axis;
only what is left needs a gather.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.graph.node import Edge, Node
from tempo.schedule.storage import Latest, Steps, Store, Window
from tempo.symbolic import Dim, Expr, Slice
from tempo.symbolic.grid import evaluate
from tempo.symbolic.intervals import extent, interval

Array = Any


@dataclass(frozen=True)
class Bounds:
    """What is known of bounds: the numbers of most; of dims that stop on data, the fewest and the most steps they may
    make and, traced, how many they have made or may still make."""

    numbers: Mapping[Any, int]
    open: Mapping[Any, tuple[int, int]]
    made: Mapping[Any, Any]

    @property
    def values(self) -> dict[Any, Any]:
        return {**self.numbers, **self.made}


@dataclass(frozen=True)
class Range:
    """Steps of a dim that are computed at once: ``length`` of them from ``start`` on, which may be traced; none is ever
    before ``first`` or after ``last``."""

    start: Any
    length: int
    first: int
    last: int

    @classmethod
    def of(cls, start: int, stop: int) -> Range:
        return cls(start, stop - start, start, stop - 1)

    @property
    def steps(self) -> Any:
        return self.start + np.arange(self.length, dtype=np.int32)

    @property
    def traced(self) -> Any:
        """The steps as XLA computes them: known ones would be an array in memory, and another one for every iteration
        that is made one with others (190 of them in an edit distance)."""
        return self.start + lax.iota(np.int32, self.length)


@dataclass(frozen=True)
class Block:
    """The points at which a node is computed at once: the loops' steps (numbers or traced) by the node's own dims and
    by the dims of the loops, and ranges of its other dims."""

    at: Mapping[Any, Any]
    ranges: Mapping[Dim, Range]
    bounds: Bounds
    loops: Mapping[Dim, Any]
    node: Node

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dims that are computed at once."""
        return tuple(d for d in self.ranges if d not in self.at)

    def spans(self) -> dict[Dim, tuple[int, int]]:
        """Inclusive ranges of all dims and open bounds, for what must be known while compiling."""
        return {**self.bounds.open, **{d: (r.first, r.last) for d, r in self.ranges.items()}}

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many steps of each of ``dims`` are computed."""
        return tuple(self.ranges[d].length for d in self.dims)


@dataclass(frozen=True)
class Value:
    """An array whose leading axes are some of a block's dims, in order."""

    array: Array
    dims: tuple[Dim, ...]


def read(
    edge: Edge, held: Array, store: Store, block: Block, present: Mapping[Dim, Any], as_stored: bool = False
) -> Value:
    """What a block reads through an edge: leading axes for the block's dims that it depends on, then the slices' axes,
    then the value's. ``present`` has the first step of dims of which the array has the present block only. A window
    of a circle is all of the circle if it is read ``as_stored``, and those of a block all of it and steps before."""
    reader = _Reader(edge, held, store, block, present, as_stored)
    return reader.run()


class _Reader:
    def __init__(
        self, edge: Edge, held: Array, store: Store, block: Block, present: Mapping[Dim, Any], as_stored: bool
    ) -> None:
        self.present = present
        self.as_stored = as_stored
        self.edge = edge
        self.store = store
        self.block = block
        self.array = held
        # What each axis of the array stands for at present: a dim of the producer, a dim of the block, the
        # number of a slice, or an axis of the value.
        rank = len(edge.node.shape)
        stored = [d for d in edge.node.domain if not isinstance(store.dims[d], Latest)]
        self.axes: list[tuple[str, Any]] = [*(("stored", d) for d in stored), *(("value", n) for n in range(rank))]

    def run(self) -> Value:
        general: list[tuple[Dim, Any]] = []
        slices = 0
        uses: dict[Dim, int] = {}
        for item in self.edge.index:
            for d in self.vectors(item):
                uses[d] = uses.get(d, 0) + 1
        for d, item in zip(self.edge.node.domain, self.edge.index, strict=True):
            number = slices
            slices += isinstance(item, Slice)
            if isinstance(self.store.dims[d], Latest):
                if isinstance(item, Slice):  # of the one step that is kept
                    self.array = jnp.expand_dims(self.array, 0)
                    self.axes.insert(0, ("slice", number))
                continue
            varying = self.vectors(item)
            if self.is_whole(d, item):
                self.axes[self.axis(d)] = ("slice", number)
            elif d in self.present and isinstance(item, Slice) and not varying:  # all of the block, in a fold
                self.whole(d, ("slice", number), self.extent(item))
            elif d in self.present and isinstance(item, Expr) and len(varying) == 1 and uses[varying[0]] == 1:
                self.whole(d, ("block", varying[0]), self.block.ranges[varying[0]].length)
            elif not varying:
                if isinstance(item, Slice):
                    self.cut(d, item, number)
                else:
                    self.look_up(d, item)
            elif not (isinstance(item, Expr) and len(varying) == 1 and uses[varying[0]] == 1 and self.align(d, item)):
                general.append((d, (item, number) if isinstance(item, Slice) else item))
        if general:
            self.gather(general)
        dims = tuple(d for d in self.block.dims if ("block", d) in self.axes)
        order: list[tuple[str, Any]] = [("block", d) for d in dims]
        order += [("slice", n) for n in range(slices) if ("slice", n) in self.axes]
        order += [axis for axis in self.axes if axis[0] == "value"]
        permutation = [self.axes.index(axis) for axis in order]
        if permutation != list(range(len(permutation))):
            self.array = jnp.transpose(self.array, permutation)
        return Value(self.array, dims)

    def is_whole(self, d: Dim, item: Expr | Slice) -> bool:
        """Whether all steps that an array has of a dim are read, those of a block behind others: in no circle."""
        if not self.as_stored or any(isinstance(kept, Window) for kept in self.store.dims.values()):
            return False
        kept = self.store.dims[d]
        return isinstance(item, Slice) and isinstance(kept, Steps) and not isinstance(kept.start, int)

    def vectors(self, item: Expr | Slice) -> list[Dim]:
        """The block's dims that decide where an item starts. (Where a slice stops is a matter of padding.)"""
        symbols = (item.start if isinstance(item, Slice) else item).symbols()
        return [d for d in self.block.dims if d in symbols]

    def axis(self, d: Dim) -> int:
        return self.axes.index(("stored", d))

    def value(self, expr: Expr) -> Any:
        """An expression of the loops' steps: a number where it is one."""
        return evaluate(expr, {**self.block.bounds.values, **self.block.at}, jnp)

    def slot(self, d: Dim, step: Any) -> Any:
        kept = self.store.dims[d]
        if d in self.present:
            return step - self.present[d]
        if isinstance(kept, Window):
            return step % kept.size
        assert isinstance(kept, Steps)
        return step - kept.start

    def whole(self, d: Dim, axis: tuple[str, Any], length: int) -> None:
        """All steps of the present block, which may have fewer than there is room for, or than a slice may have."""
        at = self.axis(d)
        self.axes[at] = axis
        if self.array.shape[at] > length:
            self.array = lax.slice_in_dim(self.array, 0, length, axis=at)

    def look_up(self, d: Dim, item: Expr) -> None:
        """The same step for the whole block."""
        axis, slot = self.axis(d), self.slot(d, self.value(item))
        if isinstance(slot, int):
            slot = min(max(slot, 0), self.array.shape[axis] - 1)
            self.array = lax.index_in_dim(self.array, slot, axis, keepdims=False)
        else:
            # No slot is counted from the end: to find that out would take an operation more.
            array = self.array
            self.array = lax.dynamic_index_in_dim(array, slot, axis, keepdims=False, allow_negative_indices=False)
        del self.axes[axis]

    def cut(self, d: Dim, item: Slice, number: int) -> None:
        """The same slice for the whole block."""
        axis = self.axis(d)
        length = self.extent(item)
        size = self.array.shape[axis]
        start = self.value(item.start)
        kept = self.store.dims[d]
        self.axes[axis] = ("slice", number)
        if isinstance(kept, Window):
            low, high = interval(item.start, self.block.spans(), self.block.bounds.numbers)
            if self.as_stored:
                return
            if low == high and low % kept.size + length <= kept.size:
                self.array = shifted(self.array, axis, low % kept.size, length)
            else:
                positions = (start + np.arange(length)) % kept.size
                self.array = jnp.take(self.array, positions, axis=axis, mode="clip")
            return
        slot = self.slot(d, start)
        if isinstance(slot, int):
            self.array = shifted(self.array, axis, slot, length)
        elif self.fits(item, kept, length, size):
            self.array = lax.dynamic_slice_in_dim(self.array, slot, length, axis, allow_negative_indices=False)
        else:
            self.array = jnp.take(self.array, slot + np.arange(length), axis=axis, mode="clip")

    def fits(self, item: Slice, kept: Any, length: int, size: int) -> bool:
        """Whether the slice, padded to its greatest length, never reaches past the store."""
        if not isinstance(kept.start, int):  # a slice that has all that is needed, which is all of a static length
            return length <= size and item.length.substitute(self.block.bounds.numbers).is_constant
        low, high = interval(item.start, self.block.spans(), self.block.bounds.numbers)
        return bool(low >= kept.start and high - kept.start + length <= size)

    def extent(self, item: Slice) -> int:
        return extent(item.length, self.block.spans(), self.block.bounds.numbers)

    def align(self, d: Dim, item: Expr) -> bool:
        """A dim of the block read at a distance that is the same for all its steps (or backwards from one step): a view
        of the axis, wherever it starts."""
        (v,) = self.vectors(item)
        factor = dict(item.terms).get(v, 0)
        kept = self.store.dims[d]
        rest = item - factor * v
        if factor not in (1, -1) or v in rest.symbols() or not isinstance(kept, Steps):
            return False
        offset = self.value(rest)
        axis = self.axis(d)
        steps = self.block.ranges[v]
        slot = (steps.start if factor == 1 else 1 - steps.start - steps.length) + offset - kept.start
        if isinstance(slot, int):
            self.array = shifted(self.array, axis, slot, steps.length)
        else:
            self.array = cut_out(self.array, axis, slot, steps.length, self.ends(d, item, v))
        if factor == -1:
            self.array = lax.rev(self.array, (axis,))
        self.axes[axis] = ("block", v)
        return True

    def ends(self, d: Dim, item: Expr, v: Dim) -> tuple[int, int]:
        """Between which slots the steps of a dim of the block begin that an item reads."""
        length, kept = self.block.ranges[v].length, self.store.dims[d]
        assert isinstance(kept, Steps)
        if isinstance(kept.start, int):
            low, high = interval(item, self.block.spans(), self.block.bounds.numbers)
            return low - kept.start, high - kept.start - length + 1
        # A slice has what is read at a fixed distance from the steps that it is for.
        is_within = kept.size >= length and d.origin is v.origin and dict(item.terms)[v] == 1
        return (0, kept.size - length) if is_within else (-length, kept.size)

    def gather(self, general: Sequence[tuple[Dim, Any]]) -> None:
        """Everything else: one gather over all the axes concerned."""
        dims = [
            v
            for v in self.block.dims
            if any(v in self.vectors(item[0] if isinstance(item, tuple) else item) for _, item in general)
        ]
        slices = [item for _, item in general if isinstance(item, tuple)]
        rank = len(dims) + len(slices)
        known = {**self.block.bounds.values, **self.block.at}
        for n, v in enumerate(dims):
            known[v] = _along(self.block.ranges[v].steps, n, rank)
        positions = []
        for d, item in general:
            if isinstance(item, tuple):
                cut = item[0]
                n = len(dims) + slices.index(item)
                steps = evaluate(cut.start, known, jnp) + _along(np.arange(self.extent(cut)), n, rank)
            else:
                steps = evaluate(item, known, jnp)
            slot = self.slot(d, steps)
            positions.append(jnp.clip(slot, 0, self.array.shape[self.axis(d)] - 1))
        taken = [self.axis(d) for d, _ in general]
        rest = [axis for n, axis in enumerate(self.axes) if n not in taken]
        moved = jnp.moveaxis(self.array, taken, range(len(taken)))
        lengths = [self.block.ranges[v].length for v in dims]
        shape = (*lengths, *(self.extent(item[0]) for item in slices))
        self.array = moved[tuple(jnp.broadcast_to(p, shape) for p in positions)]
        self.axes = [("block", v) for v in dims] + [("slice", item[1]) for item in slices] + rest


def _along(values: Any, axis: int, rank: int) -> Any:
    return values.astype(np.int32).reshape([-1 if n == axis else 1 for n in range(rank)])


def shifted(array: Array, axis: int, start: int, length: int) -> Array:
    """``array[start : start + length]`` along an axis, with zeros where that lies outside."""
    size = array.shape[axis]
    low, high = min(max(start, 0), size), min(max(start + length, 0), size)
    if (low, high) != (0, size):
        array = lax.slice_in_dim(array, low, max(high, low), axis=axis)
    before, after = max(low - start, 0), 0
    before = min(before, length)
    after = length - before - array.shape[axis]
    if before or after:
        padding = [(0, 0, 0)] * array.ndim
        padding[axis] = (before, after, 0)
        array = lax.pad(array, jnp.zeros((), array.dtype), padding)
    return array


def cut_out(array: Array, axis: int, start: Array, length: int, between: Sequence[int]) -> Array:
    """``array[start : start + length]`` along an axis, with zeros where that lies outside, for a start that is only
    known while running to be ``between`` two numbers."""
    size = array.shape[axis]
    # From further out nothing would be in the slice.
    low, high = (min(max(end, -length), size) for end in between)
    padding = [(0, 0, 0)] * array.ndim
    padding[axis] = (max(-low, 0), max(high + length - size, 0), 0)
    array = lax.pad(array, jnp.zeros((), array.dtype), padding)
    start = jnp.clip(start, low, high) + max(-low, 0)
    return lax.dynamic_slice_in_dim(array, start, length, axis, allow_negative_indices=False)
