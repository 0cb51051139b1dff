"""The least and the greatest value of an index expression when its symbols run over ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tempo.errors import IndexExpressionError
from tempo.symbolic.condition import And, AtLeastZero, Condition, EqualsZero, Not, Or
from tempo.symbolic.expr import (
    Bound,
    Expr,
    ExprLike,
    FloorDiv,
    Max,
    Min,
    Mod,
    Product,
    Symbol,
    as_expr,
    constant,
    floor_div,
    maximum,
    minimum,
    modulo,
)

Ranges = Mapping[Any, tuple[ExprLike, ExprLike]]


def extremes(expr: ExprLike, ranges: Ranges) -> tuple[Expr, Expr]:
    """A lower and an upper bound of ``expr``, both inclusive and free of the symbols in ``ranges``.

    ``ranges`` gives a symbol its least and greatest value, neither of which mentions a symbol in
    ``ranges``; no range is empty.  The bounds are never too tight.  They are attained when each
    symbol occurs once or always with the same sign (so for every affine expression), but not always
    in ``t - t//2``, where the two occurrences of ``t`` are taken to be independent.
    """
    expr = as_expr(expr)
    for atom, c in expr.terms:
        rest = expr - c * atom
        if rest.symbols().isdisjoint(atom.symbols() & frozenset(ranges)):
            continue
        # The same symbol inside an atom and beside it is one symbol: i - max(i - 1, 0) is min(1, i), and
        # i - 3*(i//3) is i%3.
        if isinstance(atom, Min | Max) and c in (1, -1):
            parts = [extremes(rest + c * a, ranges) for a in atom.arguments]
            combine = minimum if isinstance(atom, Min) == (c == 1) else maximum
            return combine(*(low for low, _ in parts)), combine(*(high for _, high in parts))
        if isinstance(atom, FloorDiv) and c % atom.divisor == 0:
            times = c // atom.divisor
            return extremes(rest + times * atom.dividend - times * modulo(atom.dividend, atom.divisor), ranges)
    low = high = constant(expr.constant)
    for atom, c in expr.terms:
        atom_low, atom_high = _atom_extremes(atom, ranges)
        if c < 0:
            atom_low, atom_high = atom_high, atom_low
        low, high = low + c * atom_low, high + c * atom_high
    return low, high


def interval(
    expr: ExprLike, numeric_ranges: Mapping[Any, tuple[int, int]], numbers: Mapping[Any, int] = MappingProxyType({})
) -> tuple[int, int]:
    """``extremes`` as numbers; every symbol of ``expr`` must have a number or a range."""
    expr = as_expr(expr)
    low = high = expr.constant
    for atom, c in expr.terms:
        # Nearly all index expressions are affine: no expressions are needed to find their ends.
        if atom in numbers:
            first = last = numbers[atom]
        elif atom in numeric_ranges:
            first, last = numeric_ranges[atom]
        else:
            return _interval(expr.substitute(numbers), numeric_ranges)
        low, high = (low + c * first, high + c * last) if c > 0 else (low + c * last, high + c * first)
    return low, high


def _interval(expr: Expr, numeric_ranges: Mapping[Any, tuple[int, int]]) -> tuple[int, int]:
    missing = sorted(s.name for s in expr.symbols() if s not in numeric_ranges)
    if missing:
        raise ValueError(f"no range is given for {', '.join(missing)} in {expr}")
    low, high = extremes(expr, numeric_ranges)
    return low.constant, high.constant


def extent(size: int | Expr, ranges: Mapping[Any, tuple[int, int]], numbers: Mapping[Any, int]) -> int:
    """The most that a size can be. Beyond the steps that a node has, where blocks may reach, that could be negative."""
    if isinstance(size, int):
        return size
    return max(interval(size, ranges, numbers)[1], 0)


def decide(condition: Condition, ranges: Mapping[Any, tuple[int, int]], numbers: Mapping[Any, int]) -> bool | None:
    """Whether a condition holds at all points of a box, at none, or (None) that is not seen."""
    match condition:
        case And() | Or():
            decisive = isinstance(condition, Or)
            known = True
            for part in condition.parts:
                truth = decide(part, ranges, numbers)
                if truth is decisive:
                    return decisive
                known = known and truth is not None
            return not decisive if known else None
        case Not():
            truth = decide(condition.condition, ranges, numbers)
            return None if truth is None else not truth
        case AtLeastZero() | EqualsZero():
            low, high = interval(condition.expr, ranges, numbers)
            if isinstance(condition, AtLeastZero):
                return True if low >= 0 else False if high < 0 else None
            return True if low == high == 0 else False if low > 0 or high < 0 else None
    return bool(condition)


def at_least(expr: ExprLike, other: ExprLike) -> bool:
    """Whether ``expr >= other`` can be seen to hold whatever the bounds are, each being at least 1."""
    return _non_negative(as_expr(expr) - other)


def _atom_extremes(atom: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    if atom.symbols().isdisjoint(ranges):
        return atom, atom
    match atom:
        case Symbol():
            low, high = ranges[atom]
            return as_expr(low), as_expr(high)
        case FloorDiv():
            low, high = extremes(atom.dividend, ranges)
            return floor_div(low, atom.divisor), floor_div(high, atom.divisor)
        case Mod():
            low, high = extremes(atom.dividend, ranges)
            if floor_div(low, atom.divisor) == floor_div(high, atom.divisor):  # in one period
                return modulo(low, atom.divisor), modulo(high, atom.divisor)
            return constant(0), constant(atom.divisor - 1)
        case Min():
            lows, highs = zip(*(extremes(a, ranges) for a in atom.arguments), strict=True)
            return minimum(*lows), minimum(*highs)
        case Max():
            lows, highs = zip(*(extremes(a, ranges) for a in atom.arguments), strict=True)
            return maximum(*lows), maximum(*highs)
        case Product():
            return _product_extremes(atom, ranges)
    raise AssertionError(f"{type(atom).__name__} is not a kind of atom")


def _product_extremes(product: Product, ranges: Ranges) -> tuple[Expr, Expr]:
    # Number ranges first, so that those of either sign meet before a symbolic one joins them.
    factors = sorted((extremes(a, ranges) for a in product.arguments), key=lambda f: not _numbers(f))
    low, high = factors[0]
    for factor in factors[1:]:
        a, b = (low, high), factor
        if _numbers(a) and _numbers(b):
            corners = [x.constant * y.constant for x in a for y in b]
            low, high = constant(min(corners)), constant(max(corners))
        elif _may_scale(a, b) or _may_scale(b, a):
            low, high = a[0] * b[0], a[1] * b[1]
        else:
            raise IndexExpressionError(
                f"the least and the greatest value of {product} are not known: "
                "more than one factor varies and one may be negative",
                hint="a product of ranges has known ends where they are numbers or at least zero",
            )
    return low, high


def _numbers(ends: tuple[Expr, Expr]) -> bool:
    return ends[0].is_constant and ends[1].is_constant


def _may_scale(factor: tuple[Expr, Expr], ends: tuple[Expr, Expr]) -> bool:
    """Whether multiplying end by end by ``factor`` gives the ends of the product."""
    low, high = factor
    return _non_negative(low) and (low == high or _non_negative(ends[0]))


def _non_negative(expr: Expr) -> bool:
    low = _least(expr)
    return low is not None and low >= 0


def _least(expr: Expr) -> int | None:
    """A number that ``expr`` is never below, given that every bound is at least 1."""
    total = expr.constant
    for atom, c in expr.terms:
        low = _least_of_atom(atom) if c > 0 else None
        if low is None:
            return None
        total += c * low
    return total


def _least_of_atom(atom: Expr) -> int | None:
    match atom:
        case Bound():
            return 1
        case FloorDiv():
            low = _least(atom.dividend)
            return None if low is None else low // atom.divisor
        case Mod():
            return 0
        case Min() | Max() | Product():
            lows = [_least(a) for a in atom.arguments]
            known = [low for low in lows if low is not None]
            if isinstance(atom, Max):
                return max(known, default=None)
            if len(known) < len(lows):
                return None
            if isinstance(atom, Min):
                return min(known)
            return math.prod(known) if min(known) >= 0 else None
    return None
