"""The example of a character model: it learns, resumes and writes, and its training is what the interpreter says."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tempo import llm

EXAMPLE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "examples" / "character_model.py")))


def test_it_learns_resumes_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE.main(iterations=40, texts=4, steps=16, count=12, show=10, layers=1, width=16, heads=2)
    *lines, written = capsys.readouterr().out.splitlines()
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d{3})", "\n".join(lines))]
    assert losses[4:] == losses[3:4]  # what is left after iteration 20, once more
    assert losses[3] < 0.9 * losses[0]
    assert re.search(r"the last loss is \d\.\d{3}$", lines[4])
    assert lines[-1] == "resumed in the middle: the same, to the bit"
    assert written.startswith("The mouse ") and len(written) == 22


def test_the_training_is_what_the_interpreter_says() -> None:
    prog, I, B, T = EXAMPLE.build(llm.Decoder(EXAMPLE.config(5, layers=1, width=4, heads=2)), length=9)
    text = np.random.default_rng(0).integers(0, 5, 9)
    bounds = {I: 2, B: 2, T: 3}
    expected = prog.evaluate(bounds, text=text)
    found = prog.compile(bounds)(text=text)
    assert expected.outputs.keys() == found.outputs.keys()
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5, err_msg=name)


def test_all_steps_of_the_texts_are_computed_at_once() -> None:
    prog, I, B, T = EXAMPLE.build(llm.Decoder(EXAMPLE.config(5, layers=1, width=4, heads=2)), length=9)
    tree = prog.compile({I: 3, B: 2, T: 4}).explain().split("-- loop tree --")[1].split("-- stores --")[0]
    assert re.findall(r"for (\w+) in", tree) == ["i"]
