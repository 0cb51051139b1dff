"""Dropout: off, on, and how often."""

import numpy as np

import tempo as tp
from tempo import nn


def test_is_the_identity_when_off():
    with tp.Program("off") as prog:
        x = prog.input("x", 3)
    assert nn.Dropout(0.5)(x, training=False) is x
    assert nn.Dropout(0.0)(x, training=True) is x


def test_drops_all():
    with tp.Program("all") as prog:
        x = prog.input("x", 3)
        y = nn.Dropout(1.0)(x, training=True)
        prog.output("y", y)
        prog.output("dx", tp.grad(y.sum(), x))
    for result in (prog.evaluate(x=[1, 2, 3]), prog.compile()(x=[1, 2, 3])):
        assert result.y.tolist() == result.dx.tolist() == [0, 0, 0]


def test_drops_and_scales():
    with tp.Program("on") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", 50, domain=t)
        y = nn.Dropout(0.2)(x + 0 * i.value, training=True)
        prog.output("y", y)
        prog.output("dx", tp.grad(y[0:I, 0:T].sum(), x))
    x = np.ones((40, 50), np.float32)
    result = prog.evaluate({I: 2, T: 40}, x=x)
    assert set(np.unique(result.y)) == {0.0, np.float32(1.25)}
    assert abs(np.mean(result.y == 0) - 0.2) < 0.02
    # Other elements at every point.
    rows = (result.y == 0).reshape(-1, 50)
    assert len(np.unique(rows, axis=0)) == len(rows)
    # What is dropped has no gradient.
    np.testing.assert_allclose(result.dx, result.y.sum(axis=0))
    np.testing.assert_array_equal(prog.compile({I: 2, T: 40})(x=x).y, result.y)
