"""What a primitive does with the rows of one program.

Triton computes with arrays whose sizes are powers of two. An array of another size is longer than it is; what stands in
the rest of it is anything, and is left out where it would count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax.pallas import span, triton
from tempo.backends.jax.rows.axes import ELEMENTWISE, REDUCTIONS, groups
from tempo.backends.jax.rows.steps import Number, Step, Var

Array = Any
Shape = tuple[int, ...]

LEAST = 16
"""Matrix units multiply nothing smaller."""


def padded(shape: Shape) -> Shape:
    return tuple(1 << (size - 1).bit_length() for size in shape)


@dataclass(frozen=True)
class Block:
    """An array of this shape, in the corner of one with powers of two."""

    array: Array
    shape: Shape
    zeros: bool = False
    """Whether zeros stand in the rest."""

    def cleaned(self, axes: Sequence[int], value: Any = 0) -> Array:
        """The array with a value in the rest of some axes."""
        array = self.array
        for axis in () if self.zeros and value == 0 else axes:
            size, whole = self.shape[axis], array.shape[axis]
            if size != whole:
                array = jnp.where(lax.broadcasted_iota(jnp.int32, array.shape, axis) < size, array, value)
        return array


@dataclass(frozen=True)
class View:
    """A part of an array in memory, which is read where it is needed: of each axis the first position and how many."""

    ref: Any
    starts: tuple[Any, ...]
    sizes: Shape
    dropped: frozenset[int] = frozenset()
    """Axes of length one that the array no longer has."""
    rows: tuple[int, Any] | None = None
    """The axis of rows and how many there are from its first position on, if they may be fewer than it has."""

    @property
    def kept(self) -> list[int]:
        return [axis for axis in range(len(self.sizes)) if axis not in self.dropped]

    @property
    def index(self) -> tuple[Any, ...]:
        wide = padded(self.sizes)
        return tuple(
            start if axis in self.dropped else span(start, size)
            for axis, (start, size) in enumerate(zip(self.starts, wide, strict=True))
        )

    @property
    def shape(self) -> Shape:
        return tuple(self.sizes[axis] for axis in self.kept)

    def inside(self) -> Array | None:
        """Where the longer array is in the part; None if it is nowhere longer."""
        mask = None
        wide = padded(self.shape)
        limits = {n: size for n, size in enumerate(self.shape) if size != wide[n]}
        if self.rows is not None:
            limits[self.kept.index(self.rows[0])] = self.rows[1]
        for axis, size in limits.items():
            here = lax.broadcasted_iota(jnp.int32, wide, axis) < size
            mask = here if mask is None else mask & here
        return mask

    def read(self) -> Block:
        mask = self.inside()
        if mask is None:
            return Block(triton.load(self.ref.at[self.index]), self.shape, True)
        other = jnp.zeros((), self.ref.dtype)
        return Block(triton.load(self.ref.at[self.index], mask=mask, other=other), self.shape, True)

    def write(self, block: Block) -> None:
        triton.store(self.ref.at[self.index], block.array, mask=self.inside())

    def part(self, starts: Sequence[Any], sizes: Shape) -> View:
        found = list(self.starts)
        lengths = list(self.sizes)
        for axis, start, size in zip(self.kept, starts, sizes, strict=True):
            if size != lengths[axis]:
                found[axis] = found[axis] + jnp.clip(start, 0, lengths[axis] - size).astype(jnp.int32)
            lengths[axis] = size
        return replace(self, starts=tuple(found), sizes=tuple(lengths))

    def without(self, axes: Sequence[int]) -> View:
        return replace(self, dropped=self.dropped | {self.kept[axis] for axis in axes})


@dataclass(frozen=True)
class Rows:
    """``count`` rows, and the axis that has them of each array that has rows; ``each`` program has so many of them."""

    axes: Mapping[Var, int]
    count: int
    each: int

    def shape(self, var: Var) -> Shape:
        """The shape of a program's part of an array."""
        return tuple(self.each if self.axes.get(var) == axis else size for axis, size in enumerate(var.shape))


