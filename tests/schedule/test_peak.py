"""The most memory that a plan takes at the same time: lifetimes of stores, what is fused, and what XLA says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import tempo as tp

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def peak(prog: tp.Program, bounds: dict[Any, int]) -> int:
    return prog.compile(bounds, backend="numpy").storage.peak


def test_stores_that_are_read_one_after_the_other_do_not_add_up() -> None:
    """Four products of 400 bytes each, of which two are there at the same time."""
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        y = x
        for _ in range(4):
            y = y @ x
        prog.output("y", tp.sum(y))
    run = prog.compile({}, backend="numpy")
    # x and the sum are there all the time.
    assert run.storage.peak == 400 + 4 + 2 * 400
    assert str(run.storage).endswith("\ntotal: 2,004 bytes\npeak: 1,204 bytes")


def test_what_is_computed_element_by_element_is_computed_where_it_is_read() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (100,))
        prog.output("y", tp.sum(tp.exp(2.0 * x) + 1.0))
    # The constants are stored.
    assert peak(prog, {}) == 400 + 4 + 2 * 4


def test_a_costly_value_with_two_readers_is_stored() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (100,))
        y = tp.exp(x)
        prog.output("y", tp.sum(y))
        prog.output("z", tp.max(y))
    assert peak(prog, {}) == 400 + 4 + 4 + 400


def test_what_a_matrix_product_reads_is_stored() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        prog.output("y", -x @ x)
    assert peak(prog, {}) == 400 + 400 + 400


def test_an_iteration_takes_room_for_what_it_does_not_keep() -> None:
    """Of the ten steps of y and z all of y is handed out, and one value of the product is there at a time."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (10, 10), t)
        y = prog.recurrent("y", (10, 10), t)
        y[0] = x[0]
        z = y[t - 1] @ x
        y[t] = z @ x
        prog.output("y", y)
    assert peak(prog, {T: 10}) == 4000 + 4000 + 2 * 400


def test_a_part_that_is_handed_out_is_a_copy() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = tp.sum(y[0:t]) + x
        prog.output("y", y[T - 1])
    assert peak(prog, {T: 10}) == 40 + 4 + 40 + 4


def cases() -> dict[str, Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        found: dict[str, Any] = importlib.import_module("_micro_cases").PAIRS
    finally:
        sys.path.remove(str(BENCHMARKS))
    return found


NAMES = ("ema", "gae", "lstm", "lstm_train", "attention_grad", "viterbi", "edit_distance")


@pytest.mark.parametrize("name", NAMES)
def test_within_a_fifth_of_what_xla_says(name: str) -> None:
    """At the small sizes of the micro benchmarks, on a CPU; benchmarks/micro.py reports both for the large ones."""
    pair = cases()[name](True)
    run = pair.prog.compile(pair.bounds, device="cpu")
    assert run.storage.peak == pytest.approx(sum(run._machine.memory().values()), rel=0.2, abs=4096)


def test_attention_computes_its_weights_in_the_place_of_its_scores() -> None:
    """One matrix of 64 x 64, where the model has two beside each other."""
    pair = cases()["attention"](True)
    run = pair.prog.compile(pair.bounds, device="cpu")
    assert run._machine.memory()["temporaries"] <= 64 * 64 * 4 + 4096
    assert run.storage.peak - sum(run._machine.memory().values()) <= 64 * 64 * 4 + 4096
