"""Parts of a loop that need none: a prompt's tokens, a warm-up, teacher forcing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax import stages, writing
from tempo.backends.jax.state import Beside
from tempo.schedule import segments
from tempo.schedule.looptree import Loop, computes, show
from tempo.schedule.storage import Store, Window

backends = pytest.mark.parametrize("backend", ["numpy", "jax"])
WIDTH = 4
RNG = np.random.default_rng(0)
WEIGHTS = {
    "embedding": RNG.normal(size=(7, WIDTH)).astype(np.float32),
    "query": RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32),
    "key": RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32),
}


def generator(stop: bool = False, deep: bool = False) -> tuple[tp.Program, Any, Any]:
    """A decoder of one layer that goes on from a prompt."""
    with tp.Program("generator") as prog:
        t, T = prog.dim("t")
        p, P = prog.dim("p")
        prompt = prog.input("prompt", domain=p, dtype="int32")
        embedding = prog.input("embedding", shape=(7, WIDTH))
        x = prog.recurrent("x", domain=t, dtype="int32")
        h = tp.take(embedding, x, axis=0)
        if deep:
            h = tp.tanh(tp.exp(h))
        q = h @ prog.input("query", shape=(WIDTH, WIDTH))
        k = h @ prog.input("key", shape=(WIDTH, WIDTH))
        attended = tp.softmax(k[0 : t + 1] @ q, axis=0) @ h[0 : t + 1]
        x[t < P] = prompt[t]
        x[t] = tp.argmax((embedding @ attended)[t - 1], axis=0).astype("int32")
        if stop:
            prog.stop(t, when=tp.logical_and(x == 3, t >= P))
        prog.output("x", x)
    return prog, T, P


def heads(run: Any) -> list[str]:
    return [line for line in show(run.schedule.trees).splitlines() if line.startswith(("for ", "at "))]


@backends
def test_a_prompt_is_read_at_once_and_the_rest_is_generated(backend: str) -> None:
    prog, T, P = generator()
    prompt = np.array([1, 2, 3, 4, 5, 6, 0, 1], np.int32)
    run = prog.compile({T: 20, P: 8}, backend)
    # The last token of the prompt is the first that something is generated from.
    assert heads(run) == ["for t in 0 .. 6, all at once:", "for t in 7 .. 18:", "at t = 19:"]
    first = next(tree for tree in run.schedule.trees if isinstance(tree, Loop))
    assert not any(isinstance(inner, Loop) for inner in first.body)
    assert {c.node.op.name for c in computes([first])} == {"recurrent", "take", "einsum"}
    expected = prog.evaluate({T: 20, P: 8}, prompt=prompt, **WEIGHTS).x
    np.testing.assert_array_equal(run(prompt=prompt, **WEIGHTS).x, expected)


def test_a_prompt_in_a_program_of_its_own_gives_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all that it computes, although the loop behind it computes other steps of the same tensors."""
    monkeypatch.setattr(stages, "LARGE", 2)
    prog, T, P = generator(deep=True)
    run = prog.compile({T: 20, P: 8})
    first, *others = run._whole.compiled.recipe.stages
    assert others and set(first.writes) <= first.later
    prompt = np.array([1, 2, 3, 4, 5, 6, 0, 1], np.int32)
    expected = prog.evaluate({T: 20, P: 8}, prompt=prompt, **WEIGHTS).x
    np.testing.assert_array_equal(run(prompt=prompt, **WEIGHTS).x, expected)


@backends
def test_a_prompt_before_a_stop(backend: str) -> None:
    prog, T, P = generator(stop=True)
    prompt = np.array([3, 2, 3, 4, 5, 6, 3], np.int32)
    expected = prog.evaluate({T: 30, P: 7}, prompt=prompt, **WEIGHTS).x
    run = prog.compile({T: 30, P: 7}, backend)
    assert heads(run)[0] == "for t in 0 .. 5, all at once:"
    np.testing.assert_array_equal(run(prompt=prompt, **WEIGHTS).x, expected)


