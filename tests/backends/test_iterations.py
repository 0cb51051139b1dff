"""Loops of which several iterations are made one, as on a GPU: what they write together."""

import re
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax.small_loops import KERNEL
from tempo.runtime.executable import Executable
from tempo.schedule.looptree import Loop


def parallel(prog: tp.Program, bounds: dict[Any, int], plan: tp.Plan | None = None) -> Executable:
    return Executable(prog.graph, bounds, parallel=True, plan=plan)


def same(prog: tp.Program, bounds: dict[Any, int], run: Executable, **inputs: Any) -> None:
    expected, found = prog.evaluate(bounds, **inputs), run(**inputs)
    for name in prog.graph.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


def text(run: Executable) -> str:
    """The program that XLA is given."""
    machine = run._machine
    with machine.settings():
        lowered = jax.jit(machine.lowering).lower(machine.inputs)
    return str(lowered.as_text())


@pytest.mark.parametrize("steps", [2, 3, 31, 64, 67])
@pytest.mark.parametrize("backwards", [False, True])
def test_all_steps_with_and_without_a_remainder(steps: int, backwards: bool) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (3,), domain=(t,))
        h = prog.recurrent("h", (3,), domain=(t,))
        if backwards:
            h[T] = tp.ones((3,))
            h[t] = tp.tanh(h[t + 1] * 0.9 + x)
        else:
            h[-1] = tp.ones((3,))
            h[t] = tp.tanh(h[t - 1] * 0.9 + x)
        prog.output("h", h[0:T])
        prog.output("twice", 2 * h)
    same(prog, {T: steps}, parallel(prog, {T: steps}), x=np.linspace(-1, 1, 3 * steps).reshape(steps, 3))


def test_what_no_iteration_reads_is_written_once_for_several() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (3,), domain=(t,))
        h = prog.state("h", np.ones(3), over=t)
        h.next = tp.tanh(h * 0.9 + x)
        prog.output("h", h)
    run = parallel(prog, {T: 128})
    same(prog, {T: 128}, run, x=np.ones((128, 3)))
    (loop,) = [tree for tree in run.schedule.trees if isinstance(tree, Loop) and len(tree.steps) > 1]
    assert run._machine.lowering.iterated.unrolled(loop, run.storage.stores) >= 16
    # In the loop, and for what comes after it.
    assert text(run).count("stablehlo.dynamic_update_slice") <= 4


def test_what_an_iteration_looks_for_far_back_is_written_at_once() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        h = prog.recurrent("h", domain=(t,))
        h[0] = 1
        h[t] = 0.5 * h[t - 1] + 0.1 * h[tp.max(t - 7, 0)] + tp.sum(h[0:t]) * 0.01
        prog.output("h", h[0:T])
    same(prog, {T: 40}, parallel(prog, {T: 40}))


def test_a_loop_in_a_loop() -> None:
    """A state that goes on where the inner loop of the iteration before has ended."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", (2,), domain=(i, t))
        start = prog.state("start", np.ones(2), over=i)
        h = prog.recurrent("h", (2,), domain=(i, t))
        after = tp.tanh(0.9 * h + x)
        start.next = after[i, T - 1]
        h[i, 0] = start
        h[i, t] = after[i, t - 1]
        prog.output("last", start[I])
        prog.emit("mean", tp.mean(h[i, 0:T]))
    bounds = {I: 3, T: 24}
    x = np.linspace(-1, 1, 3 * 24 * 2).reshape(3, 24, 2)
    for run in (parallel(prog, bounds), prog.compile(bounds), prog.compile(bounds, backend="numpy")):
        same(prog, bounds, run, x=x)
        (store,) = [store for node, store in run.storage.stores.items() if node.op.name == "tanh"]
        assert max(store.shape) < 24  # only the last steps of each iteration


def test_numbers_are_part_of_the_loop_that_reads_them() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        h = prog.state("h", np.ones(3), over=t)
        h.next = tp.tanh(h / 3.0) + tp.full((3,), 0.25)
        prog.output("h", h[T - 1])
    program = text(parallel(prog, {T: 50}))
    (carried,) = [line for line in program.splitlines() if "stablehlo.while(" in line]
    assert "tensor<3xf32>" in carried and "tensor<f32>" not in carried


def test_the_same_number_in_programs_that_run_in_parts() -> None:
    """Numbers that are computed with before and in a loop that emits; saved and loaded like all other values."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        scale = tp.constant(3.0)
        h = prog.state("h", tp.full((3,), 2.0) * scale, over=t)
        h.next = h / scale
        prog.emit("h", h)
        prog.output("last", h[T - 1])
    run = parallel(prog, {T: 5})
    assert [float(record.value[0]) for record in run().emits["h"]] == pytest.approx([6 / 3**n for n in range(5)])


