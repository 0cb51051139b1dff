"""Choosing the next token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np

import tempo as tp
from tempo.llm.arguments import as_integer

Tensor = tp.RecurrentTensor


class Options(TypedDict, total=False):
    """The fields of ``Sampling`` as keyword arguments."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the most likely one at temperature 0, a random one of the likely ones otherwise.

    In this order: the logits of tokens that have occurred are divided by ``repetition_penalty`` (multiplied where
    negative); all are divided by ``temperature``; of them stay the ``top_k`` greatest, then the fewest whose
    probabilities add up to ``top_p``, and those at least ``min_p`` times as probable as the most probable one.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        def require(holds: bool, name: str, what: str) -> None:
            if not holds:
                raise tp.errors.ModelError(f"{name} = {getattr(self, name)!r}: {what}")

        for field in fields(self):
            value = getattr(self, field.name)
            optional = field.name != "temperature"
            require((optional and value is None) or hasattr(value, "__float__"), field.name, "expected a number")
        if self.top_k is not None:
            as_integer(self.top_k, "top_k =")
        require(self.temperature >= 0, "temperature", "a temperature is 0 or greater")
        require(self.top_k is None or self.top_k >= 1, "top_k", "at least one token must stay")
        require(self.top_p is None or 0 < self.top_p <= 1, "top_p", "a share of the probability is in (0, 1]")
        require(self.min_p is None or 0 <= self.min_p <= 1, "min_p", "a share of a probability is in [0, 1]")
        penalty = self.repetition_penalty
        require(penalty is None or penalty > 0, "repetition_penalty", "a penalty is greater than 0; 1 is none")

    @property
    def greedy(self) -> bool:
        # XLA takes smaller numbers for 0, which nothing can be divided by.
        return self.temperature < float(np.finfo(np.float32).tiny)

    @property
    def used(self) -> tuple[str, ...]:
        """What takes part: a program is built for that, and given the numbers when it runs."""
        found = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        return tuple(name for name in found if not self.greedy or name == "repetition_penalty")

    def inputs(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.used}
        if "top_k" in found:
            # More than there are tokens is all of them.
            found["top_k"] = min(found["top_k"], np.iinfo(np.int32).max)
        return found


def asked(function: str, options: Mapping[str, Any], others: tuple[str, ...]) -> Sampling:
    """What the keyword arguments of a function ask for; ``others`` are its options beside them."""
    known = [field.name for field in fields(Sampling)]
    for name in options:
        if name not in known:
            raise TypeError(f"{function}() has no option '{name}'; its options are {', '.join([*others, *known])}")
    return Sampling(**options)


def declare(prog: tp.Program, used: tuple[str, ...]) -> dict[str, Tensor]:
    """The numbers that take part in the choice, as inputs."""
    return {name: prog.input(name, dtype="int32" if name == "top_k" else "float32") for name in used}


def penalised(logits: Tensor, tokens: Tensor, counts: Tensor, penalty: Tensor) -> Tensor:
    """Logits (vocabulary,) with a penalty for those of the tokens (n,) that count."""
    occurred = tp.scatter_add(tp.zeros(logits.shape), tokens, counts.astype("float32")) > 0
    return tp.where(occurred, tp.where(logits > 0, logits / penalty, logits * penalty), logits)


def choose(logits: Tensor, numbers: dict[str, Tensor], domain: Sequence[Any]) -> Tensor:
    """One token for logits (vocabulary,), by the numbers given; the most likely one without a temperature.

    ``domain`` says which draws are used, as for all random numbers.
    """
    if "temperature" not in numbers:
        return tp.argmax(logits)
    # With the greatest at 0, a small temperature sends the others to minus infinity, and none to infinity.
    scaled = (logits - tp.max(logits)) / numbers["temperature"]
    return tp.random.categorical(likely(scaled, numbers), domain=domain).astype("int32")


def likely(logits: Tensor, numbers: dict[str, Tensor]) -> Tensor:
    """Logits (vocabulary,) of the tokens among which to choose, minus infinity for the others."""
    lowest = None
    if "top_k" in numbers or "top_p" in numbers:
        ordered = tp.sort(logits, descending=True)
        count = tp.constant(logits.shape[0])
        if "top_k" in numbers:
            count = tp.minimum(numbers["top_k"], count)
            ordered = tp.where(tp.arange(logits.shape[0]) < count, ordered, -math.inf)
        if "top_p" in numbers:
            probable = tp.softmax(ordered)
            before = tp.cumsum(probable) - probable
            count = tp.minimum(count, tp.sum((before < numbers["top_p"]).astype("int32")))
        lowest = tp.take(ordered, tp.maximum(count, 1) - 1)
    if "min_p" in numbers:
        enough = tp.max(logits) + tp.log(numbers["min_p"])
        lowest = enough if lowest is None else tp.maximum(lowest, enough)
    return logits if lowest is None else tp.where(logits >= lowest, logits, -math.inf)
