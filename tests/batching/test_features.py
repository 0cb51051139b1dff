"""Arithmetic outside of cells, gradients of inputs, ghost steps, indices, errors as results."""

from __future__ import annotations

import copy
import operator
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.backends.jax import compiling
from tempo.batching import Cell, kernels


def test_operators_on_results_are_small_cells() -> None:
    double = tp.cell(lambda x: 2 * x, name="double")

    def model(x: Any) -> Any:
        y = double(x)
        return [y + 1, 1 - y, y * y, y / 2, 12 / y, -y, y**2, y @ y, y[0], y[1:], abs(-y), y // 3, y % 3, sum(y)]

    x = np.array([1.0, 2.0, 3.0], np.float32)
    y = 2 * x
    expected = [y + 1, 1 - y, y * y, y / 2, 12 / y, -y, y**2, y @ y, y[0], y[1:], y, y // 3, y % 3, y.sum()]
    for found in tp.batch(model)([x, x]):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_results_are_arrays_of_their_own(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes into one changes no other; and whoever keeps a large one keeps no other."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    ones, small = tp.cell(lambda x: x + tp.ones((100,)), name="ones"), tp.cell(lambda x: x * 2, name="small")

    def model(x: Any) -> Any:
        y = ones(x)
        return y, y, small(x)

    pair = np.array([1.0, 2.0], np.float32)
    first, second = tp.batch(lambda x: model(x[0]) + (small(x),))([pair, pair])
    for own in (first[0], first[3]):
        own += 10
    assert first[0].base is None
    for vector in (first[1], second[0], second[1]):
        np.testing.assert_array_equal(vector, np.full(100, 2.0))
    np.testing.assert_array_equal(second[3], [2.0, 4.0])


def test_operators_are_batched_and_differentiated() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            self.factor = nn.Parameter((), nn.init.constant(3.0))

        def __call__(self, x: Any) -> Any:
            return self.factor * x

    scale = tp.cell(Scale())
    batched = tp.batch(lambda x: scale(x) * scale(x) + 1, cells={"scale": scale})
    value, gradients = batched.value_and_grad([1.0, 2.0])
    assert value == (9 + 36) / 2 + 1
    assert gradients["scale.factor"] == (6 + 24) / 2
    assert batched.statistics.launches == 3


def test_a_loss_may_be_in_parts() -> None:
    square = tp.cell(lambda x: x * x, name="square")
    batched = tp.batch(lambda xs: {"all": [square(x) for x in xs]})
    assert batched.value_and_grad([[1.0, 2.0], [3.0]])[0] == (1 + 4 + 9) / 2


def test_gradients_of_inputs() -> None:
    times = tp.cell(lambda a, b: tp.sum(a * b), name="times")
    plus = tp.cell(lambda a, b: a + b, name="plus")

    def model(instance: Any) -> Any:
        a, b, _ = instance["arrays"]
        return times(plus(a, a), b)

    rng = np.random.default_rng(0)
    data = [{"arrays": [rng.normal(size=3) for _ in range(3)]} for _ in range(2)]
    value, gradients, of_inputs = tp.batch(model).value_and_grad(data, inputs=lambda one: one["arrays"])
    assert value == pytest.approx(np.mean([2 * (a * b).sum() for a, b, _ in (one["arrays"] for one in data)]), rel=1e-5)
    assert gradients == {}
    for one, (da, db, dc) in zip(data, of_inputs, strict=True):
        a, b, _ = one["arrays"]
        np.testing.assert_allclose(da, 2 * b / 2, rtol=1e-5)
        np.testing.assert_allclose(db, 2 * a / 2, rtol=1e-5)
        assert not dc.any()
    with pytest.raises(tp.errors.GradientError) as error:
        tp.batch(model).value_and_grad(data, inputs=lambda one: 3)
    assert error.value.message == "inputs: there is no gradient with respect to 3"


def test_ghost_steps_let_branches_of_unequal_length_meet_again() -> None:
    step = tp.cell(lambda x: x + 1, name="step")
    repair = tp.cell(lambda x: x * 2, name="repair")

    def model(kinds: str) -> Any:
        x: Any = 1.0
        for kind in kinds:
            x = step(x)
            if kind == "b":
                x = repair(x)
        return x

    def alone(kinds: str) -> float:
        x = 1.0
        for kind in kinds:
            x = (x + 1) * (2 if kind == "b" else 1)
        return x

    data = ["abab" * 4, "aaab" * 4, "bbab" * 4]
    batched = tp.batch(model)
    for _ in range(2):
        assert batched(data) == [alone(one) for one in data]
        # One for the start, 16 steps, and a repair behind the 12 of them after which some instance has one.
        assert batched.statistics.launches == 1 + 16 + 12
    assert batched.statistics.calls == 3 * 16 + 8 + 4 + 12
    # By depth alone, the instances drift apart.
    batched._phases.anchors.clear()
    assert batched(data) == [alone(one) for one in data]
    assert batched.statistics.launches > 40


def test_indices_out_of_range_are_errors() -> None:
    class Look(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Embedding(4, 2)

        def __call__(self, word: Any) -> Any:
            return self.table(word)

    batched = tp.batch(lambda words: [look(word) for word in words], cells={"look": (look := tp.cell(Look()))})
    rows = np.asarray(batched.parameters["look.table.weight"])
    assert np.array_equal(batched([[0, -1]])[0], rows[[0, 3]])
    for wrong in (4, -5):
        with pytest.raises(tp.errors.InputError) as error:
            batched([[0, 1], [3, wrong]])
        assert error.value.message == "an index is out of range in cell look, called for instance 1"
    assert np.array_equal(batched([[3]])[0][0], rows[3])


def test_indices_of_forests_are_checked() -> None:
    class Leaf(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Embedding(4, 2)

        def __call__(self, word: Any) -> Any:
            return self.table(word)

    model = tp.fold(Leaf(), lambda children: tp.sum(children, axis=0), loss=lambda state: tp.sum(state))
    forest = tp.forest(children=[[1, 2], [], []], word=[9, 1, 4])
    for run in (model, model.value_and_grad):
        with pytest.raises(tp.errors.InputError) as error:
            run(forest)
        assert error.value.message == "an index is out of range in cell leaf, for node 2"


def test_errors_as_results() -> None:
    half = tp.cell(lambda x: x / 2, name="half")

    def model(x: float) -> Any:
        if x < 0:
            raise KeyError(x)
        return half(x)

    def reading(x: float) -> Any:
        return half(x) if float(half(model(x))) >= 0 else None

    def parallel(x: float) -> Any:
        return tp.parallel(lambda: reading(x), lambda: reading(1.0))[0]

    for one in (model, reading, parallel):
        batched = tp.batch(one)
        first, error, last = batched([4.0, -1.0, 2.0], errors="return")
        assert (first, last) == (2.0, 1.0)
        assert isinstance(error, KeyError) and error.__notes__ == ["while the model ran on instance 1"]
        with pytest.raises(KeyError):
            batched([4.0, -1.0, 2.0])
    with pytest.raises(tp.errors.InputError) as wrong:
        batched([1.0], errors="ignore")
    assert wrong.value.message == "errors is 'ignore'"


def test_one_by_one_has_values_while_the_model_runs() -> None:
    half = tp.cell(lambda x: x / 2, name="half")
    seen = []

    def model(x: float) -> Any:
        y = half(x)
        seen.append(float(y))
        return half(y) if y > 1 else y

    assert tp.batch(model).one_by_one([4.0, 1.0]) == [1.0, 0.5]
    assert seen == [2.0, 0.5]


def test_a_batched_model_inside_another() -> None:
    half = tp.cell(lambda x: x / 2, name="half")
    plain = tp.batch(lambda x: half(x))
    reading = tp.batch(lambda x: half(x) if half(x) > 1 else x)

    def model(x: float) -> Any:
        first = half(x)
        (a,), (b,) = plain([x]), reading([x])
        return first + half(float(a) + float(b))

    assert tp.batch(model)([8.0, 1.0]) == [4 + 4, 0.5 + 0.75]


def test_many_instances_are_cut_into_launches() -> None:
    step = tp.cell(lambda x: x + 1, name="step")
    batched = tp.batch(lambda x: step(step(x)))
    assert batched(range(10_000)) == list(range(2, 10_002))
    # Numbers that are arguments, then two levels: each in ten launches, so that no kernel is wider than 1024.
    assert batched.statistics.launches == 30
    assert batched.statistics.dispatches == 2


def test_deep_recursion() -> None:
    step = tp.cell(lambda x: x + 1, name="step")

    def model(depth: int) -> Any:
        return step(model(depth - 1)) if depth else 0.0

    batched = tp.batch(model)
    first, error = batched([1, 5_000], errors="return")
    assert first == 1.0
    assert isinstance(error, tp.errors.ProgramError)
    assert error.message.startswith("the model's recursion on instance 1 is deeper than Python allows")
    # A loop has no such limit, nor has a forest.
    chain = tp.batch(lambda depth: [x := 0.0, *(x := step(x) for _ in range(depth))][-1])
    assert chain([5_000, 1, 0]) == [5_000.0, 1.0, 0.0]
    children = [[n + 1] for n in range(5_000)] + [[], []]
    total = tp.fold(lambda: tp.constant(0.0), lambda children: tp.sum(children) + 1)
    forest = tp.forest(children=children)
    assert total(forest)[forest.roots].tolist() == [5_000.0, 0.0]


def test_what_a_mini_batch_needs_is_compiled_once_each() -> None:
    """In threads beforehand, and found again by the calls themselves."""
    compiled: list[str] = []

    def listen(event: str, seconds: float, **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    def cell(a: tp.RecurrentTensor, b: tp.RecurrentTensor) -> tp.RecurrentTensor:
        return tp.tanh(a * 3.0 - b)

    combine = tp.cell(cell)

    def model(tree: Any) -> Any:
        return np.float32(tree) if isinstance(tree, int) else combine(*map(model, tree))

    trees = [((1, 2), (3, 4)), (1, (2, (3, 4))), (((1, 2), 3), ((4, 5), (6, 7)))]
    counts = []
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for ahead in (True, True, False):  # the first also compiles what all models share
            compiled.clear()
            batched = tp.batch(model)
            if not ahead:
                batched._kernels._compile = lambda calls: None
            batched(trees)
            counts.append(len(compiled))
            assert batched.programs > 1
    finally:
        jax.monitoring.clear_event_listeners()
    assert counts[1] == counts[2]


def test_what_kernels_are_compiled_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over launches are graphs, where there are such; products are the library's."""
    gpu = SimpleNamespace(platform="gpu", client=SimpleNamespace(platform_version="cuda 13000"))
    assert kernels._options(SimpleNamespace(platform="cpu")) is None
    monkeypatch.setattr(compiling, "LEAST_VERSION", jax.__version_info__)
    assert kernels._options(gpu) == compiling.LIBRARY_ONLY | compiling.GRAPHS
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_command_buffer=")
    assert kernels._options(gpu) == compiling.LIBRARY_ONLY


def test_calls_that_look_like_others_and_calls_that_do_not() -> None:
    """A cell's class has a function for calls like the latest; whatever does not fit it goes another way."""
    scale = tp.cell(lambda x, by=2.0: x * by, name="scale")
    generic = Cell.__call__

    def model(x: Any) -> Any:
        first = scale(x)
        found = [first, scale(first), scale(first, 3.0), scale(first, by=3.0), scale(by=first, x=2.0)]
        for n in range(60):  # by turns, and many of one kind in a row
            found.append(scale(first) if n % 2 or n > 30 else scale(x, n))
        return found

    batched = tp.batch(model)
    expected = [2.0, 4.0, 6.0, 6.0, 4.0, *(4.0 if n % 2 or n > 30 else 1.0 * n for n in range(60))]
    for _ in range(2):
        assert batched([1.0, 10.0]) == [expected, [10 * one for one in expected]]
        assert type(scale).__call__ is generic
    with pytest.raises(tp.errors.ProgramError, match="cell scale is called outside of a batched model"):
        scale(1.0)


def test_a_call_with_other_arguments_than_a_cell_has() -> None:
    scale = tp.cell(lambda x, by=2.0: x * by, name="scale")
    for call, problem in (
        (lambda x: [scale(x, 1.0), scale(x, 1.0, 2.0)], "too many positional arguments"),
        (lambda x: scale(), "missing a required argument: 'x'"),
        (lambda x: scale(x, factor=2.0), "got an unexpected keyword argument 'factor'"),
    ):
        with pytest.raises(tp.errors.ProgramError) as error:
            tp.batch(call)([1.0])
        assert error.value.message == f"cell scale cannot be called like this: {problem}"
        assert "here: test_features.py" in str(error.value)
        assert error.value.hint == "it is scale(x, by)"
    assert tp.batch(tp.cell(operator.neg))([1.0]) == [-1.0]


def test_an_error_in_a_call_that_does_not_look_like_others_has_the_users_line() -> None:
    scale = tp.cell(lambda x: x * 2, name="scale")

    def model(x: Any) -> Any:
        scale(scale(x))
        return scale("text")

    with pytest.raises(tp.errors.DtypeError) as error:
        tp.batch(model)([1.0])
    assert "here: test_features.py" in str(error.value)
    assert 'return scale("text")' in str(error.value)


def test_a_cell_in_two_models_at_the_same_time() -> None:
    """One runs inside of the other, and others in threads."""
    half = tp.cell(lambda x: x / 2, name="half")
    inner = tp.batch(lambda x: half(half(x)))

    def outer(x: float) -> Any:
        first = half(x)
        (quarter,) = inner([x])
        return half(first), half(float(quarter))

    assert tp.batch(outer)([8.0, 4.0]) == [(2.0, 1.0), (1.0, 0.5)]
    with ThreadPoolExecutor(4) as pool:
        models = [tp.batch(lambda x: [half(x) for _ in range(200)]) for _ in range(4)]
        for n, found in enumerate(pool.map(lambda pair: pair[1]([float(pair[0])] * 5), enumerate(models))):
            assert found == [[n / 2] * 200] * 5


def test_a_model_inside_of_itself_finds_out_what_needs_what() -> None:
    """What the mini-batch inside has seen is not new to the one around it, which must go by it all the same."""
    double = tp.cell(lambda x: 2 * x, name="double")
    more = tp.cell(lambda x: x + 1, name="more")

    def model(kind: str) -> Any:
        if kind == "inside":
            return more(double(1.0))
        before = double(more(3.0))
        inside = batched(["inside"])
        return inside, more(before)

    batched = tp.batch(model)
    assert batched(["around"]) == [([3.0], 9.0)]
    assert batched.one_by_one(["around"]) == [([3.0], 9.0)]


def test_copies_of_cells_are_other_cells() -> None:
    bend = tp.cell(tp.tanh, name="bend")
    for other in (copy.copy(bend), copy.deepcopy(bend), pickle.loads(pickle.dumps(bend))):
        assert isinstance(other, Cell)
        assert other is not bend
        assert type(other) is not type(bend)
        assert (other.name, repr(other)[:5]) == ("bend", "Cell(")


def test_lanes_of_padding_have_no_indices_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was computed early for a launch is, for its padding, whatever lies behind."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    table = np.arange(8, dtype=np.float32)
    eye, x = np.eye(4, dtype=np.float32), np.array([3, 0, 0, 0], np.float32)
    step = tp.cell(lambda h, x, m: h + tp.take(tp.constant(table), tp.sum(m @ x).astype("int32")), name="step")
    noise = tp.cell(lambda a: a * 1000.0, name="noise")

    def model(xs: list[Any]) -> Any:
        h: Any = np.float32(0)
        for one in xs:
            h = step(h, one, eye)
        return h, noise(xs[0])

    batched = tp.batch(model)
    assert batched([[x] * 4] * 4)[0][0] == 12
    assert batched([[x] * 5])[0][0] == 15
