"""The most memory that a plan takes at the same time: lifetimes of stores, what is fused, and what XLA says."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.looptree import Loop, computes

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


def test_what_is_computed_element_by_element_is_written_over_its_operand() -> None:
    """The product and its exponential are the same memory: two readers, so that the exponential is stored."""
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        y = tp.exp(x @ x)
        prog.output("y", tp.sum(y))
        prog.output("z", tp.max(y))
    assert peak(prog, {}) == 400 + 4 + 4 + 400


def test_an_operand_that_is_read_in_another_order_is_not_written_over() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        product = x @ x
        y = tp.exp(product + tp.transpose(product))
        prog.output("y", tp.sum(y))
        prog.output("z", tp.max(y))
    assert peak(prog, {}) == 400 + 4 + 4 + 400 + 400


def test_what_an_output_is_written_over_is_in_its_memory() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        prog.output("y", tp.exp(x @ x))
    assert peak(prog, {}) == 400 + 400


def test_of_an_input_with_more_steps_than_are_needed_a_part_is_copied() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (10, 10), t)
        y = prog.recurrent("y", (10, 10), t)
        y[0] = 0.0
        y[t] = y[t - 1] @ x[t - 1]
        prog.output("y", y)
    found = prog.compile({T: 10}, backend="numpy")
    (stored,) = (store.bytes for node, store in found.storage.stores.items() if node.name == "x")
    assert stored == 3600
    assert found.storage.peak >= 4000 + 3600 + 4000


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


@pytest.mark.parametrize("name", cases())
def test_within_a_fifth_of_what_xla_says(name: str) -> None:
    """At the small sizes of the micro benchmarks, on a CPU; benchmarks/micro.py reports both for the large ones. There
    is a little room for the padding between small values."""
    pair = cases()[name](True)
    run = pair.prog.compile(pair.bounds, device="cpu")
    assert run.storage.peak == pytest.approx(sum(run._machine.memory().values()), rel=0.2, abs=1024)


# -- what a GPU does otherwise, as seen on one -------------------------------------------------------------------------


def peak_on_gpu(prog: tp.Program, bounds: dict[Any, int]) -> int:
    return Executable(prog.graph, bounds, "numpy", parallel=True).storage.peak


WORKSPACE = 32 * 2**20


def test_a_product_of_matrices_has_a_workspace() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        prog.output("y", -x @ x)
    assert peak_on_gpu(prog, {}) == 400 + 400 + 400 + WORKSPACE


def test_a_product_with_a_vector_has_none() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        v = prog.input("v", (10,))
        prog.output("y", x @ v)
    assert peak_on_gpu(prog, {}) == 400 + 40 + 40


def test_a_scan_stores_its_rounds_from_the_second_on() -> None:
    """x and y, half of that, and the two factors; nothing of what is scanned, which is chosen from two cases."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 10, t)
        y = prog.recurrent("y", 10, t)
        y[0] = x[0]
        y[t] = 0.9 * y[t - 1] + 0.1 * x[t]
        prog.output("y", y)
    assert peak_on_gpu(prog, {T: 100}) == 4000 + 4000 + 2000 + 2 * 4


def test_queries_of_the_same_keys_have_all_scores_in_memory() -> None:
    pair = cases()["attention"](True)
    inputs = sum(array.nbytes for array in pair.inputs.values())
    steps, size = next(iter(pair.inputs.values())).shape
    assert peak_on_gpu(pair.prog, dict(pair.bounds)) == inputs + 4 * steps * size + 4 * steps**2 + WORKSPACE


@pytest.mark.parametrize(
    ("dtype", "window", "steps", "beside"),
    [
        (tp.float32, None, 600, 4 * 600 * 600 + WORKSPACE),
        (tp.bfloat16, None, 600, 600 * 600 + WORKSPACE),  # a kernel, to which it is said what is seen
        (tp.bfloat16, 100, 600, 600 * 600 + WORKSPACE),
        (tp.bfloat16, None, 500, 4 * 500 * 500 + WORKSPACE),
        (tp.float32, 4, 40, 4 * 40 * 40 + WORKSPACE),
        (tp.float32, 4, 80, 80 * 4 * 2 * 64 + WORKSPACE),  # a copy of every window
    ],
)
def test_attention_of_many_steps(dtype: Any, window: int | None, steps: int, beside: int) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 16, t, dtype)
        seen = x[0 : t + 1] if window is None else x[tp.max(0, t - window + 1) : t + 1]
        prog.output("y", tp.softmax(seen @ x) @ seen)
    # As in a program in which steps wait for others.
    run = Executable(prog.graph, {T: steps}, backend="numpy", parallel=True, skip=("fuse attention to past",))
    assert run.storage.peak == 2 * steps * 16 * dtype.itemsize + beside


