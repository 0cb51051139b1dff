"""Benchmarks as their users start them: in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(name: str, *arguments: str, timeout: int = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        timeout=timeout,
    )


def quick(name: str, *arguments: str, timeout: int = 280) -> list[dict[str, Any]]:
    """The records of small sizes on the CPU."""
    found = run(name, "--quick", "--device", "cpu", *arguments, timeout=timeout)
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]
