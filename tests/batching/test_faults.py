"""An index that is out of range is the fault of the instances that have it: the results of all others are what they are
without these."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.errors import InputError, ProgramError

pick = tp.cell(lambda x, n: tp.take(x, n), name="pick")
plus = tp.cell(lambda a, b: a + b, name="plus")
NUMBERS = np.array([10, 20, 30], np.float32)


def sums(indices: Sequence[int]) -> Any:
    """What is at some places, one after the other."""
    found = pick(NUMBERS, indices[0])
    for n in indices[1:]:
        found = plus(found, pick(NUMBERS, n))
    return found


def stopping(indices: Sequence[int]) -> Any:
    """The same as far as it is below 50."""
    found = 0.0
    for n in indices:
        found = plus(found, pick(NUMBERS, n))
        if float(found) >= 50:
            break
    return found


def told(results: Sequence[Any]) -> list[Any]:
    """Numbers, and what errors say."""
    assert all(type(one) is InputError for one in results if isinstance(one, Exception))
    return [one.message if isinstance(one, InputError) else float(one) for one in results]


def fault(cell: str, instance: int) -> str:
    return f"an index is out of range in cell {cell}, called for instance {instance}"


def test_the_results_of_others_are_not_lost() -> None:
    batched = tp.batch(sums)
    data = [[0, 1], [1, 3, 2], [2], [2, 2, 0], [-4], [7, 7, 7], [-1]]
    expected = [30, fault("pick", 1), 30, 70, fault("pick", 4), fault("pick", 5), 30]
    assert told(batched(data, errors="return")) == expected
    with pytest.raises(InputError) as error:
        batched(data)
    assert error.value.message == fault("pick", 1)
    programs = batched.programs
    assert told(batched(data, errors="return")) == expected
    assert batched.programs == programs
    assert told(batched([[0], [1]], errors="return")) == [10, 20]


def test_who_reads_gets_the_error() -> None:
    batched = tp.batch(stopping)
    data = [[0, 1, 9], [2, 1, 9], [9], [0, 0, 0, 0], [1, -7, 1]]
    assert told(batched(data, errors="return")) == [
        fault("pick", 0), 50, fault("pick", 2), 40, fault("pick", 4)
    ]  # fmt: skip
    with pytest.raises(InputError) as error:
        batched(data)
    assert error.value.message == fault("pick", 2)
    with pytest.raises(InputError) as error:
        batched(data[:2])
    assert error.value.message == fault("pick", 0)


def test_what_a_model_does_with_the_error() -> None:
    """It has been at fault whether it goes on or not; an error of its own stays."""
    seen = []

    def model(task: tuple[str, int]) -> Any:
        what, n = task
        value = pick(NUMBERS, n)
        try:
            return float(value)
        except InputError as error:
            seen.append((what, error.message))
            if what == "raises":
                raise KeyError(what) from error
        finally:
            if what == "reads again":
                float(plus(value, 1.0))
        return 7.0

    data = [("", 2), ("goes on", 3), ("raises", 4), ("reads again", 5), ("reads again", 1)]
    first, goes_on, raises, again, last = tp.batch(model)(data, errors="return")
    assert (first, last) == (30, 20)
    assert (goes_on.message, again.message) == (fault("pick", 1), fault("pick", 3))
    assert isinstance(raises, KeyError) and raises.__cause__.message == fault("pick", 2)
    assert seen == [(what, fault("pick", n + 1)) for n, (what, _) in enumerate(data[1:4])]


def test_what_nobody_reads_is_a_fault_too() -> None:
    """As where calls are made one by one. It is found out in the end, when the model has long returned something."""

    def model(n: int) -> Any:
        pick(NUMBERS, n)
        value = plus(float(n), 1.0)
        return value if float(value) > 0 else None

    assert told(tp.batch(model)([1, 9, 2], errors="return")) == [2, fault("pick", 1), 3]

    def raising(n: int) -> Any:
        pick(NUMBERS, n)
        raise ValueError(n)

    (error,) = tp.batch(raising)([9], errors="return")
    assert isinstance(error, ValueError)


def test_functions_side_by_side() -> None:
    def model(indices: Sequence[int]) -> Any:
        if len(indices) == 1:
            return float(pick(NUMBERS, indices[0]))
        middle = len(indices) // 2
        return sum(tp.parallel(lambda: model(indices[:middle]), lambda: model(indices[middle:])))

    data = [[0, 1, 2, 2], [0, 1, 3, 3, 0], [1], [5, 0], [0, 5]]
    expected = [90, fault("pick", 1), 20, fault("pick", 3), fault("pick", 4)]
    assert told(tp.batch(model)(data, errors="return")) == expected


def test_models_inside_of_models() -> None:
    inner = tp.batch(sums)

    def strict(indices: Sequence[int]) -> Any:
        return sum(inner([[n] for n in indices]))

    def lenient(indices: Sequence[int]) -> Any:
        found = inner([[n] for n in indices], errors="return")
        return sum(0 if isinstance(one, InputError) else one for one in found)

    data = [[0, 1], [0, 4, 4], [2]]
    first, error, last = tp.batch(strict)(data, errors="return")
    assert (first, error.message, last) == (30, fault("pick", 1), 30)
    assert error.__notes__ == ["while the model ran on instance 1"]
    assert tp.batch(lenient)(data) == [30, 10, 30]


def test_all_instances_that_made_a_call_are_at_fault() -> None:
    """Calls with the same integers are made once."""
    embed = tp.cell(nn.Embedding(4, 2), name="embed")
    for read in (False, True):

        def model(words: Sequence[int], read: bool = read) -> Any:
            rows = [embed(word) for word in words]
            return [float(row[0]) for row in rows] if read else rows

        batched = tp.batch(model, cells={"embed": embed})
        data = [[1, 2], [1, 9], [9, 9, 2], [3], [], [2, 5]]
        found = batched(data, errors="return")
        assert batched.statistics.repeated > 0
        assert {n: one.message for n, one in enumerate(found) if isinstance(one, InputError)} == {
            n: fault("embed", n) for n in (1, 2, 5)
        }
        for n, own in zip((0, 3, 4), batched([data[n] for n in (0, 3, 4)]), strict=True):
            assert np.array_equal(found[n], own)


class Step(nn.Module):
    """Looks a word up, for which it need not wait: that is taken out of it."""

    def __init__(self) -> None:
        self.embed = nn.Embedding(500, 3)
        self.mix, self.keep = nn.Linear(3, 3), nn.Linear(3, 3)

    def __call__(self, h: Any, word: Any) -> Any:
        return tp.tanh(self.mix(self.embed(word)) + self.keep(h))


@pytest.mark.parametrize("most", (500, 3))
@pytest.mark.parametrize("reads", (False, True))
def test_what_is_taken_out_of_a_recursion(most: int, reads: bool) -> None:
    """The parts of a call are those of the same instance: it used to be the last one that was named."""
    step = tp.cell(Step(), name="step")

    def model(words: Sequence[int]) -> Any:
        h = np.zeros(3, np.float32)
        for word in words:
            h = step(h, word)
            if reads and float(h[0]) > 10:
                break
        return h

    batched = tp.batch(model, cells={"step": step})
    rng = np.random.default_rng(0)
    data = [[int(word) for word in rng.integers(most, size=rng.integers(1, 9))] for _ in range(30)]
    wanted = batched(data)
    if not reads:
        (repeated,) = batched._planner.hoisting.repeated.values()
        assert repeated == (most == 3)
    for n in (4, 11, 12):
        data[n][len(data[n]) // 2] = 500 + n % 2
    found = batched(data, errors="return")
    for n, (one, expected) in enumerate(zip(found, wanted, strict=True)):
        if n in (4, 11, 12):
            assert one.message == fault("step", n)
        else:
            np.testing.assert_allclose(one, expected, atol=1e-6)
    with pytest.raises(InputError) as error:
        batched(data[:6])
    assert error.value.message == fault("step", 4)


def test_many_faults_cost_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of all widths, in loops, and in another order than that of the calls."""
    rng = np.random.default_rng(0)
    data = [[int(n) for n in rng.integers(3, size=rng.integers(1, 40))] for _ in range(300)]
    batched = tp.batch(lambda indices: [pick(NUMBERS, n) for n in indices] and sums(indices))
    wanted = told(batched(data))
    launches = batched.statistics.launches
    wrong = rng.choice(300, 100, replace=False).tolist()
    for n in wrong:
        data[n][int(rng.integers(len(data[n])))] = 3
    found = told(batched(data, errors="return"))
    assert found == [fault("pick", n) if n in wrong else one for n, one in enumerate(wanted)]
    assert batched.statistics.launches == launches


