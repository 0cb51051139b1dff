"""Simplification, rule by rule: the operations of a small program before and after."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.build import make
from tempo.graph.node import Graph
from tempo.graph.validate import validate
from tempo.ops.elementwise import CAST
from tempo.ops.shaping import BROADCAST_TO, RESHAPE, TRANSPOSE
from tempo.passes.simplify import simplify
from tempo.reference import evaluate
from tempo.symbolic import constant

Tensor = tp.RecurrentTensor
Write = Callable[[Tensor], Tensor]
X = np.array([[[-1.5, 2, 0.5], [3, -4, 1]], [[0.25, 5, -6], [7, 8, 9]]])


def ops(graph: Graph) -> list[str]:
    """The operations on x, without the input and the exponential at the end of every program here."""
    return [node.op.name for node in graph.nodes if node.op.name not in ("input", "exp", "constant", "full")]


def program(write: Write) -> tuple[tp.Program, Any]:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (2, 3), domain=(t,))
        prog.output("y", tp.exp(write(x)))
    return prog, T


def simplified(write: Write) -> tuple[list[str], list[str]]:
    """The operations before and after, of programs that give the same numbers."""
    prog, T = program(write)
    graph = simplify(prog.graph)
    validate(graph)
    np.testing.assert_array_equal(evaluate(graph, {T: 2}, {"x": X}).y, prog.evaluate({T: 2}, x=X).y)
    return ops(prog.graph), ops(graph)


def made(op: Any, **attributes: Any) -> Write:
    """An operation as passes make it; the functions that users call leave out what does nothing."""
    return lambda x: Tensor(x.program, make(op, x.edge, **attributes))


ALL_REMOVED: dict[str, tuple[Write, list[str]]] = {
    "copy": (tp.copy, ["copy"]),
    "stop_gradient": (tp.stop_gradient, ["stop_gradient"]),
    "reshape to the same shape": (made(RESHAPE, shape=(2, 3)), ["reshape"]),
    "broadcast to the same shape": (made(BROADCAST_TO, shape=(2, 3)), ["broadcast_to"]),
    "cast to the same dtype": (made(CAST, dtype=tp.float32), ["cast"]),
    "transposition that moves nothing": (made(TRANSPOSE, axes=(0, 1)), ["transpose"]),
    "reshape and back": (lambda x: x.reshape((6,)).reshape((2, 3)), ["reshape", "reshape"]),
    "x + 0": (lambda x: x + 0, ["add"]),
    "0 + x": (lambda x: 0 + x, ["add"]),
    "x - 0": (lambda x: x - 0, ["subtract"]),
    "x + zeros": (lambda x: x + tp.zeros((2, 3)), ["add"]),
    "x * 1": (lambda x: x * 1, ["multiply"]),
    "1 * x": (lambda x: 1 * x, ["multiply"]),
    "x / 1": (lambda x: x / 1, ["divide"]),
    "-(-x)": (lambda x: tp.negative(-x), ["negative", "negative"]),
    "where(c, x, x)": (lambda x: tp.where(x > 0, x, x), ["less", "where"]),
    "x if true": (lambda x: tp.where(tp.full((2, 3), True), x, -x), ["negative", "where"]),
    "x if false": (lambda x: tp.where(tp.full((2, 3), False), -x, x), ["negative", "where"]),
    "where(c or false, x, x)": (
        lambda x: tp.where((x > 0) | tp.full((2, 3), False), x, x),
        ["less", "logical_or", "where"],
    ),
    "x * (2 - 1)": (lambda x: x * (tp.full((2, 3), 2.0) - 1), ["subtract", "multiply"]),
    "a sum over an axis of size 1": (
        lambda x: tp.sum(x.reshape((2, 1, 3)), axis=1),
        ["reshape", "sum"],
    ),
    "x + an index that is 0": (lambda x: x + constant(0), ["index_value", "cast", "add"]),
    "all of it": (lambda x: tp.copy(tp.negative(-(x * 1 + 0))), ["multiply", "add", "negative", "negative", "copy"]),
}

KEPT: dict[str, tuple[Write, list[str]]] = {
    "reshape to another shape": (lambda x: x.reshape((6,)), ["reshape"]),
    "transposition of two equal axes": (
        lambda x: tp.transpose((x @ x.T), (1, 0)),
        ["transpose", "einsum", "transpose"],
    ),
    "0 - x": (lambda x: 0 - x, ["subtract"]),
    "1 / x": (lambda x: 1 / x, ["divide"]),
    "x * 2": (lambda x: x * 2, ["multiply"]),
    "x + 0 of a larger shape": (lambda x: x.space[0] + tp.zeros((2, 3)), ["slice", "reshape", "add"]),
    "where(c, x, -x)": (lambda x: tp.where(x > 0, x, -x), ["less", "negative", "where"]),
    "negatives of different steps": (lambda x: -((-x)[0]), ["negative", "negative"]),
}


@pytest.mark.parametrize("what", ALL_REMOVED)
def test_operations_that_do_nothing_are_removed(what: str) -> None:
    write, before = ALL_REMOVED[what]
    assert simplified(write) == (before, [])


@pytest.mark.parametrize("what", KEPT)
def test_operations_that_do_something_are_kept(what: str) -> None:
    write, before = KEPT[what]
    assert simplified(write) == (before, before)


def test_two_reshapes_are_one() -> None:
    assert simplified(lambda x: x.reshape((6,)).reshape((3, 2))) == (["reshape", "reshape"], ["reshape"])


LOGIC: dict[str, tuple[Write, list[str]]] = {
    "c or false": (lambda c: c | tp.full((2, 3), False), ["less"]),
    "false or c": (lambda c: tp.full((2, 3), False) | c, ["less"]),
    "c and true": (lambda c: c & tp.full((2, 3), True), ["less"]),
    "c and not false": (lambda c: c & ~tp.full((2, 3), False), ["less"]),
    "c and false": (lambda c: c & tp.full((2, 3), False), ["less", "logical_and"]),
}


@pytest.mark.parametrize("what", LOGIC)
def test_logic_with_what_is_known(what: str) -> None:
    write, after = LOGIC[what]
    _, found = simplified(lambda x: write(x > 0).astype(tp.float32))
    assert found == [*after, "cast"]


def test_what_is_known_is_computed_with_the_precision_of_its_dtype() -> None:
    _, after = simplified(lambda x: x + tp.sqrt(tp.full((2, 3), 2.0)))
    assert after == ["add"]


def test_a_read_of_another_step_stays_one() -> None:
    """The copy of x is removed; what read it one step back reads x one step back."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", domain=(t,))
        y[0] = 0
        y[t] = tp.copy(x)[t - 1] + 0
        prog.output("y", y)
    graph = simplify(prog.graph)
    validate(graph)
    assert ops(graph) == ["recurrent"]
    assert [str(case.value) for case in graph.cases[graph.outputs["y"].node]][1] == "x[t - 1]"
    assert evaluate(graph, {T: 3}, {"x": [5, 6, 7]}).y.tolist() == [0, 5, 6]


