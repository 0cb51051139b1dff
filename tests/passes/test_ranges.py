"""Range tiling: reductions over ranges add up the parts of their tiles, and never have a whole range at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph
from tempo.graph.validate import validate
from tempo.passes import apply_passes
from tempo.passes.ranges import tile_ranges

STEPS = 11
PLANS = [
    tp.Plan(tiles={"t": 4}),
    tp.Plan(tiles={"t": 1}),
    tp.Plan({"t": 3}, tiles={"t": 5}),
    tp.Plan({"t": 1}, tiles={"t": 3}, host=("*",), recompute=True),
]


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tiled(prog: tp.Program, bounds: dict[Any, int], size: int) -> tuple[Graph, bool]:
    """The graph with tiles of this size of all dims, and whether there are any."""
    graph = apply_passes(prog.graph)
    numbers = {d.bound: bounds[d.bound] for d in graph.dims if d.bound in bounds}
    found, tiles = tile_ranges(graph, {d: size for d in graph.dims if d.origin is d}, numbers)
    validate(found)
    assert bool(tiles) == (found is not graph)
    return found, bool(tiles)


def check(prog: tp.Program, bounds: dict[Any, int], tolerance: float = 1e-4, **inputs: Any) -> None:
    """There is something to tile, and under all plans what is computed is what the oracle computes."""
    assert tiled(prog, bounds, 2)[1]
    expected = prog.evaluate(bounds, **inputs)
    for backend, plan in [*(("numpy", plan) for plan in PLANS), ("jax", PLANS[2])]:
        found = prog.compile(bounds, backend, plan=plan)(**inputs)
        for name, array in expected.outputs.items():
            kinds = (np.asarray(x, np.float32) for x in (found[name], array))
            message = f"{name}, {backend}, {plan.settings()}"
            np.testing.assert_allclose(*kinds, rtol=tolerance, atol=tolerance, err_msg=message)


def test_a_sum_of_a_range_is_a_sum_of_sums_of_its_tiles() -> None:
    with tp.Program("prefix") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("y", tp.exp(x[0 : t + 1]).sum())
    graph, _ = tiled(prog, {T: 10}, 4)
    first, exp, part, total, *_ = (line.strip().split(" = ", 1) for line in str(graph).splitlines()[1:])
    assert [exp[1], part[1], total[1]] == [
        "exp(x[4*tile(t):4*tile(t) + min(4, max(0, t - 4*tile(t) + 1))])",
        f"sum({exp[0].split('(')[0]}, axes=(0))",
        f"sum({part[0].split('(')[0]}[t, 0:3], axes=(0))",
    ]
    assert first == ["x(t): float32[]", "input"]
    run = prog.compile({T: 10}, "numpy", plan=tp.Plan({"t": 5}, tiles={"t": 4}))
    assert [line for line in run.explain().split("-- loop tree --\n")[1].splitlines() if "for " in line] == [
        "for t in 0 .. 9, 5 at once:",
        "    for tile(t) in 0 .. 2:",
    ]
    np.testing.assert_allclose(run(x=np.zeros(10)).y, np.arange(1, 11))


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: tp.sum(tp.sin(x), axis=0),
    "mean": lambda x: tp.mean(tp.sin(x), axis=0),
    "max": lambda x: tp.max(x * x, axis=0, initial=-1.0),
    "min": lambda x: tp.min(tp.sin(x), axis=0, initial=2.0),
    "prod": lambda x: tp.prod(tp.cos(x), axis=0),
    "any": lambda x: tp.any(x > 1, axis=0).astype("float32"),
    "all": lambda x: tp.all(x > -1, axis=0).astype("float32"),
    "var": lambda x: tp.var(x, axis=0),
    "logsumexp": lambda x: tp.exp(tp.logsumexp(3 * x, axis=0)),
    "softmax": lambda x: tp.einsum("kd,kd->d", tp.softmax(x, axis=0), tp.sin(x)),
    "several axes": lambda x: tp.sum(tp.sin(x), axis=(0, 1)) * tp.ones(2),
    "contraction": lambda x: tp.einsum("kd,ke->de", tp.sin(x), x).sum(0),
}
RANGES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "all before": lambda x, t, T: x[0 : t + 1],
    "all behind": lambda x, t, T: x[t:T],
    "strictly before": lambda x, t, T: x[0:t],
    "window": lambda x, t, T: x[tp.max(0, t - 4) : t + 1],
    "ahead": lambda x, t, T: x[t : tp.min(t + 6, T)],
    "all": lambda x, t, T: x[0:T],
}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(kind: str) -> None:
    with tp.Program("reductions") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=2, domain=t)
        for name, cut in RANGES.items():
            prog.output(name, REDUCTIONS[kind](cut(x, t, T)))
    check(prog, {T: STEPS}, x=data(STEPS, 2))


SMOOTH = [kind for kind in REDUCTIONS if kind not in ("sum", "any", "all")]


@pytest.mark.parametrize("kind", ["sum", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SMOOTH)])
def test_gradients(kind: str) -> None:
    with tp.Program("gradients") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=2, domain=t)
        for name in ("all before", "all behind", "window"):
            values = REDUCTIONS[kind](RANGES[name](x, t, T))
            loss = tp.square(values).sum()[0:T].sum()
            prog.output(name, tp.grad(loss, x))
    check(prog, {T: STEPS}, x=data(STEPS, 2))


CHAINS: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda x, n: x.reshape(n, 2, 3).reshape(1, n, 6).reshape(n, 3, 2).sum((0, 2)),
    "transpose": lambda x, n: tp.sin(x.T).sum(1),
    "broadcast": lambda x, n: (tp.broadcast_to(tp.ones(6), (n, 6)) * tp.full((n, 1), 2.0) + x).sum(0),
    "mask": lambda x, n: tp.where(tp.arange(n).reshape(n, 1) % 3 > 0, x, 0.0).sum(0),
    "cut": lambda x, n: tp.sin(x).space[2:].sum(0),
    "pad": lambda x, n: tp.cos(tp.pad(x, ((0, 2), (0, 0)))).sum(0),
    "rows": lambda x, n: tp.cumsum(x, axis=1).max(1).sum(),
    "joined": lambda x, n: tp.concatenate([x, tp.sin(x)], axis=1).sum(0),
    "position": lambda x, n: tp.argmax(x, axis=1).astype("float32").sum(),
    "look up": lambda x, n: tp.take(tp.arange(6).astype("float32"), tp.argmax(x, axis=1)).sum(),
    "look up beside": lambda x, n: tp.take(x, [0, 5, 0], axis=1).sum(0),
    "along": lambda x, n: tp.take_along_axis(x, tp.argmax(x, axis=1, keepdims=True), axis=1).sum(),
    "contraction": lambda x, n: tp.tanh(tp.einsum("kd,de->ke", x, tp.ones((6, 4)))).sum(0),
    "both operands": lambda x, n: tp.einsum("kd,kd->k", x, tp.sin(x)).max(),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_what_is_between_a_range_and_its_reduction(kind: str) -> None:
    with tp.Program("chains") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=6, domain=t)
        y = CHAINS[kind](x[0:T], T)
        prog.output("y", y)
        prog.output("gradient", tp.grad(tp.sum(y), x))
        if kind != "cut":
            prog.output("growing", CHAINS[kind](x[0 : t + 1], t + 1))
    check(prog, {T: STEPS}, x=data(STEPS, 6))


def attention(size: int = 4, heads: int = 2, gradients: bool = True) -> tuple[tp.Program, Any]:
    with tp.Program("attention") as prog:
        t, T = prog.dim("t")
        q, k, v = (prog.input(name, shape=(heads, size), domain=t) for name in "qkv")
        weights = tp.softmax(tp.einsum("hd,khd->hk", q, k[0 : t + 1]) * size**-0.5)
        y = tp.einsum("hk,khd->hd", weights, v[0 : t + 1])
        prog.output("y", y)
        if gradients:
            loss = tp.square(y).sum()[0:T].sum()
            for name, slope in zip("qkv", tp.grad(loss, [q, k, v]), strict=True):
                prog.output(f"d{name}", slope)
    return prog, T


def test_attention_and_its_gradients() -> None:
    prog, T = attention()
    check(prog, {T: STEPS}, **{name: data(STEPS, 2, 4, seed=n) for n, name in enumerate("qkv")})


def test_attention_keeps_blocks_times_tiles_of_scores() -> None:
    """The weights of all steps would be 32 MiB, those of a block of 16 steps 512 KiB."""
    prog, T = attention()
    run = prog.compile({T: 4096}, "numpy", plan=tp.Plan({"t": 16}, tiles={"t": 64}))
    largest = max(store.bytes for store in run.storage.stores.values())
    assert largest == 4096 * 2 * 4 * 4  # an input
    blocks = prog.compile({T: 4096}, "numpy", plan=tp.Plan({"t": 16}))
    assert run.storage.peak < 1.3e6 < 2.5e6 < blocks.storage.peak


def test_inside_a_recurrence() -> None:
    with tp.Program("generate") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.recurrent("x", shape=3, domain=(b, t))
        x[b, 0] = prog.input("first", shape=3, domain=b)
        scores = tp.einsum("d,kd->k", x, x[b, 0 : t + 1])
        x[b, t + 1] = tp.tanh(tp.einsum("k,kd->d", tp.softmax(scores), x[b, 0 : t + 1]) + 0.1)
        prog.output("x", x)
        prog.output("slope", tp.grad(x[0:B, T].sum(), x))
    check(prog, {B: 2, T: STEPS}, first=data(2, 3))


def test_of_what_an_earlier_step_has_computed() -> None:
    """The axis of a value that is read at another step, where it has another size."""
    with tp.Program("earlier") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        powers = tp.exp(x[0 : t + 1])
        y = prog.recurrent("y", domain=t)
        y[0] = 0.0
        y[t] = powers[t - 1].sum()
        prog.output("y", y)
        prog.output("last", (powers[T - 1] * x[0:T]).sum())
    check(prog, {T: STEPS}, x=data(STEPS))


def test_dims_that_stop() -> None:
    with tp.Program("stop") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = tp.exp(x[0 : t + 1]).sum()
        prog.stop(t, when=y > 5)
        prog.output("y", y)
        prog.output("total", tp.sin(x[0:T]).sum())
    check(prog, {T: STEPS}, x=np.zeros(STEPS))


def test_half_precision_is_rounded_once() -> None:
    """A step of bfloat16 is 4 from 512 on: sums of tiles that were rounded would lose the ones."""
    with tp.Program("half") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype=tp.bfloat16)
        prog.output("y", tp.sum(tp.abs(x[0 : t + 1]), axis=0))
    values = np.ones(600)
    y = prog.compile({T: 600}, plan=tp.Plan(tiles={"t": 1}))(x=values).y
    assert np.array_equal(np.asarray(y, np.float32), np.asarray(prog.evaluate({T: 600}, x=values).y, np.float32))


def test_the_greatest_element_of_a_range_without_a_start() -> None:
    """Some tiles have no elements, though no range is empty."""
    with tp.Program("greatest") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("most", tp.max(-tp.exp(x[0 : t + 1]), axis=0))
        prog.output("least", tp.min(tp.floor(4 * x[0 : t + 1]).astype("int32"), axis=0))
        prog.output("half", tp.max(tp.floor(x[0:t]).astype(tp.bfloat16), axis=0, initial=-2.0))
    check(prog, {T: STEPS}, x=data(STEPS))


def test_sums_that_blocks_of_the_dim_itself_put_together_stay() -> None:
    """A loss, and the gradient of a weight: what is added up need not be there for all steps."""
    with tp.Program("training") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=3, domain=t)
        w = prog.input("w", shape=(4, 3))
        loss = tp.square(tp.tanh(w @ x)).sum()[0:T].sum()
        prog.output("slope", tp.grad(loss, w))
    assert not tiled(prog, {T: 16}, 4)[1]


def test_short_ranges_and_operations_along_a_range_stay() -> None:
    with tp.Program("short") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("window", tp.sin(x[tp.max(0, t - 3) : t + 1]).sum())
        prog.output("median", tp.sort(x[0 : t + 1]).sum())
    assert not tiled(prog, {T: 16}, 4)[1]


def test_tiles_of_what_is_nothing_at_the_first_step() -> None:
    """What a loop over tiles puts together has the size of its store, also where less is there (random program 27 of
    seed 81001)."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=(t, s))
        w = prog.state("w", tp.ones(()), over=(t, s), domain=(t, s))
        loss = w * (w - tp.sum(x[..., 0:s], axis=0))
        w.next = w - 0.1 * tp.tanh(tp.grad(loss, w))
        y, z = (prog.recurrent(name, domain=(t, s)) for name in "yz")
        y[t, 0] = 0.5
        y[t, s] = tp.tanh(z[tp.max(t - 2, 0), s - 1])
        z[s < 1] = -0.3 * x
        before = tp.cumsum(tp.tanh(tp.prod(y[0:t, 0:s], axis=1)), axis=0)
        z[t, s] = tp.tanh(y[0, s - 1] - tp.min(before, axis=0, initial=0.5))
        prog.output("g", tp.grad(w * loss[0, s // 2], w))
        prog.output("y", y)
    bounds, x0 = {T: 2, S: 5}, np.linspace(-1, 2, 10).reshape(2, 5)
    expected = prog.evaluate(bounds, x=x0)
    for host in ((), ("*",)):
        found = prog.compile(bounds, plan=tp.Plan({"t": 1}, tiles={"t": 1, "s": 3}, host=host))(x=x0)
        np.testing.assert_allclose(found.y, expected.y, rtol=1e-5)
        np.testing.assert_allclose(found.g, expected.g, rtol=1e-4)
