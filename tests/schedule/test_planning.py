"""Plans: by goal, by budget, by hand; printed, saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.schedule.planning import bytes_of, show_bytes

backends = pytest.mark.parametrize("backend", ["numpy", "jax"])
WEIGHTS = {"first": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}


def reinforce(ahead: int | None) -> tuple[tp.Program, Any]:
    """A policy that learns from returns of some steps, or (None) of all that follow. One line is different."""
    with tp.Program("reinforce") as prog:
        b, B = prog.dim("b")
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", prog.input("first", shape=(3, 2)), over=(i,))
        o = prog.recurrent("o", shape=(3,), domain=(b, i, t))
        logits = tp.tanh(o) @ w
        noise = -tp.log(-tp.log(tp.random.uniform((2,), domain=(b, i, t))))
        action = tp.argmax(logits + noise, axis=0)
        chosen = tp.equal(tp.arange(2), action).astype("float32")
        o[b, i, 0] = tp.random.normal((3,), domain=(b, i))
        o[b, i, t + 1] = 0.9 * o + 0.1 * (action.astype("float32") - 0.5)
        reward = -tp.sum(o * o, axis=0)
        end = T if ahead is None else tp.min(t + ahead, T)
        returns = tp.sum(reward[b, i, t:end], axis=0)
        loss = -tp.stop_gradient(returns) * tp.sum(tp.log_softmax(logits, axis=0) * chosen, axis=0)
        mean = loss[0:B, i, 0:T].mean()
        w.next = w - 0.01 * tp.grad(mean, w)
        prog.output("loss", mean)
        prog.output("w", w[I])
    return prog, (B, I, T)


def bounds_of(dims: Any, steps: int) -> dict[Any, int]:
    return dict(zip(dims, (4, 3, steps), strict=True))


@backends
@pytest.mark.parametrize("ahead", [1, 5, None])
@pytest.mark.parametrize("plan", ["smallest", tp.Plan({"t": 4}), {"blocks": {"i": 1, "t": 5}}])
def test_every_plan_gives_the_same_results(plan: Any, ahead: int | None, backend: str) -> None:
    prog, dims = reinforce(ahead)
    expected = prog.evaluate(bounds_of(dims, 13), **WEIGHTS)
    found = prog.compile(bounds_of(dims, 13), backend, plan=plan)(**WEIGHTS)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-4)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-4, atol=1e-6)


def test_learning_from_a_few_steps_is_part_of_acting_and_takes_no_more_memory_for_more_steps() -> None:
    prog, dims = reinforce(8)
    peaks = [prog.compile(bounds_of(dims, n), "numpy", plan="smallest").storage.peak for n in (250, 1000, 4000)]
    assert peaks[2] == peaks[1] == peaks[0]
    whole = [prog.compile(bounds_of(dims, n), "numpy").storage.peak for n in (250, 4000)]
    assert whole[0] > 10 * peaks[0] and whole[1] > 15 * whole[0]


def test_learning_from_all_steps_that_follow_cannot_be() -> None:
    prog, dims = reinforce(None)
    peaks = [prog.compile(bounds_of(dims, n), "numpy", plan="smallest").storage.peak for n in (250, 1000)]
    assert peaks[1] > 3 * peaks[0]


@backends
def test_a_budget_is_kept_with_blocks_as_large_as_it_allows(backend: str) -> None:
    prog, dims = reinforce(5)
    bounds = bounds_of(dims, 300)
    fastest = prog.compile(bounds, backend)
    expected = fastest(**WEIGHTS).w
    sizes = []
    for budget in (fastest.storage.peak // 3, fastest.storage.peak // 12):
        run = prog.compile(bounds, backend, memory=budget)
        assert run.storage.peak <= budget
        if backend == "jax":
            assert sum(run._machine.memory().values()) <= budget
        np.testing.assert_allclose(run(**WEIGHTS).w, expected, rtol=1e-3, atol=1e-5)
        sizes.append(run.plan.blocks["t"])
    assert sizes[0] > sizes[1] > 1


def test_a_budget_that_cannot_be_kept() -> None:
    prog, dims = reinforce(5)
    with pytest.raises(tp.errors.BudgetError) as caught:
        prog.compile(bounds_of(dims, 400), "numpy", memory=100)
    smallest = caught.value.smallest
    assert str(caught.value) == (
        "program 'reinforce' does not fit into 100 bytes: with the smallest blocks and stores in host memory it takes "
        f"{show_bytes(smallest)}\n  hint: give memory={smallest}, or smaller bounds"
    )
    assert prog.compile(bounds_of(dims, 400), "numpy", memory=smallest).storage.peak <= smallest


def test_blocks_get_no_larger_than_all_steps() -> None:
    """Blocks of b fit with stores in host memory however large they are, and no blocks at all do not: the search for
    the largest that fit must still end."""
    with tp.Program("two loops") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        b, B = prog.dim("b")
        w = prog.state("w", 1.0, over=(s, b))
        w.next = w - 0.1 * tp.grad(w, w)
        y = prog.recurrent("y", domain=(t, b), dtype="int32")
        y[t, 0] = 1
        y[t, b] = tp.where(y[t, b - 1] > 0, tp.equal(t, T - 1), tp.equal(t, 1)).astype("int32")
        prog.output("w", w)
        prog.output("y", y)
    bounds = {T: 2, S: 2, B: 2}
    with pytest.raises(tp.errors.BudgetError) as caught:
        prog.compile(bounds, "numpy", memory=1)
    found = prog.compile(bounds, "numpy", memory=caught.value.smallest)()
    np.testing.assert_array_equal(found.y, prog.evaluate(bounds).y)


def test_what_is_said_of_a_budget_is_true_of_what_xla_takes() -> None:
    with tp.Program("chain") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 8, domain=t)
        y = prog.recurrent("y", 8, domain=t)
        y[0] = x[0]
        y[t] = tp.tanh(y[t - 1]) + x[t]
        prog.output("y", y[T - 1])
        prog.output("gradient", tp.grad(y[T - 1].sum(), x))
    with pytest.raises(tp.errors.BudgetError) as caught:
        prog.compile({T: 30}, "numpy", memory=1)
    planned = caught.value.smallest
    with pytest.raises(tp.errors.BudgetError) as caught:
        prog.compile({T: 30}, memory=1)
    smallest = caught.value.smallest
    assert planned < smallest
    assert str(caught.value) == (
        "program 'chain' does not fit into 1 bytes: with the smallest blocks and stores in host memory it takes "
        f"{planned} bytes, and compiled {smallest} bytes\n  hint: give memory={smallest}, or smaller bounds"
    )
    with pytest.raises(tp.errors.BudgetError) as caught:
        prog.compile({T: 30}, memory=planned)
    assert str(caught.value) == (
        f"program 'chain' does not fit into {planned} bytes: compiled, it takes {smallest} bytes\n"
        f"  hint: give memory={smallest}, or smaller bounds"
    )
    run = prog.compile({T: 30}, memory=smallest)
    assert sum(run._machine.memory().values()) <= smallest


@pytest.mark.parametrize("name", ["2d", "all steps", "t - 1", "t"])
def test_blocks_of_dims_with_any_name(name: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim(name)
        x = prog.input("x", 8, domain=t)
        total = prog.recurrent("total", domain=t)
        total[0] = tp.exp(x[0]).sum()
        total[t] = total[t - 1] + tp.exp(x[t]).sum()
        prog.output("last", total[T - 1])
        prog.output("gradient", tp.grad(total[T - 1], x)[0])
    whole = prog.compile({T: 64}, "numpy")
    run = prog.compile({T: 64}, "numpy", memory=whole.storage.peak * 3 // 4)
    assert run.plan.blocks.keys() == {name}
    assert run(x=np.zeros((64, 8))).last == 512


@pytest.mark.parametrize(
    ("gpu", "hint"),
    [
        (True, "or JAX more of the device, of which it takes 0.75: XLA_PYTHON_CLIENT_MEM_FRACTION"),
        (False, "or memory=1212: without it, 0.75 of the machine's memory is the limit"),
    ],
)
def test_more_than_the_device_has(monkeypatch: pytest.MonkeyPatch, gpu: bool, hint: str) -> None:
    """On a GPU a larger budget would not help."""
    monkeypatch.setattr("tempo.runtime.executable.free_memory", lambda *_: 100)
    monkeypatch.setattr("tempo.runtime.executable.on_gpu", lambda *_: gpu)
    prog, dims = reinforce(5)
    with pytest.raises(tp.errors.BudgetError, match="does not fit into 100 bytes") as caught:
        prog.compile(bounds_of(dims, 400))
    assert caught.value.hint == f"give smaller bounds, {hint}"


def test_what_a_machine_has_is_the_limit_on_its_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no host memory beside it. A container has less than the machine."""
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("tempo.runtime.executable.CONTAINER_LIMITS", (str(limit),))
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("most", x[0 : t + 1].max())
    for text, blocks in (("max", {}), ("1000000", {"t": 64})):
        limit.write_text(text)
        run = prog.compile({T: 2000}, device="cpu")
        assert run.plan.blocks == blocks
        assert not run.plan.host
        assert run(x=np.arange(2000)).most.tolist() == list(range(2000))
    limit.write_text("20000")
    with pytest.raises(tp.errors.BudgetError, match=r"does not fit into 14\.6 KiB"):
        prog.compile({T: 2000}, device="cpu")


