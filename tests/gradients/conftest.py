"""JAX computes in float64 while these tests run, and only then."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
