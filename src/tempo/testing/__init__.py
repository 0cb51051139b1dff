"""Random programs, and what is checked of them.

    recipe = random_recipe(seed=3)          # a program as data: print(recipe) is its source
    program, bounds, inputs = build(recipe)
    program.evaluate(bounds, **inputs)
    check(recipe, RandomChoices(3))         # everything that is known to hold of every program

``python -m tempo.testing.fuzz`` does this by the thousand; ``tempo.testing.strategies.programs()`` is a strategy for
hypothesis. The generator (``programs``, on top of ``recurrences``, ``statements``, ``sequences``, ``expressions``,
``reading``) makes recipes (``recipe``, ``functions``, ``hosts``, ``terms``); ``meaning`` computes what a recipe says
without Tempo, ``rewrites`` and ``broken`` make other recipes of it, ``differences`` checks gradients, ``compiled``
checks the backends, ``checks`` does it all.
"""

from tempo.testing.checks import CheckError, check
from tempo.testing.choices import Choices, RandomChoices
from tempo.testing.hosts import host_function
from tempo.testing.programs import generate, random_recipe
from tempo.testing.recipe import Built, Recipe, build, data, run

__all__ = [
    "Built",
    "CheckError",
    "Choices",
    "RandomChoices",
    "Recipe",
    "build",
    "check",
    "data",
    "generate",
    "host_function",
    "random_recipe",
    "run",
]
