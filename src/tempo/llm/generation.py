"""Generating text: tokens are given where there is a prompt, and chosen from the logits of the step before elsewhere.

Prompts of different lengths are padded on the left. Programs are compiled for numbers of steps that are rounded up, so
that a few of them serve all lengths; how many tokens are wanted, and the numbers of ``Sampling``, are inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

import tempo as tp
from tempo.llm import sampling
from tempo.llm.arguments import as_count, as_integer, listed
from tempo.llm.decoder import States
from tempo.llm.model import LanguageModel, as_model
from tempo.llm.sampling import Options, Sampling
from tempo.llm.text import Stop, Text, stops_of

Array = np.ndarray[Any, np.dtype[Any]]
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Generated:
    """What was generated for one prompt: without the prompt, and without the token that ended it. A text of ``stop`` is
    not in the text, but its tokens are among the tokens."""

    tokens: tuple[int, ...]
    text: str
    ended: bool
    """Whether the text came to its end; otherwise there were ``max_new_tokens``."""
    logprobs: tuple[float, ...] | None = None
    """The logarithms of the tokens' probabilities, by the model's own logits, if they were asked for."""


@dataclass(frozen=True)
class Piece:
    """What a step adds to one text: a token, and as much text as is complete with it (it may be none). What was held
    back comes at the end, without a token."""

    sequence: int
    token: int | None
    text: str
    logprob: float | None = None


def generate(
    model: LanguageModel,
    prompts: Prompt | Sequence[Prompt],
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    stop: Stop = (),
    seed: int = 0,
    logprobs: bool = False,
) -> list[Generated]:
    """Go on from prompts, which are texts or lists of tokens.

    A text ends with one of the model's end-of-text tokens, before the first of the texts ``stop``, or after
    ``max_new_tokens``. Temperature 0 takes the most likely token each time.
    """
    how = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    batch = Batch(model, encoded(model, prompts), max_new_tokens, how, stop, seed, logprobs)
    if batch.stops:
        for _ in batch.stream():
            pass
    else:
        batch.run()
    return batch.results()


def stream(
    model: LanguageModel,
    prompts: Prompt | Sequence[Prompt],
    max_new_tokens: int = 128,
    *,
    stop: Stop = (),
    seed: int = 0,
    logprobs: bool = False,
    **options: Unpack[Options],
) -> Iterator[Piece]:
    """As ``generate``, with the same options, piece by piece, as they come."""
    how = sampling.asked("stream", options, ("max_new_tokens", "stop", "seed", "logprobs"))
    return Batch(model, encoded(model, prompts), max_new_tokens, how, stop, seed, logprobs).stream()


@dataclass(frozen=True)
class Kind:
    """What a generating program does, apart from the sizes that it is compiled for."""

    used: tuple[str, ...]
    """The numbers of ``Sampling`` that take part."""
    ends: int
    """How many tokens end a text."""
    logprobs: bool
    emits: bool
    """Whether tokens are handed out as they come; otherwise all at the end."""
    past: bool = False
    """Whether the keys and values of the first steps are given, and those of all steps handed out."""


def program(model: LanguageModel, kind: Kind) -> tp.Program:
    """The program that generates: over sequences b and steps t.

    The tokens of P steps are given. If there is a past, they come after those of Q steps whose keys and values are
    given.
    """
    with tp.Program("generate") as prog:
        b, B = prog.dim("b")
        p, P = prog.dim("p")
        t, _ = prog.dim("t")
        prompt = prog.input("prompt", domain=(b, p), dtype="int32")
        start = prog.input("start", domain=b, dtype="int32")
        steps = prog.input("steps", dtype="int32")
        ends = prog.input("ends", shape=(kind.ends,), dtype="int32")
        numbers = sampling.declare(prog, kind.used)
        given: Any = P
        past = None
        if kind.past:
            q, Q = prog.dim("q")
            given = Q + P
            past = declare_past(prog, model, (b, q))

        tokens = prog.recurrent("tokens", domain=(b, t), dtype="int32")
        net = model.decoder.declare(prog, init=False, dtype=model.dtype)
        logits, states = net(tokens, t, start, past)
        weighed = logits
        if "repetition_penalty" in numbers:
            counts = tp.arange(t + 1) >= start
            weighed = sampling.penalised(logits, tokens[b, 0 : t + 1], counts, numbers["repetition_penalty"])
        # Counted from the first new token: how long the other prompts are, or what a session remembers, says nothing.
        chosen = sampling.choose(weighed, numbers, (b, t + 1 - given))
        if kind.past and "repetition_penalty" in numbers:
            tokens[t < Q] = prog.input("past_tokens", domain=(b, q), dtype="int32")[b, t]
        # Nothing else reads the tokens of the past: any will do.
        tokens[t < given] = prompt[b, tp.max(t - Q, 0) if kind.past else t]
        tokens[b, t] = chosen[b, t - 1]

        done = prog.recurrent("done", domain=(b, t), dtype="bool")
        done[t < given] = False
        done[b, t] = done[b, t - 1] | tp.any(tokens == ends)
        prog.stop(t, when=tp.all(done[0:B]) | (t.value + 1 >= steps))

        results = {"tokens": tokens}
        if kind.logprobs:
            likelihood = prog.recurrent("logprobs", domain=(b, t))
            likelihood[t < given] = 0.0
            likelihood[b, t] = tp.take(tp.log_softmax(logits), chosen)[b, t - 1]
            results["logprobs"] = likelihood
        for name, tensor in results.items():
            if kind.emits:
                prog.emit(name, tensor[0:B])
            else:
                prog.output(name, tensor)
        if kind.past:
            for n, (keys, values) in enumerate(states):
                prog.output(f"keys.{n}", keys)
                prog.output(f"values.{n}", values)
    return prog


def declare_past(prog: tp.Program, model: LanguageModel, domain: tuple[tp.Dim, ...]) -> list[States]:
    """The keys and values of steps that were computed before, as inputs."""
    shape = (model.config.kv_heads, model.config.head_size)
    return [
        (
            prog.input(f"past_keys.{n}", shape, domain, model.dtype),
            prog.input(f"past_values.{n}", shape, domain, model.dtype),
        )
        for n in range(model.config.layers)
    ]


@dataclass(frozen=True)
class Past:
    """The first ``tokens`` of a text, and their keys and values, padded on the left to so many ``steps``."""

    tokens: Sequence[int]
    steps: int
    arrays: Mapping[str, Array]
    given: int
    """For how many steps after them tokens are given, with the padding."""


class Batch:
    """Texts that are generated together."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        most: int,
        how: Sampling,
        stop: Stop = (),
        seed: int = 0,
        logprobs: bool = False,
        past: Past | None = None,
    ) -> None:
        self.most = as_count(most)
        self.model = model
        self.prompts = prompts
        self.how = how
        self.stops = stops_of(model, stop)
        self.seed = as_integer(seed, "seed =")
        self.logprobs = logprobs
        self.past = past
        steps = max(map(len, prompts), default=0) + self.most
        if past:
            whose, hint = "session's", "ask for fewer new tokens, or begin a new session"
            steps += len(past.tokens)
        else:
            whose, hint = "prompt's", "shorten the prompt, or ask for fewer new tokens"
        model.check_length(steps, f"tokens, the {whose} and the new ones,", hint)
        self.texts = [Text(model, self.stops, after=prompt) for prompt in prompts]
        self.result: tp.Result | None = None
        """The outputs of the program, once it has come to its end."""

    def run(self) -> None:
        """All at once."""
        if self.prompts:
            self.result = found = self.compiled(emits=False)(seed=self.seed, **self.inputs())
            for n, text in enumerate(self.texts):
                for t in range(self.given, found.tokens.shape[1]):
                    text.add(int(found.tokens[n, t]), float(found.logprobs[n, t]) if self.logprobs else None)
                text.rest()

    def stream(self) -> Iterator[Piece]:
        """Piece by piece."""
        if not self.prompts:
            return
        # What is left early must not stay in memory.
        with contextlib.closing(self.compiled(emits=True).stream(seed=self.seed, **self.inputs())) as running:
            values: dict[str, Array] = {}
            for record in running:
                if record.point["t"] < self.given:
                    continue
                values[record.name] = record.value
                if len(values) < 1 + self.logprobs:
                    continue
                for n, text in enumerate(self.texts):
                    logprob = float(values["logprobs"][n]) if self.logprobs else None
                    token = int(values["tokens"][n])
                    if not text.ended and (piece := text.add(token, logprob)) is not None:
                        yield Piece(n, token, piece, logprob)
                values.clear()
                if self.stops and all(text.ended for text in self.texts):
                    break
        self.result = running.result
        for n, text in enumerate(self.texts):
            if rest := text.rest():
                yield Piece(n, None, rest)

    @property
    def padded(self) -> int:
        """For how many steps tokens are given, with the padding."""
        return self.past.given if self.past else rounded(max(map(len, self.prompts)))

    @property
    def given(self) -> int:
        """How many steps are given: the past's, and those with tokens."""
        return self.padded + (self.past.steps if self.past else 0)

    def compiled(self, emits: bool) -> Any:
        kind = Kind(self.how.used, len(self.model.ends), self.logprobs, emits, self.past is not None)
        bounds = {"B": len(self.prompts), "P": self.padded, "T": self.given + rounded(self.most)}
        if self.past:
            bounds["Q"] = self.past.steps
        return self.model.compiled(program, (kind,), bounds)

    def inputs(self) -> Mapping[str, Any]:
        prompt, start = left_padded(self.prompts, self.padded)
        inputs = {**self.model.parameters, **self.how.inputs(), "prompt": prompt, "start": start}
        if self.past:
            inputs |= self.past.arrays
            tokens, before = left_padded([self.past.tokens], self.past.steps)
            inputs["start"] = start + before
            if "repetition_penalty" in self.how.used:
                inputs["past_tokens"] = tokens
        return {**inputs, "steps": self.given + self.most, "ends": np.array(self.model.ends, np.int32)}

    def results(self) -> list[Generated]:
        return [
            Generated(tuple(text.tokens), text.text, text.ended, tuple(text.logprobs) if self.logprobs else None)
            for text in self.texts
        ]


def encoded(model: LanguageModel, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
    """One prompt or several, as tokens."""
    model = as_model(model)
    given = listed(prompts)
    # What is neither a text nor a list can only be a token, if a wrong one.
    alone = isinstance(given, str) or not all(isinstance(prompt, str) or hasattr(prompt, "__len__") for prompt in given)
    return [model.encoded(prompt) for prompt in ([given] if alone else given)]


def left_padded(sequences: Sequence[Sequence[int]], steps: int) -> tuple[Array, Array]:
    """Sequences of tokens as an array of so many steps, and the steps at which they start."""
    array = np.zeros((len(sequences), steps), np.int32)
    starts = np.array([steps - len(tokens) for tokens in sequences], np.int32)
    for row, start, tokens in zip(array, starts, sequences, strict=True):
        row[start:] = tokens
    return array, starts


def rounded(count: int, least: int = 16, parts: int = 4) -> int:
    """The number of steps, at least ``count`` and ``least``, that programs are compiled for: one of so many ``parts``
    between a power of two and the next."""
    step = max(least, (1 << max(count.bit_length() - 1, 0)) // parts)
    return -(-count // step) * step
