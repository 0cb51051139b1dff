"""The benchmark of memory runs every system in a process of its own, and keeps to its budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", ["reinforce 8", "reinforce all", "ppo 128"])
def test_a_budget(case: str) -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "rl_memory.py"), "--quick", "--device", "cpu", "--only", case],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=900,
    )
    assert found.returncode == 0, found.stderr
    records = {r["system"]: r for r in map(json.loads, found.stdout.splitlines())}
    assert list(records) == ["torch", "jax", "tempo, unlimited", "tempo"]
    assert all(r["bench"] == "rl_memory" and r["ms"] > 0 for r in records.values()), found.stdout
    limited = records["tempo"]
    assert limited["bytes"] <= limited["budget"] < limited["bytes_seen"] < records["tempo, unlimited"]["bytes"]
    assert bool(limited["host"]) == (case != "reinforce 8")
    assert limited["ratio"] > 0
