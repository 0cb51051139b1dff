"""The benchmark of PPO runs, with all systems, and prints records."""

from __future__ import annotations

import pytest

from tests.benchmarks.common import quick


@pytest.mark.slow
def test_all_systems() -> None:
    lines = quick("ppo", "--only", "base")
    assert [line["system"] for line in lines] == ["jax", "tempo", "torch", "torch cached"]
    assert all(line["bench"] == "ppo" and line["ms"] > 0 for line in lines)
