"""Programs over time as cells, and batched models as host functions of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tempo as tp
from tempo import nn

SIZE = 3


def sentence(gru: nn.GRUCell) -> tp.Program:
    """A GRU over the words of a sentence: its last state."""
    with tp.Program("sentence") as prog:
        t, T = prog.dim("t")
        words = prog.input("words", shape=SIZE, domain=(t,))
        start = prog.input("start", shape=SIZE)
        step = gru.declare(prog, init=False)
        h = prog.recurrent("h", SIZE, domain=(t,))
        h[-1] = start
        h[t] = step(words, h[t - 1])
        prog.output("last", h[T - 1])
    return prog


def tree_of_sentences() -> tuple[Any, list[Any]]:
    """The state of a tree starts from those of its children; its leaves are sentences."""
    gru = nn.GRUCell(SIZE, SIZE)
    read = tp.cell(sentence(gru), parameters=gru)
    join = tp.cell(lambda a, b: tp.tanh(a + 2 * b), name="join")
    total = tp.cell(lambda h: tp.sum(h), name="total")

    def state(tree: Any) -> Any:
        if isinstance(tree, np.ndarray):
            return read(tree, start=np.zeros(SIZE, np.float32))
        left, right, words = tree
        return read(words, join(state(left), state(right)))

    rng = np.random.default_rng(0)

    def words(length: int) -> Any:
        return rng.normal(size=(length, SIZE)).astype(np.float32)

    data = [(words(4), words(2), words(4)), words(4), ((words(2), words(4), words(2)), words(4), words(4))]
    return tp.batch(lambda tree: total(state(tree)), cells={"read": read}), data


def reference(p: dict[str, torch.Tensor], tree: Any) -> torch.Tensor:
    cell = torch.nn.GRUCell(SIZE, SIZE)
    names = {name: p[f"read.{name}"] for name, _ in cell.named_parameters()}

    def state(tree: Any) -> torch.Tensor:
        h = torch.zeros(SIZE)
        if not isinstance(tree, np.ndarray):
            left, right, tree = tree
            h = torch.tanh(state(left) + 2 * state(right))
        for word in torch.tensor(tree):
            h = torch.func.functional_call(cell, names, (word, h))
        return h

    return state(tree).sum()


def test_a_recurrence_over_a_sentence_inside_a_tree_of_sentences() -> None:
    batched, data = tree_of_sentences()
    p = {name: torch.tensor(np.asarray(value), requires_grad=True) for name, value in batched.parameters.items()}
    expected = torch.stack([reference(p, tree) for tree in data])
    np.testing.assert_allclose(batched(data), expected.detach(), atol=1e-5)
    np.testing.assert_allclose(batched.one_by_one(data), expected.detach(), atol=1e-5)
    value, gradients = batched.value_and_grad(data)
    expected.mean().backward()
    assert value == pytest.approx(expected.mean().item(), rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, p[name].grad, atol=1e-6, rtol=1e-4)


def test_several_outputs_are_a_dict() -> None:
    with tp.Program("sums") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        total = prog.recurrent("total", (), domain=(t,))
        total[-1] = 0
        total[t] = total[t - 1] + x
        prog.output("total", total[T - 1])
        prog.output("all", total)
    sums = tp.cell(prog)
    (found,) = tp.batch(lambda x: sums(x))([np.array([1.0, 2.0, 4.0])])
    assert found["total"] == 7
    assert found["all"].tolist() == [0, 1, 3, 7]  # from step -1 on


def test_mistakes() -> None:
    gru = nn.GRUCell(SIZE, SIZE)
    read = tp.cell(sentence(gru), name="read", parameters=gru)

    def message(kind: type[Exception], *args: Any, **kwargs: Any) -> str:
        with pytest.raises(kind) as error:
            tp.batch(lambda _: read(*args, **kwargs), cells={"read": read})([0])
        return str(error.value)

    words, start = np.zeros((2, SIZE)), np.zeros(SIZE)
    assert message(tp.errors.ProgramError, words).startswith(
        "cell read is a program with the inputs words, start, called with 1 arguments"
    )
    assert message(tp.errors.ShapeError, words[0], start).startswith(
        "cell read: argument words has shape (3,): 1 dims of time, then a value"
    )
    with tp.Program("host") as prog:
        prog.output("x", tp.host(lambda: np.float32(1), out=tp.spec(())))
    with pytest.raises(tp.errors.ProgramError) as error:
        tp.batch(lambda _: tp.cell(prog)())([0])
    assert error.value.message == "cell host is a program that calls the host"
    with pytest.raises(tp.errors.ProgramError) as error:
        tp.cell(lambda x: x, parameters=gru)
    assert error.value.message == "parameters are given for a cell that is no program"


def test_a_batched_model_is_a_host_function_of_a_program() -> None:
    """At every step a program asks a model about a tree that is chosen by what the program computed."""
    plus = tp.cell(lambda a, b: a + b, name="plus")

    def total(tree: Any) -> Any:
        return plus(*map(total, tree)) if isinstance(tree, tuple) else tree

    batched = tp.batch(total)
    trees = [(1.0, (2.0, 3.0)), (4.0, 5.0), ((1.0, 1.0), (1.0, 1.0))]

    def ask(number: np.ndarray) -> np.ndarray:
        return np.float32(batched([trees[int(number)], trees[0]])[0])

    with tp.Program("asking") as prog:
        t, T = prog.dim("t")
        value = prog.recurrent("value", (), domain=(t,))
        value[-1] = 0.0
        asked = tp.host(ask, (value[t - 1] % 3).astype("int32"), out=tp.spec(()), sequence=(t,))
        value[t] = asked + 1
        prog.output("value", value)
    # From step -1 on. 0: 6 and one; 7 % 3 = 1: 9 and one; 10 % 3 = 1 again.
    assert prog.compile({T: 3})().value.tolist() == [0.0, 7.0, 10.0, 10.0]
