"""Learning rates that change: functions of how many steps have been made.

In how many steps they do is a number, an expression of bounds (``optim.cosine(1e-3, 0.0, steps=I)``) or a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tempo as tp

Tensor = tp.RecurrentTensor
Schedule = Callable[[Tensor], Tensor]
Steps = Any
"""A number, an index expression or a tensor."""


def linear(first: float, last: float, steps: Steps) -> Schedule:
    """From ``first`` to ``last`` in so many steps, and ``last`` from there on."""
    return lambda count: first + (last - first) * _part(count, steps)


def cosine(first: float, last: float, steps: Steps) -> Schedule:
    """From ``first`` to ``last`` in so many steps along half a wave, and ``last`` from there on."""
    return lambda count: last + (first - last) * 0.5 * (1 + tp.cos(math.pi * _part(count, steps)))


def warmup(steps: Steps, then: float | Schedule) -> Schedule:
    """From 0 up in so many steps, to what ``then`` is: a learning rate, or a schedule that begins there. With 0 steps,
    it is ``then`` from the start."""

    def rate(count: Tensor) -> Tensor:
        later = then(tp.maximum(count - steps, 0)) if callable(then) else then
        return _part(count, steps) * later

    return rate


def _part(count: Tensor, steps: Steps) -> Tensor:
    """How much of the steps has been made: of no steps, all from the start. As precise as the count is: optimisers give
    one of 64 bits for parameters in double precision."""
    made = count.astype(tp.float64 if count.dtype in (tp.int64, tp.float64) else tp.float32)
    # Where less than one step is to be made, none has been: what it is divided by does not matter then, but is not 0.
    part: Tensor = tp.where(made < steps, made / tp.maximum(steps, 1), 1.0)
    return part