def test_blocks_that_are_made_one() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (3,), domain=(t,))
        h = prog.state("h", np.ones(3), over=t)
        h.next = tp.tanh(h * 0.9 + x)
        prog.output("mean", tp.mean(tp.exp(h[0:T]) * x[0:T]))
        prog.output("g", tp.grad(tp.mean(tp.exp(h[0:T]) * x[0:T]), x))
    plan = tp.Plan({"t": 2})
    same(prog, {T: 12}, parallel(prog, {T: 12}, plan), x=np.linspace(-1, 1, 36).reshape(12, 3))


def test_iterations_that_take_long_are_not_made_one() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        h = prog.state("h", tp.zeros((4096, 4096)), over=t)
        h.next = tp.tanh(h * 0.9)
        prog.output("h", h[T])
    run = parallel(prog, {T: 128})
    (loop,) = [tree for tree in run.schedule.trees if isinstance(tree, Loop) and len(tree.steps) > 1]
    assert run._machine.lowering.iterated.unrolled(loop, run.storage.stores) < 4


def test_keys_of_random_numbers_are_arrays_of_their_own() -> None:
    """Newer versions of XLA do not come back from rows whose keys are computed element by element."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        prog.output("drawn", tp.random.bits(domain=(t, s)))
    # The operation's number, t and s.
    assert text(parallel(prog, {T: 2, S: 4})).count("stablehlo.optimization_barrier") == 3


def test_borders_of_a_wavefront_are_computed_and_no_arrays_in_memory() -> None:
    """Which case applies, and the numbers of steps, came from arrays: six of them for every iteration made one with
    others, 190 for an edit distance."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        a, b = prog.input("a", domain=i, dtype=tp.int32), prog.input("b", domain=j, dtype=tp.int32)
        D = prog.recurrent("D", domain=(i, j), dtype=tp.int32)
        D[0, j] = j.value
        D[i, 0] = tp.index_value(2 * i)
        D[i, j] = tp.minimum(D[i - 1, j - 1] + tp.where(a == b, 0, 1), tp.minimum(D[i, j - 1], D[i - 1, j]) + 1)
        prog.output("distance", D[I - 1, J - 1])
    run = parallel(prog, {I: 20, J: 30})
    same(prog, {I: 20, J: 30}, run, a=np.arange(20) % 3, b=np.arange(30) % 4)
    known = [line for line in text(run).splitlines() if "stablehlo.constant" in line]
    assert known and not any("tensor<20x" in line for line in known)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_piece_leaves_what_the_next_one_looks_further_back_for(backwards: bool, on_gpu: bool) -> None:
    """The first piece looks one step back and handed on one step: the second found an old one two steps back."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        h = prog.recurrent("h", domain=t)
        if backwards:
            h[T - 1] = 1.0
            h[t > T - 7] = 0.9 * h[t + 1] + 1
            h[t] = 0.5 * h[t + 1] + 0.4 * h[t + 2]
            prog.output("last", h[0])
        else:
            h[0] = 1.0
            h[t < 6] = 0.9 * h[t - 1] + 1
            h[t] = 0.5 * h[t - 1] + 0.4 * h[t - 2]
            prog.output("last", h[T - 1])
    same(prog, {T: 9}, Executable(prog.graph, {T: 9}, parallel=on_gpu))


def test_the_corner_of_a_wavefront() -> None:
    """Its first two diagonals, which are given, read nothing; the third reads both."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        D = prog.recurrent("D", domain=(i, j))
        D[0, 0] = 1.0
        D[0, j] = D[0, j - 1] + 1
        D[i, 0] = D[i - 1, 0] + 2
        D[i, j] = D[i - 1, j - 1] + 0.5 * D[i - 1, j] + 0.25 * D[i, j - 1]
        prog.output("corner", D[I - 1, J - 1])
    same(prog, {I: 4, J: 5}, prog.compile({I: 4, J: 5}))


