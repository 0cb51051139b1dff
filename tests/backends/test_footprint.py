"""What XLA says that a run in parts takes: it is compiled before it runs, and no more than it takes to see that it does
not fit."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax import compiling, footprint
from tempo.backends.jax.footprint import Footprint
from tempo.runtime import compilation
from tempo.runtime.executable import Executable
from tempo.schedule.plan import Plan


def in_parts() -> Executable:
    """A few XLA programs: forwards and backwards, with blocks of their own at the ends."""
    with tp.Program("parts") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(8,), domain=t)
        y = prog.recurrent("y", shape=(8,), domain=t)
        y[-1] = 0.0
        y[t] = tp.tanh(y[t - 1]) + x[t]
        z = prog.recurrent("z", shape=(8,), domain=t)
        z[T] = 0.0
        z[t] = 0.5 * z[t + 1] + y[t] * x[t]
        prog.output("z", z[0])
    return Executable(prog.graph, {T: 30}, plan=Plan({"t": 4}, host=("*",)))


def made(footprint: Footprint) -> int:
    """How many programs were compiled. (One for zeros may have been compiled for another program.)"""
    return len([p for p in footprint.programs.values() if p.shapes in p.prepared.programs])


def test_nothing_is_compiled_when_it_runs() -> None:
    run = in_parts()
    machine = run._machine
    total = sum(machine.memory().values())
    assert machine.footprint.most == total
    assert made(machine.footprint) == len(machine.footprint.programs) > 4
    x = np.linspace(-1, 1, 240).reshape(30, 8)
    run(x=x)
    functions = [*(part.function for part in machine.parts.compiled.values()), machine.parts.finish]
    assert [function.function._cache_size() for function in functions] == [0] * len(functions)


def test_once_it_takes_too_much_the_rest_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that is expected to take most comes first. What is asked for without a limit is complete."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    machine = in_parts()._machine
    least = machine.footprint.left[-1].expected
    assert machine.taken(least // 2) > least // 2
    assert made(machine.footprint) <= 2  # a thread may have begun with the next one
    assert sum(machine.memory().values()) == sum(in_parts()._machine.memory().values())
    assert made(machine.footprint) == len(machine.footprint.programs)


def test_on_a_gpu_programs_are_looked_at_before_they_are_compiled_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a search for the fastest products. If what they take then is too much, none is compiled to run."""
    monkeypatch.setattr(footprint, "is_cuda", lambda device: True)
    monkeypatch.setattr(compiling, "make_kernels", lambda module: None)
    machine = in_parts()._machine
    total = sum(in_parts()._machine.memory().values())
    assert machine.taken(total - 1) > total - 1
    assert made(machine.footprint) == 0
    machine = in_parts()._machine
    assert machine.taken(total) == total
    assert made(machine.footprint) == len(machine.footprint.programs)


def test_what_is_said_of_a_budget_that_cannot_be_kept_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although what does not fit is not compiled to the end."""
    run = in_parts()
    monkeypatch.setattr(compilation, "MOST_ROUNDS", 1)
    total = sum(run._machine.memory().values())
    with pytest.raises(tp.errors.BudgetError) as caught:
        Executable(run._request.source, run._request.numbers, plan=run.plan, memory=total - 1)
    assert caught.value.smallest == total


def test_what_is_planned_for_after_a_plan_that_took_too_much() -> None:
    """Less than in proportion, but not much less."""
    assert compilation.less(500, 600, 520) == 500 - 80  # in proportion: 433
    assert compilation.less(100, 300, 150) == int(0.95 * 50)
    assert compilation.less(1000, 1000, 900) == 900
