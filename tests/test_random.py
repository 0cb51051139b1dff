"""How random numbers are distributed."""

from __future__ import annotations

import pytest

import tempo as tp


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_draws_in_half_precision_are_rounded_and_not_made_of_few_bits(dtype: str) -> None:
    """Of the bits of bfloat16, a normal number would be 0 in one of 256 cases and never beyond 3.3."""
    with tp.Program() as prog:
        prog.output("normal", tp.random.normal(20_000, dtype=dtype))
        prog.output("rare", tp.random.bernoulli(tp.constant(0.001, dtype=dtype), 20_000))
        prog.output("never", tp.random.bernoulli(tp.constant(0.0, dtype=dtype), 20_000))
    drawn = prog.evaluate({}, seed=3)
    normal = drawn.normal.astype(float)
    assert drawn.normal.dtype == dtype
    assert abs(normal.std() - 1) < 0.02
    assert abs(normal).max() > 3.5
    assert (normal == 0).mean() < 1e-4
    assert 5 <= drawn.rare.sum() <= 45
    assert not drawn.never.any()
