"""The benchmark of recursive models runs, checks its results and prints records. How fast anything is, no test says."""

from __future__ import annotations

import pytest

from tests.benchmarks.common import quick, run


def test_a_case() -> None:
    records = quick("batching", "--only", "mv_rnn/forward")
    systems = ["tempo", "torch eager", "torch by hand", "tempo forest", "tempo forest again", "tempo unbatched"]
    assert [(r["case"], r["system"]) for r in records] == [("mv_rnn/8/small/forward", system) for system in systems]
    ours = records[0]
    assert ours.keys() >= {"ms", "ratio", "floor_ms", "host_ms", "device_ms", "kernels", "width", "padding", "cores"}
    assert "ratio" not in records[1]
    assert run("batching", "--quick", "--device", "cpu", "--only", "nothing").returncode == 1


@pytest.mark.slow
def test_cases_in_processes() -> None:
    """A model as a program is one more system; both processes' records are there."""
    records = quick("batching", "--only", "bi_rnn/forward,berxit", "--jobs", "2")
    systems = {"tempo", "torch eager", "torch by hand", "tempo program", "tempo unbatched"}
    for case in ("bi_rnn/8/small/forward", "berxit/8/small/forward"):
        assert {r["system"] for r in records if r["case"] == case} == systems


@pytest.mark.slow
def test_all_cases() -> None:
    assert len({record["case"] for record in quick("batching")}) == 7 + 4
