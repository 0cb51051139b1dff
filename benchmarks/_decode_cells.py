"""What ``decode.py`` measures: the cells of its grid, their models, and weights that every system makes for itself.

Systems run in processes of their own, so that each has the whole memory of the device. Weights are therefore a formula
in integers, which gives the same numbers in JAX and in PyTorch, on the device, in no time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tempo as tp
from tempo.llm import Config
from tempo.llm.parameters import shapes

PROMPT = 16
"""The tokens that are given: as many as ``tempo.llm`` compiles short prompts for."""

_LLAMA = Config(
    architecture="llama",
    layers=28,
    width=3072,
    heads=24,
    kv_heads=8,
    head_size=128,
    hidden=8192,
    vocabulary=128256,
    context=131072,
    windows=(None,) * 28,
    norm="rms",
    norm_epsilon=1e-5,
    activation="silu",
    gated=True,
    rope_theta=500000.0,
    rope_scaling=None,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    tied=True,
    dtype=tp.bfloat16,
    beginning_of_text=None,
    end_of_text=(),
)
_GPT2 = replace(
    _LLAMA,
    architecture="gpt2",
    layers=12,
    width=768,
    heads=12,
    kv_heads=12,
    head_size=64,
    hidden=3072,
    vocabulary=50257,
    windows=(None,) * 12,
    norm="layer",
    activation="gelu_tanh",
    gated=False,
    rope_theta=None,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    dtype=tp.float32,
)
_MODELS = {"llama": _LLAMA, "gpt2": _GPT2}
_WINDOWS = {"llama": 1024, "gpt2": 512}
# Tiny ones, to see that everything runs.
_QUICK = {
    "llama": {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "head_size": 16, "hidden": 128, "vocabulary": 512},
    "gpt2": {"layers": 2, "width": 48, "heads": 3, "kv_heads": 3, "head_size": 16, "hidden": 96, "vocabulary": 512},
}
_QUICK_WINDOW = 32


@dataclass(frozen=True)
class Cell:
    """A model that generates until so many positions of each of its sequences are filled."""

    model: str
    batch: int
    context: int
    windowed: bool
    quick: bool = False

    @property
    def name(self) -> str:
        context = f"{self.context // 1024}k" if self.context % 1024 == 0 else str(self.context)
        return f"{self.model}/{self.batch}/{context}/{'window' if self.windowed else 'causal'}"

    @property
    def window(self) -> int | None:
        return (_QUICK_WINDOW if self.quick else _WINDOWS[self.model]) if self.windowed else None

    @property
    def config(self) -> Config:
        config = _MODELS[self.model]
        if self.quick:
            config = replace(config, **_QUICK[self.model])
        positions = config.context if config.rope_theta is not None else self.context
        return replace(config, context=positions, windows=(self.window,) * config.layers)

    @property
    def new(self) -> int:
        """The tokens that are generated for each sequence."""
        return self.context - PROMPT

    @property
    def slots(self) -> int:
        """The positions for which there must be keys and values at the end."""
        return min(self.context, self.window or self.context)

    @property
    def prompt(self) -> np.ndarray[Any, Any]:
        random = np.random.default_rng(0)
        return random.integers(0, self.config.vocabulary, (self.batch, PROMPT), np.int32)

    @property
    def weight_bytes(self) -> int:
        return sum(math.prod(shape) for shape in shapes(self.config).values()) * self.config.dtype.itemsize

    def cache_bytes(self, positions: float) -> float:
        """The keys and values of so many positions."""
        config = self.config
        per_layer = 2 * config.kv_heads * config.head_size * config.dtype.itemsize
        return self.batch * positions * config.layers * per_layer

    @property
    def bytes_needed(self) -> int:
        """Weights, and the cache at its largest."""
        return self.weight_bytes + int(self.cache_bytes(self.slots))

    def floor_ms(self, bandwidth: float) -> float:
        """What a step must read, weights and live cache, at so many bytes a second: the mean of all steps."""
        live = np.minimum(np.arange(PROMPT, self.context) + 1, self.slots).mean()
        return 1e3 * (self.weight_bytes + self.cache_bytes(float(live))) / bandwidth


@dataclass(frozen=True)
class Piece:
    """A place in the context where steps are timed: from where on, and at most how many."""

    first: int
    steps: int


def grid(quick: bool) -> list[Cell]:
    """All cells, without the one that no machine here has the memory for."""
    if quick:
        return [Cell(model, 2, 64, windowed, True) for model in _MODELS for windowed in (False, True)]
    llama = [
        Cell("llama", batch, context * 1024, windowed)
        for batch in (1, 4, 16, 64)
        for context in (2, 4, 16, 64)
        for windowed in (False, True)
        if windowed or batch * context < 64 * 64
    ]
    contexts = (512, 1024, 2048, 4096, 8192, 16384)
    return llama + [Cell("gpt2", 64, context, windowed) for context in contexts for windowed in (False, True)]


# -- weights -----------------------------------------------------------------------------------------------------


def is_ones(name: str) -> bool:
    """Whether a parameter scales what a norm has made."""
    return name.endswith("norm.weight")


def scale(shape: tuple[int, ...]) -> float:
    """Products with uniform numbers within this keep the size of what they multiply."""
    return math.sqrt(3 / shape[-1])


def offset(number: int) -> int:
    """Where the numbers of a parameter begin."""
    return (number + 1) * 0x85EBCA6B % 2**32


def mixed(index: Any, word: Any) -> Any:
    """24 bits out of integers, well mixed (MurmurHash3's last steps). ``word`` is for constants, and keeps 32 bits."""
    x = word(index * word(0x9E3779B1))
    x = word((x ^ (x >> 16)) * word(0x85EBCA6B))
    x = word((x ^ (x >> 13)) * word(0xC2B2AE35))
    return (x ^ (x >> 16)) >> 8


def uniform(bits: Any, largest: float) -> Any:
    """From 24 bits, as float32, to numbers within ``largest``: exact up to the last product."""
    return (bits * 2.0**-23 - 1.0) * largest
