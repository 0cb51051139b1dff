"""Random models, compared with the same models one call at a time.

What an instance does is part of the instance: a tree of things to do, so that one batched model does for all of them,
and instances that have nothing in common are in one mini-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax import tree_util

import tempo as tp
from tempo import nn

SIZE, WORDS = 3, 5
CLOSE = 1e-3
"""Decisions by values that are closer to each other could be different ones: results differ in their last bits."""


class Leaf(nn.Module):
    def __init__(self) -> None:
        self.embed = nn.Embedding(WORDS, SIZE)

    def __call__(self, word: Any) -> Any:
        return tp.tanh(self.embed(word))


class Step(nn.Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(SIZE, SIZE)

    def __call__(self, x: Any) -> Any:
        return tp.tanh(self.linear(x)) + 0.5 * x


class Join(nn.Module):
    def __init__(self) -> None:
        self.gates = nn.Linear(2 * SIZE, 2 * SIZE)

    def __call__(self, a: Any, b: Any) -> Any:
        new, gate = tp.split(self.gates(tp.concatenate([a, b])), 2)
        return tp.sigmoid(gate) * tp.tanh(new), tp.sigmoid(gate)


class Pair(nn.Module):
    """A state of two parts, with what is given by name in a dict."""

    def __init__(self) -> None:
        self.linear = nn.Linear(SIZE, SIZE)

    def __call__(self, state: Any, more: Any) -> Any:
        h, c = state
        c = tp.sigmoid(self.linear(h)) * c + more["scale"] * more["x"]
        return tp.tanh(c), c


class Noise(nn.Module):
    """Something else at every call, and parts of it dropped."""

    def __init__(self) -> None:
        self.linear = nn.Linear(SIZE, SIZE)
        self.dropout = nn.Dropout(0.3)

    def __call__(self, x: Any) -> Any:
        return tp.tanh(self.linear(self.dropout(x, training=True))) + tp.random.uniform((SIZE,)) - 0.5


class Score(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Parameter((SIZE,), nn.init.normal(1.0))

    def __call__(self, x: Any) -> Any:
        return tp.sum(self.weight * x)


class Model(nn.Module):
    """The value of a tree, values that nothing else reads, and what was decided on the way."""

    def __init__(self) -> None:
        self.leaf, self.step, self.join, self.pair, self.score = Leaf(), Step(), Join(), Pair(), Score()
        self.noise = Noise()
        self.start = np.full(SIZE, 0.25, np.float32)

    def __call__(self, node: Any) -> Any:
        kept: list[Any] = []
        decisions: list[float] = []
        value = self.value(node, kept, decisions)
        return {"value": value, "kept": kept, "decisions": tuple(decisions)}

    def value(self, node: Any, kept: list[Any], decisions: list[float]) -> Any:
        what, *rest = node
        if what == "leaf":
            return self.leaf(rest[0])
        if what == "start":
            return self.start
        if what == "join":
            return self.join(self.value(rest[0], kept, decisions), self.value(rest[1], kept, decisions))[0]
        if what == "side by side":
            inside: list[tuple[list[Any], list[float]]] = [([], []) for _ in rest]
            functions = [
                lambda one=one, own=own: self.value(one, *own)  # type: ignore[misc]
                for one, own in zip(rest, inside, strict=True)
            ]
            values = tp.parallel(*functions)
            for more_kept, more_decisions in inside:
                kept += more_kept
                decisions += more_decisions
            found = values[0]
            for other in values[1:]:
                found, gate = self.join(found, other)
                kept.append(gate)
            return found
        found = self.value(rest[0], kept, decisions)
        if what == "steps":
            for _ in range(rest[1]):
                found = self.step(found)
        elif what == "noise":
            for _ in range(rest[1]):
                found = self.noise(found)
        elif what == "keep":
            kept.append(self.step(self.step(found)))
        elif what == "sum":
            found = 0.5 * self.step(found) + self.leaf(rest[1])
        elif what == "pairs":
            state = found, self.start
            for n in range(rest[1]):
                state = self.pair(state, {"x": self.leaf(n), "scale": 0.5 * n})
            found, c = state
            kept.append(self.join(found, c))
        elif what == "choose":
            scores = np.asarray(self.step(found))
            decisions.extend(np.abs(np.diff(np.sort(scores))).tolist())
            found = self.value(rest[1 + int(np.argmax(scores)) % len(rest[1:])], kept, decisions)
        elif what == "if":
            score = float(self.score(found))
            decisions.append(score - rest[1])
            if score > rest[1]:
                found = self.step(found)
        elif what == "fail if":
            score = float(self.score(found))
            if abs(score - rest[1]) < CLOSE or score > rest[1]:
                raise ValueError("too large" if score > rest[1] + CLOSE else "not sure")
        elif what == "while":
            for _ in range(4):
                score = self.score(found)
                decisions.append(float(score) - rest[1])
                if score <= rest[1]:
                    break
                found = self.step(found)
        return found


class Loss(Model):
    """The scores of all that a model computes."""

    def __call__(self, node: Any) -> Any:
        result = super().__call__(node)
        return [self.score(value) for value in tree_util.tree_leaves((result["value"], result["kept"]))]


words, limits = st.integers(0, WORDS - 1), st.floats(-1, 1, width=16)
leaves = st.tuples(st.just("leaf"), words) | st.just(("start",))


def larger(nodes: Any) -> Any:
    return st.one_of(
        st.tuples(st.just("join"), nodes, nodes),
        st.builds(lambda some: ("side by side", *some), st.lists(nodes, min_size=1, max_size=3)),
        st.tuples(st.just("steps"), nodes, st.integers(0, 3)),
        st.tuples(st.just("keep"), nodes),
        st.tuples(st.just("sum"), nodes, words),
        st.tuples(st.just("pairs"), nodes, st.integers(1, 3)),
        st.tuples(st.just("choose"), nodes, nodes, nodes),
        st.tuples(st.just("if"), nodes, limits),
        st.tuples(st.just("while"), nodes, limits),
    )


instances = st.lists(st.recursive(leaves, larger, max_leaves=8), min_size=1, max_size=6)
failing = st.lists(
    st.recursive(leaves, lambda nodes: larger(nodes) | st.tuples(st.just("fail if"), nodes, limits), max_leaves=8),
    min_size=1,
    max_size=6,
)


noises = st.integers(1, 2)
drawing = st.lists(
    st.recursive(leaves, lambda nodes: larger(nodes) | st.tuples(st.just("noise"), nodes, noises), max_leaves=8),
    min_size=1,
    max_size=4,
)


@contextmanager
def as_on(platform: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jax, "default_backend", lambda: platform)
        yield


@cache
def batched(platform: str, model: type[Model]) -> Any:
    """One for each platform: kernels are made for it."""
    return tp.batch(model())


def same(found: Any, expected: Any) -> None:
    a, b = tree_util.tree_flatten(found), tree_util.tree_flatten(expected)
    assert a[1] == b[1]
    for one, other in zip(a[0], b[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


RANDOM = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@RANDOM
@given(instances)
def test_results(platform: str, nodes: list[Any]) -> None:
    alone = batched("cpu", Model).one_by_one(nodes)
    sure = [n for n, one in enumerate(alone) if all(abs(margin) > CLOSE for margin in one["decisions"])]
    with as_on(platform):
        together = batched(platform, Model)([nodes[n] for n in sure])
    same(together, [alone[n] for n in sure])


@RANDOM
@given(failing)
def test_instances_that_fail(nodes: list[Any]) -> None:
    """Wherever they do, while others wait or are waited for: the others' results are there."""

    def alone(node: Any) -> Any:
        try:
            return batched("cpu", Model).one_by_one([node])[0]
        except ValueError as error:
            return error

    expected = [alone(node) for node in nodes]
    sure = [
        n
        for n, one in enumerate(expected)
        if (str(one) != "not sure" if isinstance(one, ValueError) else all(abs(m) > CLOSE for m in one["decisions"]))
    ]
    found = batched("cpu", Model)([nodes[n] for n in sure], errors="return")
    for n, one in zip(sure, found, strict=True):
        if isinstance(expected[n], ValueError):
            assert str(one) == str(expected[n])
        else:
            same(one, expected[n])


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@RANDOM
@given(instances)
def test_gradients(platform: str, nodes: list[Any]) -> None:
    """That of many is the mean of those of one each."""
    alone = batched("cpu", Model).one_by_one(nodes)
    sure = [
        node for node, one in zip(nodes, alone, strict=True) if all(abs(margin) > CLOSE for margin in one["decisions"])
    ]
    if not sure:
        return
    expected = [batched("cpu", Loss).value_and_grad([node]) for node in sure]
    with as_on(platform):
        found = batched(platform, Loss).value_and_grad(sure)
    same(found, tree_util.tree_map(lambda *parts: sum(parts) / len(parts), *expected))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@RANDOM
@given(drawing, st.integers(0, 3))
def test_draws(platform: str, nodes: list[Any], seed: int) -> None:
    """Instances draw the same wherever they wait, and whatever is computed with them; so do their gradients."""
    alone = batched("cpu", Model).one_by_one(nodes, seed=seed)
    assume(all(abs(margin) > CLOSE for one in alone for margin in one["decisions"]))
    expected = batched("cpu", Loss).value_and_grad(nodes, seed=seed)
    with as_on(platform):
        same(batched(platform, Model)(nodes, seed=seed), alone)
        same(batched(platform, Loss).value_and_grad(nodes, seed=seed), expected)
    scores = batched("cpu", Loss).one_by_one(nodes, seed=seed)
    same(expected[0], sum(float(score) for one in scores for score in one) / len(nodes))
