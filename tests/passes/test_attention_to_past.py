"""Attention of all steps to those before them, and its gradient, are two operations where no step waits for another."""

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import dtypes
from tempo.ops.attention import ATTENTION_TO_PAST, ATTENTION_TO_PAST_GRADIENT
from tempo.passes import FUSE_ATTENTION_TO_PAST, attention_to_past
from tempo.runtime.executable import Executable

SIZE = 8
STEPS = 9


@pytest.fixture(autouse=True)
def small_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are few steps, and in single precision, so that results can be compared."""
    monkeypatch.setattr(attention_to_past, "LEAST_STEPS", 2)
    monkeypatch.setattr(attention_to_past, "FLOATS", (*attention_to_past.FLOATS, dtypes.float32))


def check(prog: tp.Program, expected: tuple[int, int], tolerance: float = 1e-4, **bounds: int) -> None:
    """So many attentions and gradients become operations, and results are those of the oracle."""
    random = np.random.default_rng(0)
    numbers = {"T": STEPS, **bounds}
    inputs = {}
    for name, node in prog.graph.inputs.items():
        shape = tuple(numbers[d.name.upper()] for d in node.domain) + node.shape
        if name != "seed":
            inputs[name] = (random.normal(size=shape) / 2).astype(node.dtype)
    wanted = prog.evaluate(numbers, **inputs)
    for backend in ("numpy", "jax"):
        run = Executable(prog.graph, numbers, backend, parallel=True)
        ops = [node.op for node in run.graph.nodes]
        assert (ops.count(ATTENTION_TO_PAST), ops.count(ATTENTION_TO_PAST_GRADIENT)) == expected
        found = run(**inputs)
        for name, array in wanted.outputs.items():
            arrays = (np.asarray(a, np.float64) for a in (found[name], array))
            np.testing.assert_allclose(*arrays, rtol=tolerance, atol=tolerance, err_msg=f"{backend} {name}")


def training(window: int | None, heads: tuple[int, int], dtype: Any = tp.float32, fused: bool = False) -> tp.Program:
    """Two layers, an iteration after the other."""
    size = heads[0] * SIZE
    with tp.Program("training") as prog:
        i, _ = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", size, (b, t), dtype=dtype)
        with prog.training(over=i):
            layers = [tp.nn.Attention(size, *heads, window=window, fused=fused) for _ in range(2)]
            nets = [layer.declare(prog, f"layer{n}", dtype=dtype) for n, layer in enumerate(layers)]
        y = x
        for net in nets:
            y = y + net(y, t)
        loss = tp.mean(tp.square(y.astype("float32"))[i, 0:B, 0:T])
        parameters = {f"{n}.{name}": p for n, net in enumerate(nets) for name, p in net.parameters().items()}
        gradients = tp.grad(loss, parameters)
        tp.optim.SGD(0.5).update(parameters, gradients)
        prog.output("loss", loss)
        for name, gradient in gradients.items():
            prog.output(name, gradient)
    return prog


@pytest.mark.parametrize(
    ("window", "heads", "fused"), [(None, (4, 2), True), (None, (2, 2), False), (4, (4, 1), False), (1, (1, 1), False)]
)
def test_training(window: int | None, heads: tuple[int, int], fused: bool) -> None:
    # The inputs of the first layer have no gradient, its keys and values have.
    check(training(window, heads, fused=fused), (2, 2), I=2, B=2)


def test_training_in_half_precision() -> None:
    check(training(None, (4, 2), tp.bfloat16), (2, 2), 0.05, I=1, B=2)


def by_hand(name: str) -> tp.Program:
    with tp.Program(name) as prog:
        t, T = prog.dim("t")
        q = prog.input("q", SIZE if name == "alone" else (3, SIZE), t)
        k, v = (prog.input(n, SIZE, t) for n in "kv")
        if name in ("shared", "squares"):
            v = k
        product, average = ("d,sd->s", "s,sd->d") if name == "alone" else ("md,sd->ms", "ms,sd->md")
        first = tp.max(0, t - 3) if name == "window" else 1 if name == "later" else 0
        seen = slice(first, t if name == "before" else t + 1)
        keys = (tp.roll(k, 1, 0) if name == "turned" else k)[seen]
        scores = tp.einsum(product, q, keys) / 2
        if name == "masked":
            scores = tp.where(tp.arange(0, t + 1) % 2 == t.value % 2, scores, -1e30)
        weights = tp.softmax(scores * tp.mean(q)) if name == "scaled" else tp.softmax(scores)
        if name == "more":
            weights = weights * 1.001
        y = tp.einsum(average, weights, v[seen])
        loss = tp.sum(tp.square(y)[0:T])
        if name == "squares":  # looks like a gradient of queries
            prog.output("squares", tp.einsum(average, tp.square(weights), v[seen]))
        if name == "weights":
            loss = loss + tp.sum(tp.square(weights).sum()[0:T])
        for n, gradient in zip("qkv", tp.grad(loss, (q, k, v)), strict=True):
            if n == "q" or name != "queries":
                prog.output(n, gradient)
        prog.output("y", y)
    return prog


@pytest.mark.parametrize("name", ["alone", "plain", "window", "turned", "shared"])
def test_by_hand(name: str) -> None:
    check(by_hand(name), (1, 1))


@pytest.mark.parametrize("name", ["before", "later", "masked", "scaled", "more", "weights", "squares", "queries"])
def test_what_stays(name: str) -> None:
    """Other ranges, masks, weights that are not those of a softmax, others that read them, a gradient of queries."""
    check(by_hand(name), (0, 0))


@pytest.mark.parametrize(("first", "count"), [(0, 1), (1, 0)])
def test_without_gradients(first: int, count: int) -> None:
    """All steps so far, or all but the first one, at which nothing is seen."""
    with tp.Program("scores") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", (2, SIZE), t)
        weights = tp.softmax(tp.einsum("gd,sgd->gs", tp.sin(x), x[first : t + 1]))
        prog.output("y", tp.einsum("gs,sgd->gd", weights, tp.cos(x)[first : t + 1]))
    check(prog, (count, 0))


def test_steps_that_wait_for_others_stay() -> None:
    with tp.Program("generate") as prog:
        t, _ = prog.dim("t")
        x = prog.recurrent("x", SIZE, t)
        weights = tp.softmax(tp.einsum("d,sd->s", x, x[0 : t + 1]))
        x[0] = prog.input("first", SIZE)
        x[t + 1] = tp.tanh(tp.einsum("s,sd->d", weights, x[0 : t + 1]))
        prog.output("x", x)
    check(prog, (0, 0))


def test_steps_that_are_not_there_stay() -> None:
    """The last step would read one more than there are; nobody asks for it."""
    with tp.Program("next") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", SIZE, t)
        ahead = tp.sin(tp.cos(x)[t + 1])
        y = tp.einsum("s,sd->d", tp.softmax(tp.einsum("d,sd->s", ahead, x[0 : t + 1])), x[0 : t + 1])
        prog.output("y", tp.sum(y[0 : T - 1], axis=0))
    check(prog, (0, 0))


def test_a_dim_that_stops_stays() -> None:
    with tp.Program("stops") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", SIZE, t)
        prog.stop(t, when=tp.sum(x) > 100)
        y = tp.einsum("s,sd->d", tp.softmax(tp.einsum("d,sd->s", tp.sin(x), x[0 : t + 1])), x[0 : t + 1])
        prog.output("y", y)
    check(prog, (0, 0))


def test_only_in_half_precision_and_for_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for dtype, steps, expected in ((tp.float32, 512, 0), (tp.bfloat16, 511, 0), (tp.bfloat16, 512, 2)):
        prog = training(None, (2, 1), dtype)
        for skip, count in (((), expected), ((FUSE_ATTENTION_TO_PAST,), 0)):
            run = Executable(prog.graph, {"I": 1, "B": 1, "T": steps}, parallel=True, skip=skip)
            assert [node.op for node in run.graph.nodes].count(ATTENTION_TO_PAST_GRADIENT) == count
