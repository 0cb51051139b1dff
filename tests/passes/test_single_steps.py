"""Dims of one step are dropped: results, and the points at which they are handed out, stay what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.given import check_bounds
from tempo.graph.node import Graph
from tempo.graph.structural import RECURRENT
from tempo.graph.validate import validate
from tempo.passes.accumulations import resolve_accumulations
from tempo.passes.single_steps import drop_single_steps
from tempo.reference import evaluate
from tempo.runtime.executable import Executable

NAME = "drop single steps"


def dropped(prog: tp.Program, bounds: dict[Any, int], **inputs: Any) -> Graph:
    """The graph after the pass. It computes what the program does, and so do both backends, with and without it."""
    expected = prog.evaluate(bounds, **inputs)
    before = resolve_accumulations(prog.graph)
    graph = drop_single_steps(before, check_bounds(prog.graph, bounds))
    validate(graph)
    runs = [evaluate(graph, bounds, inputs)]
    runs += [Executable(prog.graph, bounds, b, skip=skip)(**inputs) for b in ("numpy", "jax") for skip in ((), (NAME,))]
    for run in runs:
        for name, array in expected.outputs.items():
            assert run[name].shape == array.shape
            np.testing.assert_allclose(run[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
        for name, records in expected.emits.items():
            assert [dict(r.point) for r in run.emits[name]] == [dict(r.point) for r in records]
            for found, wanted in zip(run.emits[name], records, strict=True):
                np.testing.assert_allclose(found.value, wanted.value, rtol=1e-5, atol=1e-6)
    return graph


def shown(graph: Graph) -> list[str]:
    """The operations with the dims that they have."""
    return [f"{n.op.name}({', '.join(d.name for d in n.domain)})" for n in graph.nodes if n.op.name != "constant"]


def epochs() -> tuple[tp.Program, Any, Any, Any]:
    """A state that is changed in every minibatch of every epoch, and what acts with it from iteration to iteration."""
    with tp.Program("epochs") as prog:
        i, I = prog.dim("i")
        e, E = prog.dim("e")
        m, M = prog.dim("m")
        w = prog.state("w", 1.0, over=(i, e, m))
        acting = prog.state("acting", 1.0, over=i)
        played = tp.sin(acting * (1 + i.value.astype("float32")))
        loss = tp.square(w * played - (1 + e.value + m.value).astype("float32"))
        w.next = w - 0.1 * tp.grad(loss, w)
        acting.next = w.next[i, E - 1, M - 1]
        prog.emit("loss", loss)
        prog.output("mean", tp.mean(loss[i, 0:E, 0:M]))
        prog.output("final", w.final)
    return prog, I, E, M


@pytest.mark.parametrize("E_, M_", [(1, 1), (1, 3), (2, 1), (2, 2)])
def test_epochs_of_one_step(E_: int, M_: int) -> None:
    prog, I, E, M = epochs()
    graph = dropped(prog, {I: 3, E: E_, M: M_})
    gone = {d for d, size in (("e", E_), ("m", M_)) if size == 1}
    # What is emitted still has the user's dims.
    names = {d.name for n in graph.nodes if n not in {e.node for e in graph.emits.values()} for d in n.domain}
    assert not names & gone
    assert {d.name for d in graph.dims} >= {"i", "e", "m"}


def test_a_state_is_an_ordinary_recurrence() -> None:
    prog, I, E, M = epochs()
    graph = dropped(prog, {I: 3, E: 1, M: 1})
    (w,) = (node for node in graph.cases if node.name == "w")
    assert str(graph).split("  w(i): float32[] is\n")[1].splitlines()[:2] == [
        f"      w[0] = {graph.cases[w][0].value}",
        f"      w[i] = {graph.cases[w][1].value} if i >= 1 and I >= i",
    ]


def test_a_recurrence_is_a_chain_of_operations() -> None:
    """What is left of the cases has one value each, and is that value."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (2,), t)
        h = prog.recurrent("h", (2,), t)
        h[-1] = tp.zeros(2)
        h[t] = tp.tanh(h[t - 1] + x)
        prog.output("last", h[T - 1])
    graph = dropped(prog, {T: 1}, x=np.array([[0.5, -1]]))
    assert not graph.cases
    assert shown(graph) == ["input(t)", "full()", "add()", "tanh()"]
    assert shown(dropped(prog, {T: 2}, x=np.ones((2, 2)))) == shown(resolve_accumulations(prog.graph))


def test_a_recurrent_output_has_all_points_where_it_is_defined() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        h = prog.recurrent("h", (), (t, s))
        h[-1, s] = s.value.astype("float32")
        h[t, s] = tp.cos(h[t - 1, s])
        o = prog.recurrent("o", (), (s, t)[::-1])
        o[0, s] = 1.0
        o[t + 1, s] = o[t, s] + h[t, s]
        prog.output("h", h)
        prog.output("o", o)
        prog.output("square", tp.square(h))
    for bounds in ({T: 1, S: 3}, {T: 3, S: 1}, {T: 1, S: 1}):
        graph = dropped(prog, bounds)
        assert [d.name for d in graph.outputs["h"].domain] == ["t", "s"]
        assert graph.outputs["h"].node.op is RECURRENT


