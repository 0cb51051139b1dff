import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempo.errors import IndexExpressionError
from tempo.symbolic import Bound, Dim, Expr, Symbol, as_expr, constant, maximum, minimum
from tempo.symbolic.expr import floor_div, modulo
from tests.symbolic.strategies import Meant, any_expression, wide_points
from tests.symbolic.strategies import t as wide_t
from tests.symbolic.strategies import u as wide_u

T, B = Bound("T"), Bound("B")
t, b = Dim("t", T), Dim("b", B)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (t, "t"),
        (t + 0, "t"),
        (t - 1, "t - 1"),
        (1 + t, "t + 1"),
        (-t, "-t"),
        (+t, "t"),
        (3 - t, "-t + 3"),
        (t - t, "0"),
        (t + t, "2*t"),
        (t * 3 - 2, "3*t - 2"),
        (-2 * t, "-2*t"),
        (0 * t + 7, "7"),
        # Symbols in the order of their declaration, positive terms first.
        (b + t, "t + b"),
        (t + T, "T + t"),
        (T - t - 1, "T - t - 1"),
        (-t + T - 1, "T - t - 1"),
        (2 * (t + b) - b, "2*t + b"),
    ],
)
def test_linear_combinations_have_one_form(expr: Expr, text: str) -> None:
    assert str(expr) == repr(expr) == text


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (t // 1, "t"),
        (t // 4, "t//4"),
        ((t + 1) // 4, "(t + 1)//4"),
        ((2 * t) // 3, "2*t//3"),
        # Multiples of the divisor come out, the rest is reduced.
        ((4 * t + 9) // 4, "t + 2"),
        ((4 * t + b) // 4, "t + b//4"),
        ((5 * t) // 4, "t + t//4"),
        ((2 * t + 1) // 4, "t//2"),
        ((t - 1) // 4, "(t + 3)//4 - 1"),
        ((-t) // 4, "3*t//4 - t"),
        ((t // 2) // 3, "(t//2)//3"),
        (2 * (t // 3), "2*(t//3)"),
        (T - t // 2, "T - t//2"),
        (-(t // 2), "-(t//2)"),
        (-(t % 2) + 1, "-(t%2) + 1"),
        (t % 1, "0"),
        (t % 4, "t%4"),
        ((t + 1) % 4, "(t + 1)%4"),
        ((t - 1) % 4, "(t + 3)%4"),
        ((4 * t + 6) % 4, "2"),
        ((5 * t + b) % 4, "(t + b)%4"),
        ((t // 2) % 3, "(t//2)%3"),
    ],
)
def test_division_and_remainder_are_reduced(expr: Expr, text: str) -> None:
    assert str(expr) == text


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (minimum(t), "t"),
        (minimum(t, 3), "min(t, 3)"),
        (minimum(3, 5), "3"),
        (maximum(3, 5), "5"),
        (minimum(t, t + 1), "t"),
        (maximum(t, t + 1, t - 2), "t + 1"),
        (minimum(b, t), "min(t, b)"),
        (minimum(minimum(t, 4), minimum(b, 2)), "min(t, b, 2)"),
        (maximum(minimum(t, 4), 0), "max(0, min(t, 4))"),
        (2 * minimum(t, b) - 1, "2*min(t, b) - 1"),
        (minimum(t, b) // 2, "min(t, b)//2"),
    ],
)
def test_minimum_and_maximum_are_flat(expr: Expr, text: str) -> None:
    assert str(expr) == text


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (T * B, "T*B"),
        (B * T, "T*B"),
        (2 * T * B, "2*T*B"),
        (T * T, "T*T"),
        ((T + 1) * (B - 2), "B + T*B - 2*T - 2"),
        ((T + 1) * (T - 1), "T*T - 1"),
        (T * (t // 2), "T*(t//2)"),
        (T * B - B * T, "0"),
        ((T * B).substitute({B: 3}), "3*T"),
    ],
)
def test_products_are_expanded(expr: Expr, text: str) -> None:
    assert str(expr) == text


def test_equal_expressions_are_equal_and_hash_alike() -> None:
    assert t + 1 == 1 + t
    assert hash(t + 1) == hash(1 + t)
    assert minimum(t, b) == minimum(b, t)
    assert t // 2 != t // 3
    assert t // 2 != t % 2
    assert minimum(t, b) != maximum(t, b)
    assert {t + 1: "next"}[1 + t] == "next"
    assert len({t, t + 0, 2 * t - t, b}) == 2


def test_equality_is_a_plain_bool() -> None:
    assert (t == 3) is False
    assert (t != 3) is True
    assert (t == t) is True
    assert (t == b) is False
    assert (t == "t") is False
    assert (t is None) is False


def test_constants_equal_integers() -> None:
    assert constant(3) == 3
    assert 3 == t - t + 3  # noqa: SIM300
    assert constant(3) != 4
    assert hash(constant(3)) == hash(3)
    assert {3: "three"}[constant(3)] == "three"
    assert constant(1) != True  # noqa: E712


def test_symbols_of_one_name_are_different() -> None:
    other = Dim("t", T)
    assert t != other
    assert str(t - other) == "t - t"


def test_equality_does_not_rest_on_names() -> None:
    x, other = Symbol("x"), Symbol("x")
    left, right = (t + x) // 2, (t + other) // 2
    assert left + right == right + left
    assert hash(left + right) == hash(right + left)
    assert minimum(t + x, t + other) == minimum(t + other, t + x)


def test_numpy_integers_are_numbers() -> None:
    assert t + np.int64(2) == t + 2
    assert np.int64(2) + t == t + 2
    assert np.int32(2) * t == 2 * t
    assert np.int64(2) - t == 2 - t
    assert type(as_expr(np.int64(5)).constant) is int
    assert (np.int64(2) <= t) == (t >= 2)
    assert (np.int64(2) > t) == (t < 2)


def test_division_rounds_down() -> None:
    assert floor_div(-1, 4) == -1
    assert modulo(-1, 4) == 3
    assert (t // 4).evaluate({t: -5}) == -2
    assert (t % 4).evaluate({t: -5}) == 3
    assert ((t - 1) // 4).evaluate({t: 0}) == -1
    assert ((t - 1) % 4).evaluate({t: 0}) == 3


def test_constants_are_numbers() -> None:
    assert (int(t - t + 3), [*range(T - T + 2)]) == (3, [0, 1])


def test_truth_of_constants() -> None:
    assert not (t - t)
    assert t - t + 2


def test_symbols() -> None:
    assert (t + b // 2 - T).symbols() == {t, b, T}
    assert minimum(t, b % 3).symbols() == {t, b}
    assert (T * B).symbols() == {T, B}
    assert constant(3).symbols() == frozenset()


def test_substitution_is_simultaneous() -> None:
    assert (t - 2 * b).substitute({t: b, b: t}) == b - 2 * t
    assert minimum(t, 3).substitute({t: 5}) == 3
    assert ((t + 1) // 2).substitute({t: 2 * b + 1}) == b + 1
    assert (T * t).substitute({T: 4}) == 4 * t
    assert (t % 4).substitute({b: 1}) == t % 4


class NotAnIndex:
    def __repr__(self) -> str:
        return "<thing>"


HINT = (
    "\n  hint: index expressions are made of dims, bounds and integers with +, -, *, //, %, tp.min "
    "and tp.max; to use an index as a number in a tensor write t.value, to index by a tensor use "
    "x[0:T].take(idx)"
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: as_expr(1.5), "not an index expression: 1.5 of type float" + HINT),
        (lambda: 0.5 * t, "not an index expression: 0.5 of type float" + HINT),
        (lambda: t < 2.5, "not an index expression: 2.5 of type float" + HINT),
        (lambda: as_expr(True), "not an index expression: True of type bool" + HINT),
        (lambda: as_expr("t"), "not an index expression: 't' of type str" + HINT),
        (
            lambda: minimum(t, NotAnIndex()),
            "not an index expression: <thing> of type NotAnIndex" + HINT,
        ),
        (
            lambda: as_expr(np.array([1])),
            "not an index expression: array([1]) of type ndarray" + HINT,
        ),
        (
            lambda: t // 0,
            "t // 0: the divisor must be a positive integer constant\n"
            "  hint: index expressions are quasi-affine; only constants can divide",
        ),
        (
            lambda: t % -2,
            "t % -2: the divisor must be a positive integer constant\n"
            "  hint: index expressions are quasi-affine; only constants can divide",
        ),
        (
            lambda: (t + 1) // b,
            "(t + 1) // b: the divisor must be a positive integer constant\n"
            "  hint: index expressions are quasi-affine; only constants can divide",
        ),
        (
            lambda: (t - 1) / 2,
            "(t - 1) / 2: an index must be an integer\n  hint: use // (floor division)",
        ),
        (lambda: abs(t - 1), "abs(t - 1): not an index\n  hint: write tp.max(t - 1, -t + 1)"),
        (
            lambda: bool(t - 1),
            "the truth value of the index expression t - 1 is not known while the program is "
            "written\n  hint: comparisons such as t < 5 build conditions; combine them with &, | "
            "and ~",
        ),
        *(
            (
                lambda use=use: use(T - 1),
                "T - 1 is not known as a number while the program is written\n  hint: no loop over steps is written: "
                "say what a tensor is at step t; numbers are given to compile",
            )
            for use in (int, float, range)
        ),
        (lambda: minimum(), "tp.min() of index expressions needs at least one argument"),
        (lambda: maximum(), "tp.max() of index expressions needs at least one argument"),
    ],
)
def test_errors(build: object, message: str) -> None:
    with pytest.raises(IndexExpressionError) as error:
        build()  # type: ignore[operator]
    assert str(error.value) == message


@pytest.mark.parametrize("other", ["t", None, True, np.array([1, 2])])
def test_arithmetic_with_other_types_is_left_to_them(other: object) -> None:
    assert t.__add__(other) is NotImplemented  # type: ignore[operator]
    assert t.__sub__(other) is NotImplemented  # type: ignore[operator]
    assert t.__rsub__(other) is NotImplemented  # type: ignore[operator]
    assert t.__mul__(other) is NotImplemented  # type: ignore[operator]
    assert t.__lt__(other) is NotImplemented  # type: ignore[operator]
    assert t.__ge__(other) is NotImplemented  # type: ignore[operator]


# -- properties -----------------------------------------------------------------------------------


@given(any_expression, wide_points)
def test_canonical_form_keeps_the_value(meant: Meant, point: dict[Symbol, int]) -> None:
    assert meant.built.evaluate(point) == meant.meaning(point)


@given(any_expression, wide_points)
def test_text_means_the_same_in_python(meant: Meant, point: dict[Symbol, int]) -> None:
    names = {s.name: value for s, value in point.items()}
    assert eval(str(meant.built), {"min": min, "max": max, **names}) == meant.meaning(point)


@given(any_expression, any_expression, any_expression)
def test_rearrangement_keeps_the_form(x: Meant, y: Meant, z: Meant) -> None:
    a, b, c = x.built, y.built, z.built
    for left, right in [
        (a + b, b + a),
        (a + (b + c), (a + b) + c),
        (a - b, -(b - a)),
        (a * b, b * a),
        (a + a, 2 * a),
        (a - a, constant(0)),
        (minimum(a, b, c), minimum(minimum(c, b), a)),
        (maximum(a, b, c), maximum(maximum(c, b), a)),
        ((6 * a + b) // 6, a + b // 6),
        ((6 * a + b) % 6, b % 6),
    ]:
        assert left == right
        assert hash(left) == hash(right)
        assert str(left) == str(right)


@given(any_expression, any_expression, any_expression, wide_points)
def test_substitution_commutes_with_evaluation(
    meant: Meant, new_t: Meant, new_u: Meant, point: dict[Symbol, int]
) -> None:
    moved = {wide_t: new_t.meaning(point), wide_u: new_u.meaning(point)}
    substituted = meant.built.substitute({wide_t: new_t.built, wide_u: new_u.built})
    assert substituted.evaluate(point) == meant.meaning(moved)


@given(any_expression)
def test_substituting_a_symbol_by_itself_changes_nothing(meant: Meant) -> None:
    assert meant.built.substitute({wide_t: wide_t}) == meant.built


@given(any_expression, wide_points)
def test_substituting_numbers_gives_a_constant(meant: Meant, point: dict[Symbol, int]) -> None:
    assert meant.built.substitute(point) == meant.meaning(point)


@given(any_expression, st.integers(-3, 3))
def test_the_value_depends_only_on_the_symbols_that_occur(meant: Meant, n: int) -> None:
    if wide_t not in meant.built.symbols():
        assert meant.meaning({wide_t: n, wide_u: 2}) == meant.meaning({wide_t: 0, wide_u: 2})