def test_the_same_operation_on_the_same_operands_is_done_once() -> None:
    before, after = simplified(lambda x: tp.sin(x) * tp.sin(x) + tp.sin(x * 1))
    assert before == ["sin", "sin", "multiply", "multiply", "sin", "add"]
    assert after == ["sin", "multiply", "add"]


def test_equal_numbers_are_one_constant() -> None:
    prog, _ = program(lambda x: tp.sin(x * 2) + 2)
    constants = [node for node in prog.graph.nodes if node.op.name == "constant"]
    assert len(constants) == 2
    assert [n.op.name for n in simplify(prog.graph).nodes].count("constant") == 1


def test_different_steps_attributes_or_dtypes_are_not_the_same() -> None:
    for write in (
        lambda x: tp.cumsum(x, 0) + tp.cumsum(x, 1),
        lambda x: tp.sin(x) + tp.sin(x[0]),
        lambda x: x.astype("float64") + x.astype("float16"),
    ):
        before, after = simplified(write)
        assert before == after


def test_random_draws_are_never_merged() -> None:
    with tp.Program() as prog:
        a, b = tp.random.uniform((100,)), tp.random.uniform((100,))
        prog.output("difference", a - b)
    graph = simplify(prog.graph)
    assert [node.op.name for node in graph.nodes].count("random_bits") == 2
    difference = evaluate(graph, {}, {}, seed=1).difference
    assert (difference != 0).all()
    np.testing.assert_array_equal(difference, prog.evaluate(seed=1).difference)


def test_host_calls_are_never_merged() -> None:
    calls = []

    def function(x: Any) -> Any:
        calls.append(float(x))
        return x

    with tp.Program() as prog:
        x = prog.input("x")
        one = tp.host(function, x, out=tp.spec())
        two = tp.host(function, x, out=tp.spec())
        prog.output("y", one + two)
    graph = simplify(prog.graph)
    validate(graph)
    assert evaluate(graph, {}, {"x": 3}).y == 6
    assert calls == [3, 3]
