"""How likely given texts are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import tempo as tp
from tempo.llm.generation import Prompt, encoded, left_padded, rounded
from tempo.llm.model import LanguageModel


@dataclass(frozen=True)
class Score:
    """How likely a text is, token by token, each after those before it; the first one is given."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One less than there are tokens."""

    @property
    def perplexity(self) -> float:
        """Among how many equally likely tokens the model chose at each step, so to say."""
        return math.exp(-sum(self.logprobs) / len(self.logprobs)) if self.logprobs else math.nan


def score(model: LanguageModel, texts: Prompt | Sequence[Prompt]) -> list[Score]:
    """The probabilities that a model gives to texts (or lists of tokens)."""
    given = encoded(model, texts)
    if not given:
        return []
    model.check_length(max(map(len, given)))
    steps = rounded(max(map(len, given)))
    tokens, start = left_padded(given, steps)
    run = model.compiled(program, (), {"B": len(given), "T": steps})
    found = run(tokens=tokens, start=start, **model.parameters).logprobs
    return [
        Score(tuple(text), tuple(float(x) for x in row[steps - len(text) + 1 :]))
        for text, row in zip(given, np.asarray(found), strict=True)
    ]


def program(model: LanguageModel) -> tp.Program:
    """The program that scores: every token by the logits of the step before it."""
    with tp.Program("score") as prog:
        b, _ = prog.dim("b")
        t, _ = prog.dim("t")
        tokens = prog.input("tokens", domain=(b, t), dtype="int32")
        start = prog.input("start", domain=b, dtype="int32")
        logits, _ = model.decoder.declare(prog, init=False, dtype=model.dtype)(tokens, t, start)
        logprobs = prog.recurrent("logprobs", domain=(b, t))
        logprobs[b, 0] = 0.0
        logprobs[b, t] = tp.take(tp.log_softmax(logits)[b, t - 1], tokens)
        prog.output("logprobs", logprobs)
    return prog