def test_ranges_are_axes() -> None:
    """Of one step, of two (a base case and a step), and of none."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", (3,), (i, t))
        h = prog.recurrent("h", (3,), (i, t))
        h[i, -1] = tp.zeros(3)
        h[i, t] = tp.sin(x) + tp.sum(h[i, 0:t], axis=0)
        prog.output("one", (2 * x)[0:I, 0:T].reshape((I * T * 3,)))
        prog.output("two", h[i, -1:T])
        prog.output("turned", h[0:I, t])
    rng = np.random.default_rng(0)
    for sizes in ((2, 1), (1, 2), (1, 1)):
        dropped(prog, {I: sizes[0], T: sizes[1]}, x=rng.normal(size=(*sizes, 3)))


def test_gradients_through_one_step() -> None:
    """Adjoints have a dim of their own, which is a step longer."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        w = prog.input("w", (2, 2))
        x = prog.input("x", (2,), t)
        h = prog.recurrent("h", (2,), t)
        h[-1] = tp.ones(2)
        h[t] = tp.tanh(w @ h[t - 1] + x)
        loss = tp.sum(tp.square(h[0:T]))
        prog.output("dw", tp.grad(loss, w))
        prog.output("dx", tp.grad(loss, x))
        prog.output("dh", tp.grad(loss, h))
    rng = np.random.default_rng(0)
    dropped(prog, {T: 1}, w=rng.normal(size=(2, 2)), x=rng.normal(size=(1, 2)))


def test_a_step_that_depends_on_another_dim_keeps_the_dim() -> None:
    """Which of two steps of h is read is known at every s, but not before."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        h = prog.recurrent("h", (), t)
        h[-1] = 3.0
        h[t] = h[t - 1] * 2
        prog.output("y", h[tp.min(s, T) - 1])
    graph = dropped(prog, {T: 1, S: 3})
    assert [d.name for d in next(n for n in graph.nodes if n.name == "h").domain] == ["t"]


def test_bounds_in_shapes_and_values_are_numbers() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        _, B = prog.dim("b")
        x = prog.input("x", (B,), t)
        y = x + tp.arange(B).astype("float32") + (t * B)
        prog.output("y", tp.concatenate([y, y[0:T].reshape((T * B,))]))
        prog.output("less", tp.where(tp.equal(t, B), y, -y))
    dropped(prog, {T: 1, B: 1}, x=np.array([[4.0]]))
    dropped(prog, {T: 2, B: 1}, x=np.array([[4.0], [5.0]]))


def test_draws_are_those_of_the_point() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        e, E = prog.dim("e")
        prog.output("order", tp.random.permutation(5, domain=(i, e)))
        prog.output("normal", tp.random.normal((2,), domain=e))
    dropped(prog, {I: 2, E: 1})


def test_host_functions_are_called_with_the_axes_they_were() -> None:
    seen: list[tuple[int, ...]] = []

    def double(x: np.ndarray[Any, Any], step: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append((*x.shape, int(step)))
        return 2 * x

    with tp.Program() as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.recurrent("x", (), (i, b, t))
        start = prog.state("start", 1.0, over=i, domain=b)
        after = tp.host(double, x, i * T + t, out=tp.spec((), "float32"), sequence=(i, t), batch=b)
        x[i, b, 0] = start + b.value.astype("float32")
        x[t > 0] = after[i, b, t - 1] - 1
        start.next = after[i, b, T - 1]
        prog.output("x", x)
        prog.emit("after", after)
    for B_, T_ in ((1, 2), (2, 1), (1, 1)):
        dropped(prog, {I: 2, B: B_, T: T_})
        assert set(seen) == {(B_, step) for step in range(2 * T_)}
        seen.clear()


def test_a_dim_that_stops_on_data_stays() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", (), t)
        x[0] = 1.0
        x[t] = x[t - 1] * 2
        prog.stop(t, when=x > 4)
        prog.output("x", x)
    assert drop_single_steps(prog.graph, check_bounds(prog.graph, {T: 1})) is prog.graph
    np.testing.assert_array_equal(prog.compile({T: 1})().x, [1.0])


PLANS = ({"blocks": {"e": 1}}, {"unroll": ["e"]}, {"buckets": {"e": [1]}}, {"tiles": {"m": 1}})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_plans_may_name_dropped_dims(plan: Any, backend: str) -> None:
    prog, I, E, M = epochs()
    bounds = {I: 3, E: 1, M: 1}
    found = prog.compile(bounds, backend, plan=plan)()
    np.testing.assert_allclose(found.mean, prog.evaluate(bounds).mean, rtol=1e-5)


def test_runs_are_saved_and_go_on(tmp_path: Path) -> None:
    prog, I, E, M = epochs()
    bounds = {I: 4, E: 1, M: 1}
    expected = prog.evaluate(bounds)
    run = prog.compile(bounds)
    stream = run.stream()
    first = [next(stream) for _ in range(2)]
    run.save(tmp_path / "run")
    other = prog.compile(bounds)
    other.load(tmp_path / "run")
    rest = list(stream_ := other.stream())
    assert [record.point for record in (*first, *rest)] == [{"i": n, "e": 0, "m": 0} for n in range(4)]
    assert stream_.result is not None
    np.testing.assert_allclose(stream_.result.final, expected.final, rtol=1e-5)
