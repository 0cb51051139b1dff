"""Forests: trees as arrays, and models over them as one program."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import tree_util

import tempo as tp
from tempo import nn
from tempo.batching.forest import Forest, layout
from tests.batching import models

fold = importlib.import_module("tempo.batching.fold")  # whose name in the package is the function's


class Inner(nn.Module):
    """That of ``models.TreeLSTM``, children along an axis."""

    def __init__(self, size: int) -> None:
        self.gates = nn.Linear(size, 3 * size)
        self.forget = nn.Linear(size, size)

    def __call__(self, children: Any) -> Any:
        h, c = children
        i, o, u = tp.split(self.gates(tp.sum(h, 0)), 3)
        c = tp.sigmoid(i) * tp.tanh(u) + tp.sum(tp.sigmoid(self.forget(h)) * c, 0)
        return tp.sigmoid(o) * tp.tanh(c), c


def new_tree_lstm() -> Any:
    return tp.fold(models.Leaf(5), Inner(5), loss=models.Score(5))


@cache
def tree_lstm() -> Any:
    return new_tree_lstm()


def forest_of(data: list[Any]) -> Any:
    """Trees with labels, which every node of a tree gets."""
    nodes = [(tree, label) for tree, label in data]
    return tp.forest(
        nodes,
        children=lambda node: [(child, node[1]) for child in node[0]] if isinstance(node[0], tuple) else [],
        word=lambda node: node[0] if isinstance(node[0], int) else 0,
        label=lambda node: node[1],
        arity=2,
    )


def labelled(count: int, **options: Any) -> list[Any]:
    return [(tree, n % 3) for n, tree in enumerate(models.trees(count, **options))]


def test_a_forest_from_nested_data() -> None:
    forest = tp.forest(
        [(1, (2, 3)), 4],
        children=lambda t: t if isinstance(t, tuple) else (),
        word=lambda t: t if isinstance(t, int) else 0,
    )
    assert repr(forest) == "<Forest of 2 trees, 6 nodes on 3 levels>"
    assert forest.children.tolist() == [[1, 2], [-1, -1], [3, 4], [-1, -1], [-1, -1], [-1, -1]]
    assert forest.data["word"].tolist() == [0, 1, 0, 2, 3, 4]
    assert forest.roots.tolist() == [0, 5]
    assert forest.heights.tolist() == [2, 0, 1, 0, 0, 0]
    assert forest.sizes.tolist() == [4, 1, 1]
    assert tp.forest(children=[]).sizes.tolist() == [0]


def test_chunks_of_levels() -> None:
    forest = tp.forest(children=[[1, 2], [], [3, 4], [], []])
    plan = layout(forest, None, lambda count: count + 1, (256, 64, 16, 4), 16)
    assert plan.leaves.tolist() == [1, 3, 4]
    assert plan.rows.tolist() == [9, 1, 5, 2, 3]  # row 0 is for absent children, row 4 for a leaf that is not there
    *wider, segment = plan.segments
    assert not any(len(s.nodes) for s in wider)
    assert segment.nodes.tolist() == [[2] * 4, [0] * 4]
    assert segment.children[:, 0].tolist() == [[2, 3], [1, 5]]


def test_states_of_some_nodes() -> None:
    folded, data = tree_lstm(), labelled(9)
    forest = forest_of(data)
    h, c = folded(forest)
    roots, some = folded(forest, nodes=forest.roots), folded(forest, nodes=[3, 0])
    np.testing.assert_array_equal(roots[0], h[forest.roots])
    np.testing.assert_array_equal(roots[1], c[forest.roots])
    np.testing.assert_array_equal(some[0], h[[3, 0]])
    assert folded(forest, nodes=np.zeros(0, int))[0].shape == (0, 5)
    with pytest.raises(tp.errors.InputError) as raised:
        folded(tp.forest(children=[[], []], word=[1, 2], label=[0, 0]), nodes=[2])
    assert raised.value.message == "nodes is not a list of numbers from 0 to 1: [2]"


def test_chunks_of_large_states_are_narrow() -> None:
    """So that what is computed at once fits a cache."""
    forest = tp.forest(children=[[n + 40] for n in range(40)] + [[]] * 40, value=np.arange(80, dtype=np.float32))
    for widest, expected in ((256, {64: 1}), (63, {16: 3}), (1, {4: 10})):
        allowed = [width for width in (256, 64, 16, 4) if width <= widest] or [4]
        plan = layout(forest, None, lambda count: count, tuple(allowed), 16)
        assert {s.width: len(s.nodes) for s in plan.segments if len(s.nodes)} == expected
    large = tp.fold(lambda value: tp.full((1024, 1024), value), lambda children: children.space[0] + 1)
    assert large(forest, nodes=forest.roots)[:, 0, 0].tolist() == [n + 41.0 for n in range(40)]


def test_leaves_with_the_same_word_are_one() -> None:
    """Their state is computed once, and what flows into it is the sum of what flows into each."""
    forest = tp.forest(children=[[1, 2, 3], [], [], [], []], indices=[0, 7, 7, 9, 7])
    plan = layout(forest, np.array([0, 0, 2, 0]), lambda count: count, (16, 4), 16)
    assert plan.leaves.tolist() == [1, 3]
    assert plan.rows.tolist() == [3, 1, 1, 2, 1]
    table = tp.fold(nn.Embedding(10, 2), lambda children: tp.sum(children, axis=0), loss=lambda state: tp.sum(state))
    np.testing.assert_allclose(table(forest)[0], table.parameters["leaf.weight"][np.array([7, 7, 9])].sum(0), rtol=1e-6)
    _, gradients = table.value_and_grad(forest)
    assert np.asarray(gradients["leaf.weight"])[[7, 9, 0], 0].tolist() == [1.5, 0.5, 0.0]


def test_more_children_than_are_gathered_one_by_one() -> None:
    total = tp.fold(lambda value: value, lambda children: tp.sum(children) + children.space[0])
    forest = tp.forest(children=[[1, 2, 3, 4, 5, 6], *[[]] * 6], value=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert total(forest)[0] == 22.0


def test_sums_over_trees_of_any_arity() -> None:
    total = tp.fold(
        lambda value: value, lambda children, value, present: value + tp.sum(children) + 0 * tp.sum(present)
    )
    forest = tp.forest(children=[[1, 2, 3], [], [4], [], [], []], value=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert total(forest).tolist() == [15, 2, 8, 4, 5, 6]


def test_tree_lstm() -> None:
    folded, data = tree_lstm(), labelled(30)
    p = models.as_torch(folded.parameters)
    forest = forest_of(data)
    h, c = folded(forest)
    assert h.shape == c.shape == (len(forest), 5)
    for (tree, _), root in zip(data, forest.roots, strict=True):
        expected = models.torch_tree(p, tree)
        np.testing.assert_allclose(h[root], expected[0], atol=1e-5)
        np.testing.assert_allclose(c[root], expected[1], atol=1e-5)


@pytest.mark.parametrize("count", [30, 1])
def test_gradients(count: int) -> None:
    folded, data = tree_lstm(), labelled(count)
    value, gradients = folded.value_and_grad(forest_of(data))
    p = models.as_torch(folded.parameters, gradients=True)
    # In a forest the loss is called loss, in models.torch_tree_loss score.
    named = {name.replace("loss.", "score."): value for name, value in p.items()}
    expected = torch.stack([models.torch_tree_loss(named, one) for one in data]).mean()
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-5)
    for name, gradient in gradients.items():
        reference = p[name].grad if p[name].grad is not None else torch.zeros_like(p[name])
        np.testing.assert_allclose(gradient, reference, atol=1e-6, rtol=1e-4, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_chunks_of_any_forest(data: st.DataObject) -> None:
    """Every node has a row of its own, is computed once or as padding, and after its children, which it finds."""
    count = data.draw(st.integers(0, 60))
    children = [data.draw(st.lists(st.integers(0, n - 1), max_size=3)) if n else [] for n in range(count)]
    names = data.draw(st.permutations(range(count)))
    named: list[list[int]] = [[] for _ in names]
    for n, some in enumerate(children):
        named[names[n]] = [names[child] for child in some]
    forest = tp.forest(children=named)
    allowed = data.draw(st.sampled_from([(16, 4, 1), (8,), (64, 2)]))
    plan = layout(forest, None, lambda leaves: leaves + 2, allowed, data.draw(st.sampled_from([0.0, 3.0, 1e3])))
    order = np.argsort(forest.heights, kind="stable")
    assert forest.order.tolist() == order.tolist()
    assert len(set(plan.rows.tolist())) == count
    assert plan.rows.size == 0 or (plan.rows.min() > 0 and plan.rows.max() < plan.size)
    row, done = 1 + len(plan.leaves) + 2, {0, *plan.rows[plan.leaves].tolist()}
    assert [s.width for s in plan.segments] == list(allowed)
    for segment in plan.segments:
        assert segment.nodes.shape == segment.children.shape[:2]
        for nodes, rows in zip(segment.nodes, segment.children, strict=True):
            expected = np.where(forest.children[nodes] >= 0, plan.rows[forest.children[nodes]], 0)
            assert rows.tolist() == expected.tolist()
            assert done.issuperset(rows.ravel().tolist())
            own = dict(zip(nodes.tolist(), range(row, row + len(nodes)), strict=True))  # of a padded node the last row
            assert all(plan.rows[node] <= last for node, last in own.items())
            done.update(plan.rows[nodes].tolist())
            row += len(nodes)
    assert row == plan.size
    assert done == {0, *plan.rows.tolist()}


def test_programs_that_know_how_many_chunks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: chunks that fill up to a number compute the last one again, and nothing flows from them."""
    known, others = new_tree_lstm(), tree_lstm()
    shapes = set()
    for seed, (count, most) in enumerate([(30, 19), (2, 3), (28, 19), (100, 5)]):
        forest = forest_of(labelled(count, most=most, seed=seed))
        expected = others(forest), others.value_and_grad(forest)
        with monkeypatch.context() as patched:
            patched.setattr(fold, "turns_should_be_known", lambda: True)
            found = known(forest), known.value_and_grad(forest)
            _, shape, _, _ = known._prepared(forest, None, "loss", forest.roots)
        assert shape.all_turns
        counts = [len(s.nodes) for s in known._layout(forest, known._parts[next(iter(known._parts))]).segments]
        turns = [chunks[0] for chunks in shape.chunks]
        assert all(a <= b and (a == 0) == (b == 0) for a, b in zip(counts, turns, strict=True))
        assert sum(turns) <= 4 * sum(counts)
        shapes.add(shape.chunks)
        for a, b in zip(tree_util.tree_leaves(found), tree_util.tree_leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert len(shapes) > 2


def test_few_programs_know_how_many_chunks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    total = tp.fold(lambda value: value, lambda children: tp.sum(children))
    monkeypatch.setattr(fold, "turns_should_be_known", lambda: True)

    def chain(length: int) -> Any:
        return tp.forest(children=[[n + 1] for n in range(length)] + [[]], value=np.full(length + 1, 7, np.float32))

    for length in (1, 2, 3, 4):
        assert total(chain(length))[0] == 7
    assert total._turns == {(0, 0, 0, 0, 0, n) for n in (1, 2, 3, 4)}
    monkeypatch.setattr(fold, "TURNS", 5)
    for length in (20, 17, 13):
        assert total(chain(length))[0] == 7
    assert len(total._turns) == 5  # 24 turns do for 13 chunks and more
    assert total(chain(100))[0] == 7
    assert total(chain(11))[0] == 7
    assert len(total._turns) == 5


def test_which_program_knows_enough_turns() -> None:
    """Not twice as many as are needed, and none where there is no chunk to be computed again."""
    total = tp.fold(lambda value: value, lambda children: tp.sum(children))
    assert total._known_turns((0, 0, 0, 24)) == (0, 0, 0, 24)
    assert total._known_turns((0, 0, 0, 11)) == (0, 0, 0, 24)
    assert total._known_turns((0, 0, 0, 7)) == (0, 0, 0, 8)
    assert total._known_turns((0, 0, 0, 6)) == (0, 0, 0, 8)
    assert total._known_turns((0, 0, 2, 5)) == (0, 0, 2, 6)
    other = tp.fold(lambda value: value, lambda children: tp.sum(children))
    assert other._known_turns((0, 0, 2, 5)) == (0, 0, 2, 6)
    assert other._known_turns((0, 0, 0, 5)) == (0, 0, 0, 6)


def test_chunks_that_fill_up_leave_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chains of ten nodes are ten chunks, and twelve are computed; there is no room for two more."""
    total = tp.fold(lambda value: value, lambda children: tp.sum(children))
    monkeypatch.setattr(fold, "turns_should_be_known", lambda: True)
    children: list[list[int]] = [[n + 4] for n in range(40)] + [[]] * 4
    forest = tp.forest(children=children, value=np.array([0] * 40 + [1, 2, 3, 4], np.float32))
    assert total(forest, nodes=forest.roots).tolist() == [1, 2, 3, 4]
    _, shape, _, _ = total._prepared(forest, None, "some", forest.roots)
    assert (shape.chunks[-1], shape.rows) == ((12, 4, 1), 48)


def expected_losses(forest: Forest, vector: Any, scale: Any, w: Any, label: Any) -> Any:
    """Of every node, in JAX: the state of a leaf is its vector, that of another node is computed from the sum of its
    children's, with its own vector and scale."""
    states: dict[int, Any] = {}
    for node in forest.order.tolist():
        own = [states[child] for child in forest.children[node].tolist() if child >= 0]
        states[node] = jnp.tanh(w @ sum(own) * scale[node] + vector[node]) if own else jnp.sin(vector[node])
    return [jnp.sum((states[node] - label[node]) ** 2) for node in range(len(forest))]


SHAPES = {"vector": (3,), "scale": (), "label": (3,)}


class Tanh(nn.Module):
    def __init__(self) -> None:
        self.w = nn.Parameter((3, 3), nn.init.normal(0.5))

    def __call__(self, children: Any, vector: Any, scale: Any) -> Any:
        return tp.tanh(self.w @ tp.sum(children, axis=0) * scale + vector)


@cache
def tanh_fold(platform: str) -> Any:
    return tp.fold(lambda vector: tp.sin(vector), Tanh(), lambda state, label: tp.sum(tp.square(state - label)))


@pytest.mark.parametrize("platform", ("cpu", "gpu"))
@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_gradients_with_respect_to_data(platform: str, data: st.DataObject) -> None:
    """Of any trees, nodes with several parents among them, whose levels fill no chunk; with losses of their roots, or
    of any nodes, some of which count twice."""
    size = data.draw(st.integers(1, 40), label="nodes")
    above = data.draw(st.integers(0, size - 1), label="nodes with children")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), label="seed"))
    arity = data.draw(st.integers(1, 6), label="children at most")
    children: list[list[int]] = [[] for _ in range(size)]
    for node in range(above):
        children[node] = sorted(set(rng.integers(node + 1, size, size=rng.integers(1, arity + 1)).tolist()))
    arrays = {name: rng.normal(size=(size, *shape)).astype(np.float32) for name, shape in SHAPES.items()}
    forest = tp.forest(children=children, arity=6, **arrays, unread=np.ones((size, 2), np.float32))
    nodes = data.draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, max_size=9), label="losses of")
    names = ("vector", "scale", "label", "unread")
    folded = tanh_fold(platform)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jax, "default_backend", lambda: platform)
        loss, gradients, of_data = folded.value_and_grad(forest, nodes=nodes, inputs=names)
        without, _ = folded.value_and_grad(forest, nodes=nodes)
    wanted = forest.roots.tolist() if nodes is None else nodes

    def mean(vector: Any, scale: Any, label: Any, w: Any) -> Any:
        losses = expected_losses(forest, vector, scale, w, label)
        return sum(losses[node] for node in wanted) / len(wanted)

    given = (arrays["vector"], arrays["scale"], arrays["label"], folded.parameters["inner.w"])
    expected, (*flows, w) = jax.value_and_grad(mean, (0, 1, 2, 3))(*given)
    assert loss == pytest.approx(float(expected), rel=1e-4, abs=1e-6)
    assert without == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(gradients["inner.w"], w, rtol=1e-3, atol=1e-5)
    for name, array in zip(names[:3], flows, strict=True):
        np.testing.assert_allclose(of_data[name], array, rtol=1e-3, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(of_data["unread"], np.zeros((size, 2)))


def test_mistakes_with_losses() -> None:
    folded = tp.fold(lambda x: x, lambda children: tp.sum(children, axis=0), lambda state: state)
    forest = tp.forest(children=[[1], []], x=[0.0, 1.0], number=[1, 2])

    def message(**given: Any) -> str:
        with pytest.raises(tp.errors.TempoError) as error:
            folded.value_and_grad(forest, **given)
        return str(error.value)

    assert message(inputs=["number"]) == (
        "inputs: there is no gradient with respect to 'number'\n  hint: the forest's arrays of floats have one: x"
    )
    assert message(inputs=["y"]).startswith("inputs: there is no gradient with respect to 'y'")
    assert message(nodes=[]) == "value_and_grad of no nodes: their mean is not defined"
    assert folded(forest, nodes=[]).shape == (0,)
    assert message(nodes=[2]) == "nodes is not a list of numbers from 0 to 1: [2]"


def test_a_forest_that_is_folded_again_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    value = np.arange(5, dtype=np.float32)
    total = tp.fold(lambda value: value, lambda children: tp.sum(children), loss=lambda state: state)
    forest = tp.forest(children=[[1, 2], [], [3, 4], [], []], value=value)
    planned = []
    layout = fold.layout
    monkeypatch.setattr(fold, "layout", lambda forest, *rest: planned.append(forest) or layout(forest, *rest))
    for _ in range(3):
        assert total(forest).tolist() == [8, 1, 7, 3, 4]
        assert total(forest, nodes=[2, 4]).tolist() == [7, 4]
        assert total(forest, nodes=[4, 2]).tolist() == [4, 7]
        assert total.value_and_grad(forest)[0] == 8
    assert planned == [forest] * 4
    # What a forest is made of may change, the forest does not.
    value[3] = 100
    assert forest.data["value"].tolist() == [0, 1, 2, 3, 4]
    assert total(forest).tolist() == [8, 1, 7, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        forest.data["value"][3] = 100
    with pytest.raises(TypeError):
        forest.data["value"] = value  # type: ignore[index]
    # And what was planned goes with it.
    assert len(total._planned) == 1
    del forest
    planned.clear()
    assert not total._planned


def test_arenas_become_arenas_and_not_what_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX takes the first result of the same shape for a donated array's successor, and a GPU refuses one that is in
    other memory. Here as many states are wanted as an arena has rows."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    total = tp.fold(lambda value: value, lambda children: tp.sum(children, 0), loss=lambda state: tp.sum(state))
    forest = tp.forest(children=[[n + 1] for n in range(19)] + [[]], value=np.ones((20, 2), np.float32))
    parts, shape, values, inputs = total._prepared(forest, None, "some", np.zeros(total_rows(total, forest), int))
    assert shape.wanted == shape.rows
    arenas = [jnp.zeros((shape.rows, 2), np.float32)]
    for function, donated in ((total._forward, arenas), (total._backward, arenas * 2)):
        text = function(parts).lower(shape, values, inputs, donated).as_text()
        arguments, _, results = next(line for line in text.splitlines() if "@main" in line).partition("->")
        successors = [int(number) for number in re.findall(r"tf.aliasing_output = (\d+)", arguments)]
        kinds = re.findall(r'mhlo.memory_kind = "(\w+)"', results)
        assert len(successors) == len(donated)
        assert "pinned_host" in kinds
        assert {kinds[number] for number in successors} == {"device"}


def total_rows(folded: Any, forest: Any) -> int:
    """How many rows the arenas for a forest have."""
    rows: int = folded._prepared(forest, None, "some", forest.roots)[1].rows
    return rows


@pytest.mark.gpu
def test_forests_on_a_gpu() -> None:
    """States of the roots are those of all nodes, where these are; and the same for forests that are not new."""
    folded = new_tree_lstm()
    forests = [forest_of(labelled(30, most=19, seed=seed)) for seed in range(3)]
    first = [(folded(one, nodes=one.roots), folded(one), folded.value_and_grad(one)) for one in forests]
    again = [(folded(one, nodes=one.roots), folded(one), folded.value_and_grad(one)) for one in forests]
    for a, b in zip(tree_util.tree_leaves(first), tree_util.tree_leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for (of_roots, of_all, _), one in zip(first, forests, strict=True):
        for a, b in zip(of_roots, of_all, strict=True):
            np.testing.assert_allclose(a, b[one.roots], rtol=1e-6)
            a += 1  # they are the user's


def test_states_are_arrays_of_their_own() -> None:
    total = tp.fold(lambda value: value, lambda children: tp.sum(children))
    forest = tp.forest(children=[[1, 2], [], []], value=[0.0, 1.0, 2.0])
    first = total(forest)
    first += 10
    assert total(forest).tolist() == [3, 1, 2]
    assert first.tolist() == [13, 11, 12]


def test_data_of_any_width() -> None:
    """Four bytes a number or not, and with axes."""
    flags, halves = np.array([True, False, True]), np.array([0.5, 0.25, 2], np.float16)
    pairs = np.arange(6, dtype=np.float32).reshape(3, 2)
    numbers = np.array([1, 2**31 + 5, 3], np.uint32)
    folded = tp.fold(
        lambda pair, half, flag, number: pair * half.astype("float32") + tp.where(flag, 1.0, 0.0),
        lambda children, pair, number: tp.sum(children, axis=0) + pair + tp.where(number > 9, 1.0, 0.0),
    )
    forest = tp.forest(children=[[], [0, 2], []], pair=pairs, half=halves, flag=flags, number=numbers, unread=[0] * 3)
    assert folded(forest).tolist() == [[1, 1.5], [1 + 9 + 2 + 1, 1.5 + 11 + 3 + 1], [9, 11]]


def test_forests_of_similar_sizes_have_few_programs() -> None:
    """Arrays stay as large as they ever were: a smaller forest needs another program only if it has more chunks of some
    width."""
    folded = new_tree_lstm()
    forests = [forest_of(labelled(30)), *(forest_of(labelled(20, most=8, seed=seed)) for seed in range(5))]
    for forest in forests:
        folded(forest)
    found = folded.programs
    assert found <= 2
    for forest in forests:
        folded(forest)
    assert folded.programs == found


def test_a_chain_of_5000_nodes() -> None:
    class Add(nn.Module):
        def __init__(self) -> None:
            self.step = nn.Parameter((), nn.init.constant(0.5))

        def __call__(self, children: Any) -> Any:
            return tp.sum(children) + self.step

    folded = tp.fold(lambda value: value, Add(), loss=lambda state: state)
    nodes = 5001
    forest = tp.forest(children=np.append(np.arange(1, nodes), -1)[:, None], value=np.full(nodes, 2.0))
    assert folded(forest)[0] == 2 + 0.5 * 5000
    value, gradients = folded.value_and_grad(forest)
    assert value == 2 + 0.5 * 5000
    assert gradients["inner.step"] == 5000


def test_wide_levels_and_nodes_with_many_parents() -> None:
    # 600 nodes over the same two leaves, and one over two of them: more nodes on level 1 than on level 0.
    children = [[], [], *[[0, 1]] * 600, [2, 601]]
    total = tp.fold(lambda value: value, lambda children: tp.sum(children), loss=lambda state: state)
    forest = tp.forest(children=children, value=np.arange(603.0))
    assert total(forest).tolist() == [0.0, *[1.0] * 601, 2.0]


def test_no_trees() -> None:
    h, c = tree_lstm()(tp.forest(children=np.zeros((0, 2)), word=np.zeros(0, int), label=np.zeros(0, int)))
    assert h.shape == c.shape == (0, 5)


def message(kind: type[tp.TempoError], function: Any) -> str:
    with pytest.raises(kind) as error:
        function()
    return error.value.message


def test_mistakes() -> None:
    errors = tp.errors
    assert message(errors.InputError, lambda: tp.forest(children=[[1], [0], []])) == (
        "the children of node 0 lead in a circle"
    )
    assert message(errors.InputError, lambda: tp.forest(children=[[1], [7]])) == (
        "node 1 has a child 7, and there are 2 nodes"
    )
    assert message(errors.ShapeError, lambda: tp.forest(children=[[1], []], word=[1])) == (
        "word has 1 rows, and there are 2 nodes"
    )
    forest = tp.forest(children=[[1], []], value=[1.0, 2.0])
    folded = tp.fold(lambda word: word, lambda children: children)
    assert message(errors.ProgramError, lambda: folded(forest)) == (
        "cell leaf has an argument word, which nothing gives it"
    )
    folded = tp.fold(lambda value: value, lambda children: children)
    assert message(errors.ShapeError, lambda: folded(forest)) == (
        "the state of an inner node is float32[1], that of a leaf float32[]"
    )
    assert message(errors.GradientError, lambda: folded.value_and_grad(forest)) == "there is no loss to differentiate"


def test_leaves_that_repeat_with_arrays_in_any_order() -> None:
    """Integers of several types, whose names are not in the order of the alphabet."""
    n = 40
    word, flag = np.arange(n) % 5 + 1, np.arange(n) % 2 == 1
    folded = tp.fold(
        leaf=lambda word, flag: tp.where(flag, word * 1.0, word * 10.0),
        inner=lambda children: tp.sum(children, axis=0),
    )
    found = folded(tp.forest(children=[[]] * n, word=word, flag=flag))
    np.testing.assert_array_equal(found, np.where(flag, word, 10 * word))


def test_no_children_after_some() -> None:
    folded = tp.fold(leaf=lambda v: v, inner=lambda children: tp.sum(children, axis=0))
    assert folded(tp.forest(children=[[1, 2], [], []], v=[0.0, 1.0, 2.0])).tolist() == [3, 1, 2]
    assert folded(tp.forest(children=[[], [], []], arity=0, v=[0.0, 1.0, 2.0])).tolist() == [0, 1, 2]


def test_few_choices_of_nodes_are_kept() -> None:
    """Nodes may be drawn anew for every step of a training."""
    folded = tp.fold(leaf=lambda v: v, inner=lambda children: tp.sum(children, axis=0), loss=lambda state: 2 * state)
    forest = tp.forest(children=[[1, 2], [], []], v=[0.0, 1.0, 2.0])
    for count in range(1, 30):
        loss, _ = folded.value_and_grad(forest, nodes=[2] * count)
        assert loss == pytest.approx(4)
    assert len(folded._planned[forest]) == fold.PLANNED


def test_what_is_planned_goes_to_a_gpu_with_the_first_call_and_stays_there_from_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    doubled = tp.fold(lambda value: value, lambda children: tp.sum(children, 0))
    forest = tp.forest(children=[[1, 2], [], []], value=np.ones((3, 2), np.float32))
    kinds = []
    for _ in range(3):
        *_, inputs = doubled._prepared(forest, None, "some", forest.roots)
        kinds.append([isinstance(array, jax.Array) for array in inputs])
        np.testing.assert_array_equal(doubled(forest, nodes=[0]), [[2.0, 2.0]])
    assert kinds == [[False], [True], [True]]
    assert doubled._prepared(forest, None, "some", forest.roots)[-1][0] is inputs[0]
