"""A text that goes on in turns, without computing its past again."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from tempo.llm import sampling
from tempo.llm.generation import Batch, Past, Piece, Prompt, rounded
from tempo.llm.model import LanguageModel, as_model
from tempo.llm.sampling import Options
from tempo.llm.text import Stop

Array = np.ndarray[Any, np.dtype[Any]]

# Every turn has a longer past than the one before it, and another prompt. Beside the seconds that it takes to compile
# a program for that, a past that is padded costs next to nothing: a single text's keys and values are few bytes in
# comparison with the weights. So a few programs serve a conversation.
LEAST_PAST = 1024
LEAST_GIVEN = 64


class Session:
    """A conversation with a model: what has been said, and the keys and values that came of it.

    >>> session = llm.Session(model)  # doctest: +SKIP
    >>> for piece in session.stream("Once upon a time"):  # doctest: +SKIP
    ...     print(piece.text, end="")
    >>> for piece in session.stream(" And then"):  # doctest: +SKIP
    ...     print(piece.text, end="")
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = as_model(model)
        self.tokens: list[int] = []
        """Everything so far, the prompts and what was generated."""
        self._states: Mapping[str, Array] = {}  # by the names of outputs; over the first steps of ``tokens``

    @property
    def remembered(self) -> int:
        """How many of the tokens need not be computed again."""
        return next((array.shape[1] for array in self._states.values()), 0)

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int = 128,
        *,
        stop: Stop = (),
        seed: int = 0,
        **options: Unpack[Options],
    ) -> Generator[Piece, None, None]:
        """Add a prompt, which may be empty, and go on from there, piece by piece.

        If it is left early, what has come so far is kept. If it fails before the first token, nothing has changed.
        """
        how = sampling.asked("Session.stream", options, ("max_new_tokens", "stop", "seed"))
        before = self.tokens
        # Only the first prompt begins a text.
        tokens = [*before, *self.model.encoded(prompt, special=not before)]
        # As many tokens as programs are compiled for, even if some of them are remembered; at least the last one, which
        # gives the logits to go on from.
        steps = rounded(max(len(tokens) - self.remembered, 1), LEAST_GIVEN, parts=2)
        past = self._past(tokens[: max(len(tokens) - steps, 0)], steps)
        batch = Batch(self.model, [tokens[len(past.tokens) :]], max_new_tokens, how, stop, seed, past=past)
        self.tokens = tokens
        try:
            yield from batch.stream()
        except Exception:
            # Whoever mends what was wrong gives the prompt again.
            if not batch.texts[0].tokens:
                tokens = before
            raise
        finally:
            self.tokens = [*tokens, *batch.texts[0].tokens]
            if batch.result is not None:
                first = batch.given - len(tokens)
                last = first + len(self.tokens)
                names = [name for name in batch.result.outputs if name.startswith(("keys.", "values."))]
                self._states = {name: batch.result.outputs[name][:, first:last] for name in names}

    def _past(self, tokens: Sequence[int], given: int) -> Past:
        """The first tokens with their keys and values, before so many steps with tokens."""
        count, config = len(tokens), self.model.config
        # No text is longer than learned positions.
        least = LEAST_PAST if config.rope_theta is not None else min(LEAST_PAST, config.context)
        steps = rounded(max(count, 1), least, parts=2)
        arrays = {}
        for n in range(config.layers):
            for kind in ("keys", "values"):
                array = np.zeros((1, steps, config.kv_heads, config.head_size), self.model.dtype)
                if count:
                    array[:, steps - count :] = self._states[f"{kind}.{n}"][:, :count]
                arrays[f"past_{kind}.{n}"] = array
        return Past(tokens, steps, arrays, given)