@backends
def test_a_long_prompt_is_read_in_blocks_that_fit(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "KEEP_BYTES", 5 * 4 * WIDTH)
    prog, T, P = generator()
    prompt = np.arange(14, dtype=np.int32) % 7
    run = prog.compile({T: 20, P: 14}, backend)
    assert heads(run)[:2] == ["for t in 0 .. 9, 5 at once:", "for t in 10 .. 12, all at once:"]
    expected = prog.evaluate({T: 20, P: 14}, prompt=prompt, **WEIGHTS).x
    np.testing.assert_array_equal(run(prompt=prompt, **WEIGHTS).x, expected)


@backends
def test_steps_that_are_given_again_in_the_middle(backend: str) -> None:
    """Teacher forcing in the middle of a sequence: a loop before it, none in it, a loop after it."""
    with tp.Program("forced") as prog:
        t, T = prog.dim("t")
        data = prog.input("data", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = data[0]
        y[(t >= 5) & (t < 11)] = data[t]
        y[t] = tp.tanh(y[t - 1]) + 1
        prog.output("z", tp.exp(y) + y)
        prog.output("y", y)
    data = np.linspace(-1, 1, 16, dtype=np.float32)
    run = prog.compile({T: 16}, backend)
    assert "for t in 5 .. 10, all at once:" in heads(run)
    found, expected = run(data=data), prog.evaluate({T: 16}, data=data)
    np.testing.assert_allclose(found.y, expected.y, rtol=1e-6)
    np.testing.assert_allclose(found.z, expected.z, rtol=1e-6)


@backends
def test_gradients_through_a_prompt(backend: str) -> None:
    with tp.Program("warm") as prog:
        t, T = prog.dim("t")
        data = prog.input("data", domain=t)
        w = prog.input("w")
        y = prog.recurrent("y", domain=t)
        y[t < 6] = w * data[t]
        y[t] = tp.tanh(w * y[t - 1])
        prog.output("g", tp.grad(y[0:T].sum(), w))
    data = np.linspace(-1, 1, 12, dtype=np.float32)
    found = prog.compile({T: 12}, backend)(data=data, w=0.7)
    np.testing.assert_allclose(found.g, prog.evaluate({T: 12}, data=data, w=0.7).g, rtol=1e-5)


@backends
@pytest.mark.parametrize("stop", [False, True])
def test_a_prompt_in_blocks(stop: bool, backend: str) -> None:
    prog, T, P = generator(stop)
    prompt = (np.arange(20) % 7).astype(np.int32)
    run = prog.compile({T: 40, P: 20}, backend, plan=tp.Plan({"t": 4}))
    assert heads(run)[:2] == ["for t in 0 .. 15, 4 at once:", "for t in 16 .. 18, all at once:"]
    expected = prog.evaluate({T: 40, P: 20}, prompt=prompt, **WEIGHTS).x
    np.testing.assert_array_equal(run(prompt=prompt, **WEIGHTS).x, expected)


@backends
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize(("window", "given"), [(8, 5), (8, 30), (20, 16)])
def test_a_window_behind_a_prompt(window: int, given: int, stop: bool, backend: str, rng: np.random.Generator) -> None:
    """What a prompt leaves in the window, the loop after it finds there; no other steps are kept."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        p, P = prog.dim("p")
        prompt = prog.input("prompt", (WIDTH,), p)
        x = prog.recurrent("x", (WIDTH,), t)
        k = x @ prog.input("key", (WIDTH, WIDTH))
        q = x @ prog.input("query", (WIDTH, WIDTH))
        seen = slice(tp.max(0, t - window + 1), t + 1)
        y = tp.tanh(tp.softmax(k[seen] @ q) @ x[seen])
        x[t < P] = prompt[t]
        x[t] = y[t - 1] + 0.1
        if stop:
            prog.stop(t, when=tp.index_value(t) >= 41)
        prog.output("x", x[T - 1])
        prog.output("sum", tp.sum(y[0:T]))
    bounds = {T: 60, P: given}
    inputs = {"prompt": rng.normal(size=(given, WIDTH)), "key": WEIGHTS["key"], "query": WEIGHTS["query"]}
    run = prog.compile(bounds, backend)
    (kept,) = (store.dims[t] for node, store in run.storage.stores.items() if node is k.edge.node or node.name == "k")
    assert isinstance(kept, Window)
    assert kept.size == (window if backend == "jax" else max(window, given))
    expected = prog.evaluate(bounds, **inputs)
    found = run(**inputs)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.sum, expected.sum, rtol=1e-4)


def windowed() -> tuple[tp.Program, Any]:
    """Two layers that look back, behind a prompt and steps that are given again."""
    with tp.Program("windowed") as prog:
        t, T = prog.dim("t")
        data = prog.input("data", (WIDTH,), t)
        x = prog.recurrent("x", (WIDTH,), t)
        h = x
        for layer in ("key", "query"):
            k = tp.tanh(h @ prog.input(layer, (WIDTH, WIDTH)))
            seen = slice(tp.max(0, t - 4), t + 1)
            h = h + 0.3 * tp.softmax(k[seen] @ h) @ h[seen] + 0.1 * k[tp.max(0, t - 3)]
        x[t < 13] = data
        x[(t >= 20) & (t < 29)] = data + 0.1
        x[t] = 0.5 * h[t - 1]
        prog.output("x", x)
        prog.output("sum", tp.sum(h[0:T], 0))
    return prog, T


def circles(run: Any) -> set[int]:
    return {kept.size for store in run.storage.stores.values() for kept in store.dims.values() if type(kept) is Window}


@backends
@pytest.mark.parametrize("most", [None, 6])
def test_circles_with_no_room_for_what_is_computed_at_once(
    most: int | None, backend: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """What lies before a block is read together with the block, whether it is computed in one piece or in several."""
    if most is not None:
        monkeypatch.setattr(segments, "KEEP_BYTES", most * 4 * WIDTH)
    read: set[int] = set()

    def noted(array: Any, *others: Any) -> Beside:
        read.add(array.shape[0])
        return Beside(array, *others)

    monkeypatch.setattr(writing, "Beside", noted)
    prog, T = windowed()
    run = prog.compile({T: 36}, backend)
    assert (max(circles(run)) == 5) == (backend == "jax")
    # Of what lies before a block, four steps at most; nothing lies before the first one, if that is known.
    expected_steps = {13, 4 + 9} if most is None else {4 + 4, 4 + 1}
    inputs = {"data": rng.normal(size=(36, WIDTH)), "key": WEIGHTS["key"], "query": WEIGHTS["query"]}
    found, expected = run(**inputs), prog.evaluate({T: 36}, **inputs)
    assert read == (expected_steps if backend == "jax" else set())
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.sum, expected.sum, rtol=1e-4)


def test_what_is_read_beside_a_circle_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    prog, T = windowed()
    peak = prog.compile({T: 36}).storage.peak
    monkeypatch.setattr(Store, "beside", lambda store, around: 0)
    assert prog.compile({T: 36}).storage.peak < peak


@backends
def test_windows_behind_a_prompt_in_every_iteration_of_another_loop(backend: str, rng: np.random.Generator) -> None:
    with tp.Program("iterations") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        data = prog.input("data", (WIDTH,), t)
        scale = prog.recurrent("scale", (), i)
        x = prog.recurrent("x", (WIDTH,), (i, t))
        k = tp.tanh(x @ prog.input("key", (WIDTH, WIDTH)))
        h = x + 0.2 * tp.sum(k[i, tp.max(0, t - 4) : t + 1], 0)
        x[t < 13] = scale * data
        x[i, t] = 0.5 * h[i, t - 1]
        scale[0] = 1.0
        scale[i] = 0.5 * scale[i - 1] + 0.1 * tp.sum(h[i - 1, T - 1])
        prog.output("scale", scale)
        prog.output("x", x[I - 1, 0:T])
    inputs = {"data": rng.normal(size=(24, WIDTH)), "key": WEIGHTS["key"]}
    bounds = {I: 3, T: 24}
    run = prog.compile(bounds, backend)
    assert "    for t in 0 .. 7, all at once:" in show(run.schedule.trees)
    found, expected = run(**inputs), prog.evaluate(bounds, **inputs)
    np.testing.assert_allclose(found.scale, expected.scale, rtol=1e-4)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-4, atol=1e-5)
