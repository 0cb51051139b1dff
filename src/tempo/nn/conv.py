"""Convolutions over the axes of a value, channels first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tempo as tp
from tempo.nn import init
from tempo.nn.mistakes import at_least, wrong
from tempo.nn.module import Module, Parameter


class _Convolution(Module):
    weight: Any
    bias: Any

    def __init__(
        self,
        convolve: Callable[..., tp.RecurrentTensor],
        inputs: int,
        outputs: int,
        window: tuple[int, ...],
        bias: bool,
        groups: int,
        **options: Any,
    ) -> None:
        for number, what in ((inputs, "channels of inputs"), (outputs, "channels of outputs"), (groups, "groups")):
            at_least(1, self, number, what)
        if inputs % groups or outputs % groups:
            raise wrong(
                self,
                f"{inputs} channels to {outputs} do not divide into {groups} groups",
                "groups has to divide the channels of inputs, and of outputs",
            )
        for steps in window:
            at_least(1, self, steps, "places in the window")
        initial = init.uniform(1 / math.sqrt(inputs // groups * math.prod(window)))
        self.convolve = convolve
        self.inputs = inputs
        self.options = {"groups": _plain(groups), **options}
        self.weight = Parameter((_plain(outputs), _plain(inputs // groups), *window), initial)
        self.bias = Parameter((_plain(outputs),), initial) if bias else None

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        axes = len(self.weight.shape) - 2
        if x.ndim <= axes or x.shape[-1 - axes] != self.inputs:
            raise wrong(self, f"{x} does not have {self.inputs} channels, followed by {axes} axes of places")
        # All leading axes are one batch axis.
        y = self.convolve(x.reshape(-1, *x.shape[-1 - axes :]), self.weight, **self.options)
        if self.bias is not None:
            y = y + self.bias.reshape(-1, *[1] * axes)
        return y.reshape(*x.shape[: -1 - axes], *y.shape[1:])


class Conv1d(_Convolution):
    """Windows moved along one axis: from shape (..., inputs, length) to (..., outputs, places).

    ``stride``, ``padding`` ("same", "valid", or numbers), ``dilation`` and ``groups`` are those of ``tp.conv1d``.

    Parameters: weight (outputs, inputs / groups, window), and bias (outputs,) unless ``bias=False``; at first uniform
    within ``1 / sqrt(inputs / groups * window)``.
    """

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
        options = {"stride": _plain(stride), "padding": padding, "dilation": _plain(dilation)}
        super().__init__(tp.conv1d, inputs, outputs, (_plain(window),), bias, groups, **options)


class Conv2d(_Convolution):
    """Windows moved along two axes: from shape (..., inputs, height, width) to (..., outputs, rows, columns).

    ``window``, ``stride`` and ``dilation`` are one number, or one per axis; ``padding`` is "same", "valid", a number,
    or one number or (before, after) per axis.

    Parameters: weight (outputs, inputs / groups, *window), and bias (outputs,) unless ``bias=False``; at first uniform
    within ``1 / sqrt(inputs / groups * the window's area)``.
    """

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
        options = {"stride": _both(stride), "padding": padding, "dilation": _both(dilation)}
        super().__init__(tp.conv2d, inputs, outputs, _both(window), bias, groups, **options)


def _both(sizes: int | Sequence[int]) -> tuple[int, ...]:
    """One size per axis, from one for both or two."""
    return tuple(map(_plain, sizes)) if isinstance(sizes, Sequence | np.ndarray) else (_plain(sizes),) * 2


def _plain(size: Any) -> Any:
    """Python's own integer for one of NumPy's; whatever else is no size, ``tp.conv1d`` and ``tp.conv2d`` say."""
    return int(size) if isinstance(size, np.integer) else size
