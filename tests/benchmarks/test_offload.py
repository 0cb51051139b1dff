"""The benchmark of stores in host memory runs, checks its results, keeps to budgets and prints records."""

from __future__ import annotations

from tests.benchmarks.common import quick


def test_the_device_has_less_in_smaller_blocks() -> None:
    records = {r["system"]: r for r in quick("offload", "--only", "rnn")}
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
