"""The fastest of a handful of plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime import autotune


def program() -> tuple[tp.Program, Any]:
    with tp.Program("tuned") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + x[t]
        prog.output("z", tp.exp(-y)[0:T].sum())
    return prog, T


def test_the_fastest_plan_is_found_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPO_CACHE_DIR", str(tmp_path))
    measured: list[Any] = []

    def seconds(run: Any, inputs: Any) -> float:
        measured.append(dict(run.plan.blocks))
        return abs(run.plan.blocks.get("t", 64) - 4.0)

    monkeypatch.setattr(autotune, "_seconds", seconds)
    prog, T = program()
    inputs = {"x": np.ones(64, np.float32)}
    best = tp.autotune(prog, {T: 64}, inputs, backend="numpy")
    assert measured == [{}, {"t": 16}, {"t": 4}]
    assert best == tp.Plan({"t": 4})
    (kept,) = (tmp_path / "plans").iterdir()
    assert json.loads(kept.read_text())["blocks"] == {"t": 4}
    assert tp.autotune(program()[0], {T.name: 64}, inputs, backend="numpy") == best
    assert len(measured) == 3
    tp.autotune(prog, {T: 32}, {"x": np.ones(32, np.float32)}, backend="numpy")
    assert len(measured) > 3


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("block", [1, 2, 5, 7, 19, 20])
def test_every_plan_gives_the_same_values(block: int, backend: str) -> None:
    prog, T = program()
    x = np.linspace(-1, 1, 20, dtype=np.float32)
    run = prog.compile({T: 20}, backend=backend, plan=tp.Plan({"t": block}))
    assert run(x=x).z == pytest.approx(prog.evaluate({T: 20}, x=x).z, rel=1e-5)


def test_plans_are_really_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotune, "SECONDS", 0.0)
    prog, T = program()
    inputs = {"x": np.ones(20, np.float32)}
    best = tp.autotune(prog, {T: 20}, inputs)
    run = prog.compile({T: 20}, plan=best)
    assert run(**inputs).z == pytest.approx(prog.evaluate({T: 20}, **inputs).z, rel=1e-5)


def test_a_plan_that_was_cut_off_is_found_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotune, "SECONDS", 0.0)
    prog, T = program()
    inputs = {"x": np.ones(64, np.float32)}
    tp.autotune(prog, {T: 64}, inputs, backend="numpy")
    (kept,) = (tmp_path / "plans").iterdir()
    kept.write_text(kept.read_text()[:20])
    tp.autotune(prog, {T: 64}, inputs, backend="numpy")
    assert set(json.loads(kept.read_text())) == set(tp.Plan().settings())
