"""The benchmark of recursive models runs, checks its results and prints records. How fast anything is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "batching.py"), "--quick", "--device", "cpu", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=280,
    )


def test_a_case() -> None:
    found = run("--only", "mv_rnn/forward")
    assert found.returncode == 0, found.stderr
    records = [json.loads(line) for line in found.stdout.splitlines()]
    systems = ["tempo", "torch eager", "torch by hand", "tempo forest", "tempo unbatched"]
    assert [(r["case"], r["system"]) for r in records] == [("mv_rnn/8/small/forward", system) for system in systems]
    ours = records[0]
    assert ours.keys() >= {"ms", "ratio", "floor_ms", "host_ms", "device_ms", "kernels", "width", "padding", "cores"}
    assert "ratio" not in records[1]
    assert run("--only", "nothing").returncode == 1


@pytest.mark.slow
def test_all_cases() -> None:
    found = run()
    assert found.returncode == 0, found.stderr
    assert len({json.loads(line)["case"] for line in found.stdout.splitlines()}) == 7 + 4
