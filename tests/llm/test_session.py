"""Conversations: what a turn gives is what the whole text so far would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import llm
from tests.llm.checkpoints import BEGINNING, CONTEXT, VOCABULARY

Checkpoint = Callable[..., tuple[Path, Any]]


def tokens_of(pieces: Iterator[llm.Piece]) -> list[int]:
    return [piece.token for piece in pieces if piece.token is not None]


@pytest.mark.parametrize("kind", ["gpt2", "mistral"])
def test_a_turn_goes_on_from_all_before_it(checkpoint: Checkpoint, kind: str, rng: np.random.Generator) -> None:
    model = llm.load(checkpoint(kind)[0])
    session = llm.Session(model)
    for length in (5, 14):
        prompt = rng.integers(8, VOCABULARY, length).tolist()
        before = list(session.tokens)
        pieces = list(session.stream(prompt, max_new_tokens=6, temperature=0))
        (expected,) = llm.generate(model, [*before, *prompt], max_new_tokens=6, temperature=0)
        assert [piece.token for piece in pieces if piece.token is not None] == list(expected.tokens)
        assert session.tokens == [*before, *prompt, *expected.tokens]
        assert session.remembered == len(session.tokens)


def test_a_few_programs_serve_a_conversation(checkpoint: Checkpoint, rng: np.random.Generator) -> None:
    model = llm.load(checkpoint("llama")[0])
    session = llm.Session(model)
    for length in (9, 30, 40, 25, 60, 1):
        for _ in session.stream(rng.integers(8, VOCABULARY, length).tolist(), max_new_tokens=20, temperature=0):
            pass
    assert len(model._runs) == 1


def test_a_turn_that_is_left_is_computed_again(checkpoint: Checkpoint) -> None:
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


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> llm.LanguageModel:
    return llm.load(checkpoint("gpt2")[0])


def test_the_penalty_is_for_tokens_of_earlier_turns_too(model: llm.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "temperature": 0, "repetition_penalty": 1.8}
    rng = np.random.default_rng(1)
    session = llm.Session(model)
    for length in (30, 5):
        prompt = rng.integers(8, VOCABULARY, length).tolist()
        (expected,) = llm.generate(model, [*session.tokens, *prompt], **options)
        assert tokens_of(session.stream(prompt, **options)) == list(expected.tokens)


def test_a_turn_that_fails_leaves_the_session_as_it_was(
    model: llm.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = llm.Session(model)
    list(session.stream([5, 6, 7], max_new_tokens=4, temperature=0))
    before, remembered = list(session.tokens), session.remembered

    def fail(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(model, "compiled", fail)
        with pytest.raises(MemoryError):
            list(session.stream([20, 21], max_new_tokens=4, temperature=0))
    assert (session.tokens, session.remembered) == (before, remembered)
    (expected,) = llm.generate(model, [*before, 20, 21], max_new_tokens=4, temperature=0)
    assert tokens_of(session.stream([20, 21], max_new_tokens=4, temperature=0)) == list(expected.tokens)


def test_a_turn_that_fails_later_counts_as_far_as_it_went(model: llm.LanguageModel) -> None:
    session = llm.Session(model)
    pieces = session.stream([5, 6, 7], max_new_tokens=4, temperature=0)
    first = next(pieces).token
    with pytest.raises(KeyError):
        pieces.throw(KeyError)
    assert session.tokens == [5, 6, 7, first]


@pytest.mark.parametrize("before", [3, 20])
def test_a_turn_without_a_prompt_goes_on(model: llm.LanguageModel, before: int) -> None:
    prompt = np.random.default_rng(2).integers(8, VOCABULARY, before).tolist()
    session = llm.Session(model)
    list(session.stream(prompt, max_new_tokens=3, temperature=0))
    nothing: tuple[Any, ...] = ("", [])
    for empty in nothing:
        so_far = list(session.tokens)
        (expected,) = llm.generate(model, so_far, max_new_tokens=3, temperature=0)
        assert tokens_of(session.stream(empty, max_new_tokens=3, temperature=0)) == list(expected.tokens)
        assert session.tokens == [*so_far, *expected.tokens]


def test_a_session_can_begin_without_a_prompt(model: llm.LanguageModel) -> None:
    session = llm.Session(model)
    list(session.stream("", max_new_tokens=2, temperature=0))
    assert session.tokens[0] == BEGINNING


def test_positions_of_a_session_come_to_an_end(model: llm.LanguageModel) -> None:
    session = llm.Session(model)
    list(session.stream([5] * 30, max_new_tokens=2, temperature=0))
    before = list(session.tokens)
    with pytest.raises(tp.errors.ModelError) as error:
        list(session.stream([6], max_new_tokens=CONTEXT))
    assert str(error.value) == (
        f"{len(before) + 1 + CONTEXT} tokens, the session's and the new ones, are more than the {CONTEXT} positions "
        f"that the model has\n  hint: ask for fewer new tokens, or begin a new session"
    )
    assert session.tokens == before


def test_an_option_that_there_is_not(model: llm.LanguageModel) -> None:
    options: Any = {"temprature": 0}
    with pytest.raises(TypeError) as error:
        list(llm.Session(model).stream([5], **options))
    assert str(error.value) == (
        "Session.stream() has no option 'temprature'; its options are max_new_tokens, stop, seed, temperature, top_k, "
        "top_p, min_p, repetition_penalty"
    )
