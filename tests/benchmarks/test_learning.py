"""The benchmark of learning runs, and prints records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_case(tmp_path: Path) -> None:
    where = ["--logs", str(tmp_path / "logs"), "--plot", str(tmp_path / "curves.png")]
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "learning.py"), "--quick", "--only", "a2c CartPole", *where],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    (line,) = (json.loads(line) for line in found.stdout.splitlines())
    assert (line["bench"], line["case"], line["steps"]) == ("learning", "a2c CartPole", 1536)
    assert (tmp_path / "curves.png").stat().st_size > 1000
