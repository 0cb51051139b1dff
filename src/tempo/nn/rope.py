"""Rotary position embeddings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

import tempo as tp
from tempo.nn.mistakes import at_least, expect, wrong
from tempo.nn.module import Module
from tempo.nn.precision import floating

Array = np.ndarray[Any, np.dtype[Any]]


class Scaling(ABC):
    """How RoPE is stretched to contexts longer than the one a model was trained with: other frequencies, and a factor
    for the turned features."""

    @property
    def amplitude(self) -> float:
        """The factor for the turned features."""
        return 1.0

    @abstractmethod
    def __call__(self, frequencies: Array) -> Array:
        """What becomes of frequencies (size / 2,), from the highest to the lowest."""


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """All waves become ``factor`` times longer."""

    factor: float

    def __call__(self, frequencies: Array) -> Array:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """How Llama 3 does it, from a context of ``original_max_position_embeddings``.

    Waves that fit into the original context less than ``low_freq_factor`` times become ``factor`` times longer, those
    that fit more than ``high_freq_factor`` times stay, and those between are interpolated.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __call__(self, frequencies: Array) -> Array:
        fits = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = np.clip((fits - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """YaRN (Peng et al., 2023), from a context of ``original_max_position_embeddings``.

    Waves that fit into the original context less than ``beta_slow`` times become ``factor`` times longer, those that
    fit more than ``beta_fast`` times stay, and those between are interpolated by their number (from a whole one to a
    whole one with ``truncate``). Features are multiplied by ``attention_factor``, by default ``0.1 * log(factor) + 1``.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    @property
    def amplitude(self) -> float:
        return 0.1 * math.log(max(self.factor, 1)) + 1 if self.attention_factor is None else self.attention_factor

    def __call__(self, frequencies: Array) -> Array:
        numbers = np.arange(len(frequencies))
        first, last = self._number(frequencies, self.beta_fast), self._number(frequencies, self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(frequencies) - 1)
        longer: Array = np.clip((numbers - first) / (last - first or 0.001), 0, 1)
        return frequencies * (1 - longer + longer / self.factor)

    def _number(self, frequencies: Array, fits: float) -> float:
        """Which wave, counted with fractions, would fit into the original context so many times."""
        logarithms = np.log(frequencies)
        # From wave to wave; there may be only one.
        step = logarithms[0] - logarithms[1] if len(logarithms) > 1 else math.inf
        return float((logarithms[0] - math.log(2 * math.pi * fits / self.original_max_position_embeddings)) / step)


class RoPE(Module):
    """Turns pairs of features by angles proportional to the position: shape (..., size), kept.

    Feature n is paired with feature n + size / 2, as in Llama. ``position`` is a dim, or a tensor whose shape
    broadcasts against x's without the last axis: a scalar, mostly. Angles are float32.
    """

    def __init__(self, size: int, theta: float = 10000.0, scaling: Scaling | None = None) -> None:
        at_least(2, self, size, "features")
        if size % 2:
            raise wrong(self, f"{size} features do not make pairs")
        if not theta > 1:
            raise wrong(self, f"theta = {theta}: no wave is longer than another", "expected a number above 1")
        if not isinstance(scaling, Scaling | None):
            raise wrong(self, f"scaling = {scaling!r}", "expected one such as nn.LinearScaling(factor)")
        frequencies = theta ** -(np.arange(0, size, 2) / size)
        with np.errstate(divide="ignore"):
            self.frequencies = (frequencies if scaling is None else scaling(frequencies)).astype(np.float32)
        if not np.all(np.isfinite(self.frequencies)):
            raise wrong(self, f"scaling = {scaling!r}: frequencies are no longer numbers")
        self.amplitude = 1.0 if scaling is None else scaling.amplitude

    def __call__(self, x: tp.RecurrentTensor, position: Any) -> tp.RecurrentTensor:
        x = floating(expect(self, x, 2 * len(self.frequencies)))
        angle = tp.expand_dims(tp.astype(position, tp.float32), -1) * self.frequencies
        cos, sin = ((f(angle) * self.amplitude).astype(x.dtype) for f in (tp.cos, tp.sin))
        first, second = tp.split(x, 2, axis=-1)
        return tp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
