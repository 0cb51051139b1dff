"""Only what is selected is computed, where that pays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph
from tempo.graph.validate import validate
from tempo.passes.selected import DEEPEST, compute_selected
from tempo.runtime.executable import Executable


def shapes(graph: Graph, op: str) -> list[tuple[Any, ...]]:
    """The shapes that an operation gives, wherever it is."""
    return [node.shape for node in graph.nodes if node.op.name == op]


def agree(prog: tp.Program, bounds: dict[Any, int], **inputs: Any) -> None:
    """Both backends give what the oracle says, with the pass and without it."""
    expected = prog.evaluate(bounds, **inputs)
    for backend in ("numpy", "jax"):
        for skip in ((), ("compute selected",)):
            found = Executable(prog.graph, bounds, backend, skip=skip)(**inputs)
            for name, array in expected.outputs.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def normal(*shape: int) -> Any:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


# -- the best path ------------------------------------------------------------------------------------------------


def viterbi(states: int) -> tuple[tp.Program, Any]:
    with tp.Program("viterbi") as prog:
        t, T = prog.dim("t")
        score = prog.input("score", states, t)
        A = prog.input("A", (states, states))
        best = prog.recurrent("best", states, t)
        candidates = tp.expand_dims(best[t - 1], 1) + A
        best[0] = score[0]
        best[t] = tp.max(candidates, axis=0) + score[t]
        before = tp.argmax(candidates, axis=0)
        path = prog.recurrent("path", domain=t, dtype=tp.int32)
        path[T - 1] = tp.argmax(best[T - 1])
        path[t] = before[t + 1].take(path[t + 1])
        prog.output("path", path)
    return prog, T


def test_backpointers_are_computed_on_the_path_alone() -> None:
    prog, T = viterbi(16)
    graph = compute_selected(prog.graph, {T: 9})
    validate(graph)
    on_the_way_back = """
  reshape(t): float32[16, 1] = reshape(best, shape=(16, 1))
  reshape(t): int32[1] = reshape(path[t + 1], shape=(1))
  take(t): float32[16, 1] = take(A, reshape, axis=1)
  add(t): float32[16, 1] = add(reshape, take)
  argmax(t): int32[1] = argmax(add, axis=0)
  reshape(t): int32[] = reshape(argmax, shape=())
  output path = path"""
    assert re.sub(r"_\d+", "", str(graph)).endswith(on_the_way_back)
    agree(prog, {T: 9}, score=normal(9, 16), A=normal(16, 16))


def test_what_the_loop_needs_is_not_kept_for_a_selection() -> None:
    """The user has moved the selection half the way: the candidates would be kept at all steps."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        A = prog.input("A", (16, 16))
        best = prog.recurrent("best", 16, t)
        candidates = tp.expand_dims(best[t - 1], 1) + A
        best[0] = prog.input("first", 16)
        best[t] = tp.tanh(tp.max(candidates, axis=0))
        path = prog.recurrent("path", domain=t, dtype=tp.int32)
        path[T - 1] = tp.argmax(best[T - 1])
        path[t] = tp.argmax(candidates[t + 1].take(path[t + 1], axis=1))
        prog.output("path", path)
    kept = prog.compile({T: 9}).storage.stores.values()
    assert not any(store.shape == (8, 16, 16) for store in kept)
    agree(prog, {T: 9}, first=normal(16), A=normal(16, 16))


def test_a_batch_of_paths() -> None:
    """The transitions lack the batch's axis: a column for each is taken, and nothing of that size for each."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        score = prog.input("score", (3, 16), t)
        A = prog.input("A", (16, 16))
        best = prog.recurrent("best", (3, 16), t)
        candidates = tp.expand_dims(best[t - 1], 2) + A
        best[0] = score[0]
        best[t] = tp.max(candidates, axis=1) + score[t]
        before = tp.argmax(candidates, axis=1)
        path = prog.recurrent("path", 3, t, dtype=tp.int32)
        path[T - 1] = tp.argmax(best[T - 1], axis=1)
        path[t] = tp.take_along_axis(before[t + 1], path[t + 1].space[:, None], 1).space[:, 0]
        prog.output("path", path)
    graph = compute_selected(prog.graph, {T: 9})
    assert shapes(graph, "argmax") == [(3,), (3, 1)]
    assert shapes(graph, "take") == [(16, 3, 1)]
    agree(prog, {T: 9}, score=normal(9, 3, 16), A=normal(16, 16))


def test_paths_of_a_dim() -> None:
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        score = prog.input("score", 16, (b, t))
        A = prog.input("A", (16, 16))
        best = prog.recurrent("best", 16, (b, t))
        candidates = tp.expand_dims(best[b, t - 1], 1) + A
        best[b, 0] = score[b, 0]
        best[b, t] = tp.max(candidates, axis=0) + score
        path = prog.recurrent("path", domain=(b, t), dtype=tp.int32)
        path[b, T - 1] = tp.argmax(best[b, T - 1])
        path[b, t] = tp.argmax(candidates, axis=0)[b, t + 1].take(path[b, t + 1])
        prog.output("path", path)
    assert shapes(compute_selected(prog.graph, {T: 9, B: 4}), "argmax") == [(), (1,)]
    agree(prog, {T: 9, B: 4}, score=normal(4, 9, 16), A=normal(16, 16))


# -- other programs -----------------------------------------------------------------------------------------------


def test_logits_of_the_last_position_alone() -> None:
    with tp.Program() as prog:
        x, W = prog.input("x", (16, 4)), prog.input("W", (4, 50))
        prog.output("last", tp.softmax(tp.tanh(x) @ W).space[-1])
    graph = compute_selected(prog.graph)
    assert shapes(graph, "einsum") == [(1, 50)]
    agree(prog, {}, x=normal(16, 4), W=normal(4, 50))


def test_gradients_of_what_is_selected() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, W = prog.input("x", (16, 4), t), prog.param("W", (4, 8))
        i = prog.input("i", (), t, dtype="int32")
        found = tp.log_softmax(tp.tanh(x @ W), axis=1)
        prog.output("dW", tp.grad(tp.sum(tp.square(found[t].take(i, axis=0))), prog.params["W"]))
    agree(prog, {T: 5}, x=normal(5, 16, 4), W=normal(4, 8), i=np.array([3, -1, 0, 15, 2], np.int32))


# -- where it does not pay ----------------------------------------------------------------------------------------


def unchanged(prog: tp.Program, numbers: dict[Any, int]) -> bool:
    return compute_selected(prog.graph, numbers) is prog.graph


@pytest.mark.parametrize(("steps", "stays"), [(2, False), (20, True)])
def test_what_is_read_again_and_again_is_computed_once(steps: int, stays: bool) -> None:
    """The sum does not vary over s: at each of its steps, a part of it would be computed again."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", (8, 16), t)
        i = prog.input("i", domain=(t, s), dtype=tp.int32)
        prog.output("y", tp.sum(x * x, 0).take(i))
    assert unchanged(prog, {T: 3, S: steps}) == stays
    agree(prog, {T: 3, S: 4}, x=normal(3, 8, 16), i=np.arange(12).reshape(3, 4).astype(np.int32))


