"""Models that decide by what they compute: instances wait for values, all together."""

from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.batching import kernels, store
from tempo.batching.trace import kind
from tests.batching import models


def halve() -> tp.batching.Cell:
    return tp.cell(lambda x: x / 2, name="halve")


def test_a_loop_that_ends_on_a_value() -> None:
    half = halve()

    def model(x: float) -> Any:
        steps = 0
        value = half(x)
        while value > 1:
            value = half(value)
            steps += 1
        return steps, value

    batched = tp.batch(model)
    assert batched([3.0, 40.0, 1.0, 17.0]) == [(1, 0.75), (5, 0.625), (0, 0.5), (4, 0.53125)]
    # As many launches as the longest loop has steps: whoever is not done goes on with the others.
    assert batched.statistics.calls == 2 + 6 + 1 + 5
    assert batched.statistics.launches == 6
    assert batched([]) == []
    assert batched([3.0]) == [(1, 0.75)]


def test_every_way_of_reading() -> None:
    half = halve()

    def model(x: float) -> Any:
        value = half(np.array([x, 2 * x]))
        first = tp.cell(lambda v: v.space[0], name="first")(value)
        number = tp.cell(lambda v: tp.argmax(v), name="number")(value)
        return [
            np.asarray(value).tolist(),
            float(first),
            int(number),
            bool(number),
            [10, 20][number],
            bool(first < 2),
            bool(first <= 1),
            bool(first >= 2),
            int(np.argmax(value)),
        ]

    assert tp.batch(model)([2.0]) == [[[1.0, 2.0], 1.0, 1, True, 20, True, True, False, 1]]


