"""Functions that rearrange a value's elements: reshape, transpose, broadcast, join and cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo.dtypes import DType
from tempo.errors import ShapeError
from tempo.graph.node import Edge, Primitive, Shape, Size, normal_size, show_shape
from tempo.ops.common import listed, normal_axes, normal_axis, places
from tempo.ops.elementwise import sum_to
from tempo.ops.indexing import index, part, place
from tempo.ops.sizes import quotient, total
from tempo.source import user_line
from tempo.symbolic import Expr
from tempo.tensor import RecurrentTensor, ShapeLike, TensorLike, apply, as_tensor, coerce

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded


def _infer_reshape(x: Edge, *, shape: Shape) -> tuple[Shape, DType]:
    if total(x.shape) != total(shape):
        raise ShapeError(
            f"reshape: shape {show_shape(x.shape)} has {total(x.shape)} elements, "
            f"{show_shape(shape)} has {total(shape)}",
            places=places([x]),
            hint="the numbers of elements must be equal; one size may be -1, for what is left",
        )
    return shape, x.dtype


def _infer_broadcast(x: Edge, *, shape: Shape) -> tuple[Shape, DType]:
    fits = len(x.shape) <= len(shape) and all(
        size in (1, wanted) for size, wanted in zip(reversed(x.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"broadcast_to: shape {show_shape(x.shape)} does not broadcast to {show_shape(shape)}",
            places=places([x]),
            hint="seen from the last axis, sizes must be equal or 1",
        )
    return shape, x.dtype


def _infer_concatenate(*edges: Edge, axis: int) -> tuple[Shape, DType]:
    first, *others = edges
    for other in others:
        same_rank = len(other.shape) == len(first.shape)
        if not same_rank or _without(other.shape, axis) != _without(first.shape, axis):
            raise ShapeError(
                f"concatenate: shapes {show_shape(first.shape)} and {show_shape(other.shape)} "
                f"cannot be joined along axis {axis}",
                places=places([first, other]),
                hint="all sizes but the one joined along must be equal",
            )
    joined = normal_size(sum((e.shape[axis] for e in edges), start=0))
    return (*first.shape[:axis], joined, *first.shape[axis + 1 :]), first.dtype


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _concatenate_gradient(
    g: RecurrentTensor, out: RecurrentTensor, *operands: RecurrentTensor, axis: int
) -> tuple[RecurrentTensor, ...]:
    parts: list[RecurrentTensor] = []
    start: Size = 0
    for x in operands:
        parts.append(part(g, axis, start, x.shape[axis]))
        start = start + x.shape[axis]
    return tuple(parts)


def _reshape_jax(jx: Jx, x: Padded, *, shape: tuple[Any, ...]) -> Any:
    lengths = tuple(map(jx.most, shape))
    if x.array.shape == x.sizes and lengths == shape:
        return x.array.reshape(shape)
    if _keeps_rows(x.sizes, shape):
        # The last padded axis and what follows it is a row, whose elements stay in order; its padding is behind them.
        row, wanted = _row(jx, x.sizes), _row(jx, shape)
        rows = math.prod(lengths[: _padded_axes(shape)[-1]])
        return jx.fit(x.array.reshape(rows, row), (rows, wanted)).reshape(lengths)
    # Where every element is in the true value, counted row by row, and where that is in the padded one.
    number: Any = 0
    for axis, size in enumerate(shape):
        number = number * jx.true(size) + jx.lax.broadcasted_iota(np.int32, lengths, axis)
    place_, stride = jx.np.zeros(lengths, np.int32), 1
    for size in reversed(x.sizes):
        true = jx.np.maximum(jx.true(size), 1)
        place_ = place_ + number % true * stride
        number, stride = number // true, stride * jx.most(size)
    return jx.gather(x.array.reshape(-1), place_, 0)


def _keeps_rows(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether two shapes of as many elements have the same padded axes but for the last of them, and as many numbers
    (not padded) before and between them."""
    olds, news = _padded_axes(before), _padded_axes(after)
    if len(olds) != len(news):
        return False
    start = (0, 0)
    for old, new in zip(olds, news, strict=True):
        if math.prod(before[start[0] : old]) != math.prod(after[start[1] : new]):
            return False
        # The last ones are equal up to the number of elements behind them, because all others are.
        if old != olds[-1] and (before[old].value is not after[new].value or before[old].most != after[new].most):
            return False
        start = (old + 1, new + 1)
    return bool(olds)


