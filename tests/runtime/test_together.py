"""Iterations that a GPU makes without asking its host after each of them. (Here, a CPU is treated as one.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule import script
from tempo.schedule.script import Chunks

X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


def training(iterations: int, **options: Any) -> tuple[tp.Program, dict[tp.Bound, int], Executable]:
    """Back-propagation through time, with its loss at every iteration."""
    with tp.Program("training") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=4, domain=t)
        w = prog.state("w", np.ones(4, np.float32), over=i)
        h = prog.recurrent("h", shape=4, domain=(i, t))
        h[i, -1] = 0.0
        h[i, t] = tp.tanh(w * h[i, t - 1] + x)
        loss = tp.sum(tp.square(h)[i, 0:T])
        w.next = w - 0.01 * tp.grad(loss, w)
        prog.emit("loss", loss)
        prog.output("w", w.final)
    bounds = {I: iterations, T: 5}
    return prog, bounds, Executable(prog.graph, bounds, **options)


def together(run: Executable) -> int:
    (found,) = (item for item in run._compilation.script.items if isinstance(item, Chunks))
    assert found.most % found.each == 0
    return found.each


@pytest.mark.parametrize("iterations, count", [(20, 10), (32, 16), (7, 7), (17, 1), (34, 2)])
def test_as_many_as_all_iterations_are_a_multiple_of(iterations: int, count: int) -> None:
    prog, bounds, run = training(iterations, parallel=True)
    assert together(run) == count
    found, expected = run(x=X), prog.evaluate(bounds, x=X)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-5)
    losses = [[record.value for record in result.emits["loss"]] for result in (found, expected)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_one_by_one_on_a_cpu_and_where_an_iteration_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert together(training(20, parallel=False)[2]) == 1
    monkeypatch.setattr(script, "TOGETHER_SECONDS", 1e-9)
    assert together(training(20, parallel=True)[2]) == 1


def test_chunks_get_shorter_by_whole_numbers_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what was an estimate turns out to take long."""
    prog, bounds, run = training(30, parallel=True)
    assert together(run) == 15
    expected = prog.evaluate(bounds, x=X)
    np.testing.assert_allclose(run(x=X).w, expected.w, rtol=1e-5)
    assert set(run._counts.values()) == {30}
    monkeypatch.setattr("tempo.runtime.run.SHORT_SECONDS", -1.0)
    monkeypatch.setattr("tempo.runtime.run.LONG_SECONDS", 0.0)
    for _ in range(2):
        np.testing.assert_allclose(run(x=X).w, expected.w, rtol=1e-5)
        assert set(run._counts.values()) == {15}


@pytest.mark.parametrize("taken", [1, 3, 10, 13])
def test_a_stream_that_was_saved_goes_on(taken: int, tmp_path: Path) -> None:
    """Wherever in a chunk its reader was."""
    _, _, run = training(20, parallel=True)
    whole = [(record.point, float(record.value)) for record in run.stream(x=X)]
    stream = run.stream(x=X)
    first = [next(stream) for _ in range(taken)]
    run.save(tmp_path / "run")
    _, _, other = training(20, parallel=True)
    other.load(tmp_path / "run")
    rest = other.stream(x=X)
    assert [(record.point, float(record.value)) for record in (*first, *rest)] == whole


def test_what_was_saved_one_by_one_is_for_another_program(tmp_path: Path) -> None:
    """It may have stopped within what this one makes together."""
    _, _, one_by_one = training(20, parallel=False)
    stream = one_by_one.stream(x=X)
    for _ in range(3):
        next(stream)
    one_by_one.save(tmp_path / "run")
    with pytest.raises(tp.errors.CheckpointError, match="another device, with another plan"):
        training(20, parallel=True)[2].load(tmp_path / "run")


def test_a_dim_that_stops_on_data_is_asked_every_time() -> None:
    with tp.Program("stops") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", shape=(), domain=t)
        x[0] = 1.0
        x[t + 1] = 2 * x[t]
        prog.stop(t, x > 100)
        prog.emit("x", x)
    run = Executable(prog.graph, {T: 20}, parallel=True)
    assert together(run) == 1
    assert len(run().emits["x"]) == 8
