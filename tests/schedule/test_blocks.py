"""Plans with blocks: what is computed block by block, in which loops, from which stores, and that the numbers stay."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.plan import Plan
from tests.schedule.common import outline, renumbered, text

Built = tuple[tp.Program, Any, dict[str, Any]]


def blocked(prog: tp.Program, bounds: dict[Any, int], size: int, backend: str = "numpy", **inputs: Any) -> Executable:
    """The program in blocks of t, after a look at whether it computes and emits what the oracle does."""
    run = Executable(prog.graph, bounds, backend, plan=Plan({"t": size}))
    found, expected = run(**inputs), prog.evaluate(bounds, **inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, err_msg=name)
    for name, records in expected.emits.items():
        values = {record.point["t"]: record.value for record in found.emits[name]}
        assert sorted(values) == [record.point["t"] for record in records]
        for record in records:
            np.testing.assert_allclose(values[record.point["t"]], record.value, rtol=1e-5, err_msg=name)
    return run


def stores(run: Executable) -> dict[str, str]:
    """How much is kept of each tensor that has dims, by operation or name."""
    kept = {}
    for node, store in run.storage.stores.items():
        if store.dims:
            kept[node.name or node.op.name] = ", ".join(map(str, store.dims.values()))
    return kept


def lines(expected: str) -> str:
    """The lines of an indented string."""
    rows = expected.strip("\n").rstrip().splitlines()
    margin = len(rows[0]) - len(rows[0].lstrip())
    return "\n".join(row[margin:] for row in rows)


def test_a_chain_in_blocks_with_a_remainder() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("y", tp.square(x) + 1)
    run = blocked(prog, {T: 10}, 4, x=np.arange(10))
    assert run(x=np.arange(10)).y.tolist() == [1, 2, 5, 10, 17, 26, 37, 50, 65, 82]
    assert text(run.schedule.trees) == lines("""
        x = input()
        constant_1 = constant()
        for t in 0 .. 7, 4 at once:
            multiply_1 = multiply(x, x)
            add_1 = add(multiply_1, constant_1)
        for t in 8 .. 9, all at once:
            multiply_1 = multiply(x, x)
            add_1 = add(multiply_1, constant_1)
    """)
    assert stores(run) == {"x": "10 steps", "multiply": "block of 4", "add": "10 steps"}


def test_a_block_that_looks_back_keeps_the_one_before() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        squared = tp.square(x)
        prog.output("y", squared - squared[tp.max(t - 1, 0)])
    run = blocked(prog, {T: 7}, 3, x=np.arange(7))
    assert run(x=np.arange(7)).y.tolist() == [0, 1, 3, 5, 7, 9, 11]
    assert stores(run) == {"x": "7 steps", "multiply": "window of 6", "subtract": "7 steps"}


def test_reductions_are_put_together_block_by_block() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=t)
        squared, more = x * x, x + 1
        prog.output("total", tp.sum(squared[0:T], axis=0))
        prog.output("products", tp.einsum("ti,tj->ij", squared[0:T], more[0:T]))
    data = np.arange(10).reshape(5, 2)
    run = blocked(prog, {T: 5}, 2, x=data)
    assert run(x=data).total.tolist() == [120, 165]
    assert run(x=data).products.tolist() == [[920, 1040], [1225, 1390]]
    assert text(run.schedule.trees) == lines("""
        x = input()
        constant_1 = constant()
        for t in 0 .. 3, 2 at once:
            multiply_1 = multiply(x, x)
            add_1 = add(x, constant_1)
            sum_1 = sum(multiply_1[0:T]) (block by block)
            einsum_1 = einsum(multiply_1[0:T], add_1[0:T]) (block by block)
        for t in 4 .. 4, all at once:
            multiply_1 = multiply(x, x)
            add_1 = add(x, constant_1)
            sum_1 = sum(multiply_1[0:T]) (block by block)
            einsum_1 = einsum(multiply_1[0:T], add_1[0:T]) (block by block)
    """)
    assert stores(run) == {"x": "5 steps", "multiply": "block of 2", "add": "block of 2"}


def test_a_sum_over_two_dims_is_folded_over_one_of_them() -> None:
    """Blocks of the other dim are inside: their shares are not there when the next block of the first one begins."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=(t, s), dtype="float64")
        prog.output("total", tp.sum((x * x)[0:T, 0:S]))
    data = np.arange(12.0).reshape(4, 3)
    for backend in ("numpy", "jax"):
        for blocks in ({"t": 1, "s": 1}, {"t": 3, "s": 2}, {"t": 2, "s": 1}):
            run = Executable(prog.graph, {T: 4, S: 3}, backend, plan=Plan(blocks))
            assert run(x=data).total == 506


