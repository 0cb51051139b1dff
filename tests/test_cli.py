"""The command ``tempo``, mostly in this process."""

from __future__ import annotations

import gc
import io
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import tempo as tp
from tempo import cli, llm
from tempo.cli import main
from tests.llm.checkpoints import CONTEXT, write_checkpoint

ROOT = Path(__file__).parents[1]
SEPARATED = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"
WITHOUT_EARLIER_ANSWERS = (
    "{% for m in messages %}{% if m.role == 'user' %}[user]{{ m.content }}\n{% endif %}{% endfor %}[assistant]"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(found, "llama")
    return found


@pytest.fixture(scope="module")
def model(directory: Path) -> llm.LanguageModel:
    return llm.load(directory)


def enter(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


# -- generate ----------------------------------------------------------------------------------------


def test_generate_streams_the_text_and_tells_how_fast(
    directory: Path, model: llm.LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", str(directory), "--prompt", "the tale of", "--max-new-tokens", "12"]) == 0
    captured = capsys.readouterr()
    (expected,) = llm.generate(model, "the tale of", max_new_tokens=12)
    assert captured.out == expected.text + "\n"
    assert re.sub(r"\d+\.\d+", "X", captured.err).splitlines()[:3] == [
        f"tokens: {len(expected.tokens)}",
        "tokens per second: X",
        "time to first token: X s",
    ]
    assert re.fullmatch(r"peak memory: [\d,]+ MiB (of this process|on the device)", captured.err.splitlines()[3])


def test_tokens_that_come_with_the_first_are_not_fast() -> None:
    meter = cli.Meter()
    meter.texts = [[2.0, 2.0001, 2.5, 3.0], [1.0, 1.0001], []]
    assert list(meter.lines()) == ["tokens: 6", "tokens per second: 2.0", "time to first token: 2.00 s"]


def test_a_terminal_that_cannot_show_everything(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1", write_through=True))
    monkeypatch.setattr(
        cli.llm, "stream", lambda *_, **__: (llm.Piece(0, 5, text) for text in ("caf\u00e9 ", "\u732b"))
    )
    assert main(["generate", "--model", str(directory), "--prompt", "the tale of"]) == 0
    assert shown.getvalue() == "caf\u00e9 ?\n".encode("latin-1")


def test_what_is_no_text_is_said_to_be_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello \xff\n"), encoding="utf-8"))
    assert main(["chat", "--model", str(directory)]) == 1
    assert "which is not a character" in capsys.readouterr().err


def test_generate_takes_all_options(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []

    def stream(model: llm.LanguageModel, prompt: str, **how: Any) -> Iterator[llm.Piece]:
        given.extend([model, prompt, how])
        yield llm.Piece(0, 5, "one")

    monkeypatch.setattr(cli.llm, "stream", stream)
    numbers = "--max-new-tokens 7 --temperature 0.5 --top-k 9 --top-p 0.8 --min-p 0.1 --repetition-penalty 1.2 --seed 3"
    rest = ["--stop", "a", "b", "--stop", "c", "--dtype", "bfloat16", "--device", "cpu", "--memory", "2GiB"]
    assert main(["generate", "--model", str(directory), "--prompt", "the", *numbers.split(), *rest]) == 0
    model, prompt, how = given
    assert (model.dtype, model.device, model.memory, prompt) == (tp.bfloat16, "cpu", "2GiB", "the")
    assert how == {
        "max_new_tokens": 7,
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "stop": ["a", "b", "c"],
        "seed": 3,
    }
    # One token has no speed.
    assert capsys.readouterr().err.startswith("tokens: 1\ntime to first token: ")


def test_ctrl_c_ends_generate(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stream(*_: Any, **__: Any) -> Iterator[llm.Piece]:
        yield llm.Piece(0, 5, "one")
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.llm, "stream", stream)
    assert main(["generate", "--model", str(directory), "--prompt", "the"]) == 130
    assert capsys.readouterr() == ("one\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"--model": "nowhere"}, "there is no file 'nowhere/config.json'"),
        ({"--temperature": "-1"}, "temperature = -1.0: a temperature is 0 or greater"),
        # Before a model is loaded, which may take long.
        ({"--model": "nowhere", "--top-k": "0"}, "top_k = 0: at least one token must stay"),
        ({"--model": "nowhere", "--max-new-tokens": "0"}, "max_new_tokens = 0: at least one token is generated"),
        ({"--model": "nowhere", "--stop": ""}, "stop = ['']: an empty text is everywhere"),
        ({"--model": "nowhere", "--memory": "lots"}, "memory = 'lots': not an amount of memory"),
        ({"--device": "gpu"}, "there is no device 'gpu' here"),
    ],
)
def test_mistakes(directory: Path, arguments: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--device" in arguments and on_gpu():
        pytest.skip("there is a GPU")
    options = {"--model": str(directory), "--prompt": "the", **arguments}
    assert main(["generate", *(part for option in options.items() for part in option)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == message


def on_gpu() -> bool:
    import jax

    return bool(jax.devices()[0].platform == "gpu")


# -- chat --------------------------------------------------------------------------------------------


def test_chat_answers_line_by_line(
    directory: Path, model: llm.LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(monkeypatch, "the other", "", "the tale")
    assert main(["chat", "--model", str(directory), "--max-new-tokens", "6", "--temperature", "0"]) == 0
    assert model.tokenizer is not None
    messages, expected, tokens = [], "", 0
    for line in ("the other", "the tale"):
        messages.append({"role": "user", "content": line})
        (answer,) = llm.generate(model, model.tokenizer.chat(messages), max_new_tokens=6, temperature=0)
        messages.append({"role": "assistant", "content": answer.text.strip()})
        expected += answer.text + "\n"
        tokens += len(answer.tokens)
    said, told = capsys.readouterr()
    assert said == expected
    assert re.sub(r"\d+\.\d+", "X", told).splitlines()[:3] == [
        f"tokens: {tokens}",
        "tokens per second: X",
        "time to first token: X s",
    ]
    assert told.splitlines()[3].startswith("peak memory: ")


class Scripted:
    """A session whose answers are written down; ``None`` in an answer is Ctrl-C, a function is called."""

    answers: ClassVar[list[list[Any]]] = []
    made: ClassVar[list[Scripted]] = []

    def __init__(self, model: llm.LanguageModel) -> None:
        assert model.tokenizer is not None
        self.tokenizer = model.tokenizer
        self.tokens: list[int] = []
        self.turns: list[tuple[str, dict[str, Any]]] = []
        self.made.append(self)

    def stream(self, prompt: list[int], **how: Any) -> Generator[llm.Piece, None, None]:
        self.turns.append((self.tokenizer.decode(prompt), how))
        self.tokens.extend(prompt)
        for text in self.answers.pop(0):
            if text is None:
                raise KeyboardInterrupt
            if callable(text):
                text()
                continue
            self.tokens.extend(self.tokenizer.encode(text, special=False))
            yield llm.Piece(0, self.tokens[-1], text)


Talk = Callable[..., tuple[list[list[str]], str]]


@pytest.fixture
def talk(directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Talk:
    """Hold a conversation with these answers: the prompts of each session, and what was printed."""

    def talk(
        lines: list[str], answers: list[list[Any]], template: str | None = None, *options: str
    ) -> tuple[list[list[str]], str]:
        for path in directory.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        monkeypatch.setattr(cli.llm, "Session", Scripted)
        monkeypatch.setattr(Scripted, "answers", list(answers))
        monkeypatch.setattr(Scripted, "made", [])
        enter(monkeypatch, *lines)
        assert main(["chat", "--model", str(tmp_path), *options]) == 0
        return [[prompt for prompt, _ in session.turns] for session in Scripted.made], capsys.readouterr().out

    return talk


def test_what_was_said_is_not_computed_again(talk: Talk) -> None:
    prompts, printed = talk(["the tale", "more"], [["the", " tempo"], ["of"]], SEPARATED, "--seed", "5")
    assert prompts == [["[user]the tale\n[assistant]", "\n[user]more\n[assistant]"]]
    assert printed == "the tempo\nof\n"
    assert [how["seed"] for _, how in Scripted.made[0].turns] == [5, 6]


def test_a_template_that_rewrites_what_was_said(talk: Talk) -> None:
    prompts, _ = talk(["the tale", "more"], [["the"], ["of"]], WITHOUT_EARLIER_ANSWERS)
    assert prompts == [["[user]the tale\n[assistant]"], ["[user]the tale\n[user]more\n[assistant]"]]


def test_without_a_template_an_answer_is_one_line_of_a_play(talk: Talk) -> None:
    prompts, _ = talk(["hello", "more"], [[" the"], [" of"]], None, "--stop", "END", "--system", "be brief")
    assert prompts == [["system: be brief\nuser: hello\nassistant:", "\nuser: more\nassistant:"]]
    assert [how["stop"] for _, how in Scripted.made[0].turns] == [("END", "\nuser:")] * 2


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(talk: Talk) -> None:
    prompts, printed = talk(["the tale", "more"], [["the", None, " tempo"], ["of"]], SEPARATED)
    assert prompts == [["[user]the tale\n[assistant]", "\n[user]more\n[assistant]"]]
    assert printed == "the\nof\n"


def test_ctrl_c_that_meets_the_garbage_collector(talk: Talk) -> None:
    """Python drops exceptions of the collector's callbacks, of which JAX has one."""

    def interrupt(phase: str, info: Any) -> None:
        gc.callbacks.remove(interrupt)
        raise KeyboardInterrupt

    def collect() -> None:
        gc.callbacks.append(interrupt)
        gc.collect()
        for _ in range(1000):  # until the second one
            time.sleep(0.01)

    _, printed = talk(["the tale", "more"], [["the", collect, " tempo"], ["of"]], SEPARATED)
    assert printed == "the\nof\n"


def test_reset_and_quit(talk: Talk) -> None:
    prompts, printed = talk(["one", "/reset", "two", "/quit", "three"], [["the"], ["of"]], SEPARATED)
    assert prompts == [["[user]one\n[assistant]"], ["[user]two\n[assistant]"]]
    assert printed == "the\nof\n"


def test_ctrl_c_while_nothing_is_said(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entered = iter([KeyboardInterrupt, EOFError])

    def nothing(_: str) -> str:
        raise next(entered)

    monkeypatch.setattr("builtins.input", nothing)
    assert main(["chat", "--model", str(directory)]) == 0
    assert capsys.readouterr().out == "\n(/quit or Ctrl-D ends)\n"


def test_chat_goes_on_when_positions_have_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path, "gpt2")
    options = ["--max-new-tokens", str(CONTEXT // 2), "--temperature", "0"]
    enter(monkeypatch, "the tale", "of the tale " * 20, "/reset", "the tale")
    assert main(["chat", "--model", str(tmp_path), *options]) == 0
    said, errors = capsys.readouterr()
    assert f"are more than the {CONTEXT} positions that the model has" in errors
    assert "(/reset begins anew)\n" in errors
    first, failed, again, _ = said.split("\n")
    assert (failed, again) == ("", first)

    enter(monkeypatch, "of the tale " * 40)
    assert main(["chat", "--model", str(tmp_path), *options]) == 1


def test_a_line_that_fails_is_not_said(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(monkeypatch, "the other", "the \udcff", "the tale")
    assert main(["chat", "--model", str(directory), "--max-new-tokens", "6", "--temperature", "0"]) == 0
    answers, errors = capsys.readouterr()
    assert errors.count("which is not a character") == 1
    enter(monkeypatch, "the other", "the tale")
    assert main(["chat", "--model", str(directory), "--max-new-tokens", "6", "--temperature", "0"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert answers.splitlines() == [first, "", second]


def test_chat_needs_a_tokenizer(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    assert main(["chat", "--model", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "a conversation needs the model's tokenizer\n"
        "  hint: put tokenizer.json beside the weights: load the tokenizer with Hugging Face transformers, which also "
        "reads other formats, and save it with tokenizer.save_pretrained(...)\n"
    )


# -- the command -------------------------------------------------------------------------------------


def test_the_command_itself() -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "tempo", *arguments]
        return subprocess.run(run, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")}, timeout=120)

    version = command("--version")
    assert (version.returncode, version.stdout) == (0, f"tempo {tp.__version__}\n")
    failed = command("generate", "--model", "nowhere", "--prompt", "x")
    assert failed.returncode == 1
    assert failed.stderr == (
        "there is no file 'nowhere/config.json'\n"
        "  hint: name the directory of a checkpoint as Hugging Face transformers saves it; "
        "hf download NAME --local-dir DIRECTORY makes one\n"
    )
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"tempo": "tempo.cli:main"}


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "go on from a prompt" in out and "hold a conversation" in out