def test_on_a_gpu_several_launches_are_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert told(tp.batch(stopping)([[0, 1, 9], [9], [1, 1, 1]], errors="return")) == [
        fault("pick", 0), fault("pick", 1), 60
    ]  # fmt: skip


def test_integers_that_do_not_fit() -> None:
    same = tp.cell(lambda n: n * 1, name="same")

    def reading(n: Any) -> Any:
        return float(same(n)) if same(3) > 0 else None

    for model in (same, reading):
        batched = tp.batch(model)
        first, large, last, larger = batched([1, 2**40, 2, -(2**70)], errors="return")
        assert (first, last) == (1, 2)
        for error, number in ((large, 2**40), (larger, -(2**70))):
            assert type(error) is InputError
            assert error.message == f"cell same is given {number}, which does not fit into int32"
    total = tp.cell(lambda a, b: tp.sum(a) + b, name="total")
    data = [np.array([2**n, 1], np.int64) for n in (20, 33, 30)]
    first, error, last = tp.batch(lambda a: total(a, 1.5))(data, errors="return")
    assert (first, last) == (2**20 + 2.5, 2**30)
    assert error.message == f"cell total is given {2**33}, which does not fit into int32"


def test_results_that_are_nested_too_deep() -> None:
    def model(depth: int) -> Any:
        found: Any = pick(NUMBERS, 0)
        for _ in range(depth):
            found = [found, pick(NUMBERS, 1)]
        return found

    shallow, deep, last = tp.batch(model)([1, 3000, 0], errors="return")
    assert (shallow, last) == ([10, 20], 10)
    assert isinstance(deep, ProgramError)
    assert deep.message == "the model's result for instance 1 is nested deeper than Python allows, 1000 calls"


