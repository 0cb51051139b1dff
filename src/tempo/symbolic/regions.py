"""Conditions as regions of points: solving an index for a dim, and dropping what always holds."""

from __future__ import annotations

from collections.abc import Sequence

from tempo.errors import IndexExpressionError
from tempo.symbolic.condition import TRUE, And, AtLeastZero, Condition, Not, conjunction, equal
from tempo.symbolic.expr import Dim, Expr, constant
from tempo.symbolic.intervals import at_least, extremes


def inverse(item: Expr, q: Dim, unsolved: set[Dim]) -> tuple[Dim, Expr, Condition] | None:
    """Solve ``q == item`` for the one dim in ``item``, where it stands in it with a plain factor."""
    dims = [s for s in item.symbols() if isinstance(s, Dim)]
    if len(dims) != 1 or dims[0] not in unsolved:
        return None
    factor = dict(item.terms).get(dims[0], 0)
    offset = item - factor * dims[0]
    if factor == 0 or dims[0] in offset.symbols():
        return None
    value = (q - offset) if factor > 0 else (offset - q)
    size = abs(factor)
    return dims[0], value // size, equal(value % size, 0)


def within(condition: Condition, domain: Sequence[Dim]) -> Condition:
    """The condition without what holds at every point of the domain anyway."""
    ranges = {d: (constant(0), d.bound - 1) for d in domain}
    if isinstance(condition, And):
        return conjunction(within(part, domain) for part in condition.parts)
    if isinstance(condition, AtLeastZero):
        try:
            if at_least(extremes(condition.expr, ranges)[0], 0):
                return TRUE
        except IndexExpressionError:
            pass
    if isinstance(condition, Not):
        # Next to the end of the box, "not there" is "past it": a range, which is easier to work with.
        expr = condition.condition.expr
        if dims := [s for s in expr.symbols() if s in ranges]:
            low, high = extremes(expr, {d: ranges[d] for d in dims})
            if low == 0:
                return expr >= 1
            if high == 0:
                return expr <= -1
    return condition
