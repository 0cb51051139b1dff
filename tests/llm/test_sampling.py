"""Which tokens are among those to choose from."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.llm.sampling import Sampling, choose, likely, penalised

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.25, 0.2], np.float32))


def kept(**numbers: float) -> list[int]:
    with tp.Program() as prog:
        given = {name: tp.constant(value) for name, value in numbers.items()}
        prog.output("left", likely(tp.constant(LOGITS), given))
    left = prog.evaluate().left
    assert np.array_equal(left[np.isfinite(left)], LOGITS[np.isfinite(left)])
    return np.flatnonzero(np.isfinite(left)).tolist()


@pytest.mark.parametrize(
    ("numbers", "tokens"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.7}, [1, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.5}, [1, 3, 4]),
        ({"min_p": 0.0}, [0, 1, 2, 3, 4]),
        # Of the four greatest, the probabilities are 0.42, 0.26, 0.21 and 0.11.
        ({"top_k": 4, "top_p": 0.85}, [1, 3, 4]),
        ({"top_k": 4, "min_p": 0.6}, [1, 3]),
    ],
)
def test_what_stays(numbers: dict[str, float], tokens: list[int]) -> None:
    assert kept(**numbers) == tokens


def test_the_penalty_for_repetition() -> None:
    with tp.Program() as prog:
        counts = tp.constant(np.array([True, True, False]))
        tokens = tp.constant(np.array([0, 3, 1], np.int32))
        logits = tp.constant(np.array([2.0, 2.0, -1.0, -1.0], np.float32))
        prog.output("weighed", penalised(logits, tokens, counts, tp.constant(2.0)))
    assert prog.evaluate().weighed.tolist() == [1.0, 2.0, -1.0, -2.0]


def test_tokens_come_as_often_as_they_are_probable() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        prog.output("chosen", choose(tp.constant(LOGITS), {"temperature": tp.constant(1.0)}, (t,)))
    chosen = prog.compile({T: 20000})().chosen
    np.testing.assert_allclose(np.bincount(chosen, minlength=5) / 20000, np.exp(LOGITS), atol=0.015)


def test_without_a_temperature_it_is_the_most_probable() -> None:
    assert Sampling(temperature=0, top_k=3, repetition_penalty=1.5).used == ("repetition_penalty",)
    with tp.Program() as prog:
        prog.output("chosen", choose(tp.constant(LOGITS), {}, ()))
    assert prog.evaluate().chosen == 1


@pytest.mark.parametrize("numbers", [{}, {"top_k": 3, "top_p": 0.9}, {"min_p": 0.1}])
def test_at_a_small_temperature_it_is_the_most_probable(numbers: dict[str, float]) -> None:
    """Divided by such a temperature, the greatest logits would all be infinite."""
    for temperature in (1e-6, 1e-37):
        with tp.Program() as prog:
            t, T = prog.dim("t")
            given = {name: tp.constant(value) for name, value in {**numbers, "temperature": temperature}.items()}
            prog.output("chosen", choose(tp.constant(LOGITS + 90), given, (t,)))
        assert prog.compile({T: 50})().chosen.tolist() == [1] * 50


def test_temperatures_that_are_none_in_float32() -> None:
    assert [Sampling(temperature=x).greedy for x in (0, 1e-50, 1e-40, 1e-37)] == [True, True, True, False]