def test_a_fold_in_every_piece_of_a_loop() -> None:
    """Two blocks of t and one step that is left: in both pieces, the sums over s are put together from its steps."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=(t, s))
        prog.output("rows", tp.sum((x * x)[t, 0:S]))
    data = np.arange(15).reshape(5, 3)
    for backend in ("numpy", "jax"):
        run = Executable(prog.graph, {T: 5, S: 3}, backend, plan=Plan({"t": 2, "s": 1}))
        assert run(x=data).rows.tolist() == [5, 50, 149, 302, 509]
        assert outline(run.schedule.trees, "sum") == lines("""
            for t in 0 .. 3, 2 at once:
                for s in 0 .. 2:
                    sum_1 = sum(multiply_1[t, 0:S]) (block by block)
            for t in 4 .. 4, all at once:
                for s in 0 .. 2:
                    sum_1 = sum(multiply_1[t, 0:S]) (block by block)
        """)


def test_a_short_block_in_a_store_for_long_ones() -> None:
    """Of y, a block of t is kept with all steps of s: the last block has one step where there is room for two."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=(t, s))
        prog.output("y", (x * x)[t, S - 1 - s] + x)
    data = np.arange(9).reshape(3, 3)
    for backend in ("numpy", "jax"):
        run = Executable(prog.graph, {T: 3, S: 3}, backend, plan=Plan({"t": 2, "s": 1}))
        assert run(x=data).y.tolist() == [[4, 2, 2], [28, 20, 14], [70, 56, 44]]
        assert stores(run)["multiply"] == "block of 2, 3 steps"


