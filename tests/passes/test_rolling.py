"""Rolling: copies of some nodes, one after the other, become one node each, over a dim that counts the copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import nn, optim
from tempo.graph.node import Graph
from tempo.graph.validate import validate
from tempo.passes import apply_passes
from tempo.passes.rolling import Rolled, roll
from tempo.runtime.executable import Executable
from tests.schedule.common import outline, renumbered

BACKENDS = ("numpy", "jax")
ROLL = tp.Plan(roll=True)

Built = tuple[tp.Program, dict[Any, int]]


def rolled(prog: tp.Program) -> tuple[Graph, tuple[Rolled, ...]]:
    graph, found = roll(apply_passes(prog.graph))
    validate(graph)
    return graph, found


def arrays(prog: tp.Program, bounds: dict[Any, int]) -> dict[str, Any]:
    """Small numbers for all inputs, all different."""
    found: dict[str, Any] = {}
    named = {name: node for name, node in prog.graph.inputs.items() if name != "seed"}
    for number, (name, node) in enumerate(named.items()):
        shape = (*(d.bound.evaluate(bounds) for d in node.domain), *node.shape)
        found[name] = 0.5 * np.sin(np.arange(np.prod(shape), dtype=np.float32) + 7 * number + 1).reshape(shape)
    return found


def check(prog: tp.Program, bounds: dict[Any, int], backend: str = "numpy", copies: int | None = None) -> Any:
    """Rolled by the compiler, a program gives what the oracle says of the one that was written; the executable."""
    inputs = arrays(prog, bounds)
    expected = prog.evaluate(bounds, **inputs)
    run = prog.compile(bounds, backend, plan=ROLL)
    found = run(**inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    if copies is not None:
        assert [d.bound.constant for d in run.graph.dims if d.name.startswith("copy") and d.origin is d] == [copies]
    return run


# -- a chain ----------------------------------------------------------------------------------------------


def chain(count: int, each: Callable[[int, Any], Any], every: bool = False) -> Built:
    """``each`` again and again, of a value."""
    with tp.Program("chain") as prog:
        y = prog.input("x", 3)
        for n in range(count):
            y = each(n, y)
            if every:
                prog.output(f"y{n}", y)
        prog.output("y", y)
    return prog, {}


def dense(n: int, y: Any) -> Any:
    w = y.program.input(f"w{n}", (3, 3))
    return tp.tanh(tp.exp(y @ w) - 1)


def test_a_chain_becomes_a_recurrence_over_its_copies() -> None:
    prog, _ = chain(3, dense)
    graph, (found,) = rolled(prog)
    assert (found.copies, found.nodes) == (3, 4)
    assert (
        renumbered(str(graph))
        == """program chain(copy(1) < 3)
  x(): float32[3] = input
  w0(): float32[3, 3] = input
  constant_1(): float32[] = constant(value=1.0)
  w1(): float32[3, 3] = input
  w2(): float32[3, 3] = input
  recurrent_1(copy(1)): float32[3] is
      recurrent_1[0] = x
      recurrent_1[copy(1)] = tanh_1[copy(1) - 1] if copy(1) >= 1
  concatenate_1(): float32[9, 3] = concatenate(w0, w1, w2, axis=0)
  slice_1(copy(1)): float32[3, 3] = slice(concatenate_1, starts=(3*copy(1), 0), sizes=(3, 3), steps=(1, 1))
  einsum_1(copy(1)): float32[3] = einsum(recurrent_1, slice_1, subscripts=X,XZ->Z)
  exp_1(copy(1)): float32[3] = exp(einsum_1)
  subtract_1(copy(1)): float32[3] = subtract(exp_1, constant_1)
  tanh_1(copy(1)): float32[3] = tanh(subtract_1)
  output y = tanh_1[2]"""
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [3, 7, 16])
def test_copies_that_are_all_handed_out(count: int, backend: str) -> None:
    prog, bounds = chain(count, dense, every=True)
    check(prog, bounds, backend, copies=count)


def test_no_copies_no_change() -> None:
    prog, _ = chain(1, dense)
    graph = apply_passes(prog.graph)
    assert roll(graph) == (graph, ())


def test_copies_that_do_not_read_each_other_stay() -> None:
    with tp.Program("apart") as prog:
        x = prog.input("x", 3)
        for n in range(4):
            prog.output(f"y{n}", dense(n, x))
    assert rolled(prog)[1] == ()


def test_one_that_is_different_is_left_out() -> None:
    """Of six, the third is another one: the three after it are rolled, and of the two before it nothing is gained."""

    def each(n: int, y: Any) -> Any:
        return tp.sin(y) * 2 if n == 2 else dense(n, y)

    prog, bounds = chain(6, each)
    assert [found.copies for found in rolled(prog)[1]] == [3]
    check(prog, bounds)


def test_an_operand_that_all_copies_share_is_not_copied() -> None:
    with tp.Program("shared") as prog:
        y, w = prog.input("x", 3), prog.input("w", (3, 3))
        for _ in range(5):
            y = tp.tanh(tp.exp(y @ w) - 1)
        prog.output("dw", tp.grad(tp.sum(y), w))
    assert all(node.shape != (3, 3) for found in rolled(prog)[1] for node in found.stacked)
    check(prog, {})


# -- recurrences inside of copies -------------------------------------------------------------------------


def lstm(count: int, width: int = 3, inputs: int = 3, train: bool = False) -> Built:
    """Layers over time, with their gradients, or trained."""
    with tp.Program("lstm") as prog:
        i, I = prog.dim("i") if train else (None, None)
        t, T = prog.dim("t")
        y = prog.input("x", inputs, t)
        parameters = []
        for n in range(count):
            shapes = {"w": (inputs if n == 0 else width, 4 * width), "u": (width, 4 * width), "b": (4 * width,)}
            given = [prog.input(f"{name}{n}", shape) for name, shape in shapes.items()]
            w, u, b = (prog.state(f"{p.name} now", p, over=i) for p in given) if train else given
            domain = (i, t) if train else (t,)
            before = (i, t - 1) if train else (t - 1,)
            h = prog.recurrent(f"h{n}", width, domain)
            c = prog.recurrent(f"c{n}", width, domain)
            h[(*domain[:-1], -1)] = c[(*domain[:-1], -1)] = 0.0
            forget, update, out, new = tp.split(y @ w + h[before] @ u + b, 4)
            c[domain] = tp.sigmoid(forget) * c[before] + tp.sigmoid(update) * tp.tanh(new)
            h[domain] = tp.sigmoid(out) * tp.tanh(c)
            y = h
            parameters += [w, u, b]
        loss = tp.sum(tp.square(y[i, T - 1] if train else y[T - 1]))
        for n, (p, slope) in enumerate(zip(parameters, tp.grad(loss, parameters), strict=True)):
            if train:
                p.next = p - 0.1 * slope
            else:
                prog.output(f"slope{n}", slope)
        prog.output("loss", loss)
    return prog, {I: 3, T: 4} if train else {T: 4}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [3, 4, 9])
def test_layers_with_their_gradients(count: int, backend: str) -> None:
    run = check(*lstm(count), backend, copies=count)
    assert len(run.graph.nodes) < 100 + 8 * count


def test_copies_come_one_after_the_other_and_so_do_their_gradients() -> None:
    run = check(*lstm(4), copies=4)
    assert (
        outline(run.schedule.trees, "einsum")
        == """for copy(1) in 0 .. 3:
    einsum_1 = einsum(recurrent_1, slice_1)
    at t = -1:
    for t in 0 .. 3:
        einsum_2 = einsum(h0..h3[copy(1), t - 1], slice_2)
