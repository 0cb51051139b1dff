"""The benchmark of environments in Python runs, with all systems, and says where our time goes."""

from __future__ import annotations

import pytest

from tests.benchmarks.common import quick

pytest.importorskip("gymnasium")
pytest.importorskip("torch")


@pytest.mark.slow
def test_all_systems() -> None:
    lines = quick("host_envs", "--only", "8 envs")
    assert [line["system"] for line in lines] == ["torch", "torch, values at once", "tempo"]
    assert all(line["bench"] == "host_envs" and line["ms"] > 0 and line["steps_s"] > 0 for line in lines)
    assert lines[-1]["ratio"] > 0
    assert set(lines[-1]["profile_us"]) == {"env", "host", "acting", "other", "learning"}
