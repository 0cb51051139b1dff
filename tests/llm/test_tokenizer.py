"""Tokenizers: there and back, in pieces that are whole characters, and conversations."""

import builtins
import json
import random
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from tempo.errors import ModelError, PackageError
from tempo.llm import Tokenizer
from tests.llm.checkpoints import BEGINNING, END, write_tokenizer
from tests.llm.common import change_json, fails

TEXT = "the tale: 日本語, 🎉 é€ of time"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer(directory)


@pytest.fixture
def words(tmp_path: Path) -> Tokenizer:
    """Like that of Llama 2: words begin with ▁, which is no space at the beginning of a text, and bytes are tokens."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for word in ("▁the", "▁ta", "le", "</s>"):
        vocabulary[word] = len(vocabulary)
    engine = Engine(models.BPE(vocabulary, [], byte_fallback=True))
    engine.add_special_tokens(["</s>"])
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    directory = tmp_path / "words"
    directory.mkdir()
    engine.save(str(directory / "tokenizer.json"))
    return Tokenizer(directory)


THE, TA, LE, EOS = range(256, 260)
EURO = [0xE2, 0x82, 0xAC]


# -- there and back ----------------------------------------------------------------------------------------------------


def test_round_trip(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(TEXT)
    assert tokens[0] == BEGINNING and len(tokens) > len(TEXT) / 2
    assert tokenizer.decode(tokens) == TEXT
    assert tokenizer.decode(tokens, special=True) == "<s>" + TEXT
    assert tokenizer.encode(TEXT, special=False) == tokens[1:]
    assert max(tokens) < len(tokenizer) <= 300


def test_special_tokens(tokenizer: Tokenizer, words: Tokenizer) -> None:
    assert (tokenizer.beginning_of_text, tokenizer.end_of_text) == (BEGINNING, (END,))
    assert (words.beginning_of_text, words.end_of_text) == (None, ())  # there is no tokenizer_config.json


def test_special_tokens_in_a_file_of_their_own(directory: Path) -> None:
    (directory / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": "<s>"}')
    (directory / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    tokenizer = Tokenizer(directory)
    assert (tokenizer.beginning_of_text, tokenizer.end_of_text) == (BEGINNING, (END,))


def test_prompts_are_not_cut(directory: Path) -> None:
    engine = Engine.from_file(str(directory / "tokenizer.json"))
    engine.enable_truncation(4)
    engine.enable_padding(length=500)
    engine.save(str(directory / "tokenizer.json"))
    tokenizer = Tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.encode("the")[1:] == tokenizer.encode("the", special=False)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_character_comes_as_a_whole(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("é🎉", special=False)
    assert len(tokens) == 6
    assert list(tokenizer.stream(tokens)) == ["é", "🎉"]
    assert "".join(tokenizer.stream(tokenizer.encode(TEXT))) == TEXT


def test_pieces_come_as_soon_as_they_are_known(tokenizer: Tokenizer) -> None:
    taken = []

    def tokens() -> Any:
        for token in tokenizer.encode("a€b", special=False):
            taken.append(token)
            yield token

    assert [(piece, len(taken)) for piece in tokenizer.stream(tokens())] == [("a", 1), ("€", 4), ("b", 5)]


def test_bytes_that_are_no_character(tokenizer: Tokenizer) -> None:
    """At the end, and in between."""
    euro = tokenizer.encode("€", special=False)
    a = tokenizer.encode("a", special=False)
    assert list(tokenizer.stream(euro[:2])) == ["\ufffd"]
    assert list(tokenizer.stream([*euro[:2], *a])) == ["\ufffda"]
    for seed in range(50):
        tokens = random.Random(seed).choices(range(len(tokenizer)), k=40)
        assert "".join(tokenizer.stream(tokens)) == tokenizer.decode(tokens)


def test_spaces_between_words(words: Tokenizer) -> None:
    assert list(words.stream([THE, TA, LE])) == ["the", " ta", "le"]
    assert list(words.stream([THE, EOS, TA])) == ["the", " ta"]
    assert list(words.stream([TA, LE], after=[THE])) == [" ta", "le"]


def test_characters_made_of_byte_tokens(words: Tokenizer) -> None:
    assert list(words.stream([THE, *EURO, *EURO, TA])) == ["the", "€", "€", " ta"]
    # As a whole these bytes are no text, and decode to one sign each; what was handed out stays.
    assert list(words.stream([*EURO, 0xE2, LE])) == ["€", "\ufffdle"]


# -- conversations -----------------------------------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "time?"}, {"role": "assistant", "content": "the other"}]
TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role not in ["user", "assistant"] %}
        {{- raise_exception("no role " + message.role) }}
    {%- endif %}
    {{- "[" + message.role + "]" + message.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}
"""
RENDERED = "<s>[user]time?</s>[assistant]the other</s>[assistant]"
PLAIN = "<s>user: time?\nassistant: the other\nassistant:"


def test_chat_without_a_template(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.chat(CHAT), special=True) == PLAIN


