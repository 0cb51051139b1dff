"""What all tests share."""

import signal
import threading

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that tests compile are not opened again without being traced: some tests change the compiler, which the
    records on disk know nothing about."""
    monkeypatch.setattr("tempo.backends.jax.whole.LEAST_SECONDS", float("inf"))


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that do not depend on which tests ran before in the same process."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> None:
    """A shell lets what it starts in the background ignore Ctrl-C, which some tests press."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
