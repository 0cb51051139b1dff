import pytest
from hypothesis import given

from tempo.errors import IndexExpressionError
from tempo.symbolic import (
    FALSE,
    TRUE,
    Bound,
    Condition,
    Dim,
    Symbol,
    at_least_zero,
    conjunction,
    disjunction,
    equal,
    minimum,
)
from tests.symbolic.strategies import (
    Meant,
    MeantCondition,
    any_expression,
    conditions,
    points,
    wide_points,
)
from tests.symbolic.strategies import t as wide_t
from tests.symbolic.strategies import u as wide_u

T = Bound("T")
t, u = Dim("t", T), Dim("u", T)

any_condition = conditions(any_expression)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (t >= 1, "t >= 1"),
        (t > 0, "t >= 1"),
        (1 <= t, "t >= 1"),  # noqa: SIM300
        (t < 5, "t < 5"),
        (t <= 4, "t < 5"),
        (5 > t, "t < 5"),  # noqa: SIM300
        (t < T, "t < T"),
        (t < T - 1, "T >= t + 2"),
        (t >= u, "t >= u"),
        (t > u, "u < t"),
        (t - u >= 3, "t >= u + 3"),
        # The integers between the multiples of the common factor do not matter.
        (2 * t >= 1, "t >= 1"),
        (2 * t < 5, "t < 3"),
        (at_least_zero(4 * t - 6 * u + 3), "2*t >= 3*u - 1"),
        (minimum(t, u) >= 2, "min(t, u) >= 2"),
        (t % 2 < 1, "t%2 < 1"),
        (equal(t, 3), "t == 3"),
        (equal(3, t), "t == 3"),
        (equal(u, t + 1), "t == u - 1"),
        (equal(2 * t, 6), "t == 3"),
        (~equal(t, 3), "t != 3"),
        (~(t < 5), "t >= 5"),
        ((t >= 1) & (t < 5), "t >= 1 and t < 5"),
        ((t >= 1) | (t < u), "t >= 1 or t < u"),
        ((t >= 1) & (t < 5) & (u < 2), "t >= 1 and t < 5 and u < 2"),
        ((t >= 1) & ((u < 2) | equal(t, u)), "t >= 1 and (u < 2 or t == u)"),
        (~((t >= 1) & ~equal(u, 2)), "t < 1 or u == 2"),
        (TRUE, "true"),
        (FALSE, "false"),
    ],
)
def test_text(condition: Condition, text: str) -> None:
    assert str(condition) == repr(condition) == text


def test_what_is_known_is_decided() -> None:
    assert (t >= t) is TRUE
    assert (t > t) is FALSE
    assert (t + 1 > t) is TRUE
    assert equal(t, t) is TRUE
    assert equal(t, t + 1) is FALSE
    assert equal(2 * t, 3) is FALSE
    assert ~TRUE is FALSE
    assert ~FALSE is TRUE


def test_connectives_drop_what_does_not_matter() -> None:
    early = t < 5
    assert (early & TRUE) is early
    assert (early & FALSE) is FALSE
    assert (early | FALSE) is early
    assert (early | TRUE) is TRUE
    assert (early & early) == early
    assert (early & ~early) is FALSE
    assert (early | ~early) is TRUE
    assert (early & (u < 5) & ~early) is FALSE
    assert conjunction([]) is TRUE
    assert disjunction([]) is FALSE


def test_equality_and_hash() -> None:
    early, first = t < 5, equal(u, 0)
    assert early == (t <= 4)
    assert hash(early) == hash(t <= 4)
    assert early & first == first & early
    assert hash(early & first) == hash(first & early)
    assert early & first != early | first
    assert ~~first == first
    assert ~(early & first) == ~early | ~first
    assert equal(t, u) == equal(u, t)
    assert early != (u < 5)
    assert (early == 3) is False


def test_substitution() -> None:
    assert (t < T).substitute({T: 5}) == (t < 5)
    assert (t < T).substitute({t: 3, T: 5}) is TRUE
    assert equal(t, u).substitute({t: u + 1}) is FALSE
    assert (~equal(t, 3)).substitute({t: 3}) is FALSE
    assert ((t < T) & (u >= 1)).substitute({T: 5, u: 1}) == (t < 5)
    assert ((t < T) | (u >= 1)).substitute({u: 1}) is TRUE


def test_symbols() -> None:
    assert ((t < T) & ~equal(u, 3)).symbols() == {t, u, T}
    assert TRUE.symbols() == frozenset()


NO_TRUTH = (
    "the condition {} has no truth value while the program is written\n"
    "  hint: combine conditions with &, | and ~ (a chained 0 <= t < 5 is (t >= 0) & (t < 5)); "
    "a tensor defined by cases takes the place of if"
)


@pytest.mark.parametrize(
    ("use", "condition"),
    [
        (lambda: 0 <= t < 5, "t >= 0"),
        (lambda: bool(t < 5), "t < 5"),
        (lambda: (t < 5) and (u < 5), "t < 5"),
        (lambda: not equal(t, 3), "t == 3"),
        (lambda: 1 if (t < 5) & (u < 5) else 0, "t < 5 and u < 5"),
    ],
)
def test_a_condition_has_no_truth_value(use: object, condition: str) -> None:
    with pytest.raises(IndexExpressionError) as error:
        use()  # type: ignore[operator]
    assert str(error.value) == NO_TRUTH.format(condition)


def test_decided_conditions_have_a_truth_value() -> None:
    assert t < t + 1
    assert not t < t


# -- properties -----------------------------------------------------------------------------------


@given(any_condition, wide_points)
def test_canonical_form_keeps_the_truth(meant: MeantCondition, point: dict[Symbol, int]) -> None:
    assert meant.built.evaluate(point) == meant.meaning(point)


@given(any_condition)
def test_negation_is_the_complement(meant: MeantCondition) -> None:
    for point in points():
        assert (~meant.built).evaluate(point) == (not meant.meaning(point))


@given(any_condition)
def test_double_negation(meant: MeantCondition) -> None:
    assert ~~meant.built == meant.built


@given(any_condition, wide_points)
def test_text_means_the_same_in_python(meant: MeantCondition, point: dict[Symbol, int]) -> None:
    names = {s.name: value for s, value in point.items()}
    scope = {"min": min, "max": max, "true": True, "false": False, **names}
    assert eval(str(meant.built), scope) == meant.meaning(point)


@given(any_condition, any_expression, any_expression, wide_points)
def test_substitution_commutes_with_evaluation(
    meant: MeantCondition, new_t: Meant, new_u: Meant, point: dict[Symbol, int]
) -> None:
    moved = {wide_t: new_t.meaning(point), wide_u: new_u.meaning(point)}
    substituted = meant.built.substitute({wide_t: new_t.built, wide_u: new_u.built})
    assert substituted.evaluate(point) == meant.meaning(moved)


@given(any_condition, any_condition)
def test_order_does_not_matter(a: MeantCondition, b: MeantCondition) -> None:
    assert (a.built & b.built) == (b.built & a.built)
    assert (a.built | b.built) == (b.built | a.built)
