"""How long plans take, roughly: what makes the difference."""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.cost import RATES, Rates, seconds


def estimated(prog: tp.Program, bounds: dict[Any, int], rates: Rates, plan: Any = None) -> float:
    run = Executable(prog.graph, bounds, "numpy", plan=plan)
    return seconds(run.graph, run.schedule, run.storage, rates)


def product(size: int) -> tuple[tp.Program, dict[Any, int]]:
    with tp.Program() as prog:
        b, B = prog.dim("b")
        w = prog.input("w", (size, size))
        prog.output("y", w @ prog.input("x", (size,), b))
    return prog, {B: 64}


def test_products_take_their_arithmetic_or_their_traffic() -> None:
    prog, bounds = product(512)
    flops, moved = 2 * 64 * 512 * 512, 4 * (512 * 512 + 2 * 64 * 512)
    slow = Rates(flops=1e9, elements=1e9, bytes=1e12, kernel=0, iteration=0)
    assert estimated(prog, bounds, slow) == flops / 1e9
    assert estimated(prog, bounds, Rates(1e15, 1e15, 1e9, 0, 0)) == moved / 1e9


def test_loops_take_their_iterations() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t] = tp.cos(x[t - 1])
        prog.output("x", x[T - 1])
    rates = Rates(1e15, 1e15, 1e15, 0, iteration=1.0)
    assert round(estimated(prog, {T: 100}, rates)) == 99


def test_a_batch_at_once_is_faster_than_one_after_the_other() -> None:
    prog, bounds = product(512)
    for rates in RATES.values():
        assert estimated(prog, bounds, rates) < estimated(prog, bounds, rates, tp.Plan({"b": 1}))


def test_what_is_read_through_another_dim() -> None:
    with tp.Program() as prog:
        s, S = prog.dim("s")
        t, T = prog.dim("t")
        w = prog.input("w", (4, 4), s)
        x = prog.input("x", (4,), t)
        prog.output("y", w[t // 2] @ x)
    moved = 4 * (6 * 16 + 6 * 4 + 6 * 4)
    assert estimated(prog, {S: 3, T: 6}, Rates(1e15, 1e15, 1e9, 0, 0)) == moved / 1e9
