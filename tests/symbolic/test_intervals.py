import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempo.errors import IndexExpressionError
from tempo.symbolic import Bound, Dim, Expr, ExprLike, Symbol, maximum, minimum
from tempo.symbolic.intervals import decide, extremes, interval
from tests.symbolic.strategies import (
    Meant,
    MeantCondition,
    Point,
    affine,
    any_expression,
    conditions,
    points,
    quasi_affine,
)
from tests.symbolic.strategies import t as small_t
from tests.symbolic.strategies import u as small_u

T, B = Bound("T"), Bound("B")
t, b = Dim("t", T), Dim("b", B)
n = Symbol("n")

over_t = {t: (0, T - 1)}
over_both = {t: (0, T - 1), b: (0, B - 1)}


@pytest.mark.parametrize(
    ("expr", "low", "high"),
    [
        (7, 7, 7),
        (T, T, T),
        (t, 0, T - 1),
        (t + 3, 3, T + 2),
        (T - t - 1, 0, T - 1),
        (2 * t - b + 1, 2 - B, 2 * T - 1),
        (t // 4, 0, (T - 1) // 4),
        (-(t // 4), -((T - 1) // 4), 0),
        (t % 4, 0, 3),
        (T % 4, T % 4, T % 4),
        (minimum(t + 5, T), minimum(5, T), T),
        (maximum(t - 3, 0), 0, maximum(T - 4, 0)),
        (T * t, 0, T * (T - 1)),
        (T * t + b, 0, T * (T - 1) + B - 1),
        (t * b, 0, (T - 1) * (B - 1)),
    ],
)
def test_symbolic_ends(expr: Expr, low: ExprLike, high: ExprLike) -> None:
    assert extremes(expr, over_both) == (low, high)


def test_other_symbols_remain() -> None:
    assert extremes(t - b, over_t) == (-b, T - 1 - b)
    assert extremes(minimum(t, b), over_t) == (minimum(0, b), minimum(T - 1, b))


@pytest.mark.parametrize(
    ("ends", "remainder"),
    [
        ((0, 3), (0, 3)),
        ((5, 6), (1, 2)),
        ((-3, -2), (1, 2)),
        ((3, 4), (0, 3)),  # 3 and 0
        ((0, 40), (0, 3)),
        ((4 * T + 1, 4 * T + 2), (1, 2)),
    ],
)
def test_remainder_within_one_period(ends: tuple[ExprLike, ExprLike], remainder: tuple[int, int]) -> None:
    assert extremes(t % 4, {t: ends}) == remainder


def test_products() -> None:
    assert interval(t * b, {t: (-2, 3), b: (-5, 1)}) == (-15, 10)
    assert extremes(t * b * T, {t: (-2, 3), b: (-5, 1)}) == (-15 * T, 10 * T)
    assert extremes(B * t, {t: (-T, T)}) == (-B * T, B * T)
    assert extremes((B // 2) * t, {t: (-1, 1)}) == (-(B // 2), B // 2)
    assert extremes(minimum(B, 3) * maximum(n, 0) * t, {t: (-1, 1)}) == (
        -minimum(B, 3) * maximum(n, 0),
        minimum(B, 3) * maximum(n, 0),
    )


@pytest.mark.parametrize(
    ("product", "ranges", "text"),
    [
        (n * t, over_t, "t*n"),
        ((n // 2) * t, over_t, "t*(n//2)"),
        (minimum(n, T) * t, over_t, "t*min(T, n)"),
        (t * b, {t: (-T, T), b: (0, B)}, "t*b"),
        (t * b, {t: (-1, T), b: (-1, 1)}, "t*b"),
    ],
)
def test_a_product_of_unknown_sign(product: Expr, ranges: dict[Symbol, tuple[ExprLike, ExprLike]], text: str) -> None:
    with pytest.raises(IndexExpressionError) as error:
        extremes(product, ranges)
    assert str(error.value) == (
        f"the least and the greatest value of {text} are not known: "
        "more than one factor varies and one may be negative\n"
        "  hint: a product of ranges has known ends where they are numbers or at least zero"
    )


def test_interval_needs_every_range() -> None:
    assert interval(2 * t - T, {t: (0, 4), T: (5, 5)}) == (-5, 3)
    assert interval(3, {}) == (3, 3)
    with pytest.raises(ValueError, match=r"^no range is given for T, b in T \+ b - t$"):
        interval(T - t + b, {t: (0, 4)})
    with pytest.raises(ValueError, match=r"^no range is given for b in b - t \+ 9$"):
        interval(T - t + b, {t: (0, 4)}, {T: 9})


# -- properties -----------------------------------------------------------------------------------

range_ends = st.tuples(st.integers(-6, 6), st.integers(0, 4)).map(lambda e: (e[0], e[0] + e[1]))
numeric_ranges = st.fixed_dictionaries({small_t: range_ends, small_u: range_ends})
Numeric = dict[Symbol, tuple[int, int]]


def inside(ranges: Numeric) -> list[Point]:
    (t_low, t_high), (u_low, u_high) = ranges[small_t], ranges[small_u]
    return [{small_t: i, small_u: j} for i in range(t_low, t_high + 1) for j in range(u_low, u_high + 1)]


def values(meant: Meant, ranges: Numeric) -> list[int]:
    return [meant.meaning(point) for point in inside(ranges)]


def truths(meant: MeantCondition, ranges: Numeric) -> list[bool]:
    return [meant.meaning(point) for point in inside(ranges)]


@given(any_expression, numeric_ranges)
def test_sound(meant: Meant, ranges: Numeric) -> None:
    low, high = interval(meant.built, ranges)
    found = values(meant, ranges)
    assert low <= min(found)
    assert max(found) <= high


@given(affine(), numeric_ranges)
def test_exact_for_affine_expressions(meant: Meant, ranges: Numeric) -> None:
    found = values(meant, ranges)
    assert interval(meant.built, ranges) == (min(found), max(found))


@given(any_expression, numeric_ranges, st.integers(-6, 6))
def test_a_number_is_a_range_of_one(meant: Meant, ranges: Numeric, number: int) -> None:
    expected = interval(meant.built.substitute({small_u: number}), ranges)
    assert interval(meant.built, ranges, {small_u: number}) == expected


@given(conditions(affine()), numeric_ranges)
def test_what_is_decided_holds_at_every_point(meant: MeantCondition, ranges: Numeric) -> None:
    truth = decide(meant.built, ranges, {})
    if truth is not None:
        assert set(truths(meant, ranges)) == {truth}
    one = {symbol: (low, low) for symbol, (low, _) in ranges.items()}
    assert [decide(meant.built, one, {})] == truths(meant, one)


@given(quasi_affine)
def test_sound_at_every_value_of_the_other_symbols(meant: Meant) -> None:
    low, high = extremes(meant.built, {small_t: (0, small_t.bound - 1)})
    assert small_t not in low.symbols() | high.symbols()
    for point in points():
        assert low.evaluate(point) <= meant.meaning(point) <= high.evaluate(point)
