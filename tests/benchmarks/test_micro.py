"""The micro benchmarks run, check their results and print records. How fast anything is, no test says."""

from __future__ import annotations

from tests.benchmarks.common import quick, run

OURS = {"ms", "ratio", "dispatches", "trace_s", "xla_s", "bytes_planned", "bytes_xla", "error"}


def test_a_pair() -> None:
    lines = quick("micro", "--only", "ema")
    assert [(r["bench"], r["case"], r["system"]) for r in lines] == [("micro", "ema", "jax"), ("micro", "ema", "tempo")]
    theirs, ours = lines
    assert theirs.keys() >= {"ms", "xla_s", "bytes_xla", "variant"}
    assert ours.keys() >= OURS
    assert ours["dispatches"] == 1
    assert ours["error"] < 1e-6
    # 1000 x 100 numbers in, as many out, four bytes each.
    assert ours["bytes_planned"] >= 800_000
    assert ours["bytes_xla"] >= 800_000
    assert ours["runs"] >= 7


def test_an_unknown_case_is_refused() -> None:
    found = run("micro", "--only", "nothing")
    assert found.returncode == 2
    assert "invalid choice: 'nothing'" in found.stderr