def test_chat_with_a_template(directory: Path) -> None:
    change_json(directory / "tokenizer_config.json", chat_template=TEMPLATE)
    tokenizer = Tokenizer(directory)
    tokens = tokenizer.chat(CHAT)
    assert tokenizer.decode(tokens, special=True) == RENDERED
    assert tokens.count(BEGINNING) == 1 and tokens.count(END) == 2
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    assert (
        theirs.apply_chat_template(CHAT, chat_template=TEMPLATE, add_generation_prompt=True, tokenize=False) == RENDERED
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0] | tojson }}",
        "{{ messages | tojson(indent=2) }}{{ messages[0] | tojson(separators=(',', ':'), sort_keys=True) }}",
        "{% if tools is not none %}tools{% endif %}{% if documents is not none %}documents{% endif %}x",
        "{{ pad_token }}{{ unk_token }}{{ mask_token is defined }}{{ cls_token is defined }}",
        "{% for m in messages %}{% set n = 1 %}{% generation %}{{ m.content }}{% set n = 2 %}{% endgeneration %}\n"
        "{{ n }}{% endfor %}",
    ],
)
def test_templates_are_given_what_transformers_gives_them(directory: Path, template: str) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<s>", "unk_token": "of", "mask_token": None}
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**special, "pad_token": {"content": "<s>"}, "chat_template": template}))
    conversation = [{"role": "user", "content": "It's é < 3"}]
    tokenizer = Tokenizer(directory)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), **special)
    expected = theirs.apply_chat_template(
        conversation, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.decode(tokenizer.chat(conversation), special=True) == expected


def test_templates_know_the_time(directory: Path) -> None:
    change_json(directory / "tokenizer_config.json", chat_template="{{ strftime_now('%Y') }}")
    tokenizer = Tokenizer(directory)
    assert tokenizer.decode(tokenizer.chat(CHAT)) in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_where_templates_are(directory: Path) -> None:
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    change_json(directory / "tokenizer_config.json", chat_template=named)
    assert Tokenizer(directory).chat_template == TEMPLATE
    (directory / "chat_template.jinja").write_text("from a file")
    assert Tokenizer(directory).chat_template == "from a file"


def test_a_template_that_refuses(directory: Path) -> None:
    change_json(directory / "tokenizer_config.json", chat_template=TEMPLATE)
    with fails(directory, "the checkpoint's chat template does not take this conversation: no role king"):
        Tokenizer(directory).chat([{"role": "king", "content": "time?"}])


def test_a_template_cannot_leave_its_sandbox(directory: Path) -> None:
    change_json(
        directory / "tokenizer_config.json", chat_template="{{ messages.__class__.__mro__ }}{{ messages.pop() }}"
    )
    with pytest.raises(ValueError, match=r"chat template does not take this conversation: .* is unsafe"):
        Tokenizer(directory).chat(CHAT)


def test_messages_that_are_none(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with fails(
        tmp_path,
        "message 0 of a conversation is {'role': 'user'}, expected texts for \"role\" and \"content\"",
        '  hint: e.g. {"role": "user", "content": "Hello"}',
    ):
        tokenizer.chat([{"role": "user"}])
    wrong: Any = "hello"
    with fails(
        tmp_path,
        "a conversation is 'hello', expected a list of messages",
        '  hint: e.g. [{"role": "user", "content": "Hello"}]',
    ):
        tokenizer.chat(wrong)
    with fails(
        tmp_path,
        'message 0 of a conversation is \'hello\', expected texts for "role" and "content"',
        '  hint: e.g. {"role": "user", "content": "Hello"}',
    ):
        tokenizer.chat([wrong])


def test_what_is_no_character(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with fails(
        tmp_path,
        "a text has '\\udcff' at position 3, which is not a character",
        "  hint: the text was read in another encoding than it was written in; texts are UTF-8",
    ):
        tokenizer.encode("the\udcff")
    with pytest.raises(ModelError, match="at position 6, which is not a character"):
        tokenizer.chat([{"role": "user", "content": "\udcff"}])


# -- mistakes ----------------------------------------------------------------------------------------------------------


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make as if a package were not installed."""
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)


def test_without_tokenizers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without("tokenizers", monkeypatch)
    with fails(
        directory,
        "the package 'tokenizers' is needed to read a tokenizer, and is not installed",
        '  hint: pip install "tempo-compiler[llm]"',
        kind=PackageError,
    ):
        Tokenizer(directory)


def test_without_jinja(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_json(directory / "tokenizer_config.json", chat_template=TEMPLATE)
    tokenizer = Tokenizer(directory)
    without("jinja2", monkeypatch)
    with pytest.warns(UserWarning) as warned:
        tokens = tokenizer.chat(CHAT)
    assert [str(warning.message) for warning in warned] == [
        "the checkpoint has a chat template, which needs the package 'jinja2': a plain form is used in its place"
    ]
    assert warned[0].filename == __file__
    assert tokenizer.decode(tokens, special=True) == PLAIN


def test_no_tokenizer(tmp_path: Path) -> None:
    with fails(
        tmp_path,
        "there is no file 'DIR/tokenizer.json'",
        "  hint: load the tokenizer with Hugging Face transformers, which also reads other formats, and save it with "
        "tokenizer.save_pretrained(...)",
    ):
        Tokenizer(tmp_path)


def test_not_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError) as error:
        Tokenizer(tmp_path)
    first, hint = str(error.value).split("\n")
    assert first.startswith(f"'{tmp_path}/tokenizer.json' cannot be read as a tokenizer: ")
    assert hint == "  hint: download it again"


def test_wrong_settings(directory: Path) -> None:
    path = directory / "tokenizer_config.json"
    for value in (3, {"content": 3}):
        path.write_text(json.dumps({"bos_token": value}))
        name = "bos_token" if value == 3 else "bos_token.content"
        with fails(directory, f"field '{name}' of 'DIR/tokenizer_config.json' is 3, expected a text"):
            Tokenizer(directory)


def test_a_template_that_is_no_text(directory: Path) -> None:
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe{")
    with fails(
        directory,
        "'DIR/chat_template.jinja' is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: "
        "invalid start byte",
        "  hint: download it again; a checkout without Git LFS has small text files in place of the real ones",
    ):
        Tokenizer(directory)
