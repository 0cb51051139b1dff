"""Arithmetic on sizes, which are integers or polynomials in dims and bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from tempo.graph.node import Size, normal_size
from tempo.symbolic import Expr, as_expr
from tempo.symbolic.expr import Product

Polynomial = dict[tuple[int, ...], int]


def total(sizes: Iterable[Size]) -> Size:
    """The product of sizes: the number of elements of a shape."""
    return normal_size(math.prod(sizes))


def quotient(a: Size, b: Size) -> Size | None:
    """``a / b`` where it is a polynomial with integer coefficients, else None.

    Long division by the leading term: if ``b`` divides ``a``, it does so in every step.
    """
    dividend, divisor = as_expr(a), as_expr(b)
    atoms = list(dict.fromkeys(f for e in (dividend, divisor) for atom, _ in e.terms for f in _factors(atom)))
    rest, divisor_terms = _polynomial(dividend, atoms), _polynomial(divisor, atoms)
    if not divisor_terms:
        return None
    lead = _leading(divisor_terms)
    result: Expr = as_expr(0)
    while rest:
        top = _leading(rest)
        powers = tuple(p - q for p, q in zip(top, lead, strict=True))
        coefficient, remainder = divmod(rest[top], divisor_terms[lead])
        if remainder or any(p < 0 for p in powers):
            return None
        result = result + coefficient * math.prod(
            (atom for atom, power in zip(atoms, powers, strict=True) for _ in range(power)),
            start=as_expr(1),
        )
        for term, c in divisor_terms.items():
            place = tuple(p + q for p, q in zip(term, powers, strict=True))
            rest[place] = rest.get(place, 0) - coefficient * c
            if not rest[place]:
                del rest[place]
    return normal_size(result)


def _factors(atom: Expr) -> tuple[Expr, ...]:
    return atom.arguments if isinstance(atom, Product) else (atom,)


def _polynomial(expr: Expr, atoms: list[Expr]) -> Polynomial:
    """The coefficients by the powers of the atoms."""
    result: Polynomial = {}
    for atom, c in expr.terms:
        counts = Counter(_factors(atom))
        result[tuple(counts[a] for a in atoms)] = c
    if expr.constant:
        result[(0,) * len(atoms)] = expr.constant
    return result


def _leading(polynomial: Polynomial) -> tuple[int, ...]:
    return max(polynomial, key=lambda powers: (sum(powers), powers))
