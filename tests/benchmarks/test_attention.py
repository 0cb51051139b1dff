"""The benchmark of attention runs. On a CPU it has the products only."""

from __future__ import annotations

from tests.benchmarks.common import quick


def test_records() -> None:
    records = quick("attention")
    cases = ["one sequence", "small batch", "medium batch", "long context", "large batch", "single precision"]
    assert [(r["bench"], r["case"], r["system"]) for r in records] == [
        ("attention", case, "products") for case in cases
    ]
    assert all(r["ms"] > 0 and r["gb_s"] > 0 for r in records)
