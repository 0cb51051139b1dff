"""Text to tokens and back, as a checkpoint's ``tokenizer.json`` says.

This needs the package ``tokenizers``, and ``jinja2`` for the chat templates of checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tempo.errors import ModelError, PackageError
from tempo.llm.files import Fields, PathLike, read_fields, read_text
from tempo.llm.templates import Message, rendered

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
CONVERSION = (
    "load the tokenizer with Hugging Face transformers, which also reads other formats, and save it with "
    "tokenizer.save_pretrained(...)"
)
BESIDE = f"put tokenizer.json beside the weights: {CONVERSION}"
_EXAMPLE = '{"role": "user", "content": "Hello"}'


class Tokenizer:
    """The tokenizer of the checkpoint in a directory.

    >>> tokenizer = Tokenizer("checkpoints/llama")  # doctest: +SKIP
    >>> tokenizer.decode(tokenizer.encode("The tale of"))  # doctest: +SKIP
    'The tale of'
    """

    beginning_of_text: int | None
    end_of_text: tuple[int, ...]
    """The tokenizer's token for the end; ``Config.end_of_text`` may know more, such as the end of a turn."""
    chat_template: str | None
    """How a conversation is written down, in Jinja's language."""

    def __init__(self, directory: PathLike) -> None:
        path = Path(directory) / "tokenizer.json"
        self._tokenizer = _read_tokenizer(path)
        # What tokenizer.json says about these is for batches in training; here it would cut prompts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

        settings = _optional(path.with_name("tokenizer_config.json"))
        self._special = {"bos_token": "", "eos_token": ""}
        # Older checkpoints may have special tokens in a file of their own alone.
        for fields in (_optional(path.with_name("special_tokens_map.json")), settings):
            self._special |= {name: _special_token(fields, name) for name in _SPECIAL if name in fields}
        self.beginning_of_text = self._id("bos_token")
        end = self._id("eos_token")
        self.end_of_text = () if end is None else (end,)
        self.chat_template = _chat_template(settings)

    def __len__(self) -> int:
        """The number of tokens."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; ``special`` adds what the checkpoint puts around one, such as a beginning of text."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ModelError(
                f"a text has {text[error.start]!r} at position {error.start}, which is not a character",
                hint="the text was read in another encoding than it was written in; texts are UTF-8",
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Iterable[int], special: bool = False) -> str:
        """The text of tokens, without the special ones unless asked for."""
        return str(self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=not special))

    def stream(self, tokens: Iterable[int], after: Iterable[int] = ()) -> Iterator[str]:
        """The text of tokens in pieces, each as soon as it is known: never a part of a character."""
        text = TextStream(self, after)
        for token in tokens:
            if piece := text.add(token):
                yield piece
        if rest := text.rest():
            yield rest

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the assistant's next message begins.

        It is written down by the checkpoint's chat template. Without a template, or without the package jinja2 (then
        there is a warning, as models expect their template), each message is a line ``role: content``, and the last
        line is ``assistant:``.
        """
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise ModelError(f"a conversation is {messages!r}, expected a list of messages", hint=f"e.g. [{_EXAMPLE}]")
        for position, message in enumerate(messages):
            parts = [message.get(key) for key in ("role", "content")] if isinstance(message, Mapping) else [None]
            if not all(isinstance(part, str) for part in parts):
                raise ModelError(
                    f'message {position} of a conversation is {message!r}, expected texts for "role" and "content"',
                    hint=f"e.g. {_EXAMPLE}",
                )
        if self.chat_template is not None:
            text = rendered(self.chat_template, messages, self._special)
            if text is not None:
                return self.encode(text, special=False)
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join([*lines, "assistant:"]))

    def _id(self, name: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(self._special[name]) if self._special[name] else None
        return found


class TextStream:
    """Text from token after token.

    ``after`` are the tokens of the text that this one continues. Without it, the space before the first word is left
    out by some tokenizers, as at the beginning of a text.
    """

    # Not tokenizers' DecodeStream, which raises when bytes that are no UTF-8 follow a character made of bytes, and
    # which cannot be asked for what it still holds at the end.

    def __init__(self, tokenizer: Tokenizer, after: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = [int(token) for token in after]
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        """The text that is known with one more token: none while a character is not complete."""
        self._pending.append(int(token))
        piece = self._piece()
        if not piece or piece.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._context, self._pending = self._pending, []
        return piece

    def rest(self) -> str:
        """What is left when nothing more comes."""
        piece = self._piece()
        self._context, self._pending = self._pending, []
        return piece

    def _piece(self) -> str:
        """The text of pending tokens after others: of single tokens, some tokenizers strip the space in front."""
        decode = self._tokenizer.decode
        before, both = decode(self._context), decode(self._context + self._pending)
        return both[len(before) :] if both.startswith(before) else decode(self._pending)


def _read_tokenizer(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise PackageError(
            "the package 'tokenizers' is needed to read a tokenizer, and is not installed",
            hint='pip install "tempo-compiler[llm]"',
        ) from None
    if not path.is_file():
        raise ModelError(
            f"there is no file '{path}'",
            hint=CONVERSION,
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more special
        raise ModelError(f"'{path}' cannot be read as a tokenizer: {error}", hint="download it again") from None


def _special_token(settings: Fields, name: str) -> str:
    """A special token, which is a text or an object with one."""
    if isinstance(settings.values[name], dict):
        return settings.inside(name).text("content")
    return settings.text(name)


def _optional(path: Path) -> Fields:
    """The fields of a file that need not be there."""
    return read_fields(path) if path.exists() else Fields(path, {})


def _chat_template(settings: Fields) -> str | None:
    """From a file of its own, as newer checkpoints have it, or from the settings: a text, or several with names."""
    path = settings.path.with_name("chat_template.jinja")
    if path.is_file():
        return read_text(path)
    if isinstance(settings.values.get("chat_template"), list):
        named = {t.get("name"): t.get("template") for t in settings.values["chat_template"] if isinstance(t, dict)}
        settings = Fields(settings.path, {"chat_template": named.get("default")})
    return settings.text("chat_template") if "chat_template" in settings else None
