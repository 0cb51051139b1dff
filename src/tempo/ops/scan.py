"""Running sums, products and extrema along an axis.

Everything but the plain sum is differentiated through ``linear_scan``, ``h[i] = a[i] * h[i-1] + b[i]``, whose
gradient is a linear scan the other way round. Nothing is divided by, so zeros are no special case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType
from tempo.errors import ShapeError
from tempo.graph.node import Edge, Primitive, Shape, Size, show_shape
from tempo.ops.common import accumulate_in, broadcast_shapes, normal_axis, places
from tempo.ops.elementwise import astype, equal, maximum
from tempo.ops.indexing import part
from tempo.ops.reduction import widened
from tempo.ops.shaping import broadcast_to, concatenate, flip, pad
from tempo.tensor import RecurrentTensor, TensorLike, apply, as_tensor, coerce

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]


def _infer(x: Edge, *others: Edge, axis: int, reverse: bool) -> tuple[Shape, DType]:
    return x.shape, x.dtype


def _running(function: Callable[..., Array]) -> Callable[..., Array]:
    def reference(x: Array, *, axis: int, reverse: bool) -> Array:
        wide = accumulate_in(x)
        turned = np.flip(wide, axis) if reverse else wide
        with np.errstate(all="ignore"):
            result = function(turned, axis, dtype=wide.dtype)
        return (np.flip(result, axis) if reverse else result).astype(x.dtype)

    return reference


def _running_jax(name: str, neutral: Callable[[DType], Any]) -> Callable[..., Any]:
    def jax(jx: Jx, x: Padded, *, axis: int, reverse: bool) -> Any:
        # Forwards, padding comes last and reaches nothing before it.
        array = jx.masked(x, (axis,), neutral(x.dtype)) if reverse else x.array
        wide = accumulate_in(array, dtypes.uint8 if dtypes.is_bool(x.dtype) else None)
        return getattr(jx.lax, name)(wide, axis, reverse).astype(x.dtype)

    return jax


def _linear(a: Array, b: Array, *, axis: int, reverse: bool) -> Array:
    factors, terms = (np.moveaxis(accumulate_in(x), axis, 0) for x in (a, b))
    result = np.empty_like(terms)
    state = np.zeros_like(terms[:1]).sum(0, dtype=terms.dtype)
    steps = range(len(terms))
    with np.errstate(all="ignore"):
        for i in reversed(steps) if reverse else steps:
            state = factors[i] * state + terms[i]
            result[i] = state
    return np.moveaxis(result, 0, axis).astype(a.dtype)


def _linear_jax(jx: Jx, a: Padded, b: Padded, *, axis: int, reverse: bool) -> Any:
    """Steps are joined in a tree: what factor and term two stretches make together, in ``log2(n)`` rounds."""

    def join(first: Any, second: Any) -> Any:
        return _joined(jx, first[0], second[0]), _carried(jx, second[0], first[1]) + second[1]

    if not b.array.shape[axis]:
        return b.array
    factors, terms = (
        accumulate_in(jx.masked(x, (axis,), neutral) if reverse else x.array) for x, neutral in ((a, 1), (b, 0))
    )
    return jx.lax.associative_scan(join, (factors, terms), reverse, axis)[1].astype(a.dtype)


def _carried(jx: Jx, factor: Any, state: Any) -> Any:
    """What the factors of a stretch make of the state before it. Their product may overflow where, one after the other,
    they would have left a zero as it is."""
    return jx.np.where(jx.np.isinf(factor) & (state == 0), state, factor * state)


def _joined(jx: Jx, first: Any, second: Any) -> Any:
    """The factors of two stretches as one. Next to one that has overflowed, zero still forgets what was before."""
    product = first * second
    return jx.np.where((product != product) & (first == first) & (second == second), 0, product)


def _neighbour(x: RecurrentTensor, axis: int, after: bool) -> RecurrentTensor:
    """At every place the element before it (or after it); 0 at the end. Right for an empty axis too."""
    padded = pad(x, {axis: (0, 1) if after else (1, 0)})
    return part(padded, axis, 1 if after else 0, x.shape[axis])


def _linear_gradient(
    g: RecurrentTensor,
    out: RecurrentTensor,
    a: RecurrentTensor,
    b: RecurrentTensor,
    *,
    axis: int,
    reverse: bool,
) -> tuple[RecurrentTensor, RecurrentTensor]:
    # What a place hands on, its successor multiplies by its own factor.
    terms = linear_scan(_neighbour(a, axis, after=not reverse), g, axis, not reverse)
    return terms * _neighbour(out, axis, after=reverse), terms


def _cumprod_gradient(
    g: RecurrentTensor, out: RecurrentTensor, x: RecurrentTensor, *, axis: int, reverse: bool
) -> tuple[RecurrentTensor]:
    following = _neighbour(x, axis, after=not reverse)
    return (product_before(x, axis, reverse) * linear_scan(following, g, axis, not reverse),)


def _extremum_gradient(
    g: RecurrentTensor, out: RecurrentTensor, x: RecurrentTensor, *, axis: int, reverse: bool
) -> tuple[RecurrentTensor]:
    """Every running extremum is shared evenly by the elements that have attained it so far."""
    attains = astype(equal(x, out), x.dtype)
    # 1 where the extremum is that of the place before: within such a stretch sums run on.
    same = astype(equal(out, _neighbour(out, axis, after=reverse)), x.dtype)
    count = linear_scan(same, attains, axis, reverse)
    following = _neighbour(same, axis, after=not reverse)
    return (attains * linear_scan(following, g / maximum(count, 1), axis, not reverse),)


CUMSUM = Primitive(
    "cumsum",
    infer=_infer,
    reference=_running(np.cumsum),
    gradient=lambda g, out, x, *, axis, reverse: (cumsum(g, axis, not reverse),),
    jax=_running_jax("cumsum", lambda dtype: 0),
)
CUMPROD = Primitive(
    "cumprod", _infer, _running(np.cumprod), _cumprod_gradient, _running_jax("cumprod", lambda dtype: 1)
)
CUMMAX = Primitive(
    "cummax", _infer, _running(np.maximum.accumulate), _extremum_gradient, _running_jax("cummax", dtypes.lowest)
)
CUMMIN = Primitive(
    "cummin", _infer, _running(np.minimum.accumulate), _extremum_gradient, _running_jax("cummin", dtypes.highest)
)
LINEAR_SCAN = Primitive("linear_scan", _infer, _linear, _linear_gradient, _linear_jax)


# -- recurrences over steps -----------------------------------------------------------------------------------------


def _infer_recurrence(terms: Edge, factors: Edge, *resets: Edge, fixed: bool, reverse: bool) -> tuple[Shape, DType]:
    return terms.shape[1:], terms.dtype


def _recurrence(terms: Array, factors: Array, *resets: Array, fixed: bool, reverse: bool) -> Array:
    steps = range(len(terms))[:: -1 if reverse else 1]
    wide = accumulate_in(terms)
    state = wide[steps[0]]
    with np.errstate(all="ignore"):
        for i in steps[1:]:
            following = accumulate_in(factors if fixed else factors[i]) * state + wide[i]
            state = np.where(resets[0][i], wide[i], following) if resets else following
    return np.asarray(state).astype(terms.dtype)


def _recurrence_jax(jx: Jx, terms: Padded, factors: Padded, *resets: Padded, fixed: bool, reverse: bool) -> Any:
    def aligned(array: Any) -> Any:
        """Steps first, then the axes of one value, as terms have them."""
        return array.reshape((array.shape[0], *(1,) * (terms.array.ndim - array.ndim), *array.shape[1:]))

    last = jx.true(terms.sizes[0]) - 1
    factor = aligned(factors.array[None] if fixed else factors.array)
    reset = aligned(resets[0].array) if resets else None
    if reverse:
        # Padding comes first then, and what follows must not see it.
        begins = aligned(jx.lax.iota(dtypes.DEFAULT_INT, terms.array.shape[0]) == last)
        reset = begins if reset is None else reset | begins
    values = all_steps(jx, terms.array, factor, reset, 0, reverse)
    return values[0] if reverse else jx.lax.dynamic_index_in_dim(values, last, 0, keepdims=False)


def all_steps(jx: Jx, terms: Any, factors: Any, resets: Any | None, axis: int, reverse: bool) -> Any:
    """``y[i] = factors[i] * y[i-1] + terms[i]``, or ``terms[i]`` at a reset and at the first step, along an axis.

    Neighbours are joined to half as many elements, until one is left; the way back fills in those between. Factors and
    resets have as many axes as terms and may have length one along any: a factor that is the same at all steps is
    squared from one round to the next, and never stored for every step. (JAX's own scan would need it at every step.)
    """

    def part(x: Any, start: int, stop: int, stride: int = 2) -> Any:
        return jx.lax.slice_in_dim(x, start, max(stop, start), stride, axis)

    def per_step(x: Any, start: int, stop: int) -> Any:
        return x if x is None or x.shape[axis] == 1 else part(x, start, stop)

    def following(factor: Any, before: Any, term: Any, reset: Any | None) -> Any:
        value = _carried(jx, factor, before) + term
        return value if reset is None else jx.np.where(reset, term, value)

    def scan(factor: Any, term: Any, reset: Any | None) -> Any:
        steps = term.shape[axis]
        if steps < 2:
            return term
        even = [part(term, 0, steps - 1), per_step(factor, 0, steps - 1), per_step(reset, 0, steps - 1)]
        odd = [part(term, 1, steps), per_step(factor, 1, steps), per_step(reset, 1, steps)]
        joined = following(odd[1], even[0], odd[0], odd[2])
        second = scan(_joined(jx, even[1], odd[1]), joined, None if reset is None else even[2] | odd[2])
        rest = part(term, 2, steps)
        before = part(second, 0, rest.shape[axis], 1)
        first = following(per_step(factor, 2, steps), before, rest, per_step(reset, 2, steps))
        return interleaved(jx.lax.concatenate([part(term, 0, 1), first], axis), second)

    def interleaved(first: Any, second: Any) -> Any:
        zero = jx.np.zeros((), first.dtype)
        odd = first.shape[axis] - second.shape[axis]
        spread = [[(0, 0, 0)] * first.ndim for _ in range(2)]
        spread[0][axis], spread[1][axis] = (0, 1 - odd, 1), (1, odd, 1)
        return jx.lax.pad(first, zero, spread[0]) + jx.lax.pad(second, zero, spread[1])

    def turned(x: Any) -> Any:
        return jx.lax.rev(x, (axis,)) if reverse and x is not None else x

    values = scan(turned(accumulate_in(factors)), turned(accumulate_in(terms)), turned(resets))
    return turned(values.astype(terms.dtype))


LINEAR_RECURRENCE = Primitive("linear_recurrence", infer=_infer_recurrence, reference=_recurrence, jax=_recurrence_jax)
"""The last of the values ``y[i] = factors[i] * y[i-1] + terms[i]``, which start with ``y[0] = terms[0]`` and start anew
at resets; or the first of them, looking ahead, if ``reverse``. ``fixed`` factors have no axis of steps.

It is made of recurrences over a dim (``passes.linear``), after gradients were taken. A backend that computes all
steps of the dim at once needs no slices: it has ``all_steps``.
"""


def _scan(op: Primitive, x: RecurrentTensor, axis: int, reverse: bool) -> RecurrentTensor:
    return apply(op, (x,), axis=normal_axis(op.name, x.edge, axis), reverse=bool(reverse))


def cumsum(x: TensorLike, axis: int = 0, reverse: bool = False) -> RecurrentTensor:
    """The sums of every element and all before it (after it, if ``reverse``)."""
    return _scan(CUMSUM, widened(x), axis, reverse)


def cumprod(x: TensorLike, axis: int = 0, reverse: bool = False) -> RecurrentTensor:
    """The products of every element and all before it (after it, if ``reverse``)."""
    return _scan(CUMPROD, widened(x), axis, reverse)


def cummax(x: TensorLike, axis: int = 0, reverse: bool = False) -> RecurrentTensor:
    """The greatest of every element and all before it (after it, if ``reverse``)."""
    return _scan(CUMMAX, as_tensor(x), axis, reverse)


def cummin(x: TensorLike, axis: int = 0, reverse: bool = False) -> RecurrentTensor:
    """The least of every element and all before it (after it, if ``reverse``)."""
    return _scan(CUMMIN, as_tensor(x), axis, reverse)


def product_before(x: RecurrentTensor, axis: int, reverse: bool = False) -> RecurrentTensor:
    """The products of all elements before each (after each, if ``reverse``), without itself."""
    axis = normal_axis("cumprod", x.edge, axis)
    padded = pad(x, {axis: (0, 1) if reverse else (1, 0)}, constant_values=1)
    return part(cumprod(padded, axis, reverse), axis, 1 if reverse else 0, x.shape[axis])


def linear_scan(a: TensorLike, b: TensorLike, axis: int = 0, reverse: bool = False) -> RecurrentTensor:
    """``h[i] = a[i] * h[i-1] + b[i]`` along an axis, from ``h[-1] = 0`` (from the end, if ``reverse``).

    ``a`` and ``b`` broadcast.
    """
    factors, terms = coerce(a, b)
    shape = broadcast_shapes("linear_scan", (factors.edge, terms.edge))
    operands = broadcast_to(factors, shape), broadcast_to(terms, shape)
    axis = normal_axis("linear_scan", operands[0].edge, axis)
    return apply(LINEAR_SCAN, operands, axis=axis, reverse=bool(reverse))


Tensors = TypeVar("Tensors", RecurrentTensor, tuple[RecurrentTensor, ...])


def associative_scan(fn: Callable[[Any, Any], Any], x: Tensors, axis: int = 0, reverse: bool = False) -> Tensors:
    """What ``fn`` makes of every element and all before it: ``y[i] = fn(y[i-1], x[i])``.

    ``fn(a, b)`` is an associative function of tensors, or of tuples of tensors, that acts on any number of places
    along the axis at once. It is called about ``log2(n)`` times, on slices.
    """
    single = isinstance(x, RecurrentTensor)
    leaves: tuple[RecurrentTensor, ...] = (x,) if isinstance(x, RecurrentTensor) else tuple(x)
    axes = [normal_axis("associative_scan", leaf.edge, axis) for leaf in leaves]
    size = _static_size(leaves, axes)
    if reverse:
        leaves = tuple(flip(leaf, n) for leaf, n in zip(leaves, axes, strict=True))
    reach = 1  # every place has seen this many elements, itself included
    while reach < size:
        earlier = _parts(leaves, axes, 0, size - reach)
        later = _parts(leaves, axes, reach, size - reach)
        joined = fn(earlier[0], later[0]) if single else fn(earlier, later)
        joined = (joined,) if isinstance(joined, RecurrentTensor) else tuple(joined)
        _check_joined(joined, later)
        leaves = tuple(
            concatenate([part(leaf, n, 0, reach), new], n) for leaf, new, n in zip(leaves, joined, axes, strict=True)
        )
        reach *= 2
    if reverse:
        leaves = tuple(flip(leaf, n) for leaf, n in zip(leaves, axes, strict=True))
    return leaves[0] if single else leaves  # type: ignore[return-value]


def _parts(
    leaves: tuple[RecurrentTensor, ...], axes: list[int], start: Size, size: Size
) -> tuple[RecurrentTensor, ...]:
    return tuple(part(leaf, n, start, size) for leaf, n in zip(leaves, axes, strict=True))


def _static_size(leaves: tuple[RecurrentTensor, ...], axes: list[int]) -> int:
    sizes = dict.fromkeys(leaf.shape[n] for leaf, n in zip(leaves, axes, strict=True))
    (size, *others) = sizes
    edges = [leaf.edge for leaf in leaves]
    if others:
        raise ShapeError(
            "associative_scan: sizes " + " and ".join(map(str, sizes)) + " along the axis differ",
            places=places(edges),
            hint="all tensors of the tuple must have one size along the axis",
        )
    if not isinstance(size, int):
        raise ShapeError(
            f"associative_scan: the axis of size {size} (shape {show_shape(leaves[0].shape)}) "
            "must have a size that is a number",
            places=places(edges),
            hint="write a recurrence over a dim: y[0] = x[0]; y[t] = fn(y[t - 1], x[t])",
        )
    return size


def _check_joined(joined: tuple[RecurrentTensor, ...], later: tuple[RecurrentTensor, ...]) -> None:
    found = [show_shape(x.shape) for x in joined]
    wanted = [show_shape(x.shape) for x in later]
    if found != wanted or [x.dtype for x in joined] != [x.dtype for x in later]:
        raise ShapeError(
            f"associative_scan: the function gave {_describe(joined)} for {_describe(later)}",
            places=places([x.edge for x in later]),
            hint="fn(a, b) must give tensors of the shapes and dtypes of b",
        )


def _describe(tensors: tuple[RecurrentTensor, ...]) -> str:
    return ", ".join(f"{x.dtype.name}{show_shape(x.shape)}" for x in tensors)