def features() -> tuple[tp.Program, Any, dict[str, Any]]:
    """A sum over all steps so far of many numbers for each of them."""
    with tp.Program("features") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        w = prog.input("w", shape=64)
        found = tp.tanh(x[0 : t + 1].reshape(t + 1, 1) * w)
        prog.output("y", tp.einsum("kf,k->f", found, x[0 : t + 1]).sum())
    return prog, T, {"x": np.linspace(-1, 1, 512), "w": np.linspace(0, 1, 64)}


@backends
def test_where_one_step_does_not_fit_ranges_are_in_tiles(backend: str, tmp_path: Path) -> None:
    prog, T, data = features()
    whole = prog.compile({T: 512}, backend, plan=tp.Plan({"t": 1}))
    assert whole.storage.peak > 512 * 64 * 4
    run = prog.compile({T: 512}, backend, memory=40_000)
    assert run.storage.peak <= 40_000
    if backend == "jax":
        assert sum(run._machine.memory().values()) <= 40_000
    assert 1 < run.plan.tiles["t"] < 512
    steps = run.plan.tiles["t"]
    assert f"ranges of t: {steps} steps at once (blocks alone do not fit into 39.1 KiB)" in str(run.plan).splitlines()
    expected = prog.compile({T: 512}, backend, plan=tp.Plan({"t": 64}))(**data).y
    np.testing.assert_allclose(run(**data).y, expected, rtol=1e-3, atol=1e-3)
    # The plan is one like any other.
    run.plan.save(tmp_path / "plan.json")
    again = prog.compile({T: 512}, backend, plan=tmp_path / "plan.json")
    assert again.plan == run.plan
    assert f"ranges of t: {steps} steps at once (the plan wants it)" in str(again.plan).splitlines()
    np.testing.assert_array_equal(again(**data).y, run(**data).y)


