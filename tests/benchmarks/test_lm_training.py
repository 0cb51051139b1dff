"""The benchmark of a training step runs, checks its gradients and prints records."""

from __future__ import annotations

from tests.benchmarks.common import quick


def test_all_systems() -> None:
    lines = quick("lm_training", "--only", "4k/window")
    assert [line["system"] for line in lines] == ["tempo", "tempo products", "jax products"]
    assert all(line["ms"] > 0 and line["error"] < 0.1 and "failed" not in line for line in lines)
    assert lines[0]["ratio"] > 0
