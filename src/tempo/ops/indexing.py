"""Indexing inside a value: what ``x.space[key]`` means.

Two primitives, each the other's gradient: ``slice`` reads a regular grid of elements, ``place`` writes a value
onto such a grid of a larger one. Where a grid starts may be an index expression, and so may its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.errors import DtypeError, ShapeError, TempoError
from tempo.graph.node import Primitive, Shape, Size, normal_size, show_shape
from tempo.ops.common import places
from tempo.symbolic import Condition, Expr, as_expr
from tempo.tensor import RecurrentTensor, TensorLike, apply, as_tensor

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]


def _grid(
    full: tuple[int, ...], starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[slice, ...]:
    """NumPy's slices for a grid, or an error where the grid sticks out of the value."""
    result = []
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        last = start + step * (size - 1)
        if size < 0:
            raise IndexError(f"the length {size} along axis {axis} is negative")
        if size and not (start >= 0 and last < full[axis]):
            which = f"element {start}" if size == 1 else f"elements {start} to {last}"
            raise IndexError(f"{which} of axis {axis} asked for, whose size is {full[axis]}")
        result.append(slice(start, last + 1, step) if size else slice(0, 0))
    return tuple(result)


def _slice(x: Array, *, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    result: Array = x[_grid(x.shape, starts, sizes, steps)]
    return result


def _place(
    x: Array,
    *,
    shape: tuple[int, ...],
    starts: tuple[int, ...],
    steps: tuple[int, ...],
    value: Array,
) -> Array:
    result = np.full(shape, value, x.dtype)
    result[_grid(shape, starts, x.shape, steps)] = x
    return result


def _slice_jax(jx: Jx, x: Padded, *, starts: tuple[Any, ...], sizes: tuple[Any, ...], steps: tuple[int, ...]) -> Any:
    result = x.array
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        length, count = result.shape[axis], jx.most(size)
        reach = step * (count - 1) + 1 if count else 0
        if isinstance(start, int):
            # Past the end there is only padding.
            first, stop = min(start, length), min(start + reach, length)
            if (first, stop, step) != (0, length, 1):
                result = jx.lax.slice_in_dim(result, first, stop, step, axis)
            result = jx.fit(result, (*result.shape[:axis], count, *result.shape[axis + 1 :]))
        elif max(start.most, 0) + reach <= length:  # nothing starts before 0, except at steps that are discarded
            result = jx.lax.dynamic_slice_in_dim(result, start.value, reach, axis)
            if step != 1:
                result = jx.lax.slice_in_dim(result, 0, reach, step, axis)
        else:
            result = jx.gather(result, start.value + step * jx.lax.iota(np.int32, count), axis)
    return result


def _place_jax(
    jx: Jx,
    x: Padded,
    *,
    shape: tuple[Any, ...],
    starts: tuple[Any, ...],
    steps: tuple[int, ...],
    value: Array,
) -> Any:
    """The grid far enough behind a margin of ``value`` that every start is a step into it."""
    lengths = tuple(map(jx.most, shape))
    if 0 in lengths:  # at steps whose results are discarded, there may be no room for the grid
        return jx.np.zeros(lengths, x.dtype)
    margins = []
    for length, size, start, step in zip(x.array.shape, shape, starts, steps, strict=True):
        grid = step * (length - 1) + 1 if length else 0
        before = jx.most(start)
        whole = jx.most(size) + (0 if isinstance(start, int) else before)
        margins.append((before, whole - before - grid, step - 1))
    result = jx.lax.pad(jx.masked(x, x.ragged, value), jx.np.asarray(value, x.dtype), margins)
    for axis, (size, start) in enumerate(zip(shape, starts, strict=True)):
        if not isinstance(start, int):
            result = jx.lax.dynamic_slice_in_dim(result, start.most - start.value, jx.most(size), axis)
    return result


SLICE = Primitive(
    "slice",
    infer=lambda x, *, starts, sizes, steps: (sizes, x.dtype),
    reference=_slice,
    gradient=lambda g, out, x, *, starts, sizes, steps: (place(g, x.shape, starts, steps),),
    jax=_slice_jax,
)

PLACE = Primitive(
    "place",
    infer=lambda x, *, shape, starts, steps, value: (shape, x.dtype),
    reference=_place,
    gradient=lambda g, out, x, *, shape, starts, steps, value: (window(g, starts, x.shape, steps),),
    jax=_place_jax,
    neutral=lambda dtype, *, value, **_: value.item(),
)


def window(x: RecurrentTensor, starts: Shape, sizes: Shape, steps: tuple[int, ...] | None = None) -> RecurrentTensor:
    """The grid of elements ``start, start + step, ...`` along each axis; steps are positive."""
    steps = steps or (1,) * x.ndim
    starts, sizes = tuple(map(normal_size, starts)), tuple(map(normal_size, sizes))
    if sizes == x.shape and all(start == 0 for start in starts):
        return x
    return apply(SLICE, (x,), starts=starts, sizes=sizes, steps=steps)


def part(x: RecurrentTensor, axis: int, start: Size, size: Size, step: int = 1) -> RecurrentTensor:
    """``window`` along one axis."""

    def only(value: Size, others: Shape) -> Shape:
        return (*others[:axis], value, *others[axis + 1 :])

    zeros, ones = (0,) * x.ndim, (1,) * x.ndim
    return window(x, only(start, zeros), only(size, x.shape), (*ones[:axis], step, *ones[axis + 1 :]))


def place(
    x: RecurrentTensor,
    shape: Shape,
    starts: Shape,
    steps: tuple[int, ...] | None = None,
    value: float = 0,
) -> RecurrentTensor:
    """A value of this shape that is ``x`` on the grid and one number elsewhere: the adjoint of ``window``."""
    steps = steps or (1,) * x.ndim
    starts, shape = tuple(map(normal_size, starts)), tuple(map(normal_size, shape))
    number = np.asarray(value)
    if number.shape != () or number.dtype not in dtypes.ALL:
        raise ShapeError(
            f"pad: the value must be one number, found {value!r}",
            places=places([x.edge]),
            hint="pad with 0 and add or select with tp.where to have a margin of tensors",
        )
    return apply(PLACE, (x,), shape=shape, starts=starts, steps=steps, value=number.astype(x.dtype))


# -- x.space[key] -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    """What a key takes from one axis: a grid, read backwards if ``flipped``, dropped if ``point``."""

    start: Size
    size: Size
    step: int = 1
    flipped: bool = False
    point: bool = False


def index(x: TensorLike, key: Any) -> RecurrentTensor:
    """``x.space[key]``: NumPy's indexing with integers, slices, None, ``...`` and one tensor of integers.

    Integers and the ends of slices may be index expressions, which are not negative: they count from the start.
    """
    from tempo.ops.gathering import take
    from tempo.ops.shaping import flip, moveaxis, reshape

    tensor = as_tensor(x)
    keys = _full_key(tensor, key)
    ranges: list[_Range] = []
    shape: list[Size] = []
    gather: tuple[int, RecurrentTensor] | None = None
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        axis = len(ranges)
        if isinstance(k, RecurrentTensor):
            gather = (len(shape), k)
            k = slice(None)
        ranges.append(_range(tensor, axis, k))
        if not ranges[-1].point:
            shape.append(ranges[-1].size)
    result = window(
        tensor,
        tuple(r.start for r in ranges),
        tuple(r.size for r in ranges),
        tuple(r.step for r in ranges),
    )
    flipped = tuple(axis for axis, r in enumerate(ranges) if r.flipped)
    result = reshape(flip(result, flipped) if flipped else result, shape)
    if gather is None:
        return result
    axis, indices = gather
    result = take(result, indices, axis)
    if axis and indices.ndim and _scattered(keys):
        # NumPy puts the axes of an index that is not in one piece in front.
        result = moveaxis(result, range(axis, axis + indices.ndim), range(indices.ndim))
    return result


def _full_key(tensor: RecurrentTensor, key: Any) -> list[Any]:
    """The key with one item per axis, None for new axes, and arrays made tensors."""
    keys = [_item(tensor, k) for k in (key if isinstance(key, tuple) else (key,))]
    ellipses = [n for n, k in enumerate(keys) if isinstance(k, EllipsisType)]
    used = sum(1 for k in keys if k is not None) - len(ellipses)
    if len(ellipses) > 1 or used > tensor.ndim:
        raise ShapeError(
            f"{tensor.edge}.space[...]: {used} indices for shape {show_shape(tensor.shape)}"
            + (" and more than one '...'" if len(ellipses) > 1 else ""),
            places=places([tensor.edge]),
            hint="x.space[...] indexes inside a value; x[...] indexes time, one index per dim of the domain",
        )
    if sum(isinstance(k, RecurrentTensor) for k in keys) > 1:
        raise ShapeError(
            f"{tensor.edge}.space[...]: only one axis can be indexed by a tensor",
            places=places([tensor.edge]),
            hint="for one element of each row: tp.take_along_axis(x, idx.space[:, None], 1)",
        )
    at = ellipses[0] if ellipses else len(keys)
    rest = [slice(None)] * (tensor.ndim - used)
    return keys[:at] + rest + keys[at + 1 :]


def _item(tensor: RecurrentTensor, key: Any) -> Any:
    if key is None or isinstance(key, slice | EllipsisType):
        return key
    if isinstance(key, bool | np.bool_ | Condition):
        raise _bad_key(tensor, key, "is a truth value, not an index")
    if isinstance(key, Expr | int | np.integer):
        return _number(key)
    if isinstance(key, RecurrentTensor | np.ndarray | list):
        found = as_tensor(key if not isinstance(key, list) or key else np.zeros(0, np.int32), tensor.program)
        if dtypes.is_bool(found.dtype):
            raise _bad_key(tensor, "a bool tensor", "would give a size that depends on data")
        if not dtypes.is_integer(found.dtype):
            raise _bad_key(tensor, f"a tensor of {found.dtype.name}", "is no index")
        return found
    raise _bad_key(tensor, repr(key), f"of type {type(key).__name__} is no index")


def _bad_key(tensor: RecurrentTensor, key: object, problem: str) -> TempoError:
    return DtypeError(
        f"{tensor.edge}.space[...]: {key} {problem}",
        places=places([tensor.edge]),
        hint="indices are integers, index expressions, slices, None, ... or one tensor of integers; "
        "choose by a condition with tp.where",
    )


def _number(value: Any) -> Size:
    """An integer of any kind, or an expression."""
    return normal_size(value)


def _scattered(keys: list[Any]) -> bool:
    """Whether the integers and the tensor among the keys are not all next to each other."""
    at = [n for n, k in enumerate(keys) if isinstance(k, int | Expr | RecurrentTensor)]
    return at[-1] - at[0] >= len(at)


def _range(tensor: RecurrentTensor, axis: int, key: Any) -> _Range:
    size = tensor.shape[axis]
    if isinstance(key, slice):
        return _slice_range(tensor, size, key)
    if isinstance(key, int) and isinstance(size, int) and not -size <= key < size:
        raise ShapeError(
            f"{tensor.edge}.space[...]: index {key} is out of range for axis {axis} of shape "
            f"{show_shape(tensor.shape)}",
            places=places([tensor.edge]),
            hint=f"indices go from {-size} to {size - 1}" if size else "the axis is empty",
        )
    return _Range(_from_end(key, size), 1, point=True)


def _from_end(key: Size, size: Size) -> Size:
    return normal_size(size + key) if isinstance(key, int) and key < 0 else key


def _slice_range(tensor: RecurrentTensor, size: Size, key: slice) -> _Range:
    step = 1 if key.step is None else _end(tensor, key.step)
    if not isinstance(step, int) or step == 0:
        raise ShapeError(
            f"{tensor.edge}.space[...]: the step {step} of a slice must be a non-zero integer",
            places=places([tensor.edge]),
        )
    start, end = (None if e is None else _end(tensor, e) for e in (key.start, key.stop))
    low: Size
    high: Size
    if isinstance(size, int):
        # NumPy moves ends that are out of range to the range's; expressions are left as they are.
        plain = (None if isinstance(start, Expr) else start, None if isinstance(end, Expr) else end)
        low, high, _ = slice(*plain, step).indices(size)
    else:
        low, high = (0, size) if step > 0 else (size - 1, -1)
        low = low if start is None else _from_end(start, size)
        high = high if end is None else _from_end(end, size)
    first = start if isinstance(start, Expr) else low
    stop = end if isinstance(end, Expr) else high
    distance = stop - first if step > 0 else first - stop
    length = normal_size((as_expr(distance) + abs(step) - 1) // abs(step))
    if isinstance(length, int):
        length = max(length, 0)
    if step > 0:
        return _Range(first if length != 0 else 0, length, step)
    return _Range(normal_size(first + step * (length - 1)) if length != 0 else 0, length, -step, flipped=True)


def _end(tensor: RecurrentTensor, end: Any) -> Size:
    if isinstance(end, bool) or not isinstance(end, int | np.integer | Expr):
        raise _bad_key(tensor, repr(end), "is no end or step of a slice")
    return _number(end)
