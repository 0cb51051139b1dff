"""Conditions on dims: where a case defines a tensor, when an edge is read.

Built by comparing index expressions and by ``&``, ``|`` and ``~``.  Canonical: comparisons have the form
``expr >= 0`` or ``expr == 0``, conjunctions and disjunctions are flat and without repetition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from tempo.copying import PartOfProgram
from tempo.errors import IndexExpressionError
from tempo.symbolic.expr import Dim, Expr, ExprLike, Symbol, as_expr, linear


class Condition(PartOfProgram):
    """A predicate on the points of a domain, canonical and immutable."""

    __slots__ = ("_hash", "_inverse")

    _hash: int
    _inverse: Condition

    def _key(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def evaluate(self, values: Mapping[Any, int]) -> bool:
        """Whether the condition holds at a point."""
        raise NotImplementedError

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Condition:
        raise NotImplementedError

    def symbols(self) -> frozenset[Symbol]:
        raise NotImplementedError

    def negated(self) -> Condition:
        raise NotImplementedError

    def __and__(self, other: Condition) -> Condition:
        return conjunction([self, other]) if isinstance(other, Condition) else NotImplemented

    def __or__(self, other: Condition) -> Condition:
        return disjunction([self, other]) if isinstance(other, Condition) else NotImplemented

    def __invert__(self) -> Condition:
        # Kept, both ways: every ``and`` and ``or`` asks whether it holds a condition and its opposite, and the
        # opposites of nested ones would otherwise be made anew at every level.
        try:
            return self._inverse
        except AttributeError:
            self._inverse = self.negated()
            if not hasattr(self._inverse, "_inverse"):
                self._inverse._inverse = self
            return self._inverse

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self._key() == other._key()

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(self._key())
            return self._hash

    def __bool__(self) -> bool:
        if self is TRUE or self is FALSE:
            return self is TRUE
        raise IndexExpressionError(
            f"the condition {self} has no truth value while the program is written",
            hint="combine conditions with &, | and ~ (a chained 0 <= t < 5 is (t >= 0) & (t < 5)); "
            "a tensor defined by cases takes the place of if",
        )

    def __repr__(self) -> str:
        return str(self)


class _Constant(Condition):
    __slots__ = ("truth",)

    def __init__(self, truth: bool) -> None:
        self.truth = truth

    def _key(self) -> tuple[Any, ...]:
        return ("constant", self.truth)

    def evaluate(self, values: Mapping[Any, int]) -> bool:
        return self.truth

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Condition:
        return self

    def symbols(self) -> frozenset[Symbol]:
        return frozenset()

    def negated(self) -> Condition:
        return FALSE if self.truth else TRUE

    def __str__(self) -> str:
        return "true" if self.truth else "false"


TRUE: Condition = _Constant(True)
FALSE: Condition = _Constant(False)
TRUE._inverse, FALSE._inverse = FALSE, TRUE


class AtLeastZero(Condition):
    """``expr >= 0``."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def _key(self) -> tuple[Any, ...]:
        return ("ge", self.expr._key())

    def evaluate(self, values: Mapping[Any, int]) -> bool:
        return self.expr.evaluate(values) >= 0

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Condition:
        return at_least_zero(self.expr.substitute(replacement))

    def symbols(self) -> frozenset[Symbol]:
        return self.expr.symbols()

    def negated(self) -> Condition:
        return at_least_zero(-self.expr - 1)

    def __str__(self) -> str:
        greater, less = _sides(self.expr)
        offset = self.expr.constant
        if not greater.terms:
            return f"{less} < {offset + 1}"
        if offset == -1 and less.terms:
            return f"{less} < {greater}"
        return f"{greater} >= {less - offset}"


