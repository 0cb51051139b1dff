"""Stores in host memory: the same values as without, and the device has a few blocks of them at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import tempo as tp
from tempo.backends.jax import host_stores
from tempo.backends.jax.host_arrays import OneArray
from tempo.errors import BudgetError, ProgramError
from tempo.runtime.executable import Executable
from tempo.schedule.plan import Plan
from tempo.schedule.planning import show_bytes
from tempo.symbolic import Bound
from tempo.testing.compiled import compare

STEPS = 10
Written = tuple[tp.Program, dict[Bound, int], dict[str, Any]]


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def forward() -> Written:
    """A recurrence, all of which is handed out: the input and the output are on the host."""
    with tp.Program("forward") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=t)
        y = prog.recurrent("y", shape=(2,), domain=t)
        y[0] = x[0]
        y[t] = tp.tanh(y[t - 1]) + x[t]
        prog.output("y", y)
        prog.output("x", x)
    return prog, {T: STEPS}, {"x": numbers(STEPS, 2)}


def training() -> Written:
    """Back-propagation through time, for some iterations."""
    with tp.Program("rnn") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=(i, t))
        target = prog.input("target", shape=(4,), domain=t)
        U = prog.input("U", shape=(4, 3))
        W = prog.state("W", np.eye(4, dtype=np.float32), over=i)
        h = prog.recurrent("h", shape=(4,), domain=(i, t))
        h[i, -1] = 0.0
        h[i, t] = tp.tanh(W @ h[i, t - 1] + U @ x)
        losses = tp.sum(tp.square(h - target))
        loss = tp.sum(losses[i, 0:T])
        W.next = W - 0.01 * tp.grad(loss, W)
        prog.output("loss", loss)
        prog.output("W", W)
        prog.emit("progress", loss)
    return prog, {I: 4, T: STEPS}, {"x": numbers(4, STEPS, 3), "target": numbers(STEPS, 4), "U": numbers(4, 3)}


def two_readers() -> Written:
    """A store that two other loops read, forwards and backwards, each further away than its own step."""
    with tp.Program("readers") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(), domain=t)
        a = prog.recurrent("a", shape=(), domain=t)
        a[0] = x[0]
        a[t] = 0.5 * tp.tanh(a[t - 1]) + x[t]
        b = prog.recurrent("b", shape=(), domain=t)
        b[T - 1] = a[T - 1]
        b[t] = 0.5 * tp.tanh(b[t + 1]) + a[tp.max(t - 3, 0)] + a[t + 1]
        c = prog.recurrent("c", shape=(), domain=t)
        c[0] = b[0]
        c[t] = tp.cos(c[t - 1]) * b[tp.min(t + 2, T - 1)] - a[t]
        prog.output("c", c)
        prog.output("highest", tp.max(a[0:T]) + b[0])
    return prog, {T: STEPS}, {"x": numbers(STEPS)}


def observations() -> Written:
    """A tensor with a step more than its dim, defined one step ahead, and the sum of what was seen around each step."""
    with tp.Program("observations") as prog:
        t, T = prog.dim("t")
        noise = prog.input("noise", shape=(2,), domain=t)
        o = prog.recurrent("o", shape=(2,), domain=t)
        o[0] = 1.0
        o[t + 1] = tp.sin(o[t]) + noise[t]
        R = prog.recurrent("R", shape=(2,), domain=t)
        R[T] = o[T]
        R[t] = tp.sum(o[tp.max(0, t - 2) : t + 1], axis=0) + 0.5 * R[t + 1]
        prog.output("o", o)
        prog.output("R", R)
    return prog, {T: STEPS}, {"noise": numbers(STEPS, 2)}


def all_before() -> Written:
    """Reads of all steps so far, of which no slice has few: the whole store is sent."""
    with tp.Program("attention") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=t)
        y = prog.recurrent("y", shape=(2,), domain=t)
        y[0] = x[0]
        y[t] = 0.5 * tp.tanh(y[t - 1]) + x[t]
        z = prog.recurrent("z", shape=(2,), domain=t)
        z[T - 1] = y[T - 1]
        z[t] = 0.1 * z[t + 1] + tp.sum(y[0 : t + 1], axis=0) + x[T - 1 - t]
        prog.output("z", z)
    return prog, {T: STEPS}, {"x": numbers(STEPS, 2)}


def last_loss() -> Written:
    """Some iterations of learning from the last step only."""
    with tp.Program("last") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(4,), domain=t)
        W = prog.state("W", np.eye(4, dtype=np.float32), over=i)
        h = prog.recurrent("h", shape=(4,), domain=(i, t))
        h[i, -1] = 0.0
        h[i, t] = tp.tanh(W @ h[i, t - 1] + x)
        loss = tp.sum(tp.square(h[i, T - 1]))
        W.next = W - 0.01 * tp.grad(loss, W)
        prog.output("loss", loss)
        prog.output("last", h[I - 1, T - 1])
    return prog, {I: 3, T: STEPS}, {"x": numbers(STEPS, 4)}


def counts() -> Written:
    """Whole numbers, in which nothing is rounded."""
    with tp.Program("counts") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=t, dtype="int32")
        y = prog.recurrent("y", shape=(2,), domain=t, dtype="int32")
        y[0] = x[0]
        y[t] = 3 * y[t - 1] + x[t]
        z = prog.recurrent("z", shape=(2,), domain=t, dtype="int32")
        z[T - 1] = y[T - 1]
        z[t] = 5 * z[t + 1] - y[t] * x[t]
        prog.output("z", z)
    return prog, {T: STEPS}, {"x": np.arange(2 * STEPS, dtype=np.int32).reshape(STEPS, 2)}


PROGRAMS = [forward, training, two_readers, observations, all_before, counts]
ON_THE_HOST = {
    forward: {"x", "y"},
    training: {"x", "target", "h"},
    two_readers: {"x", "a", "b", "c"},
    observations: {"noise", "o", "R"},
    all_before: {"x", "y", "z"},
    counts: {"x", "y", "z"},
}


@pytest.fixture(params=["one array", "pieces"])
def host_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Stores as a CPU has them, and as a GPU does, in pinned memory, of which a CPU has a kind, too."""
    kind: str = request.param
    memory = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host") if kind == "pieces" else None
    monkeypatch.setattr(host_stores, "pinned", lambda device: memory)
    return kind


