"""Integer index expressions: what stands between the brackets of ``x[t - 1]``.

An expression is kept in one canonical form, a linear combination of *atoms* plus a constant, so that
structural equality means "the same expression up to rearrangement".  Atoms are symbols, floor divisions,
remainders, minima, maxima and products; an atom is itself an expression (one term, coefficient 1).

``==`` is structural equality and gives a ``bool``: expressions are dictionary keys and set members.
``<``, ``<=``, ``>`` and ``>=`` build conditions; ``symbolic.equal`` builds the condition "equal at this point".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tempo.copying import PartOfProgram
from tempo.errors import IndexExpressionError

if TYPE_CHECKING:
    from tempo.symbolic.condition import Condition

type_error_hint = (
    "index expressions are made of dims, bounds and integers with +, -, *, //, %, tp.min and tp.max; "
    "to use an index as a number in a tensor write t.value, to index by a tensor use x[0:T].take(idx)"
)

_symbol_numbers = itertools.count()


class Expr(PartOfProgram):
    """An integer expression, canonical and immutable."""

    __slots__ = ("_hash", "constant", "terms")

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    def __init__(self, terms: tuple[tuple[Expr, int], ...], constant: int) -> None:
        self.terms = terms
        self.constant = constant
        self._hash: int | None = None

    # -- identity -------------------------------------------------------------------------------

    def _key(self) -> tuple[Any, ...]:
        """What structural equality compares and canonical ordering sorts by."""
        return ("linear", tuple((atom._key(), c) for atom, c in self.terms), self.constant)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, int) and not isinstance(other, bool):
            return not self.terms and self.constant == other
        if not isinstance(other, Expr):
            return NotImplemented
        return hash(self) == hash(other) and self._key() == other._key()

    def __ne__(self, other: object) -> bool:
        result = self.__eq__(other)
        return result if result is NotImplemented else not result

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key()) if self.terms else hash(self.constant)
        return self._hash

    def __bool__(self) -> bool:
        if not self.terms:
            return self.constant != 0
        raise IndexExpressionError(
            f"the truth value of the index expression {self} is not known while the program is written",
            hint="comparisons such as t < 5 build conditions; combine them with &, | and ~",
        )

    def __index__(self) -> int:
        if not self.terms:
            return self.constant
        raise IndexExpressionError(
            f"{self} is not known as a number while the program is written",
            hint="no loop over steps is written: say what a tensor is at step t; numbers are given to compile",
        )

    # -- arithmetic -----------------------------------------------------------------------------

    def __add__(self, other: ExprLike) -> Expr:
        if not _is_index(other):
            return NotImplemented
        other = as_expr(other)
        if not other.terms or not self.terms:  # most sums are of this kind, and need no sorting
            return _ordered(self.terms or other.terms, self.constant + other.constant)
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
        return linear(terms, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self._scaled(-1)

    def __pos__(self) -> Expr:
        return self

    def __sub__(self, other: ExprLike) -> Expr:
        if not _is_index(other):
            return NotImplemented
        return self + as_expr(other)._scaled(-1)

    def __rsub__(self, other: ExprLike) -> Expr:
        if not _is_index(other):
            return NotImplemented
        return as_expr(other) + self._scaled(-1)

    def _scaled(self, factor: int) -> Expr:
        terms = tuple((atom, c * factor) for atom, c in self.terms) if factor else ()
        return _ordered(terms, self.constant * factor)

    def __mul__(self, other: ExprLike) -> Expr:
        if not _is_index(other):
            return NotImplemented
        other = as_expr(other)
        if not other.terms:
            return self._scaled(other.constant)
        if not self.terms:
            return other._scaled(self.constant)
        total = other._scaled(self.constant) + self._scaled(other.constant)
        total = total - self.constant * other.constant
        for (a, ca), (b, cb) in itertools.product(self.terms, other.terms):
            total = total + Product.of(a, b)._scaled(ca * cb)
        return total

    __rmul__ = __mul__

    def __pow__(self, exponent: object) -> Expr:
        raise IndexExpressionError(f"{self._operand_text()} ** {exponent}: not an index", hint=type_error_hint)

    def __rpow__(self, base: object) -> Expr:
        raise IndexExpressionError(f"{base} ** {self._operand_text()}: not an index", hint=type_error_hint)

    def __abs__(self) -> Expr:
        raise IndexExpressionError(f"abs({self}): not an index", hint=f"write tp.max({self}, {-self})")

    def __rfloordiv__(self, dividend: object) -> Expr:
        return floor_div(as_expr(dividend), self)  # type: ignore[arg-type]

    def __rmod__(self, dividend: object) -> Expr:
        return modulo(as_expr(dividend), self)  # type: ignore[arg-type]

    def __floordiv__(self, divisor: int) -> Expr:
        return floor_div(self, divisor) if _is_index(divisor) else NotImplemented

    def __mod__(self, divisor: int) -> Expr:
        return modulo(self, divisor) if _is_index(divisor) else NotImplemented

    def __truediv__(self, other: ExprLike) -> Expr:
        if not _is_index(other):
            return NotImplemented
        raise IndexExpressionError(
            f"{self._operand_text()} / {other}: an index must be an integer",
            hint="use // (floor division)",
        )

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return as_expr(other).__truediv__(self)

    # -- comparison builds conditions -----------------------------------------------------------

    def __ge__(self, other: ExprLike) -> Condition:
        return _comparison(self, other) if _is_index(other) else NotImplemented

    def __le__(self, other: ExprLike) -> Condition:
        return _comparison(other, self) if _is_index(other) else NotImplemented

    def __gt__(self, other: ExprLike) -> Condition:
        return _comparison(self, other, strict=True) if _is_index(other) else NotImplemented

    def __lt__(self, other: ExprLike) -> Condition:
        return _comparison(other, self, strict=True) if _is_index(other) else NotImplemented

    # -- use ------------------------------------------------------------------------------------

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def symbols(self) -> frozenset[Symbol]:
        """Every dim and bound that occurs."""
        return frozenset().union(*(atom.symbols() for atom, _ in self.terms))

    def evaluate(self, values: Mapping[Any, int]) -> int:
        """The value at a point."""
        return self.constant + sum(c * atom.evaluate(values) for atom, c in self.terms)

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Expr:
        """Replace symbols by expressions, all at once."""
        result = constant(self.constant)
        for atom, c in self.terms:
            result = result + atom.substitute(replacement)._scaled(c)
        return result

    def __str__(self) -> str:
        if not self.terms:
            return str(self.constant)
        # Positive terms first: "T - t - 1" reads better than "-t + T - 1".
        ordered = [t for t in self.terms if t[1] > 0] + [t for t in self.terms if t[1] < 0]
        text = ""
        for atom, c in ordered:
            # In front, -(t//2) needs its parentheses: -t//2 would read as (-t)//2.
            bare = c == 1 or (c == -1 and text)
            size = str(atom) if bare else atom._operand_text()
            size = size if abs(c) == 1 else f"{abs(c)}*{size}"
            text += (f" + {size}" if c > 0 else f" - {size}") if text else (size if c > 0 else f"-{size}")
        if self.constant:
            text += f" + {self.constant}" if self.constant > 0 else f" - {-self.constant}"
        return text

    def _operand_text(self) -> str:
        """The text with parentheses where an operator around it would need them."""
        return f"({self})" if len(self.terms) + (self.constant != 0) > 1 or self._negative() else str(self)

    def _negative(self) -> bool:
        return len(self.terms) == 1 and self.terms[0][1] < 0

    def __repr__(self) -> str:
        return str(self)


ExprLike = Expr | int


class Atom(Expr):
    """An expression that is a single indivisible term."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(((self, 1),), 0)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash


class Symbol(Atom):
    """A named integer unknown. Two symbols are equal only when they are the same object."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(_symbol_numbers)
        super().__init__()

    def _key(self) -> tuple[Any, ...]:
        return ("symbol", self.number)

    def symbols(self) -> frozenset[Symbol]:
        return frozenset((self,))

    def evaluate(self, values: Mapping[Any, int]) -> int:
        return values[self]

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Expr:
        return as_expr(replacement[self]) if self in replacement else self

    def __str__(self) -> str:
        return self.name


class Bound(Symbol):
    """The number of steps of a dim; a number is given to it when the program is compiled."""

    __slots__ = ()


class Dim(Symbol):
    """A temporal dimension: ``0 <= dim < bound``.

    A dim may be derived from one that a user declared: its step u is then step ``u + start`` of its ``origin``. A dim
    that is ``outermost`` comes before those that were declared earlier, in domains and in the order of loops.
    """

    __slots__ = ("bound", "origin", "start")

    def __init__(
        self, name: str, bound: ExprLike, origin: Dim | None = None, start: ExprLike = 0, outermost: bool = False
    ) -> None:
        super().__init__(name)
        if outermost:
            self.number = -self.number
        self.bound = as_expr(bound)
        self.origin: Dim = self if origin is None else origin
        self.start = as_expr(start)


class _Division(Atom):
    """What floor division and remainder share: a dividend and a positive constant divisor."""

    __slots__ = ("dividend", "divisor")
    sign: str

    def __init__(self, dividend: Expr, divisor: int) -> None:
        self.dividend = dividend
        self.divisor = divisor
        super().__init__()

    def _key(self) -> tuple[Any, ...]:
        return (self.sign, self.dividend._key(), self.divisor)

    def symbols(self) -> frozenset[Symbol]:
        return self.dividend.symbols()

    def __str__(self) -> str:
        return f"{self.dividend._operand_text()}{self.sign}{self.divisor}"

    def _operand_text(self) -> str:
        return f"({self})"


class FloorDiv(_Division):
    """``dividend // divisor``."""

    __slots__ = ()
    sign = "//"

    def evaluate(self, values: Mapping[Any, int]) -> int:
        return self.dividend.evaluate(values) // self.divisor

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Expr:
        return floor_div(self.dividend.substitute(replacement), self.divisor)