class Blocks:
    """The values of one program: those of some rows, from the row ``first`` on. Others are in memory."""

    def __init__(self, rows: Rows, first: Array, precision: Any) -> None:
        self.rows = rows
        self.first = first
        self.precision = precision
        self.values: dict[Var, Block] = {}
        self.memory: dict[Var, View] = {}

    def with_values(self, values: Mapping[Var, Block]) -> Blocks:
        """A copy with more values."""
        found = Blocks(self.rows, self.first, self.precision)
        found.values, found.memory = {**self.values, **values}, {**self.memory}
        return found

    def shape(self, var: Var) -> Shape:
        return self.rows.shape(var)

    def view(self, var: Var, ref: Any) -> View:
        own = self.rows.axes.get(var)
        # All of one type, in 64 bits as well.
        starts = tuple(self.first if own == axis else np.int32(0) for axis in range(len(var.shape)))
        uneven = self.rows.count % self.rows.each != 0
        rows = (own, self.rows.count - self.first) if uneven and own is not None else None
        return View(ref, starts, self.shape(var), rows=rows)

    def __getitem__(self, var: Var) -> Block:
        if isinstance(var, Number):
            return Block(jnp.asarray(var.value, var.dtype), ())
        return self.values[var] if var in self.values else self.memory[var].read()

    def scalar(self, var: Var) -> Array:
        return self[var].array

    def run(self, step: Step) -> None:
        """Compute a step, unless that is done; of what is in memory only say which part of it."""
        source = self.memory.get(step.inputs[0]) if step.inputs else None
        if source is not None and step.name == "squeeze":
            self.memory[step.output] = source.without(step.params["dimensions"])
        elif source is not None and step.name == "dynamic_slice":
            starts = [self.scalar(var) for var in step.inputs[1:]]
            self.memory[step.output] = source.part(starts, self.shape(step.output))
        elif source is not None and step.name == "dynamic_update_slice":
            starts = [self.scalar(var) for var in step.inputs[2:]]
            source.part(starts, self.shape(step.inputs[1])).write(self[step.inputs[1]])
            self.memory[step.output] = source
        elif step.output not in self.values:
            shape = self.shape(step.output)
            arguments = [self[var] for var in step.inputs]
            self.values[step.output] = Block(RULES[step.name](self, step, shape, *arguments), shape)


FORGETFUL = frozenset(["max", "min", "clamp", "sign"])
"""What Triton makes a number of what is none."""


# -- the rules ---------------------------------------------------------------------------------------------------


def _elementwise(blocks: Blocks, step: Step, shape: Shape, *arguments: Block) -> Array:
    wide = padded(shape)
    arrays = [a.array if a.array.shape == wide else jnp.broadcast_to(a.array, wide) for a in arguments]
    result = step.primitive.bind(*arrays, **step.params)
    if step.name in FORGETFUL and jnp.issubdtype(result.dtype, jnp.floating):
        for array in arrays:
            result = jnp.where(array != array, array, result)
    return result


