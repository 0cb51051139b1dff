"""Where the generator's decisions come from.

The generator is written once, against ``Choices``; a seeded generator and hypothesis both drive it. The first
choice, the least integer and False are the simplest: shrinking goes there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

V = TypeVar("V")


class Choices(Protocol):
    """A source of decisions."""

    def integer(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""

    def choice(self, options: Sequence[V]) -> V:
        """One of the options, of which there is at least one."""

    def boolean(self, probability: float = 0.5) -> bool:
        """True with about this probability."""


class RandomChoices:
    """Decisions from a seeded generator."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def choice(self, options: Sequence[V]) -> V:
        return options[self._random.randrange(len(options))]

    def boolean(self, probability: float = 0.5) -> bool:
        return self._random.random() >= 1 - probability
