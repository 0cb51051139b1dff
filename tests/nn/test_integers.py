"""Layers on integers and on lists: they are numbers like any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import nn


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda prog: nn.LayerNorm(4).declare(prog, "norm"), id="LayerNorm"),
        pytest.param(lambda prog: nn.RMSNorm(4).declare(prog, "norm"), id="RMSNorm"),
        pytest.param(lambda prog: lambda x: nn.RoPE(4)(x, 1), id="RoPE"),
        pytest.param(lambda prog: nn.Linear(4, 2).declare(prog, "layer"), id="Linear"),
    ],
)
def test_integers_are_what_floats_would_be(make: Any) -> None:
    """What is made of them is not rounded to integers again."""
    with tp.Program() as prog:
        layer = make(prog)
        x = prog.input("x", 4, dtype="int32")
        prog.output("of_integers", layer(x))
        prog.output("of_floats", layer(x.astype(tp.float32)))
        prog.output("of_a_list", layer([1.0, 2.0, 3.0, 4.0]))
    found = prog.compile({})(x=[1, 2, 3, 4])
    assert found.of_integers.dtype == np.float32
    np.testing.assert_array_equal(found.of_integers, found.of_floats)
    np.testing.assert_allclose(found.of_a_list, found.of_floats, rtol=1e-6)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: nn.RoPE(0), "RoPE: 0 features"),
        (lambda: nn.RoPE(3), "RoPE: 3 features do not make pairs"),
        (lambda: nn.RoPE(4, theta=1), "RoPE: theta = 1: no wave is longer than another"),
        (lambda: nn.RoPE(4, scaling=nn.LinearScaling), "RoPE: scaling = <class 'tempo.nn.rope.LinearScaling'>"),  # type: ignore[arg-type]
        (
            lambda: nn.RoPE(4, scaling=nn.LinearScaling(0)),
            "RoPE: scaling = LinearScaling(factor=0): frequencies are no longer numbers",
        ),
        (lambda: nn.Dropout("a"), "Dropout: the rate 'a' is not in [0, 1]"),  # type: ignore[arg-type]
        (lambda: nn.init.orthogonal()((), tp.float32), "a parameter of shape () has no rows to be orthogonal"),
    ],
)
def test_what_is_no_layer(wrong: Any, message: str) -> None:
    with pytest.raises(tp.errors.ShapeError) as error:
        wrong()
    assert error.value.message == message


def test_orthogonal_matrices_in_double_precision() -> None:
    with tp.Program() as prog:
        prog.output("w", nn.init.orthogonal()((5, 3), tp.float64))
    w = prog.compile({})().w
    np.testing.assert_allclose(w.T @ w, np.eye(3), atol=1e-14)
