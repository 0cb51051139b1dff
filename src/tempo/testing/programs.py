"""Random well-formed programs.

``generate(choices)`` draws a recipe; ``random_recipe(seed)`` draws one from a seed, and ``tempo.testing.strategies``
has the hypothesis strategy. Programs are well-formed by construction: every read is checked, point by point, to be in
range and (inside a recurrence) to lie below what is being computed.
"""

from __future__ import annotations

from tempo.testing.choices import Choices, RandomChoices
from tempo.testing.longer import lengthened
from tempo.testing.recipe import Dim, Recipe, without_unused
from tempo.testing.repeats import Repeats
from tempo.testing.stops import with_stop

# How many points a program may have: the oracle visits each.
MOST_POINTS = 12
# How many programs have a dim of many steps, which takes several times as long.
LONGER = 0.03


def random_recipe(seed: int | str, longer: float = LONGER) -> Recipe:
    """The recipe of a seed."""
    return generate(RandomChoices(seed), longer)


def generate(choices: Choices, longer: float = LONGER) -> Recipe:
    """A random recipe, with a dim of many steps about as often as ``longer`` says."""
    smooth = choices.boolean(0.4)
    dims: list[Dim] = []
    # Gradients may have a dim more for every dim.
    left = MOST_POINTS * 2 // 3 if smooth else MOST_POINTS
    for name in "tsb"[: choices.choice((1, 1, 2, 2, 2, 3))]:
        dims.append(Dim(name, choices.integer(1, min(5, left))))
        left //= dims[-1].bound
    stops = choices.boolean(0.2)
    recipe = _Generator(choices, tuple(dims), smooth).recipe(stops)
    if choices.boolean(longer):
        recipe = lengthened(recipe, choices)
    return with_stop(recipe, choices) if stops else recipe


class _Generator(Repeats):
    """Draws whole programs."""

    def recipe(self, stops: bool) -> Recipe:
        for _ in range(self.choices.integer(1, 3)):
            self.draw_input()
        blocks = (
            [self.draw_let, self.draw_recurrent, self.draw_view, self.draw_let, self.draw_sequence]
            + [self.draw_recurrent] * 3
            + [self.draw_mutual, self.draw_mutual, self.draw_state, self.draw_random]
            + [self.draw_growing, self.draw_training, self.draw_host, self.draw_repeated, self.draw_repeated]
            + [self.draw_sequence, self.draw_growing, self.draw_table]
        )
        if stops and self.choices.boolean():
            # What stops is often a training, as soon as it is good enough.
            self.draw_training()
        for _ in range(self.choices.integer(1, 3)):
            self.choices.choice(blocks)()
        count = 1 + self.choices.boolean(0.4) if self.smooth else int(self.choices.boolean(0.25))
        count += self.smooth and self.choices.boolean(0.15)
        for _ in range(count):
            self.draw_gradient()
            if self.smooth and self.choices.boolean(0.25):
                self.draw_let()
        self.draw_outputs()
        return without_unused(Recipe(tuple(self.dims.values()), tuple(self.statements), self.smooth))
