"""Linear maps."""

from __future__ import annotations

import math
from typing import Any

import tempo as tp
from tempo.nn import init
from tempo.nn.mistakes import at_least, expect
from tempo.nn.module import Module, Parameter


class Linear(Module):
    """``weight @ x + bias``: from shape (..., inputs) to (..., outputs).

    Parameters: weight (outputs, inputs), and bias (outputs,) unless ``bias=False``; at first uniform within
    ``1 / sqrt(inputs)``.
    """

    weight: Any
    bias: Any

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        at_least(1, self, inputs, "inputs")
        initial = init.uniform(1 / math.sqrt(inputs))
        self.weight = Parameter((outputs, inputs), initial)
        self.bias = Parameter((outputs,), initial) if bias else None

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        return affine(expect(self, x, *self.weight.shape[1:]), self.weight, self.bias)


def affine(x: tp.RecurrentTensor, weight: tp.RecurrentTensor, bias: tp.RecurrentTensor | None) -> tp.RecurrentTensor:
    """x (..., inputs), weight (outputs, inputs), bias (outputs,) or None: (..., outputs)."""
    y = tp.einsum("...i,oi->...o", x, weight)
    return y if bias is None else y + bias
