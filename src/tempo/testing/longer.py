"""Programs with a dim of many steps.

Programs are drawn for up to five steps, where loops are unrolled and everything fits anywhere: schedules that are
refused, passes that do not end and stores that are too small do not show. Some are then given more steps, wherever they
are well-formed for these, too.
"""

from __future__ import annotations

import math

from tempo.testing.choices import Choices
from tempo.testing.recipe import Recipe
from tempo.testing.stops import is_well_formed, with_bound
from tempo.testing.syntax import Gradients, Host, expressions, parts

# From how many steps on a dim is long, and how many it has at most; how many points a program may have.
LONG = 12
MOST_STEPS = 40
MOST_POINTS = 80


def is_long(recipe: Recipe) -> bool:
    """Whether a dim of a recipe has many steps."""
    return any(d.bound >= LONG for d in recipe.dims)


def lengthened(recipe: Recipe, choices: Choices) -> Recipe:
    """The recipe with many steps of one of its dims, where it may have as many."""
    # Gradients may have a dim more for every dim, and those of gradients two.
    dims = 1 + sum(isinstance(s, Gradients) for s in recipe.statements)
    dim = choices.choice(recipe.dims)
    if dim.bound == 1 and any(isinstance(p, Host) for s in recipe.statements for e in expressions(s) for p in parts(e)):
        return recipe  # host calls go forwards, which a recurrence of one step need not
    others = math.prod(d.bound for d in recipe.dims if d is not dim)
    most = min(MOST_STEPS, MOST_POINTS // others) // dims
    longer = with_bound(recipe, dim.name, choices.integer(LONG, max(LONG, most)))
    return longer if is_well_formed(longer) else recipe