def on_the_host(run: Executable) -> set[str]:
    return {store.node.label for store in run.storage.stores.values() if store.host}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("block", [1, 3, 5, 9])
def test_values_are_those_without_offloading(host_memory: str, program: Callable[[], Written], block: int) -> None:
    prog, bounds, inputs = program()
    expected = prog.evaluate(bounds, **inputs)
    without = Executable(prog.graph, bounds, plan=Plan({"t": block}))
    run = Executable(prog.graph, bounds, plan=Plan({"t": block}, host=("*",)))
    assert on_the_host(run) >= ON_THE_HOST[program]
    for found in (run(**inputs), run(**inputs)):  # the second run begins anew
        for name, array in expected.outputs.items():
            compare(name, found[name], array, 1e-5)
            # Each XLA program rounds as it likes.
            np.testing.assert_allclose(found[name], without(**inputs)[name], rtol=1e-5, atol=1e-6)
        for name, records in expected.emits.items():
            assert [r.point for r in found.emits[name]] == [r.point for r in records]


def test_whole_numbers_are_the_same(host_memory: str) -> None:
    prog, bounds, inputs = counts()
    without = Executable(prog.graph, bounds)(**inputs).z
    for block in range(1, STEPS):
        found = Executable(prog.graph, bounds, plan=Plan({"t": block}, host=("*",)))(**inputs).z
        np.testing.assert_array_equal(found, without)


def test_some_names() -> None:
    """What is not named stays on the device. The NumPy backend has everything in host memory anyway."""
    prog, bounds, inputs = two_readers()
    expected = prog.evaluate(bounds, **inputs)
    for backend in ("jax", "numpy"):
        run = Executable(prog.graph, bounds, backend, plan=Plan({"t": 4}, host=("a", "x")))
        assert on_the_host(run) == {"a", "x"}
        compare("c", run(**inputs).c, expected["c"], 1e-5)


