"""Running sums, products and extrema, linear recurrences, and scans of any associative function."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.errors import ShapeError
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

NUMPY = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
}


def running(name, x, axis, reverse):
    dtype = {} if x.dtype.kind == "f" or name in ("cummax", "cummin") else {"dtype": np.int32}
    turned = np.flip(x, axis) if reverse else x
    result = NUMPY[name](turned, axis, **dtype)
    return np.flip(result, axis) if reverse else result


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, bfloat16, np.int32, np.int8, np.bool_])
def test_as_numpy(name, dtype):
    x = numbers(3, 4, dtype=dtype)
    for axis in (0, -1):
        for reverse in (False, True):
            same(
                lambda x, a=axis, r=reverse: getattr(tp, name)(x, a, r),
                lambda x, a=axis, r=reverse: running(name, x, a, r),
                x,
            )
    assert value(lambda x: getattr(tp, name)(x, 1), numbers(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients(name, reverse):
    gradients(lambda x: tp.square(getattr(tp, name)(x, 1, reverse)), numbers(2, 5))
    gradients(lambda x: getattr(tp, name)(x, 0, reverse), numbers(1, 2))


@pytest.mark.parametrize("row", [[2.0, 0.0, 3.0, -1.0], [0.0, 2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0]], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_a_running_product_is_exact_at_zeros(row, reverse):
    gradients(lambda x: tp.cumprod(x, 0, reverse), np.array(row))


def test_ties_share_the_gradient_of_a_running_maximum_evenly():
    """The running maxima of 1, 3, 3, 2, 3 are 1, 3, 3, 3, 3: the last is shared by three, the ones before by two."""
    x = np.array([1.0, 3.0, 3.0, 2.0, 3.0])
    found = value(lambda x: tp.grad(tp.sum(tp.cummax(x)), x), x)
    close(found, np.array([1, 1 + 1 / 2 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 2 + 1 / 3, 0, 1 / 3]))
    close(value(lambda x: tp.grad(tp.sum(tp.cummin(-x)), x), x), -found)


@pytest.mark.parametrize("name", NUMPY)
def test_symbolic_axes(name):
    same_padded(lambda x: getattr(tp, name)(x, 0), lambda x: NUMPY[name](x, 0), numbers(4, 3), start=0)
    same_prefixes(lambda x: tp.sum(getattr(tp, name)(x, 0), 0), lambda x: NUMPY[name](x, 0).sum(0), numbers(4, 3))
    prefix_gradients(lambda x: tp.sum(tp.square(getattr(tp, name)(x, 0)), 0), numbers(4, 2), start=0)
    prefix_gradients(lambda x: tp.sum(tp.square(getattr(tp, name)(x, 0, True)), 0), numbers(4, 2))


# -- linear recurrences -------------------------------------------------------------------------------------


def linear(a, b, reverse=False):
    a, b = np.broadcast_arrays(a, b)
    result, state = np.zeros_like(b), np.zeros_like(b[0])
    for i in reversed(range(len(b))) if reverse else range(len(b)):
        result[i] = state = a[i] * state + b[i]
    return result


@pytest.mark.parametrize("reverse", [False, True])
def test_linear_scan(reverse):
    a, b = numbers(4, 3, seed=1), numbers(4, 3, seed=2)
    same(lambda a, b: tp.linear_scan(a, b, 0, reverse), lambda a, b: linear(a, b, reverse), a, b)
    same(lambda a, b: tp.linear_scan(a, b, 1, reverse), lambda a, b: linear(a.T, b.T, reverse).T, a, b)
    same(lambda a, b: tp.linear_scan(a, b, 0, reverse), lambda a, b: linear(a, b, reverse), a[:, :1], b)
    gradients(lambda a, b: tp.square(tp.linear_scan(a, b, 0, reverse)), a, b)
    gradients(lambda a, b: tp.linear_scan(a, b, 1, reverse), a, b)


def test_a_linear_scan_is_the_recurrence_it_stands_for():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        a, b = (prog.input(n, domain=(t,), dtype=tp.float64) for n in "ab")
        h = prog.recurrent("h", domain=(t,), dtype=tp.float64)
        h[0] = b[0]
        h[t] = a * h[t - 1] + b
        prog.output("h", h[0:T])
        prog.output("scan", tp.linear_scan(a[0:T], b[0:T]))
    out = prog.evaluate({T: 6}, a=numbers(6, seed=1), b=numbers(6, seed=2))
    close(out.scan, out.h)


# -- any associative function ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_of_a_sum(size, reverse):
    x = numbers(2, size)
    same(lambda x: tp.associative_scan(tp.add, x, 1, reverse), lambda x: running("cumsum", x, 1, reverse), x)


def test_associative_scan_of_matrix_products():
    """Not commutative: the earlier factor is on the left."""
    x = numbers(5, 2, 2)
    expected = [x[0]]
    for m in x[1:]:
        expected.append(expected[-1] @ m)
    close(value(lambda x: tp.associative_scan(tp.matmul, x), x), np.stack(expected))
    gradients(lambda x: tp.associative_scan(tp.matmul, x), x)


def test_associative_scan_of_tuples():
    """A linear recurrence as the composition of affine maps."""
    a, b = numbers(6, 3, seed=1), numbers(6, 3, seed=2)

    def compose(first, second):
        return first[0] * second[0], first[1] * second[0] + second[1]

    factors, states = evaluate(lambda a, b: tp.associative_scan(compose, (a, b)), a, b)
    close(factors, np.cumprod(a, 0))
    close(states, linear(a, b))
    gradients(lambda a, b: tp.associative_scan(compose, (a, b)), a, b)


def test_mistakes():
    with tp.Program() as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=(t,))
        with pytest.raises(ShapeError) as caught:
            tp.associative_scan(tp.add, x[0 : t + 1])
        assert str(caught.value).startswith(
            "associative_scan: the axis of size t + 1 (shape (t + 1, 3)) must have a size that is a number"
        )
        assert "hint: write a recurrence over a dim: y[0] = x[0]; y[t] = fn(y[t - 1], x[t])" in str(caught.value)
        with pytest.raises(ShapeError, match=r"the function gave float32\(\) for float32\(2,\)"):
            tp.associative_scan(lambda a, b: tp.sum(a + b), x)
        with pytest.raises(ShapeError, match="sizes 3 and 2 along the axis differ"):
            tp.associative_scan(lambda a, b: b, (x, x.space[:2]))
        with pytest.raises(ShapeError, match=r"cumsum: axis 1 is out of range for shape \(3,\)"):
            tp.cumsum(x, 1)
