"""Tensors that only choose among others are chosen where they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.validate import validate
from tempo.passes.choices import choose_where_read
from tempo.runtime.executable import Executable

Build = Callable[[tp.Program, Any, Any, Any, Any], Any]


def following(prog: tp.Program, t: Any, T: Any, x: Any, last: Any) -> Any:
    """Advantages: a loop that reads this value and the next one."""
    value = prog.recurrent("value", 3, t)
    value[t < T] = x
    value[T] = last
    y = prog.recurrent("y", 3, t)
    delta = 0.5 * value[t + 1] - value[t]
    y[T - 1] = delta[T - 1]
    y[t] = delta + 0.9 * y[t + 1]
    return y


def around(prog: tp.Program, t: Any, T: Any, x: Any, last: Any) -> Any:
    """Neighbours, with something else beyond both ends; no loop."""
    padded = prog.recurrent("padded", 3, t)
    padded[-1] = last
    padded[T] = 0.0
    padded[t] = x
    return padded[t - 1] - 2 * padded[t] + padded[t + 1]


def parts(prog: tp.Program, t: Any, T: Any, x: Any, last: Any) -> Any:
    """Three parts, of which one is backwards in time and one comes from a computation."""
    mixed = prog.recurrent("mixed", 3, t)
    squares = x * x
    mixed[t < 2] = squares
    mixed[t < 4] = x[T - 1 - t]
    mixed[t] = last
    return tp.sin(mixed) + mixed[T - 1]


def early(prog: tp.Program, t: Any, T: Any, x: Any, last: Any) -> Any:
    """Read before it is defined, by what is made before what it chooses."""
    value = prog.recurrent("value", 3, t)
    result = value * 2
    value[0] = last
    value[t] = tp.cos(x)
    return result


def nested(prog: tp.Program, t: Any, T: Any, x: Any, last: Any) -> Any:
    """A choice of a choice."""
    inner = prog.recurrent("inner", 3, t)
    inner[t < T] = x
    inner[T] = last
    outer = prog.recurrent("outer", 3, t)
    shifted = tp.exp(inner[t + 1])
    outer[0] = last
    outer[t] = shifted[t - 1]
    return outer - inner


BUILDS: tuple[Build, ...] = (following, around, parts, early, nested)


def program(build: Build, gradient: bool = False) -> tuple[tp.Program, Any]:
    with tp.Program(build.__name__) as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 3, t)
        last = prog.input("last", 3)
        y = build(prog, t, T, x, last)
        prog.output("y", y)
        if gradient:
            loss = tp.sum(tp.square(y[0:T]))
            for name, g in zip(("dx", "dlast"), tp.grad(loss, (x, last)), strict=True):
                prog.output(name, g)
    return prog, T


def inputs(steps: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(steps)
    return {
        "x": rng.normal(size=(steps, 3)).astype(np.float32),
        "last": rng.normal(size=3).astype(np.float32),
    }


def test_each_read_is_a_choice_of_its_own() -> None:
    graph = choose_where_read(program(following)[0].graph)
    validate(graph)
    text = str(graph)
    assert "value(t)" not in text
    assert (
        "  value at t + 1(t): float32[3] is\n"
        "      value at t + 1[t] = x[t + 1] if T >= t + 2\n"
        "      value at t + 1[t] = last if T == t + 1\n"
    ) in text
    assert ", x)" in text  # value[t] itself is x at every step


def test_no_copy_is_kept() -> None:
    prog, T = program(following)
    run = prog.compile({T: 100})
    kept = {store.node.name for store in run.storage.stores.values() if store.bytes >= 100 * 3 * 4}
    assert kept == {"x", "y"}


@pytest.mark.parametrize("backend", ["jax", "numpy"])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("build", BUILDS)
def test_values_are_the_same(build: Build, gradient: bool, backend: str) -> None:
    prog, T = program(build, gradient)
    for steps in (1, 2, 5, 7):
        given = inputs(steps)
        expected = prog.evaluate({T: steps}, **given)
        for plan in (None, tp.Plan(blocks={"t": 1}), tp.Plan(blocks={"t": 2})):
            found = Executable(prog.graph, {T: steps}, backend, plan=plan)(**given)
            for name, array in expected.outputs.items():
                np.testing.assert_allclose(getattr(found, name), array, rtol=1e-5, atol=1e-5, err_msg=name)


def unchanged(define: Callable[[tp.Program, Any, Any, Any], None], stop: bool = False) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (), t)
        define(prog, t, T, x)
        if stop:
            prog.stop(t, when=x > 0.5)
    assert choose_where_read(prog.graph) is prog.graph


def choice(prog: tp.Program, t: Any, x: Any) -> Any:
    found = prog.recurrent("found", (), t)
    found[0] = 1.0
    found[t] = x
    return found


def test_what_is_needed_as_a_whole_stays() -> None:
    unchanged(lambda prog, t, T, x: prog.output("found", choice(prog, t, x)))
    unchanged(lambda prog, t, T, x: prog.output("sum", tp.sum(choice(prog, t, x)[0 : t + 1])))
    unchanged(lambda prog, t, T, x: prog.output("half", choice(prog, t, x)[t // 2] + 1))


def test_what_is_only_read_at_its_own_step_stays() -> None:
    unchanged(lambda prog, t, T, x: prog.output("y", choice(prog, t, x) * 2))


def test_recurrences_stay() -> None:
    def running(prog: tp.Program, t: Any, T: Any, x: Any) -> None:
        y = prog.recurrent("y", (), t)
        y[0] = 0.0
        y[t] = y[t - 1] + x
        prog.output("y", y[t] * 2)

    unchanged(running)


def test_where_a_dim_stops_on_data_everything_stays() -> None:
    unchanged(lambda prog, t, T, x: prog.output("y", choice(prog, t, x)[t + 1] * 2), stop=True)
