"""The benchmark of attention runs. On a CPU it has the products only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_records() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "attention.py"), "--quick", "--device", "cpu"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    records = [json.loads(line) for line in found.stdout.splitlines()]
    cases = ["small batch", "large batch", "single precision"]
    assert [(r["bench"], r["case"], r["system"]) for r in records] == [
        ("attention", case, "products") for case in cases
    ]
    assert all(r["ms"] > 0 and r["gb_s"] > 0 for r in records)
