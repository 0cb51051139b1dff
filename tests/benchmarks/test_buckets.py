"""The benchmark of buckets runs, checks its results and prints records. How fast anything is, no test says."""

from __future__ import annotations

from tests.benchmarks.common import quick


def test_attention_in_buckets_padded_and_by_hand() -> None:
    records = quick("buckets", "--only", "full")
    assert [(r["case"], r["system"], r["pieces"]) for r in records] == [
        ("full", "jax", 8),
        ("full", "tempo", 4),
        ("full", "tempo padded", 1),
    ]
    for r in records:
        assert r.keys() >= {"ms", "eighths", "xla_s", "bytes_xla"}
        assert len(r["eighths"]) == 8
        # Two caches of 4 x 8 x 256 x 64 numbers, four bytes each.
        assert r["bytes_xla"] >= 2 * 4 * 8 * 256 * 64 * 4