def _copied(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    return given.array


def _broadcast(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    places = [int(axis) for axis in step.params["broadcast_dimensions"]]
    aligned = [1] * len(shape)
    for axis, size in zip(places, given.array.shape, strict=True):
        aligned[axis] = size
    return jnp.broadcast_to(given.array.reshape(aligned), padded(shape))


def _reshaped(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    return given.array.reshape(padded(shape))


def _transposed(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    return jnp.transpose(given.array, step.params["permutation"])


def _numbered(blocks: Blocks, step: Step, shape: Shape) -> Array:
    axis = step.params["dimension"]
    numbers = lax.broadcasted_iota(jnp.int32, padded(shape), axis)
    if blocks.rows.axes.get(step.output) == axis:
        numbers = numbers + blocks.first
    return numbers.astype(step.params["dtype"])


def _least(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def _greatest(dtype: Any) -> Any:
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).max


def _summed(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    axes = _axes(step)
    return jnp.sum(given.cleaned(axes), axes, dtype=given.array.dtype)


def _extreme(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    greatest = step.name == "reduce_max"
    array = given.cleaned(_axes(step), (_least if greatest else _greatest)(given.array.dtype))
    found = (jnp.max if greatest else jnp.min)(array, _axes(step))
    if jnp.issubdtype(array.dtype, jnp.floating):
        # Triton leaves out what is no number.
        found = found + jnp.sum(jnp.where(array == array, 0, array), _axes(step), dtype=array.dtype)
    return found


def _of_truths(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    every = step.name == "reduce_and"
    numbers = replace(given, array=given.array.astype(jnp.int32), zeros=False).cleaned(_axes(step), int(every))
    return (jnp.min if every else jnp.max)(numbers, _axes(step)) > 0


def _position(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    """Where the first of the greatest or least values is; what is no number is greater and less than all."""
    (axis,) = _axes(step)
    greatest = step.name == "argmax"
    dtype = given.array.dtype
    array = given.cleaned((axis,), (_least if greatest else _greatest)(dtype))
    if jnp.issubdtype(dtype, jnp.floating):
        array = jnp.where(array == array, array, (_greatest if greatest else _least)(dtype))
    return (lax.argmax if greatest else lax.argmin)(array, axis, jnp.int32).astype(step.params["index_dtype"])


def _axes(step: Step) -> tuple[int, ...]:
    return tuple(int(axis) for axis in step.params["axes"])


def _cut(blocks: Blocks, step: Step, shape: Shape, given: Block) -> Array:
    """One of the equal parts of an axis: the others are zeros in a sum."""
    array = given.array
    for axis, (start, size) in enumerate(zip(step.params["start_indices"], shape, strict=True)):
        if size != given.shape[axis]:
            parts = array.reshape((*array.shape[:axis], -1, size, *array.shape[axis + 1 :]))
            array = _selected(parts, lax.broadcasted_iota(jnp.int32, parts.shape, axis) == start // size, axis)
    return array


def _selected(array: Array, here: Array, axis: int) -> Array:
    """The only values of an array that are ``here`` along an axis, whatever the others are."""
    if array.dtype == jnp.bool_:
        return _selected(array.astype(jnp.int32), here, axis) > 0
    return jnp.sum(jnp.where(here, array, 0), axis, dtype=array.dtype)


def _joined(blocks: Blocks, step: Step, shape: Shape, *given: Block) -> Array:
    """Equal parts of an axis, one after the other."""
    parts = _one_after_another([one.array for one in given], step.params["dimension"])
    return parts.reshape(padded(shape))


def _stacked(blocks: Blocks, step: Step, shape: Shape, *given: Block) -> Array:
    return _one_after_another([one.array for one in given], step.params["axis"])


def _one_after_another(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays along an axis that they do not have."""
    lead, rest = arrays[0].shape[:axis], arrays[0].shape[axis:]
    wide = (*lead, *padded((len(arrays),)), *rest)
    numbers = lax.broadcasted_iota(jnp.int32, wide, axis)
    found = jnp.broadcast_to(jnp.expand_dims(arrays[0], axis), wide)
    for n, array in enumerate(arrays[1:], 1):
        found = jnp.where(numbers == n, jnp.broadcast_to(jnp.expand_dims(array, axis), wide), found)
    return found


def _surrounded(blocks: Blocks, step: Step, shape: Shape, given: Block, value: Block) -> Array:
    """An array as one of the equal parts of an axis, of which the others have a value."""
    array, wide = given.array, padded(shape)
    for axis, (before, *_) in enumerate(step.params["padding_config"]):
        size = given.shape[axis]
        if size != shape[axis]:
            parts = (*array.shape[:axis], wide[axis] // size, *array.shape[axis:])
            here = lax.broadcasted_iota(jnp.int32, parts, axis) == before // size
            spread = jnp.broadcast_to(jnp.expand_dims(array, axis), parts)
            array = jnp.where(here, spread, value.array).reshape(
                (*array.shape[:axis], wide[axis], *array.shape[axis + 1 :])
            )
    return array


def is_in_parts(step: Step, given: Sequence[Shape], shape: Shape) -> bool:
    """Whether what is cut out, joined or surrounded are equal parts of an axis, each a power of two long."""
    params = step.params
    if step.name == "concatenate":
        sizes = {one[params["dimension"]] for one in given}
        return len(sizes) == 1 and _is_power(*sizes)
    if step.name == "slice":
        strided = set(params["strides"] or ()) - {1}
        cut = zip(params["start_indices"], given[0], shape, strict=True)
        return not strided and all(a == b or (_is_power(b) and start % b == 0) for start, a, b in cut)
    around = zip(params["padding_config"], given[0], shape, strict=True)
    return all(
        a == b or (min(before, after) >= 0 and not between and _is_power(a) and before % a == 0)
        for (before, after, between), a, b in around
    )


def _is_power(size: int) -> bool:
    return padded((size,)) == (size,)


def _product(blocks: Blocks, step: Step, shape: Shape, left: Block, right: Block) -> Array:
    (a, b), (c, d) = step.params["dimension_numbers"]
    dtype = step.output.dtype
    one, other = left.cleaned(a), right.cleaned(b)
    if is_matrices(step, left.shape, right.shape):
        precision = blocks.precision if one.dtype == jnp.float32 else None
        product = lax.dot_general(one, other, ((a, b), (c, d)), precision=precision, preferred_element_type=jnp.float32)
        return product.astype(dtype)
    one, other = one.astype(dtype), other.astype(dtype)
    # All axes of both, in the order of the result, and those that are summed over.
    free = [n for n in range(one.ndim) if n not in (*a, *c)]
    rest = [n for n in range(other.ndim) if n not in (*b, *d)]
    one = jnp.transpose(one, (*c, *free, *a))
    other = jnp.transpose(other, (*d, *rest, *b))
    batch, summed = one.shape[: len(c)], one.shape[one.ndim - len(a) :]
    one = one.reshape((*one.shape[: len(c) + len(free)], *(1,) * len(rest), *summed))
    other = other.reshape((*batch, *(1,) * len(free), *other.shape[len(d) :]))
    wide = (*padded(shape), *summed)
    product = jnp.broadcast_to(one, wide) * jnp.broadcast_to(other, wide)
    return jnp.sum(product, tuple(range(len(shape), product.ndim)), dtype=dtype)


def is_matrices(step: Step, left: Shape, right: Shape) -> bool:
    """Whether a product is one for matrix units."""
    ((a, b), (c, _)), dtype = step.params["dimension_numbers"], step.inputs[0].dtype
    plain = len(left) == len(right) == 2 and len(a) == len(b) == 1 and not c
    known = str(dtype) in ("float32", "bfloat16", "float16") and step.inputs[1].dtype == dtype
    return plain and known and min(padded((*left, *right))) >= LEAST


def products_of(step: Step, rows: Rows) -> int:
    """How many numbers are multiplied for a product."""
    (a, _), _ = step.params["dimension_numbers"]
    left = padded(rows.shape(step.inputs[0]))
    return math.prod((*padded(rows.shape(step.output)), *(left[axis] for axis in a)))


Rule = Callable[..., Array]
RULES: dict[str, Rule] = {
    **{name: _elementwise for name in ELEMENTWISE - {"copy", "stop_gradient"}},
    "copy": _copied,
    "stop_gradient": _copied,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "transpose": _transposed,
    "iota": _numbered,
    "reduce_sum": _summed,
    "reduce_max": _extreme,
    "reduce_min": _extreme,
    "reduce_and": _of_truths,
    "reduce_or": _of_truths,
    "argmax": _position,
    "argmin": _position,
    "slice": _cut,
    "concatenate": _joined,
    "stack": _stacked,
    "pad": _surrounded,
    "dot_general": _product,
}
assert RULES.keys() >= REDUCTIONS


def keeps_rest_behind(given: Shape, out: Shape) -> bool:
    """Whether an array whose sizes are made powers of two can be reshaped as it is: what was added must be behind all
    that there is, of each group of axes that become one or that one becomes."""

    def fits(shape: Shape, axes: Sequence[int]) -> bool:
        return all(shape[axis] == padded(shape)[axis] for axis in axes[1:])

    return all(fits(given, a) and fits(out, b) for a, b in groups(given, out))
