"""Reading and adding at places given by a tensor of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType, DTypeLike
from tempo.errors import ShapeError
from tempo.graph.node import Edge, Primitive, Shape, normal_size, show_shape
from tempo.ops.common import accumulate_in, is_symbolic, normal_axis, places, require_integer, require_numbers
from tempo.ops.creation import arange, zeros_like
from tempo.ops.elementwise import astype, equal, where
from tempo.ops.reduction import widened
from tempo.ops.shaping import broadcast_to, expand_dims
from tempo.symbolic import Expr
from tempo.tensor import RecurrentTensor, TensorLike, apply, as_tensor, coerce

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]


def _taken(x: Edge, indices: Edge, axis: int) -> Shape:
    return x.shape[:axis] + indices.shape + x.shape[axis + 1 :]


def _infer_scatter(x: Edge, indices: Edge, updates: Edge, *, axis: int) -> tuple[Shape, DType]:
    return x.shape, x.dtype


def _in_range(indices: Array, size: int, axis: int) -> Array:
    """Indices from 0; negative ones count from the end, as in NumPy."""
    # Integers of few bits, which need not hold the size, are compared and added to as wider ones.
    end = np.int64(size)
    wrong = (indices < -end) | (indices >= end)
    if wrong.any():
        raise IndexError(f"index {indices[wrong].ravel()[0]} is out of range for axis {axis} of size {size}")
    found = indices.astype(np.int64)
    return np.where(found < 0, found + size, found)


def _take(x: Array, indices: Array, *, axis: int) -> Array:
    return np.take(x, _in_range(indices, x.shape[axis], axis), axis)


def _scatter_add(x: Array, indices: Array, updates: Array, *, axis: int) -> Array:
    total = accumulate_in(x).copy()
    key: Any = (slice(None),) * axis + (_in_range(indices, x.shape[axis], axis),)
    np.add.at(total, key, accumulate_in(updates))
    return total.astype(x.dtype)


def _along(indices: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """The key that picks, for every element of ``indices``, that element of its line along the axis."""
    grid = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = _in_range(indices, shape[axis], axis)
    return tuple(grid)


def _scatter_add_along(x: Array, indices: Array, updates: Array, *, axis: int) -> Array:
    total = accumulate_in(x).copy()
    np.add.at(total, _along(indices, x.shape, axis), accumulate_in(updates))
    return total.astype(x.dtype)


def _in_range_jax(jx: Jx, indices: Padded, x: Padded, axis: int) -> Any:
    """Indices from 0, counted from the true end where they are negative. What is out of range stays so."""
    found = indices.array.astype(dtypes.DEFAULT_INT)
    return jx.np.where(found < 0, found + jx.true(x.sizes[axis]), found)


def _to_read_jax(jx: Jx, indices: Padded, x: Padded, axis: int) -> Any:
    """Indices to read at: those too large become the last one, for behind the true end are other steps' values."""
    found = _in_range_jax(jx, indices, x, axis)
    size = x.sizes[axis]
    return found if isinstance(size, int) else jx.np.minimum(found, jx.true(size) - 1)


def _take_along_jax(jx: Jx, x: Padded, indices: Padded, *, axis: int) -> Any:
    if not x.array.shape[axis]:
        return jx.np.zeros(indices.array.shape, x.dtype)
    return jx.np.take_along_axis(x.array, _to_read_jax(jx, indices, x, axis), axis, mode="clip")


def _scatter_add_jax(jx: Jx, x: Padded, indices: Padded, updates: Padded, *, axis: int) -> Any:
    at = indices.other(_in_range_jax(jx, indices, x, axis))
    return _added(jx, x, (slice(None),) * axis + (jx.masked(at, at.ragged, x.array.shape[axis]),), updates)


def _scatter_add_along_jax(jx: Jx, x: Padded, indices: Padded, updates: Padded, *, axis: int) -> Any:
    at = indices.other(_in_range_jax(jx, indices, x, axis))
    key = list(jx.np.ogrid[tuple(slice(n) for n in at.array.shape)])
    # Padding along other axes is added to the padding of ``x``.
    key[axis] = jx.masked(at, (axis,), x.array.shape[axis])
    return _added(jx, x, tuple(key), updates)


def _added(jx: Jx, x: Padded, key: tuple[Any, ...], updates: Padded) -> Any:
    """``x`` with the updates added at a key; what is out of range is left out."""
    total: Any = accumulate_in(x.array)
    added = accumulate_in(updates.array)
    if not total.size or not added.size:  # JAX asks for indices that are in range even of nothing
        return x.array
    return total.at[key].add(added, mode="drop", wrap_negative_indices=False).astype(x.dtype)


TAKE: Primitive = Primitive(
    "take",
    infer=lambda x, indices, *, axis: (_taken(x, indices, axis), x.dtype),
    reference=_take,
    gradient=lambda g, out, x, indices, *, axis: (
        apply(SCATTER_ADD, (zeros_like(x), indices, g), axis=axis),
        None,
    ),
    jax=lambda jx, x, indices, *, axis: jx.gather(x.array, _to_read_jax(jx, indices, x, axis), axis),
)