def test_the_device_has_a_few_blocks() -> None:
    """64 times as many steps: the stores on the host grow, those on the device do not."""
    prog, bounds, _ = training()
    I, T = bounds

    def stores(steps: int, host: tuple[str, ...]) -> Any:
        return Executable(prog.graph, {I: 4, T: steps}, "numpy", plan=Plan({"t": 8}, host=host)).storage

    short, long, on_device = stores(16, ("*",)), stores(1024, ("*",)), stores(1024, ())
    # What is left is a number for each step: the gradient of the sum of the losses.
    assert long.peak - short.peak <= 4 * (1024 - 16)
    assert on_device.peak > 16 * (long.peak - 4 * 1024)
    table = str(long).splitlines()
    assert next(line for line in table if line.startswith("h:")).endswith(
        "16,400 bytes (i: one value, t: 1025 steps), on the host"
    )
    assert re.fullmatch(r"host: [\d,]+ bytes", table[-1])


def test_no_slice_is_more_than_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs on the host are never sent as a whole, and every slice is sent once, before it is needed."""
    from tempo.backends.jax.host_stores import HostStores

    prog, bounds, inputs = forward()
    run = Executable(prog.graph, bounds, plan=Plan({"t": 3}, host=("*",)))
    sent: list[tuple[str, int]] = []
    send = HostStores.send

    def watched(self: HostStores, wanted: Any) -> Any:
        array = send(self, wanted)
        sent.append((wanted.node.label, array.shape[0]))
        return array

    monkeypatch.setattr(HostStores, "send", watched)
    run(**inputs)
    assert sent == [("x", 3)] * 3 + [("x", 1)]


def test_a_read_of_one_step_sends_one_step(host_memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last state, which a loss is made of and which is handed out, not all states are sent."""
    from tempo.backends.jax.host_stores import HostStores

    prog, bounds, inputs = last_loss()
    run = Executable(prog.graph, bounds, plan=Plan({"t": 4}, host=("h",)))
    sent: list[int] = []
    send = HostStores.send

    def watched(self: HostStores, wanted: Any) -> Any:
        array = send(self, wanted)
        sent.append(array.shape[0])
        return array

    monkeypatch.setattr(HostStores, "send", watched)
    found, expected = run(**inputs), prog.evaluate(bounds, **inputs)
    for name in expected.outputs:
        compare(name, found[name], expected[name], 1e-5)
    assert sent.count(1) >= 3 + 1  # one for every iteration's loss, one for the output
    assert max(sent) <= 5


def test_blocks_of_the_iterations_as_well(host_memory: str) -> None:
    """What the device has of a store is a block of the inner dim, at one iteration."""
    prog, bounds, inputs = last_loss()
    expected = prog.evaluate(bounds, **inputs)
    for blocks in ({"i": 1, "t": 3}, {"i": 2, "t": 1}):
        run = Executable(prog.graph, bounds, plan=Plan(blocks, host=("*",)))
        assert "h" in on_the_host(run)
        h = next(node for node in run.storage.local if node.name == "h")
        assert run.storage.homes[h][0].name == "t"
        assert math.prod(run.storage.local[h].shape) <= 6 * 4
        for name, array in expected.outputs.items():
            compare(name, run(**inputs)[name], array, 1e-5)


def test_inputs_are_not_changed_through_outputs(host_memory: str) -> None:
    prog, bounds, inputs = forward()
    run = Executable(prog.graph, bounds, plan=Plan({"t": 3}, host=("*",)))
    before = inputs["x"].copy()
    run(**inputs).x[:] = 0
    np.testing.assert_array_equal(inputs["x"], before)


def test_outputs_are_the_users_own(host_memory: str) -> None:
    """What the user does with an output out of host memory changes neither a later one nor what the program has."""
    prog, bounds, inputs = forward()
    run = Executable(prog.graph, bounds, plan=Plan({"t": 3}, host=("*",)))
    first = run(**inputs).y
    expected = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(run(**inputs).y, expected)


