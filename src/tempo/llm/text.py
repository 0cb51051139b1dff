"""A text as it grows, token by token, up to its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tempo.errors import ModelError
from tempo.llm.model import LanguageModel
from tempo.llm.tokenizer import BESIDE, TextStream

Stop = str | Sequence[str] | None
"""A text that ends a text, or several, or none."""


def stop_texts(stop: Stop) -> tuple[str, ...]:
    """The texts that end a text, checked."""
    several: Any = () if stop is None else stop if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
    found = tuple(several)
    for text in found:
        if not isinstance(text, str):
            raise ModelError(f"stop = {stop!r}: {text!r} is not a text", hint="give a text, or a list of texts")
        if not text:
            raise ModelError(f"stop = {stop!r}: an empty text is everywhere", hint="leave it out")
    return found


def stops_of(model: LanguageModel, stop: Stop) -> tuple[str, ...]:
    """The texts that end a text of this model."""
    found = stop_texts(stop)
    if found and model.tokenizer is None:
        raise ModelError(
            f"stop = {stop!r}: the model has no tokenizer, so there is no text to look for it in",
            hint=BESIDE,
        )
    return found


class Text:
    """What is generated for one prompt, so far: it ends with a token that the model ends texts with, or before the
    first of the texts ``stops``."""

    def __init__(self, model: LanguageModel, stops: Sequence[str], after: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.ended = False
        self._stopped = False  # by one of ``stops``: what is behind it is dropped
        self._ends = frozenset(model.ends)
        self._stops = stops
        self._pieces = TextStream(model.tokenizer, after) if model.tokenizer is not None else None
        self._held = ""  # may be the beginning of a text that ends it

    def add(self, token: int, logprob: float | None) -> str | None:
        """The text that a token completes; None if it belongs to the end."""
        if self.ended or token in self._ends:
            self.ended = True
            return None
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        return self._passed(self._pieces.add(token) if self._pieces is not None else "")

    def rest(self) -> str:
        """What was held back, when nothing more comes."""
        piece = self._passed(self._pieces.rest()) if self._pieces is not None and not self._stopped else ""
        held, self._held = self._held, ""
        self.text += held
        return piece + held

    def _passed(self, piece: str) -> str:
        """As much of what is held back and a new piece as cannot be part of a text that ends it."""
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.ended = self._stopped = True
            piece, self._held = text[: min(found)], ""
        else:
            passed = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
            piece, self._held = text[:passed], text[passed:]
        self.text += piece
        return piece


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text may be the first ones of another."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
