"""The benchmark of large products runs, and all systems compute the same."""

from __future__ import annotations

from tests.benchmarks.common import quick


def test_records() -> None:
    records = quick("products")
    cases = ["many rows", "fewer rows", "squares", "small squares", "training"]
    systems = ["tempo", "torch", "jax", "jax, rounded"]
    assert [(r["case"], r["system"]) for r in records] == [(case, system) for case in cases for system in systems]
    assert all(r["ms"] > 0 and r["error"] < 1e-6 for r in records)
    assert all(("ratio" in r) == (r["system"] == "tempo") for r in records)
