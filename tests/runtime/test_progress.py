"""The progress bar of a stream: made only if somebody asks for one."""

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tempo as tp
from tempo.given import Record
from tempo.runtime import progress


def halving(steps: int, backend: str = "jax") -> Any:
    with tp.Program("halving [1/2]") as prog:
        i, I = prog.dim("i")
        w = prog.state("w", 1.0, over=i)
        w.next = w / 2
        prog.emit("w", w)
        prog.emit("pair", tp.stack([w, w]))
    return prog.compile({I: steps}, backend)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is written to a terminal of 120 columns."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda: console)
    return text


def last_line(screen: io.StringIO) -> str:
    return [line for line in screen.getvalue().replace("\r", "\n").splitlines() if "halving" in line][-1]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_bar_shows_iterations_and_the_latest_numbers(screen: io.StringIO, backend: str) -> None:
    assert len(list(halving(10, backend).stream(progress=True))) == 20
    line = last_line(screen)
    assert "halving [1/2] ━━━" in line  # a name is no markup
    assert " 10/10 " in line
    assert "w=0.001953" in line
    assert "pair" not in line  # only single numbers fit
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_an_error_takes_the_bar_away_and_the_next_record_brings_it_back(screen: io.StringIO) -> None:
    fails = [True]

    def fail(w: Any) -> Any:
        if fails and w < 0.2:
            fails.clear()
            raise OSError("not now")
        return w

    with tp.Program("halving") as prog:
        i, I = prog.dim("i")
        w = prog.state("w", 1.0, over=i)
        w.next = tp.host(fail, w, out=tp.spec(()), sequence=i) / 2
        prog.emit("w", w)
    stream = prog.compile({I: 5}).stream(progress=True)
    with pytest.raises(tp.errors.HostError):
        list(stream)
    assert " 3/5 " in last_line(screen)
    assert screen.getvalue().endswith("\x1b[?25h")
    assert len(list(stream)) == 1 + 1
    assert " 5/5 " in last_line(screen)


def test_leaving_a_stream_takes_the_bar_away(screen: io.StringIO) -> None:
    stream = halving(10).stream(progress=True)
    next(stream)
    assert not screen.getvalue().endswith("\x1b[?25h")
    del stream
    assert screen.getvalue().endswith("\x1b[?25h")


def test_numbers_of_all_kinds(screen: io.StringIO) -> None:
    bar = progress.ProgressBar("halving", 3)
    values = {"loss": np.float32(1.23456789), "count": np.array(12345), "done": np.array(True), "nothing": np.zeros(0)}
    with bar:
        bar.update(1, [(name, Record({}, np.asarray(value))) for name, value in values.items()])
    bar.stop()
    assert last_line(screen).rstrip().endswith("loss=1.235 count=12345 done=True")


def test_nothing_of_it_is_there_unless_asked_for() -> None:
    """Not even the library is imported."""
    code = (
        "import sys, tempo as tp\n"
        "with tp.Program() as prog:\n"
        "    i, I = prog.dim('i')\n"
        "    w = prog.state('w', 1.0, over=i)\n"
        "    w.next = w / 2\n"
        "    prog.emit('w', w)\n"
        "list(prog.compile({I: 3}, 'numpy').stream())\n"
        "print('rich.progress' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_no_input_is_named_like_it() -> None:
    with pytest.raises(tp.errors.ProgramError) as caught, tp.Program() as prog:
        prog.input("progress")
    assert str(caught.value).splitlines()[0] == "input 'progress': this cannot be a name"
    assert caught.value.hint == (
        "names come first and are non-empty strings other than 'bounds', 'progress' and 'seed'"
    )
