"""The demonstration runs, learns, compiles to the same numbers, and leaves a plot and a report."""

import re
import runpy
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(DEMO))["main"](tmp_path / "out")
    printed = capsys.readouterr().out

    losses = [float(loss) for loss in re.findall(r"^ +\d+   (\d\.\d{4})", printed, re.MULTILINE)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.01 * losses[0]
    assert "DefinitionError: g[5] is needed by" in printed

    small, large = re.findall(r"^  loss: from (\S+) down to (\S+)$", printed, re.MULTILINE)
    assert float(small[0]) == pytest.approx(losses[0], abs=2e-4)
    assert float(large[1]) < 0.01 * float(large[0])
    (difference,) = re.findall(r"largest difference from the interpreter: (\S+)", printed)
    assert float(difference) < 1e-5
    # The parameters after the last iteration are made by one more of them.
    assert "for i in 0 .. 1000:" in printed
    assert "    for t in 99 .. 1, backwards:" in printed
    assert (tmp_path / "out" / "demo.png").stat().st_size > 10_000
    assert "demo.html" in printed
    assert "<h1>echo</h1>" in (tmp_path / "out" / "demo.html").read_text(encoding="utf-8")
