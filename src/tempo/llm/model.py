"""A language model that is ready to run: its decoder, its parameters on a device, its tokenizer."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tempo as tp
from tempo.llm.arguments import PROMPTS, as_float, as_integer, listed
from tempo.llm.config import Config
from tempo.llm.decoder import Decoder
from tempo.llm.files import PathLike
from tempo.llm.parameters import as_array, check_names, shapes
from tempo.llm.tokenizer import BESIDE, Tokenizer
from tempo.llm.weights import Weights

MOST_PROGRAMS = 64
"""A model keeps so many compiled programs, for numbers of texts and of steps, and for sets of options: a process that
serves all that comes would keep ever more. (On disk there are all.)"""


class LanguageModel:
    """A decoder with parameters, and the programs that were compiled for it."""

    def __init__(
        self,
        config: Config,
        parameters: Mapping[str, Any],
        tokenizer: Tokenizer | None = None,
        dtype: Any = None,
        device: str | None = None,
        memory: int | str | None = None,
    ) -> None:
        """``parameters`` by the names of ``Decoder``. Programs are compiled for a ``device``, and within ``memory``."""
        self.config = config
        self.decoder = Decoder(config)
        expected = shapes(config)
        check_names(parameters, expected)
        named = config.dtype if dtype is None else dtype
        self.dtype = as_float(as_array("embedding.weight", parameters).dtype if named is None else named)
        self.tokenizer = tokenizer
        self.device = device
        self.memory = memory
        self.parameters = {
            name: _on_device(as_array(name, parameters, shape), self.dtype, device) for name, shape in expected.items()
        }
        # The tokenizer may know one that the configuration does not.
        known = (*config.end_of_text, *(tokenizer.end_of_text if tokenizer is not None else ()))
        self.ends = tuple(dict.fromkeys(known))
        self._runs: OrderedDict[Any, Any] = OrderedDict()
        """Programs, the one that was used last in the end."""

    @staticmethod
    def load(
        directory: PathLike, dtype: Any = None, device: str | None = None, memory: int | str | None = None
    ) -> LanguageModel:
        """The model in a Hugging Face directory: ``config.json``, safetensors, and ``tokenizer.json`` if there is one.

        Weights are read from the files once, onto the device, in ``dtype``, by default the checkpoint's own.
        """
        config = Config.load(directory)
        tokenizer = Tokenizer(directory) if (Path(directory) / "tokenizer.json").exists() else None
        return LanguageModel(config, Weights(directory, config).parameters, tokenizer, dtype, device, memory)

    def encoded(self, prompt: str | Sequence[int], special: bool = True) -> list[int]:
        """A prompt as tokens; ``special`` for one that begins a text: it has at least one token, and what the tokenizer
        puts around texts."""
        given = listed(prompt)
        if isinstance(given, str):
            tokens = self._tokenizer.encode(given, special)
        else:
            tokens = [as_integer(token, "a prompt with the token", PROMPTS) for token in given]
        if not tokens and special and self.config.beginning_of_text is not None:
            tokens = [self.config.beginning_of_text]
        if not tokens and special:
            raise tp.errors.ModelError("a prompt has no tokens", hint="the model goes on from at least one token")
        for token in tokens:
            if not 0 <= token < self.config.vocabulary:
                raise tp.errors.ModelError(
                    f"token {token} of a prompt is not one of the model's {self.config.vocabulary} tokens"
                )
        return tokens

    def check_length(self, steps: int, tokens: str = "tokens", hint: str = "shorten the text") -> None:
        """Learned positions end somewhere. ``tokens`` says whose they are."""
        if self.config.rope_theta is None and steps > self.config.context:
            raise tp.errors.ModelError(
                f"{steps} {tokens} are more than the {self.config.context} positions that the model has", hint=hint
            )

    def compiled(self, build: Callable[..., tp.Program], how: tuple[Any, ...], bounds: Mapping[str, int]) -> Any:
        """The program that ``build(model, *how)`` makes, compiled for these bounds, by name."""
        key = (build, how, tuple(bounds.items()))
        run = self._runs.get(key)
        if run is None:
            run = build(self, *how).compile(bounds, device=self.device, memory=self.memory)
        self._runs[key] = run
        self._runs.move_to_end(key)
        while len(self._runs) > MOST_PROGRAMS:
            self._runs.popitem(last=False)
        return run

    @property
    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise tp.errors.ModelError("the model has no tokenizer", hint=f"give tokens, not text, or {BESIDE}")
        return self.tokenizer


def as_model(model: Any) -> LanguageModel:
    """A model that was loaded."""
    if not isinstance(model, LanguageModel):
        given = repr(os.fspath(model)) if isinstance(model, str | os.PathLike) else None
        raise tp.errors.ModelError(
            f"the model is {given or f'a {type(model).__name__}'}, expected what llm.load gives",
            hint=f"model = llm.load({given or 'directory'})",
        )
    return model


def _on_device(array: Any, dtype: Any, device: str | None) -> Any:
    import jax

    try:
        where = (jax.devices(device) if device else jax.devices())[0]
    except RuntimeError:
        raise tp.errors.ModelError(
            f"there is no device '{device}' here",
            hint=f"this machine has: {', '.join(sorted({d.platform for d in jax.devices()}))}",
        ) from None
    return jax.device_put(array, where).astype(dtype)
