"""Compiled programs that stop on data: the loop that holds the condition ends early, and what needs the number of steps
comes after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import optim
from tempo.backends.jax import whole
from tempo.runtime.executable import Executable
from tempo.schedule import results
from tempo.schedule.looptree import show
from tempo.schedule.results import Cuts

backends = pytest.mark.parametrize("backend", ["numpy", "jax"])


as_on_a_gpu = pytest.mark.parametrize("backend", ["numpy", "jax", "parallel"])
"""The last one as on a GPU, which makes several iterations one, and scans of linear recurrences."""


def compiled(prog: tp.Program, bounds: Any, backend: str) -> Executable:
    return Executable(prog.graph, bounds, parallel=True) if backend == "parallel" else prog.compile(bounds, backend)


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


@backends
def test_a_fixed_point_is_compared_with_the_step_before_inside_the_loop(backend: str) -> None:
    """Also what comes between the condition and the steps that it compares: otherwise all steps are made, and kept."""
    with tp.Program() as prog:
        k, K = prog.dim("k")
        s, S = prog.dim("s")
        V = prog.recurrent("V", domain=(k, s))
        V[0, s] = 0.0
        V[k, s] = 1 + 0.5 * V[k - 1, tp.max(s - 1, 0)]
        change = tp.max(tp.abs(V - V[tp.max(k - 1, 0), s])[k, 0:S])
        prog.stop(k, when=(change < 0.1) & (k.value > 0))
        prog.output("V", V[K - 1])
        prog.output("steps", K)
    found = same_as_oracle(prog, {K: 1000, S: 3}, backend)
    assert (found.V.tolist(), found.steps) == ([1.9375] * 3, 6)
    run = prog.compile({K: 1000, S: 3}, backend)
    assert " .. 999, until " in run.loop_tree()
    assert "V: float32[2, 3]" in run.explain()


@backends
@pytest.mark.parametrize("form", ["read", "named"])
def test_a_fixed_point_is_compared_with_the_step_after_inside_the_loop(form: str, backend: str) -> None:
    """Whether the user has a name for the next step, or reads it: two steps are kept, of a thousand."""
    with tp.Program() as prog:
        k, K = prog.dim("k")
        s, S = prog.dim("s")
        V = prog.recurrent("V", domain=(k, s))
        V[0, s] = 0.0
        V[k + 1, s] = following = 1 + 0.5 * V[k, tp.max(s - 1, 0)]
        after = V[k + 1, 0:S] if form == "read" else following[k, 0:S]
        prog.stop(k, when=tp.max(tp.abs(after - V[k, 0:S])) < 0.1)
        prog.output("V", V[K])
        prog.output("steps", K)
    found = same_as_oracle(prog, {K: 1000, S: 3}, backend)
    assert (found.V.tolist(), found.steps) == ([1.9375] * 3, 5)
    run = prog.compile({K: 1000, S: 3}, backend)
    assert " .. 999, until " in run.loop_tree()
    stored = {node.name: store.bytes for node, store in run.storage.stores.items()}
    assert stored["V"] <= 2 * 3 * 4


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
        x[t - 2] = tp.index_value(t).astype(tp.float32)  # there are two steps after this one
        x[t] = 7.0
        prog.stop(t, when=x > 3)
        prog.output("x", x[5])
    with pytest.raises(tp.errors.ProgramError) as caught:
        prog.compile({T: 9}, backend)
    assert str(caught.value).splitlines()[0] == (
        "which case of x applies depends on T, and the stop condition of t depends on x"
    )


@backends
@pytest.mark.parametrize("limit", [0.5, 3, 15, 1000])
def test_which_case_applies_may_be_known_when_a_step_is_made(limit: float, backend: str) -> None:
    """Step 5 comes from the one before it, if that is made."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=(t,))
        x[0] = 1.0
        x[t + 1] = 2 * x[t]
        x[5] = 7.0
        prog.stop(t, when=x > limit)
        prog.output("x", x[5])
        prog.output("last", x[T - 1])
    found = same_as_oracle(prog, {T: 9}, backend)
    assert found.x == (7 if limit < 15 else 32)


