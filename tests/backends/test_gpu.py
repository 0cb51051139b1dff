"""Compiled programs on a GPU (``make test-gpu``)."""

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.ops.attention import ATTENTION, ATTENTION_TO_PAST_GRADIENT


@pytest.mark.gpu
def test_a_training_on_the_gpu_gives_the_oracles_values() -> None:
    """Forward and backward loops, unrolled there, with a length that the unrolling does not divide."""
    with tp.Program("rnn") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=t)
        w = prog.state("w", 0.3 * np.eye(3), over=i)
        h = prog.recurrent("h", shape=(3,), domain=(i, t))
        h[i, -1] = 0.0
        h[i, t] = tp.tanh(h[i, t - 1] @ w + x[t])
        loss = tp.sum(h[i, T - 1] * h[i, T - 1])
        w.next = w - 0.1 * tp.grad(loss, w)
        prog.output("loss", loss)
        prog.output("w", w)
    inputs = {"x": np.random.default_rng(0).normal(size=(11, 3))}
    expected = prog.evaluate({I: 3, T: 11}, **inputs)
    found = prog.compile({I: 3, T: 11}, device="gpu")(**inputs)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-4)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("buckets", [{}, {"t": [8, 16]}], ids=["one piece", "several"])
def test_a_loop_that_ends_with_data_runs_again(buckets: dict[str, list[int]]) -> None:
    """As a CUDA graph, where JAX has them, with other inputs: it ends sooner, later, or not before its bound."""
    with tp.Program("until") as prog:
        t, T = prog.dim("t")
        limit = prog.input("limit")
        x = prog.input("x", shape=(3, 3))
        h = prog.recurrent("h", shape=(3,), domain=t)
        h[0] = 1.0
        h[t] = h[t - 1] @ x + h[0:t].mean(axis=0)
        prog.stop(t, when=tp.sum(h) > limit)
        prog.output("h", h)
    run = prog.compile({T: 24}, device="gpu", plan=tp.Plan(buckets=buckets))
    random = np.random.default_rng(0)
    for limit_ in (10.0, 300.0, 4.0, 1e9, 300.0):
        inputs = {"x": random.uniform(0.2, 0.3, (3, 3)), "limit": limit_}
        expected = prog.evaluate({T: 24}, **inputs)
        np.testing.assert_allclose(run(**inputs).h, expected.h, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("block", [1, 4, 5])
def test_stores_in_pinned_memory(block: int) -> None:
    """Pieces of blocks, read as they were written and with a step of the block before, in several iterations."""
    with tp.Program("offloaded") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=t)
        w = prog.state("w", 0.3 * np.eye(3), over=i)
        h = prog.recurrent("h", shape=(3,), domain=(i, t))
        h[i, -1] = 0.0
        h[i, t] = tp.tanh(h[i, t - 1] @ w + x[t])
        loss = tp.sum(tp.square(h))[i, 0:T].sum(axis=0)
        w.next = w - 0.1 * tp.grad(loss, w)
        prog.output("w", w)
        prog.output("h", h)
    inputs = {"x": np.random.default_rng(0).normal(size=(22, 3))}
    expected = prog.evaluate({I: 3, T: 22}, **inputs)
    run = prog.compile({I: 3, T: 22}, device="gpu", plan=tp.Plan({"t": block}, host=("*",)))
    assert {"h", "x"} <= {store.node.label for store in run.storage.stores.values() if store.host}
    for found in (run(**inputs), run(**inputs)):
        np.testing.assert_allclose(found.w, expected.w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.h, expected.h, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dtype", [tp.float32, tp.bfloat16])
def test_attention_by_its_kernel(dtype: Any, window: int | None) -> None:
    """A prompt, which is two products, and steps behind it, each by the kernel for a few queries."""
    with tp.Program("generate") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        attention = tp.nn.Attention(64, 4, 2, window=window).declare(prog, init=False, dtype=dtype)
        prompt = prog.input("prompt", 64, b)
        x = prog.recurrent("x", 64, (b, t), dtype=dtype)
        x[t < 4] = prompt.astype(dtype)
        # So that differences in the last bits do not grow from step to step.
        x[b, t + 1] = tp.tanh(0.5 * x + 0.25 * attention(x, t))
        prog.output("x", x)
    random = np.random.default_rng(0)
    shapes = {name: (3, 64) if name == "prompt" else node.shape for name, node in prog.graph.inputs.items()}
    inputs = {
        name: (random.normal(size=shape) / 4).astype(prog.graph.inputs[name].dtype) for name, shape in shapes.items()
    }
    expected = prog.evaluate({B: 3, T: 40}, **inputs)
    run = prog.compile({B: 3, T: 40}, device="gpu")
    assert any(node.op is ATTENTION for node in run.graph.nodes)
    tolerance = 1e-4 if dtype == tp.float32 else 0.1
    np.testing.assert_allclose(*(np.asarray(r.x, np.float32) for r in (run(**inputs), expected)), atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 24])
