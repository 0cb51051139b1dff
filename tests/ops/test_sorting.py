"""sort, argsort and top_k, against NumPy and JAX."""

from __future__ import annotations

import jax
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64, bfloat16, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort_and_argsort(dtype, axis):
    x = numbers(4, 3, 5, dtype=dtype)
    x[1] = x[2]  # equal elements keep their order
    same(lambda x: tp.sort(x, axis), lambda x: np.sort(x, axis), x)
    same(lambda x: tp.argsort(x, axis), lambda x: np.argsort(x, axis, stable=True).astype(np.int32), x)
    same(lambda x: tp.sort(x, axis, descending=True), lambda x: np.flip(np.sort(x, axis), axis), x)


def test_descending_is_stable():
    x = np.array([2.0, 3.0, 2.0, 3.0, 1.0])
    assert value(lambda x: tp.argsort(x, descending=True), x).tolist() == [1, 3, 0, 2, 4]
    assert value(tp.argsort, x).tolist() == [4, 0, 2, 1, 3]


def test_extreme_integers():
    x = np.array([0, -(2**31), 2**31 - 1], np.int32)
    assert value(lambda x: tp.sort(x, descending=True), x).tolist() == [2**31 - 1, 0, -(2**31)]
    x = np.array([0, 255, 7], np.uint8)
    assert value(lambda x: tp.sort(x, descending=True), x).tolist() == [255, 7, 0]
    x = np.array([2**31, 0, 2**32 - 1], np.uint32)
    assert value(tp.sort, x).tolist() == [0, 2**31, 2**32 - 1]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_nan_is_the_greatest(dtype):
    x = np.array([1.0, np.nan, -np.inf, np.inf, -np.nan], dtype)
    assert value(tp.argsort, x).tolist() == [2, 0, 3, 1, 4]
    assert value(lambda x: tp.argsort(x, descending=True), x).tolist() == [1, 4, 3, 0, 2]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_zeros_of_different_signs_are_equal(dtype):
    x = np.array([1.0, 0.0, -0.0, 0.0, -1.0], dtype)
    assert value(tp.argsort, x).tolist() == [4, 1, 2, 3, 0]
    assert value(lambda x: tp.argsort(x, descending=True), x).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.int32, np.uint8])
def test_on_a_cpu_one_array_is_sorted(dtype):
    """XLA takes much longer for keys with the positions beside them."""
    with tp.Program() as prog:
        x = prog.input("x", shape=40, dtype=dtype)
        prog.output("order", tp.argsort(x, descending=True))
    text = prog.compile({}, device="cpu")._whole.compiled.as_text()
    (line,) = [line for line in text.splitlines() if " sort(" in line]
    assert "= u64[40]{0} sort(" in line


@pytest.mark.parametrize("k", [0, 1, 3, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, bfloat16])
def test_top_k(k, dtype):
    x = numbers(3, 5, dtype=dtype)
    x[:, 0] = x[:, 3]
    values, indices = evaluate(lambda x: tp.top_k(x, k), x)
    expected_values, expected_indices = jax.lax.top_k(x, k)
    close(values, np.asarray(expected_values))
    close(indices, np.asarray(expected_indices))
    values, _ = evaluate(lambda x: tp.top_k(x, k, axis=0), x.T)
    close(values, np.asarray(expected_values).T)


@pytest.mark.parametrize("descending", [False, True])
def test_gradients(descending):
    gradients(lambda x: tp.square(tp.sort(x, 0, descending)), numbers(4, 3))
    gradients(lambda x: tp.square(tp.sort(x, 1, descending)), numbers(4, 3))
    gradients(lambda x: tp.square(tp.top_k(x, 2)[0]), numbers(4, 3))


def test_symbolic_axes():
    x = numbers(5, 3)
    same_padded(lambda x: tp.sort(x, 0), lambda x: np.sort(x, 0), x)
    same_padded(
        lambda x: tp.argsort(x, 0, descending=True), lambda x: np.argsort(-x, 0, stable=True).astype(np.int32), x
    )
    same_prefixes(lambda x: tp.top_k(x, 1, 0)[0], lambda x: x.max(0, keepdims=True), x)
    prefix_gradients(lambda x: tp.sum(tp.square(tp.sort(x, 0)) * tp.cumsum(0 * x + 1, 0), 0), numbers(4, 2))
    prefix_gradients(lambda x: tp.square(tp.top_k(x, 1, 0)[0]), numbers(4, 2))


def test_mistakes():
    with tp.Program() as prog:
        x = prog.input("x", shape=(2, 3))
        with pytest.raises(ShapeError, match=r"sort: axis 2 is out of range for shape \(2, 3\)"):
            tp.sort(x, 2)
        with pytest.raises(ShapeError, match=r"top_k: 4 elements along axis -1 of shape \(2, 3\)"):
            tp.top_k(x, 4)
        with pytest.raises(ShapeError, match=r"top_k: -1 elements along axis 0 of shape \(2, 3\)"):
            tp.top_k(x, -1, 0)
        with pytest.raises(ShapeError, match=r"top_k: 4 elements along axis -1 of shape \(2, 3\)"):
            tp.top_k(x, np.int64(4))
