"""Functions that act element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType, DTypeLike
from tempo.errors import DtypeError
from tempo.graph.node import Domain, Edge, Primitive, Shape
from tempo.ops.common import broadcast_shapes, places, require_numbers, to_float
from tempo.source import user_line
from tempo.symbolic import Condition, Expr
from tempo.symbolic import equal as equal_index
from tempo.symbolic import maximum as index_maximum
from tempo.symbolic import minimum as index_minimum
from tempo.tensor import RecurrentTensor, TensorLike, apply, as_tensor, coerce, common_program

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Gradient = Callable[..., tuple[RecurrentTensor | None, ...]]
Array = np.ndarray[Any, Any]


def sum_to(g: RecurrentTensor, shape: Shape) -> RecurrentTensor:
    """The adjoint of broadcasting to ``g``'s shape from ``shape``."""
    from tempo.ops.reduction import sum as sum_
    from tempo.ops.shaping import reshape

    if g.shape == shape:
        return g
    extra = len(g.shape) - len(shape)
    spread = [extra + n for n, size in enumerate(shape) if size == 1 and g.shape[extra + n] != 1]
    reduced = sum_(g, (*range(extra), *spread)) if extra or spread else g
    return reduced if reduced.shape == shape else reshape(reduced, shape)


def _same(*edges: Edge, op: str = "") -> tuple[Shape, DType]:
    return broadcast_shapes(op, edges), edges[0].dtype


def _boolean(*edges: Edge, op: str = "") -> tuple[Shape, DType]:
    return broadcast_shapes(op, edges), dtypes.bool_


