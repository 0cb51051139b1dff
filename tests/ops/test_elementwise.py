"""Functions that act element by element, against NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import tempo as tp
from tempo.errors import DtypeError, ShapeError
from tests.ops.checks import bfloat16, close, evaluate, gradients, numbers, prefix_gradients, same, same_padded, value

FLOATS = [np.float32, np.float64, bfloat16, np.float16]
INTEGERS = [np.int32, np.int8, np.uint8]
ALL_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]

# Of floats: the function, NumPy's, and where its arguments come from.
FLOAT_FUNCTIONS = {
    "exp": (np.exp, None),
    "log": (np.log, "positive"),
    "log1p": (np.log1p, "positive"),
    "expm1": (np.expm1, None),
    "sqrt": (np.sqrt, "positive"),
    "rsqrt": (lambda x: 1 / np.sqrt(x), "positive"),
    "sin": (np.sin, None),
    "cos": (np.cos, None),
    "tanh": (np.tanh, None),
    "erf": (scipy.special.erf, None),
    "sigmoid": (scipy.special.expit, None),
    "softplus": (lambda x: np.logaddexp(x, x.dtype.type(0)), None),
    "silu": (lambda x: x * scipy.special.expit(x), None),
    "gelu": (lambda x: (x * scipy.special.ndtr(x)).astype(x.dtype), None),
    "reciprocal": (lambda x: 1 / x, "positive"),
}
ANY_NUMBER = {
    "negative": np.negative,
    "abs": np.abs,
    "absolute": np.abs,
    "sign": np.sign,
    "square": np.square,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
}


def arguments(kind, *shape, dtype=np.float64, seed=0):
    x = numbers(*shape, dtype=dtype, seed=seed)
    return np.abs(x) + x.dtype.type(0.5) if kind == "positive" else x


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_functions(name, dtype):
    numpy_fn, kind = FLOAT_FUNCTIONS[name]
    same(getattr(tp, name), numpy_fn, arguments(kind, 3, 4, dtype=dtype))


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_float_functions_of_integers_are_single_precision(name):
    numpy_fn, _ = FLOAT_FUNCTIONS[name]
    same(getattr(tp, name), lambda x: numpy_fn(x.astype(np.float32)), np.array([1, 2, 3], np.int32))


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_gradients_of_float_functions(name):
    gradients(getattr(tp, name), arguments(FLOAT_FUNCTIONS[name][1], 3, 4), tolerance=1e-5)


@pytest.mark.parametrize("name", ANY_NUMBER)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_functions_of_any_number(name, dtype):
    same(getattr(tp, name), ANY_NUMBER[name], numbers(3, 4, dtype=dtype))


@pytest.mark.parametrize("name", ANY_NUMBER)
def test_gradients_of_functions_of_any_number(name):
    gradients(lambda x: getattr(tp, name)(x) * x, numbers(3, 4))


# -- two operands -------------------------------------------------------------------------------------------

ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": np.floor_divide,
    "mod": np.mod,
    "power": np.power,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "logaddexp": np.logaddexp,
}
SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 3), (4, 1)), ((0, 3), (1,))]


def operands(name, a, b, dtype=np.float64):
    x, y = numbers(*a, dtype=dtype, seed=1), numbers(*b, dtype=dtype, seed=2)
    return (
        (np.abs(x) + x.dtype.type(1), np.abs(y) + y.dtype.type(1))
        if name in ("power", "mod", "floor_divide")
        else (x, y)
    )


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", FLOATS)
def test_arithmetic(name, dtype):
    for a, b in SHAPES:
        same(getattr(tp, name), ARITHMETIC[name], *operands(name, a, b, dtype))


@pytest.mark.parametrize("name", [n for n in ARITHMETIC if n not in ("divide", "logaddexp")])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_arithmetic_of_integers(name, dtype):
    x, y = np.array([1, 5, 3, 2], dtype), np.array([2, 1, 3, 3], dtype)
    same(getattr(tp, name), ARITHMETIC[name], x, y)


def test_the_quotient_of_integers_is_single_precision():
    same(tp.divide, lambda a, b: (a / b).astype(np.float32), np.array([1, 5], np.int32), np.array([2, 3], np.int32))


def test_signs_of_quotients_and_remainders():
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([3, 3, -3, -3], np.int32)
    same(tp.floor_divide, np.floor_divide, a, b)
    same(tp.mod, np.mod, a, b)
    same(tp.mod, np.mod, a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("name", [n for n in ARITHMETIC if n != "floor_divide"])
def test_gradients_of_arithmetic(name):
    for a, b in SHAPES[:-1]:
        gradients(lambda x, y: tp.square(getattr(tp, name)(x, y)), *operands(name, a, b), tolerance=1e-5)


def test_python_operators():
    x, y = numbers(3, seed=1), np.abs(numbers(3, seed=2)) + 1
    for fn in (
        lambda a, b: a + b - 2 * a / b,
        lambda a, b: 1 - a,
        lambda a, b: 1 / b + 3,
        lambda a, b: b**2 + b**a + 2**a,
        lambda a, b: (b // 0.3) + (b % 0.3) + 5 % b + 5 // b,
        lambda a, b: -a + +b + abs(a),
        lambda a, b: (a < b) & (a <= b) | ~(a > b) ^ (a >= 1),
        lambda a, b: (a == b) | (a != 0),
    ):
        same(fn, fn, x, y)


def test_small_integer_powers_are_exact_and_smooth_at_zero():
    x = np.array([0.0, -2.0, 3.0])
    for n in (0, 1, 2, 3):
        same(lambda x, n=n: x**n, lambda x, n=n: x**n, x)
        gradients(lambda x, n=n: x**n, x, tolerance=1e-4)


def test_ties_share_the_gradient_evenly():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    for fn, left in ((tp.maximum, [0, 0.5, 1]), (tp.minimum, [1, 0.5, 0])):
        da, db = evaluate(lambda a, b, f=fn: tp.grad(tp.sum(f(a, b)), [a, b]), a, b)
        close(da, np.array(left, np.float64))
        close(db, 1 - np.array(left, np.float64))


def test_logaddexp_of_extremes():
    """Where both are -inf the gradient is 0, not nan; far apart, nothing overflows or is lost."""
    a, b = np.array([-np.inf, 0.0, 1000.0, -30.0]), np.array([-np.inf, -np.inf, 1000.0, 0.0])
    y, da, db = evaluate(lambda a, b: [tp.logaddexp(a, b), *tp.grad(tp.sum(tp.logaddexp(a, b)), [a, b])], a, b)
    close(y, np.logaddexp(a, b))
    close(da, np.array([0, 1, 0.5, scipy.special.expit(-30)]))
    close(db, np.array([0, 0, 0.5, scipy.special.expit(30)]))
    close(value(tp.softplus, np.array([-30.0], np.float32)), np.array([np.exp(-30)], np.float32), 1e-18)


def test_clip():
    x = numbers(3, 4)
    for limits in ((-0.5, 0.5), (None, 0.1), (0.1, None)):
        same(lambda x, w=limits: tp.clip(x, *w), lambda x, w=limits: np.clip(x, *w), x)
        gradients(lambda x, w=limits: tp.clip(x, *w) * x, x)


# -- comparison, logic, choice ----------------------------------------------------------------------------------

COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.int32])
def test_comparisons(name, dtype):
    x, y = np.array([1, 2, 3, 2], dtype), np.array([2, 2, 2, 2], dtype)
    same(getattr(tp, name), getattr(np, name), x, y)
    same(lambda x: getattr(tp, name)(x, 2), lambda x: getattr(np, name)(x, 2), x)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic(name):
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    same(getattr(tp, name), getattr(np, name), a, b)
    same(tp.logical_not, np.logical_not, a)


def test_nan_and_infinity():
    x = np.array([1.0, np.nan, np.inf, -np.inf])
    same(tp.isnan, np.isnan, x)
    same(tp.isfinite, np.isfinite, x)


def test_where():
    c, a, b = numbers(3, 4, dtype=np.bool_), numbers(3, 4, seed=1), numbers(4, seed=2)
    same(tp.where, np.where, c, a, b)
    same(lambda c, a: tp.where(c, a, 0), lambda c, a: np.where(c, a, 0), c, a)
    gradients(lambda c, a, b: tp.square(tp.where(c, a, b)), c, a, b)
    with tp.Program() as prog:
        t, T = prog.dim("t")
        prog.output("y", tp.where(t < 2, t.value, -1))
    assert prog.evaluate({T: 4}).y.tolist() == [0, 1, -1, -1]


def test_where_keeps_the_gradient_of_what_was_not_chosen_out():
    """The usual guard: the slope of sqrt at 0 is infinite, but not chosen."""
    x = np.array([0.0, 4.0])
    found = value(lambda x: tp.grad(tp.sum(tp.where(x > 0, tp.sqrt(tp.where(x > 0, x, 1)), 0)), x), x)
    close(found, np.array([0.0, 0.25]))


# -- dtypes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [np.float32, bfloat16, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("dtype", [np.float64, bfloat16, np.int32, np.bool_])
def test_astype(dtype, target):
    x = np.abs(numbers(3, 4, dtype=dtype)) if dtype != np.bool_ else numbers(3, 4, dtype=dtype)
    close(value(lambda x: x.astype(target), x), x.astype(target))


@pytest.mark.parametrize("backend", ["evaluate", "numpy", "jax"])
@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32, np.float64])
def test_floats_beyond_the_ends_of_integers(dtype, backend):
    ends = [float(end) for target in ALL_INTEGERS for end in (np.iinfo(target).min, np.iinfo(target).max)]
    near = [end * factor for end in ends for factor in (0.5, 0.99, 1.0, 1.01, 2.0)] + [e - 1 for e in ends]
    with np.errstate(over="ignore"):
        numbers = np.array([*near, 2.7, -2.7, -0.3, 1e30, -1e30, np.inf, -np.inf, np.nan]).astype(dtype)
    with tp.Program() as prog:
        x, fixed = prog.input("x", len(numbers), dtype=dtype), tp.constant(numbers, dtype=dtype)
        for target in ALL_INTEGERS:
            prog.output(target, x.astype(target))
            prog.output(f"{target} of a constant", fixed.astype(target))
    found = prog.evaluate({}, x=numbers) if backend == "evaluate" else prog.compile({}, backend)(x=numbers)
    for target in ALL_INTEGERS:
        low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
        wide = [float(x) for x in numbers]
        cut = [0 if np.isnan(x) else low if x < low else high if x > high else min(int(x), high) for x in wide]
        assert found[target].tolist() == cut
        assert found[f"{target} of a constant"].tolist() == cut


def test_the_gradient_of_a_cast_has_the_dtype_of_what_was_cast():
    found = value(lambda x: tp.grad(tp.sum(x.astype(tp.float32) * 2), x), numbers(3))
    close(found, np.full(3, 2.0))


def test_python_numbers_take_the_dtype_of_the_tensor():
    for dtype in (np.float32, np.float64, bfloat16, np.float16):
        assert value(lambda x: 2.5 * x + 1, numbers(3, dtype=dtype)).dtype == dtype
    assert value(lambda x: x + 1, numbers(3, dtype=np.int8)).dtype == np.int8
    assert value(lambda x: x + 0.5, numbers(3, dtype=np.int32)).dtype == np.float32


def test_stop_gradient():
    x = numbers(3)
    y, g = evaluate(lambda x: [tp.stop_gradient(x), tp.grad(tp.sum(x * tp.stop_gradient(x)), x)], x)
    close(y, x)
    close(g, x)


def test_symbolic_sizes():
    same_padded(lambda x: tp.exp(x) * x + 1, lambda x: np.exp(x) * x + 1, numbers(4, 3))
    prefix_gradients(lambda x: tp.sum(tp.tanh(x) * x.space[-1], 0), numbers(4, 2))


MISTAKES = [
    (
        lambda x, b: x + tp.zeros(4),
        ShapeError,
        "add: shapes (2, 3) and (4,) do not broadcast: axis -1 has sizes 3 and 4",
    ),
    (lambda x, b: b + b, DtypeError, "add: bool tensors have no arithmetic"),
    (lambda x, b: -b, DtypeError, "negative: bool tensors have no arithmetic"),
    (lambda x, b: x / False, DtypeError, "divide: False is a plain bool, the same at every step"),
    (lambda x, b: x.astype(int) ** -1, DtypeError, "power: integers have no power of -1 (found int32)"),
    (lambda x, b: x & b, DtypeError, "logical_and: needs bool, found float32"),
    (lambda x, b: tp.where(x, x, x), DtypeError, "where: the condition must be bool, found float32"),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), MISTAKES)
def test_mistakes(wrong, kind, message):
    with tp.Program() as prog:
        x, b = prog.input("x", shape=(2, 3)), prog.input("b", shape=(2, 3), dtype=tp.bool_)
        with pytest.raises(kind) as caught:
            wrong(x, b)
    assert str(caught.value).startswith(message)
    assert "test_elementwise.py" in str(caught.value)


@pytest.mark.parametrize("backend", ["evaluate", "numpy", "jax"])
def test_large_powers_of_integers_wrap_around(backend):
    """Of an exponent JAX's own function looks at six bits."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="int32")
        prog.output("y", x ** tp.constant(97))
        prog.output("z", (x.astype("uint8")) ** t.value.astype("uint8"))
    given = np.array([-1, 0, 1, 2, 3, 31, 2**31 - 1, -(2**31)] * 20, np.int32)
    result = (
        prog.evaluate({T: 160}, x=given) if backend == "evaluate" else prog.compile({T: 160}, backend=backend)(x=given)
    )
    np.testing.assert_array_equal(result.y, given**97)
    np.testing.assert_array_equal(result.z, given.astype(np.uint8) ** np.arange(160, dtype=np.uint8))


def test_relu_hands_nan_on():
    x = np.array([np.nan, -1.0, 0.0, 2.0])
    np.testing.assert_array_equal(value(tp.relu, x), [np.nan, 0.0, 0.0, 2.0])


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", [bfloat16, np.float16])
def test_gelu_keeps_its_small_values_in_half_precision(dtype, approximate):
    """Where the normal distribution function is small, one plus almost minus one would be nothing."""
    x = np.linspace(-4, 0, 50).astype(dtype)
    exact = x.astype(np.float64) * scipy.special.ndtr(x.astype(np.float64))
    found = value(lambda x: tp.gelu(x, approximate), x).astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=0.01, atol=5e-4 if approximate else 1e-6)


def test_anything_to_the_power_of_zero_is_one():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -2.0])
    np.testing.assert_array_equal(value(lambda x: x**0, x), np.ones(5))
    gradients(lambda x: x**0, x[3:])