class EqualsZero(Condition):
    """``expr == 0``."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def _key(self) -> tuple[Any, ...]:
        return ("eq", self.expr._key())

    def evaluate(self, values: Mapping[Any, int]) -> bool:
        return self.expr.evaluate(values) == 0

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Condition:
        return equals_zero(self.expr.substitute(replacement))

    def symbols(self) -> frozenset[Symbol]:
        return self.expr.symbols()

    def negated(self) -> Condition:
        return Not(self)

    def __str__(self) -> str:
        left, right = _sides(self.expr)
        return f"{left} == {right - self.expr.constant}"


class Not(Condition):
    """The negation of an equality; every other negation is pushed inwards and disappears."""

    __slots__ = ("condition",)

    def __init__(self, condition: EqualsZero) -> None:
        self.condition = condition

    def _key(self) -> tuple[Any, ...]:
        return ("not", self.condition._key())

    def evaluate(self, values: Mapping[Any, int]) -> bool:
        return not self.condition.evaluate(values)

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Condition:
        return ~self.condition.substitute(replacement)

    def symbols(self) -> frozenset[Symbol]:
        return self.condition.symbols()

    def negated(self) -> Condition:
        return self.condition

    def __str__(self) -> str:
        return str(self.condition).replace("==", "!=")


class _Several(Condition):
    __slots__ = ("parts",)
    sign: str

    def __init__(self, parts: tuple[Condition, ...]) -> None:
        self.parts = parts

    def _key(self) -> tuple[Any, ...]:
        return (self.sign, frozenset(p._key() for p in self.parts))

    def symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(p.symbols() for p in self.parts))

    def __str__(self) -> str:
        return f" {self.sign} ".join(f"({p})" if isinstance(p, _Several) else str(p) for p in self.parts)


class And(_Several):
    """All of several conditions."""

    __slots__ = ()
    sign = "and"

    def evaluate(self, values: Mapping[Any, int]) -> bool:
        return all(p.evaluate(values) for p in self.parts)

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Condition:
        return conjunction(p.substitute(replacement) for p in self.parts)

    def negated(self) -> Condition:
        return disjunction(~p for p in self.parts)


class Or(_Several):
    """Any of several conditions."""

    __slots__ = ()
    sign = "or"

    def evaluate(self, values: Mapping[Any, int]) -> bool:
        return any(p.evaluate(values) for p in self.parts)

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Condition:
        return disjunction(p.substitute(replacement) for p in self.parts)

    def negated(self) -> Condition:
        return conjunction(~p for p in self.parts)


def _sides(expr: Expr) -> tuple[Expr, Expr]:
    """The terms with positive and those with negative coefficients, both made positive."""
    positive = linear({atom: c for atom, c in expr.terms if c > 0}, 0)
    negative = linear({atom: -c for atom, c in expr.terms if c < 0}, 0)
    return positive, negative


def at_least_zero(expr: ExprLike) -> Condition:
    expr = as_expr(expr)
    if expr.is_constant:
        return TRUE if expr.constant >= 0 else FALSE
    # 2t - 1 >= 0 over the integers is t - 1 >= 0.
    g = math.gcd(*(c for _, c in expr.terms))
    if g > 1:
        expr = linear({atom: c // g for atom, c in expr.terms}, expr.constant // g)
    return AtLeastZero(expr)


def equals_zero(expr: ExprLike) -> Condition:
    expr = as_expr(expr)
    if expr.is_constant:
        return TRUE if expr.constant == 0 else FALSE
    g = math.gcd(*(c for _, c in expr.terms))
    if expr.constant % g:
        return FALSE
    sign = 1 if expr.terms[0][1] > 0 else -1
    return EqualsZero(linear({atom: sign * c // g for atom, c in expr.terms}, sign * expr.constant // g))


def equal(a: ExprLike, b: ExprLike) -> Condition:
    """The condition that two expressions have the same value at a point."""
    return equals_zero(as_expr(a) - as_expr(b))


@lru_cache(maxsize=2**10)  # few domains, of many nodes
def box_of(dims: tuple[Dim, ...]) -> Condition:
    """Whether a point is at a step of every dim."""
    return conjunction(part for d in dims for part in (d >= 0, d < d.bound))


def conjunction(parts: Iterable[Condition]) -> Condition:
    return _several(And, parts, neutral=TRUE, absorbing=FALSE)


def disjunction(parts: Iterable[Condition]) -> Condition:
    return _several(Or, parts, neutral=FALSE, absorbing=TRUE)


def _several(
    kind: type[And] | type[Or], parts: Iterable[Condition], neutral: Condition, absorbing: Condition
) -> Condition:
    kept: dict[Condition, None] = {}
    for part in parts:
        for p in part.parts if isinstance(part, kind) else (part,):
            if p is absorbing or ~p in kept:
                return absorbing
            if p is not neutral:
                kept[p] = None
    if not kept:
        return neutral
    return next(iter(kept)) if len(kept) == 1 else kind(tuple(kept))
