"""Random well-formed programs.

``generate(choices)`` draws a recipe; ``random_recipe(seed)`` draws one from a seed, and ``tempo.testing.strategies``
has the hypothesis strategy. Programs are well-formed by construction: every read is checked, point by point, to be in
range and (inside a recurrence) to lie below what is being computed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tempo.testing.choices import Choices, RandomChoices
from tempo.testing.expressions import FLOATS, LARGEST, is_float, is_symbolic
from tempo.testing.reading import Height, Place, Scope, Tensor, Value
from tempo.testing.recipe import (
    Apply,
    Case,
    Dim,
    Draw,
    Expression,
    Gradients,
    Input,
    Let,
    Literal,
    Names,
    Next,
    Output,
    Read,
    Recipe,
    Recurrent,
    Shape,
    State,
    Statement,
    Type,
    symbols,
    used,
    without_unused,
)
from tempo.testing.sequences import Sequences
from tempo.testing.terms import Comparison, Condition, Number, Point, Span, Symbol, Term

SHAPES: tuple[Shape, ...] = ((), (), (2,), (3, 2))
Key = Condition | tuple[Term, ...]

# How many points a program may have: the oracle visits each.
MOST_POINTS = 20
# The values of a state that is trained go up in small steps from at most 2.
TRAINED = 3.0


def random_recipe(seed: int | str) -> Recipe:
    """The recipe of a seed."""
    return generate(RandomChoices(seed))


def generate(choices: Choices) -> Recipe:
    """A random recipe."""
    smooth = choices.boolean(0.4)
    dims: list[Dim] = []
    left = MOST_POINTS
    for name in "tsb"[: choices.choice((1, 1, 2, 2, 2, 3))]:
        dims.append(Dim(name, choices.integer(1, min(5, left))))
        left //= dims[-1].bound
    return _Generator(choices, tuple(dims), smooth).recipe()


class _Generator(Sequences):
    """Draws the statements of a program, one block after the other."""

    def __init__(self, choices: Choices, dims: tuple[Dim, ...], smooth: bool) -> None:
        super().__init__(choices, dims, smooth)
        self.order = dims
        self.statements: list[Statement] = []
        self.tags: set[str] = set()
        self.numbers = itertools.count()

    def recipe(self) -> Recipe:
        for _ in range(self.choices.integer(1, 3)):
            self.input()
        blocks = ["let", "recurrent", "recurrent", "let", "recurrent", "mutual", "state", "sequence"]
        blocks += ["random", "growing", "training"]
        for _ in range(self.choices.integer(1, 3)):
            getattr(self, self.choices.choice(blocks))()
        for _ in range(self.choices.integer(1, 2) if self.smooth else self.choices.boolean(0.25)):
            self.gradient()
            if self.smooth and self.choices.boolean(0.25):
                self.let()
        self.outputs()
        return without_unused(Recipe(self.order, tuple(self.statements), self.smooth, frozenset(self.tags)))

    # -- small things -------------------------------------------------------------------------------------

    def name(self, letter: str) -> str:
        return f"{letter}{next(self.numbers)}"

    def domain(self, least: int = 0) -> Names:
        """Some dims, in order; all of them more often than not."""
        if self.choices.boolean(0.6):
            return tuple(d.name for d in self.order)
        chosen = [d.name for d in self.order if self.choices.boolean()]
        return tuple(chosen) if len(chosen) >= least else (self.order[0].name,)

    def dtype(self) -> str:
        if self.choices.boolean(0.2):
            return self.choices.choice(("int32", "bool"))
        return "float64" if self.smooth else self.choices.choice(("float32", "float32", *FLOATS))

    def places(self, dims: Names) -> list[dict[str, int]]:
        """Every point over some dims, with the bounds."""
        limits = {d.limit: d.bound for d in self.order}
        ranges = (range(self.number(d)) for d in dims)
        return [{**limits, **dict(zip(dims, p, strict=True))} for p in itertools.product(*ranges)]

    def domain_of(self, expression: Expression) -> Names:
        found = symbols(expression)
        return tuple(d.name for d in self.order if d.name in found)

    def add(self, statement: Statement, *tensors: Tensor) -> None:
        self.statements.append(statement)
        self.tensors.extend(tensors)

    def box(self, domain: Names) -> frozenset[Place]:
        return frozenset(itertools.product(*(range(self.number(d)) for d in domain)))

    # -- blocks -------------------------------------------------------------------------------------------

    def input(self) -> None:
        type = Type(self.domain(), self.choices.choice(SHAPES), self.dtype())
        name = self.name("x")
        bound = {"bool": 1.0, "int32": 3.0}.get(type.dtype, 1.0)
        tensor = Tensor(name, type, self.box(type.domain), bound, "input")
        self.add(Input(name, type, self.choices.integer(0, 99)), tensor)

    def let(self, dims: Names | None = None) -> None:
        """``a = ...``; possibly undefined at some points, and then only read elsewhere."""
        dims = self.domain() if dims is None else dims
        scope = Scope(dims, self.places(dims), partial=self.choices.boolean(0.4))
        self.bind(scope, self.value(scope, self.choices.choice(SHAPES), self.dtype(), self.choices.integer(1, 3)))

    def bind(self, scope: Scope, value: Value, kind: str = "let") -> Tensor:
        """Name a value."""
        domain = self.domain_of(value.expression)
        heights: dict[Place, Height] = {}
        for place, height in zip(scope.places, scope.heights, strict=True):
            point = tuple(place[d] for d in domain)
            heights[point] = max(heights.get(point, height), height)
        name = self.name("a" if kind == "let" else kind[0])
        if isinstance(value.expression, Read):
            kind = "view"
        type = Type(domain, value.shape, value.dtype)
        known = heights if any(heights.values()) else None
        tensor = Tensor(name, type, frozenset(heights), value.bound, kind, known)
        self.add(Let(name, type, value.expression), tensor)
        return tensor

    def sequence_let(self, scope: Scope) -> Value | None:
        x = self.sequence(scope, self._float() if self.choices.boolean(0.8) else "int32")
        return None if x is None else self.worked(scope, x)

    def sequence(self, *arguments: object) -> Value | None:  # type: ignore[override]
        if arguments:
            return super().sequence(*arguments)  # type: ignore[arg-type]
        scope = Scope(dims := self.domain(), self.places(dims), partial=self.choices.boolean(0.3))
        x = self.sequence_let(scope)
        if x is not None:
            self.bind(scope, x)
        return None