def returns(future: Callable[[Any, Any], Any]) -> tuple[tp.Program, Any]:
    """An acting loop, and a loss on what is returned in the future of each step."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        state = prog.recurrent("state", domain=t)
        state[0] = 1.0
        state[t] = 0.5 * state[t - 1] + 1
        reward = tp.square(state)
        prog.output("loss", tp.sum(tp.square(tp.sum(reward[t : future(t, T)]) - state)[0:T]))
    return prog, T


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("unroll", [(), ("s",)])
def test_a_fold_in_a_short_block_of_another_dim(unroll: tuple[str, ...], backend: str) -> None:
    """The loop over u hands on what it has of the sums: one for every step of t, of which the last block has one."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        u, U = prog.dim("u")
        s, S = prog.dim("s")
        x = prog.input("x", domain=t)
        y = prog.input("y", domain=(u, s))
        sums = tp.sum(tp.tanh(x * y)[t, 0:U, s])
        prog.output("all", tp.sum(tp.square(sums)[0:T, 0:S]))
    bounds, inputs = {T: 4, U: 4, S: 2}, {"x": np.arange(4), "y": np.linspace(0, 1, 8).reshape(4, 2)}
    run = Executable(prog.graph, bounds, backend, plan=Plan({"t": 3, "u": 2}, unroll=unroll))
    sums_of = [node for node, folds in run.schedule.folds.items() if u in folds]
    assert [str(run.storage.stores[node].dims[t]) for node in sums_of] == ["block of 3"]
    np.testing.assert_allclose(run(**inputs).all, prog.evaluate(bounds, **inputs).all, rtol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("is_output", [False, True])
def test_a_fold_goes_on_after_a_single_block(is_output: bool, backend: str) -> None:
    """The first block of u is a piece of its own, because only there the second sum is folded. What it has put into
    the store of the first is not what the other blocks leave there."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        u, U = prog.dim("u")
        x = prog.input("x", domain=t)
        y = prog.input("y", domain=u)
        products = tp.tanh(x * y)
        total = tp.sum(products[t, 0:U])
        prog.output("all", tp.sum((total * tp.sum(tp.exp(products)[t, 0:2]))[0:T]))
        if is_output:
            prog.output("total", total)
    bounds, inputs = {T: 4, U: 6}, {"x": np.arange(4), "y": np.linspace(0, 1, 6)}
    run = Executable(prog.graph, bounds, backend, plan=Plan({"t": 2, "u": 2}))
    assert outline(run.schedule.trees).count("for u in 0 .. 1, all at once") == 1
    expected = prog.evaluate(bounds, **inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(run(**inputs)[name], array, rtol=1e-5)


def test_n_step_returns_are_learned_from_in_the_acting_loop() -> None:
    """A return over three steps is known two steps later: it is computed a whole block later."""
    prog, T = returns(lambda t, T: tp.min(t + 3, T))
    run = blocked(prog, {T: 12}, 4)
    assert round(float(run().loss), 3) == 867.007
    assert outline(run.schedule.trees, "state", "sum", "subtract", "multiply") == lines("""
        for t in 0 .. 3, all at once:
            for t in the block:
                multiply_1 = multiply(constant_1, state[t - 1])
                state = recurrent() (case 1, 2)
            multiply_2 = multiply(state, state)
        for t in 4 .. 11, 4 at once:
            for t in the block:
                multiply_1 = multiply(constant_1, state[t - 1])
                state = recurrent() (case 2)
            multiply_2 = multiply(state, state)
            sum_1 = sum(multiply_2[t:min(T, t + 3)])
            subtract_1 = subtract(sum_1, state)
            multiply_3 = multiply(subtract_1, subtract_1)
            sum_2 = sum(multiply_3[0:T]) (block by block)
        for t in 12 .. 15, all at once:
            sum_1 = sum(multiply_2[t:min(T, t + 3)])
            subtract_1 = subtract(sum_1, state)
            multiply_3 = multiply(subtract_1, subtract_1)
            sum_2 = sum(multiply_3[0:T]) (block by block)
    """)


def test_what_n_step_returns_need_does_not_grow_with_time() -> None:
    prog, T = returns(lambda t, T: tp.min(t + 3, T))
    short, long = blocked(prog, {T: 24}, 4), blocked(prog, {T: 96}, 4)
    assert stores(short)["state"] == "window of 8"
    assert renumbered(str(short.storage)) == renumbered(str(long.storage))


def test_returns_until_the_end_wait_for_it() -> None:
    """The first return needs the last reward: all of them come after the acting loop."""
    prog, T = returns(lambda t, T: T)
    run = blocked(prog, {T: 8}, 4)
    assert outline(run.schedule.trees, "state", "sum") == lines("""
        for t in 0 .. 7, 4 at once:
            for t in the block:
                state = recurrent() (case 1, 2)
        for t in 0 .. 7, 4 at once:
            sum_1 = sum(multiply_1[t:T])
            sum_2 = sum(multiply_2[0:T]) (block by block)
    """)
    assert stores(run)["state"] == "8 steps"


def test_a_loop_that_runs_backwards_is_in_blocks_from_the_last_to_the_first() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        reward = tp.square(x)
        future = prog.recurrent("future", domain=t)
        future[T - 1] = reward[T - 1]
        future[t] = reward + 0.5 * future[t + 1]
        prog.output("y", future - x)
    run = blocked(prog, {T: 6}, 4, x=[0, 2, 0, 2, 0, 4])
    assert run(x=[0, 2, 0, 2, 0, 4]).y.tolist() == [3, 4, 4, 6, 8, 12]
    assert outline(run.schedule.trees, "multiply", "future", "subtract") == lines("""
        for t in 5 .. 4, backwards, all at once:
            for t in the block:
                multiply_1 = multiply(x, x)
                multiply_2 = multiply(constant_1, future[t + 1])
                future = recurrent() (case 1, 2)
            subtract_1 = subtract(future, x)
        for t in 3 .. 0, backwards, all at once:
            for t in the block:
                multiply_1 = multiply(x, x)
                multiply_2 = multiply(constant_1, future[t + 1])
                future = recurrent() (case 2)
            subtract_1 = subtract(future, x)
    """)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("size", range(1, 7))
def test_host_calls_and_emits_in_blocks(size: int, backend: str) -> None:
    """Calls are made step by step and in order; what is emitted comes once for every step."""
    called: list[int] = []

    def environment(step: Any, action: Any) -> Any:
        called.append(int(step))
        return np.float32(action + 1)

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        reward = tp.host(environment, t.value, 2 * x, out=tp.spec((), "float32"), sequence=t)
        prog.emit("double", 2 * reward)
        prog.output("total", tp.sum(reward[0:T]))
    blocked(prog, {T: 5}, size, backend, x=np.arange(5))
    assert called == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]  # by the executable, then by the oracle


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_call_for_a_whole_batch_is_made_once(backend: str) -> None:
    called: list[list[int]] = []

    def batch(steps: Any) -> Any:
        called.append(steps.tolist())
        return steps.astype(np.float32)

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        h = tp.host(batch, t.value, out=tp.spec((), "float32"), batch=t)
        y[0] = h[0]
        y[t] = y[t - 1] + h * x
        prog.output("y", y)
    for size in (1, 2, 5):
        called.clear()
        blocked(prog, {T: 5}, size, backend, x=np.ones(5))
        assert called == [[0, 1, 2, 3, 4]] * 2


def a_chain() -> Built:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        y = tp.tanh(x) * x[tp.min(t + 1, T - 1)] + tp.square(x)[tp.max(t - 2, 0)]
        prog.output("y", y)
        prog.output("dx", tp.grad(tp.sum(y[0:T]), x))
    return prog, T, {"x": np.linspace(-1, 1, 5)}


def a_recurrent_network() -> Built:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=t, dtype="float64")
        W = prog.input("W", shape=(2, 2), dtype="float64")
        h = prog.recurrent("h", shape=(2,), domain=t, dtype="float64")
        h[-1] = 0.0
        h[t] = tp.tanh(W @ h[t - 1] + x)
        loss = tp.sum(tp.square(h - x)[0:T])
        prog.output("loss", loss)
        prog.output("dW", tp.grad(loss, W))
        prog.output("dx", tp.grad(loss, x))
    return prog, T, {"x": np.linspace(-1, 1, 10).reshape(5, 2), "W": np.array([[0.5, -0.2], [0.1, 0.3]])}


def some_returns() -> Built:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        w = prog.input("w", dtype="float64")
        state = prog.recurrent("state", domain=t, dtype="float64")
        state[0] = w
        state[t] = tp.sin(state[t - 1]) + w
        reward = tp.square(state)
        nearby, all_of_them = tp.sum(reward[t : tp.min(t + 3, T)]), tp.sum(reward[t:T])
        loss = tp.sum((nearby * state)[0:T]) + tp.sum(tp.tanh(all_of_them)[0:T])
        prog.output("loss", loss)
        prog.output("dw", tp.grad(loss, w))
    return prog, T, {"w": 0.3}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("program", [a_chain, a_recurrent_network, some_returns])
def test_every_size_of_a_block_gives_the_same(program: Callable[[], Built], backend: str) -> None:
    """Values and gradients, for blocks of one step up to one of more steps than there are."""
    prog, T, inputs = program()
    for size in range(1, 7):
        blocked(prog, {T: 5}, size, backend, **inputs)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_loop_in_blocks_of_one_is_not_cut_for_what_its_last_step_needs_not(backend: str) -> None:
    """What leads to the next step is not needed at the last one; that is not worth another copy of the loop."""
    with tp.Program("acting") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        y = x
        for _ in range(6):
            y = tp.tanh(y) + 0.1
        x[0] = 0.0
        x[t > 0] = (y * tp.exp(tp.random.normal((), t)))[t - 1]
        prog.output("y", y)
        prog.emit("z", y + x)
    run = blocked(prog, {T: 9}, 1, backend)
    loops = run.loop_tree().splitlines()
    assert [line for line in loops if line.startswith(("for", "at"))] == ["for t in 0 .. 8:"]