class Mod(_Division):
    """``dividend % divisor``, in ``0 .. divisor - 1``."""

    __slots__ = ()
    sign = "%"

    def evaluate(self, values: Mapping[Any, int]) -> int:
        return self.dividend.evaluate(values) % self.divisor

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Expr:
        return modulo(self.dividend.substitute(replacement), self.divisor)


class _Several(Atom):
    """What minimum, maximum and product share: an unordered tuple of arguments."""

    __slots__ = ("arguments",)
    name: str

    def __init__(self, arguments: Iterable[Expr]) -> None:
        self.arguments = tuple(sorted(arguments, key=_order))
        super().__init__()

    def _key(self) -> tuple[Any, ...]:
        return (self.name, *(a._key() for a in self.arguments))

    def symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(a.symbols() for a in self.arguments))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


class Min(_Several):
    """The least of several expressions."""

    __slots__ = ()
    name = "min"

    def evaluate(self, values: Mapping[Any, int]) -> int:
        return min(a.evaluate(values) for a in self.arguments)

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Expr:
        return minimum(*(a.substitute(replacement) for a in self.arguments))


class Max(_Several):
    """The greatest of several expressions."""

    __slots__ = ()
    name = "max"

    def evaluate(self, values: Mapping[Any, int]) -> int:
        return max(a.evaluate(values) for a in self.arguments)

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Expr:
        return maximum(*(a.substitute(replacement) for a in self.arguments))


class Product(_Several):
    """A product of unknowns. Sizes have them (a ``(B, T)`` array flattened has ``B*T`` elements);
    an index may only multiply by what is a number once the bounds are known."""

    __slots__ = ()
    name = "product"

    @staticmethod
    def of(a: Expr, b: Expr) -> Expr:
        factors = [f for e in (a, b) for f in (e.arguments if isinstance(e, Product) else (e,))]
        return Product(factors)

    def evaluate(self, values: Mapping[Any, int]) -> int:
        return math.prod(a.evaluate(values) for a in self.arguments)

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Expr:
        result = constant(1)
        for a in self.arguments:
            result = result * a.substitute(replacement)
        return result

    def __str__(self) -> str:
        return "*".join(a._operand_text() for a in self.arguments)


# -- construction -----------------------------------------------------------------------------------


def _order(expr: Expr) -> tuple[Any, ...]:
    """A deterministic order: symbols as declared, then everything else by its text (and where two
    symbols of one name make that the same, by its key)."""
    if isinstance(expr, Symbol):
        return (0, expr.number, "")
    return (1, min((s.number for s in expr.symbols()), default=-1), str(expr), expr._key())


def constant(value: int) -> Expr:
    return Expr((), int(value))


