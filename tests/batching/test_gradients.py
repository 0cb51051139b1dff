"""Gradients of the mean loss of a mini-batch are those of PyTorch, instance by instance."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import tempo as tp
from tempo import nn, optim
from tests.batching import models


def labelled(count: int, seed: int = 0) -> list[Any]:
    return [(tree, n % 3) for n, tree in enumerate(models.trees(count, most=7, seed=seed))]


def check(batched: Any, data: list[Any], loss: Any) -> None:
    """``loss(parameters, instance)`` is the same in PyTorch."""
    value, gradients = batched.value_and_grad(data)
    p = models.as_torch(batched.parameters, gradients=True)
    expected = torch.stack([loss(p, one) for one in data]).mean()
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-5)
    assert list(gradients) == list(p)
    for name, gradient in gradients.items():
        reference = p[name].grad if p[name].grad is not None else torch.zeros_like(p[name])
        np.testing.assert_allclose(gradient, reference, atol=1e-6, rtol=1e-4, err_msg=name)


@cache
def tree_loss() -> Any:
    return tp.batch(models.TreeLoss(5))


def test_tree_lstm() -> None:
    batched = tree_loss()
    check(batched, labelled(5), models.torch_tree_loss)
    check(batched, [((1, (2, 3)), 2)], models.torch_tree_loss)


@pytest.mark.gpu
def test_loops_over_launches_on_a_gpu() -> None:
    """Chains, whose levels are launches of one width, in a row: other numbers of them in each mini-batch."""

    def chain(words: int) -> Any:
        return 1 if words == 1 else (chain(words - 1), words % models.WORDS)

    batched = tree_loss()
    for lengths in ([30, 17], [9, 9], [60, 5], [30, 17]):
        check(batched, [(chain(words), 0) for words in lengths], models.torch_tree_loss)
        assert batched.statistics.dispatches < batched.statistics.launches


def test_mv_rnn_through_values_that_are_matrices() -> None:
    word, compose = tp.cell(models.Word(3)), tp.cell(models.Compose(3))
    square = tp.cell(lambda vector, matrix: tp.sum(tp.square(vector)) + tp.sum(tp.square(matrix)), name="square")

    def model(tree: Any) -> Any:
        return word(tree) if isinstance(tree, int) else compose(*map(model, tree))

    def reference(p: dict[str, torch.Tensor], tree: Any) -> torch.Tensor:
        vector, matrix = models.torch_mvrnn(p, tree)
        return vector.square().sum() + matrix.square().sum()

    batched = tp.batch(lambda tree: square(*model(tree)), cells={"word": word, "compose": compose})
    check(batched, models.trees(5, most=4), reference)


def test_a_value_that_is_read_twice_gets_both_parts() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            self.factor = nn.Parameter((), nn.init.constant(3.0))

        def __call__(self, x: Any) -> Any:
            return self.factor * x

    scale = tp.cell(Scale())
    times = tp.cell(lambda a, b: a * b, name="times")

    def model(x: float) -> Any:
        once = scale(x)
        return times(once, times(once, scale(once)))

    # (3 x) (3 x) (9 x), so factor ** 4 x ** 3
    value, gradients = tp.batch(model, cells={"scale": scale}).value_and_grad([1.0, 2.0])
    assert value == (81 + 81 * 8) / 2
    assert gradients["scale.factor"] == 4 * 27 * (1 + 8) / 2


def test_nothing_flows_through_what_has_no_gradient() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            self.factor = nn.Parameter((), nn.init.constant(3.0))

        def __call__(self, x: Any) -> Any:
            return x * tp.stop_gradient(self.factor) * self.factor, tp.sign(self.factor).astype("int32")

    scale = tp.cell(Scale())
    times = tp.cell(lambda a, b: a * b, name="times")
    batched = tp.batch(lambda x: times(*scale(x)), cells={"scale": scale})
    assert batched.value_and_grad([2.0])[1]["scale.factor"] == 6


def test_parts_of_a_value() -> None:
    """What flows into slices is put together, with zeros where there is none."""
    weigh = tp.cell(lambda x: tp.sum(2 * x.space[1:3]) + tp.sum(3 * x.space[4:6] * x.space[4:6]), name="weigh")
    x = np.arange(7, dtype=np.float32)
    _, _, of_data = tp.batch(weigh).value_and_grad([x, 2 * x], inputs=lambda x: x)
    np.testing.assert_allclose(of_data[0], [0, 1, 1, 0, 12, 15, 0])
    np.testing.assert_allclose(of_data[1], [0, 1, 1, 0, 24, 30, 0])


def test_overlapping_parts() -> None:
    total = tp.cell(lambda x: tp.sum(x.space[0:3]) + tp.sum(5 * x.space[2:4]), name="total")
    _, _, of_data = tp.batch(total).value_and_grad([np.ones(4, np.float32)], inputs=lambda x: x)
    assert of_data[0].tolist() == [1, 1, 6, 5]


def test_a_weight_that_multiplies_matrices() -> None:
    class Project(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter((3, 2), nn.init.normal(1.0))

        def __call__(self, matrix: Any) -> Any:
            return tp.sum(tp.tanh(matrix @ self.weight))

    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(4, 3)).astype(np.float32) for _ in range(5)]
    project = tp.cell(Project(), name="project")
    batched = tp.batch(project, cells={"project": project})
    check(batched, matrices, lambda p, m: (torch.tensor(m) @ p["project.weight"]).tanh().sum())


def test_training_with_an_optimiser() -> None:
    """The gradient of every step is a host call of the program that trains."""
    batched = tree_loss()
    data = labelled(8)
    start = batched.parameters
    names = list(start)

    def step(*values: np.ndarray) -> list[np.ndarray]:
        loss, gradients = batched.value_and_grad(data, dict(zip(names, values, strict=True)))
        return [np.float32(loss), *(np.asarray(gradients[name]) for name in names)]

    with tp.Program("train") as prog:
        i, I = prog.dim("i")
        with prog.training(over=i):
            parameters = {name: prog.param(name, value.shape, init=np.asarray(value)) for name, value in start.items()}
        specs = [tp.spec(()), *(tp.spec(value.shape) for value in start.values())]
        loss, *gradients = tp.host(step, *parameters.values(), out=specs, sequence=(i,))
        optim.Adam(0.05).update(parameters, dict(zip(names, gradients, strict=True)))
        prog.output("loss", loss)
    losses = prog.compile({I: 30})().loss
    assert losses[-1] < 0.2 * losses[0]

    # The same with PyTorch's optimiser.
    p = models.as_torch(start, gradients=True)
    optimiser = torch.optim.Adam(p.values(), 0.05)
    for n in range(4):
        expected = torch.stack([models.torch_tree_loss(p, one) for one in data]).mean()
        optimiser.zero_grad()
        expected.backward()
        optimiser.step()
        assert losses[n] == pytest.approx(expected.item(), rel=1e-3)


def test_mistakes() -> None:
    batched = tp.batch(models.TreeLSTM(4))
    with pytest.raises(tp.errors.GradientError) as error:
        batched.value_and_grad([1])
    assert error.value.message.startswith("the model's result for instance 0 is (<float32[4] of cell leaf>, ")
    with pytest.raises(tp.errors.InputError) as empty:
        batched.value_and_grad([])
    assert empty.value.message == "value_and_grad of no instances: their mean is not defined"