def test_a_clamped_step_before_is_handed_on() -> None:
    """``h[max(t - 1, 0)]`` is the step before wherever a loop is that begins behind the first one. It was read in a
    store, which XLA copied in every iteration."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, X = prog.dim("x")
        h = prog.recurrent("h", domain=(t, x))
        h[0, x] = 0.0
        h[t, x] = 0.5 * h[t - 1, tp.max(x - 1, 0)] + 1
        prog.stop(t, when=tp.max(tp.abs(h - h[tp.max(t - 1, 0), x])[t, 0:X]) > 2)
        prog.output("h", h[T - 1])
    run = prog.compile({T: 9, X: 4})
    same(prog, {T: 9, X: 4}, run)
    (carried,) = [line for line in text(run).splitlines() if "stablehlo.while(" in line]
    assert "tensor<4xf32>" in carried and "tensor<2x4xf32>" not in carried


def in_loops(run: Executable) -> str:
    """What XLA makes of what is in loops: before functions for a whole loop, in which it may copy zeros once."""
    assert run._whole is not None
    return re.split(rf"^(?:ENTRY|%{KERNEL})", run._whole.compiled.as_text(), flags=re.MULTILINE)[0]


@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_read_far_back_does_not_make_a_copy_of_its_store(backwards: bool) -> None:
    """XLA copied all steps at every step, as one of them might be read after another one was written."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (3,), domain=t)
        h = prog.recurrent("h", (3,), domain=t)
        if backwards:
            h[t >= T - 12] = x
            error = x - h[t + 12]
        else:
            h[t < 12] = x
            error = x - h[t - 12]
        h[t] = 0.3 * tp.tanh(error) + 0.5 * (x - error)
        prog.output("h", h)
        prog.output("error", error[0 : T - 12] if backwards else error[12:T])
    run = prog.compile({T: 50})
    same(prog, {T: 50}, run, x=np.linspace(-1, 1, 150).reshape(50, 3))
    assert not re.findall(r"f32\[\d\d,3\]\S* copy\(", in_loops(run))


@pytest.mark.parametrize("kept", ["all", "two"])
def test_what_the_iteration_before_has_does_not_make_a_copy_of_a_store(kept: str) -> None:
    """Where a loop within an iteration reads the step of the one before and then writes its own, all iterations' steps
    were copied at every step, as in iLQR: 128 ms, not 1.7, for 50 iterations of 500 steps."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        first = prog.input("first", (2,))
        x = prog.recurrent("x", (2,), domain=(i, t))
        u = prog.recurrent("u", (2,), domain=(i, t))
        v = prog.recurrent("v", (2,), domain=(i, t))
        x[i, 0] = first
        x[i, t + 1] = x + 0.1 * tp.sin(x + u)
        u[0, t] = 0.0
        u[i, t] = u[i - 1, t] + v[i - 1, t] * (x - x[i - 1, t]) + v[i - 1, T - 1 - t]
        v[i, T - 1] = x[i, T]
        v[i, t] = 0.5 * v[i, t + 1] - 0.1 * x[i, t]
        if kept == "all":
            prog.output("u", u)
        prog.output("last", u[I - 1, 0:T])
    bounds = {I: 13, T: 29}
    run = prog.compile(bounds)
    same(prog, bounds, run, first=[1.0, -0.5])
    assert not re.findall(r"f32\[(?:13|2),(?:29|30),2\]\S* copy\(", in_loops(run))