def _primitive(
    name: str,
    reference: Callable[..., Array],
    gradient: Gradient | None = None,
    result: Callable[..., tuple[Shape, DType]] = _same,
    jax: Callable[..., Any] | None = None,
) -> Primitive:
    """An elementwise primitive; ``gradient(g, out, *operands)`` may leave the broadcasting to us.

    ``jax(jx, *arrays)`` is by default the function of that name of jax.numpy.
    """

    def infer(*edges: Edge) -> tuple[Shape, DType]:
        return result(*edges, op=name)

    def compute(*arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return reference(*arrays)

    def compute_jax(jx: Jx, *operands: Padded) -> Any:
        arrays = [x.array for x in operands]
        return getattr(jx.np, name)(*arrays) if jax is None else jax(jx, *arrays)

    def adjoint(g: RecurrentTensor, out: RecurrentTensor, *operands: RecurrentTensor) -> Any:
        assert gradient is not None
        parts = gradient(g, out, *operands)
        return tuple(
            None if part is None else sum_to(part, operand.shape) for part, operand in zip(parts, operands, strict=True)
        )

    return Primitive(name, infer, compute, None if gradient is None else adjoint, compute_jax)


def _wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Half precision is computed in float32 and rounded once, as accelerators do."""

    def compute(*arrays: Array) -> Array:
        dtype = arrays[0].dtype
        return np.asarray(function(*(x.astype(dtypes.accumulator_of(dtype)) for x in arrays))).astype(dtype)

    return compute


def _wide_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """``_wide`` for a function of ``jx`` and its arrays."""

    def compute(jx: Jx, *arrays: Any) -> Any:
        dtype = arrays[0].dtype
        return function(jx, *(x.astype(dtypes.accumulator_of(dtype)) for x in arrays)).astype(dtype)

    return compute


def _integer_power_jax(jx: Jx, a: Any, b: Any) -> Any:
    """Powers of integers, modulo 2 to the number of bits. JAX's own look at six bits of the exponent only."""
    power = jx.np.ones_like(a)
    for _ in range(8 * a.dtype.itemsize):
        power = jx.np.where(b & 1 == 1, power * a, power)
        a, b = a * a, b >> 1
    return power


# -- arithmetic ---------------------------------------------------------------------------------------

ADD = _primitive("add", np.add, lambda g, out, a, b: (g, g))
SUBTRACT = _primitive("subtract", np.subtract, lambda g, out, a, b: (g, -g))
MULTIPLY = _primitive("multiply", np.multiply, lambda g, out, a, b: (g * b, g * a))
DIVIDE = _primitive("divide", np.divide, lambda g, out, a, b: (g / b, -g * out / b))
FLOOR_DIVIDE = _primitive(
    "floor_divide",
    np.floor_divide,
    jax=_wide_jax(
        lambda jx, a, b: (
            jx.np.floor_divide(a, b)
            if dtypes.is_float(a.dtype)
            # Integers by zero are 0 in NumPy.
            else jx.np.where(b == 0, 0, jx.np.floor_divide(a, jx.np.where(b == 0, 1, b)))
        )
    ),
)
MOD = _primitive(
    "mod",
    np.mod,
    lambda g, out, a, b: (g, -g * floor_divide(a, b)),
    jax=_wide_jax(lambda jx, a, b: jx.np.mod(a, b)),
)
POWER = _primitive(
    "power",
    np.power,
    lambda g, out, a, b: (
        # b == 0 has derivative 0, where a**(b - 1) may be infinite.
        g * where(b == 0, 0, b * power(a, where(b == 0, 1, b - 1))),
        # a**b is flat in b at a == 0 (for b > 0), where log(a) is infinite.
        g * where(a == 0, 0, out * log(where(a == 0, 1, a))),
    ),
    jax=_wide_jax(lambda jx, a, b: jx.np.power(a, b) if dtypes.is_float(a.dtype) else _integer_power_jax(jx, a, b)),
)
MINIMUM = _primitive("minimum", np.minimum, lambda g, out, a, b: (g * _share(a, b, a < b), g * _share(a, b, b < a)))
MAXIMUM = _primitive("maximum", np.maximum, lambda g, out, a, b: (g * _share(a, b, a > b), g * _share(a, b, b > a)))
NEGATIVE = _primitive("negative", np.negative, lambda g, out, x: (-g,))
ABS = _primitive("abs", np.abs, lambda g, out, x: (g * sign(x),))
SIGN = _primitive("sign", np.sign)
FLOOR = _primitive("floor", np.floor)
CEIL = _primitive("ceil", np.ceil)
ROUND = _primitive("round", np.round)


def _share(a: RecurrentTensor, b: RecurrentTensor, wins: RecurrentTensor) -> RecurrentTensor:
    """The derivative of a minimum or maximum: one for the winner, half each at a tie."""
    one = as_tensor(1, a.program, a.dtype)
    return where(wins, one, where(a == b, 0.5 * one, 0 * one))


# -- transcendental functions ---------------------------------------------------------------------------


def _function(
    name: str, reference: Callable[..., Array], gradient: Gradient, jax: Callable[..., Any] | None = None
) -> Primitive:
    """A primitive that is computed in float32 where its operands are half precision."""
    function = jax or (lambda jx, *arrays: getattr(jx.np, name)(*arrays))
    return _primitive(name, _wide(reference), gradient, jax=_wide_jax(function))


def _sigmoid(x: Array) -> Array:
    # exp of a non-positive number never overflows.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


EXP = _function("exp", np.exp, lambda g, out, x: (g * out,))
LOG = _function("log", np.log, lambda g, out, x: (g / x,))
LOG1P = _function("log1p", np.log1p, lambda g, out, x: (g / (1 + x),))
EXPM1 = _function("expm1", np.expm1, lambda g, out, x: (g * (out + 1),))
SQRT = _function("sqrt", np.sqrt, lambda g, out, x: (0.5 * g / out,))
RSQRT = _function(
    "rsqrt", lambda x: 1 / np.sqrt(x), lambda g, out, x: (-0.5 * g * out / x,), lambda jx, x: jx.lax.rsqrt(x)
)
SIN = _function("sin", np.sin, lambda g, out, x: (g * cos(x),))
COS = _function("cos", np.cos, lambda g, out, x: (-g * sin(x),))
TANH = _function("tanh", np.tanh, lambda g, out, x: (g * (1 - out * out),))
ERF = _function(
    "erf",
    np.vectorize(math.erf, otypes=[np.float64]),
    lambda g, out, x: (g * (2 / math.sqrt(math.pi)) * exp(-x * x),),
    lambda jx, x: jx.lax.erf(x),
)
LOGADDEXP = _function("logaddexp", np.logaddexp, lambda g, out, a, b: (g * _portion(a, out), g * _portion(b, out)))
SIGMOID = _function("sigmoid", _sigmoid, lambda g, out, x: (g * out * (1 - out),), lambda jx, x: jx.lax.logistic(x))


def _portion(x: RecurrentTensor, out: RecurrentTensor) -> RecurrentTensor:
    """How much of exp(out) is exp(x); none where both are -inf, which have no difference."""
    nothing = out == -math.inf
    return where(nothing, 0, exp(where(nothing, 0, x - out)))


# -- comparison and logic ---------------------------------------------------------------------------------

EQUAL = _primitive("equal", np.equal, result=_boolean)
NOT_EQUAL = _primitive("not_equal", np.not_equal, result=_boolean)
LESS = _primitive("less", np.less, result=_boolean)
LESS_EQUAL = _primitive("less_equal", np.less_equal, result=_boolean)
LOGICAL_AND = _primitive("logical_and", np.logical_and, result=_boolean)
LOGICAL_OR = _primitive("logical_or", np.logical_or, result=_boolean)
LOGICAL_XOR = _primitive("logical_xor", np.logical_xor, result=_boolean)
LOGICAL_NOT = _primitive("logical_not", np.logical_not, result=_boolean)
ISNAN = _primitive("isnan", np.isnan, result=_boolean)

WHERE = _primitive(
    "where",
    np.where,
    lambda g, out, c, a, b: (None, where(c, g, 0), where(c, 0, g)),
    result=lambda c, a, b, op: (broadcast_shapes(op, (c, a, b)), a.dtype),
)

CAST = Primitive(
    "cast",
    infer=lambda x, *, dtype: (x.shape, dtype),
    reference=lambda x, *, dtype: dtypes.cast(x, dtype),
    jax=lambda jx, x, *, dtype: x.array.astype(dtype),
    gradient=lambda g, out, x, *, dtype: (astype(g, x.dtype) if dtypes.is_float(x.dtype) else None,),
)

COPY = Primitive(
    "copy",
    infer=lambda x: (x.shape, x.dtype),
    reference=lambda x: x,
    gradient=lambda g, out, x: (g,),
    jax=lambda jx, x: x.array,
)

STOP_GRADIENT = Primitive(
    "stop_gradient", infer=lambda x: (x.shape, x.dtype), reference=lambda x: x, jax=lambda jx, x: x.array
)


# -- the functions ------------------------------------------------------------------------------------------


def _no_plain_bools(name: str, *values: TensorLike | Condition) -> None:
    """``t == 0`` is Python's False, whatever the step: to go on with it would be silently wrong."""
    for value in values:
        if isinstance(value, bool):
            raise DtypeError(
                f"{name}: {value} is a plain bool, the same at every step",
                places=[("here", user_line())],
                hint="t == 0 compares index expressions as Python objects: write tp.equal(t, 0); "
                "to choose once, while the program is written, use Python's if",
            )


def _arithmetic(op: Primitive, a: TensorLike, b: TensorLike) -> RecurrentTensor:
    _no_plain_bools(op.name, a, b)
    left, right = coerce(a, b)
    hint = "use &, |, ~ for logic, or cast with .astype(tp.int32)"
    require_numbers(op.name, [left.edge, right.edge], hint)
    return apply(op, (left, right))


def _float_function(op: Primitive, x: TensorLike) -> RecurrentTensor:
    return apply(op, (to_float(as_tensor(x)),))


def _logic(op: Primitive, *values: TensorLike) -> RecurrentTensor:
    _no_plain_bools(op.name, *values)
    program = common_program(values)
    tensors = [as_tensor(v, program) for v in values]
    if not all(dtypes.is_bool(x.dtype) for x in tensors):
        raise DtypeError(
            f"{op.name}: needs bool, found {' and '.join(x.dtype.name for x in tensors)}",
            places=places([x.edge for x in tensors]),
            hint="compare first, e.g. x != 0, in parentheses: & and | bind tighter than comparisons",
        )
    return apply(op, tensors)


def add(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a + b``"""
    return _arithmetic(ADD, a, b)


def subtract(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a - b``"""
    return _arithmetic(SUBTRACT, a, b)


def multiply(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a * b``"""
    return _arithmetic(MULTIPLY, a, b)


def divide(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a / b``; of integers, float32."""
    _no_plain_bools("divide", a, b)
    left, right = coerce(a, b)
    return apply(DIVIDE, (to_float(left), to_float(right)))


def floor_divide(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a // b``, rounded towards minus infinity."""
    return _arithmetic(FLOOR_DIVIDE, a, b)


def mod(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a % b``, with the sign of ``b``."""
    return _arithmetic(MOD, a, b)


remainder = mod


def power(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a ** b``"""
    if isinstance(b, int) and not isinstance(b, bool) and 1 <= b <= 3 and isinstance(a, RecurrentTensor):
        # Small integer powers are products: exact, and differentiable at 0 and below.
        return a if b == 1 else a * a if b == 2 else a * a * a
    if isinstance(b, int | np.integer) and b < 0 and isinstance(a, RecurrentTensor | Expr):
        base = as_tensor(a)
        if dtypes.is_integer(base.dtype):
            raise DtypeError(
                f"power: integers have no power of {b} (found {base.dtype.name})",
                places=places([base.edge]),
                hint=f"write x ** {float(b)}, of which the result is float32",
            )
    return _arithmetic(POWER, a, b)


def minimum(a: TensorLike, b: TensorLike) -> Any:
    """The smaller of two tensors, element by element (or of two index expressions)."""
    if index_like(a, b):
        return index_minimum(a, b)  # type: ignore[arg-type]
    return _arithmetic(MINIMUM, a, b)


def maximum(a: TensorLike, b: TensorLike) -> Any:
    """The larger of two tensors, element by element (or of two index expressions)."""
    if index_like(a, b):
        return index_maximum(a, b)  # type: ignore[arg-type]
    return _arithmetic(MAXIMUM, a, b)


def index_like(*values: TensorLike) -> bool:
    """Whether these are index expressions (with integers among them) rather than tensors."""
    return any(isinstance(v, Expr) for v in values) and all(
        isinstance(v, Expr | int | np.integer) and not isinstance(v, bool) for v in values
    )


def clip(x: TensorLike, a_min: TensorLike | None = None, a_max: TensorLike | None = None) -> RecurrentTensor:
    """``x`` kept between ``a_min`` and ``a_max``; None leaves a side open."""
    result = as_tensor(x)
    if a_min is not None:
        result = _arithmetic(MAXIMUM, result, a_min)
    return result if a_max is None else _arithmetic(MINIMUM, result, a_max)


def negative(x: TensorLike) -> RecurrentTensor:
    """``-x``"""
    return apply(NEGATIVE, (_number(NEGATIVE, x),))


def abs(x: TensorLike) -> RecurrentTensor:
    """The absolute value."""
    return apply(ABS, (_number(ABS, x),))


absolute = abs


def _number(op: Primitive, x: TensorLike) -> RecurrentTensor:
    tensor = as_tensor(x)
    require_numbers(op.name, [tensor.edge], "use ~ for logic, or cast with .astype(tp.int32)")
    return tensor


def sign(x: TensorLike) -> RecurrentTensor:
    """-1, 0 or 1."""
    return apply(SIGN, (_number(SIGN, x),))


def square(x: TensorLike) -> RecurrentTensor:
    """``x * x``"""
    return multiply(x, x)


def reciprocal(x: TensorLike) -> RecurrentTensor:
    """``1 / x``"""
    return divide(1, x)


def floor(x: TensorLike) -> RecurrentTensor:
    """The largest whole number not above; integers stay as they are."""
    return _rounding(FLOOR, x)


def ceil(x: TensorLike) -> RecurrentTensor:
    """The smallest whole number not below; integers stay as they are."""
    return _rounding(CEIL, x)


def round(x: TensorLike) -> RecurrentTensor:
    """The nearest whole number, halves to even; integers stay as they are."""
    return _rounding(ROUND, x)


def _rounding(op: Primitive, x: TensorLike) -> RecurrentTensor:
    tensor = _number(op, x)
    return apply(op, (tensor,)) if dtypes.is_float(tensor.dtype) else tensor


def exp(x: TensorLike) -> RecurrentTensor:
    """The exponential; of integers, float32."""
    return _float_function(EXP, x)


def log(x: TensorLike) -> RecurrentTensor:
    """The natural logarithm."""
    return _float_function(LOG, x)


def log1p(x: TensorLike) -> RecurrentTensor:
    """``log(1 + x)``, accurate near 0."""
    return _float_function(LOG1P, x)


def expm1(x: TensorLike) -> RecurrentTensor:
    """``exp(x) - 1``, accurate near 0."""
    return _float_function(EXPM1, x)


def sqrt(x: TensorLike) -> RecurrentTensor:
    """The square root; nan below 0."""
    return _float_function(SQRT, x)


def rsqrt(x: TensorLike) -> RecurrentTensor:
    """``1 / sqrt(x)``"""
    return _float_function(RSQRT, x)


def sin(x: TensorLike) -> RecurrentTensor:
    """The sine of an angle in radians."""
    return _float_function(SIN, x)


def cos(x: TensorLike) -> RecurrentTensor:
    """The cosine of an angle in radians."""
    return _float_function(COS, x)


def tanh(x: TensorLike) -> RecurrentTensor:
    """The hyperbolic tangent, between -1 and 1."""
    return _float_function(TANH, x)


def erf(x: TensorLike) -> RecurrentTensor:
    """The error function."""
    return _float_function(ERF, x)


def sigmoid(x: TensorLike) -> RecurrentTensor:
    """``1 / (1 + exp(-x))``"""
    return _float_function(SIGMOID, x)


def logaddexp(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``log(exp(a) + exp(b))`` without overflow."""
    left, right = coerce(a, b)
    return apply(LOGADDEXP, (to_float(left), to_float(right)))


def relu(x: TensorLike) -> RecurrentTensor:
    """``x`` where it is positive (or NaN), else 0; the derivative at 0 is 0."""
    tensor = as_tensor(x)
    return where(tensor <= 0, 0, tensor)


def softplus(x: TensorLike) -> RecurrentTensor:
    """``log(1 + exp(x))`` without overflow."""
    return logaddexp(x, 0.0)


def silu(x: TensorLike) -> RecurrentTensor:
    """``x * sigmoid(x)``"""
    tensor = to_float(as_tensor(x))
    return tensor * sigmoid(tensor)


def gelu(x: TensorLike, approximate: bool = False) -> RecurrentTensor:
    """``x`` times the normal distribution function at ``x``, or the usual approximation of it by tanh."""
    tensor = to_float(as_tensor(x))
    # In half precision nothing would be left of ``1 + erf`` where the latter is almost -1.
    wide = astype(tensor, dtypes.accumulator_of(tensor.dtype))
    if approximate:
        inside = tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide))
    else:
        inside = erf(wide * (1 / math.sqrt(2)))
    return astype(wide * (0.5 * (1 + inside)), tensor.dtype)


def equal(a: TensorLike, b: TensorLike) -> Any:
    """``a == b``, element by element. Of index expressions: the condition that they are equal."""
    if index_like(a, b):
        return equal_index(a, b)  # type: ignore[arg-type]
    return apply(EQUAL, coerce(a, b))


def not_equal(a: TensorLike, b: TensorLike) -> Any:
    """``a != b``, element by element. Of index expressions: the condition that they differ."""
    if index_like(a, b):
        return ~equal_index(a, b)  # type: ignore[arg-type]
    return apply(NOT_EQUAL, coerce(a, b))


def less(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """Whether ``a < b``, as bools."""
    return apply(LESS, coerce(a, b))


def less_equal(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """Whether ``a <= b``, as bools."""
    return apply(LESS_EQUAL, coerce(a, b))


def greater(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """Whether ``a > b``, as bools."""
    left, right = coerce(a, b)
    return apply(LESS, (right, left))


def greater_equal(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """Whether ``a >= b``, as bools."""
    left, right = coerce(a, b)
    return apply(LESS_EQUAL, (right, left))


def logical_and(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """Whether both bools hold: ``a & b``."""
    return _logic(LOGICAL_AND, a, b)


def logical_or(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """Whether at least one of two bools holds: ``a | b``."""
    return _logic(LOGICAL_OR, a, b)


def logical_xor(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """Whether exactly one of two bools holds: ``a ^ b``."""
    return _logic(LOGICAL_XOR, a, b)


def logical_not(x: TensorLike) -> RecurrentTensor:
    """Whether a bool does not hold: ``~x``."""
    return _logic(LOGICAL_NOT, x)


def isnan(x: TensorLike) -> RecurrentTensor:
    """Whether it is nan, as bools."""
    return _float_function(ISNAN, x)


def isfinite(x: TensorLike) -> RecurrentTensor:
    """Neither nan nor infinite."""
    tensor = to_float(as_tensor(x))
    return apply(EQUAL, coerce(tensor - tensor, 0.0))


def where(condition: TensorLike | Condition, a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """``a`` where the condition holds, else ``b``. The condition may be one on dims: ``t < 5``."""
    _no_plain_bools("where", condition)
    left, right = coerce(a, b)
    (chosen,) = _bools("where", as_tensor(condition, left.program))
    return apply(WHERE, (chosen, left, right))


def _bools(name: str, *tensors: RecurrentTensor) -> tuple[RecurrentTensor, ...]:
    for x in tensors:
        if not dtypes.is_bool(x.dtype):
            raise DtypeError(
                f"{name}: the condition must be bool, found {x.dtype.name}",
                places=places([x.edge]),
                hint="compare first, e.g. x != 0",
            )
    return tensors


def astype(x: TensorLike, dtype: DTypeLike) -> RecurrentTensor:
    """The values in another dtype; floats to integers are cut towards zero."""
    tensor, target = as_tensor(x), dtypes.as_dtype(dtype)
    return tensor if tensor.dtype == target else apply(CAST, (tensor,), dtype=target)


def copy(x: TensorLike, domain: Domain = ()) -> RecurrentTensor:
    """The same values as a tensor of its own, over its dims and those of ``domain``."""
    return apply(COPY, (as_tensor(x),), domain=domain)


def stop_gradient(x: TensorLike) -> RecurrentTensor:
    """The same values; no gradient flows through."""
    return apply(STOP_GRADIENT, (as_tensor(x),))
