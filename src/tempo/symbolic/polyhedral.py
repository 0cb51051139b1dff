"""isl sets and relations derived from index expressions and conditions.

The only module that talks to isl.  Spaces have named dims: a dim of the program is a set dim, every
other symbol is a parameter, and objects of different calls meet because isl matches parameters by
name.  These names are not the user's (``isl_name``).  Nothing here restricts a dim to its range unless
asked to: that is a condition (``box_of``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce

import islpy as isl

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
    at_least_zero,
    conjunction,
    disjunction,
    equal,
)
from tempo.symbolic.expr import (
    Bound,
    Dim,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Product,
    Symbol,
)
from tempo.symbolic.index import Index, Slice

_set, _in, _out, _param = (
    isl.dim_type.set,
    isl.dim_type.in_,
    isl.dim_type.out,
    isl.dim_type.param,
)


def isl_name(symbol: Symbol) -> str:
    """What a symbol is called in isl.

    The name that a user gave will not do: isl takes none that begins like a number ("2d"), ends it at a NUL, and would
    take two symbols of one name for the same."""
    return f"s{symbol.number}"


def to_set(condition: Condition, dims: Sequence[Dim]) -> isl.Set:
    """The points of ``dims`` where ``condition`` holds."""
    parameters = _parameters(dims, condition.symbols())
    space = isl.Space.create_from_names(
        isl.DEFAULT_CONTEXT,
        set=[isl_name(d) for d in dims],
        params=[isl_name(p) for p in parameters],
    )
    return _Frame(space, dims, parameters).points(condition)


def may_hold(condition: Condition, dims: Sequence[Dim]) -> bool:
    """Whether a condition may hold at some point, for some bounds."""
    bounds = conjunction(s >= 1 for s in condition.symbols() if isinstance(s, Bound))
    try:
        return not to_set(condition & bounds, dims).is_empty()
    except IndexExpressionError:
        return True


def access(
    index: Index,
    dims: Sequence[Dim],
    producer_dims: Sequence[Dim],
    condition: Condition = TRUE,
) -> isl.Map:
    """The relation from each point of the consumer's ``dims`` where ``condition`` holds to the points of
    ``producer_dims`` that ``index`` reads there."""
    if len(index) != len(producer_dims):
        raise ValueError(f"an index of {len(index)} items reads a tensor of {len(producer_dims)} dims")
    _check_distinct(producer_dims)
    # Of their own: a consumer that has the same dims is at another point.
    read = [Symbol(d.name) for d in producer_dims]
    parts = [condition]
    for point, item in zip(read, index, strict=True):
        if isinstance(item, Slice):
            parts += [point >= item.start, point < item.stop]
        else:
            parts.append(equal(point, item))
    relation = conjunction(parts)

    parameters = _parameters(dims, relation.symbols().difference(read))
    space = isl.Space.create_from_names(
        isl.DEFAULT_CONTEXT,
        in_=[isl_name(d) for d in dims],
        out=[isl_name(d) for d in producer_dims],
        params=[isl_name(p) for p in parameters],
    )
    # A wrapped relation is a set whose dims are those of the consumer, then those of the producer.
    return _Frame(space.wrap(), [*dims, *read], parameters).points(relation).unwrap()


def span(points: isl.Set, dim: Dim) -> tuple[int, int] | None:
    """The least and the greatest value of a dim over a bounded set and over all values of its parameters; None where
    the set is empty."""
    ends = _ends(points, _variable(points, dim))
    if ends is None:
        return None
    low, high = ends
    assert low is not None and high is not None, f"{dim} is unbounded"
    return low, high


def most_above(points: isl.Set, dim: Dim, bound: Bound) -> int | None:
    """The greatest difference between a dim and a bound, which is at least 1, over a bounded set; None where the set
    is empty."""
    position = points.find_dim_by_name(_param, isl_name(bound))
    function = _variable(points, dim)
    space = isl.LocalSpace.from_space(points.space)
    least = isl.Aff.zero_on_domain(space).add_constant_val(1)
    of = isl.Aff.var_on_domain(space, _param, position) if position >= 0 else least
    ends = _ends(points, function.sub(of))
    return None if ends is None else ends[1]


def _variable(points: isl.Set, dim: Dim) -> isl.Aff:
    return isl.Aff.var_on_domain(isl.LocalSpace.from_space(points.space), _set, _position(points, _set, dim))


def deltas_sign(relation: isl.Map, consumer_dim: Dim, producer_dim: Dim) -> tuple[int | None, int | None] | None:
    """The least and the greatest ``consumer_dim - producer_dim`` over a relation from consumer to
    producer points and over all values of its parameters.

    An end is None where the difference is unbounded.  The whole result is None where the relation
    is empty: there is no difference to speak of.
    """
    pairs = relation.wrap()
    space = isl.LocalSpace.from_space(pairs.get_space())
    consumer = _position(relation, _in, consumer_dim)
    producer = relation.dim(_in) + _position(relation, _out, producer_dim)
    difference = isl.Aff.var_on_domain(space, _set, consumer).sub(isl.Aff.var_on_domain(space, _set, producer))
    return _ends(pairs, difference)


class _Frame:
    """A set space together with the affine function that each symbol is on it."""

    def __init__(self, space: isl.Space, variables: Sequence[Symbol], parameters: Sequence[Symbol]) -> None:
        local = isl.LocalSpace.from_space(space)
        self.space = space
        self.zero = isl.Aff.zero_on_domain(local)
        self.symbols = {
            symbol: isl.Aff.var_on_domain(local, kind, position)
            for kind, symbols in ((_set, variables), (_param, parameters))
            for position, symbol in enumerate(symbols)
        }

    def value(self, expr: Expr) -> isl.Aff | isl.PwAff:
        """An ``Aff`` unless a minimum or maximum makes it piecewise."""
        total: isl.Aff | isl.PwAff = self.zero.add_constant_val(expr.constant)
        for atom, c in expr.terms:
            term = self._atom(atom)
            if c != 1:
                term = term.scale_val(c)
            if isinstance(total, isl.Aff) and isinstance(term, isl.Aff):
                total = total.add(term)
            else:
                total = _pieces(total).add(_pieces(term))
        return total

    def _atom(self, atom: Expr) -> isl.Aff | isl.PwAff:
        match atom:
            case Symbol():
                return self.symbols[atom]
            case FloorDiv():
                return self.value(atom.dividend).scale_down_val(atom.divisor).floor()
            case Mod():
                return self.value(atom.dividend).mod_val(atom.divisor)
            case Min():
                return reduce(isl.PwAff.min, (_pieces(self.value(a)) for a in atom.arguments))
            case Max():
                return reduce(isl.PwAff.max, (_pieces(self.value(a)) for a in atom.arguments))
            case Product():
                raise IndexExpressionError(
                    f"{atom}: an index may only multiply by a number",
                    hint="all factors but one must be integers once the bounds are known",
                )
        raise AssertionError(f"{type(atom).__name__} is not a kind of atom")

    def points(self, condition: Condition) -> isl.Set:
        match condition:
            case And():
                return reduce(isl.Set.intersect, map(self.points, condition.parts))
            case Or():
                return reduce(isl.Set.union, map(self.points, condition.parts))
            case Not():
                expr = condition.condition.expr
                return self.points((expr > 0) | (expr < 0))
            case AtLeastZero():
                if (by_cases := _decide_extremum(condition.expr)) is not None:
                    return self.points(by_cases)
                value = self.value(condition.expr)
                if isinstance(value, isl.Aff):
                    return value.ge_basic_set(self.zero).to_set()
                return value.nonneg_set()
            case EqualsZero():
                value = self.value(condition.expr)
                if isinstance(value, isl.Aff):
                    return value.zero_basic_set().to_set()
                return value.zero_set()
        if condition is TRUE:
            return isl.Set.universe(self.space)
        assert condition is FALSE
        return isl.Set.empty(self.space)


def _ends(points: isl.Set, function: isl.Aff) -> tuple[int | None, int | None] | None:
    """The least and the greatest value on a set, None where unbounded; None on an empty set."""
    # Piece by piece, for isl (in islpy 2026.2) counts an empty piece as the value 0: of the set
    # {t <= p < 0 <= t} or {p = -1}, Set.max_val and dim_max_val say that p reaches 0, and the
    # minima err likewise.
    pieces = [p.to_set() for p in points.get_basic_sets() if not p.is_empty()]
    if not pieces:
        return None
    lows = [p.min_val(function) for p in pieces]
    highs = [p.max_val(function) for p in pieces]
    return (
        min(v.to_python() for v in lows) if all(v.is_int() for v in lows) else None,
        max(v.to_python() for v in highs) if all(v.is_int() for v in highs) else None,
    )


def _decide_extremum(expr: Expr) -> Condition | None:
    """``expr >= 0`` with one minimum or maximum replaced by its arguments, None if it has none.

    ``min(a, b) >= 0`` is ``a >= 0`` and ``b >= 0``: one convex set, where the pieces of the
    function ``min(a, b)`` would give two.
    """
    for atom, c in expr.terms:
        if isinstance(atom, Min | Max):
            rest = expr - c * atom
            cases = (at_least_zero(rest + c * a) for a in atom.arguments)
            all_must_hold = isinstance(atom, Min) == (c > 0)
            return conjunction(cases) if all_must_hold else disjunction(cases)
    return None


def _pieces(value: isl.Aff | isl.PwAff) -> isl.PwAff:
    return isl.PwAff.from_aff(value) if isinstance(value, isl.Aff) else value


def _parameters(dims: Sequence[Dim], symbols: frozenset[Symbol]) -> list[Symbol]:
    """The symbols that are not dims, as declared."""
    _check_distinct(dims)
    return sorted(symbols.difference(dims), key=lambda s: s.number)


def _check_distinct(dims: Sequence[Dim]) -> None:
    twice = [d for d, count in Counter(dims).items() if count > 1]
    if twice:
        raise ValueError(f"{', '.join(map(str, twice))} occurs twice among the dims {', '.join(map(str, dims))}")


def _position(relation: isl.Map | isl.Set, kind: isl.dim_type, dim: Dim) -> int:
    position = relation.find_dim_by_name(kind, isl_name(dim))
    if position < 0:
        side = "consumer" if kind == _in else "producer"
        raise ValueError(f"the {side} side of {relation} has no dim {dim} ({isl_name(dim)})")
    return int(position)
