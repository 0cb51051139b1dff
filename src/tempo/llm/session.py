"""A text that goes on in turns, without computing its past again."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from tempo.llm.generation import Batch, Past, Piece, Prompt, rounded
from tempo.llm.model import LanguageModel
from tempo.llm.sampling import Options, Sampling

Array = np.ndarray[Any, np.dtype[Any]]


class Session:
    """A conversation with a model: what has been said, and the keys and values that came of it.

    >>> session = llm.Session(model)  # doctest: +SKIP
    >>> for piece in session.stream("Once upon a time"):  # doctest: +SKIP
    ...     print(piece.text, end="")
    >>> for piece in session.stream(" And then"):  # doctest: +SKIP
    ...     print(piece.text, end="")
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
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
        stop: str | Sequence[str] = (),
        seed: int = 0,
        **options: Unpack[Options],
    ) -> Generator[Piece, None, None]:
        """Add a prompt, and go on from there, piece by piece. If it is left early, what has come so far is kept."""
        how = Sampling(**options)
        # Only the first prompt begins a text.
        new = self.model.encoded(prompt, special=not self.tokens)
        tokens = [*self.tokens, *new]
        # As many tokens as programs are compiled for, even if some of them are remembered.
        steps = rounded(len(tokens) - self.remembered)
        past = self._past(max(len(tokens) - steps, 0))
        batch = Batch(self.model, [tokens[past.count :]], max_new_tokens, how, stop, seed, past=past)
        self.tokens = tokens
        try:
            yield from batch.stream()
        finally:
            self.tokens = [*tokens, *batch.texts[0].tokens]
            if batch.result is not None:
                first = batch.given - len(tokens)
                last = first + len(self.tokens)
                names = [name for name in batch.result.outputs if name.startswith(("keys.", "values."))]
                self._states = {name: batch.result.outputs[name][:, first:last] for name in names}

    def _past(self, count: int) -> Past:
        """The first so many tokens' keys and values."""
        steps = rounded(max(count, 1))
        config = self.model.config
        arrays = {}
        for n in range(config.layers):
            for kind in ("keys", "values"):
                array = np.zeros((1, steps, config.kv_heads, config.head_size), self.model.dtype)
                if count:
                    array[:, steps - count :] = self._states[f"{kind}.{n}"][:, :count]
                arrays[f"past_{kind}.{n}"] = array
        return Past(count, steps, arrays)
