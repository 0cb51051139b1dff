"""Random programs for hypothesis: ``@given(programs())``.

The only module here that imports hypothesis, which the others must not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from tempo.testing.choices import Choices
from tempo.testing.programs import generate
from tempo.testing.recipe import Recipe

V = TypeVar("V")


class DrawnChoices:
    """Decisions that hypothesis makes, and makes simpler when something fails."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: Sequence[V]) -> V:
        return options[self._draw(st.integers(0, len(options) - 1))]

    def boolean(self, probability: float = 0.5) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 * (1 - probability)


@st.composite
def choices(draw: st.DrawFn) -> Choices:
    """A source of decisions, for checks that make some of their own."""
    return DrawnChoices(draw)


@st.composite
def programs(draw: st.DrawFn) -> Recipe:
    """Recipes of well-formed programs."""
    return generate(DrawnChoices(draw))
