"""Dropout."""

from __future__ import annotations

import numpy as np

import tempo as tp
from tempo.nn.mistakes import wrong
from tempo.nn.module import Module


class Dropout(Module):
    """In training every element is 0 with probability ``rate``, else divided by ``1 - rate``: any shape, kept.

    Draws differ at every point that x varies over.
    """

    def __init__(self, rate: float = 0.5) -> None:
        if not isinstance(rate, int | float | np.number) or not 0 <= rate <= 1:
            raise wrong(self, f"the rate {rate!r} is not in [0, 1]")
        self.rate = rate

    def __call__(self, x: tp.RecurrentTensor, training: bool) -> tp.RecurrentTensor:
        if self.rate == 0 or not training:
            return x
        kept = tp.random.bernoulli(1 - self.rate, x.shape, x.domain)
        # Where nothing is kept, nothing is divided: x / 0 would have a gradient that is no number.
        return tp.where(kept, x / (1 - self.rate if self.rate < 1 else 1), 0)
