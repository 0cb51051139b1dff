"""Conditions as regions of points: solving an index for a dim, and dropping what always holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tempo.errors import IndexExpressionError
from tempo.symbolic.condition import (
    FALSE,
    TRUE,
    And,
    AtLeastZero,
    Condition,
    EqualsZero,
    Not,
    Or,
    box_of,
    conjunction,
    disjunction,
    equal,
)
from tempo.symbolic.expr import Dim, Expr, Symbol, constant
from tempo.symbolic.intervals import at_least, extremes
from tempo.symbolic.polyhedral import may_hold


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


def pinned(
    condition: Condition, domain: Sequence[Dim], known: Mapping[Symbol, Expr] = MappingProxyType({})
) -> Iterator[tuple[Dim, Expr]]:
    """The dims that have one fixed step wherever a condition holds, and that step; also those of which it is known
    because other dims are ``known``."""
    for part in condition.parts if isinstance(condition, And) else (condition,):
        if isinstance(part, EqualsZero):
            for d in domain:
                factor = dict(part.expr.terms).get(d, 0)
                step = -factor * (part.expr - factor * d)
                if (
                    factor in (1, -1)
                    and d not in known
                    and all(s in known for s in step.symbols() if isinstance(s, Dim))
                ):
                    yield d, step.substitute(known)


def within(condition: Condition, domain: Sequence[Dim]) -> Condition:
    """What a condition comes to within a domain: parts that are seen to hold at all of its points are dropped, and if
    one holds at none, nothing is left."""
    ranges = {d: (constant(0), d.bound - 1) for d in domain}
    match condition:
        case And():
            return conjunction(_narrowed([within(part, domain) for part in condition.parts]))
        case Or():
            found = disjunction(within(part, domain) for part in condition.parts)
            # t >= 1 or t == 0: none of them does, all together do.
            return found if may_hold(~found & box_of(tuple(domain)), domain) else TRUE
        case AtLeastZero():
            low, high = _extremes(condition.expr, ranges)
            if low is not None and at_least(low, 0):
                return TRUE
            if high is not None and at_least(-1, high):
                return FALSE
        case Not():
            # At the end of the box, "not there" is "past it": a range, which is easier to work with.
            expr = condition.condition.expr
            low, high = _extremes(expr, ranges)
            if low == 0:
                return expr >= 1
            if high == 0:
                return expr <= -1
    return condition


def _narrowed(parts: list[Condition]) -> list[Condition]:
    """The parts of a conjunction, with ``t >= 1`` and ``t != 1`` made ``t >= 2``."""
    for part in parts:
        if isinstance(part, Not):
            expr = part.condition.expr
            for end, past in ((expr >= 0, expr >= 1), (expr <= 0, expr <= -1)):
                if end in parts:
                    # What is past this end may be the end for another part.
                    return _narrowed([past, *(other for other in parts if other not in (part, end))])
    return parts


def _extremes(expr: Expr, ranges: Mapping[Dim, tuple[Expr, Expr]]) -> tuple[Expr | None, Expr | None]:
    try:
        return extremes(expr, ranges)
    except IndexExpressionError:
        return None, None
