"""Sums, products, extrema, means and the softmax family, against NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import tempo as tp
from tempo.errors import DtypeError, InputError, ShapeError
from tests.ops.checks import (
    bfloat16,
    close,
    evaluate,
    gradients,
    numbers,
    prefix_gradients,
    same,
    same_padded,
    same_prefixes,
    value,
)

AXES = [None, 0, -1, (0, 2), ()]
FUNCTIONS = ["sum", "prod", "mean", "max", "min", "any", "all", "var", "std"]
DTYPES = [np.float32, np.float64, bfloat16, np.float16, np.int32, np.int8, np.uint16, np.bool_]


def reference(name, x, axis):
    """NumPy's function, with Tempo's result types."""
    if name in ("any", "all"):
        return getattr(np, name)(x, axis)
    if name in ("max", "min"):
        return getattr(np, name)(x, axis)
    if x.dtype.kind in "iub":
        if name in ("mean", "var", "std"):
            return getattr(np, name)(x.astype(np.float64), axis).astype(np.float32)
        return getattr(np, name)(x, axis, dtype=np.uint32 if x.dtype.kind == "u" else np.int32)
    return getattr(np, name)(x, axis)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_numpy(name, dtype):
    x = numbers(3, 2, 4, dtype=dtype)
    for axis in AXES:
        same(lambda x, a=axis: getattr(tp, name)(x, a), lambda x, a=axis: reference(name, x, a), x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_keepdims(name):
    same(
        lambda x: getattr(tp, name)(x, axis=(0, -1), keepdims=True),
        lambda x: getattr(np, name)(x, axis=(0, -1), keepdims=True),
        numbers(3, 2, 4),
    )


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "var", "std", "logsumexp"])
def test_gradients(name):
    for axis in AXES if name not in ("var", "std") else AXES[:-1]:
        gradients(lambda x, a=axis: tp.square(getattr(tp, name)(x, a)), numbers(3, 2, 4))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, -1, (0, 1)])
def test_softmax(name, axis):
    same(lambda x: getattr(tp, name)(x, axis), lambda x: getattr(scipy.special, name)(x, axis), numbers(3, 4, 2))
    same(
        lambda x: getattr(tp, name)(x, axis),
        lambda x: getattr(scipy.special, name)(x, axis),
        numbers(3, 4, 2, dtype=bfloat16),
    )
    gradients(lambda x: getattr(tp, name)(x, axis), numbers(3, 4, 2))


def test_logsumexp():
    same(lambda x: tp.logsumexp(x, 0), lambda x: scipy.special.logsumexp(x, 0), numbers(3, 4))
    same(
        lambda x: tp.logsumexp(x, -1, keepdims=True),
        lambda x: scipy.special.logsumexp(x, -1, keepdims=True),
        numbers(3, 4, dtype=np.float32),
    )


def test_large_numbers_do_not_overflow():
    x = np.array([1000.0, 1001.0, -1000.0])
    close(value(tp.logsumexp, x), scipy.special.logsumexp(x))
    close(value(tp.softmax, x), scipy.special.softmax(x))
    close(value(tp.log_softmax, x), scipy.special.log_softmax(x))


def test_logsumexp_of_nothing_but_minus_infinity_has_gradient_zero():
    """Unreachable states of a dynamic program must not poison the gradient of the others."""
    x = np.array([[-np.inf, -np.inf], [0.0, -np.inf]])

    def both(x):
        y = tp.logsumexp(x, 1)
        return y, tp.grad(tp.sum(tp.where(y == -np.inf, 0, y)), x)

    y, g = evaluate(both, x)
    close(y, np.array([-np.inf, 0.0]))
    close(g, np.array([[0.0, 0.0], [1.0, 0.0]]))


# -- positions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.int32, np.bool_])
def test_positions(name, dtype):
    x = numbers(3, 4, 5, dtype=dtype)
    x[:, 1] = x[:, 2]  # ties: the first wins
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            same(
                lambda x, a=axis, k=keepdims: getattr(tp, name)(x, a, k),
                lambda x, a=axis, k=keepdims: getattr(np, name)(x, a, keepdims=k).astype(np.int32),
                x,
            )


# -- ties, zeros, empty axes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_share_the_gradient_evenly(name):
    x = np.array([[1.0, 3.0, 3.0, -2.0], [-2.0, -2.0, 5.0, -2.0]])
    found = value(lambda x: tp.grad(tp.sum(getattr(tp, name)(x, 1)), x), x)
    expected = {"max": [[0, 0.5, 0.5, 0], [0, 0, 1, 0]], "min": [[0, 0, 0, 1], [1 / 3, 1 / 3, 0, 1 / 3]]}
    close(found, np.array(expected[name], np.float64))


@pytest.mark.parametrize("row", [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [2.0, -1.0, 0.5]], ids=str)
def test_the_gradient_of_a_product_is_exact_at_zeros(row):
    gradients(tp.prod, np.array(row))
    gradients(lambda x: tp.prod(x, (0, 2)), np.array([row, row[::-1]]).reshape(2, 1, 3))


def test_empty_axes():
    x = numbers(2, 0, 3)
    close(value(lambda x: tp.sum(x, 1), x), np.zeros((2, 3)))
    close(value(lambda x: tp.prod(x, 1), x), np.ones((2, 3)))
    close(value(lambda x: tp.any(x, 1), x), np.zeros((2, 3), bool))
    close(value(lambda x: tp.all(x, 1), x), np.ones((2, 3), bool))
    close(value(lambda x: tp.logsumexp(x, 1), x), np.full((2, 3), -np.inf))
    close(value(lambda x: tp.mean(x, 1), x), np.full((2, 3), np.nan))
    close(value(lambda x: tp.softmax(x, 1), x), x)
    close(value(lambda x: tp.max(x, 1, initial=-1.5), x), np.full((2, 3), -1.5))
    for fn in (tp.sum, tp.prod, tp.logsumexp):
        assert value(lambda x, f=fn: tp.grad(tp.sum(f(x, 1)), x), x).shape == (2, 0, 3)


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_extremum_of_nothing_is_an_error(name):
    with pytest.raises(InputError) as caught:
        value(lambda x: getattr(tp, name)(x, 1), numbers(2, 0, 3))
    assert f"the {name} of no elements (shape (2, 0, 3), axes (1,)) does not exist" in str(caught.value)
    assert f"tp.{name}(..., initial=value) says what it should be" in str(caught.value)
    with pytest.raises(InputError, match=rf"the arg{name} of no elements \(shape \(2, 0\), axis 1\) does not exist"):
        value(lambda x: getattr(tp, f"arg{name}")(x, 1), numbers(2, 0))


def test_initial_takes_part():
    x = numbers(3, 4)
    same(lambda x: tp.max(x, 1, initial=0.2), lambda x: np.max(x, 1, initial=0.2), x)
    same(lambda x: tp.min(x, axis=0, initial=-0.2), lambda x: np.min(x, 0, initial=-0.2), x)
    gradients(lambda x: tp.max(x, 1, initial=0.2), x)


def test_half_precision_is_summed_in_single():
    x = np.full(5000, 0.1, np.float16)
    close(value(tp.sum, x), np.float16(np.sum(x.astype(np.float32))))
    close(value(tp.mean, np.full(4000, 100.0, np.float16)), np.float16(100.0))  # the sum overflows
    close(value(tp.sum, np.full(1000, 1.0, bfloat16)), np.asarray(1000.0, bfloat16))


# -- symbolic sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "var", "std", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0])
def test_symbolic_axes(name, axis):
    def numpy_fn(x):
        result = getattr(np, name)(x, axis)
        return result.astype(np.int32) if name in ("argmax", "argmin") else result

    same_prefixes(lambda x: getattr(tp, name)(x, axis), numpy_fn, numbers(4, 3))


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "log_softmax"])
def test_symbolic_softmax(name):
    fn, numpy_fn = getattr(tp, name), getattr(scipy.special, name)
    check = same_prefixes if name == "logsumexp" else same_padded
    check(lambda x: fn(x, 0), lambda x: numpy_fn(x, 0), numbers(4, 3))
    prefix_gradients(lambda x: tp.sum(tp.reshape(fn(x, 0), (-1, 2)) ** 2, 0), numbers(3, 2))


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "logsumexp", "var"])
def test_symbolic_gradients(name):
    prefix_gradients(lambda x: getattr(tp, name)(x, 0), numbers(4, 2))
    prefix_gradients(lambda x: getattr(tp, name)(x), numbers(3, 2))


def test_symbolic_axes_that_begin_empty():
    x = numbers(4, 3)
    same_prefixes(lambda x: tp.sum(x, 0), lambda x: x.sum(0), x, start=0)
    same_prefixes(lambda x: tp.prod(x, 0), lambda x: x.prod(0), x, start=0)
    same_prefixes(lambda x: tp.logsumexp(x, 0)[...], lambda x: np.logaddexp.reduce(x, 0, initial=-np.inf), x, start=0)
    prefix_gradients(lambda x: tp.prod(x, 0), x, start=0)


# -- index expressions and mistakes -----------------------------------------------------------------------------


def test_of_index_expressions():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        assert tp.min(t + 5, T - 1) == tp.minimum(T - 1, t + 5)
        assert tp.max(0, t - 3, 1) == tp.maximum(t - 3, 1)
        assert tp.max(t) == t
        x = prog.input("x", shape=(), domain=(t,))
        prog.output("y", x[tp.min(t + 1, T - 1)])
    assert prog.evaluate({T: 3}, x=np.arange(3, dtype=np.float32)).y.tolist() == [1, 2, 2]


def test_mistakes():
    with tp.Program() as prog:
        x = prog.input("x", shape=(2, 3))
        with pytest.raises(DtypeError) as caught:
            tp.max(x, x)
        assert str(caught.value).splitlines()[0] == "max: the second argument of tp.max(tensor, ...) is an axis"
        assert "hint: tp.maximum(a, b) compares tensors element by element" in str(caught.value)
        for wrong in (lambda: tp.min(x, 0.5), lambda: tp.max(0, x), lambda: tp.max(x, 0, 1)):
            with pytest.raises(DtypeError, match="is an axis"):
                wrong()
        with pytest.raises(ShapeError, match=r"sum: axis 2 is out of range for shape \(2, 3\)"):
            tp.sum(x, 2)
        with pytest.raises(ShapeError, match=r"sum: axis \(0, -2\) names an axis twice"):
            tp.sum(x, (0, -2))


def test_initial_must_be_a_number_of_the_type():
    with tp.Program() as prog:
        x = prog.input("x", shape=(3,), dtype=tp.uint8)
        with pytest.raises(DtypeError, match="the value -1 does not fit into uint8"):
            tp.max(x, initial=-1)
        with pytest.raises(ShapeError, match=r"min: the value must be one number, found shape \(2,\)"):
            tp.min(x, initial=[1, 2])
