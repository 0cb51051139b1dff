"""The benchmark of environments in Python runs, with all systems, and says where our time goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_all_systems() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "host_envs.py"), "--quick", "--device", "cpu", "--only", "8 envs"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["system"] for line in lines] == ["torch", "torch, values at once", "tempo"]
    assert all(line["bench"] == "host_envs" and line["ms"] > 0 and line["steps_s"] > 0 for line in lines)
    assert lines[-1]["ratio"] > 0
    assert set(lines[-1]["profile_us"]) == {"env", "host", "acting", "other", "learning"}