def test_selections_that_read_all_of_it_together_stay() -> None:
    """The gates of an LSTM are parts of one product."""
    with tp.Program() as prog:
        x, W = prog.input("x", (4, 8)), prog.input("W", (8, 32))
        gates = x @ W
        for n in range(4):
            prog.output(f"gate{n}", tp.tanh(gates.space[:, 8 * n : 8 * n + 8]))
    assert unchanged(prog, {})


def test_one_of_the_gates_alone() -> None:
    with tp.Program() as prog:
        x, W = prog.input("x", (4, 8)), prog.input("W", (8, 32))
        prog.output("gate", tp.tanh((x @ W).space[:, 8:16]))
    assert shapes(compute_selected(prog.graph), "einsum") == [(4, 8)]


@pytest.mark.parametrize("read_whole", [False, True])
def test_what_somebody_reads_whole_is_computed_whole(read_whole: bool) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, i = prog.input("x", (8, 16), t), prog.input("i", (), t, dtype="int32")
        total = tp.sum(x * x, 0)
        prog.output("y", total.take(i))
        if read_whole:
            prog.output("total", total)
    assert unchanged(prog, {T: 5}) == read_whole


def test_nothing_is_kept_that_takes_much_more_memory() -> None:
    """A sum of 16 numbers of each step is kept for the way back, and not the 16 times 100 that it is the sum of."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        h = prog.recurrent("h", (16, 100), t)
        h[0] = prog.input("first", (16, 100))
        h[t] = tp.tanh(h[t - 1] * 1.5)
        total = tp.sum(h * h, 1)
        at = prog.recurrent("at", domain=t, dtype=tp.int32)
        at[T - 1] = 3
        at[t] = (total[t + 1].take(at[t + 1]) * 100).astype("int32") % 16
        prog.output("at", at)
    assert unchanged(prog, {T: 20})


def test_what_is_computed_for_all_steps_at_once_is_not_taken_into_a_loop() -> None:
    """One product for all steps is faster than one per step that is 16 times smaller."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, W = prog.input("x", 8, t), prog.input("W", (8, 64))
        at = prog.recurrent("at", domain=t, dtype=tp.int32)
        at[0] = 3
        at[t] = ((x @ W).take(at[t - 1]) * 100).astype("int32") % 64
        prog.output("at", at)
    assert unchanged(prog, {T: 20})


def test_elements_that_are_read_where_they_are_computed_are_left_to_the_backend() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, i = prog.input("x", 16, t), prog.input("i", (), t, dtype="int32")
        prog.output("y", tp.tanh(x).take(i))
    assert unchanged(prog, {T: 5})


def test_a_loss_that_reads_a_few_of_the_logits_of_a_training_leaves_them_whole() -> None:
    """They are there when the loss is computed: the loop that trains needs all of them."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        x, label = prog.input("x", (4, 8), i), prog.input("label", 4, i, dtype="int32")
        W = prog.state("W", prog.input("first", (8, 64)), over=i)
        loss = tp.nn.cross_entropy(x @ W, label)
        W.next = W - 0.1 * tp.grad(tp.sum(loss), W)
        prog.output("loss", loss)
    assert unchanged(prog, {I: 5})


def test_a_long_way_is_not_gone_to_its_end() -> None:
    with tp.Program() as prog:
        x = prog.input("x", (16, 3))
        for _ in range(DEEPEST + 20):
            x = tp.tanh(x)
        prog.output("y", tp.sum(x, 1).take(3))
    graph = compute_selected(prog.graph)
    found = shapes(graph, "tanh")
    assert found.count((1, 3)) == DEEPEST - 1 and found.count((16, 3)) == 21
