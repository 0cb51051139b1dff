"""Index terms and conditions as data: what stands between brackets, before Tempo sees it.

A term prints as the Python that writes it and evaluates to the integer it means. Nothing is simplified, so that
``t - 1`` and ``(2*t - 2)//2`` stay different programs with one meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Values = Mapping[str, int]


class Term:
    """An integer expression of dims and bounds."""

    def evaluate(self, values: Values) -> int:
        raise NotImplementedError

    def symbols(self) -> frozenset[str]:
        raise NotImplementedError

    def substitute(self, replacement: Mapping[str, Term]) -> Term:
        raise NotImplementedError

    def linear(self) -> tuple[dict[Term, int], int]:
        """The term as a combination of parts plus a number; min, max, // and % stay whole."""
        return {self: 1}, 0

    def __add__(self, other: Term | int) -> Term:
        return Arithmetic("+", self, as_term(other))

    def __sub__(self, other: Term | int) -> Term:
        return Arithmetic("-", self, as_term(other))

    def __mul__(self, other: int) -> Term:
        return Arithmetic("*", self, Number(other))

    def __floordiv__(self, other: int) -> Term:
        return Arithmetic("//", self, Number(other))

    def __mod__(self, other: int) -> Term:
        return Arithmetic("%", self, Number(other))


@dataclass(frozen=True)
class Number(Term):
    value: int

    def evaluate(self, values: Values) -> int:
        return self.value

    def symbols(self) -> frozenset[str]:
        return frozenset()

    def substitute(self, replacement: Mapping[str, Term]) -> Term:
        return self

    def linear(self) -> tuple[dict[Term, int], int]:
        return {}, self.value

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Symbol(Term):
    """A dim or a bound, by name."""

    name: str

    def evaluate(self, values: Values) -> int:
        return values[self.name]

    def symbols(self) -> frozenset[str]:
        return frozenset((self.name,))

    def substitute(self, replacement: Mapping[str, Term]) -> Term:
        return replacement.get(self.name, self)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Arithmetic(Term):
    sign: str
    left: Term
    right: Term

    def evaluate(self, values: Values) -> int:
        a, b = self.left.evaluate(values), self.right.evaluate(values)
        match self.sign:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "//":
                return a // b
            case _:
                return a % b

    def symbols(self) -> frozenset[str]:
        return self.left.symbols() | self.right.symbols()

    def substitute(self, replacement: Mapping[str, Term]) -> Term:
        left, right = self.left.substitute(replacement), self.right.substitute(replacement)
        return Arithmetic(self.sign, left, right)

    def linear(self) -> tuple[dict[Term, int], int]:
        (parts, number), (others, other) = self.left.linear(), self.right.linear()
        if self.sign == "*" and not others:
            return {p: c * other for p, c in parts.items() if other}, number * other
        if self.sign not in "+-":
            return {self: 1}, 0
        factor = 1 if self.sign == "+" else -1
        total = dict(parts)
        for part, c in others.items():
            total[part] = total.get(part, 0) + factor * c
        return {p: c for p, c in total.items() if c}, number + factor * other

    def __str__(self) -> str:
        left = f"({self.left})" if self.sign in "*//%" and _compound(self.left) else str(self.left)
        right = f"({self.right})" if _compound(self.right) else str(self.right)
        return f"{left} {self.sign} {right}" if self.sign in "+-" else f"{left}{self.sign}{right}"


def _compound(term: Term) -> bool:
    return isinstance(term, Arithmetic)


@dataclass(frozen=True)
class Extremum(Term):
    """The least (``min``) or the greatest (``max``) of several terms."""

    kind: str
    arguments: tuple[Term, ...]

    def evaluate(self, values: Values) -> int:
        numbers = [a.evaluate(values) for a in self.arguments]
        return min(numbers) if self.kind == "min" else max(numbers)

    def symbols(self) -> frozenset[str]:
        return frozenset().union(*(a.symbols() for a in self.arguments))

    def substitute(self, replacement: Mapping[str, Term]) -> Term:
        return Extremum(self.kind, tuple(a.substitute(replacement) for a in self.arguments))

    def __str__(self) -> str:
        if not self.symbols():  # of numbers alone, tp.min and tp.max are functions of tensors
            return str(self.evaluate({}))
        return f"tp.{self.kind}({', '.join(map(str, self.arguments))})"


def as_term(value: Term | int) -> Term:
    return value if isinstance(value, Term) else Number(value)


