"""Conversations: what a turn gives is what the whole text so far would give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tempo import llm
from tests.llm.checkpoints import VOCABULARY

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", ["gpt2", "mistral"])
def test_a_turn_goes_on_from_all_before_it(checkpoint: Callable[..., tuple[Path, Any]], kind: str) -> None:
    model = llm.load(checkpoint(kind)[0])
    session = llm.Session(model)
    for length in (5, 14):
        prompt = RNG.integers(8, VOCABULARY, length).tolist()
        before = list(session.tokens)
        pieces = list(session.stream(prompt, max_new_tokens=6, temperature=0))
        (expected,) = llm.generate(model, [*before, *prompt], max_new_tokens=6, temperature=0)
        assert [piece.token for piece in pieces if piece.token is not None] == list(expected.tokens)
        assert session.tokens == [*before, *prompt, *expected.tokens]
        assert session.remembered == len(session.tokens)


def test_a_turn_that_is_left_is_computed_again(checkpoint: Callable[..., tuple[Path, Any]]) -> None:
    model = llm.load(checkpoint("llama")[0])
    session = llm.Session(model)
    pieces = session.stream([9, 8, 7], max_new_tokens=8, temperature=0)
    next(pieces)
    next(pieces)
    pieces.close()
    assert len(session.tokens) == 5
    assert session.remembered == 0
    found = [piece.token for piece in session.stream([20, 21], max_new_tokens=4, temperature=0)]
    (expected,) = llm.generate(model, session.tokens[:7], max_new_tokens=4, temperature=0)
    assert [token for token in found if token is not None] == list(expected.tokens)