def _padded_axes(sizes: Sequence[Any]) -> list[int]:
    return [n for n, size in enumerate(sizes) if not isinstance(size, int)]


def _row(jx: Jx, sizes: Sequence[Any]) -> int:
    return math.prod(jx.most(size) for size in sizes[_padded_axes(sizes)[-1] :])


def _concatenate_jax(jx: Jx, *operands: Padded, axis: int) -> Any:
    """As long as all operands padded: where the true size of the whole is known to be less, the end is padding."""
    result = jx.np.concatenate([x.array for x in operands], axis)
    start: Any = 0
    for n, x in enumerate(operands):
        if any(axis in before.ragged for before in operands[:n]):
            # Over the padding of what came before.
            result = jx.lax.dynamic_update_slice_in_dim(result, x.array, start, axis)
        start = start + jx.true(x.sizes[axis])
    return result


def _flip_jax(jx: Jx, x: Padded, *, axes: tuple[int, ...]) -> Any:
    result = jx.lax.rev(x.array, [a for a in axes if a not in x.ragged])
    for axis in axes:
        if axis in x.ragged:
            last = jx.true(x.sizes[axis]) - 1
            result = jx.gather(result, last - jx.lax.iota(np.int32, result.shape[axis]), axis)
    return result


RESHAPE = Primitive(
    "reshape",
    infer=_infer_reshape,
    reference=lambda x, *, shape: x.reshape(shape),
    gradient=lambda g, out, x, *, shape: (reshape(g, x.shape),),
    jax=_reshape_jax,
)

TRANSPOSE = Primitive(
    "transpose",
    infer=lambda x, *, axes: (tuple(x.shape[a] for a in axes), x.dtype),
    reference=lambda x, *, axes: x.transpose(axes),
    gradient=lambda g, out, x, *, axes: (transpose(g, [axes.index(a) for a in range(len(axes))]),),
    jax=lambda jx, x, *, axes: x.array.transpose(axes),
)

BROADCAST_TO = Primitive(
    "broadcast_to",
    infer=_infer_broadcast,
    reference=lambda x, *, shape: np.broadcast_to(x, shape),
    gradient=lambda g, out, x, *, shape: (sum_to(g, x.shape),),
    jax=lambda jx, x, *, shape: jx.np.broadcast_to(x.array, tuple(map(jx.most, shape))),
)

CONCATENATE = Primitive(
    "concatenate",
    infer=_infer_concatenate,
    reference=lambda *arrays, axis: np.concatenate(arrays, axis),
    gradient=_concatenate_gradient,
    jax=_concatenate_jax,
)

FLIP = Primitive(
    "flip",
    infer=lambda x, *, axes: (x.shape, x.dtype),
    reference=lambda x, *, axes: np.flip(x, axes),
    gradient=lambda g, out, x, *, axes: (flip(g, axes),),
    jax=_flip_jax,
)


# -- one value, another shape -----------------------------------------------------------------------------


def reshape(x: TensorLike, shape: ShapeLike) -> RecurrentTensor:
    """The same elements, in order, in another shape; one size may be -1, for what is left."""
    tensor = as_tensor(x)
    sizes = listed(shape)
    for size in sizes:
        if isinstance(size, Expr):
            continue
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < -1:
            raise ShapeError(
                f"reshape: {size!r} is not a size",
                places=places([tensor.edge]),
                hint="sizes are non-negative integers or index expressions; one may be -1, for what is left",
            )
    unknown = [n for n, size in enumerate(sizes) if size == -1]
    if len(unknown) > 1:
        raise ShapeError(
            f"reshape: {show_shape(tuple(sizes))} has more than one -1",
            places=places([tensor.edge]),
        )
    if unknown:
        known = total(size for n, size in enumerate(sizes) if n not in unknown)
        left = quotient(total(tensor.shape), known)
        if left is None:
            raise ShapeError(
                f"reshape: the size -1 of {show_shape(tuple(sizes))} cannot be found: "
                f"the {total(tensor.shape)} elements of shape {show_shape(tensor.shape)} "
                f"are no whole multiple of {known}",
                places=places([tensor.edge]),
                hint="give all sizes" if known == 0 else "the sizes given must divide the number of elements",
            )
        sizes[unknown[0]] = left
    target = tuple(normal_size(size) for size in sizes)
    return tensor if target == tensor.shape else apply(RESHAPE, (tensor,), shape=target)


