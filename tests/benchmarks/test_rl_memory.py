"""The benchmark of memory runs every system in a process of its own, and keeps to its budget."""

from __future__ import annotations

import pytest

from tests.benchmarks.common import quick

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", ["reinforce 8", "reinforce all", "ppo 128"])
def test_a_budget(case: str) -> None:
    records = {r["system"]: r for r in quick("rl_memory", "--only", case, timeout=900)}
    assert list(records) == ["torch", "jax", "tempo, unlimited", "tempo"]
    assert all(r["bench"] == "rl_memory" and r["ms"] > 0 for r in records.values())
    limited = records["tempo"]
    assert limited["bytes"] <= limited["budget"] < limited["bytes_seen"] < records["tempo, unlimited"]["bytes"]
    assert bool(limited["host"]) == (case != "reinforce 8")
    assert limited["ratio"] > 0
