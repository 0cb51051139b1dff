"""Products and quotients of symbolic sizes."""

from __future__ import annotations

import pytest

from tempo.ops.sizes import quotient, total
from tempo.symbolic import Bound, Dim

T, B = Bound("T"), Bound("B")
t = Dim("t", T)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (12, 4, 3),
        (12, 5, None),
        (12, 0, None),
        (0, 3, 0),
        (6 * T, 3, 2 * T),
        (6 * T + 3, 3, 2 * T + 1),
        (6 * T + 3, 2, None),
        (B * T, T, B),
        (B * T, B * T, 1),
        (B * T + T, B + 1, T),
        (B * T + T, B, None),
        (T * T - 1, T + 1, T - 1),
        ((t + 1) * (T - t) * 4, 2 * (T - t), 2 * t + 2),
        (4, T, None),
        ((T // 2) * B, T // 2, B),
    ],
)
def test_quotient(a, b, expected):
    assert quotient(a, b) == expected


def test_what_divides_gives_back_the_product():
    for a in (T + 1, 2 * t + T, B * t + 3, T // 2 + B):
        for b in (t + 1, B * T + 2, 5, T - t):
            assert quotient(total((a, b)), b) == a