def tree(rng: random.Random, depth: int, wrong: float) -> Any:
    """A word, a sentence that goes on from something, two things, or something after a word that is not used."""

    def index(count: int) -> int:
        return rng.choice((count, -2 * count)) if rng.random() < wrong else rng.randrange(count)

    match rng.choice("wspx") if depth else "w":
        case "w":
            return "w", index(5)
        case "s":
            return "s", tree(rng, depth - 1, wrong), [index(500) for _ in range(rng.randrange(6))]
        case "p":
            return "p", tree(rng, depth - 1, wrong), tree(rng, depth - 1, wrong), index(3)
        case _:
            return "x", index(5), tree(rng, depth - 1, wrong)


@pytest.mark.parametrize("platform", ("cpu", "gpu"))
@pytest.mark.parametrize("reads", (False, True))
def test_random_models(reads: bool, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    step, embed = tp.cell(Step(), name="step"), tp.cell(nn.Embedding(5, 3), name="embed")
    join = tp.cell(lambda a, b, n: (a + b) * tp.take(tp.constant(NUMBERS), n), name="join")
    total = tp.cell(lambda h: tp.sum(h), name="total")

    def model(instance: Any) -> Any:
        match instance:
            case "w", word:
                return embed(word)
            case "s", start, words:
                h = model(start)
                for word in words:
                    h = step(h, word)
                    if reads and word % 2 and float(total(h)) < -0.5:
                        h = join(h, h, word % 3)
                return h
            case "p", left, right, n:
                return join(*tp.parallel(lambda: model(left), lambda: model(right)), n)
            case _, word, rest:
                embed(word)
                return model(rest)

    batched = tp.batch(model, cells={"step": step, "embed": embed})
    for seed in range(6):
        rng = random.Random(seed)
        data = [tree(rng, rng.randrange(5), rng.choice((0, 0.02, 0.3))) for _ in range(12)]
        for n, (instance, found) in enumerate(zip(data, batched(data, errors="return"), strict=True)):
            try:
                (expected,) = batched.one_by_one([instance])
            except InputError:
                assert found.message.endswith(f", called for instance {n}")
            else:
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
