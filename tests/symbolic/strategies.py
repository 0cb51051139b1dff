"""Random expressions, conditions and indices, each beside the plain Python function it means."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from tempo.symbolic import (
    FALSE,
    TRUE,
    Condition,
    Dim,
    Expr,
    Slice,
    Symbol,
    constant,
    equal,
    maximum,
    minimum,
)

Point = Mapping[Symbol, int]
V = TypeVar("V")

T, U = 4, 3
t, u = Dim("t", T), Dim("u", U)
DIMS = (t, u)


def points(dims: Sequence[Dim] = DIMS) -> Iterator[Point]:
    """Every point of the box of ``dims``, whose bounds are numbers."""
    for values in itertools.product(*(range(d.bound.constant) for d in dims)):
        yield dict(zip(dims, values, strict=True))


# Wider than the box, so that negative values are met too.
wide_points = st.fixed_dictionaries({t: st.integers(-9, 9), u: st.integers(-9, 9)})


@dataclass(frozen=True)
class Meant:
    """An expression or condition, and what it should evaluate to at a point."""

    built: Expr
    meaning: Callable[[Point], int]

    def __repr__(self) -> str:
        return f"Meant({self.built})"


@dataclass(frozen=True)
class MeantCondition:
    built: Condition
    meaning: Callable[[Point], bool]

    def __repr__(self) -> str:
        return f"MeantCondition({self.built})"


def symbol(s: Symbol) -> Meant:
    return Meant(s, lambda p: p[s])


def number(n: int) -> Meant:
    return Meant(constant(n), lambda p: n)


small = st.integers(-4, 4)
leaves = st.sampled_from([symbol(s) for s in DIMS]) | small.map(number)


def _combined(children: st.SearchStrategy[Meant], *, product: bool) -> st.SearchStrategy[Meant]:
    def add(a: Meant, b: Meant) -> Meant:
        return Meant(a.built + b.built, lambda p: a.meaning(p) + b.meaning(p))

    def subtract(a: Meant, b: Meant) -> Meant:
        return Meant(a.built - b.built, lambda p: a.meaning(p) - b.meaning(p))

    def scale(a: Meant, c: int) -> Meant:
        return Meant(a.built * c, lambda p: a.meaning(p) * c)

    def divide(a: Meant, n: int) -> Meant:
        return Meant(a.built // n, lambda p: a.meaning(p) // n)

    def remainder(a: Meant, n: int) -> Meant:
        return Meant(a.built % n, lambda p: a.meaning(p) % n)

    def least(parts: list[Meant]) -> Meant:
        return Meant(minimum(*(a.built for a in parts)), lambda p: min(a.meaning(p) for a in parts))

    def greatest(parts: list[Meant]) -> Meant:
        return Meant(maximum(*(a.built for a in parts)), lambda p: max(a.meaning(p) for a in parts))

    def multiply(a: Meant, b: Meant) -> Meant:
        return Meant(a.built * b.built, lambda p: a.meaning(p) * b.meaning(p))

    several = st.lists(children, min_size=1, max_size=3)
    divisors = st.integers(1, 6)
    choices = [
        st.builds(add, children, children),
        st.builds(subtract, children, children),
        st.builds(scale, children, small),
        st.builds(divide, children, divisors),
        st.builds(remainder, children, divisors),
        several.map(least),
        several.map(greatest),
    ]
    if product:
        choices.append(st.builds(multiply, children, children))
    return st.one_of(choices)


def expressions(*, product: bool = False, size: int = 6) -> st.SearchStrategy[Meant]:
    return st.recursive(leaves, lambda c: _combined(c, product=product), max_leaves=size)


quasi_affine = expressions()
any_expression = expressions(product=True)


@st.composite
def affine(draw: st.DrawFn) -> Meant:
    a, b, c = draw(small), draw(small), draw(st.integers(-20, 20))
    return Meant(a * t + b * u + c, lambda p: a * p[t] + b * p[u] + c)


def _comparison(a: Meant, b: Meant, kind: str) -> MeantCondition:
    x, y = a.built, b.built
    match kind:
        case "<":
            return MeantCondition(x < y, lambda p: a.meaning(p) < b.meaning(p))
        case "<=":
            return MeantCondition(x <= y, lambda p: a.meaning(p) <= b.meaning(p))
        case ">":
            return MeantCondition(x > y, lambda p: a.meaning(p) > b.meaning(p))
        case ">=":
            return MeantCondition(x >= y, lambda p: a.meaning(p) >= b.meaning(p))
    return MeantCondition(equal(x, y), lambda p: a.meaning(p) == b.meaning(p))


def _connected(children: st.SearchStrategy[MeantCondition]) -> st.SearchStrategy[MeantCondition]:
    def both(a: MeantCondition, b: MeantCondition) -> MeantCondition:
        return MeantCondition(a.built & b.built, lambda p: a.meaning(p) and b.meaning(p))

    def either(a: MeantCondition, b: MeantCondition) -> MeantCondition:
        return MeantCondition(a.built | b.built, lambda p: a.meaning(p) or b.meaning(p))

    def negation(a: MeantCondition) -> MeantCondition:
        return MeantCondition(~a.built, lambda p: not a.meaning(p))

    return st.one_of(
        st.builds(both, children, children),
        st.builds(either, children, children),
        children.map(negation),
    )


def conditions(operands: st.SearchStrategy[Meant]) -> st.SearchStrategy[MeantCondition]:
    comparisons = st.builds(_comparison, operands, operands, st.sampled_from(["<", "<=", ">", ">=", "=="]))
    constants = st.sampled_from([MeantCondition(TRUE, lambda p: True), MeantCondition(FALSE, lambda p: False)])
    return st.recursive(st.one_of(comparisons, comparisons, comparisons, constants), _connected, max_leaves=4)


slices = st.builds(lambda a, b: Slice(a.built, b.built), quasi_affine, quasi_affine)
_items = quasi_affine.map(lambda m: m.built) | slices
non_empty_indices = st.lists(_items, min_size=1, max_size=2).map(tuple)
indices = st.just(()) | non_empty_indices
