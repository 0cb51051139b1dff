"""What all tests share."""

import pytest


@pytest.fixture(autouse=True)
def no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that tests compile are not opened again without being traced: some tests change the compiler, which the
    records on disk know nothing about."""
    monkeypatch.setattr("tempo.backends.jax.whole.LEAST_SECONDS", float("inf"))