def test_attention_of_few_steps_in_many_sequences() -> None:
    """That is no kernel for many steps, however many sequences there are."""
    with tp.Program() as prog:
        b, B = prog.dim("b")
        s, S = prog.dim("s")
        t, T = prog.dim("t")
        x = prog.input("x", 16, (b, s), tp.bfloat16)
        q = prog.input("q", 16, (b, t), tp.bfloat16)
        prog.output("y", tp.softmax(x[b, 0:S] @ q) @ x[b, 0:S])
    bounds = {B: 200, S: 600, T: 4}
    assert peak_on_gpu(prog, bounds) == 200 * 16 * 2 * (600 + 4 + 4) + 4 * 200 * 4 * 600 + WORKSPACE


def test_stores_that_loops_fill_are_made_when_the_loops_begin() -> None:
    """Of the two loops, what the first has filled makes room for what the second fills: only a CPU has both."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (10,), t)
        y, z = prog.recurrent("y", (10,), t), prog.recurrent("z", (10,), t)
        y[0] = x[0]
        y[t] = tp.tanh(y[t - 1] + x)
        z[T - 1] = tp.sum(y[0:T], axis=0)
        z[t] = tp.tanh(z[t + 1])
        prog.output("s", tp.sum(z[0:T]))
    assert peak(prog, {T: 100}) - peak_on_gpu(prog, {T: 100}) == 4000


def test_a_gpus_library_may_or_may_not_take_room() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (8, 8))
        prog.output("y", x @ tp.tanh(x))
        prog.output("z", tp.sum(x))
    here, there = (Executable(prog.graph, {}, backend="numpy", parallel=parallel).storage for parallel in (False, True))
    assert here.library == 0
    assert (there.peak, there.library) == (here.peak + WORKSPACE, WORKSPACE)
    assert str(there).endswith("bytes (33,554,432 fewer if XLA multiplies without its library)")


# -- from statement to statement ---------------------------------------------------------------------------------------


def test_what_is_taken_while_each_statement_runs() -> None:
    """x and the sum all the time; a product while the next one is computed."""
    with tp.Program() as prog:
        x = prog.input("x", (10, 10))
        y = x
        for _ in range(3):
            y = y @ x
        prog.output("y", tp.sum(y))
    run = prog.compile({}, backend="numpy")
    assert run.loop_tree().count("\n") == 4  # the input, three products, the sum
    assert run.storage.over_time() == [404, 404 + 400, 404 + 800, 404 + 800, 404 + 400]


def test_the_most_that_is_taken_is_the_peak() -> None:
    pair = cases()["lstm_train"](True)
    run = pair.prog.compile(pair.bounds, backend="numpy")
    assert len(run.storage.over_time()) == len([*computes(run.schedule.trees)])
    assert max(run.storage.over_time()) == run.storage.peak


def test_what_is_taken_without_what_is_on_the_host() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (100,), domain=t)
        h = prog.recurrent("h", (100,), domain=t)
        h[0] = x[0]
        h[t] = tp.tanh(h[t - 1] + x[t])
        prog.output("g", tp.grad(tp.sum(h[T - 1]), x))
    runs = [prog.compile({T: 64}, "numpy", plan=tp.Plan({"t": 8}, host=host)) for host in ((), ("*",))]
    taken = [max(run.storage.over_time()) for run in runs]
    assert taken == [run.storage.peak for run in runs]
    assert taken[1] < taken[0]


def test_a_program_without_statements_takes_its_outputs() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("nothing", x[T:T])
    run = prog.compile({T: 3}, backend="numpy")
    assert run.storage.over_time() == [run.storage.peak]


def test_stores_that_grow_from_piece_to_piece() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (100,), domain=t)
        y = prog.recurrent("y", (100,), domain=t)
        y[0] = x[0]
        y[t] = tp.tanh(tp.mean(y[0:t], 0)) + x
        prog.output("last", y[T - 1])
    plan = tp.Plan(buckets={"t": [8, 16]})
    run = prog.compile({T: 32}, plan=plan, device="cpu")
    steps = [loop.stop for loop in run.schedule.trees if isinstance(loop, Loop)]
    assert steps == [1, 8, 16, 32]
    sizes, at = [], 0
    for tree in run.schedule.trees:
        count = len([*computes((tree,))])
        if isinstance(tree, Loop):
            sizes.append(run.storage.over_time()[at])
        at += count
    # From piece to piece so many more steps of y.
    assert [b - a for a, b in itertools.pairwise(sizes[1:])] == [8 * 400, 16 * 400]
    assert max(run.storage.over_time()) == run.storage.peak
    # In NumPy they are as large as they get.
    alike = prog.compile({T: 32}, "numpy", plan=plan).storage
    assert min(alike.over_time()) > min(run.storage.over_time())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sum", "max", "mean"])
def test_ranges_that_are_masked_are_put_together_first(name: str, dtype: str) -> None:
    """On a CPU, where XLA says the same."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype=dtype)
        prog.output("y", getattr(tp, name)(x[0 : t + 1]))
    run = prog.compile({T: 200}, device="cpu")
    assert run.storage.peak == pytest.approx(sum(run._machine.memory().values()), rel=0.05)
    assert run.storage.peak > 200 * 200 * 4