def test_what_cannot_be_pinned_is_in_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA pins so much memory and no more: stores beyond that are as they are on a CPU."""
    memory = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    monkeypatch.setattr(host_stores, "pinned", lambda device: memory)
    monkeypatch.setattr(host_stores, "pinned_bytes", lambda: 2 * 4 * STEPS)
    prog, bounds, inputs = two_readers()
    run = Executable(prog.graph, bounds, plan=Plan({"t": 3}, host=("*",)))
    found: list[Any] = []
    arrays = host_stores.HostStores._arrays

    def watched(self: host_stores.HostStores, *given: Any) -> Any:
        found.extend(arrays(self, *given).items())
        return dict(found)

    monkeypatch.setattr(host_stores.HostStores, "_arrays", watched)
    compare("c", run(**inputs).c, prog.evaluate(bounds, **inputs)["c"], 1e-5)
    computed = [isinstance(array, OneArray) for node, array in found if node.label in ("a", "b", "c")]
    assert sorted(computed) == [False, False, True]


def test_without_blocks_everything_stays_on_the_device() -> None:
    prog, bounds, inputs = training()
    for plan in (Plan(host=("*",)), Plan({"t": STEPS}, host=("*",))):
        run = Executable(prog.graph, bounds, plan=plan)
        assert on_the_host(run) == set()
        run(**inputs)


def test_a_dim_that_stops_on_data_has_no_blocks(host_memory: str) -> None:
    """Its stores stay on the device; those of what is computed after it are on the host."""
    with tp.Program("stopped") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(), domain=t)
        y = prog.recurrent("y", shape=(), domain=i)
        y[0] = 1.0
        y[i] = y[i - 1] * 1.5
        prog.stop(i, when=y > 4.0)
        z = prog.recurrent("z", shape=(), domain=t)
        z[0] = y[I - 1]
        z[t] = tp.tanh(z[t - 1]) + x[t]
        prog.output("y", y)
        prog.output("z", z)
    inputs = {"x": numbers(STEPS)}
    run = Executable(prog.graph, {I: 8, T: STEPS}, plan=Plan({"i": 2, "t": 4}, host=("*",)))
    assert on_the_host(run) == {"x", "z"}
    found, expected = run(**inputs), prog.evaluate({I: 8, T: STEPS}, **inputs)
    for name in ("y", "z"):
        compare(name, found[name], expected[name], 1e-5)


def test_what_host_functions_read_stays_on_the_device() -> None:
    seen: list[float] = []

    def look(value: Any) -> Any:
        seen.append(float(value))
        return value * np.float32(2)

    with tp.Program("calls") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(), domain=t)
        y = prog.recurrent("y", shape=(), domain=t)
        y[0] = x[0]
        y[t] = tp.tanh(y[t - 1]) + x[t]
        z = tp.host(look, y, out=tp.spec((), "float32"), sequence=(t,))
        b = prog.recurrent("b", shape=(), domain=t)
        b[T - 1] = z[T - 1]
        b[t] = 0.5 * tp.tanh(b[t + 1]) + z[t] * x[t]
        prog.output("b", b)
    inputs = {"x": numbers(STEPS)}
    expected = prog.evaluate({T: STEPS}, **inputs)
    called = list(seen)
    seen.clear()
    run = Executable(prog.graph, {T: STEPS}, plan=Plan({"t": 4}, host=("*",)))
    assert "y" not in on_the_host(run)
    compare("b", run(**inputs).b, expected["b"], 1e-5)
    np.testing.assert_allclose(seen, called, rtol=1e-5)


@pytest.mark.parametrize("advanced", [1, 4, 7, 12])
def test_a_run_saved_between_blocks_goes_on(host_memory: str, advanced: int, tmp_path: Path) -> None:
    """Forwards, in the middle of the way back, and in the next iteration: the same to the last bit."""
    prog, bounds, inputs = training()
    plan = Plan({"t": 3}, host=("*",))
    run = Executable(prog.graph, bounds, plan=plan)
    whole = run(**inputs)
    stream = run.stream(**inputs)
    for _ in range(advanced):
        stream._run.advance()
    run.save(tmp_path / "run")
    other = Executable(prog.graph, bounds, plan=plan)
    other.load(tmp_path / "run")
    found = other(**inputs)
    for name in ("loss", "W"):
        np.testing.assert_array_equal(found[name], whole[name])


def test_an_unknown_name() -> None:
    prog, bounds, _ = training()
    with pytest.raises(ProgramError) as caught:
        Executable(prog.graph, bounds, plan=Plan({"t": 3}, host=("hh",)))
    assert str(caught.value) == (
        "the plan keeps hh on the host, and program 'rnn' has no such tensor\n"
        '  hint: its tensors over dims are: x, target, W, h; with host=("*",), run.explain() names all others'
    )


def test_a_string_is_not_several_names() -> None:
    prog, bounds, _ = training()
    with pytest.raises(ProgramError) as caught:
        Executable(prog.graph, bounds, plan=Plan({"t": 3}, host="h"))  # type: ignore[arg-type]
    assert str(caught.value) == "the plan keeps 'h' on the host, which is one string\n  hint: give a tuple: ('h',)"


def test_tensors_without_names_are_told_apart_in_every_process() -> None:
    """By their operations and which of these they are, not by how many nodes the process has made."""
    found = []
    for _ in range(2):
        prog, bounds, inputs = training()
        expected = prog.evaluate(bounds, **inputs)
        run = Executable(prog.graph, bounds, plan=Plan({"t": 4}, host=("*",)))
        found.append({store.host for store in run.storage.stores.values() if store.host})
        (other, *_) = sorted(name for name in found[-1] if "#" in name)
        alone = Executable(prog.graph, bounds, plan=Plan({"t": 4}, host=(other,)))
        assert {store.host for store in alone.storage.stores.values()} == {"", other}
        assert f"on the host as {other}" in alone.explain()
        compare("loss", alone(**inputs).loss, expected["loss"], 1e-4)
    assert found[0] == found[1]


def test_what_a_loop_around_the_blocks_folds_in_stays_on_the_device() -> None:
    """Every iteration adds to what the one before has left, of all blocks."""
    with tp.Program("fold") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", shape=(), domain=t)
        y = prog.input("y", shape=(), domain=s)
        total = tp.sum(tp.tanh(x * y)[0:T, s])
        prog.output("total", tp.sum(tp.sin(total)[0:S]))
    inputs = {"x": numbers(STEPS), "y": numbers(STEPS)}
    run = Executable(prog.graph, {T: STEPS, S: STEPS}, plan=Plan({"t": 1, "s": 3}, host=("*",)))
    compare("total", run(**inputs).total, prog.evaluate({T: STEPS, S: STEPS}, **inputs)["total"], 1e-5)


def test_what_another_iteration_of_a_loop_around_the_blocks_reads_stays_on_the_device() -> None:
    """Found by a random program: the gradient at the last s of a t reads the first s of the next t, unless the first
    ones are made a tensor of their own."""
    with tp.Program("rows") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", shape=(), domain=(t, s))
        w = prog.state("w", 1.0, over=(t, s), domain=(t, s))
        w.next = w - 0.1 * tp.tanh(tp.grad(tp.square(w - x), w))
        prog.output("g", tp.grad(tp.square(w[T - 1, 0]), w))
    bounds, inputs = {T: 3, S: 4}, {"x": numbers(3, 4)}
    run = Executable(prog.graph, bounds, plan=Plan({"s": 1}, host=("*",)), skip={"hand rows on"})
    hosted = {store.host for store in run.storage.stores.values()}
    assert len(hosted) > 1
    assert "adjoint(w)" not in hosted
    compare("g", run(**inputs).g, prog.evaluate(bounds, **inputs)["g"], 1e-5)


def test_plans_say_what_is_on_the_host_and_why() -> None:
    prog, bounds, _ = two_readers()
    run = Executable(prog.graph, bounds, "numpy", plan=Plan({"t": 4}, host=("a", "x")))
    rows = str(run.plan).splitlines()
    assert rows[:2] == ["blocks: t 4", "host: a, x"]
    assert rows[-2:] == [
        "x: on the host (an input; the plan wants it there)",
        "a: on the host (written in blocks of t; the plan wants it there)",
    ]


def long_training() -> Written:
    """Back-propagation through 300 steps of a recurrent network whose weights are small."""
    with tp.Program("long") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(8, 16), domain=t)
        W = prog.input("W", shape=(16, 16))
        h = prog.recurrent("h", shape=(8, 16), domain=t)
        h[-1] = 0.0
        h[t] = tp.tanh(h[t - 1] @ W + x[t])
        loss = tp.sum(tp.sum(tp.square(h))[0:T])
        prog.output("loss", loss)
        prog.output("gradient", tp.grad(loss, W))
        prog.output("last", h[T - 1])
    return prog, {T: 300}, {"x": numbers(300, 8, 16), "W": 0.2 * numbers(16, 16)}


@pytest.mark.parametrize("part", [4, 16])
def test_a_budget_is_kept_with_stores_on_the_host(host_memory: str, part: int) -> None:
    """What XLA says it takes of the device is a sixteenth of what it takes without a budget, for the same results."""
    prog, bounds, inputs = long_training()
    fastest = prog.compile(bounds)
    budget = sum(fastest._machine.memory().values()) // part
    run = prog.compile(bounds, memory=budget)
    assert sum(run._machine.memory().values()) <= budget
    assert run.storage.peak <= budget
    assert set(run.plan.host) >= {"h", "x"}
    assert "tanh#1, h: on the host (written in blocks of t; the rest fits into" in str(run.plan)
    expected = fastest(**inputs)
    for name, found in run(**inputs).outputs.items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-4)
    again = prog.compile(bounds, plan=run.plan)
    assert again.storage.peak == run.storage.peak


def test_a_budget_that_cannot_be_kept_even_with_stores_on_the_host() -> None:
    prog, bounds, _ = long_training()
    with pytest.raises(BudgetError) as caught:
        prog.compile(bounds, "numpy", memory=100)
    smallest = caught.value.smallest
    assert str(caught.value) == (
        "program 'long' does not fit into 100 bytes: with the smallest blocks and stores in host memory it takes "
        f"{show_bytes(smallest)}\n  hint: give memory={smallest}, or smaller bounds"
    )
    assert prog.compile(bounds, "numpy", memory=smallest).storage.peak <= smallest
    assert smallest < prog.compile(bounds, "numpy", plan="smallest").storage.peak / 8


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_blocks_within_blocks_of_another_dim(host_memory: str, backend: str) -> None:
    """Of what is sent to the host by the inner blocks, the device has a block of the outer dim, too (random program 11
    of seed 901)."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype="int32")
        z = prog.input("z", (3, 2), domain=(t,))
        w = prog.state("w", tp.tanh(tp.sum(z[1:3], axis=0)), over=t, domain=(t,))
        far = w - tp.broadcast_to(x, (3, 2)).astype("float32")
        loss = tp.sum(far * far)
        w.next = w - 0.1 * tp.tanh(tp.grad(loss, w))
        v = prog.state("v", tp.ones((3, 2), "float64"), over=t, domain=(t,))
        above = tp.maximum(x[0].astype("float64"), tp.broadcast_to(loss, (2,)).astype("float64"))
        second = tp.sum((v - above) * (v - above))
        v.next = v - 0.1 * tp.tanh(tp.grad(second, v))
        total = second + tp.sum(v[tp.max(t - 3, 0)], axis=0).space[0]
        prog.output("g", tp.grad(total, z))
        prog.emit("loss", loss)
    (inner,) = (d.name for d in prog.graph.dims if d.name == "t'3")
    plan = tp.Plan({"t": 2, inner: 2}, host=("*",))
    inputs = {"x": np.array([3, -1, 2]), "z": np.linspace(-1, 1, 18).reshape(3, 3, 2)}
    run = Executable(prog.graph, {T: 3}, backend, plan=plan, parallel=True)
    np.testing.assert_allclose(run(**inputs).g, prog.evaluate({T: 3}, **inputs).g, rtol=1e-4, atol=1e-5)
