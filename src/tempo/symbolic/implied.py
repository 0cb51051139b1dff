"""What holds wherever a condition does: expressions that are not negative there."""

from __future__ import annotations

from collections.abc import Mapping

from tempo.symbolic.condition import AtLeastZero, Condition, EqualsZero
from tempo.symbolic.expr import Dim, Expr, FloorDiv, Max, Min, Mod, constant
from tempo.symbolic.intervals import at_least, extremes


def first_step(condition: Condition) -> tuple[Dim, int] | None:
    """A dim, and the first step of it at which a condition may hold, if that is what it says."""
    if isinstance(condition, AtLeastZero) and len(condition.expr.terms) == 1:
        ((d, factor),) = condition.expr.terms
        if isinstance(d, Dim) and factor == 1:
            return d, -condition.expr.constant
    return None


def not_negative_where(condition: Condition, first: Mapping[Dim, int]) -> list[Expr]:
    """Expressions that are not negative wherever a condition holds; ``first`` has the first steps of some dims."""
    if isinstance(condition, AtLeastZero):
        return _not_negative(condition.expr, first)
    if not isinstance(condition, EqualsZero):
        return []
    found = [*_not_negative(condition.expr, first), *_not_negative(-condition.expr, first)]
    for atom, c in condition.expr.terms:
        if isinstance(atom, FloorDiv) and c in (1, -1):
            # q == e//n  is  n*q <= e <= n*q + n - 1
            q = (atom - condition.expr) if c == 1 else (atom + condition.expr)
            low = atom.dividend - q * atom.divisor
            found += [low, -low + atom.divisor - 1]
    return found


def _not_negative(expr: Expr, first: Mapping[Dim, int]) -> list[Expr]:
    """Expressions that are not negative wherever this one is not; among them simpler ones."""
    for atom, c in expr.terms:
        rest = expr - c * atom
        if isinstance(atom, Min | Max):
            each = [rest + c * argument for argument in atom.arguments]
            if isinstance(atom, Min) != (c > 0):
                # Of max(0, a) > q, where q is a step, only a > q is possible.
                each = [one for one in each if not _is_negative(one, first)]
                each = each if len(each) == 1 else []
            return [expr, *(simpler for one in each for simpler in _not_negative(one, first))]
        if isinstance(atom, Mod):
            return [expr, *_not_negative(rest + max(c * (atom.divisor - 1), 0), first)]
        if isinstance(atom, FloorDiv) and c % atom.divisor == 0:
            # n*(e//n) is e, or up to n - 1 less
            times = c // atom.divisor
            return [expr, *_not_negative(rest + times * atom.dividend + max(-times * (atom.divisor - 1), 0), first)]
    return [expr]


def _is_negative(expr: Expr, first: Mapping[Dim, int]) -> bool:
    """Whether an expression can be seen to be negative at all steps of its dims."""
    dims = (symbol for symbol in expr.symbols() if isinstance(symbol, Dim))
    _, most = extremes(expr, {d: (constant(first.get(d, 0)), d.bound - 1) for d in dims})
    return at_least(-1, most)
