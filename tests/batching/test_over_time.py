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


def walk() -> tuple[tp.Program, Any]:
    """Steps away from a start, each of which looks at all before it, until they are far enough away."""
    with tp.Program("walk") as prog:
        t, T = prog.dim("t")
        start = prog.input("start")
        far = prog.input("far")
        x = prog.recurrent("x", domain=(t,))
        x[0] = start
        x[t] = x[t - 1] + tp.tanh(tp.mean(x[0:t])) + 0.5
        prog.stop(t, when=tp.abs(x - start) > far)
        prog.output("last", x[T - 1])
        prog.output("mean", tp.mean(x[0:T]))
        prog.output("steps", T)
    return prog, T


@pytest.mark.parametrize("limit", (1, 4, 30))
def test_a_program_that_stops_on_data(limit: int) -> None:
    """Calls that are one launch stop at different steps, and some not before the last one there is."""
    prog, T = walk()
    cell = tp.cell(prog, bounds={T: limit})
    data = [(0.0, 3.0), (-2.0, 1.0), (1.0, 0.1), (0.3, 100.0)]
    batched = tp.batch(lambda pair: cell(*pair))
    together, alone = batched(data), batched.one_by_one(data)
    assert batched.statistics.launches == 1
    steps = set()
    for (start, far), found, other in zip(data, together, alone, strict=True):
        expected = prog.evaluate({T: limit}, start=start, far=far)
        for name in ("last", "mean", "steps"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
            np.testing.assert_allclose(other[name], expected[name], rtol=1e-5)
        steps.add(int(found["steps"]))
    assert limit < 30 or len(steps) > 2


@pytest.mark.gpu
def test_a_program_that_stops_on_data_on_a_gpu() -> None:
    """A loop in a graph that ends when the last call has stopped, run for other calls as well."""
    prog, T = walk()
    cell = tp.cell(prog, bounds={T: 40})
    batched = tp.batch(lambda pair: cell(*pair))
    rng = np.random.default_rng(0)
    for _ in range(3):
        data = list(zip(rng.normal(size=20).tolist(), rng.uniform(0, 30, size=20).tolist(), strict=True))
        for (start, far), found in zip(data, batched(data), strict=True):
            expected = prog.evaluate({T: 40}, start=start, far=far)
            assert found["steps"] == expected.steps
            np.testing.assert_allclose([found["last"], found["mean"]], [expected.last, expected.mean], rtol=1e-4)


def test_a_model_goes_on_with_what_has_stopped() -> None:
    """Bounds follow from arguments, too; the number of steps is read as any other value is."""
    with tp.Program("until") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.stop(t, when=x < 0)
        prog.output("total", x[0:T].sum())
        prog.output("steps", T)
    until = tp.cell(prog)

    def model(x: Any) -> Any:
        totals = []
        while len(x):
            found = until(x)
            totals.append(found["total"])
            x = x[int(found["steps"]) :]
        return totals

    rows = [[1.0, 2, -1, 4, -2, 3], [-1.0, -1, -1], [5.0, 6]]
    found = tp.batch(model)([np.array(row, np.float32) for row in rows])
    assert [[float(total) for total in totals] for totals in found] == [[2, 2, 3], [-1, -1, -1], [11]]


def test_mistakes_with_programs_that_stop() -> None:
    prog, T = walk()
    cell = tp.cell(prog, bounds={T: 5})
    with pytest.raises(tp.errors.GradientError) as gradient:
        tp.batch(lambda x: cell(x, 1.0)["last"]).value_and_grad([1.0])
    assert str(gradient.value) == (
        "cell walk is a program that stops on data: there is no gradient through it\n"
        "  hint: let it make all of its steps, and choose the last one that counts with tp.where"
    )
    with pytest.raises(tp.errors.BoundError) as missing:
        tp.batch(lambda x: tp.cell(prog)(x, 1.0))([0.0])
    assert missing.value.message == "cell walk is a program, and no argument says how many steps of t there are"
    assert missing.value.hint == "tp.cell(program, bounds={T: ...})"
    with pytest.raises(tp.errors.ProgramError) as arguments:
        tp.batch(tp.cell(prog))([(0.0, 1.0)])
    assert "test_over_time.py" in str(arguments.value)  # where the model was called, if it is a cell itself
    with tp.Program("steps") as other:
        t, T = other.dim("t")
        x = other.input("x", domain=(t,))
        other.stop(t, when=x < 0)
        other.output("all", 2 * x)
    with pytest.raises(tp.errors.ProgramError) as output:
        tp.batch(lambda x: tp.cell(other)(x))([np.ones(3)])
    assert output.value.message == (
        "cell steps is a program whose output all has a value for every step that is made of t"
    )
    gru = nn.GRUCell(SIZE, SIZE)
    four = tp.cell(sentence(gru), parameters=gru, bounds={"T": 4})
    with pytest.raises(tp.errors.ShapeError) as size:
        tp.batch(lambda x: four(x, np.ones(SIZE)), cells={"four": four})([np.ones((3, SIZE))])
    assert size.value.message == "cell sentence: argument words has 3 steps of t, the cell was made with T 4"
    with pytest.raises(tp.errors.ProgramError) as bounds:
        tp.cell(lambda x: x, bounds={"T": 3})
    assert bounds.value.message == "bounds are given for a cell that is no program"


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
