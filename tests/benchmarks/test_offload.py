"""The benchmark of stores in host memory runs, checks its results, keeps to budgets and prints records."""

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
    assert len(records) == 11
    figures = {"us_per_step", "ratio", "ms", "budget", "bytes", "bytes_planned", "bytes_host", "error"}
    assert all(r.keys() >= figures for r in records.values())
    limited = {name: r for name, r in records.items() if r["budget"] is not None}
    assert list(limited) == [f"1/{part} of the memory" for part in (2, 4, 8, 16)]
    assert all(r["bytes"] <= r["budget"] for r in limited.values())
    assert limited["1/16 of the memory"]["bytes_host"] > 0
    hosted = [r for name, r in records.items() if name.endswith("on the host")]
    assert sorted(hosted, key=lambda r: r["bytes"]) == hosted
    assert hosted[0]["bytes"] < records["all at once"]["bytes"] / 4
    assert all((r["bytes_host"] > 0) == (r in hosted) for r in records.values() if r["budget"] is None)
