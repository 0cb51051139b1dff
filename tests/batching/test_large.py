"""Kernels whose large products are ours: lowered and compiled for all shapes that come. Here no product is large."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.backends.jax.replaced import LEAST_WORK
from tempo.batching import kernels, large


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All kernels are as those with large products: the programs in which these were looked for."""
    found: list[Any] = []
    monkeypatch.setattr(kernels, "has_large_products", lambda work: True)
    monkeypatch.setattr(large, "use_kernels", found.append)
    return found


class Join(nn.Module):
    def __init__(self) -> None:
        self.both = nn.Linear(8, 4)

    def __call__(self, left: Any, right: Any) -> Any:
        return tp.tanh(self.both(tp.concatenate([left, right])))


class Score(nn.Module):
    def __call__(self, state: Any) -> Any:
        return tp.sum(state)


class Tree(nn.Module):
    def __init__(self) -> None:
        self.join = Join()
        self.score = Score()

    def __call__(self, tree: Any) -> Any:
        def state(tree: Any) -> Any:
            return self.join(*map(state, tree)) if isinstance(tree, tuple) else np.full(4, tree, np.float32)

        return self.score(state(tree))


TREES = [(1, 2), ((1, 2), (3, 4)), (((1, 2), 3), 4), 5, ((3, 4), 5)]


def test_results_are_those_of_one_call_at_a_time(looked_at: list[Any]) -> None:
    batched = tp.batch(Tree())
    for trees in (TREES, TREES[::-1], TREES[:2]):
        for found, expected in zip(batched(trees), batched.one_by_one(trees), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert looked_at


def test_what_was_compiled_is_found_by_its_shapes(looked_at: list[Any]) -> None:
    batched = tp.batch(Tree())
    batched(TREES)
    count = len(looked_at)
    batched([(2, 1), ((5, 2), (3, 4)), (((1, 7), 3), 4), 5, ((3, 9), 5)])
    assert len(looked_at) == count and batched.statistics.compiled == 0


def test_gradients_go_through_them(looked_at: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    batched = tp.batch(Tree())
    loss, gradients = batched.value_and_grad(TREES)
    with monkeypatch.context() as plain:
        plain.setattr(kernels, "has_large_products", lambda work: False)
        expected_loss, expected = batched.value_and_grad(TREES)
    assert loss == pytest.approx(expected_loss)
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "platform, capability, work, expected",
    [
        ("gpu", "9.0", 2.0 * LEAST_WORK, True),
        ("gpu", "9.0", 2.0 * LEAST_WORK - 1, False),
        ("gpu", "8.0", 1e12, False),
        ("cpu", None, 1e12, False),
    ],
)
def test_who_has_large_products(
    platform: str, capability: str | None, work: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "cuda 13000" if platform == "gpu" else "cpu"
    client = SimpleNamespace(platform_version=version)
    device = SimpleNamespace(platform=platform, client=client, compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert large.has_large_products(work) == expected
