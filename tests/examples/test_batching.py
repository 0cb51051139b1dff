"""The recursive examples: batched, they give what they give one call at a time, and what PyTorch gives."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import tempo as tp

ROOT = Path(__file__).parents[2]
SIZES = {
    "tree_lstm": 12,
    "mv_rnn": 6,
    "bi_rnn": 10,
    "nested_rnn": 8,
    "drnn": 16,
    "berxit": 16,
    "stack_rnn": 12,
}
TRAINED = ("tree_lstm", "mv_rnn", "bi_rnn", "nested_rnn")


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "batching"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in (*SIZES, "programs", "sentiment", "workload", "_batching_torch"):
        sys.modules.pop(name, None)


def load(name: str) -> Any:
    return importlib.import_module(name)


def small(name: str, count: int) -> list[Any]:
    """A few small instances: every kernel takes a while to compile, and there are as many as there are widths."""
    example, rng = load(name), np.random.default_rng(1)
    if name == "nested_rnn":
        return example.instances(count, least=2, most=4)
    if name == "berxit":
        return example.instances(count, size=SIZES[name], length=6)
    if name == "drnn":
        return example.instances(count, size=SIZES[name])
    lengths = [6, 3, 1, 4][:count]
    if name in ("bi_rnn", "stack_rnn"):
        return [rng.integers(500, size=length).tolist() for length in lengths]
    return [load("workload").tree(rng, length) for length in lengths]


def in_torch(parameters: Any, gradients: bool = False) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(np.array(value), requires_grad=gradients) for name, value in parameters.items()}


def given(name: str, instance: Any) -> Any:
    return torch.tensor(instance) if name in ("drnn", "berxit") else instance


def as_numbers(result: Any) -> list[Any]:
    def plain(leaf: Any) -> Any:
        return np.asarray(leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)

    return [plain(leaf) for leaf in jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, torch.Tensor))]


def same(found: Any, expected: Any) -> None:
    a, b = as_numbers(found), as_numbers(expected)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SIZES)
def test_equals_one_call_at_a_time_and_torch(name: str) -> None:
    example, reference = load(name), load("_batching_torch").MODELS[name]
    batched = tp.batch(example.MODEL(SIZES[name]))
    data = small(name, 4)
    together = batched(data)
    alone = batched.one_by_one(data)
    p = in_torch(batched.parameters)
    for found, expected, instance in zip(together, alone, data, strict=True):
        same(found, expected)
        same(found, reference.one(p, given(name, instance)))
    inputs = [given(name, instance) for instance in data]
    by_hand = reference.many(p, torch.stack(inputs) if isinstance(inputs[0], torch.Tensor) else inputs)
    if name in ("tree_lstm", "mv_rnn"):
        by_hand = list(zip(*by_hand, strict=True))
    same(together, list(by_hand))


PROGRAMS: dict[str, dict[str, int]] = {
    "bi_rnn": {},
    "nested_rnn": {},
    "stack_rnn": {"longest": 6},
    "drnn": {"lanes": 64},
    "berxit": {"length": 6},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_its_program(name: str) -> None:
    """Twice, with the same program: the second time fewer instances go on for as long."""
    _, build = load("programs").MODELS[name]
    batched, as_program = tp.batch(load(name).MODEL(SIZES[name])), build(SIZES[name], **PROGRAMS[name])
    data = small(name, 4)
    for instances in (data, data[::-1]):
        same(as_program(instances, batched.parameters), batched(instances))
    assert len(as_program.runs) == 1


def test_a_queue_that_is_too_long() -> None:
    """It is made longer."""
    batched = tp.batch(load("drnn").MODEL(SIZES["drnn"]))
    batched.parameters |= {"node.decide.bias": np.array([0.1, 0.2], np.float32)}
    as_program, data = load("programs").drnn_program(SIZES["drnn"], lanes=220), small("drnn", 4)
    same(as_program(data, batched.parameters), batched(data))
    assert [lanes for _, lanes, _ in as_program.runs] == [220, 440]


@pytest.mark.slow
def test_programs_run_as_a_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["programs", "--size", "8", "--count", "2"])
    load("programs").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(PROGRAMS)
    assert all(float(line.split()[-1]) < 1e-5 for line in lines)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_equal_autograd(name: str) -> None:
    example, reference = load(name), load("_batching_torch").MODELS[name]
    batched = tp.batch(example.Training(SIZES[name]))
    data = example.labelled(small(name, 3))
    loss, gradients = batched.value_and_grad(data)
    for by_hand in (False, True):
        p = in_torch(batched.parameters, gradients=True)
        expected = reference.mean_loss(p, data, by_hand)
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        for key, gradient in gradients.items():
            np.testing.assert_allclose(gradient, p[key].grad, atol=1e-5, rtol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", ("tree_lstm", "mv_rnn"))
def test_forests_give_the_same(name: str) -> None:
    example = load(name)
    folded = example.folded(SIZES[name])
    batched = tp.batch(example.Training(SIZES[name]))
    names = {"leaf": ("leaf", "word"), "inner": ("inner", "compose"), "loss": ("score", "score")}
    ours = {key: f"{names[key.split('.')[0]][name == 'mv_rnn']}.{key.split('.', 1)[1]}" for key in folded.parameters}
    folded.parameters = {key: batched.parameters[other] for key, other in ours.items()}
    data = example.labelled(small(name, 2))
    loss, gradients = folded.value_and_grad(importlib.import_module("workload").forest(data))
    expected, others = batched.value_and_grad(data)
    assert loss == pytest.approx(expected, rel=1e-5)
    for key, other in ours.items():
        np.testing.assert_allclose(gradients[key], others[other], atol=1e-6, rtol=1e-4, err_msg=key)


@pytest.mark.parametrize(
    "name", [name if name in ("tree_lstm", "berxit") else pytest.param(name, marks=pytest.mark.slow) for name in SIZES]
)
def test_runs_as_a_script(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    length = ["--length", "4"] if name == "berxit" else []
    monkeypatch.setattr(sys, "argv", [name, "--size", str(SIZES[name]), "--count", "1", *length])
    load(name).main()
    first, second = capsys.readouterr().out.splitlines()
    assert ": 1 instances, " in first
    assert float(second.split()[-1]) < 1e-5


def test_a_training_that_is_stopped_and_resumed(tmp_path: Path) -> None:
    sentiment = load("sentiment")
    prog, I = sentiment.build(size=8, batch=8, count=16, lr=0.05)
    whole = sentiment.train(prog, I, 30)
    assert len(whole) == 30
    assert np.mean(whole[-4:]) < 0.6 * np.mean(whole[:4])
    path = tmp_path / "half.safetensors"
    first = sentiment.train(prog, I, 30, path, stop=10)
    assert first == whole[:10]
    assert sentiment.train(prog, I, 30, path) == whole[10:]
