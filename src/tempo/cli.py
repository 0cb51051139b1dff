"""The command ``tempo``: language models in a terminal, and the training of policies (``cli_training``)."""

from __future__ import annotations

import _thread
import argparse
import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import fields
from typing import Any

import tempo as tp
from tempo import cli_training, llm
from tempo.llm.arguments import as_count
from tempo.llm.sampling import Sampling
from tempo.llm.text import stop_texts
from tempo.llm.tokenizer import BESIDE
from tempo.schedule.planning import bytes_of

DTYPES = ("float32", "bfloat16", "float16")
# Tokens that are handed over together are no further apart than this.
TOGETHER_SECONDS = 5e-4
# The options that say how tokens are chosen, by the names that llm.stream has for them.
SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; gives the exit status."""
    options = parser().parse_args(arguments)
    # What a terminal cannot show is replaced; what it sends that is no text is refused where it is read.
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    try:
        with interruptible():
            status: int = options.run(options)
        sys.stdout.flush()
        return status
    except tp.TempoError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:
        # Whoever read the text has enough of it, and the interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is an exception that comes anywhere. In a callback of the garbage collector, of which JAX has one that
    runs often while it compiles, exceptions are reported and dropped: then it is sent again, when that is done."""
    report = sys.unraisablehook

    def again(dropped: Any) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            report(dropped)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = report


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="tempo", description="Run language models and train policies, compiled by Tempo."
    )
    found.add_argument("--version", action="version", version=f"tempo {tp.__version__}")
    commands = found.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "generate",
        help="go on from a prompt",
        description="Go on from a prompt. The text goes to stdout as it comes, speed and memory to stderr.",
    )
    command.set_defaults(run=generate)
    add_model(command)
    command.add_argument("--prompt", required=True, metavar="TEXT", help="what to go on from")
    add_sampling(command, max_new_tokens=128)

    command = commands.add_parser(
        "chat",
        help="hold a conversation",
        description="Hold a conversation: one line from stdin is one turn.",
        epilog="/reset begins anew, /quit and Ctrl-D end, Ctrl-C stops an answer.",
    )
    command.set_defaults(run=chat)
    add_model(command)
    command.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    add_sampling(command, max_new_tokens=512)

    cli_training.add_commands(commands)
    return found


def add_model(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("model")
    group.add_argument("--model", required=True, metavar="DIR", help="a checkpoint as Hugging Face has them")
    group.add_argument("--dtype", choices=DTYPES, help="what to compute in (default: the checkpoint's own)")
    group.add_argument("--device", choices=("cpu", "gpu"), help="where to compute (default: what JAX picks)")
    group.add_argument("--memory", metavar="SIZE", help="what a program may take, such as 8GiB (default: what is left)")


def add_sampling(command: argparse.ArgumentParser, max_new_tokens: int) -> None:
    group = command.add_argument_group("choosing tokens")
    group.add_argument(
        "--max-new-tokens", type=int, default=max_new_tokens, metavar="N", help="at most so many (default: %(default)s)"
    )
    group.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="0 takes the likeliest (default: %(default)s)"
    )
    group.add_argument("--top-k", type=int, metavar="N", help="choose among the N likeliest")
    group.add_argument("--top-p", type=float, metavar="X", help="choose among the fewest of joint probability X")
    group.add_argument("--min-p", type=float, metavar="X", help="choose among those X times as likely as the likeliest")
    group.add_argument(
        "--repetition-penalty", type=float, metavar="X", help="above 1, what has occurred becomes less likely"
    )
    group.add_argument(
        "--stop", nargs="+", action="extend", default=[], metavar="TEXT", help="end before the first of these"
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another one, another text (default: %(default)s)"
    )


def load(options: argparse.Namespace) -> llm.LanguageModel:
    dtype = None if options.dtype is None else getattr(tp, options.dtype)
    if options.memory is not None:
        bytes_of(options.memory)  # what is no amount is found before weights are read
    return llm.load(options.model, dtype, options.device, options.memory)


def sampling(options: argparse.Namespace) -> dict[str, Any]:
    """The options of ``llm.stream``. What is wrong with them is said here, before a model is loaded."""
    as_count(options.max_new_tokens)
    stop_texts(options.stop)
    Sampling(**{field.name: getattr(options, field.name) for field in fields(Sampling)})
    return {name: getattr(options, name) for name in SAMPLING}


# -- generate ----------------------------------------------------------------------------------------


def generate(options: argparse.Namespace) -> int:
    how = sampling(options)
    model = load(options)
    meter = Meter()
    say(meter.counted(llm.stream(model, options.prompt, seed=options.seed, **how)))
    print()
    meter.report(options.device)
    return 0