def test_the_smallest_plan_has_tiles_where_blocks_are_not_the_smallest() -> None:
    prog, T, _ = features()
    smallest = prog.compile({T: 512}, "numpy", plan="smallest")
    assert smallest.plan.tiles
    assert smallest.storage.peak < 512 * 4 * 2 + 2000
    prog, dims = reinforce(8)
    assert not prog.compile(bounds_of(dims, 250), "numpy", plan="smallest").plan.tiles


def test_a_plan_with_tiles_of_its_own_gets_no_others() -> None:
    prog, T, _ = features()
    with pytest.raises(tp.errors.BudgetError):
        prog.compile({T: 512}, "numpy", plan=tp.Plan(tiles={"t": 256}), memory=40_000)
    assert prog.compile({T: 512}, "numpy", plan=tp.Plan(tiles={"t": 64}), memory=40_000).plan.tiles == {"t": 64}
    # What a plan calls a store without a name is called something else in tiles.
    with pytest.raises(tp.errors.BudgetError):
        prog.compile({T: 512}, "numpy", plan=tp.Plan({"t": 1}, host=("tanh#1",)), memory=40_000)


def test_amounts_of_memory() -> None:
    amounts = (1000, "1000", "1KB", "1 KiB", "1.5MiB", "2gb", "8GiB")
    assert [bytes_of(amount) for amount in amounts] == [1000, 1000, 1000, 1024, 3 * 2**19, 2 * 10**9, 2**33]
    for wrong in (0, -1, True, "much", "8 apples", 1.5):
        with pytest.raises(tp.errors.ProgramError, match="not an amount of memory"):
            bytes_of(wrong)  # type: ignore[arg-type]
    assert [show_bytes(size) for size in (5, 2048, 3 * 2**20, 2**33)] == ["5 bytes", "2 KiB", "3 MiB", "8 GiB"]