def least(*arguments: Term | int) -> Term:
    return Extremum("min", tuple(map(as_term, arguments)))


def most(*arguments: Term | int) -> Term:
    return Extremum("max", tuple(map(as_term, arguments)))


def difference(stop: Term, start: Term) -> Term | int:
    """``stop - start``, as a number where it is one."""
    parts, number = (stop - start).linear()
    if not parts:
        return number
    ordered = sorted(parts.items(), key=lambda part: part[1] < 0)
    result: Term | None = None
    for part, c in ordered:
        scaled = part if abs(c) == 1 else part * abs(c)
        if result is None:
            result = scaled if c > 0 else Number(0) - scaled
        else:
            result = result + scaled if c > 0 else result - scaled
    assert result is not None
    return result if not number else result + number if number > 0 else result - -number


# -- conditions -----------------------------------------------------------------------------------------


class Condition:
    """A condition on dims and bounds."""

    def evaluate(self, values: Values) -> bool:
        raise NotImplementedError

    def symbols(self) -> frozenset[str]:
        raise NotImplementedError

    def substitute(self, replacement: Mapping[str, Term]) -> Condition:
        raise NotImplementedError


@dataclass(frozen=True)
class Comparison(Condition):
    sign: str
    left: Term
    right: Term

    def evaluate(self, values: Values) -> bool:
        a, b = self.left.evaluate(values), self.right.evaluate(values)
        truths = {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}
        return truths[self.sign]

    def symbols(self) -> frozenset[str]:
        return self.left.symbols() | self.right.symbols()

    def substitute(self, replacement: Mapping[str, Term]) -> Condition:
        left, right = self.left.substitute(replacement), self.right.substitute(replacement)
        return Comparison(self.sign, left, right)

    def __str__(self) -> str:
        named = {"==": "equal", "!=": "not_equal"}
        if self.sign in named:
            return f"tp.{named[self.sign]}({self.left}, {self.right})"
        return f"{self.left} {self.sign} {self.right}"


@dataclass(frozen=True)
class Combination(Condition):
    """Both (``&``) or either (``|``) of two conditions."""

    sign: str
    left: Condition
    right: Condition

    def evaluate(self, values: Values) -> bool:
        if self.sign == "&":
            return self.left.evaluate(values) and self.right.evaluate(values)
        return self.left.evaluate(values) or self.right.evaluate(values)

    def symbols(self) -> frozenset[str]:
        return self.left.symbols() | self.right.symbols()

    def substitute(self, replacement: Mapping[str, Term]) -> Condition:
        left, right = self.left.substitute(replacement), self.right.substitute(replacement)
        return Combination(self.sign, left, right)

    def __str__(self) -> str:
        return f"({self.left}) {self.sign} ({self.right})"


@dataclass(frozen=True)
class Negation(Condition):
    condition: Condition

    def evaluate(self, values: Values) -> bool:
        return not self.condition.evaluate(values)

    def symbols(self) -> frozenset[str]:
        return self.condition.symbols()

    def substitute(self, replacement: Mapping[str, Term]) -> Condition:
        return Negation(self.condition.substitute(replacement))

    def __str__(self) -> str:
        return f"~({self.condition})"


# -- index items -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One step of a dim. ``kind`` is what the generator meant by it, for the coverage table."""

    term: Term
    kind: str = "point"

    def symbols(self) -> frozenset[str]:
        return self.term.symbols()

    def substitute(self, replacement: Mapping[str, Term]) -> Point:
        return Point(self.term.substitute(replacement), self.kind)

    def steps(self, values: Values) -> range:
        at = self.term.evaluate(values)
        return range(at, at + 1)

    def __str__(self) -> str:
        return str(self.term)


@dataclass(frozen=True)
class Span:
    """The steps from ``start`` up to ``stop``."""

    start: Term
    stop: Term
    kind: str = "slice"

    @property
    def length(self) -> Term | int:
        return difference(self.stop, self.start)

    def symbols(self) -> frozenset[str]:
        return self.start.symbols() | self.stop.symbols()

    def substitute(self, replacement: Mapping[str, Term]) -> Span:
        return Span(self.start.substitute(replacement), self.stop.substitute(replacement), self.kind)

    def steps(self, values: Values) -> range:
        return range(self.start.evaluate(values), self.stop.evaluate(values))

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


Item = Point | Span


def spans(items: tuple[Item, ...]) -> Iterator[Span]:
    return (item for item in items if isinstance(item, Span))