for copy(1) in 3 .. 0, backwards:
    einsum_3 = einsum(add_1[copy(1)'1 + 1, t], slice_3)
    for t in 3 .. 0, backwards:
        einsum_4 = einsum(add_1, slice_2)
    at t = -1:
einsum_5 = einsum(recurrent_2, add_1[copy(1), 0:T])
einsum_6 = einsum(h0..h3[copy(1), -1:T - 1], add_1[copy(1), 0:T])"""
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_training(backend: str) -> None:
    run = check(*lstm(4, train=True), backend, copies=4)
    assert len(run.graph.nodes) < 130


def test_the_first_layer_may_have_other_inputs() -> None:
    check(*lstm(5, inputs=2), copies=5)


def test_layers_that_remember_and_begin_with_what_the_last_one_said() -> None:
    with tp.Program("decoder") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 3, t)
        said = prog.recurrent("said", 3, t)
        y = x + said[t - 1]
        for n in range(4):
            k = y @ prog.input(f"k{n}", (3, 3))
            seen = k[0 : t + 1]
            y = y + tp.softmax(seen @ k) @ seen @ prog.input(f"v{n}", (3, 3))
        said[-1] = 0.0
        said[t] = tp.tanh(y)
        prog.output("said", said)
    for backend in BACKENDS:
        check(prog, {T: 5}, backend, copies=4)


# -- modules ----------------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self) -> None:
        self.norms = [nn.RMSNorm(4), nn.RMSNorm(4)]
        self.attention = nn.Attention(4, heads=2)
        self.mlp = nn.SwiGLU(4, 6)

    def __call__(self, x: Any, t: Any) -> Any:
        x = x + self.attention(self.norms[0](x), t)
        return x + self.mlp(self.norms[1](x))


class Stack(nn.Module):
    def __init__(self, count: int) -> None:
        self.layers = [Layer() for _ in range(count)]

    def __call__(self, x: Any, t: Any) -> Any:
        for layer in self.layers:
            x = layer(x, t)
        return x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [3, 5])
def test_a_transformer_and_its_gradients(count: int, backend: str) -> None:
    with tp.Program("transformer") as prog:
        t, T = prog.dim("t")
        net = Stack(count).declare(prog, init=False)
        loss = tp.sum(tp.square(net(prog.input("x", 4, t), t)))[0:T].mean()
        prog.output("loss", loss)
        for name, slope in tp.grad(loss, net.parameters()).items():
            prog.output(f"d {name}", slope)
    check(prog, {T: 5}, backend, copies=count)


def test_an_optimiser_that_joins_all_parameters() -> None:
    with tp.Program("training") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        with prog.training(i):
            net = Stack(4).declare(prog)
        loss = tp.sum(tp.square(net(prog.input("x", 4, t), t)))[i, 0:T].mean()
        optim.Adam(0.01).update(net.parameters(), tp.grad(loss, net.parameters()))
        prog.output("loss", loss)
    check(prog, {I: 3, T: 3}, copies=4)


# -- plans ------------------------------------------------------------------------------------------------


def test_a_plan_says_what_was_rolled_and_what_that_takes() -> None:
    prog, bounds = chain(5, dense, every=True)
    run = check(prog, bounds)
    assert str(run.plan).splitlines()[:2] == [
        "roll: what is repeated",
        "copy(1): 5 copies of 4 nodes in a loop (the plan wants it; their operands are copied, 180 bytes)",
    ]


def test_a_plan_says_why_nothing_was_rolled() -> None:
    prog, bounds = chain(1, dense)
    run = check(prog, bounds)
    assert "nothing is rolled (no copy of anything reads another one)" in str(run.plan).splitlines()


def test_a_plan_with_rolling_can_be_saved(tmp_path: Path) -> None:
    ROLL.save(tmp_path / "plan.json")
    assert tp.Plan.load(tmp_path / "plan.json") == ROLL


def test_nothing_is_rolled_unless_a_plan_says_so() -> None:
    prog, bounds = chain(5, dense)
    assert not prog.compile(bounds, "numpy").plan.roll
    assert not prog.compile(bounds, "numpy", plan="smallest").plan.roll


def test_copies_of_windows_are_no_linear_recurrence() -> None:
    """Found by a random program: the values of the recurrence over copies are as long as the window at a step."""
    with tp.Program("windows") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", shape=(), domain=(t, s))
        y = prog.input("y", shape=(), domain=(t, s))
        near = slice(tp.max(t - 2, 0), tp.min(t + 3, T))
        z = tp.softmax(y[near, t] * x[..., S - 1], axis=0) @ x[near, t]
        g = tp.grad(tp.square(z), y)
        prog.output("g", tp.grad(tp.sum(g[0:T, 0:S]), x))
    bounds = {T: 2, S: 2}
    inputs = {name: np.random.default_rng(0).normal(size=(2, 2)).astype(np.float32) for name in "xy"}
    run = Executable(prog.graph, bounds, parallel=True, plan=ROLL)
    np.testing.assert_allclose(run(**inputs).g, prog.evaluate(bounds, **inputs).g, rtol=1e-5, atol=1e-6)


def test_values_at_steps_of_two_dims_are_no_obstacle() -> None:
    """Found by a random program: the gradient has a case where t steps behind s there is a step of s, which is none of
    its own dims then."""
    with tp.Program("apart") as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=s)
        w = prog.state("w", tp.broadcast_to(x[0], shape=(3,)), over=(t, s), domain=(t, s))
        w.next = w
        prog.output("g", tp.grad((w[..., tp.min(s + t, S - 1)] * w).sum(), x))
    check(prog, {T: 5, S: 3})
