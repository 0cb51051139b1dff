"""Convolutions over the axes of a value, channels first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tempo as tp
from tempo.nn import init
from tempo.nn.module import Module, Parameter


class Conv1d(Module):
    """Windows moved along one axis: from shape (..., inputs, length) to (..., outputs, places).

    ``stride``, ``padding`` ("same", "valid", or numbers), ``dilation`` and ``groups`` are those of ``tp.conv1d``.

    Parameters: weight (outputs, inputs / groups, window), and bias (outputs,) unless ``bias=False``; at first uniform
    within ``1 / sqrt(inputs / groups * window)``.
    """

    weight: Any
    bias: Any

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: int,
        stride: int = 1,
        padding: Any = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        self.options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        self.weight, self.bias = _parameters(inputs, outputs, (window,), groups, bias)

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        return _convolved(tp.conv1d, x, self.weight, self.bias, self.options)


class Conv2d(Module):
    """Windows moved along two axes: from shape (..., inputs, height, width) to (..., outputs, rows, columns).

    ``window``, ``stride`` and ``dilation`` are one number, or one per axis; ``padding`` is "same", "valid", a number,
    or one number or (before, after) per axis.

    Parameters: weight (outputs, inputs / groups, *window), and bias (outputs,) unless ``bias=False``; at first uniform
    within ``1 / sqrt(inputs / groups * the window's area)``.
    """

    weight: Any
    bias: Any

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Any = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        sizes = (window, window) if isinstance(window, int) else tuple(window)
        self.options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        self.weight, self.bias = _parameters(inputs, outputs, sizes, groups, bias)

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        return _convolved(tp.conv2d, x, self.weight, self.bias, self.options)


def _parameters(inputs: int, outputs: int, window: tuple[int, ...], groups: int, bias: bool) -> tuple[Any, Any]:
    initial = init.uniform(1 / math.sqrt(inputs // groups * math.prod(window)))
    weight = Parameter((outputs, inputs // groups, *window), initial)
    return weight, Parameter((outputs,), initial) if bias else None


def _convolved(
    convolve: Callable[..., tp.RecurrentTensor], x: tp.RecurrentTensor, weight: Any, bias: Any, options: dict[str, Any]
) -> tp.RecurrentTensor:
    """The leading axes, however many, as the one batch axis of ``convolve``."""
    value = 1 + len(weight.shape[2:])
    leading, inner = x.shape[: x.ndim - value], x.shape[x.ndim - value :]
    y = convolve(x.reshape(-1, *inner), weight, **options)
    if bias is not None:
        y = y + bias.reshape(-1, *(1 for _ in weight.shape[2:]))
    return y.reshape(*leading, *y.shape[1:])