def linear(terms: Mapping[Expr, int], const: int) -> Expr:
    """The canonical form of ``sum(coefficient * atom) + const``."""
    kept = [(atom, c) for atom, c in terms.items() if c != 0]
    return _ordered(tuple(sorted(kept, key=lambda term: _order(term[0])) if len(kept) > 1 else kept), const)


def _ordered(terms: tuple[tuple[Expr, int], ...], const: int) -> Expr:
    """The expression of terms that are in canonical order already, and have no coefficients of zero."""
    if len(terms) == 1 and terms[0][1] == 1 and const == 0:
        return terms[0][0]
    return Expr(terms, const)


def _is_index(value: object) -> bool:
    """Whether index arithmetic can take a value. A plain float never makes sense here, and no other type will
    handle it, so it is an error at once; anything else (a tensor) may have its own arithmetic."""
    if isinstance(value, Expr):
        return True
    if isinstance(value, float):
        raise IndexExpressionError(f"not an index expression: {value!r} of type float", hint=type_error_hint)
    # An array of one integer has __index__ too, but an index is a number; so is a bool, but by accident.
    return hasattr(value, "__index__") and not isinstance(value, bool) and getattr(value, "shape", ()) == ()


def as_expr(value: ExprLike) -> Expr:
    """An expression from an expression or an integer (Python's or NumPy's)."""
    if isinstance(value, Expr):
        return value
    if _is_index(value):
        return constant(value.__index__())
    found = f"{value!r} of type {type(value).__name__}"
    raise IndexExpressionError(f"not an index expression: {found}", hint=type_error_hint)


def _divisor(expr: Expr, divisor: int, sign: str) -> int:
    number = as_expr(divisor)
    if not number.is_constant or number.constant <= 0:
        raise IndexExpressionError(
            f"{expr._operand_text()} {sign} {number._operand_text()}: the divisor must be a positive integer constant",
            hint="index expressions are quasi-affine; only constants can divide",
        )
    return number.constant


def floor_div(expr: ExprLike, divisor: int) -> Expr:
    """``expr // divisor`` with every multiple of the divisor taken out."""
    expr = as_expr(expr)
    n = _divisor(expr, divisor, "//")
    outside = {atom: c // n for atom, c in expr.terms}
    inside = {atom: c % n for atom, c in expr.terms if c % n}
    whole, rest = divmod(expr.constant, n)
    if not inside:
        return linear(outside, whole)
    # floor((g*r + k) / (g*m)) == floor((r + floor(k/g)) / m)
    g = math.gcd(n, *inside.values())
    inside = {atom: c // g for atom, c in inside.items()}
    n, rest = n // g, rest // g
    if n == 1:
        return linear(outside, whole) + linear(inside, rest)
    return linear(outside, whole) + FloorDiv(linear(inside, rest), n)


def modulo(expr: ExprLike, divisor: int) -> Expr:
    """``expr % divisor`` with every multiple of the divisor dropped."""
    expr = as_expr(expr)
    n = _divisor(expr, divisor, "%")
    inside = linear({atom: c % n for atom, c in expr.terms}, expr.constant % n)
    if inside.is_constant:
        return constant(inside.constant % n)
    return Mod(inside, n)


def _extremum(kind: type[Min] | type[Max], better: Any, arguments: tuple[ExprLike, ...]) -> Expr:
    """The canonical minimum or maximum: nested ones flattened, and of several arguments that differ only
    by a constant the one that decides."""
    if not arguments:
        raise IndexExpressionError(f"tp.{kind.name}() of index expressions needs at least one argument")
    flat: list[Expr] = []
    for argument in map(as_expr, arguments):
        flat.extend(argument.arguments if isinstance(argument, kind) else (argument,))
    deciding: dict[tuple[tuple[Expr, int], ...], int] = {}
    for e in flat:
        deciding[e.terms] = better(deciding.get(e.terms, e.constant), e.constant)
    kept = [linear(dict(terms), const) for terms, const in deciding.items()]
    return kept[0] if len(kept) == 1 else kind(kept)


def minimum(*arguments: ExprLike) -> Expr:
    return _extremum(Min, min, arguments)


def maximum(*arguments: ExprLike) -> Expr:
    return _extremum(Max, max, arguments)


def _comparison(greater: ExprLike, less: ExprLike, *, strict: bool = False) -> Condition:
    from tempo.symbolic.condition import at_least_zero

    return at_least_zero(as_expr(greater) - as_expr(less) - int(strict))