SCATTER_ADD: Primitive = Primitive(
    "scatter_add",
    infer=_infer_scatter,
    reference=_scatter_add,
    gradient=lambda g, out, x, indices, updates, *, axis: (
        g,
        None,
        apply(TAKE, (g, indices), axis=axis),
    ),
    jax=_scatter_add_jax,
)

TAKE_ALONG_AXIS: Primitive = Primitive(
    "take_along_axis",
    infer=lambda x, indices, *, axis: (indices.shape, x.dtype),
    reference=lambda x, indices, *, axis: x[_along(indices, x.shape, axis)],
    gradient=lambda g, out, x, indices, *, axis: (
        apply(SCATTER_ADD_ALONG_AXIS, (zeros_like(x), indices, g), axis=axis),
        None,
    ),
    jax=_take_along_jax,
)

SCATTER_ADD_ALONG_AXIS: Primitive = Primitive(
    "scatter_add_along_axis",
    infer=_infer_scatter,
    reference=_scatter_add_along,
    gradient=lambda g, out, x, indices, updates, *, axis: (
        g,
        None,
        apply(TAKE_ALONG_AXIS, (g, indices), axis=axis),
    ),
    jax=_scatter_add_along_jax,
)


def take(x: TensorLike, indices: TensorLike, axis: int = 0) -> RecurrentTensor:
    """The elements of an axis at these indices, whose shape takes the axis' place.

    Negative indices count from the end. An index out of range is an error.
    """
    tensor = as_tensor(x)
    axis = normal_axis("take", tensor.edge, axis)
    return apply(TAKE, (tensor, _indices("take", tensor, indices, axis)), axis=axis)


def take_along_axis(x: TensorLike, indices: TensorLike, axis: int) -> RecurrentTensor:
    """For every element of ``indices`` that element of its line of ``x`` along the axis.

    ``indices`` has as many axes as ``x``; the other axes broadcast.
    """
    tensor = as_tensor(x)
    axis = normal_axis("take_along_axis", tensor.edge, axis)
    found = _indices("take_along_axis", tensor, indices, axis)
    if found.ndim != tensor.ndim:
        raise _unlike(tensor, found, axis)
    sizes: list[int | Expr] = []
    for n, (size, count) in enumerate(zip(tensor.shape, found.shape, strict=True)):
        if n != axis and size != count and 1 not in (size, count):
            raise _unlike(tensor, found, axis)
        sizes.append(count if n == axis or size == 1 else size)
    full = (*sizes[:axis], tensor.shape[axis], *sizes[axis + 1 :])
    operands = broadcast_to(tensor, full), broadcast_to(found, tuple(sizes))
    return apply(TAKE_ALONG_AXIS, operands, axis=axis)


def _unlike(x: RecurrentTensor, indices: RecurrentTensor, axis: int) -> ShapeError:
    return ShapeError(
        f"take_along_axis: indices of shape {show_shape(indices.shape)} do not fit shape "
        f"{show_shape(x.shape)} along axis {axis}",
        places=places([x.edge, indices.edge]),
        hint="they must have as many axes, and other sizes only along the axis; tp.expand_dims adds an axis",
    )


def _indices(op: str, x: RecurrentTensor, indices: TensorLike, axis: int) -> RecurrentTensor:
    listed = np.asarray(indices, np.int32) if isinstance(indices, list | tuple) and not indices else indices
    found = as_tensor(listed, x.program)
    require_integer(op, found.edge)
    size = x.shape[axis]
    if is_symbolic(size) and found.dtype not in dtypes.UNSIGNED:
        # The end to count from is only known at a point; a backend may have padded the axis.
        found = where(found < 0, found + astype(as_tensor(size, x.program), found.dtype), found)
    return found


def one_hot(indices: TensorLike, num_classes: int | Expr, dtype: DTypeLike = dtypes.DEFAULT_FLOAT) -> RecurrentTensor:
    """One axis more, last, with 1 at the index and 0 elsewhere; an index out of range gives zeros."""
    found = as_tensor(indices)
    require_integer("one_hot", found.edge)
    found = widened(found)  # of more classes than small integers count, several would be the same number
    classes = as_tensor(arange(normal_size(num_classes)), found.program)
    return astype(equal(expand_dims(found, -1), astype(classes, found.dtype)), dtype)


def scatter_add(x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0) -> RecurrentTensor:
    """``x`` with ``updates`` added at these indices of an axis, as often as an index occurs.

    ``updates`` broadcasts to the shape of ``tp.take(x, indices, axis)``.
    """
    tensor, added = coerce(x, updates)
    axis = normal_axis("scatter_add", tensor.edge, axis)
    found = _indices("scatter_add", tensor, indices, axis)
    require_numbers("scatter_add", [tensor.edge, added.edge])
    shape = _taken(tensor.edge, found.edge, axis)
    try:
        added = broadcast_to(added, shape)
    except ShapeError:
        raise ShapeError(
            f"scatter_add: updates of shape {show_shape(added.shape)} do not fit: indices of shape "
            f"{show_shape(found.shape)} into axis {axis} of shape {show_shape(tensor.shape)} "
            f"make it {show_shape(shape)}",
            places=places([tensor.edge, found.edge, added.edge]),
            hint="updates must broadcast to the shape of tp.take(x, indices, axis)",
        ) from None
    return apply(SCATTER_ADD, (tensor, found, added), axis=axis)
