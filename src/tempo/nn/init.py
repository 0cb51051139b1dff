"""Initialisers: functions ``init(shape, dtype)`` that make a parameter's first value.

Random ones depend on the seed of the run alone, so two runs with the same seed start from the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tempo as tp

Initialiser = Callable[[tuple[int, ...], Any], tp.RecurrentTensor]


def constant(value: float) -> Initialiser:
    """``value`` everywhere."""
    return lambda shape, dtype: tp.full(shape, value, dtype)


zeros = constant(0.0)
ones = constant(1.0)


def uniform(bound: float = 1.0) -> Initialiser:
    """Uniform in ``[-bound, bound)``."""
    return lambda shape, dtype: tp.random.uniform(shape, low=-bound, high=bound, dtype=dtype)


def normal(std: float = 1.0, mean: float = 0.0) -> Initialiser:
    """Normal with this standard deviation."""
    return lambda shape, dtype: tp.random.normal(shape, mean=mean, std=std, dtype=dtype)


def xavier_uniform(gain: float = 1.0) -> Initialiser:
    """Uniform with variance ``2 gain**2 / (inputs + outputs)``; shapes (outputs, inputs, *window)."""

    def init(shape: tuple[int, ...], dtype: Any) -> tp.RecurrentTensor:
        inputs, outputs = fans(shape)
        return uniform(gain * math.sqrt(6 / (inputs + outputs)))(shape, dtype)

    return init


def kaiming_uniform(gain: float = math.sqrt(2)) -> Initialiser:
    """Uniform with variance ``gain**2 / inputs``; shapes (outputs, inputs, *window)."""
    return lambda shape, dtype: uniform(gain * math.sqrt(3 / fans(shape)[0]))(shape, dtype)


def kaiming_normal(gain: float = math.sqrt(2)) -> Initialiser:
    """Normal with variance ``gain**2 / inputs``; shapes (outputs, inputs, *window)."""
    return lambda shape, dtype: normal(gain / math.sqrt(fans(shape)[0]))(shape, dtype)


def orthogonal(gain: float = 1.0) -> Initialiser:
    """A random orthogonal matrix times ``gain``; rows (or columns, if those are fewer) are orthogonal to each other.

    Shapes are (outputs, ...), the other axes together being the columns. NumPy computes it, in a host call.
    """

    def init(shape: tuple[int, ...], dtype: Any) -> tp.RecurrentTensor:
        if not shape:
            raise tp.errors.ShapeError(
                "a parameter of shape () has no rows to be orthogonal", places=[("here", tp.errors.user_line())]
            )
        rows, columns = shape[0], math.prod(shape[1:])
        precise = tp.float64 if dtype == tp.float64 else tp.float32
        drawn = tp.random.normal((max(rows, columns), min(rows, columns)), dtype=precise)
        q = tp.host(_orthonormal, drawn, out=tp.spec(drawn.shape, precise))
        return tp.multiply(gain, (q if rows >= columns else q.T).reshape(shape).astype(dtype))

    return init


def _orthonormal(drawn: Any) -> Any:
    q, r = np.linalg.qr(drawn)
    # With this choice of signs all orthogonal matrices are equally likely.
    return q * np.sign(np.diag(r))


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many inputs each output of a weight (outputs, inputs, *window) has, and how many outputs each input."""
    if len(shape) < 2:
        raise tp.errors.ShapeError(
            f"a parameter of shape {shape} has no inputs and outputs, by which its first value is to be scaled",
            places=[("here", tp.errors.user_line())],
            hint="xavier and kaiming are for weights (outputs, inputs, *window); take nn.init.uniform or normal here",
        )
    outputs, inputs, *window = shape
    return inputs * math.prod(window), outputs * math.prod(window)
