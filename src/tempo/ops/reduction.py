"""Functions that reduce axes: sums, products, extrema, and what is made of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType
from tempo.errors import DtypeError
from tempo.graph.node import Edge, Primitive, Shape, Size
from tempo.ops.common import accumulate_in, normal_axes, normal_axis
from tempo.ops.creation import number
from tempo.ops.elementwise import (
    astype,
    divide,
    equal,
    exp,
    index_like,
    isfinite,
    log,
    maximum,
    not_equal,
    sqrt,
    square,
    stop_gradient,
    where,
)
from tempo.ops.shaping import broadcast_to, reshape, transpose
from tempo.ops.sizes import total
from tempo.source import user_line
from tempo.symbolic import maximum as index_maximum
from tempo.symbolic import minimum as index_minimum
from tempo.tensor import RecurrentTensor, TensorLike, apply, as_tensor

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]
Axis = int | Sequence[int] | None


def _infer(x: Edge, *, axes: tuple[int, ...], **_: Any) -> tuple[Shape, DType]:
    return tuple(size for n, size in enumerate(x.shape) if n not in axes), x.dtype


def _kept(shape: Shape, axes: tuple[int, ...]) -> Shape:
    """The shape with the reduced axes kept, of size 1."""
    return tuple(1 if n in axes else size for n, size in enumerate(shape))


def _spread(g: RecurrentTensor, x: RecurrentTensor, axes: tuple[int, ...]) -> RecurrentTensor:
    """The adjoint of a sum: ``g`` at every element that was summed."""
    return broadcast_to(reshape(g, _kept(x.shape, axes)), x.shape)


def _prod_gradient(
    g: RecurrentTensor, out: RecurrentTensor, x: RecurrentTensor, *, axes: tuple[int, ...]
) -> tuple[RecurrentTensor]:
    """Every element's factor is the product of the others: of those before times those behind it, which is
    right where ``out / x`` is not, at zeros."""
    from tempo.ops.scan import product_before

    others = tuple(n for n in range(x.ndim) if n not in axes)
    order = (*others, *axes)
    moved = transpose(x, order)
    flat = reshape(moved, (*out.shape, total(x.shape[a] for a in axes)))
    factors = product_before(flat, -1) * product_before(flat, -1, reverse=True)
    back = transpose(reshape(factors, moved.shape), [order.index(n) for n in range(x.ndim)])
    return (_spread(g, x, axes) * back,)


def _extremum_gradient(
    g: RecurrentTensor,
    out: RecurrentTensor,
    x: RecurrentTensor,
    *,
    axes: tuple[int, ...],
    initial: Any,
) -> tuple[RecurrentTensor]:
    """All elements that attain the extremum share evenly."""
    attains = astype(equal(x, reshape(out, _kept(x.shape, axes))), x.dtype)
    count = maximum(sum(attains, axes), 1)
    return (_spread(g / count, x, axes) * attains,)


def _extremum(name: str, function: Callable[..., Array], neutral: Callable[[DType], Any]) -> Primitive:
    def reference(x: Array, *, axes: tuple[int, ...], initial: Array | None) -> Array:
        if initial is None and builtins.any(x.shape[a] == 0 for a in axes):
            raise ValueError(
                f"the {name} of no elements (shape {x.shape}, axes {axes}) does not exist; "
                f"tp.{name}(..., initial=value) says what it should be"
            )
        if initial is None:
            return np.asarray(function(x, axes))
        # The start takes part as one more element.
        return np.asarray(function(x, axes, initial=initial))

    def jax(jx: Jx, x: Padded, *, axes: tuple[int, ...], initial: Array | None) -> Any:
        # The neutral element also stands for the extremum of no elements, where ``reference`` raises.
        fill = np.asarray(neutral(x.dtype), x.dtype)  # the greatest of uint32 is none of JAX's integers
        return getattr(jx.np, name)(jx.masked(x, axes, fill), axes, initial=fill if initial is None else initial)

    return Primitive(name, _infer, reference, _extremum_gradient, jax, lambda dtype, **_: neutral(dtype))


def _infer_position(x: Edge, *, axis: int) -> tuple[Shape, DType]:
    return _infer(x, axes=(axis,))[0], dtypes.DEFAULT_INT


def _position(name: str, function: Callable[..., Array], neutral: Callable[[DType], Any]) -> Primitive:
    def reference(x: Array, *, axis: int) -> Array:
        if x.shape[axis] == 0:
            raise ValueError(f"the {name} of no elements (shape {x.shape}, axis {axis}) does not exist")
        return np.asarray(function(accumulate_in(x), axis)).astype(dtypes.DEFAULT_INT)

    def jax(jx: Jx, x: Padded, *, axis: int) -> Any:
        # Of equal elements the first is taken, so padding never wins.
        array = jx.masked(x, (axis,), neutral(x.dtype))
        if not array.shape[axis]:
            return jx.np.zeros(array.shape[:axis] + array.shape[axis + 1 :], dtypes.DEFAULT_INT)
        return getattr(jx.lax, name)(array, axis, dtypes.DEFAULT_INT)

    return Primitive(name, _infer_position, reference, jax=jax, neutral=lambda dtype, **_: neutral(dtype))


def _accumulate(name: str, neutral: int) -> Callable[..., Any]:
    def jax(jx: Jx, x: Padded, *, axes: tuple[int, ...]) -> Any:
        wide = accumulate_in(jx.masked(x, axes, neutral))
        return getattr(jx.np, name)(wide, axes, dtype=wide.dtype).astype(x.dtype)

    return jax


SUM = Primitive(
    "sum",
    _infer,
    reference=lambda x, *, axes: np.asarray(accumulate_in(x).sum(axes, dtype=accumulate_in(x).dtype)).astype(x.dtype),
    gradient=lambda g, out, x, *, axes: (_spread(g, x, axes),),
    jax=_accumulate("sum", 0),
    neutral=lambda dtype, **_: 0,
)
PROD = Primitive(
    "prod",
    _infer,
    reference=lambda x, *, axes: np.asarray(accumulate_in(x).prod(axes, dtype=accumulate_in(x).dtype)).astype(x.dtype),
    gradient=_prod_gradient,
    jax=_accumulate("prod", 1),
    neutral=lambda dtype, **_: 1,
)
MAX = _extremum("max", np.max, dtypes.lowest)
MIN = _extremum("min", np.min, dtypes.highest)
ANY = Primitive(
    "any",
    _infer,
    reference=lambda x, *, axes: np.asarray(np.any(x, axes)),
    jax=lambda jx, x, *, axes: jx.np.any(jx.masked(x, axes, False), axes),
    neutral=lambda dtype, **_: False,
)
ALL = Primitive(
    "all",
    _infer,
    reference=lambda x, *, axes: np.asarray(np.all(x, axes)),
    jax=lambda jx, x, *, axes: jx.np.all(jx.masked(x, axes, True), axes),
    neutral=lambda dtype, **_: True,
)
ARGMAX = _position("argmax", np.argmax, dtypes.lowest)
ARGMIN = _position("argmin", np.argmin, dtypes.highest)


def _reduce(op: Primitive, x: RecurrentTensor, axis: Axis, keepdims: bool, **attributes: Any) -> RecurrentTensor:
    axes = normal_axes(op.name, x.edge, axis)
    result = apply(op, (x,), axes=axes, **attributes)
    return reshape(result, _kept(x.shape, axes)) if keepdims else result


def widened(x: TensorLike) -> RecurrentTensor:
    """The tensor in the type in which its sums are given: small integers and bools in 32 bits."""
    tensor = as_tensor(x)
    if dtypes.is_float(tensor.dtype) or tensor.dtype.itemsize >= 4:
        return tensor
    return astype(tensor, dtypes.uint32 if tensor.dtype in dtypes.UNSIGNED else dtypes.int32)


def _wide(x: TensorLike) -> tuple[RecurrentTensor, DType]:
    """The tensor as floats of at least 32 bits, and the type its result is rounded to."""
    tensor = as_tensor(x)
    target = dtypes.float_of(tensor.dtype)
    return astype(tensor, dtypes.accumulator_of(target)), target


def sum(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> RecurrentTensor:
    """The sum over axes; 0 of no elements. Of bools and small integers: in 32 bits."""
    return _reduce(SUM, widened(x), axis, keepdims)


def prod(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> RecurrentTensor:
    """The product over axes; 1 of no elements. Of bools and small integers: in 32 bits."""
    return _reduce(PROD, widened(x), axis, keepdims)


def mean(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> RecurrentTensor:
    """The mean over axes; of integers, float32."""
    wide, target = _wide(x)
    return astype(divide(sum(wide, axis, keepdims), _count(wide, "mean", axis)), target)


def _count(x: RecurrentTensor, op: str, axis: Axis, ddof: int = 0) -> RecurrentTensor:
    """How many elements are reduced, as a number of the tensor's type."""
    count: Size = total(x.shape[a] for a in normal_axes(op, x.edge, axis)) - ddof
    return as_tensor(count, x.program, x.dtype)


