"""Compiled programs that stop on data: the loop that holds the condition ends early, and what needs the number of steps
comes after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.schedule.looptree import show
from tempo.schedule.results import cut

backends = pytest.mark.parametrize("backend", ["numpy", "jax"])


def same_as_oracle(prog: tp.Program, bounds: Any, backend: str, **inputs: Any) -> Any:
    expected = prog.evaluate(bounds, **inputs)
    found = prog.compile(bounds, backend)(**inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)
    for name, records in expected.emits.items():
        wanted = {tuple(r.point.items()): r.value for r in records}
        assert {tuple(r.point.items()): r.value for r in found.emits[name]} == wanted
    return found


def doubling(limit: float = 20) -> tuple[tp.Program, Any]:
    with tp.Program("doubling") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[0] = 1.0
        x[t + 1] = 2 * x[t]
        prog.stop(t, when=x > limit)
        prog.output("x", x)
        prog.output("last", x[T - 1])
        prog.output("total", x[0:T].sum())
        prog.output("backwards", 1 * x[T - 1 - t])
        prog.output("to_come", x[t:T].sum())
        prog.output("all", x[0:T])
        prog.emit("thrice", 3 * x)
    return prog, T


@backends
@pytest.mark.parametrize("most", [1, 3, 6, 7, 50])
def test_everything_is_cut_at_the_stop(backend: str, most: int) -> None:
    prog, T = doubling()
    found = same_as_oracle(prog, {T: most}, backend)
    steps = min(most, 6)
    assert found.x.tolist() == [2.0**n for n in range(steps + 1)]
    assert found.last == 2.0 ** (steps - 1)
    assert found.all.shape == found.backwards.shape == (steps,)
    assert len(found.emits["thrice"]) == steps


@backends
def test_one_executable_stops_where_its_inputs_say(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        total = prog.recurrent("total", domain=(t,))
        total[0] = x[0]
        total[t] = total[t - 1] + x[t]
        prog.stop(t, when=total > 5)
        prog.output("total", total)
        prog.output("mean", total[T - 1] / tp.sum(tp.full((T,), 1.0)))
    run = prog.compile({T: 4}, backend)
    assert run(x=np.array([1, 2, 3, 4], np.float32)).total.tolist() == [1, 3, 6]
    assert run(x=np.array([9, 2, 3, 4], np.float32)).total.tolist() == [9]
    out = run(x=np.array([1, 1, 1, 1], np.float32))
    assert out.total.tolist() == [1, 2, 3, 4] and out.mean == 1


@backends
def test_the_host_is_called_for_the_steps_that_are_made(backend: str) -> None:
    calls: list[float] = []

    def environment(position: Any) -> Any:
        calls.append(position.item())
        return position + 1

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[0] = 0.0
        x[t + 1] = tp.host(environment, x, out=tp.spec(()), sequence=(t,))
        prog.stop(t, when=x > 2)
        prog.output("x", x)
        prog.emit("position", x)
    found = prog.compile({T: 9}, backend)()
    assert calls == [0, 1, 2, 3]
    assert found.x.tolist() == [0, 1, 2, 3, 4]
    assert [r.value.item() for r in found.emits["position"]] == [0, 1, 2, 3]


@backends
def test_a_call_that_the_stop_does_not_need_is_not_made_beyond_it(backend: str) -> None:
    calls: list[float] = []

    def log(value: Any) -> Any:
        calls.append(value.item())
        return value

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.stop(t, when=x > 2)
        prog.output("logged", tp.host(log, x, out=tp.spec(()), sequence=(t,)))
    found = prog.compile({T: 5}, backend)(x=np.array([1, 2, 3, 4, 5], np.float32))
    assert calls == [1, 2, 3] and found.logged.tolist() == [1, 2, 3]


@backends
def test_gradients_through_a_stopped_recurrence(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        w = prog.input("w")
        h = prog.recurrent("h", domain=(t,))
        h[0] = w
        h[t + 1] = w * h[t]
        prog.stop(t, when=h > 20)
        loss = h[T - 1] + h[0:T].mean()
        prog.output("gradient", tp.grad(loss, w))
    found = same_as_oracle(prog, {T: 12}, backend, w=np.float32(2))
    # h is 2, 4, 8, 16, 32: n w ** (n - 1) for n = 1 ... 5
    assert found.gradient == pytest.approx(80 + (1 + 4 + 12 + 32 + 80) / 5)


@backends
def test_a_batch_stops_when_all_of_it_has(backend: str) -> None:
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        speed = prog.input("speed", domain=(b,))
        x = prog.recurrent("x", domain=(b, t))
        x[b, 0] = speed
        x[b, t + 1] = tp.minimum(x[b, t] + speed, 10)
        done = x >= 10
        prog.stop(t, when=tp.all(done[0:B]))
        prog.output("x", x)
    found = same_as_oracle(prog, {T: 50, B: 2}, backend, speed=np.array([5, 2], np.float32))
    assert found.x.tolist() == [[5, 10, 10, 10, 10, 10], [2, 4, 6, 8, 10, 10]]


@backends
def test_a_condition_on_the_step_before(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[0] = 1.0
        x[t] = 3 * x[t - 1]
        prog.stop(t, when=x[tp.max(t - 1, 0)] > 5)
        prog.output("x", x)
    assert same_as_oracle(prog, {T: 20}, backend).x.tolist() == [1, 3, 9, 27]


def test_the_loop_tree_shows_where_a_loop_ends_early() -> None:
    prog, T = doubling()
    run = prog.compile({T: 50}, "numpy")
    head = next(line for line in show(run.schedule.trees).splitlines() if line.startswith("for t"))
    assert head.startswith("for t in 0 .. 49, until copy_")
    (beyond,) = run.schedule.beyond.values()
    assert beyond == 1  # x[T]


def test_one_jax_program_holds_the_loop_that_ends_early() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[0] = 1.0
        x[t + 1] = 2 * x[t]
        prog.stop(t, when=x > 20)
        prog.output("last", x[T - 1])
    assert "1 program" in prog.compile({T: 1000}).explain()


@backends
def test_which_case_applies_must_be_known_before_the_stop(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[0] = 1.0
        x[t + 1] = 2 * x[t]
        x[5] = 7.0
        prog.stop(t, when=x > 3)
        prog.output("x", x[5])
    with pytest.raises(tp.errors.ProgramError) as caught:
        prog.compile({T: 9}, backend)
    assert str(caught.value).splitlines()[0] == (
        "which case of x applies depends on T, and the stop condition of t depends on x"
    )


@backends
def test_points_that_are_needed_for_some_numbers_of_steps_only(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=(t, s))  # in the order of no dim
        y[t, S - 1] = x
        y[t, S - 2] = tp.where(tp.equal(t, 2), y[..., 0], 2 * x)
        prog.output("z", y[tp.min(2 * t, T - 1)])  # step 1 if there are two of them, step 2 if there are three
        prog.stop(t, when=x > 1)
    x = np.array([1.0, 3.0, 5.0], np.float32)
    run = prog.compile({T: 3, S: 1}, backend)
    for given in (x, x / 4):
        np.testing.assert_array_equal(run(x=given).z, prog.evaluate({T: 3, S: 1}, x=given).z)


def test_outputs_are_cut_to_the_points_that_there_are() -> None:
    prog, T = doubling()
    graph = prog.graph
    array = np.arange(51)
    assert cut(graph, {T: 6}, "x", (range(51),), array).tolist() == [0, 1, 2, 3, 4, 5, 6]
