"""The benchmark of learning runs, and prints records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.common import quick


@pytest.mark.slow
def test_a_case(tmp_path: Path) -> None:
    where = ["--logs", str(tmp_path / "logs"), "--plot", str(tmp_path / "curves.png")]
    (line,) = quick("learning", "--only", "a2c CartPole", *where)
    assert (line["bench"], line["case"], line["steps"]) == ("learning", "a2c CartPole", 1536)
    assert (tmp_path / "curves.png").stat().st_size > 1000
