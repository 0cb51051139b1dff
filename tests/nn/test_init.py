"""Initialisers have the distributions of PyTorch's, and depend on the seed of the run alone."""

import math

import numpy as np
import pytest

import tempo as tp
from tempo import nn


def drawn(init, shape, dtype="float32", **options):
    with tp.Program("init") as prog:
        prog.output("w", init(shape, dtype))
    return prog.evaluate(**options).w


@pytest.mark.parametrize(
    "init, std, bound",
    [
        (nn.init.uniform(0.3), 0.3 / math.sqrt(3), 0.3),
        (nn.init.normal(0.5), 0.5, math.inf),
        (nn.init.xavier_uniform(2.0), 2 * math.sqrt(2 / (4 * 30 + 4 * 50)), 2 * math.sqrt(6 / (4 * 30 + 4 * 50))),
        (nn.init.kaiming_uniform(), math.sqrt(2 / (4 * 50)), math.sqrt(6 / (4 * 50))),
        (nn.init.kaiming_normal(), math.sqrt(2 / (4 * 50)), math.inf),
    ],
)
def test_spread(init, std, bound):
    w = drawn(init, (30, 50, 4))
    assert abs(w.mean()) < 0.05 * std
    assert abs(w.std() - std) < 0.05 * std
    assert np.abs(w).max() <= bound
    assert np.array_equal(w, drawn(init, (30, 50, 4)))
    assert not np.array_equal(w, drawn(init, (30, 50, 4), seed=1))


def test_constants():
    np.testing.assert_array_equal(drawn(nn.init.zeros, (2, 3)), np.zeros((2, 3)))
    np.testing.assert_array_equal(drawn(nn.init.ones, 3), np.ones(3))
    assert drawn(nn.init.constant(0.5), (2,), "float64").dtype == np.float64


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (7, 2), (3, 2, 2)])
def test_orthogonal(shape):
    w = drawn(nn.init.orthogonal(2.0), shape, "float64")
    flat = w.reshape(shape[0], -1)
    small = flat @ flat.T if shape[0] <= flat.shape[1] else flat.T @ flat
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)
    assert not np.allclose(w, drawn(nn.init.orthogonal(2.0), shape, "float64", seed=1))


def test_orthogonal_weights_are_drawn_once_and_trained():
    model = nn.Linear(3, 3, bias=False)
    model.weight.init = nn.init.orthogonal()
    with tp.Program("trained") as prog:
        i, I = prog.dim("i")
        with prog.training(over=i):
            net = model.declare(prog)
        net.weight.next = 2 * net.weight
        prog.output("weight", net.weight.final)
    expected, found = prog.evaluate({I: 3}).weight, prog.compile({I: 3})().weight
    np.testing.assert_allclose(found @ found.T, 64 * np.eye(3), atol=1e-4)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "model, bounds",
    [
        (nn.Linear(16, 40), {"weight": 1 / 4, "bias": 1 / 4}),
        (nn.Conv1d(4, 40, 4, groups=2), {"weight": 1 / math.sqrt(8), "bias": 1 / math.sqrt(8)}),
        (nn.Conv2d(1, 40, (2, 8)), {"weight": 1 / 4, "bias": 1 / 4}),
        (nn.LSTMCell(3, 16), dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), 1 / 4)),
        (nn.GRUCell(3, 16), dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), 1 / 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_start_within_pytorchs_bounds(model, bounds):
    with tp.Program("start") as prog:
        for name, parameter in model.declare(prog).parameters().items():
            prog.output(name, parameter)
    result = prog.evaluate()
    assert set(result.outputs) == set(bounds)
    for name, bound in bounds.items():
        assert 0.85 * bound < np.abs(result[name]).max() <= bound, name
