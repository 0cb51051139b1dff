"""The benchmark of a stack of layers runs, checks its results and prints records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_all_systems() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "layers.py"), "--quick", "--device", "cpu"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["system"] for line in lines] == ["jax apart", "jax stacked", "tempo", "tempo rolled"]
    assert all(line["bench"] == "layers" and line["ms"] > 0 and line["error"] < 1e-3 for line in lines)
    assert lines[0]["ratio"] == 1
