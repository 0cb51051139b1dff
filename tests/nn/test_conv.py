"""Convolutions give PyTorch's numbers."""

import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tests.nn.checks import agree, functional, numbers, torch

B, T = 2, 2


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "bias": False}, {"dilation": 2, "groups": 2, "padding": "same"}]
)
def test_conv1d(options):
    def expected(x, **weights):
        y = functional(torch.nn.Conv1d(4, 6, 3, **options))(x.flatten(0, 1), **weights)
        return y.unflatten(0, (B, T))

    agree(nn.Conv1d(4, 6, 3, **options), expected, numbers(B, T, 4, 7))


@pytest.mark.parametrize("options", [{}, {"stride": (2, 1), "padding": (1, 0), "bias": False}, {"groups": 2}])
def test_conv2d(options):
    def expected(x, **weights):
        y = functional(torch.nn.Conv2d(2, 4, (2, 3), **options))(x.flatten(0, 1), **weights)
        return y.unflatten(0, (B, T))

    agree(nn.Conv2d(2, 4, (2, 3), **options), expected, numbers(B, T, 2, 5, 4))


def test_leading_axes_are_batches():
    def expected(x, **weights):
        return functional(torch.nn.Conv2d(2, 3, 2))(x.flatten(0, 3), **weights).unflatten(0, x.shape[:4])

    agree(nn.Conv2d(2, 3, 2), expected, numbers(B, T, 2, 3, 2, 3, 3))


def test_sizes_can_be_numpys():
    n = np.int64
    options = {"stride": n(2), "dilation": n(2), "groups": n(2)}
    with tp.Program("sizes") as prog:
        prog.output("one", nn.Conv1d(n(2), n(4), n(2), **options).declare(prog, "one")(tp.ones((2, 7))))
        prog.output("two", nn.Conv2d(n(2), n(4), n(2), **options).declare(prog, "two")(tp.ones((2, 7, 7))))
    found = prog.evaluate()
    assert (found.one.shape, found.two.shape) == ((4, 3), (4, 3, 3))