def say(pieces: Generator[llm.Piece, None, None]) -> None:
    with contextlib.closing(pieces):
        for piece in pieces:
            print(piece.text, end="", flush=True)


class Meter:
    """When the tokens of texts come."""

    def __init__(self) -> None:
        self.texts: list[list[float]] = []

    def counted(self, pieces: Iterator[llm.Piece]) -> Generator[llm.Piece, None, None]:
        """The pieces of another text."""
        start = time.perf_counter()
        self.texts.append([])
        for piece in pieces:
            if piece.token is not None:
                self.texts[-1].append(time.perf_counter() - start)
            yield piece

    def report(self, device: str | None) -> None:
        print("\n".join([*self.lines(), f"peak memory: {peak_memory(device)}"]), file=sys.stderr)

    def lines(self) -> Iterator[str]:
        texts = [times for times in self.texts if times]
        yield f"tokens: {sum(map(len, texts))}"
        # The first one of a text waits for the compiler and the prompt, and others may be handed over with it.
        counted = sum(time - times[0] > TOGETHER_SECONDS for times in texts for time in times)
        seconds = sum(times[-1] - times[0] for times in texts)
        if counted:
            yield f"tokens per second: {counted / seconds:.1f}"
        if texts:
            yield f"time to first token: {texts[0][0]:.2f} s"


def peak_memory(device: str | None) -> str:
    """The most that was in use, on the device if it keeps count, otherwise by this process."""
    import jax

    found = (jax.devices(device) if device else jax.devices())[0].memory_stats() or {}
    if "peak_bytes_in_use" in found:
        return f"{found['peak_bytes_in_use'] / 2**20:,.0f} MiB on the device"
    if sys.platform == "win32":
        return "unknown"
    import resource

    # In KiB; on macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 2**10
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20:,.0f} MiB of this process"


# -- chat --------------------------------------------------------------------------------------------


def chat(options: argparse.Namespace) -> int:
    how = sampling(options)
    conversation = Conversation(load(options), options.system)
    if conversation.tokenizer.chat_template is None:
        # A model that was not made for conversations goes on to write the user's part as well.
        how["stop"] = (*how["stop"], "\nuser:")
    seed = options.seed
    meter = Meter()
    for line in lines():
        if line == "/quit":
            break
        if line == "/reset":
            conversation.reset()
        elif line:
            try:
                with contextlib.closing(conversation.answer(line, seed, how)) as pieces:
                    say(meter.counted(pieces))
            except KeyboardInterrupt:
                pass
            except tp.errors.ModelError as error:
                # What fails from the beginning will always fail; later, positions have run out.
                if not any(message["role"] == "assistant" for message in conversation.messages):
                    raise
                print(f"{error}\n  (/reset begins anew)", file=sys.stderr)
            print()
            seed += 1  # the same question again may have another answer
    if any(meter.texts):
        meter.report(options.device)
    return 0


def lines() -> Iterator[str]:
    """What the user enters, up to the end."""
    prompt = ""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (lets input() edit lines and remember them)
        prompt = "> "
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        except KeyboardInterrupt:
            print("\n(/quit or Ctrl-D ends)")
            continue
        yield line.strip()


class Conversation:
    """What was said, as messages and as a session's tokens."""

    def __init__(self, model: llm.LanguageModel, system: str | None = None) -> None:
        if model.tokenizer is None:
            raise tp.errors.ModelError("a conversation needs the model's tokenizer", hint=BESIDE)
        self.model = model
        self.tokenizer = model.tokenizer
        self.system = system
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.session = llm.Session(self.model)

    def answer(self, line: str, seed: int, how: dict[str, Any]) -> Generator[llm.Piece, None, None]:
        """The model's answer to a line, piece by piece. One that is left early counts as far as it went."""
        self.messages.append({"role": "user", "content": line})
        said: list[str] = []
        asked = True
        try:
            prompt = self._prompt()
            with contextlib.closing(self.session.stream(prompt, seed=seed, **how)) as pieces:
                for piece in pieces:
                    said.append(piece.text)
                    yield piece
        except tp.TempoError:
            # The session is as it was, and so are the messages.
            asked = bool(said)
            raise
        finally:
            if asked:
                # Templates have their own space in front of an answer.
                self.messages.append({"role": "assistant", "content": "".join(said).strip()})
            else:
                self.messages.pop()

    def _prompt(self) -> list[int]:
        """The tokens that the session does not have yet; it may be another session then."""
        tokens, known = self.tokenizer.chat(self.messages), self.session.tokens
        # Usually the conversation goes on where the session is. But some templates leave parts of earlier answers out,
        # and a model may have put a word together of other tokens than the tokenizer. Then all is computed again.
        if tokens[: len(known)] != known or len(tokens) == len(known):
            self.session = llm.Session(self.model)
        return tokens[len(self.session.tokens) :]
