"""Random numbers inside of cells: by the seed, the instance and the call, however calls are batched."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.batching.draws import of_instance

SIZE = 8


@tp.cell
def noise(x: Any) -> Any:
    return x + tp.random.normal((SIZE,))


ZERO = np.zeros(SIZE, np.float32)


def same(batched: Any, data: Any, **options: Any) -> list[Any]:
    """The results together, which are those one call at a time."""
    together, alone = batched(data, **options), batched.one_by_one(data, **options)
    for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    return list(together)


def test_every_call_draws_other_numbers() -> None:
    batched = tp.batch(lambda x: [noise(x), noise(x)])
    found = np.array(same(batched, [ZERO] * 40)).reshape(-1, SIZE)
    assert len(np.unique(found, axis=0)) == 80
    assert abs(found.mean()) < 0.15
    assert abs(found.std() - 1) < 0.1
    again, other = np.array(batched([ZERO] * 40)), np.array(batched([ZERO] * 40, seed=1))
    np.testing.assert_array_equal(again.reshape(-1, SIZE), found)
    assert not np.any(other.reshape(-1, SIZE) == found)


def test_an_instance_draws_the_same_in_any_company() -> None:
    batched = tp.batch(lambda depth: noise(ZERO) if depth == 0 else noise(noise(ZERO)))
    first = same(batched, [1, 0, 1])
    second = same(batched, [1, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(first[:2], second[:2])


def test_two_draws_in_a_cell_differ() -> None:
    both = tp.cell(lambda: (tp.random.uniform((SIZE,)), tp.random.uniform((SIZE,))), name="both")
    for a, b in same(tp.batch(lambda _: both()), range(3)):
        assert not np.any(a == b)


class Step(nn.Module):
    def __init__(self) -> None:
        self.word = nn.Linear(SIZE, SIZE)
        self.state = nn.Linear(SIZE, SIZE)
        self.dropout = nn.Dropout(0.5)

    def __call__(self, x: Any, h: Any) -> Any:
        return tp.tanh(self.word(self.dropout(x, training=True)) + self.state(h))


@pytest.mark.parametrize("platform", ("cpu", "gpu"))
def test_dropout_in_a_recurrence(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with what is dropped are taken out of the recursion, with their keys."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    step = tp.cell(Step(), name="step")

    def model(sentence: Any) -> Any:
        h = ZERO
        for word in sentence:
            h = step(word, h)
        return h

    batched = tp.batch(model, cells={"step": step})
    rng = np.random.default_rng(0)
    data = [list(rng.normal(size=(n, SIZE)).astype(np.float32)) for n in (3, 5, 1, 4)]
    first = same(batched, data, seed=3)
    assert any(split is not None for split in batched._planner.hoisting.splits.values())
    assert not np.allclose(first, same(batched, data, seed=4))


def test_what_waits_draws_what_it_would_without() -> None:
    """Functions side by side, of which some wait, are not run in the order in which they are one call at a time."""
    size = tp.cell(lambda x: tp.sum(tp.abs(x)), name="size")

    def grow(x: Any, depth: int) -> Any:
        x = noise(x)
        if depth == 0 or float(size(x)) < 6:
            return [x]
        pair = tp.parallel(lambda: grow(0.9 * x, depth - 1), lambda: grow(noise(x), depth - 1))
        (alone,) = tp.parallel(lambda: noise(x))
        return [noise(x), alone, *pair]

    batched = tp.batch(lambda x: grow(x, 4))
    found = same(batched, [ZERO, ZERO + 1, ZERO], seed=5)
    assert len(jax.tree.leaves(found)) > 20
    # One that reads nothing is not run in fibers.
    same(tp.batch(lambda x: tp.parallel(lambda: noise(x), lambda: noise(noise(x)), lambda: noise(x))), [ZERO, ZERO])


def test_what_draws_only_after_it_has_waited() -> None:
    """Then it is known too late that keys are needed: the model is started again, whatever it catches."""
    size = tp.cell(lambda x: tp.sum(x), name="size")
    runs = []

    def model(x: Any) -> Any:
        runs.append(float(size(x)))
        try:
            return noise(x) if float(size(2 * x)) > 0 else x
        except:  # noqa: E722
            return None

    batched = tp.batch(model)
    found = same(batched, [ZERO + 1, ZERO, ZERO + 2])
    assert [one is not None and one.shape for one in found] == [(SIZE,)] * 3
    before = len(runs)
    batched([ZERO + 1])
    assert len(runs) == before + 1


def test_gradients_are_those_of_what_was_drawn() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter((SIZE,), nn.init.ones)

        def __call__(self, x: Any) -> Any:
            return nn.Dropout(0.5)(self.w * x, training=True)

    weighted, total = tp.cell(Weighted(), name="weighted"), tp.cell(lambda x: tp.sum(x), name="total")
    data = [np.full(SIZE, n + 1.0, np.float32) for n in range(6)]
    drawn = np.array(tp.batch(lambda x: weighted(x), cells={"weighted": weighted})(data, seed=7))
    assert {0.0, 2.0} == set((drawn / np.array(data)).ravel().tolist())
    batched = tp.batch(lambda x: total(weighted(x)), cells={"weighted": weighted})
    loss, gradients, of_data = batched.value_and_grad(data, inputs=lambda x: x, seed=7)
    assert loss == pytest.approx(drawn.sum() / len(data))
    np.testing.assert_allclose(gradients["weighted.w"], drawn.mean(0), rtol=1e-6)
    np.testing.assert_allclose(of_data, drawn / np.array(data) / len(data), rtol=1e-6)


def test_a_program_that_draws() -> None:
    with tp.Program("walk") as prog:
        t, T = prog.dim("t")
        start = prog.input("start")
        x = prog.recurrent("x", domain=t)
        x[-1] = start
        x[t] = x[t - 1] + tp.random.normal(domain=t)
        prog.output("last", x[T - 1])
    walk = tp.cell(prog, bounds={T: 5})
    batched = tp.batch(lambda x: [walk(x), walk(x)])
    found = np.array(same(batched, [0.0] * 30))
    assert len(np.unique(found)) == 60
    assert 1.5 < found.std() < 3


def tree(rng: Any, words: int) -> Any:
    return int(rng.integers(4)) if words == 1 else (tree(rng, words // 2), tree(rng, words - words // 2))


def test_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the node, however levels are cut; leaves with the same word are not the same any more."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter((SIZE,), nn.init.ones)

        def __call__(self, children: Any) -> Any:
            return tp.sum(children, axis=0) + nn.Dropout(0.5)(self.w, training=True)

    def folded() -> Any:
        return tp.fold(lambda word: tp.random.uniform((SIZE,)), Inner(), lambda state: tp.sum(state))

    rng = np.random.default_rng(0)
    forest = tp.forest(
        [tree(rng, n) for n in (9, 4, 30)],
        children=lambda node: node if isinstance(node, tuple) else (),
        word=lambda node: node if isinstance(node, int) else 0,
    )
    states = folded()(forest, seed=2)
    leaves = states[forest.heights == 0]
    assert len(np.unique(leaves, axis=0)) == len(leaves) == 43
    inner = np.flatnonzero(forest.heights)
    added = states[inner] - states[forest.children[inner]].sum(1)
    np.testing.assert_allclose(np.minimum(abs(added), abs(added - 2)), 0, atol=1e-4)
    assert 0.3 < (added > 1).mean() < 0.7
    assert not np.allclose(folded()(forest, seed=3)[inner], states[inner])
    model = folded()
    loss, gradients = model.value_and_grad(forest, seed=2)
    assert loss == pytest.approx(states[forest.roots].sum() / 3, rel=1e-5)
    np.testing.assert_allclose(gradients["inner.w"], 2 * np.sum(added > 1, 0) / 3, rtol=1e-5)
    again = model.value_and_grad(forest, seed=9)[0]
    assert again != loss
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(folded()(forest, seed=2), states, rtol=1e-5)


def test_the_cells_of_a_fold_draw_different_numbers_for_a_node() -> None:
    def apart(state: Any) -> Any:
        return tp.sum(tp.abs(state - tp.random.uniform((SIZE,))))

    folded = tp.fold(lambda word: tp.random.uniform((SIZE,)), lambda children: tp.sum(children, axis=0), apart)
    assert folded.value_and_grad(tp.forest(children=[[], []], word=[1, 1]))[0] > 0.5


def test_keys() -> None:
    """None occurs twice: of instances, calls, and functions side by side in each other."""
    found = []
    for seed, instance in itertools.product((0, 1, -1, 2**63 + 5), range(20)):
        draws = of_instance(seed, instance)
        for _ in range(3):
            found += [draws.next() for _ in range(4)]
            fork = draws.fork()
            for n in range(2):
                inside = draws.inside(fork, n)
                found += [inside.next(), inside.inside(inside.fork(), 0).next(), inside.next()]
    assert len(set(found)) == len(found)
    assert all(0 <= word < 2**32 for key in found for word in key)
    bits = np.array(found)[:, :, None] >> np.arange(32) & 1
    np.testing.assert_allclose(bits.mean(0), 0.5, atol=0.08)


def test_mistakes() -> None:
    batched = tp.batch(lambda x: noise(x))
    for call in (batched, batched.one_by_one, batched.value_and_grad):
        with pytest.raises(tp.errors.InputError, match="seed = 'a': a seed is an integer"):
            call([ZERO], seed="a")