def ema() -> tuple[tp.Program, Any]:
    with tp.Program("ema") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = 0.9 * y[t - 1] + x[t]
        prog.output("z", tp.exp(y)[0:T].sum())
    return prog, T


def test_a_plan_says_what_was_decided_and_why() -> None:
    prog, T = ema()
    lines = str(prog.compile({T: 8}, "numpy").plan).splitlines()
    assert lines[0] == "everything at once that can be"
    assert any(line.startswith("y,") and "t 1 (" in line and "of another t)" in line for line in lines)
    assert any(line.startswith("exp_") and line.endswith("t all") for line in lines)
    assert "-- plan --\neverything at once" in prog.compile({T: 8}, "numpy").explain()


def test_plans_are_saved_and_loaded(tmp_path: Path) -> None:
    prog, T = ema()
    path = tmp_path / "plan.json"
    plan = prog.compile({T: 8}, "numpy", plan=tp.Plan({"t": 3})).plan
    plan.save(path)
    assert tp.Plan.load(path) == plan == tp.Plan({"t": 3})
    run = prog.compile({T: 8}, "numpy", plan=path)
    assert run.plan == plan
    assert run(x=np.ones(8)).z == pytest.approx(prog.evaluate({T: 8}, x=np.ones(8)).z)


def test_dims_or_their_names() -> None:
    with tp.Program() as prog:
        t, _ = prog.dim("t")
    by_dim = tp.Plan(blocks={t: 3}, buckets={t: [2]}, unroll=(t,), tiles={t: 2})
    assert by_dim == tp.Plan(blocks={"t": 3}, buckets={"t": [2]}, unroll=("t",), tiles={"t": 2})


@pytest.mark.parametrize(
    ("plan", "message", "hint"),
    [
        ("quickest", "plan = 'quickest': there is no such file", "a plan is 'fastest', 'smallest', a tp.Plan, a dict"),
        ({"block": {"t": 2}}, "a plan has no 'block'", "what it may decide: blocks"),
        ({"blocks": {"s": 2}}, "the plan has blocks of s, and program 'ema' has no such dim", "its dims are: t"),
        ({"blocks": {"t": 0}}, "blocks of t = 0: a block is a positive integer", "the number of steps at once"),
        ({"tiles": {"s": 2}}, "the plan has tiles of s, and program 'ema' has no such dim", "its dims are: t"),
        ({"tiles": {"t": 2.0}}, "tiles of t = 2.0: a tile is a positive integer", "the number of steps at once"),
    ],
)
def test_what_is_no_plan(plan: Any, message: str, hint: str) -> None:
    prog, T = ema()
    with pytest.raises(tp.errors.ProgramError) as caught:
        prog.compile({T: 8}, "numpy", plan=plan)
    assert str(caught.value).startswith(f"{message}\n  hint: {hint}")


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    prog, T = ema()
    path = tmp_path / "notes.txt"
    path.write_text("not JSON")
    with pytest.raises(tp.errors.ProgramError, match="is not a plan"):
        prog.compile({T: 8}, "numpy", plan=path)


@pytest.mark.parametrize(("memory", "looks"), [(10**12, False), (10**5, True)])
def test_what_xla_takes_is_looked_at_where_stores_come_near_the_devices_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, looks: bool
) -> None:
    """Without a promise, too: there is no more than that. (Of a program in parts, which are compiled as they run.)"""
    asked = []
    monkeypatch.setattr("tempo.runtime.executable.free_memory", lambda *_: memory)
    monkeypatch.setattr("tempo.backends.jax.machine.JaxMachine.taken", lambda *_: asked.append(True) or 0)
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 100, domain=t)
        prog.emit("y", tp.sin(x))
    prog.compile({T: 100})
    assert bool(asked) == looks


@pytest.mark.parametrize("name", ["recompute", "roll"])
def test_plans_say_yes_or_no(name: str) -> None:
    with pytest.raises(tp.errors.ProgramError, match="neither True nor False"):
        tp.Plan.of({name: "yes"})
