"""Index expressions and conditions: the integers a program is indexed by.

``expr`` and ``condition`` are the truth; ``intervals`` and ``polyhedral`` are derived from them.
"""

from tempo.symbolic.condition import (
    FALSE,
    TRUE,
    Condition,
    at_least_zero,
    box_of,
    conjunction,
    disjunction,
    equal,
)
from tempo.symbolic.expr import (
    Bound,
    Dim,
    Expr,
    ExprLike,
    Symbol,
    as_expr,
    constant,
    maximum,
    minimum,
)
from tempo.symbolic.index import Index, Item, Slice

__all__ = [
    "FALSE",
    "TRUE",
    "Bound",
    "Condition",
    "Dim",
    "Expr",
    "ExprLike",
    "Index",
    "Item",
    "Slice",
    "Symbol",
    "as_expr",
    "at_least_zero",
    "box_of",
    "conjunction",
    "constant",
    "disjunction",
    "equal",
    "maximum",
    "minimum",
]
