"""A batched model gives every instance what it would get alone, in few launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.batching.widths import padded_width
from tests.batching import models


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected.detach()), atol=1e-5, rtol=1e-5)


def test_a_model_of_one_instance_becomes_one_of_many() -> None:
    @tp.cell
    def plus(a: Any, b: Any) -> Any:
        return a + b

    def total(numbers: Any) -> Any:
        match numbers:
            case [first, *rest]:
                return plus(total(first), total(rest)) if rest else total(first)
            case number:
                return number

    batched = tp.batch(total)
    assert batched([[1.0, [2.0, 3.0]], [4.0, 5.0], 7.0]) == [6.0, 9.0, 7.0]
    # The numbers, which are results of cells elsewhere, are put into an arena. Then instance 0 adds 2 and 3, while
    # instance 1 adds 4 and 5; then 1.
    assert str(batched.statistics) == "3 instances, 3 calls: 3 launches of 1.0 calls, 0% padding, 3 compiled"


def test_tree_lstm() -> None:
    batched = tp.batch(models.TreeLSTM(5))
    data = models.trees(20)
    p = models.as_torch(batched.parameters)
    assert list(p) == list(models.TreeLSTM(5).parameters())
    for (h, c), one in zip(batched(data), data, strict=True):
        expected = models.torch_tree(p, one)
        close(h, expected[0])
        close(c, expected[1])

    def height(tree: Any) -> int:
        return 0 if isinstance(tree, int) else 1 + max(map(height, tree))

    # Leaves once, inner nodes once for every height.
    assert batched.statistics.launches == 1 + max(map(height, data))


def test_nodes_with_any_number_of_children() -> None:
    batched = tp.batch(models.TreeLSTM(4))
    data = [(1, 2, 3), ((4,), 5, (6, 7, 8)), 9]
    p = models.as_torch(batched.parameters)
    for (h, _), one in zip(batched(data), data, strict=True):
        close(h, models.torch_tree(p, one)[0])


def test_birnn_classifies_all_words_of_all_sentences_at_once() -> None:
    batched = tp.batch(models.BiRNN(4))
    data = models.sentences(10)
    p = models.as_torch(batched.parameters)
    for found, sentence in zip(batched(data), data, strict=True):
        close(found, models.torch_birnn(p, sentence))
    longest = max(map(len, data))
    # Words, states before the first step, classifications: one launch each; the recurrences: one each for every step,
    # and one each for what they make of the words, which does not wait for any step.
    assert batched.statistics.launches == 5 + 2 * longest


def test_mv_rnn_has_a_matrix_for_every_node() -> None:
    word, compose = tp.cell(models.Word(4)), tp.cell(models.Compose(4))

    def model(tree: Any) -> Any:
        return word(tree) if isinstance(tree, int) else compose(*map(model, tree))

    batched = tp.batch(model, cells={"word": word, "compose": compose})
    data = models.trees(12)
    p = models.as_torch(batched.parameters)
    for (vector, matrix), one in zip(batched(data), data, strict=True):
        expected = models.torch_mvrnn(p, one)
        close(vector, expected[0])
        close(matrix, expected[1])


def test_results_have_the_model_s_structure() -> None:
    @dataclass
    class Node:
        value: Any
        children: list[Any]

    @tp.cell
    def double(x: Any) -> dict[str, Any]:
        return {"twice": 2 * x}

    batched = tp.batch(lambda x: Node((double(x)["twice"], "text"), [double(x), None]))
    assert batched([1.0]) == [Node((2.0, "text"), [{"twice": 2.0}, None])]
    plain = Node(1, [])
    (found,) = tp.batch(lambda x: (x, double))([plain])
    assert found[0] == plain and found[1] is double


def test_no_instances_and_one() -> None:
    batched = tp.batch(models.TreeLSTM(4))
    assert batched(tree for tree in ()) == batched([]) == []
    assert str(batched.statistics) == "0 instances, 0 calls: 0 launches of 0.0 calls, 0% padding, 0 compiled"
    ((h, c),) = batched([(1, 2)])
    assert h.shape == c.shape == (4,)


def test_widths_are_few_and_waste_a_third_at_most() -> None:
    assert [padded_width(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 25)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 16, 32]
    assert len({padded_width(n) for n in range(1, 1025)}) == 20
    assert all(padded_width(n) <= 1.5 * n for n in range(1, 1025))


def test_cells_are_compiled_a_bounded_number_of_times() -> None:
    batched = tp.batch(models.TreeLSTM(4))
    for seed in range(8):
        batched(models.trees(6, most=5, seed=seed))
    before = batched.programs
    for seed in range(8, 40):
        batched(models.trees(6, most=5, seed=seed))
    # Two cells, and widths of 1 to 30 (leaves) and 6 (inner nodes of one height).
    assert batched.programs - before <= 3
    assert batched.programs <= 10 + 5


def test_parameters_are_what_they_are_set_to() -> None:
    batched = tp.batch(models.TreeLSTM(4), seed=1)
    same, other = tp.batch(models.TreeLSTM(4), seed=1), tp.batch(models.TreeLSTM(4), seed=2)
    for name, value in batched.parameters.items():
        assert np.array_equal(value, same.parameters[name])
    assert not np.array_equal(batched([1])[0][0], other([1])[0][0])
    other.parameters = batched.parameters
    assert np.array_equal(batched([1])[0][0], other([1])[0][0])
    zeros = {name: np.zeros(value.shape) for name, value in batched.parameters.items()}
    assert np.array_equal(batched([1], zeros)[0][0], np.zeros(4))


def test_matrices_that_are_kept_turned_are_those_of_the_parameters() -> None:
    """On a CPU, forward kernels of some width read linear layers' matrices turned."""
    batched = tp.batch(models.TreeLSTM(5))
    data = models.trees(9, most=20)
    batched(data)
    kept = {name: turned for name, (_, turned) in batched._kernels.matrices.items()}
    assert set(kept) == {"leaf.gates.weight", "inner.gates.weight", "inner.forget.weight"}
    np.testing.assert_array_equal(kept["inner.gates.weight"], batched.parameters["inner.gates.weight"].T)
    batched(data)
    assert all(batched._kernels.matrices[name][1] is turned for name, turned in kept.items())
    others = {name: -2 * np.asarray(value) for name, value in batched.parameters.items()}
    for parameters in (others, None):
        found = zip(batched(data, parameters), batched.one_by_one(data, parameters), strict=True)
        for (h, c), (one_h, one_c) in found:
            np.testing.assert_allclose(h, one_h, atol=1e-5)
            np.testing.assert_allclose(c, one_c, atol=1e-5)


