"""Normalisation over the last axes of a value, computed in at least single precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tempo as tp
from tempo.nn import init
from tempo.nn.mistakes import expect
from tempo.nn.module import Module, Parameter
from tempo.nn.precision import floating, wide


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then ``weight * x + bias``: any shape (..., *shape), kept.

    Parameters: weight (*shape), at first 1, and bias (*shape) unless ``bias=False``, at first 0.
    """

    weight: Any
    bias: Any

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5, bias: bool = True) -> None:
        sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        self.axes = tuple(range(-len(sizes), 0))
        self.eps = eps
        self.weight = Parameter(sizes, init.ones)
        self.bias = Parameter(sizes, init.zeros) if bias else None

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        x = floating(expect(self, x, *self.weight.shape))
        centred = wide(x) - tp.mean(wide(x), self.axes, keepdims=True)
        variance = tp.mean(tp.square(centred), self.axes, keepdims=True)
        y = centred * tp.rsqrt(variance + self.eps) * wide(self.weight)
        return (y if self.bias is None else y + wide(self.bias)).astype(x.dtype)


class RMSNorm(Module):
    """Mean square 1 over the last axis, then ``weight * x``: any shape (..., size), kept.

    Parameters: weight (size,), at first 1. As in Llama, the value is rounded to its dtype before ``weight``.
    """

    weight: Any

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        self.eps = eps
        self.weight = Parameter((size,), init.ones)

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        x = floating(expect(self, x, *self.weight.shape))
        scale = tp.rsqrt(tp.mean(tp.square(wide(x)), -1, keepdims=True) + self.eps)
        return tp.multiply(self.weight, (wide(x) * scale).astype(x.dtype))
