"""Constants, ranges and the values of indices."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.errors import DomainError, DtypeError, ProgramError, ShapeError
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


@pytest.mark.parametrize("backend", ["evaluate", "numpy", "jax"])
def test_the_same_at_every_step(backend):
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x, flag, zero = prog.input("x", 2), prog.input("flag", domain=b, dtype="bool"), prog.input("zero")
        over = tp.full((3, 2), x, domain=(b, t))
        prog.output("numbers", tp.full(2, 1.5, domain=t))
        prog.output("zeros", tp.zeros((), "int8", domain=(b, t)))
        prog.output("ones", tp.ones((T,), domain=b))
        prog.output("x", over)
        prog.output("flag", tp.full((), flag, domain=t))
        prog.output("zero", tp.full((), zero, domain=t))
        prog.output("here", tp.full((), flag, domain=b))
        prog.output("slope", tp.grad(tp.sum((over * (t.value + 1))[0:B, 0:T]), x))
    given = {"x": [1, 2], "flag": [True, False], "zero": -0.0}
    bounds = {B: 2, T: 3}
    found = prog.evaluate(bounds, **given) if backend == "evaluate" else prog.compile(bounds, backend)(**given)
    close(found.numbers, np.full((3, 2), 1.5, np.float32))
    close(found.zeros, np.zeros((2, 3), np.int8))
    close(found.ones, np.ones((2, 3), np.float32))
    close(found.x, np.broadcast_to(np.array([1, 2], np.float32), (2, 3, 3, 2)))
    close(found.flag, np.array([[True] * 3, [False] * 3]))
    assert np.signbit(found.zero).tolist() == [True] * 3
    close(found.here, np.array([True, False]))
    close(found.slope, np.full(2, 2 * 3 * (1 + 2 + 3), np.float32))


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


def test_domains_that_cannot_be():
    with tp.Program() as prog:
        b, _ = prog.dim("b")
        t, T = prog.dim("t")
        with pytest.raises(DomainError, match="expected a dim, found T, which is a bound"):
            tp.zeros(2, domain=T)
        with pytest.raises(DomainError, match=r"the domain \(t, b\) is not in the order"):
            tp.full(2, tp.ones(2), domain=(t, b))
    with pytest.raises(ProgramError, match="no program is being written here"):
        tp.zeros(2)
    assert tp.zeros(2, domain=t).domain == (t,)


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
