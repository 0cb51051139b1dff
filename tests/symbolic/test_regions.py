"""Conditions within a box of steps: what holds everywhere is left out, and nothing else changes."""

import pytest
from hypothesis import given

from tempo.symbolic import TRUE, Bound, Condition, Dim, equal
from tempo.symbolic.regions import within
from tests.symbolic.strategies import DIMS, MeantCondition, any_expression, conditions, points

T = Bound("T")
t, u = Dim("t", T), Dim("u", T)
first, last = equal(t, 0), equal(t, T - 1)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (t >= 0, TRUE),
        (~first, t >= 1),
        ((t >= 1) | first, TRUE),
        (first | (t >= 1), TRUE),
        ((t < T - 1) | last, TRUE),
        ((t >= 3) | first, (t >= 3) | first),
        (first | ((t >= 1) & (u >= 1)) | equal(u, 0), TRUE),
        (((t >= 1) & (u >= 1)) | (first & equal(u, 0)), ((t >= 1) & (u >= 1)) | (first & equal(u, 0))),
    ],
)
def test_what_is_left(condition: Condition, expected: Condition) -> None:
    assert within(condition, (t, u)) == expected


@given(conditions(any_expression))
def test_the_same_points(condition: MeantCondition) -> None:
    found = within(condition.built, DIMS)
    assert all(found.evaluate(point) == condition.meaning(point) for point in points())
