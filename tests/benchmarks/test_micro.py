"""The micro benchmarks run, check their results and print records. How fast anything is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

OURS = {"ms", "ratio", "dispatches", "trace_s", "xla_s", "bytes_planned", "bytes_xla", "error"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "micro.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=240,
    )


def records(*arguments: str) -> list[dict[str, Any]]:
    found = run(*arguments)
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_a_pair() -> None:
    lines = records("--quick", "--device", "cpu", "--only", "ema")
    assert [(r["bench"], r["case"], r["system"]) for r in lines] == [("micro", "ema", "jax"), ("micro", "ema", "tempo")]
    theirs, ours = lines
    assert theirs.keys() >= {"ms", "xla_s", "bytes_xla", "variant"}
    assert ours.keys() >= OURS
    assert ours["dispatches"] == 1
    assert ours["error"] < 1e-6
    # 1000 x 100 numbers in, as many out, four bytes each.
    assert ours["bytes_planned"] >= 800_000
    assert ours["bytes_xla"] >= 800_000
    assert ours["runs"] >= 7


def test_an_unknown_case_is_refused() -> None:
    found = run("--only", "nothing")
    assert found.returncode == 2
    assert "invalid choice: 'nothing'" in found.stderr
