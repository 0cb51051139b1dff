"""Reports of decoders, whose programs are large."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tempo import llm
from tempo.llm.generation import Kind, program
from tempo.runtime.executable import Executable
from tests.report.test_page import read

Checkpoint = Callable[..., tuple[Path, Any]]


def test_a_decoder_that_was_run(checkpoint: Checkpoint, tmp_path: Path) -> None:
    model = llm.load(checkpoint("llama")[0])
    llm.generate(model, [[5, 6, 7]], max_new_tokens=4, temperature=0)
    (run,) = model._runs.values()
    root = read(run, tmp_path)
    names = [element.text for element in root.find("text", "name")]
    assert {"tokens", "prompt", "output tokens", "stop t"} <= {*names}


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [False, True])
def test_a_decoder_of_28_layers(checkpoint: Checkpoint, tmp_path: Path, parallel: bool) -> None:
    """On a CPU its loop is cut into pieces. All of it is on one page of less than 2 MB, drawn layer by layer."""
    config = llm.load(checkpoint("llama")[0]).config
    deep: Any = SimpleNamespace(
        decoder=llm.Decoder(replace(config, layers=28, windows=(None,) * 28, context=1024)), dtype="float32"
    )
    prog = program(deep, Kind(used=(), ends=1, logprobs=False, emits=False))
    run = Executable(prog.graph, {"B": 2, "P": 128, "T": 1024}, "numpy", parallel=parallel)
    start = time.perf_counter()
    path = run.report(tmp_path / "report.html")
    assert time.perf_counter() - start < 10  # it takes one second on a machine with nothing else to do
    assert path.stat().st_size < 2_000_000
    root = read(run, tmp_path)
    # Keys, values and the sum behind them, the inputs of each, and a few more.
    assert 28 * 3 < len(root.find("g", "tensor")) < 28 * 7
    assert len(root.find("g", "arrow")) < 28 * 14
