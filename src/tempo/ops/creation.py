"""Tensors that come from nowhere: constants, ranges, and the value of an index."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType, DTypeLike
from tempo.errors import DtypeError, ProgramError, ShapeError
from tempo.graph.node import Domain, Primitive, Shape, dims_of, normal_size, shape_symbols, show_shape
from tempo.source import user_line
from tempo.symbolic import Condition, Dim, Expr, as_expr
from tempo.tensor import RecurrentTensor, ShapeLike, TensorLike, apply, as_tensor, common_program

if TYPE_CHECKING:
    from tempo.program import Program

CONSTANT = Primitive(
    "constant",
    infer=lambda *, value: (value.shape, value.dtype),
    reference=lambda *, value: value,
    jax=lambda jx, *, value: jx.np.asarray(value),
)

FULL = Primitive(
    "full",
    infer=lambda *, shape, value: (shape, value.dtype),
    reference=lambda *, shape, value: np.full(shape, value),
    jax=lambda jx, *, shape, value: jx.np.full(tuple(map(jx.most, shape)), value, value.dtype),
)

IOTA = Primitive(
    "iota",
    infer=lambda *, size, dtype: ((size,), dtype),
    reference=lambda *, size, dtype: np.arange(size).astype(dtype),
    jax=lambda jx, *, size, dtype: jx.lax.iota(dtypes.DEFAULT_INT, jx.most(size)).astype(dtype),
)

INDEX_VALUE = Primitive(
    "index_value",
    infer=lambda *, expr: ((), dtypes.DEFAULT_INT),
    reference=lambda *, expr: np.asarray(expr, dtypes.DEFAULT_INT),
    jax=lambda jx, *, expr: jx.np.asarray(jx.true(expr), dtypes.DEFAULT_INT),
)

GRID = Primitive(
    "grid",
    infer=lambda *, grid: (
        tuple(normal_size(d.bound) for d in grid.axes),
        dtypes.bool_ if isinstance(grid.value, Condition) else dtypes.DEFAULT_INT,
    ),
    reference=lambda *, grid: grid,
    jax=lambda jx, *, grid: jx.np.asarray(grid, dtypes.bool_ if dtypes.is_bool(grid.dtype) else dtypes.DEFAULT_INT),
)
"""An expression or condition at all points of some dims, its axes."""

CONDITION_VALUE = Primitive(
    "condition_value",
    infer=lambda *, condition: ((), dtypes.bool_),
    reference=lambda *, condition: np.asarray(condition, dtypes.bool_),
    jax=lambda jx, *, condition: jx.np.asarray(condition, dtypes.bool_),
)


def constant(value: Any, dtype: DTypeLike | None = None, *, program: Program | None = None) -> RecurrentTensor:
    """A tensor that is the same array at every point.

    Without ``dtype``, Python numbers and NumPy's 64-bit defaults become float32 and int32.
    """
    array = as_array(value)
    if dtype is None:
        target = {dtypes.float64: dtypes.DEFAULT_FLOAT, dtypes.int64: dtypes.DEFAULT_INT}.get(array.dtype, array.dtype)
    else:
        target = dtypes.as_dtype(dtype)
    array = _converted(array, target)
    array.setflags(write=False)
    return apply(CONSTANT, (), program=program, value=array)


def misfit(array: np.ndarray[Any, Any], target: DType) -> Any:
    """An element of the array for which the dtype has no place; None if all fit."""
    if dtypes.is_float(target) or dtypes.is_bool(array.dtype) or not array.size:
        return None
    if dtypes.is_float(array.dtype):
        return array.flat[0]
    limits = (0, 1) if dtypes.is_bool(target) else (np.iinfo(target).min, np.iinfo(target).max)
    return next((v for v in (array.max(), array.min()) if not limits[0] <= v <= limits[1]), None)


def _converted(array: np.ndarray[Any, Any], target: DType) -> np.ndarray[Any, Any]:
    wrong = misfit(array, target)
    if wrong is not None:
        wider = "float32" if dtypes.is_float(array.dtype) else "int64"
        raise DtypeError(
            f"the value {wrong} does not fit into {target.name}",
            places=[("here", user_line())],
            hint=f"choose a dtype that holds it, e.g. tp.{wider}",
        )
    return array.astype(target)


def number(op: str, value: Any, dtype: DType | None, hint: str = "give a number") -> np.ndarray[Any, Any]:
    """One number in a dtype; without one, float32, int32 or bool."""
    array = as_array(value)
    if array.shape != ():
        raise ShapeError(
            f"{op}: the value must be one number, found shape {show_shape(array.shape)}",
            places=[("here", user_line())],
            hint=hint,
        )
    return _converted(array, dtypes.scalar_dtype(array.item()) if dtype is None else dtype)


def in_native_order(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array whose numbers have their bytes in the machine's own order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """The numbers that a user gave."""
    try:
        array = in_native_order(np.asarray(value))
    except ProgramError:  # a list of tensors
        raise
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths; a tensor that waits for a gradient
        array = np.empty((), object)
    if array.dtype not in dtypes.ALL:
        raise DtypeError(
            f"{reprlib.repr(value)} of type {type(value).__name__} cannot become a tensor",
            places=[("here", user_line())],
            hint="tensors come from numbers of at most 64 bits, arrays of numbers with rows of one length, "
            "index expressions and other tensors",
        )
    return array


def as_shape(shape: ShapeLike) -> Shape:
    """A shape from a size or a sequence of sizes."""
    sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    for size in sizes:
        if isinstance(size, Expr):
            continue
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
            raise ShapeError(
                f"{size!r} is not a size",
                places=[("here", user_line())],
                hint="sizes are non-negative integers or index expressions",
            )
    return tuple(normal_size(size) for size in sizes)


def full(
    shape: ShapeLike, value: TensorLike, dtype: DTypeLike | None = None, domain: Domain | Dim = ()
) -> RecurrentTensor:
    """One number everywhere, and at every step of the dims of ``domain``; or a tensor, in this shape and over these
    dims as well as its own."""
    from tempo.ops.elementwise import copy
    from tempo.ops.shaping import broadcast_to

    if isinstance(value, RecurrentTensor):
        target = value.dtype if dtype is None else dtypes.as_dtype(dtype)
        found = broadcast_to(as_tensor(value, dtype=target), as_shape(shape))
        dims = found.program.as_domain(domain)
        return found if set(dims) <= set(found.domain) else copy(found, dims)
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    return _full(as_shape(shape), number("full", value, wanted, "use tp.broadcast_to(value, shape)"), domain)


def _full(shape: Shape, value: np.ndarray[Any, Any], domain: Domain | Dim) -> RecurrentTensor:
    given = tuple(domain) if isinstance(domain, Iterable) else (domain,)
    owner = common_program((*shape, *given))
    dims = dims_of(shape_symbols(shape) | frozenset(owner.as_domain(domain)))
    return apply(FULL, (), program=owner, domain=dims, shape=shape, value=value)


def zeros(shape: ShapeLike, dtype: DTypeLike = dtypes.DEFAULT_FLOAT, domain: Domain | Dim = ()) -> RecurrentTensor:
    """Zeros, at every step of the dims of ``domain``: ``tp.zeros((2, 3), domain=t)``."""
    return full(shape, 0, dtype, domain)


def ones(shape: ShapeLike, dtype: DTypeLike = dtypes.DEFAULT_FLOAT, domain: Domain | Dim = ()) -> RecurrentTensor:
    """Ones, at every step of the dims of ``domain``: ``tp.ones((2, 3), domain=t)``."""
    return full(shape, 1, dtype, domain)


def zeros_like(x: TensorLike, dtype: DTypeLike | None = None) -> RecurrentTensor:
    """Zeros in the shape of ``x``, and in its dtype unless another is given."""
    return _like(x, 0, dtype)


def ones_like(x: TensorLike, dtype: DTypeLike | None = None) -> RecurrentTensor:
    """Ones in the shape of ``x``, and in its dtype unless another is given."""
    return _like(x, 1, dtype)


def _like(x: TensorLike, value: int, dtype: DTypeLike | None) -> RecurrentTensor:
    tensor = as_tensor(x)
    target = tensor.dtype if dtype is None else dtypes.as_dtype(dtype)
    return apply(FULL, (), program=tensor.program, shape=tensor.shape, value=np.asarray(value).astype(target))


def arange(start: int | Expr, stop: int | Expr | None = None, dtype: DTypeLike = dtypes.DEFAULT_INT) -> RecurrentTensor:
    """``start, ..., stop - 1``, or ``0, ..., start - 1`` with one argument; both may be index expressions."""
    first, last = (0, start) if stop is None else (start, stop)
    (length,) = as_shape(normal_size(as_expr(last) - first))
    counted = apply(IOTA, (), program=common_program((last, first)), size=length, dtype=dtypes.as_dtype(dtype))
    return counted if isinstance(first, int) and first == 0 else counted + as_tensor(first, dtype=counted.dtype)


def eye(size: int, dtype: DTypeLike = dtypes.DEFAULT_FLOAT) -> RecurrentTensor:
    """The identity matrix."""
    (length,) = as_shape(size)
    if isinstance(length, Expr):
        raise ShapeError(
            f"eye: the size {size} is not known while the program is written",
            places=[("here", user_line())],
            hint=f"compare indices: tp.equal(tp.arange({size}).reshape(({size}, 1)), tp.arange({size}))",
        )
    return constant(np.eye(length, dtype=np.int8), dtype)


def index_value(expr: Expr, *, program: Program | None = None) -> RecurrentTensor:
    """The value of an index expression as an int32 tensor."""
    return apply(INDEX_VALUE, (), program=program, expr=expr)


def condition_value(condition: Condition, *, program: Program | None = None) -> RecurrentTensor:
    """Whether a condition on dims holds, as a bool tensor."""
    return apply(CONDITION_VALUE, (), program=program, condition=condition)
