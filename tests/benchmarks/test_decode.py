"""The benchmark of decoding runs, checks its results and prints records. How fast anything is, no test says."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.benchmarks.common import ROOT, run


@pytest.mark.slow
def test_all_systems_agree_and_are_put_into_one_table(tmp_path: Path) -> None:
    found = run("decode", "--quick", "--device", "cpu", "--only", "llama/2/64/window")
    assert found.returncode == 0, found.stderr
    records = [json.loads(line) for line in found.stdout.splitlines()]
    systems = ["tempo", "jax step", "jax loop", "torch compile", "torch eager"]
    assert [(r["bench"], r["case"], r["system"]) for r in records] == [
        ("decode", "llama/2/64/window", system) for system in systems
    ]
    for r in records:
        assert r.keys() >= {"ms", "floor_ms", "over_floor", "first_cold_s", "first_warm_s", "first_s", "bytes_needed"}
        assert r["lag"] < 0.3
        assert r["timed"] == "whole"
    ours = records[0]
    assert ours["ratio"] > 0
    assert "ratio" not in records[1]
    assert ours["memory"][0][1] == ours["bytes_xla"]

    (tmp_path / "records.jsonl").write_text(found.stdout)
    again = run("decode", "--table", str(tmp_path / "records.jsonl"), "--plot", str(tmp_path / "memory.png"))
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines() == found.stderr.splitlines()[-2 - len(systems) :]
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_cells_that_are_compiled_at_the_same_time() -> None:
    systems = ["tempo", "jax loop"]
    found = run("decode", "--quick", "--device", "cpu", "--systems", ",".join(systems), "--jobs", "2", "--seconds", "0")
    assert found.returncode == 0, found.stderr
    records = [json.loads(line) for line in found.stdout.splitlines()]
    cells = [f"{model}/2/64/{kind}" for model in ("llama", "gpt2") for kind in ("causal", "window")]
    assert {(r["case"], r["system"]) for r in records} == {(cell, system) for cell in cells for system in systems}
    assert all("first_cold_s" not in r for r in records)
    # Only our causal loops begin with the context.
    whole = {(r["case"], r["system"]) for r in records if r["timed"] == "whole"}
    assert whole == {(cell, "tempo") for cell in cells if "causal" in cell}
    rows = found.stderr.splitlines()[-len(records) :]
    assert [row.split()[1] for row in rows] == [cell for cell in cells for _ in systems]


def test_what_is_timed_waits_until_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from _turns import Turns

    one, other = Turns(tmp_path / "turns"), Turns(tmp_path / "turns")
    said: list[str] = []

    def alone() -> None:
        with other.alone():
            said.append("alone")

    timing = Thread(target=alone)
    with one.together(), other.together():
        timing.start()
        timing.join(0.1)
        said.append("together")
    timing.join()
    assert said == ["together", "alone"]
    with Turns().together(), Turns().alone():
        pass  # nobody to wait for


def test_what_does_not_fit_beside_others_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from _turns import Room

    room = Room(10)
    said: list[str] = []

    def large() -> None:
        with room.of(12):
            said.append("large")

    waiting = Thread(target=large)
    with room.of(4), room.of(6):
        waiting.start()
        waiting.join(0.1)
        said.append("small")
    waiting.join()
    assert said == ["small", "large"]
    assert room.taken == 0


@pytest.mark.slow
def test_steps_of_every_piece_of_the_context_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import _decode_cells
    import _decode_tempo
    import jax

    # So that even a tiny model's loop is worth cutting.
    monkeypatch.setattr("tempo.schedule.buckets.COMPILE_SECONDS", 1e-9)
    cell = _decode_cells.Cell("gpt2", 2, 192, windowed=False, quick=True)
    system = _decode_tempo.TempoSystem(cell, jax.devices("cpu")[0])
    system.build()
    pieces = system.pieces
    assert [(piece.first, piece.steps) for piece in pieces] == [(15, 49), (64, 64), (128, 63)]
    assert all(system.steps(piece.first, 3) > 0 for piece in pieces)
    firsts, sizes = zip(*system.memory(), strict=True)
    assert firsts == (15, 64, 128)
    assert sizes[1] < sizes[2], sizes  # the first one has the prompt's block in it


@pytest.mark.parametrize(
    "firsts, windowed, timed",
    [([15], False, "whole"), ([15], True, "sampled"), ([15, 40], False, "sampled"), ([40], False, "sampled")],
)
def test_samples_stand_for_steps_that_take_as_long(
    firsts: list[int], windowed: bool, timed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a loop in one piece, samples are of its first steps, which see less than others do."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import decode
    from _decode_cells import Cell, Piece

    class System:
        pieces = tuple(Piece(first, 20) for first in firsts)

        def steps(self, first: int, count: int) -> float:
            return 1e-3 * count

        def generate(self, count: int) -> None:
            pass

    found = decode.token_times(System(), Cell("gpt2", 2, 64, windowed, quick=True), 0.0)
    assert found["timed"] == timed
    assert found["ms_sampled"] == pytest.approx(1.0)


def test_memory_by_the_plan_alone() -> None:
    """A staircase without a window, flat with one; neither much higher than weights and cache."""
    found = run("decode", "--planned", "--only", "gpt2/64/2k")
    assert found.returncode == 0, found.stderr
    causal, window = (json.loads(line) for line in found.stdout.splitlines())
    sizes = [size for _, size in causal["memory"]]
    assert len(sizes) > 1 and sizes == sorted(sizes)
    assert len(window["memory"]) == 1
    assert all(record["over_needed"] < 1.1 for record in (causal, window))


def test_what_a_step_reads_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import _decode_cells

    cells: dict[str, Any] = {cell.name: cell for cell in _decode_cells.grid(quick=False)}
    assert len(cells) == 43
    assert "llama/64/64k/causal" not in cells
    causal, window = cells["llama/4/4k/causal"], cells["llama/4/4k/window"]
    # 3.2 billion numbers of two bytes; per position, the keys and values of 28 layers, 8 heads, 128 numbers.
    assert causal.weight_bytes == 6_425_499_648
    assert causal.bytes_needed == 6_425_499_648 + 4 * 4096 * 2 * 28 * 8 * 128 * 2
    assert window.bytes_needed == 6_425_499_648 + 4 * 1024 * 2 * 28 * 8 * 128 * 2
    # At 16, ..., 4095 there are 17, ..., 4096 positions to be read: 2056.5 in the mean.
    assert causal.floor_ms(1e9) == pytest.approx(6425.499648 + 4 * 2056.5 * 0.114688)


def test_an_unknown_cell_is_refused() -> None:
    found = run("decode", "--quick", "--only", "llama/3")
    assert found.returncode == 2
    assert (
        "there is no cell 'llama/3'; cells are: llama/2/64/causal, llama/2/64/window, gpt2/2/64/causal" in found.stderr
    )
