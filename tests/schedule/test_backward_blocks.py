"""Loops that run backwards, in blocks from the last to the first."""

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.plan import Plan
from tempo.symbolic import Bound
from tempo.testing.compiled import compare

from .common import outline

T_STEPS = 10


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def returns() -> tuple[tp.Program, Bound, dict[str, Any]]:
    """Discounted returns, and their sum: a loop backwards, and a fold of it."""
    with tp.Program("returns") as prog:
        t, T = prog.dim("t")
        reward = prog.input("reward", shape=(), domain=t)
        R = prog.recurrent("R", shape=(), domain=t)
        R[T] = 0.0
        R[t] = tp.tanh(reward[t] + 0.9 * R[t + 1])
        prog.output("total", tp.sum((R * 2.0)[0:T]))
    return prog, T, {"reward": numbers(T_STEPS)}


def training() -> tuple[tp.Program, Bound, dict[str, Any]]:
    """Back-propagation through time."""
    with tp.Program("rnn") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=t)
        target = prog.input("target", shape=(4,), domain=t)
        U, W = prog.input("U", shape=(4, 3)), prog.input("W", shape=(4, 4))
        h = prog.recurrent("h", shape=(4,), domain=t)
        h[-1] = 0.0
        h[t] = tp.tanh(W @ h[t - 1] + U @ x[t])
        losses = tp.sum(tp.square(h[t] - target[t]))
        loss = tp.sum(losses[0:T])
        prog.output("loss", loss)
        prog.output("dW", tp.grad(loss, W))
        prog.output("dU", tp.grad(loss, U))
    return prog, T, {"x": numbers(T_STEPS, 3), "target": numbers(T_STEPS, 4), "U": numbers(4, 3), "W": numbers(4, 4)}


def far_ahead() -> tuple[tp.Program, Bound, dict[str, Any]]:
    """A recurrence that looks several steps ahead, and its readers, which look back and ahead."""
    with tp.Program("far") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=t)
        y = prog.recurrent("y", shape=(2,), domain=t)
        y[t >= T - 3] = x[t]
        y[t] = tp.sin(y[t + 1] + y[t + 3]) + x[tp.max(t - 2, 0)]
        z = y[tp.max(t - 3, 0)] + y[tp.min(t + 2, T - 1)]
        prog.output("y", y)
        prog.output("z", z)
        prog.output("highest", tp.max(z[1:T], axis=0))
    return prog, T, {"x": numbers(T_STEPS, 2)}


def both_ways() -> tuple[tp.Program, Bound, dict[str, Any]]:
    """Forward-backward: two recurrences against each other, and what needs both."""
    with tp.Program("both") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(), domain=t)
        a = prog.recurrent("a", shape=(), domain=t)
        a[0] = x[0]
        a[t] = 0.5 * tp.tanh(a[t - 1]) + x[t]
        b = prog.recurrent("b", shape=(), domain=t)
        b[T - 1] = a[T - 1]
        b[t] = 0.5 * tp.tanh(b[t + 1]) + a[t]
        c = prog.recurrent("c", shape=(), domain=t)
        c[0] = b[0]
        c[t] = tp.cos(c[t - 1]) * b[t] - a[t]
        prog.output("c", c)
    return prog, T, {"x": numbers(T_STEPS)}


PROGRAMS = [returns, training, far_ahead, both_ways]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_every_block_gives_the_oracles_values(program: Any, backend: str) -> None:
    prog, T, inputs = program()
    expected = prog.evaluate({T: T_STEPS}, **inputs)
    for block in range(1, T_STEPS + 2) if backend == "numpy" else (1, 3, 4, 5, 9):
        found = Executable(prog.graph, {T: T_STEPS}, backend, plan=Plan({"t": block}))(**inputs)
        for name, array in expected.outputs.items():
            compare(f"{name} in blocks of {block}", found[name], array, 1e-5)


def test_back_propagation_is_in_blocks() -> None:
    """The weights' gradients are put together on the way, so that no adjoint is kept for all steps."""
    prog, T, _ = training()
    run = Executable(prog.graph, {T: T_STEPS}, "numpy", plan=Plan({"t": 4}))
    tree = outline(run.schedule.trees, "adjoint(h)", "h", "einsum")
    backwards = tree[tree.index("for t in 9 .. 8") :]
    assert (
        backwards
        == """\
for t in 9 .. 8, backwards, all at once:
    for t in the block:
        adjoint(h) = recurrent() (case 1)
        einsum_3 = einsum(W, multiply_1)
        adjoint(h) = recurrent() (case 1)
        einsum_4 = einsum(W, multiply_2)
    einsum_5 = einsum(multiply_1[0:T], h[-1:T - 1]) (block by block)
    einsum_6 = einsum(multiply_2[0:T], x[0:T]) (block by block)
for t in 7 .. 0, backwards, 4 at once:
    for t in the block:
        adjoint(h) = recurrent() (case 1)
        einsum_3 = einsum(W, multiply_1)
        adjoint(h) = recurrent() (case 1)
        einsum_4 = einsum(W, multiply_2)
    einsum_5 = einsum(multiply_1[0:T], h[-1:T - 1]) (block by block)
    einsum_6 = einsum(multiply_2[0:T], x[0:T]) (block by block)
for t in -1 .. -1, backwards, all at once:
    for t in the block:
        adjoint(h) = recurrent() (case 1)
        einsum_3 = einsum(W, multiply_1)
        adjoint(h) = recurrent() (case 1)
        einsum_4 = einsum(W, multiply_2)"""
    )
    summed = {edge.node for node in run.schedule.folds for edge in node.edges if edge.node.op.name == "multiply"}
    assert summed
    assert all("window of 4" in str(run.storage.stores[node]) for node in summed)
