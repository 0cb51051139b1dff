"""What is computed where instances wait: what they wait for, and what can come along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.batching import demand


@pytest.fixture(autouse=True, params=(0, demand.MANY))
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put off is not looked at if it is much, or always if it can be: nothing else is computed then."""
    monkeypatch.setattr(demand, "MANY", request.param)


def test_what_nothing_waits_for_is_put_off() -> None:
    half = tp.cell(lambda x: x / 2, name="half")
    note = tp.cell(lambda x: 10 * x, name="note")

    def model(x: float) -> Any:
        notes, value = [], half(x)
        while value > 1:
            notes.append(note(value))
            value = half(value)
        return notes

    batched = tp.batch(model)
    assert batched([3.0, 40.0, 1.0]) == [[15.0], [200.0, 100.0, 50.0, 25.0, 12.5], []]
    # Six halves, of which every one is waited for, and in the end all notes.
    assert (batched.statistics.launches, batched.statistics.calls) == (7, 15)


def test_what_can_come_along_comes_along() -> None:
    half = tp.cell(lambda x: x / 2, name="half")
    join = tp.cell(lambda a, b: a + b, name="join")

    def model(kind: tuple[int, int]) -> Any:
        """Joins ``steps`` times, deciding before each; then joins ``more`` times without."""
        steps, more = kind
        total = half(2.0)
        for _ in range(steps):
            if total > 0:
                total = join(total, half(2.0))
        for _ in range(more):
            total = join(total, total)
        return total

    batched = tp.batch(model)
    assert batched([(5, 0), (1, 3), (0, 2)]) == [6.0, 16.0, 4.0]
    # What the last two still have to do is done while the first one decides.
    launches = batched.statistics.launches
    batched([(5, 0)])
    assert launches == batched.statistics.launches == 11


def test_what_was_put_off_and_is_needed_after_all() -> None:
    double = tp.cell(lambda x: 2 * x, name="double")
    plus = tp.cell(lambda a, b: a + b, name="plus")

    def model(x: float) -> Any:
        first = double(x)
        late = plus(first, double(first))  # nothing needs it for some time
        for _ in range(3):
            first = double(first)
            if first > 1000:
                return first
        later = plus(late, first)
        return float(later), later, plus(later, late)

    batched = tp.batch(model)
    expected = [(22.0, 22.0, 28.0), (44.0, 44.0, 56.0), 1600.0]
    assert batched([1.0, 2.0, 200.0]) == expected
    assert batched.one_by_one([1.0, 2.0, 200.0]) == expected
    assert batched([2.0, 1.0]) == expected[1::-1]


class Mix(nn.Module):
    def __init__(self) -> None:
        self.left = nn.Linear(3, 3)
        self.right = nn.Linear(3, 3)

    def __call__(self, a: Any, b: Any) -> Any:
        return tp.tanh(self.left(a) + self.right(b))


class Random(nn.Module):
    """A program that calls and reads at random, by what it reads, too."""

    def __init__(self) -> None:
        self.embed = nn.Embedding(5, 3)
        self.mix = Mix()
        self.step = nn.Linear(3, 3)

    def __call__(self, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        values = [self.embed(int(n)) for n in rng.integers(5, size=3)]
        for _ in range(rng.integers(2, 12)):
            a, b = (values[n] for n in rng.integers(len(values), size=2))
            match rng.integers(4):
                case 0:
                    values.append(self.step(a))
                case 1 | 2:
                    values.append(self.mix(a, b))
                case _:
                    chosen = a if np.sum(np.asarray(b)) > 0 else b
                    values.append(self.mix(chosen, chosen))
        return values[int(rng.integers(len(values)))], values[-1]


class Loss(Random):
    def __init__(self) -> None:
        super().__init__()
        self.score = tp.cell(lambda a, b: tp.sum(a * b), name="score")

    def __call__(self, seed: int) -> Any:
        return self.score(*super().__call__(seed))


@pytest.mark.parametrize("start", [0, 100, 200])
def test_random_programs(start: int) -> None:
    batched = tp.batch(Random(), seed=start)
    seeds = list(range(start, start + 20))
    for some in (seeds, seeds[::-1][:7]):
        for found, alone in zip(batched(some), batched.one_by_one(some), strict=True):
            np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


def test_gradients_of_random_programs() -> None:
    batched = tp.batch(Loss())
    seeds = list(range(12))
    loss, gradients = batched.value_and_grad(seeds)
    alone = [batched.value_and_grad([seed]) for seed in seeds]
    assert loss == pytest.approx(np.mean([one for one, _ in alone]), rel=1e-5)
    for name, gradient in gradients.items():
        mean = np.mean([np.asarray(own[name]) for _, own in alone], axis=0)
        np.testing.assert_allclose(gradient, mean, rtol=1e-4, atol=1e-6, err_msg=name)


def test_what_is_put_off_is_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every wait, that took time that grew with their number: by the square."""
    looks: list[Any] = []
    of_all: Any = demand._of_all
    monkeypatch.setattr(demand, "_of_all", lambda *args: looks.append(args[1]) or of_all(*args))
    half = tp.cell(lambda x: x / 2, name="half")
    note = tp.cell(lambda x, before: x + before, name="note")

    def model(steps: int) -> Any:
        value, noted = half(2.0), 0.0
        for n in range(steps):
            noted = note(value, noted)
            if n == 70:
                value += float(noted) - float(noted)
            value = half(2 * value) if float(value) > 0 else value
        return noted

    batched = tp.batch(model)
    for _ in range(2):
        looks.clear()
        assert batched([100, 60, 90]) == [100, 60, 90]
    seldom = demand.MANY == 0
    assert (len(looks) < 12) == seldom
