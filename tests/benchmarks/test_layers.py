"""The benchmark of a stack of layers runs, checks its results and prints records."""

from __future__ import annotations

from tests.benchmarks.common import quick


def test_all_systems() -> None:
    lines = quick("layers")
    systems = {case: [line["system"] for line in lines if line["case"] == case] for case in ("decode", "written")}
    assert systems["decode"] == ["jax apart", "jax stacked", "tempo", "tempo rolled"]
    assert systems["written"] == ["tempo", "tempo rolled"] * 2
    assert all(line["bench"] == "layers" and line["ms"] > 0 and line["error"] < 1e-3 for line in lines)
    assert lines[0]["ratio"] == 1
