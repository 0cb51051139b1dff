"""The benchmark of PPO runs, with all systems, and prints records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_all_systems() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "ppo.py"), "--quick", "--device", "cpu", "--only", "base"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["system"] for line in lines] == ["jax", "tempo", "torch", "torch cached"]
    assert all(line["bench"] == "ppo" and line["ms"] > 0 for line in lines)
