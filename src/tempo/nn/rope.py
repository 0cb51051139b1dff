"""Rotary position embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import tempo as tp
from tempo.nn.mistakes import expect, wrong
from tempo.nn.module import Module

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Llama3Scaling:
    """How Llama 3 stretches RoPE to contexts longer than ``original_max_position_embeddings``.

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


class RoPE(Module):
    """Turns pairs of features by angles proportional to the position: shape (..., size), kept.

    Feature n is paired with feature n + size / 2, as in Llama. ``position`` is a dim, or a tensor whose shape
    broadcasts against x's without the last axis: a scalar, mostly. Angles are float32.
    """

    def __init__(self, size: int, theta: float = 10000.0, scaling: Llama3Scaling | None = None) -> None:
        if size % 2:
            raise wrong(self, f"{size} features do not make pairs")
        frequencies = theta ** -(np.arange(0, size, 2) / size)
        self.frequencies = (frequencies if scaling is None else scaling(frequencies)).astype(np.float32)

    def __call__(self, x: tp.RecurrentTensor, position: Any) -> tp.RecurrentTensor:
        expect(self, x, 2 * len(self.frequencies))
        angle = tp.expand_dims(tp.astype(position, tp.float32), -1) * self.frequencies
        cos, sin = tp.cos(angle).astype(x.dtype), tp.sin(angle).astype(x.dtype)
        first, second = tp.split(x, 2, axis=-1)
        return tp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
