"""Convolution and pooling, channels first.

One primitive: a convolution without padding. Padding is ``pad``; the adjoints are convolutions again, of values
spread out by ``place``, flipped and transposed, so they can be differentiated again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType
from tempo.errors import ShapeError
from tempo.graph.node import Edge, Primitive, Shape, Size, normal_size, show_shape
from tempo.ops.common import accumulate_in, listed, places, require_numbers
from tempo.ops.indexing import place, window
from tempo.ops.reduction import max as max_
from tempo.ops.reduction import mean
from tempo.ops.shaping import flip, pad, reshape, stack, transpose
from tempo.symbolic import as_expr
from tempo.tensor import RecurrentTensor, TensorLike, apply, as_tensor, coerce

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]
Numbers = tuple[int, ...]
Padding = int | str | Sequence[int | tuple[int, int]]


def _output_sizes(sizes: Shape, kernel: Shape, strides: Numbers, dilations: Numbers) -> Shape:
    """How many places a window has."""
    return tuple(
        normal_size((as_expr(n) - d * (as_expr(k) - 1) - 1) // s + 1)
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    )


def _infer(x: Edge, w: Edge, *, strides: Numbers, dilations: Numbers, groups: int) -> tuple[Shape, DType]:
    spatial = _output_sizes(x.shape[2:], w.shape[2:], strides, dilations)
    return (x.shape[0], w.shape[0], *spatial), x.dtype


def _reference(x: Array, w: Array, *, strides: Numbers, dilations: Numbers, groups: int) -> Array:
    x_, w_ = accumulate_in(x), accumulate_in(w)
    batch, channels, *sizes = x.shape
    outputs, _, *kernel = w.shape
    places_ = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)]
    if min(places_) < 0:
        raise ValueError(f"the window {kernel} (dilation {dilations}) is larger than the value, {sizes}")
    x_ = x_.reshape(batch, groups, channels // groups, *sizes)
    w_ = w_.reshape(groups, outputs // groups, channels // groups, *kernel)
    total = np.zeros((batch, groups, outputs // groups, *places_), x_.dtype)
    for offset in np.ndindex(*kernel):
        grid: tuple[Any, ...] = tuple(
            slice(o * d, o * d + s * n, s) for o, d, s, n in zip(offset, dilations, strides, places_, strict=True)
        )
        total += np.einsum("bgc...,goc->bgo...", x_[..., *grid], w_[..., *offset])
    return total.reshape(batch, outputs, *places_).astype(x.dtype)


def _jax(jx: Jx, x: Padded, w: Padded, *, strides: Numbers, dilations: Numbers, groups: int) -> Any:
    spatial = range(2, 2 + len(strides))
    ragged = [n for operand in (x, w) for n in operand.ragged]
    if any(n in spatial or (n == 1 and groups > 1) for n in ragged) or (0 in w.ragged and groups > 1):
        raise ShapeError(
            "convolution: an axis that the window moves along, or that is cut into groups, has a size that depends "
            "on the point",
            hint="give it a fixed size first, e.g. tp.pad(x, {2: (0, T - x.shape[2])})",
        )

    def convolved(x: Any, w: Any) -> Any:
        return jx.lax.conv_general_dilated(
            x,
            w,
            strides,
            [(0, 0)] * len(strides),
            rhs_dilation=dilations,
            feature_group_count=groups,
            precision=jx.lax.Precision.HIGHEST,
            preferred_element_type=dtypes.accumulator_of(x.dtype),
        )

    def widened(x: Any, w: Any) -> Any:
        batch, _, *sizes = x.shape
        by_group = _with_zeros(jx, x.reshape(batch, groups, 1, *sizes), 2)
        return convolved(by_group.reshape(batch, 2 * groups, *sizes), _with_zeros(jx, w, 1))

    arrays = jx.masked(x, (1,), 0), jx.masked(w, (1,), 0)
    # Steps that are computed at once are groups of one convolution. XLA for CPUs makes groups of one channel, of
    # float64, one group with zeros in its windows: what is no number at one step, as behind a stop, would be none at
    # any. Groups of two channels it leaves alone.
    if x.dtype == np.float64 and w.array.shape[1] == 1:
        return jx.lax.platform_dependent(*arrays, cpu=widened, default=convolved)
    return convolved(*arrays).astype(x.dtype)


def _with_zeros(jx: Jx, array: Any, axis: int) -> Any:
    """The array with zeros behind its elements along an axis of one element."""
    return jx.fit(array, tuple(2 if n == axis else size for n, size in enumerate(array.shape)))


def _gradient(
    g: RecurrentTensor,
    out: RecurrentTensor,
    x: RecurrentTensor,
    w: RecurrentTensor,
    *,
    strides: Numbers,
    dilations: Numbers,
    groups: int,
) -> tuple[RecurrentTensor, RecurrentTensor]:
    rank = len(strides)
    spatial = tuple(range(2, 2 + rank))
    outputs, width, *kernel = w.shape
    one = (1,) * rank

    # dx[i] sums g[p] w[k] over p * stride + k * dilation == i: put g on the strided grid, a window's reach from
    # the start, and slide the flipped window over it.
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    spread = place(
        g,
        (*g.shape[:2], *(n + r for n, r in zip(x.shape[2:], reach, strict=True))),
        (0, 0, *reach),
        (1, 1, *strides),
    )
    grouped = reshape(flip(w, spatial), (groups, _over(outputs, groups), width, *kernel))
    turned = reshape(transpose(grouped, (0, 2, 1, *(n + 1 for n in spatial))), (x.shape[1], -1, *kernel))
    dx = apply(CONVOLUTION, (spread, turned), strides=one, dilations=dilations, groups=groups)

    # dw[k] sums x[p * stride + k * dilation] g[p]: a window as large as g, strides and dilations exchanged, in which
    # the batch plays the channels' part.
    lines = reshape(x, (x.shape[0], groups, width, *x.shape[2:]))
    lines = transpose(lines, (2, 1, 0, *(n + 1 for n in spatial)))
    lines = reshape(lines, (width, groups * x.shape[0], *x.shape[2:]))
    windows = transpose(g, (1, 0, *spatial))
    dw = apply(CONVOLUTION, (lines, windows), strides=dilations, dilations=strides, groups=groups)
    dw = window(dw, (0,) * dw.ndim, (*dw.shape[:2], *kernel))
    return dx, transpose(dw, (1, 0, *spatial))


def _over(size: Size, divisor: int) -> Size:
    return normal_size(as_expr(size) // divisor)


CONVOLUTION = Primitive("convolution", infer=_infer, reference=_reference, gradient=_gradient, jax=_jax)


# -- convolutions -------------------------------------------------------------------------------------------


def conv1d(
    x: TensorLike,
    w: TensorLike,
    stride: int = 1,
    padding: Padding = 0,
    dilation: int = 1,
    groups: int = 1,
) -> RecurrentTensor:
    """``x`` (batch, channels, length) with windows ``w`` (outputs, channels / groups, width).

    ``padding`` is a number, one ``(before, after)`` in a list, "valid" (none) or "same": as much as makes
    ``ceil(length / stride)`` places.
    """
    return _convolve("conv1d", 1, x, w, stride, padding, dilation, groups)


def conv2d(
    x: TensorLike,
    w: TensorLike,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> RecurrentTensor:
    """``x`` (batch, channels, height, width) with windows ``w`` (outputs, channels / groups, height, width).

    ``padding`` is a number, one number or ``(before, after)`` per axis, "valid" or "same".
    """
    return _convolve("conv2d", 2, x, w, stride, padding, dilation, groups)


def _convolve(
    op: str,
    rank: int,
    x: TensorLike,
    w: TensorLike,
    stride: int | Sequence[int],
    padding: Padding,
    dilation: int | Sequence[int],
    groups: int,
) -> RecurrentTensor:
    value, windows = coerce(x, w)
    edges = [value.edge, windows.edge]
    strides, dilations = _per_axis(op, edges, rank, "stride", stride), _per_axis(op, edges, rank, "dilation", dilation)
    require_numbers(op, edges, "cast with .astype(tp.float32)")
    shapes = f"{op}: shapes {show_shape(value.shape)} and {show_shape(windows.shape)}"
    if value.ndim != rank + 2 or windows.ndim != rank + 2:
        raise ShapeError(
            f"{shapes}: both need {rank + 2} axes",
            places=places(edges),
            hint=f"x is (batch, channels, {_AXES[rank]}), w is (outputs, channels / groups, {_AXES[rank]})",
        )
    channels, outputs = value.shape[1], windows.shape[0]
    if not isinstance(channels, int) or not isinstance(outputs, int):
        raise ShapeError(f"{shapes}: the numbers of channels must be numbers", places=places(edges))
    if groups < 1 or channels % groups or outputs % groups or windows.shape[1] != channels // groups:
        raise ShapeError(
            f"{shapes}: {channels} channels in {groups} groups do not fit windows of {windows.shape[1]} channels "
            f"and {outputs} outputs",
            places=places(edges),
            hint="w is (outputs, channels / groups, ...), and groups divides channels and outputs",
        )
    value = _padded(op, value, windows.shape[2:], strides, dilations, padding, 0)
    _check_fits(op, value, windows.shape[2:], dilations, edges)
    return apply(CONVOLUTION, (value, windows), strides=strides, dilations=dilations, groups=groups)


_AXES = {1: "length", 2: "height, width"}


def _per_axis(op: str, edges: Sequence[Edge], rank: int, what: str, number: int | Sequence[int]) -> Numbers:
    numbers = (number,) * rank if isinstance(number, int | np.integer) else tuple(listed(number))
    valid = len(numbers) == rank and all(isinstance(n, int | np.integer) and n >= 1 for n in numbers)
    if not valid:
        raise ShapeError(
            f"{op}: {what} {number} is not a positive integer" + (f" or {rank} of them" if rank > 1 else ""),
            places=places(edges),
        )
    return tuple(int(n) for n in numbers)


def _padded(
    op: str,
    x: RecurrentTensor,
    kernel: Shape,
    strides: Numbers,
    dilations: Numbers,
    padding: Padding,
    value: float,
) -> RecurrentTensor:
    rank = len(strides)
    if isinstance(padding, np.ndarray):
        padding = padding.tolist()
    if padding == "valid":
        return x
    if padding == "same":
        widths: list[Any] = [
            _same(op, x, n, k, s, d) for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
        ]
    elif not isinstance(padding, int | np.integer | Sequence) or isinstance(padding, str):
        raise ShapeError(
            f"{op}: padding {padding!r} is unknown",
            places=places([x.edge]),
            hint='padding is "same", "valid", a number, or one number or (before, after) per axis',
        )
    else:
        widths = [padding] * rank if isinstance(padding, int | np.integer) else list(padding)
        if len(widths) != rank:
            raise ShapeError(
                f"{op}: padding {padding} for {rank} axes",
                places=places([x.edge]),
                hint='padding is "same", "valid", a number, or one number or (before, after) per axis',
            )
    margins = [w if isinstance(w, tuple | list) else (w, w) for w in widths]
    return pad(x, [(0, 0), (0, 0), *margins], constant_values=value)


def _same(op: str, x: RecurrentTensor, size: Size, kernel: Size, stride: int, dilation: int) -> tuple[Size, Size]:
    """The margin that makes ``ceil(size / stride)`` places, the larger part behind."""
    if not isinstance(kernel, int) or not (isinstance(size, int) or stride == 1):
        raise ShapeError(
            f'{op}: padding="same" with stride {stride} needs sizes that are numbers, found {size}',
            places=places([x.edge]),
            hint="give the padding as numbers",
        )
    reach = dilation * (kernel - 1)
    if isinstance(size, int):
        reach = max((-(-size // stride) - 1) * stride + reach + 1 - size, 0)
    return reach // 2, reach - reach // 2


def _check_fits(op: str, x: RecurrentTensor, kernel: Shape, dilations: Numbers, edges: Sequence[Edge]) -> None:
    for size, k, d in zip(x.shape[2:], kernel, dilations, strict=True):
        if isinstance(size, int) and isinstance(k, int) and (k < 1 or d * (k - 1) + 1 > size):
            raise ShapeError(
                f"{op}: a window of {k} (dilation {d}) does not fit into the size {size}, padding included",
                places=places(edges),
                hint="use a smaller window or more padding",
            )


# -- pooling ------------------------------------------------------------------------------------------------


def max_pool1d(x: TensorLike, size: int, stride: int | None = None, padding: Padding = 0) -> RecurrentTensor:
    """The greatest element of every window of ``x`` (batch, channels, length); windows touch by default."""
    return _pool("max_pool1d", 1, x, size, stride, padding, lambda w: max_(w, axis=0), dtypes.lowest)


def max_pool2d(
    x: TensorLike,
    size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = 0,
) -> RecurrentTensor:
    """The greatest element of every window of ``x`` (batch, channels, height, width)."""
    return _pool("max_pool2d", 2, x, size, stride, padding, lambda w: max_(w, axis=0), dtypes.lowest)


def avg_pool1d(x: TensorLike, size: int, stride: int | None = None, padding: Padding = 0) -> RecurrentTensor:
    """The mean of every window of ``x`` (batch, channels, length); padding counts as zeros."""
    return _pool("avg_pool1d", 1, x, size, stride, padding, lambda w: mean(w, 0), lambda dtype: 0)


def avg_pool2d(
    x: TensorLike,
    size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = 0,
) -> RecurrentTensor:
    """The mean of every window of ``x`` (batch, channels, height, width); padding counts as zeros."""
    return _pool("avg_pool2d", 2, x, size, stride, padding, lambda w: mean(w, 0), lambda dtype: 0)


def _pool(
    op: str,
    rank: int,
    x: TensorLike,
    size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: Padding,
    reduce: Callable[[RecurrentTensor], RecurrentTensor],
    margin: Callable[[DType], Any],
) -> RecurrentTensor:
    """``margin`` gives the number that padding has."""
    value = as_tensor(x)
    if value.ndim != rank + 2:
        raise ShapeError(
            f"{op}: shape {show_shape(value.shape)} needs {rank + 2} axes",
            places=places([value.edge]),
            hint=f"x is (batch, channels, {_AXES[rank]})",
        )
    kernel = _per_axis(op, [value.edge], rank, "size", size)
    strides = kernel if stride is None else _per_axis(op, [value.edge], rank, "stride", stride)
    ones = (1,) * rank
    value = _padded(op, value, kernel, strides, ones, padding, margin(value.dtype))
    _check_fits(op, value, kernel, ones, [value.edge])
    counts = _output_sizes(value.shape[2:], kernel, strides, ones)
    offsets = itertools.product(*map(range, kernel))
    parts = [window(value, (0, 0, *offset), (*value.shape[:2], *counts), (1, 1, *strides)) for offset in offsets]
    return reduce(stack(parts))