@backends
@pytest.mark.parametrize("read", ["halves", "first"])
def test_a_gradient_by_what_is_sometimes_here_may_decide_the_stop(read: str, backend: str) -> None:
    """It is a sum over the steps at which it is here, of which there is one: all up to T were asked for."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        w = prog.recurrent("w", domain=t)
        w[0] = prog.input("first")
        seen = x[t // 2] if read == "halves" else tp.sin(x[0]) * w[tp.max(t - 1, 0)]
        slope = tp.grad(tp.sin(w) * tp.square(seen), x)
        w[t + 1] = w - 0.2 * tp.cos(w)
        prog.stop(t, when=slope[0 : t + 1].sum() > w)
        prog.output("slope", slope)
        prog.output("last", w[T])
    found = same_as_oracle(prog, {T: 8}, backend, x=np.linspace(0.1, 0.9, 8), first=0.7)
    assert len(found.slope) < 8


def training(kind: str) -> tuple[tp.Program, dict[Any, int]]:
    """A line is fitted until it fits."""
    with tp.Program(kind) as prog:
        i, I = prog.dim("i")
        x, y = prog.input("x", (8,)), prog.input("y", (8,))
        bounds = {I: 60}
        if kind == "minibatches":
            m, M = prog.dim("m")
            bounds[M] = 2
            w = prog.state("w", tp.zeros(2), over=(i, m))
            x, y = (z.space[4 * m : 4 * m + 4] for z in (x, y))
        else:
            w = prog.state("w", tp.zeros(2), over=i)
        loss = tp.mean((w.space[0] * x + w.space[1] - y) ** 2)
        slope = tp.grad(loss, w)
        if kind == "momentum":
            v = prog.state("v", tp.zeros(2), over=i)
            v.next = step = 0.5 * v + slope
            w.next = w - 0.1 * step
        elif kind == "adam":
            optim.Adam(0.2).update({"w": w}, {"w": slope})
        else:
            w.next = w - 0.2 * slope
        whole = loss[i, 0:M].sum() if kind == "minibatches" else loss
        prog.stop(i, when=whole < 0.05)
        prog.output("w", w.final)
        prog.output("loss", whole)
        prog.output("last", tp.sqrt(whole)[I - 1])
    return prog, bounds


@backends
@pytest.mark.parametrize("kind", ["descent", "momentum", "adam", "minibatches"])
def test_training_until_it_is_good_enough(kind: str, backend: str) -> None:
    """Gradients of an iteration are known when it is made, whichever is the last; and only the last parameters are
    kept."""
    prog, bounds = training(kind)
    x = np.linspace(-1, 1, 8)
    inputs = {"x": x, "y": 0.5 - x}
    expected = prog.evaluate(bounds, **inputs)
    run = prog.compile(bounds, backend)
    found = run(**inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4)
    assert 3 < len(found.loss) < 60 and found.loss[-1] < 0.05 <= found.loss[-2]
    stored = {node.name: store.bytes for node, store in run.storage.stores.items()}
    assert stored["w"] <= 4 * 2 * (4 if kind == "minibatches" else 2)


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


@backends
def test_what_is_needed_of_two_dims_that_stop(backend: str) -> None:
    """Behind the stop of t, sums are of fewer than no steps; by then it is not known yet where s stops, behind which
    there is no largest value."""
    with tp.Program("two stops") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t] = x[t - 1] / 2
        to_come = x[t:T].sum()
        y = prog.recurrent("y", domain=s)
        y[0] = to_come[0:T].min()
        y[s] = 2 * y[s - 1]
        prog.output("to_come", to_come)
        prog.output("largest", y[s:S].max())
        prog.stop(t, when=x < 0.1)
        prog.stop(s, when=y > 1)
    found = same_as_oracle(prog, {T: 20, S: 20}, backend)
    assert (found.to_come.size, found.largest.size) == (5, 6)


def test_large_outputs_are_cut_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "MOST_FETCHED", 16)
    prog, T = doubling()
    assert same_as_oracle(prog, {T: 50}, "jax").x.shape == (7,)


def test_outputs_are_cut_to_the_points_that_there_are() -> None:
    prog, T = doubling()
    cuts = Cuts(prog.graph, {"x": (range(51),)})
    assert cuts({T: 6}, "x", np.arange(51)).tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("emits", [False, True])
def test_which_points_there_are_is_found_once_for_every_number_of_steps(
    emits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tp.Program("sums") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[-1] = 0.0
        y[t] = y[t - 1] + x
        prog.stop(t, when=y > 4)
        prog.output("y", y)
        if emits:
            prog.emit("twice", 2 * y)
    run = prog.compile({T: 9})
    asked = []
    found = results.made
    monkeypatch.setattr(results, "made", lambda *about: asked.append(about) or found(*about))
    steps = [len(run(x=np.full(9, number)).y) for number in (1, 1, 3, 1, 3)]
    assert steps == [6, 6, 3, 6, 3]
    assert len(asked) == 2


def test_numbers_of_steps_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_KNOWN", 3)
    prog, T = doubling()
    cuts = Cuts(prog.graph, {"x": (range(51),)})
    assert [len(cuts({T: steps}, "x", np.arange(51))) for steps in range(1, 9)] == list(range(2, 10))
    assert len(cuts.known) <= 3


@as_on_a_gpu
@pytest.mark.parametrize("most", [4, 5, 12])
def test_loops_behind_a_stop_make_no_step_that_was_not_made(backend: str, most: int) -> None:
    """Forwards they end where the dim has stopped, backwards they begin there."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        w = prog.input("w")
        h = prog.recurrent("h", domain=t)
        h[0] = 1.0
        h[t] = tp.tanh(w * h[t - 1]) + 0.5
        prog.stop(t, when=(tp.index_value(t) >= 4) & (h > 0))
        y = prog.recurrent("y", domain=t)
        y[0] = h[T - 1]
        y[t + 1] = 0.5 * y[t] + h[t]
        prog.output("slope", tp.grad(h[T - 1] + y[T], w))
        prog.output("y", y)
    run = compiled(prog, {T: most}, backend)
    loops = [line for line in run.loop_tree().splitlines() if line.startswith("for t")]
    assert all("until" in line or "from where" in line for line in loops)
    assert sum("backwards, from where" in line for line in loops) >= 1
    expected = prog.evaluate({T: most}, w=0.7)
    stream = run.stream(w=0.7)
    list(stream)
    for found in (run(w=0.7), stream.result):
        assert found is not None
        np.testing.assert_allclose(found.slope, expected.slope, rtol=1e-5)
        np.testing.assert_allclose(found.y, expected.y, rtol=1e-5)