def test_training_attention_by_its_kernels(window: int | None) -> None:
    """Attention of all steps at once, and its gradient, by the library; on a CPU they are products."""
    with tp.Program("training") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", 128, (b, t), dtype=tp.bfloat16)
        attention = tp.nn.Attention(128, 4, 2, window=window, fused=True).declare(prog, init=False, dtype=tp.bfloat16)
        loss = tp.mean(tp.square((x + attention(x, t)).astype(tp.float32))[0:B, 0:T])
        for name, gradient in tp.grad(loss, attention.parameters()).items():
            prog.output(name, gradient)
        prog.output("loss", loss)
    random = np.random.default_rng(0)
    bounds = {B: 3, T: 512}
    shapes = {name: (3, 512, 128) if name == "x" else node.shape for name, node in prog.graph.inputs.items()}
    inputs = {name: (random.normal(size=shape) / 4).astype(tp.bfloat16) for name, shape in shapes.items()}
    run = prog.compile(bounds, device="gpu")
    assert any(node.op is ATTENTION_TO_PAST_GRADIENT for node in run.graph.nodes)
    found, expected = run(**inputs), prog.compile(bounds, device="cpu")(**inputs)
    for name, array in expected.outputs.items():
        a, b = (np.asarray(x, np.float32) for x in (found[name], array))
        np.testing.assert_allclose(a, b, atol=0.03 * np.max(np.abs(b)))


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 200])
def test_attention_of_a_prompt_by_its_kernel(window: int | None) -> None:
    """Many steps at once, of which each sees its own, and sequences that start late; on a CPU they are products."""
    layers, steps = 3, 640
    with tp.Program("prompt") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        start = prog.input("start", (), b, dtype=tp.int32)
        x = prog.input("x", 128, (b, t), dtype=tp.bfloat16)
        for n in range(layers):
            attention = tp.nn.Attention(128, 4, 2, window=window)
            x = x + attention.declare(prog, prefix=str(n), init=False, dtype=tp.bfloat16)(x, t, start)
        prog.output("x", x)
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {"start": np.array([0, 7, 300], np.int32)}
    for name, node in prog.graph.inputs.items():
        shape, scale = ((3, steps, 128), 1.0) if name == "x" else (node.shape, 128**-0.5)
        inputs.setdefault(name, (scale * random.normal(size=shape)).astype(tp.bfloat16))
    run = prog.compile({B: 3, T: steps}, device="gpu")
    assert sum(node.op is ATTENTION for node in run.graph.nodes) == layers
    found, expected = run(**inputs), prog.compile({B: 3, T: steps}, device="cpu")(**inputs)
    for n, first in enumerate(inputs["start"]):  # what is computed for steps before a start means nothing
        a, b = (np.asarray(x.x[n, first:], np.float32) for x in (found, expected))
        np.testing.assert_allclose(a, b, atol=0.05 * np.max(np.abs(b)))


@pytest.mark.gpu
def test_host_calls_on_a_gpu() -> None:
    """What they are given is in memory that the host has, too."""
    seen = []

    def host(a: Any, b: Any) -> Any:
        seen.append((a.copy(), b.copy()))
        return (a + b.sum()).astype(np.float32)

    with tp.Program("calls") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=(t,))
        y = prog.recurrent("y", shape=(3,), domain=(t,))
        y[-1] = 1.0
        y[t] = tp.host(host, 2 * y[t - 1], tp.exp(x), out=tp.spec((3,)), sequence=t)
        prog.output("y", y)
    given = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    found = prog.compile({T: 5}, device="gpu")(x=given).y
    expected = [np.ones(3)]
    for step in given:
        expected.append(2 * expected[-1] + np.exp(step).sum())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(seen) == 5


