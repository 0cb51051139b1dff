"""What need not wait for a recursion is taken out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import nn


class Step(nn.Module):
    def __init__(self, size: int) -> None:
        self.of_x = nn.Linear(size, size)
        self.of_h = nn.Linear(size, size)

    def __call__(self, x: Any, h: Any) -> Any:
        return tp.tanh(self.of_x(x) + self.of_h(h))


def states(batched: Any, xs: Any) -> Any:
    p = {name: np.asarray(value, np.float64) for name, value in batched.parameters.items()}
    h = np.zeros(3)
    for x in xs:
        of_x = p["step.of_x.weight"] @ x + p["step.of_x.bias"]
        h = np.tanh(of_x + p["step.of_h.weight"] @ h + p["step.of_h.bias"])
    return h


def test_products_with_data_are_one_launch() -> None:
    step = tp.cell(Step(3))

    def model(xs: Any) -> Any:
        return step(xs[-1], model(xs[:-1])) if len(xs) else np.zeros(3)

    batched = tp.batch(model, cells={"step": step})
    data = [np.random.default_rng(n).normal(size=(n, 3)) for n in (1, 4, 2)]
    for found, xs in zip(batched(data), data, strict=True):
        np.testing.assert_allclose(found, states(batched, xs), atol=1e-5)
    ((trace, _), split), *others = batched._planner.hoisting.splits.items()
    assert not others
    assert trace.parameters == ("of_x.weight", "of_x.bias", "of_h.weight", "of_h.bias")
    assert split.early.parameters == ("of_x.weight",)
    assert split.late.parameters == ("of_x.bias", "of_h.weight", "of_h.bias")
    # Four steps, the states before the first ones, and all products with data.
    assert str(batched.statistics).startswith("3 instances, 7 calls: 6 launches")


def test_gradients() -> None:
    step = tp.cell(Step(3))
    total = tp.cell(lambda h: tp.sum(h), name="total")

    def model(xs: Any) -> Any:
        return step(xs[-1], model(xs[:-1])) if len(xs) else np.zeros(3)

    batched = tp.batch(lambda xs: total(model(xs)), cells={"step": step})
    xs = np.random.default_rng(0).normal(size=(3, 3))
    _, gradients = batched.value_and_grad([xs])
    assert batched._planner.hoisting.splits
    start = dict(batched.parameters)
    for name in ("step.of_x.weight", "step.of_h.weight", "step.of_x.bias"):
        sums = []
        for change in (1e-4, -1e-4):
            moved = np.array(start[name], np.float64)
            moved.flat[1] += change
            batched.parameters = start
            changed = type("Changed", (), {"parameters": {**start, name: moved}})
            sums.append(states(changed, xs).sum())
        assert np.asarray(gradients[name]).flat[1] == pytest.approx((sums[0] - sums[1]) / 2e-4, rel=1e-3)


def test_where_instances_wait_between_steps() -> None:
    """Every step of all instances is launches of their own: one for the products with data, one for the rest."""
    step, total = tp.cell(Step(3)), tp.cell(lambda h: tp.sum(h), name="total")

    def model(xs: Any) -> Any:
        h: Any = np.zeros(3)
        taken = []
        for k, x in enumerate(xs):
            h = step(x, h)
            if total(h) > -0.5:
                taken.append(k)
        return total(h), taken

    batched = tp.batch(model, cells={"step": step})
    data = [np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32) for n in (1, 5, 2, 4)]
    for _ in range(2):
        for found, xs in zip(batched(data), data, strict=True):
            every = [states(batched, xs[: k + 1]).sum() for k in range(len(xs))]
            assert found[1] == [k for k, one in enumerate(every) if one > -0.5]
            assert found[0] == pytest.approx(every[-1], abs=1e-5)

    losses = tp.batch(lambda xs: model(xs)[0], cells={"step": step})
    mean, gradients = losses.value_and_grad(data)
    each = [losses.value_and_grad([one]) for one in data]
    assert mean == pytest.approx(np.mean([one for one, _ in each]), abs=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, np.mean([np.asarray(g[name]) for _, g in each], 0), atol=1e-6)


def test_nothing_is_taken_out_of_what_waits_anyway() -> None:
    join = tp.cell(lambda a, b: a @ b, name="join")

    def model(tree: Any) -> Any:
        return join(*map(model, tree)) if isinstance(tree, tuple) else np.full((2, 2), float(tree))

    batched = tp.batch(model)
    assert batched([(1, (2, 3)), 1])[0].tolist() == [[24.0, 24.0], [24.0, 24.0]]
    assert list(batched._planner.hoisting.splits.values()) == [None]


def test_what_waits_for_a_cell_that_nothing_is_taken_out_of() -> None:
    """It used to be left out where it is found out what comes from the recursion, as a random model has shown."""

    class Join(nn.Module):
        def __init__(self, arguments: int) -> None:
            self.linear = nn.Linear(3 * arguments, 3)

        def __call__(self, *given: Any) -> Any:
            return tp.tanh(self.linear(tp.concatenate(given)))

    class Model(nn.Module):
        def __init__(self) -> None:
            self.leaf, self.step, self.join = nn.Embedding(5, 3), Join(1), Join(2)

        def __call__(self, step_is_last: bool) -> Any:
            if step_is_last:
                return self.step(self.join(self.leaf(1), self.join(self.leaf(2), self.leaf(3))))
            return self.join(self.step(self.leaf(4)), self.leaf(1))

    batched = tp.batch(Model())
    for instances in ([True], [True, False], [False, True]):
        for found, expected in zip(batched(instances), batched.one_by_one(instances), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)