def var(x: TensorLike, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> RecurrentTensor:
    """The mean squared distance from the mean, over ``n - ddof``."""
    wide, target = _wide(x)
    distance = wide - mean(wide, axis, keepdims=True)
    return astype(divide(sum(square(distance), axis, keepdims), _count(wide, "var", axis, ddof)), target)


def std(x: TensorLike, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> RecurrentTensor:
    """The square root of the variance."""
    wide, target = _wide(x)
    return astype(sqrt(var(wide, axis, ddof, keepdims)), target)


def max(
    x: TensorLike,
    *others: Any,
    axis: Axis = None,
    keepdims: bool = False,
    initial: float | None = None,
) -> Any:
    """The greatest element over axes: ``max(x)``, ``max(x, 0)``, ``max(x, axis=(0, 1), keepdims=True)``.

    Of index expressions, the expression of the greatest: ``max(0, t - 5)``. ``initial`` takes part as one more
    element, and is the maximum of no elements.
    """
    if index_like(x, *others):
        return index_maximum(x, *others)  # type: ignore[arg-type]
    return _extreme(MAX, x, others, axis, keepdims, initial)


def min(
    x: TensorLike,
    *others: Any,
    axis: Axis = None,
    keepdims: bool = False,
    initial: float | None = None,
) -> Any:
    """The least element over axes: ``min(x)``, ``min(x, 0)``, ``min(x, axis=(0, 1), keepdims=True)``.

    Of index expressions, the expression of the least: ``min(t + 5, T - 1)``. ``initial`` takes part as one more
    element, and is the minimum of no elements.
    """
    if index_like(x, *others):
        return index_minimum(x, *others)  # type: ignore[arg-type]
    return _extreme(MIN, x, others, axis, keepdims, initial)


def _extreme(
    op: Primitive, x: TensorLike, others: tuple[Any, ...], axis: Axis, keepdims: bool, initial: Any
) -> RecurrentTensor:
    is_axis = len(others) <= 1 and builtins.all(
        isinstance(o, int | np.integer | tuple | list | None) and not isinstance(o, bool) for o in others
    )
    if not is_axis or (others and axis is not None):
        raise DtypeError(
            f"{op.name}: the second argument of tp.{op.name}(tensor, ...) is an axis",
            places=[("here", user_line())],
            hint=f"tp.{op.name}imum(a, b) compares tensors element by element",
        )
    tensor = as_tensor(x)
    if initial is not None:
        initial = number(op.name, initial, tensor.dtype)
    return _reduce(op, tensor, others[0] if others else axis, keepdims, initial=initial)


def any(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> RecurrentTensor:
    """Whether any element is true (not zero); false of no elements."""
    return _reduce(ANY, _truth(x), axis, keepdims)


def all(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> RecurrentTensor:
    """Whether all elements are true (not zero); true of no elements."""
    return _reduce(ALL, _truth(x), axis, keepdims)


def _truth(x: TensorLike) -> RecurrentTensor:
    tensor = as_tensor(x)
    return tensor if dtypes.is_bool(tensor.dtype) else not_equal(tensor, 0)


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> RecurrentTensor:
    """Where along the axis (or in the flattened value) the greatest element is, the first of equals; int32."""
    return _argument(ARGMAX, x, axis, keepdims)


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> RecurrentTensor:
    """Where along the axis (or in the flattened value) the least element is, the first of equals; int32."""
    return _argument(ARGMIN, x, axis, keepdims)


def _argument(op: Primitive, x: TensorLike, axis: int | None, keepdims: bool) -> RecurrentTensor:
    tensor = as_tensor(x)
    if axis is None:
        result = apply(op, (reshape(tensor, -1),), axis=0)
        return reshape(result, (1,) * tensor.ndim) if keepdims else result
    axis = normal_axis(op.name, tensor.edge, axis)
    result = apply(op, (tensor,), axis=axis)
    return reshape(result, _kept(tensor.shape, (axis,))) if keepdims else result


def logsumexp(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> RecurrentTensor:
    """``log(sum(exp(x)))`` without overflow; -inf of no elements."""
    wide, target = _wide(x)
    axes = normal_axes("logsumexp", wide.edge, axis)
    top = _top(wide, axes)
    powers = sum(exp(wide - top), axes, keepdims=True)
    # Where every element is -inf the logarithm's slope is infinite; the gradient there is 0.
    nothing = equal(powers, 0)
    result = astype(where(nothing, -np.inf, top + log(where(nothing, 1, powers))), target)
    return result if keepdims else reshape(result, _infer(wide.edge, axes=axes)[0])


def softmax(x: TensorLike, axis: Axis = -1) -> RecurrentTensor:
    """``exp(x) / sum(exp(x))`` along the axis, without overflow."""
    wide, target = _wide(x)
    axes = normal_axes("softmax", wide.edge, axis)
    powers = exp(wide - _top(wide, axes))
    return astype(powers / sum(powers, axes, keepdims=True), target)


def log_softmax(x: TensorLike, axis: Axis = -1) -> RecurrentTensor:
    """``log(softmax(x))`` along the axis, without overflow."""
    wide, target = _wide(x)
    axes = normal_axes("log_softmax", wide.edge, axis)
    shifted = wide - _top(wide, axes)
    return astype(shifted - log(sum(exp(shifted), axes, keepdims=True)), target)


def _top(x: RecurrentTensor, axes: tuple[int, ...]) -> RecurrentTensor:
    """The greatest elements, to be taken off before exp; 0 where they are infinite. The result does not depend
    on them, so no gradient flows."""
    greatest = stop_gradient(_reduce(MAX, x, axes, keepdims=True, initial=np.asarray(-np.inf, x.dtype)))
    return where(isfinite(greatest), greatest, 0)