@pytest.mark.gpu
@pytest.mark.parametrize("rows, width", [(2, 1999), (16, 2048), (33, 2048), (64, 4000)])
def test_products_of_few_rows(rows: int, width: int) -> None:
    """A layer in half precision at every step of a loop: our own kernel, in one part and in several."""
    with tp.Program("layers") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2048,), domain=b, dtype=tp.bfloat16)
        up = prog.input("up", shape=(width, 2048), dtype=tp.bfloat16)
        down = prog.input("down", shape=(2048, width), dtype=tp.bfloat16)
        h = prog.recurrent("h", shape=(2048,), domain=(b, t), dtype=tp.bfloat16)
        h[b, 0] = x
        h[b, t] = tp.tanh(tp.einsum("i,oi->o", tp.tanh(tp.einsum("i,oi->o", h[b, t - 1], up)), down))
        prog.output("h", h)
    random = np.random.default_rng(0)
    inputs = {
        "x": random.normal(size=(rows, 2048)),
        "up": random.normal(size=(width, 2048)) / 45,
        "down": random.normal(size=(2048, width)) / 45,
    }
    run = prog.compile({B: rows, T: 3}, device="gpu")
    assert "few_rows" in run._whole.compiled.as_text()
    step = np.asarray(inputs["x"], np.float64)
    for n, found in enumerate(np.moveaxis(np.asarray(run(**inputs).h, np.float64), 1, 0)):
        np.testing.assert_allclose(found, step, atol=0.03 * (n + 1))
        step = np.tanh(np.tanh(step @ inputs["up"].T) @ inputs["down"].T)


@pytest.mark.gpu
@pytest.mark.parametrize("rows, width", [(1024, 1024), (1000, 1999), (4096, 768)])
def test_products_of_large_matrices(rows: int, width: int) -> None:
    """A layer and its gradient in single precision: our own kernel, and no less exact than without matrix units."""
    with tp.Program("layer") as prog:
        b, B = prog.dim("b")
        x = prog.input("x", shape=(1000,), domain=b)
        w = prog.input("w", shape=(width, 1000))
        y = tp.einsum("i,oi->o", x, w)
        prog.output("y", y)
        prog.output("gradient", tp.grad(tp.sum(tp.square(y)), w))
    random = np.random.default_rng(0)
    x_, w_ = (random.normal(size=shape).astype(np.float32) for shape in ((rows, 1000), (width, 1000)))
    # Numbers beside which the others have too few bits, and of which nothing is left.
    x_[rows // 2, 5], w_[:, 5] = 1e20, 0
    run = prog.compile({B: rows}, device="gpu")
    assert "halves" in run._whole.compiled.as_text()
    found = run(x=x_, w=w_)
    exact = x_.astype(np.float64) @ w_.T
    scale = np.abs(x_.astype(np.float64)) @ np.abs(w_.T)
    assert np.max(np.abs(found.y - exact) / scale) < 2**-22
    columns = np.arange(1000) != 5
    gradient, sizes = 2 * exact.T @ x_[:, columns], 2 * np.abs(exact).T @ np.abs(x_[:, columns])
    assert np.max(np.abs(found.gradient[:, columns] - gradient) / sizes) < 2**-20


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [2, 70])
def test_products_of_large_matrices_in_a_loop(steps: int) -> None:
    """A matrix that stays the same is halved before it, in loops of either kind: counted, and ending with data."""
    for stops in (False, True):
        with tp.Program("layers") as prog:
            b, B = prog.dim("b")
            t, T = prog.dim("t")
            x = prog.input("x", shape=(768,), domain=b)
            w = prog.input("w", shape=(768, 768))
            h = prog.recurrent("h", shape=(768,), domain=(b, t))
            h[b, 0] = x
            h[b, t] = tp.tanh(w @ h[b, t - 1])
            if stops:
                prog.stop(t, when=tp.mean(tp.square(h)[0:B]) < 0)
            prog.output("h", h[b, T - 1])
        random = np.random.default_rng(0)
        inputs = {"x": random.normal(size=(1024, 768)), "w": random.normal(size=(768, 768)) / 40}
        run = prog.compile({B: 1024, T: steps}, device="gpu")
        expected = inputs["x"]
        for _ in range(steps - 1):
            expected = np.tanh(expected @ inputs["w"].T)
        found = run(**{name: array.astype(np.float32) for name, array in inputs.items()}).h
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.gpu
def test_long_sums_of_large_products_are_rounded() -> None:
    """Not cut off, as matrix units do with what they add up: that would be 6e-6 for so many positive numbers."""
    with tp.Program("sums") as prog:
        b, B = prog.dim("b")
        x = prog.input("x", shape=(4096,), domain=b)
        w = prog.input("w", shape=(640, 4096))
        prog.output("y", tp.einsum("i,oi->o", x, w))
    random = np.random.default_rng(0)
    x_, w_ = (random.uniform(0.5, 1, size=shape).astype(np.float32) for shape in ((640, 4096), (640, 4096)))
    run = prog.compile({B: 640}, device="gpu")
    assert "halves" in run._whole.compiled.as_text()
    exact = x_.astype(np.float64) @ w_.T
    assert np.max(np.abs(run(x=x_, w=w_).y - exact) / exact) < 2e-6