def test_on_a_gpu_small_values_are_read_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launch has just computed, it also gives apart from the arena."""
    half, start = halve(), tp.cell(lambda x: tp.stack([x, 1000 - x]), name="start")
    wide = tp.cell(lambda v: tp.concatenate([v] * 64), name="wide")

    def model(x: float) -> Any:
        value = start(x)
        seen = []
        while (now := np.asarray(value)).max() > 400:
            seen.append(now.tolist())
            value = half(value)
        return seen, float(wide(value).read()[1]), value

    batched = tp.batch(model)
    expected = batched([600.0, 100.0, 990.0])
    assert expected[1][:2] == ([[100.0, 900.0], [50.0, 450.0]], 225.0)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    looked_for: list[Any] = []
    from_arenas = store._rows_of

    def counted(arenas: Any, rows: Any, widths: Any, others: Any) -> Any:
        looked_for.append([arena.shape[1:] for arena in arenas])
        return from_arenas(arenas, rows, widths, others)

    monkeypatch.setattr(store, "_rows_of", counted)
    for (seen, last, value), other in zip(tp.batch(model)([600.0, 100.0, 990.0]), expected, strict=True):
        assert (seen, last) == other[:2]
        np.testing.assert_array_equal(value, other[2])
    # Only what is too large for that (after one step or two), and in the end the results.
    assert looked_for == [[(128,)], [(128,)], [(2,)]]


def test_rows_of_several_launches_are_found_without_their_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    number, pair = kind((), np.dtype(np.float32)), kind((2,), np.dtype(np.float32))
    # Three rows from the tenth on, with a lane of padding, and two behind them.
    pieces = [
        (number, 10, 3, np.array([0.0, 1.0, 2.0, 2.0], np.float32)),
        (pair, 4, 1, np.array([[7.0, 8.0]], np.float32)),
        (number, 13, 2, np.array([3.0, 4.0], np.float32)),
    ]
    found, _ = store.fetched({}, [number, pair, number, number], np.array([14, 4, 10, 13]), pieces=pieces)
    assert [np.asarray(one).tolist() for one in found] == [4.0, [7.0, 8.0], 0.0, 3.0]
    # Others are in the arena only.
    arena = np.arange(20, dtype=np.float32)
    for row in (9, 15):
        found, _ = store.fetched({number: arena}, [number], np.array([row]), pieces=pieces)
        assert found == [row]


def test_gradients_of_what_was_waited_for_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    square = tp.cell(lambda x: x * x, name="square")

    def model(x: Any) -> Any:
        value = square(x)
        while value < 100:
            value = square(value)
        return value

    x = [np.array(n, np.float32) for n in (3, 11, 2)]
    loss, _, of_x = tp.batch(model).value_and_grad(x, inputs=lambda one: one)
    # 3 ** 8 and 2 ** 8, of which 3 ** 4 and 2 ** 4 are not enough.
    assert loss == pytest.approx((3**8 + 11**2 + 2**8) / 3)
    np.testing.assert_allclose(of_x, [8 * 3**7 / 3, 2 * 11 / 3, 8 * 2**7 / 3], rtol=1e-6)


def test_on_a_gpu_the_launches_of_a_wait_are_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    grow, judge = tp.cell(lambda x: x * x, name="grow"), tp.cell(lambda x: x + 1, name="judge")

    def model(x: Any) -> Any:
        value = grow(x)
        while judge(value) < 100:
            value = grow(value)
        return value

    x = [np.array(n, np.float32) for n in (3, 11, 2)]
    of_loss = (3**8 + 11**2 + 2**8) / 3, [8 * 3**7 / 3, 2 * 11 / 3, 8 * 2**7 / 3]
    dispatches = []
    for most in (16, 1, 0):
        monkeypatch.setattr(kernels, "JOINTS", most)
        batched = tp.batch(model)
        assert batched(x) == [3**8, 11**2, 2**8]
        assert batched.statistics.launches == 6
        dispatches.append(batched.statistics.dispatches)
        loss, _, of_x = batched.value_and_grad(x, inputs=lambda one: one)
        assert loss == pytest.approx(of_loss[0])
        np.testing.assert_allclose(of_x, of_loss[1], rtol=1e-6)
    # Three waits. With one such kernel only the first is one dispatch, with none each launch is one.
    assert dispatches == [3, 5, 6]


def test_on_a_gpu_an_index_out_of_range_is_found_among_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    embed, total = tp.cell(nn.Embedding(10, 4), name="embed"), tp.cell(lambda x: tp.sum(x), name="total")
    batched = tp.batch(lambda word: float(total(embed(word))), cells={"embed": embed})
    assert batched([3, 9]) == pytest.approx([float(batched.parameters["embed.weight"][n].sum()) for n in (3, 9)])
    assert batched.statistics.dispatches == 1
    with pytest.raises(tp.errors.InputError, match="an index is out of range in cell embed"):
        batched([3, 10])


@pytest.mark.gpu
def test_instances_that_wait_on_a_gpu() -> None:
    """What they wait for is in memory that the host has, too; results and gradients are those without batches."""

    class Step(nn.Module):
        def __init__(self) -> None:
            self.embed = nn.Embedding(20, 8)
            self.mix = nn.Linear(16, 8)

        def __call__(self, state: Any, word: Any) -> Any:
            return tp.tanh(self.mix(tp.concatenate([state, self.embed(word)])))

    step, judge = tp.cell(Step()), tp.cell(lambda state: (tp.sum(state), tp.max(state)), name="judge")
    zero = np.zeros(8, np.float32)

    def model(sentence: list[int]) -> Any:
        state, kept = zero, []
        for word in sentence:
            state = step(state, word)
            total, highest = judge(state)
            if total > 0:
                kept.append(highest)
        return state, kept

    batched = tp.batch(model, cells={"step": step})
    for seed in range(3):
        sentences = models.sentences(40, seed=seed)
        together, alone = batched(sentences), batched.one_by_one(sentences)
        for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert batched.statistics.dispatches < batched.statistics.launches
    with pytest.raises(tp.errors.InputError, match="an index is out of range in cell step"):
        batched([[3, 25], [1]])


def test_what_is_not_read_is_computed_with_what_is() -> None:
    """Calls of a cell that is launched anyway are made, too."""
    half = halve()

    def model(x: float) -> Any:
        other = half(x + 1)
        return half(other) if half(x) > 1 else other

    batched = tp.batch(model)
    assert batched([1.0, 5.0]) == [1.0, 1.5]
    assert batched.statistics.launches == 2  # four halves, then one more


def test_parallel_functions_wait_together() -> None:
    half = halve()
    both = tp.cell(lambda a, b: a + b, name="both")

    def grow(x: Any) -> Any:
        """A tree that is only known while it is made."""
        value = half(x)
        if value > 1:
            return both(*tp.parallel(lambda: grow(value), lambda: grow(value)))
        return value

    def grow_one_after_another(x: Any) -> Any:
        value = half(x)
        return both(grow_one_after_another(value), grow_one_after_another(value)) if value > 1 else value

    together, apart = tp.batch(grow), tp.batch(grow_one_after_another)
    assert together([8.0, 3.0]) == apart([8.0, 3.0]) == [4 * 1.0, 2 * 0.75]
    assert together.statistics.calls == apart.statistics.calls
    assert together.statistics.launches < apart.statistics.launches


def test_parallel_functions_of_which_some_wait() -> None:
    half = halve()

    def model(x: float) -> Any:
        value = half(x)
        while value > 1:
            first, second = tp.parallel(lambda v=value: half(v), lambda v=value: float(half(v)))
            assert float(first) == second
            value = first
        return value

    assert tp.batch(model)([3.0, 40.0, 1.0]) == [0.75, 0.625, 0.5]


def test_parallel_without_reading() -> None:
    half = halve()
    batched = tp.batch(lambda x: tp.parallel(lambda: half(x), lambda: half(2 * x), lambda: "text"))
    assert batched([2.0]) == [[1.0, 2.0, "text"]]
    assert tp.parallel(lambda: 1, lambda: 2) == [1, 2]


def test_gradients_go_through_decisions() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            self.factor = nn.Parameter((), nn.init.constant(2.0))

        def __call__(self, x: Any) -> Any:
            return self.factor * x

    scale = tp.cell(Scale())

    def model(x: Any) -> Any:
        value = scale(x)
        return value if value > 10 else model(value)

    # 3 * 2 * 2 = 12, and 1 * 2 * 2 * 2 * 2 = 16
    value, gradients = tp.batch(model, cells={"scale": scale}).value_and_grad([3.0, 1.0])
    assert value == (12 + 16) / 2
    assert gradients["scale.factor"] == (3 * 2 * 2 + 4 * 2**3) / 2


def test_an_error_names_the_instance_and_leaves_no_thread_behind() -> None:
    half = halve()

    def model(x: float) -> Any:
        if half(x) > 3:
            raise KeyError("too large")
        return half(x)

    before = threading.active_count()
    with pytest.raises(KeyError) as error:
        tp.batch(model)([1.0, 8.0, 2.0])
    assert error.value.__notes__ == ["while the model ran on instance 1"]
    assert threading.active_count() == before


def test_what_waits_is_ended_after_an_error_whatever_it_catches() -> None:
    half = halve()
    ended = []

    def model(x: float) -> Any:
        if x == 8:
            half(x).read()
            raise KeyError("too large")
        for _ in range(3):
            try:
                half(half(x)).read()
                half(half(x)).read()
            except BaseException as error:
                ended.append(type(error).__name__)
        return x

    batched = tp.batch(model)
    assert batched([1.0, 2.0]) == [1.0, 2.0]
    ended.clear()
    with pytest.raises(KeyError):
        batched([1.0, 8.0, 2.0])
    assert ended == ["_Cancelled"] * 6


def test_a_model_that_catches_everything_waits_all_the_same() -> None:
    half = halve()

    def model(x: float) -> Any:
        try:
            found = float(half(x))
        except:  # noqa: E722
            found = "caught"  # type: ignore[assignment]
        return found + 1 if add else found

    for add in (False, True):
        assert tp.batch(model)([1.0, 2.0]) == [0.5 + add, 1.0 + add]


def test_recursion_that_is_too_deep() -> None:
    half = halve()

    def model(x: Any) -> Any:
        return model(half(x)) if half(x) >= 0 else x

    with pytest.raises(tp.errors.ProgramError) as error:
        tp.batch(lambda n: model(n) if n else 0.0)([0, 1.0])
    assert error.value.message.startswith("the model's recursion on instance 1 is deeper than Python allows")


def test_more_fibers_than_are_kept() -> None:
    """A greenlet that ended used to go on with the one that made it, not with the one that waited for its end."""
    half = halve()

    def grow(x: float, depth: int) -> Any:
        value = half(x)
        if depth == 0 or value < 0:
            return [value]
        left, right = tp.parallel(lambda: grow(x + 1, depth - 1), lambda: grow(x + 2, depth - 1))
        return [*left, value, *right]

    batched = tp.batch(lambda x: [float(v) for v in grow(x, 10)])
    expected = batched.one_by_one([1.0, 2.0])
    assert batched([1.0, 2.0]) == expected
    assert batched([1.0, 2.0]) == expected
    assert len(expected[0]) == 2**11 - 1


def test_fibers_leave_no_circles() -> None:
    """What refers to itself is found only by a search for garbage, which took a quarter of a DRNN's mini-batch."""
    half = halve()
    batched = tp.batch(lambda x: tp.parallel(lambda: float(half(x)), lambda: float(half(x + 1))))
    assert batched([1.0, 2.0]) == [[0.5, 1.0], [1.0, 1.5]]
    gc.collect()
    batched([1.0, 2.0])
    assert not [one for one in gc.get_objects() if type(one).__name__ == "_Fiber"]
