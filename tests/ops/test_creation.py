"""Constants, ranges and the values of indices."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.errors import DtypeError, ShapeError
from tests.ops.checks import bfloat16, close


def made(build):
    """What ``build(t, T)`` is, over three steps where it varies."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        prog.output("y", build(t, T))
    return prog.evaluate({T: 3}).y


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, np.int32),
        (1.5, np.float32),
        (True, np.bool_),
        ([1, 2], np.int32),
        ([[1.0], [2.0]], np.float32),
        (np.float64(2.5), np.float32),
        (np.array([1, 2], np.int8), np.int8),
        (np.array([1.5], bfloat16), bfloat16),
        (np.zeros((0, 2)), np.float32),
    ],
)
def test_constants(given, expected):
    close(made(lambda t, T: tp.constant(given)), np.asarray(given).astype(expected))


def test_constants_of_a_dtype():
    close(made(lambda t, T: tp.constant([1, 2], tp.float64)), np.array([1.0, 2.0]))
    close(made(lambda t, T: tp.constant(2**40, tp.int64)), np.array(2**40))


def test_full_and_friends():
    close(made(lambda t, T: tp.full((2, 3), 1.5)), np.full((2, 3), 1.5, np.float32))
    close(made(lambda t, T: tp.full(2, True)), np.array([True, True]))
    close(made(lambda t, T: tp.full((2,), tp.constant(3.0))), np.full(2, 3, np.float32))
    close(made(lambda t, T: tp.zeros((2, 0))), np.zeros((2, 0), np.float32))
    close(made(lambda t, T: tp.ones(3, tp.int8)), np.ones(3, np.int8))
    close(made(lambda t, T: tp.zeros_like(tp.ones((2, 3), tp.float64))), np.zeros((2, 3)))
    close(made(lambda t, T: tp.ones_like(tp.ones((2, 3)), tp.int32)), np.ones((2, 3), np.int32))
    close(made(lambda t, T: tp.eye(3)), np.eye(3, dtype=np.float32))


def test_symbolic_sizes():
    close(made(lambda t, T: tp.arange(T)), np.arange(3, dtype=np.int32))
    close(made(lambda t, T: tp.sum(tp.arange(t + 1))), np.array([0, 1, 3], np.int32))
    close(made(lambda t, T: tp.sum(tp.ones((t, 2)), 0)), np.array([[0, 0], [1, 1], [2, 2]], np.float32))
    close(made(lambda t, T: tp.sum(tp.full((t + 1,), 2.0))), np.array([2, 4, 6], np.float32))


def test_values_of_indices():
    close(made(lambda t, T: tp.index_value(2 * t + T)), np.array([3, 5, 7], np.int32))
    close(made(lambda t, T: tp.condition_value(t < 2)), np.array([True, True, False]))
    close(made(lambda t, T: t.value * 0.5), np.array([0, 0.5, 1], np.float32))
    close(made(lambda t, T: tp.constant(1.0) * (T - t)), np.array([3, 2, 1], np.float32))


def test_mistakes():
    with tp.Program():
        with pytest.raises(DtypeError, match="the value 4294967296 does not fit into int32"):
            tp.constant(2**32)
        with pytest.raises(DtypeError, match="cannot become a tensor"):
            tp.constant("text")
        with pytest.raises(ShapeError, match="-1 is not a size"):
            tp.zeros((2, -1))
        with pytest.raises(ShapeError, match=r"full: the value must be one number, found shape \(2,\)"):
            tp.full((2,), [1, 2])