def transpose(x: TensorLike, axes: Sequence[int] | None = None) -> RecurrentTensor:
    """The axes in another order; reversed by default."""
    tensor = as_tensor(x)
    rank = tensor.ndim
    order = tuple(reversed(range(rank))) if axes is None else _axes("transpose", tensor.edge, axes)
    if sorted(order) != list(range(rank)):
        raise ShapeError(
            f"transpose: axes {tuple(axes or ())} are no order of the {rank} axes of shape {show_shape(tensor.shape)}",
            places=places([tensor.edge]),
            hint="name every axis once",
        )
    return tensor if order == tuple(range(rank)) else apply(TRANSPOSE, (tensor,), axes=order)


def _axes(op: str, edge: Edge, axes: int | Sequence[int]) -> tuple[int, ...]:
    """Axes as non-negative integers, in the order given."""
    return tuple(normal_axis(op, edge, a) for a in listed(axes))


def swapaxes(x: TensorLike, axis1: int, axis2: int) -> RecurrentTensor:
    """Two axes exchanged."""
    tensor = as_tensor(x)
    a, b = _axes("swapaxes", tensor.edge, (axis1, axis2))
    order = list(range(tensor.ndim))
    order[a], order[b] = b, a
    return transpose(tensor, order)


def moveaxis(x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]) -> RecurrentTensor:
    """Axes moved to other places; the others keep their order."""
    tensor = as_tensor(x)
    edge = tensor.edge
    sources, targets = _axes("moveaxis", edge, source), _axes("moveaxis", edge, destination)
    if len(sources) != len(targets) or len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise ShapeError(
            f"moveaxis: axes {source} cannot move to {destination}",
            places=places([edge]),
            hint="name as many places as axes, each once",
        )
    order = [a for a in range(tensor.ndim) if a not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return transpose(tensor, order)


def broadcast_to(x: TensorLike, shape: ShapeLike) -> RecurrentTensor:
    """The value repeated along axes of size 1 and new leading axes until it has ``shape``."""
    from tempo.ops.creation import as_shape

    tensor, target = as_tensor(x), as_shape(shape)
    return tensor if target == tensor.shape else apply(BROADCAST_TO, (tensor,), shape=target)


def expand_dims(x: TensorLike, axis: int | Sequence[int]) -> RecurrentTensor:
    """New axes of size 1, at these places of the result."""
    tensor = as_tensor(x)
    new = listed(axis)
    rank = tensor.ndim + len(new)
    at = {int(a) % rank for a in new if isinstance(a, int | np.integer) and -rank <= a < rank}
    if len(at) < len(new):
        raise ShapeError(
            f"expand_dims: axis {axis} is no place in a result of {rank} axes (from shape {show_shape(tensor.shape)})",
            places=places([tensor.edge]),
            hint=f"places are different integers from {-rank} to {rank - 1}",
        )
    sizes = iter(tensor.shape)
    return reshape(tensor, tuple(1 if n in at else next(sizes) for n in range(rank)))


def squeeze(x: TensorLike, axis: int | Sequence[int] | None = None) -> RecurrentTensor:
    """Without axes of size 1: all of them, or those named."""
    tensor = as_tensor(x)
    if axis is None:
        return reshape(tensor, tuple(size for size in tensor.shape if size != 1))
    axes = normal_axes("squeeze", tensor.edge, axis)
    for a in axes:
        if tensor.shape[a] != 1:
            raise ShapeError(
                f"squeeze: axis {a} of shape {show_shape(tensor.shape)} has size {tensor.shape[a]}, not 1",
                places=places([tensor.edge]),
                hint="index the axis, e.g. x.space[..., 0], or reduce over it",
            )
    return reshape(tensor, tuple(size for n, size in enumerate(tensor.shape) if n not in axes))


def flip(x: TensorLike, axis: int | Sequence[int] | None = None) -> RecurrentTensor:
    """The elements in reverse order along the axes (all by default)."""
    tensor = as_tensor(x)
    axes = normal_axes("flip", tensor.edge, axis)
    return apply(FLIP, (tensor,), axes=axes) if axes else tensor


# -- several values ---------------------------------------------------------------------------------------


def concatenate(xs: Sequence[TensorLike], axis: int | None = 0) -> RecurrentTensor:
    """Values joined along an axis; None joins them flattened."""
    tensors = _several("concatenate", xs)
    if axis is None:
        tensors, axis = tuple(reshape(x, -1) for x in tensors), 0
    axis = normal_axis("concatenate", tensors[0].edge, axis)
    return tensors[0] if len(tensors) == 1 else apply(CONCATENATE, tensors, axis=axis)


def stack(xs: Sequence[TensorLike], axis: int = 0) -> RecurrentTensor:
    """Values of one shape along a new axis."""
    tensors = _several("stack", xs)
    for x in tensors[1:]:
        if x.shape != tensors[0].shape:
            raise ShapeError(
                f"stack: shapes {show_shape(tensors[0].shape)} and {show_shape(x.shape)} differ",
                places=places([tensors[0].edge, x.edge]),
                hint="values that are stacked must have one shape; tp.concatenate joins along an axis they have",
            )
    return concatenate([expand_dims(x, axis) for x in tensors], axis)


def _several(op: str, xs: Sequence[TensorLike]) -> tuple[RecurrentTensor, ...]:
    listed = [xs] if isinstance(xs, RecurrentTensor) else list(xs)
    if isinstance(xs, RecurrentTensor) or not listed:
        raise ShapeError(
            f"{op}: needs a list of tensors, found {xs.edge if isinstance(xs, RecurrentTensor) else 'none'}",
            places=[("here", user_line())],
            hint=f"tp.{op}([a, b])",
        )
    return coerce(*listed)


def split(x: TensorLike, indices_or_sections: int | Sequence[int | Expr], axis: int = 0) -> list[RecurrentTensor]:
    """The value cut along an axis: into equal parts (an integer), or before each of these indices."""
    tensor = as_tensor(x)
    axis = normal_axis("split", tensor.edge, axis)
    size = tensor.shape[axis]
    if isinstance(indices_or_sections, int | np.integer):
        count = int(indices_or_sections)
        each = quotient(size, count) if count > 0 else None
        if each is None:
            raise ShapeError(
                f"split: axis {axis} of shape {show_shape(tensor.shape)} cannot be cut into {count} equal parts",
                places=places([tensor.edge]),
                hint="give the indices to cut at instead, e.g. tp.split(x, [2, 5])",
            )
        return [part(tensor, axis, n * each, each) for n in range(count)]
    ends = [0, *listed(indices_or_sections), None]
    keys = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
    return [index(tensor, (slice(None),) * axis + (key,)) for key in keys]


# -- larger ---------------------------------------------------------------------------------------------


def pad(x: TensorLike, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> RecurrentTensor:
    """The value with a margin: ``pad_width`` is n, (before, after), one such pair per axis, or {axis: pair}."""
    tensor = as_tensor(x)
    if mode != "constant":
        raise ShapeError(
            f"pad: mode {mode!r} is not supported",
            places=places([tensor.edge]),
            hint='mode="constant" pads with one number; other margins are tp.concatenate of slices of x.space',
        )
    widths = _pad_widths(tensor.edge, pad_width)
    if all(width == (0, 0) for width in widths):
        return tensor
    shape = tuple(before + size + after for (before, after), size in zip(widths, tensor.shape, strict=True))
    return place(
        tensor,
        tuple(map(normal_size, shape)),
        tuple(before for before, _ in widths),
        value=constant_values,
    )


def _pad_widths(edge: Edge, pad_width: Any) -> list[tuple[Size, Size]]:
    rank = len(edge.shape)
    if isinstance(pad_width, Mapping):
        given = {normal_axis("pad", edge, a): _pair(edge, pad_width, w) for a, w in pad_width.items()}
        return [given.get(n, (0, 0)) for n in range(rank)]
    if isinstance(pad_width, int | np.integer | Expr):
        return [_pair(edge, pad_width, pad_width)] * rank
    widths = listed(pad_width)
    if widths and all(isinstance(w, int | np.integer | Expr) for w in widths):
        return [_pair(edge, pad_width, widths)] * rank
    pairs = [_pair(edge, pad_width, w) for w in widths]
    if len(pairs) == 1:
        return pairs * rank
    if len(pairs) != rank:
        raise ShapeError(
            f"pad: {len(pairs)} widths for the {rank} axes of shape {show_shape(edge.shape)}",
            places=places([edge]),
            hint="give one (before, after) for all axes, or one per axis",
        )
    return pairs


def _pair(edge: Edge, pad_width: Any, width: Any) -> tuple[Size, Size]:
    ends = listed(width)
    ends = ends * 2 if len(ends) == 1 else ends
    valid = len(ends) == 2 and all(isinstance(e, Expr) or (isinstance(e, int | np.integer) and e >= 0) for e in ends)
    if not valid:
        raise ShapeError(
            f"pad: {pad_width} is no pad width for shape {show_shape(edge.shape)}",
            places=places([edge]),
            hint="widths are n, (before, after), or one (before, after) per axis, none negative",
        )
    return normal_size(ends[0]), normal_size(ends[1])


def repeat(x: TensorLike, repeats: int | Expr, axis: int | None = None) -> RecurrentTensor:
    """Every element (of the flattened value, or of an axis) this many times in a row."""
    tensor = reshape(x, -1) if axis is None else as_tensor(x)
    at = normal_axis("repeat", tensor.edge, 0 if axis is None else axis)
    before, size, after = tensor.shape[:at], tensor.shape[at], tensor.shape[at + 1 :]
    spread = broadcast_to(expand_dims(tensor, at + 1), (*before, size, repeats, *after))
    return reshape(spread, (*before, size * repeats, *after))


def tile(x: TensorLike, reps: int | Expr | Sequence[int | Expr]) -> RecurrentTensor:
    """The whole value side by side, ``reps`` times along each of the last axes."""
    tensor = as_tensor(x)
    counts: list[Size] = listed(reps)
    rank = max(tensor.ndim, len(counts))
    counts = [*(1,) * (rank - len(counts)), *counts]
    sizes = (1,) * (rank - tensor.ndim) + tensor.shape
    apart = [size for size in sizes for size in (1, size)]
    spread = [s for pair in zip(counts, sizes, strict=True) for s in pair]
    product = [count * size for count, size in zip(counts, sizes, strict=True)]
    return reshape(broadcast_to(reshape(tensor, apart), spread), product)


def roll(x: TensorLike, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> RecurrentTensor:
    """The elements moved on by ``shift``; what falls off the end comes back at the start."""
    tensor = as_tensor(x)
    if axis is None:
        return reshape(roll(reshape(tensor, -1), sum(listed(shift)), 0), tensor.shape)
    axes = _axes("roll", tensor.edge, axis)
    shifts = listed(shift) * len(axes) if isinstance(shift, int | np.integer) else listed(shift)
    if len(shifts) != len(axes):
        raise ShapeError(
            f"roll: {len(shifts)} shifts for {len(axes)} axes",
            places=places([tensor.edge]),
            hint="give one shift per axis",
        )
    for n, by in zip(axes, shifts, strict=True):
        size = tensor.shape[n]
        if isinstance(size, int):
            by = by % size if size else 0
        # On an axis of symbolic size a shift by more than the size is found when it is evaluated.
        cut = size - by if by >= 0 else -by
        if by:
            tensor = concatenate([part(tensor, n, cut, size - cut), part(tensor, n, 0, cut)], n)
    return tensor
