"""The benchmark of stores in host memory runs, checks its results and prints records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_device_has_less_in_smaller_blocks() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "offload.py"), "--quick", "--device", "cpu", "--only", "rnn"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    records = {r["system"]: r for r in map(json.loads, found.stdout.splitlines())}
    assert len(records) == 7
    assert all(r.keys() >= {"ms", "bytes", "bytes_planned", "bytes_host", "error"} for r in records.values())
    hosted = [r for name, r in records.items() if name.endswith("on the host")]
    assert sorted(hosted, key=lambda r: r["bytes"]) == hosted
    assert hosted[0]["bytes"] < records["all at once"]["bytes"] / 4
    assert all((r["bytes_host"] > 0) == (r in hosted) for r in records.values())