def test_a_parameter_in_two_cells_is_one() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(2, 2)
            self.second = nn.Linear(2, 2)
            self.second.weight = self.first.weight

        def __call__(self, x: Any) -> Any:
            return self.second(self.first(x))

    batched = tp.batch(Both())
    assert list(batched.parameters) == ["first.weight", "first.bias", "second.bias"]
    w, a, b = (np.asarray(value) for value in batched.parameters.values())
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(batched([x])[0], w @ (w @ x + a) + b, rtol=1e-5)


def test_a_cell_without_arguments() -> None:
    class Start(nn.Module):
        def __init__(self) -> None:
            self.value = nn.Parameter((2,), nn.init.ones)

        def __call__(self) -> Any:
            return 3 * self.value

    start = tp.cell(Start())
    batched = tp.batch(lambda _: start(), cells={"start": start})
    assert [x.tolist() for x in batched([0, 1])] == [[3.0, 3.0]] * 2


def raised(kind: type[Exception], function: Any, *args: Any) -> str:
    with pytest.raises(kind) as error:
        function(*args)
    return "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])


def test_mistakes() -> None:
    double = tp.cell(lambda x: 2 * x, name="double")
    assert raised(tp.errors.ProgramError, lambda: double(1.0)).startswith(
        "cell double is called outside of a batched model"
    )
    message = raised(tp.errors.ProgramError, tp.batch(lambda x: double(x)[[0]]), [np.ones(2)])
    assert message.startswith("<float32[2] of cell double> is indexed with [0]\n")
    assert message.endswith("\nwhile the model ran on instance 0")
    message = raised(tp.errors.DtypeError, tp.batch(double), ["text"])
    assert message.startswith("cell double: an argument is 'text', which is no tensor\n")
    linear = tp.cell(nn.Linear(2, 2))
    message = raised(tp.errors.ProgramError, tp.batch(lambda x: linear(x)), [np.ones(2)])
    assert message.startswith("cell linear has parameters, and is not among the cells of this model\n")
    message = raised(tp.errors.ShapeError, tp.batch(lambda x: linear(x), {"linear": linear}), [np.ones(2), np.ones(3)])
    assert message.endswith("\nwhile the model ran on instance 1")
    batched = tp.batch(models.TreeLSTM(4))
    message = raised(tp.errors.InputError, batched, [1], {})
    assert message.startswith("there is no value for parameter leaf.embed.weight\n")
    kept: list[Any] = []
    keeping = tp.batch(lambda x: kept.append(double(x)) or double(kept[0]))
    keeping([1.0])
    message = raised(tp.errors.ProgramError, keeping, [1.0])
    assert message.startswith("cell double: <float32[] of cell double> is of another mini-batch\n")


def test_recursion_that_is_too_deep_names_the_instance() -> None:
    double = tp.cell(lambda x: 2 * x, name="double")

    def model(depth: int) -> Any:
        return double(model(depth - 1)) if depth else 1.0

    assert raised(tp.errors.ProgramError, tp.batch(model), [3, 100_000]).startswith(
        "the model's recursion on instance 1 is deeper than Python allows"
    )
