"""Recurrent cells: one step of a recurrence, from the state before it to the state after it."""

from __future__ import annotations

import math
from typing import Any

import tempo as tp
from tempo.nn import init
from tempo.nn.linear import affine
from tempo.nn.mistakes import at_least, expect
from tempo.nn.module import Module, Parameter


class _Cell(Module):
    weight_ih: Any
    weight_hh: Any
    bias_ih: Any
    bias_hh: Any

    def __init__(self, inputs: int, hidden: int, gates: int, bias: bool) -> None:
        at_least(1, self, hidden, "hidden features")
        initial = init.uniform(1 / math.sqrt(hidden))
        self.gates = gates
        self.weight_ih = Parameter((gates * hidden, inputs), initial)
        self.weight_hh = Parameter((gates * hidden, hidden), initial)
        self.bias_ih = Parameter((gates * hidden,), initial) if bias else None
        self.bias_hh = Parameter((gates * hidden,), initial) if bias else None

    def parts(
        self, x: tp.RecurrentTensor, h: tp.RecurrentTensor
    ) -> tuple[list[tp.RecurrentTensor], list[tp.RecurrentTensor]]:
        """What x and what h contribute to each gate."""
        x, h = expect(self, x, *self.weight_ih.shape[1:]), expect(self, h, *self.weight_hh.shape[1:])
        of_x, of_h = affine(x, self.weight_ih, self.bias_ih), affine(h, self.weight_hh, self.bias_hh)
        return tp.split(of_x, self.gates, axis=-1), tp.split(of_h, self.gates, axis=-1)


class LSTMCell(_Cell):
    """``h, c = cell(x, (h, c))``: x has shape (..., inputs), h and c have (..., hidden).

    Parameters, by gates input, forget, cell, output: weight_ih (4 hidden, inputs), weight_hh (4 hidden, hidden), and
    bias_ih, bias_hh (4 hidden,) unless ``bias=False``; at first uniform within ``1 / sqrt(hidden)``.
    """

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__(inputs, hidden, 4, bias)

    def __call__(
        self, x: tp.RecurrentTensor, state: tuple[tp.RecurrentTensor, tp.RecurrentTensor]
    ) -> tuple[tp.RecurrentTensor, tp.RecurrentTensor]:
        h, c = state
        c = expect(self, c, *self.weight_hh.shape[1:])
        i, f, g, o = (of_x + of_h for of_x, of_h in zip(*self.parts(x, h), strict=True))
        c = tp.sigmoid(f) * c + tp.sigmoid(i) * tp.tanh(g)
        return tp.sigmoid(o) * tp.tanh(c), c


class GRUCell(_Cell):
    """``h = cell(x, h)``: x has shape (..., inputs), h has (..., hidden).

    Parameters, by gates reset, update, new: weight_ih (3 hidden, inputs), weight_hh (3 hidden, hidden), and
    bias_ih, bias_hh (3 hidden,) unless ``bias=False``; at first uniform within ``1 / sqrt(hidden)``.
    """

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__(inputs, hidden, 3, bias)

    def __call__(self, x: tp.RecurrentTensor, h: tp.RecurrentTensor) -> tp.RecurrentTensor:
        (x_reset, x_update, x_new), (h_reset, h_update, h_new) = self.parts(x, h)
        update = tp.sigmoid(x_update + h_update)
        new = tp.tanh(x_new + tp.sigmoid(x_reset + h_reset) * h_new)
        return (1 - update) * new + update * h
