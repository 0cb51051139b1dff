"""Learning rates that change: functions of how many steps have been made."""

from __future__ import annotations

import math
from collections.abc import Callable

import tempo as tp

Tensor = tp.RecurrentTensor
Schedule = Callable[[Tensor], Tensor]


def linear(first: float, last: float, steps: float) -> Schedule:
    """From ``first`` to ``last`` in so many steps, and ``last`` from there on."""
    return lambda count: first + (last - first) * _part(count, steps)


def cosine(first: float, last: float, steps: float) -> Schedule:
    """From ``first`` to ``last`` in so many steps along half a wave, and ``last`` from there on."""
    return lambda count: last + (first - last) * 0.5 * (1 + tp.cos(math.pi * _part(count, steps)))


def warmup(steps: int, then: float | Schedule) -> Schedule:
    """From 0 up in so many steps, to what ``then`` is: a learning rate, or a schedule that begins there. With 0 steps,
    it is ``then`` from the start."""

    def rate(count: Tensor) -> Tensor:
        later = then(tp.maximum(count - steps, 0)) if callable(then) else then
        return _part(count, steps) * later

    return rate


def _part(count: Tensor, steps: float) -> Tensor:
    """How much of the steps has been made: of no steps, all from the start."""
    made = count.astype(tp.float32)
    part: Tensor = tp.minimum(made / steps, 1.0) if steps > 0 else tp.ones_like(made)
    return part
