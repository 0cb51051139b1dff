"""Normalisation gives PyTorch's numbers, and is computed in single precision for half-precision values."""

import ml_dtypes
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tests.nn.checks import B, T, agree, functional, numbers, torch


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias):
    agree(nn.LayerNorm(4, bias=bias), functional(torch.nn.LayerNorm(4, bias=bias)), numbers(B, T, 4))


def test_sizes_can_be_numpys():
    assert nn.LayerNorm(np.int64(5)).parameters()["weight"].shape == (5,)
    assert nn.LayerNorm([2, 3]).parameters()["weight"].shape == (2, 3)


def test_layer_norm_over_two_axes():
    agree(nn.LayerNorm((3, 4)), functional(torch.nn.LayerNorm((3, 4))), numbers(B, T, 2, 3, 4))


def test_rms_norm():
    agree(nn.RMSNorm(4, eps=1e-5), functional(torch.nn.RMSNorm(4, eps=1e-5)), numbers(B, T, 4))


@pytest.mark.parametrize("model", [nn.LayerNorm(64), nn.RMSNorm(64)])
def test_half_precision(model):
    with tp.Program("half") as prog:
        x = prog.input("x", 64, dtype=tp.bfloat16)
        prog.output("y", model.declare(prog, dtype=tp.bfloat16)(x))
    # Squares of these would be rounded to 8 bits each, and their sum would be infinite in float16.
    x = (300 * numbers(64) + 100).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float64)
    centred = wide - wide.mean() if isinstance(model, nn.LayerNorm) else wide
    expected = (centred / np.sqrt(np.mean(centred**2))).astype(ml_dtypes.bfloat16)
    for result in (prog.evaluate(x=x), prog.compile()(x=x)):
        assert result.y.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(result.y, expected)
