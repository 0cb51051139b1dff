"""Expressions and conditions over whole ranges of dims at once.

A ``Grid`` is what an expression or condition is at every point of some dims, its *axes*, as one array; the other
symbols in it are scalars.  It is how masks and index vectors are written down in a graph.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tempo.symbolic.condition import And, AtLeastZero, Condition, EqualsZero, Not, Or
from tempo.symbolic.expr import Dim, Expr, FloorDiv, Max, Min, Mod, Product, Symbol


@dataclass(frozen=True)
class Grid:
    """``value`` at all points of the box of ``axes``."""

    value: Expr | Condition
    axes: tuple[Dim, ...]

    def symbols(self) -> frozenset[Symbol]:
        inside = self.value.symbols().union(*(d.bound.symbols() for d in self.axes))
        return inside - frozenset(self.axes)

    def evaluate(self, values: Mapping[Any, int]) -> np.ndarray[Any, Any]:
        sizes = [d.bound.evaluate(values) for d in self.axes]
        points = dict(zip(self.axes, np.indices(sizes, dtype=np.int32), strict=True)) if sizes else {}
        known = {s: values[s] for s in self.value.symbols() if s not in points}
        result = evaluate(self.value, {**known, **points}, np)
        kind = np.bool_ if isinstance(self.value, Condition) else np.int32
        return np.broadcast_to(np.asarray(result, kind), sizes)

    def __str__(self) -> str:
        return f"{{{self.value} : {', '.join(d.name for d in self.axes)}}}"


def evaluate(value: Expr | Condition, values: Mapping[Any, Any], xp: Any) -> Any:
    """An expression or condition where symbols stand for arrays; ``xp`` is NumPy or a module like it."""

    def value_of(e: Any) -> Any:
        return evaluate(e, values, xp)

    def combine(function: Any, parts: Sequence[Any]) -> Any:
        return reduce(function, (value_of(p) for p in parts))

    match value:
        case Symbol():
            return values[value]
        case FloorDiv():
            return value_of(value.dividend) // value.divisor
        case Mod():
            return value_of(value.dividend) % value.divisor
        case Min():
            return combine(xp.minimum, value.arguments)
        case Max():
            return combine(xp.maximum, value.arguments)
        case Product():
            return combine(xp.multiply, value.arguments)
        case Expr():
            # JAX would trace the product with one, and the sum with zero: programs have hundreds of them.
            terms = [value_of(atom) if c == 1 else c * value_of(atom) for atom, c in value.terms]
            if value.constant or not terms:
                terms.append(value.constant)
            return reduce(operator.add, terms)
        case AtLeastZero():
            return value_of(value.expr) >= 0
        case EqualsZero():
            return value_of(value.expr) == 0
        case Not():
            return xp.logical_not(value_of(value.condition))
        case And():
            return combine(xp.logical_and, value.parts)
        case Or():
            return combine(xp.logical_or, value.parts)
    return xp.asarray(value.evaluate({}))