def last_steps(form: str) -> tuple[tp.Program, Any, Any]:
    """Programs of which only the last steps are handed out, and that stop where the input says."""
    with tp.Program(form) as prog:
        t, T = prog.dim("t")
        halt = prog.input("halt", dtype=tp.int32)
        w = prog.input("w", shape=(3,))
        step = tp.index_value(t)
        if form == "states":
            x, y = prog.state("x", w, over=t), prog.state("y", 0 * w, over=t)
            x.next, y.next = 0.5 * x + y, 0.9 * y + x + step
            prog.output("final", x.final + tp.sum(y.final))
            prog.output("before", y[T - 1])
        else:
            x = prog.recurrent("x", (3,), t)
            x[t < 2 if form == "two steps back" else 0] = w
        if form == "two steps back":
            x[t] = 0.5 * x[t - 1] - 0.25 * x[t - 2] + step
            prog.output("last", x[T - 1])
            prog.output("before", x[T - 1] * x[T - 2])
        elif form == "behind the end":
            x[t + 1] = 0.9 * x + step
            prog.output("after", x[T])
            prog.output("last", x[T - 1])
        elif form == "late":
            x[t] = 0.5 * x[t - 1] + step
            y = prog.recurrent("y", (3,), t)
            y[t < 3] = w
            y[t] = x[t - 3] + 0.1 * y[t - 1]
            prog.output("last", y[T - 1])
        elif form == "another loop":
            x[t] = 0.5 * x[t - 1] + step
            y = prog.recurrent("y", (3,), t)
            y[0] = x[T - 1]
            y[t] = 0.5 * y[t - 1] + x[T - 1]
            prog.output("last", y[T - 1])
        prog.stop(t, when=(step >= halt) & (tp.sum(x * x) >= 0))
    return prog, T, t


@as_on_a_gpu
@pytest.mark.parametrize(
    "form, kept",
    [
        ("states", {"x": 1, "y": 2}),
        ("two steps back", {"x": 3}),
        ("behind the end", {"x": 2}),
        ("late", {"x": 4, "y": 2}),
        ("another loop", {"x": 2, "y": 2}),
    ],
)
def test_no_more_than_the_last_steps_are_kept(form: str, kept: dict[str, int], backend: str) -> None:
    """Wherever a dim stops, in whichever piece of its loop."""
    prog, T, t = last_steps(form)
    bounds = {T: 40}
    run = compiled(prog, bounds, backend)
    stores = {node.name: store.dims[t] for node, store in run.storage.stores.items() if node.name in kept}
    assert {name: getattr(found, "size", 0) for name, found in stores.items()} == kept
    for halt in (1, 2, 3, 17, 37, 38, 39, 99):
        inputs = {"halt": halt, "w": np.array([1.0, -2.0, 0.5], np.float32)}
        expected = prog.evaluate(bounds, **inputs)
        in_parts = run.stream(**inputs)
        list(in_parts)
        for found in (run(**inputs), in_parts.result):
            for name, array in expected.outputs.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-5, err_msg=f"{name}, {halt}")


@backends
def test_a_search_that_starts_with_what_it_reads_and_is_traced_back(backend: str) -> None:
    """What the first step reads is known before the loop: unrolled, it was refused from 50 steps on."""
    with tp.Program("search") as prog:
        t, T = prog.dim("t")
        embedding, head = prog.input("embedding", (5, 4)), prog.input("head", (4, 5))
        hidden = prog.recurrent("hidden", (3, 4), domain=t)
        token = prog.recurrent("token", 3, domain=t, dtype=tp.int32)
        token[0] = 1
        hidden[0] = tp.tanh(embedding.take(token[0], axis=0))
        token[t + 1] = tp.argmax(hidden @ head, axis=-1)
        hidden[t] = tp.tanh(hidden[t - 1] + embedding.take(token, axis=0))
        prog.stop(t, when=tp.all(token == 0))
        best = prog.recurrent("best", domain=t, dtype=tp.int32)
        best[T - 1] = tp.argmax(hidden[T - 1].space[:, 0])
        best[t] = token[t + 1].take(best[t + 1] % 3)
        prog.output("found", token.take(best % 3))
    lengths = set()
    for seed in (0, 3):
        random = np.random.default_rng(seed)
        arrays = {"embedding": random.normal(size=(5, 4)), "head": random.normal(size=(4, 5))}
        lengths.add(len(same_as_oracle(prog, {T: 64}, backend, **arrays).found))
    assert lengths == {2, 64}
    assert not prog.compile({T: 64}, backend).schedule.tangled
