"""Scripts: what Python runs itself, and what it has done in one go."""

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule import script
from tempo.schedule.script import END, START, Script


def written(prog: tp.Program, bounds: dict[Any, int]) -> Script:
    return prog.compile(bounds, "numpy")._script


def training(host: bool = False, emit: bool = False) -> tuple[tp.Program, Any, Any]:
    """A state that is changed by a recurrence, in which a host function may have a say."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", 1.0, over=i)
        h = prog.recurrent("h", domain=(i, t))
        h[i, -1] = w
        before = tp.host(np.tanh, h[i, t - 1], out=tp.spec(()), sequence=(i, t)) if host else h[i, t - 1]
        h[i, t] = tp.tanh(before)
        w.next = h[i, T - 1]
        if emit:
            prog.emit("h", h)
        prog.output("last", w[I])
    return prog, I, T


def test_outermost_loops_run_in_chunks() -> None:
    prog, I, T = training()
    assert str(written(prog, {I: 10, T: 5})).splitlines() == [
        "1 nodes in one go",
        "i = 0 .. 9, at most 10 at a time",
        "1 nodes in one go",
    ]


def test_python_runs_the_loops_around_host_calls() -> None:
    prog, I, T = training(host=True)
    assert str(written(prog, {I: 10, T: 5})).splitlines() == [
        "1 nodes in one go",
        "i = 0 .. 9, one by one:",
        "    2 nodes in one go",
        "    t = 0 .. 4, one by one:",
        "        a host call",
        "        3 nodes in one go",
        "1 nodes in one go",
    ]


def test_a_loop_of_one_step_is_looked_into() -> None:
    """The loops in it are what takes time."""
    prog, I, T = training()
    assert "t = 0 .. 4, at most 5 at a time" in str(written(prog, {I: 1, T: 5})).splitlines()
    kept = Executable(prog.graph, {I: 1, T: 5}, "numpy", skip=("drop single steps",))
    assert "    t = 0 .. 4, at most 5 at a time" in str(kept._script).splitlines()


def test_a_chunk_emits_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    prog, I, T = training(emit=True)
    monkeypatch.setattr(script, "GATHERED_BYTES", 100)
    assert "i = 0 .. 9, at most 5 at a time" in str(written(prog, {I: 10, T: 5}))  # of 5 values of 4 bytes
    monkeypatch.setattr(script, "MOST_ITERATIONS", 3)
    assert "i = 0 .. 9, at most 3 at a time" in str(written(prog, {I: 10, T: 5}))
    monkeypatch.setattr(script, "GATHERED_BYTES", 0)
    assert "i = 0 .. 9, at most 1 at a time" in str(written(prog, {I: 10, T: 5}))


def test_inner_loops_that_emit_too_much_run_in_chunks_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    prog, I, T = training(emit=True)
    monkeypatch.setattr(script, "MOST_BYTES", 16)
    lines = str(written(prog, {I: 10, T: 5})).splitlines()
    assert "i = 0 .. 9, one by one:" in lines
    assert "    t = 0 .. 4, at most 5 at a time" in lines


def test_iterations_are_those_of_the_outermost_loops() -> None:
    prog, I, T = training(host=True)
    found = written(prog, {I: 10, T: 5})
    assert found.iterations == 10
    assert [found.iterations_before(p) for p in (START, (1,), (1, 3), (1, 3, 1, 4, 0), (2,), END)] == [
        0,
        0,
        3,
        3,
        10,
        10,
    ]


def test_what_is_needed_from_a_position_on() -> None:
    prog, I, T = training()
    found = written(prog, {I: 10, T: 5})
    names = [{node.name for node in found.needed(p)} for p in (START, (1, 3), END)]
    assert names[0] >= {"w", "h"}
    assert names[1] == names[0]
    assert names[2] == {"w"}
