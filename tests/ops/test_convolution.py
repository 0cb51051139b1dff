"""Convolution and pooling, against JAX."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo.errors import DtypeError, ShapeError
from tests.ops.checks import bfloat16, close, gradients, numbers, same, value


def expected(x, w, stride=1, padding=0, dilation=1, groups=1):
    rank = x.ndim - 2
    strides, dilations = ((n,) * rank if isinstance(n, int) else n for n in (stride, dilation))
    if isinstance(padding, str):
        widths = padding.upper()
    else:
        each = [padding] * rank if isinstance(padding, int) else padding
        widths = [(p, p) if isinstance(p, int) else p for p in each]
    with jax.enable_x64():
        out = jax.lax.conv_general_dilated(
            jnp.asarray(x), jnp.asarray(w), strides, widths, rhs_dilation=dilations, feature_group_count=groups
        )
        return np.asarray(out)


CONV1D = [
    ((2, 3, 8), (4, 3, 3), {}),
    ((2, 3, 8), (4, 3, 3), {"stride": 2}),
    ((2, 3, 9), (4, 3, 3), {"stride": 3, "padding": 2}),
    ((2, 3, 8), (4, 3, 3), {"dilation": 2, "padding": "same"}),
    ((2, 3, 8), (4, 3, 3), {"dilation": 3, "stride": 2, "padding": [(4, 1)]}),
    ((2, 3, 7), (4, 3, 4), {"stride": 3, "padding": "same"}),
    ((2, 3, 8), (4, 3, 3), {"padding": "valid"}),
    ((1, 4, 6), (6, 2, 2), {"groups": 2}),
    ((2, 4, 7), (4, 1, 3), {"groups": 4, "stride": 2, "padding": 1}),
    ((2, 3, 5), (4, 3, 1), {"padding": 1}),
    ((2, 3, 5), (4, 3, 5), {}),
]
CONV2D = [
    ((2, 3, 5, 6), (4, 3, 3, 2), {}),
    ((1, 2, 6, 5), (2, 2, 3, 3), {"stride": 2, "padding": 1}),
    ((1, 2, 6, 5), (2, 2, 2, 3), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    ((1, 4, 5, 5), (2, 2, 3, 3), {"groups": 2, "padding": "same"}),
    ((1, 2, 4, 4), (3, 2, 2, 2), {"padding": [(1, 0), (0, 2)]}),
]


@pytest.mark.parametrize(("x", "w", "options"), CONV1D + CONV2D, ids=str)
def test_convolution(x, w, options):
    fn = tp.conv1d if len(x) == 3 else tp.conv2d
    arrays = numbers(*x, seed=1), numbers(*w, seed=2)
    same(lambda x, w: fn(x, w, **options), lambda x, w: expected(x, w, **options), *arrays)
    gradients(lambda x, w: fn(x, w, **options), *arrays, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.float16])
def test_dtypes(dtype):
    same(
        lambda x, w: tp.conv1d(x, w, padding=1),
        lambda x, w: expected(x, w, padding=1),
        numbers(2, 3, 8, dtype=dtype),
        numbers(4, 3, 3, dtype=dtype),
    )


def test_integers():
    x, w = numbers(1, 2, 6, dtype=np.int32), numbers(3, 2, 2, dtype=np.int32)
    same(tp.conv1d, lambda x, w: np.rint(expected(x * 1.0, w * 1.0)).astype(np.int32), x, w)


def test_a_convolution_is_a_sum_of_shifted_products():
    """Written out: [1, 2, 3, 4] with the window [1, 10] is [21, 32, 43]."""
    x, w = np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[1.0, 10.0]]])
    assert value(tp.conv1d, x, w).tolist() == [[[21.0, 32.0, 43.0]]]


def test_symbolic_sizes():
    """Batch and length may be expressions."""
    x, w = numbers(4, 2, 3), numbers(5, 2, 2)
    with tp.Program() as prog:
        t, T = prog.dim("t")
        rows = prog.input("x", shape=(2, 3), domain=(t,), dtype=tp.float64)
        window = prog.input("w", shape=(5, 2, 2), dtype=tp.float64)
        batch = tp.conv1d(rows[0 : t + 1], window, padding=1)
        assert batch.shape == (t + 1, 5, 4)
        along = tp.conv1d(lengthy(rows, t), window)
        assert along.shape == (1, 5, t + 1)
        prog.output("batch", tp.sum(batch, 0))
        prog.output("along", tp.sum(along, 2))
        loss = (tp.sum(tp.square(batch)) + tp.sum(tp.square(along)))[0:T]
        prog.output("slope", tp.grad(tp.sum(loss), window))
    out = prog.evaluate({T: 4}, x=x, w=w)
    batches = [expected(x[: t + 1], w, padding=1) for t in range(4)]
    lengths = [expected(long(x, t), w) for t in range(4)]
    close(out.batch, np.stack([b.sum(0) for b in batches]))
    close(out.along, np.stack([b.sum(2) for b in lengths]))

    def loss(w):
        return sum(
            (expected(x[: t + 1], w, padding=1) ** 2).sum() + (expected(long(x, t), w) ** 2).sum() for t in range(4)
        )

    step = 1e-5
    for at in itertools.islice(np.ndindex(*w.shape), 0, None, 3):
        bump = np.zeros_like(w)
        bump[at] = step
        slope = (loss(w + bump) - loss(w - bump)) / (2 * step)
        np.testing.assert_allclose(out.slope[at], slope, rtol=1e-6)


def lengthy(rows, t):
    """The first column of the rows so far, with a margin of one, as one signal of length t + 2."""
    return tp.pad(tp.transpose(rows[0 : t + 1], (2, 1, 0)).space[:1], ((0, 0), (0, 0), (0, 1)))


def long(x, t):
    return np.pad(x[: t + 1].transpose(2, 1, 0)[:1], ((0, 0), (0, 0), (0, 1)))


# -- pooling ------------------------------------------------------------------------------------------------


def pooled(x, size, stride=None, padding=0, mean=False):
    rank = x.ndim - 2
    sizes = (size,) * rank if isinstance(size, int) else size
    strides = sizes if stride is None else (stride,) * rank if isinstance(stride, int) else stride
    margin = [(0, 0), (0, 0)] + [(padding, padding)] * rank
    start, fn = (0.0, jax.lax.add) if mean else (-np.inf, jax.lax.max)
    with jax.enable_x64():
        out = jax.lax.reduce_window(jnp.asarray(x), start, fn, (1, 1, *sizes), (1, 1, *strides), margin)
        return np.asarray(out / np.prod(sizes) if mean else out)


@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding"),
    [
        ((2, 3, 7), 2, None, 0),
        ((2, 3, 7), 3, 2, 1),
        ((1, 2, 6, 4), 2, None, 0),
        ((1, 2, 5, 5), (3, 2), (2, 1), 1),
    ],
)
def test_pooling(shape, size, stride, padding):
    rank = len(shape) - 2
    x = numbers(*shape)
    for mean, fn in ((False, getattr(tp, f"max_pool{rank}d")), (True, getattr(tp, f"avg_pool{rank}d"))):
        same(
            lambda x, f=fn: f(x, size, stride, padding),
            lambda x, m=mean: pooled(x, size, stride, padding, m),
            x,
        )
        gradients(lambda x, f=fn: tp.square(f(x, size, stride, padding)), x)


def test_pooling_of_integers():
    x = np.array([[[-5, -3, -9]]], np.int32)
    assert value(lambda x: tp.max_pool1d(x, 2, 1, 1), x).tolist() == [[[-5, -3, -3, -9]]]
    close(value(lambda x: tp.avg_pool1d(x, 2, 1), x), np.array([[[-4, -6]]], np.float32))


# -- mistakes -------------------------------------------------------------------------------------------------

MISTAKES = [
    (lambda x, w: tp.conv1d(x, w), "conv1d: shapes (1, 4, 5, 5) and (6, 2, 3, 3): both need 3 axes"),
    (
        lambda x, w: tp.conv2d(x, w),
        "conv2d: shapes (1, 4, 5, 5) and (6, 2, 3, 3): 4 channels in 1 groups do not fit "
        "windows of 2 channels and 6 outputs",
    ),
    (lambda x, w: tp.conv2d(x, w, stride=0, groups=2), "conv2d: stride 0 is not a positive integer or 2 of them"),
    (lambda x, w: tp.conv2d(x, w, padding="full", groups=2), "conv2d: padding 'full' is unknown"),
    (lambda x, w: tp.conv2d(x, w, padding=(1,), groups=2), "conv2d: padding (1,) for 2 axes"),
    (
        lambda x, w: tp.conv2d(x, w, dilation=3, groups=2),
        "conv2d: a window of 3 (dilation 3) does not fit into the size 5, padding included",
    ),
    (
        lambda x, w: tp.max_pool2d(x, 6),
        "max_pool2d: a window of 6 (dilation 1) does not fit into the size 5, padding included",
    ),
    (lambda x, w: tp.avg_pool1d(x, 2), "avg_pool1d: shape (1, 4, 5, 5) needs 3 axes"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes(wrong, message):
    with tp.Program() as prog:
        x, w = prog.input("x", shape=(1, 4, 5, 5)), prog.input("w", shape=(6, 2, 3, 3))
        with pytest.raises(ShapeError) as caught:
            wrong(x, w)
    assert str(caught.value).splitlines()[0] == message
    assert "test_convolution.py" in str(caught.value)


def test_bools_are_not_convolved():
    with tp.Program() as prog:
        x = prog.input("x", shape=(1, 1, 3), dtype=tp.bool_)
        with pytest.raises(DtypeError, match="conv1d: bool tensors have no arithmetic"):
            tp.conv1d(x, x)


def test_the_greatest_of_bools_is_none_in_the_padding():
    x = np.array([[[False, False, True, False, False]]])
    same(lambda x: tp.max_pool1d(x, 3, 1, padding=1), lambda x: np.array([[[False, True, True, True, False]]]), x)
