"""What is easily got wrong at the edges of recursive models: comparisons, structures, data of odd types, and models
inside of models."""

from __future__ import annotations

import contextvars
import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.errors import BoundError, DtypeError, GradientError, InputError, ProgramError, ShapeError

half = tp.cell(lambda x: x / 2, name="half")
same = tp.cell(lambda x: x * 1, name="same")

TREE: dict[str, Any] = {"children": [[1, 2], [], []]}


@pytest.mark.parametrize(
    ("compared", "expected"),
    (
        (lambda v: bool(v == 0), [True, False]),
        (lambda v: bool(v != 0), [False, True]),
        (lambda v: bool(v == half(2.0)), [False, True]),
        (lambda v: v in [0.0, 7.0], [True, False]),
        (lambda v: v in {v}, [True, True]),
    ),
)
def test_comparisons_read(compared: Any, expected: list[bool]) -> None:
    batched = tp.batch(lambda x: compared(half(x)))
    assert batched([0.0, 2.0]) == expected
    assert batched.one_by_one([0.0, 2.0]) == expected


@pytest.mark.parametrize(
    ("data", "function"),
    (
        (np.uint8(200), lambda v: v * 2),
        (np.uint8(1), lambda v: v - 2),
        (np.float16(1), lambda v: v / 3.0),
        (np.int32(5), lambda v: v // 2),
        (np.arange(6, dtype=np.float32).reshape(2, 3), lambda v: [v[np.int64(1)], v[-1, :2], v[..., None], -v]),
    ),
)
def test_operators_are_the_same_without_batching(data: Any, function: Any) -> None:
    batched = tp.batch(lambda x: function(same(x)))
    for found, expected in zip(*map(jax.tree.leaves, (batched([data]), batched.one_by_one([data]))), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("index", (5, True, 1.0))
def test_what_is_no_index(index: Any) -> None:
    batched = tp.batch(lambda x: same(x)[index])
    for run in (batched, batched.one_by_one):
        with pytest.raises((ShapeError, ProgramError)):
            run([np.ones(2, np.float32)])
    # 1 is found where True was looked for.
    assert tp.batch(lambda x: same(x)[1])([np.array([1, 2], np.float32)]) == [2]


@dataclasses.dataclass
class State:
    h: Any
    scale: dataclasses.InitVar[float]
    twice: Any = dataclasses.field(init=False)

    def __post_init__(self, scale: float) -> None:
        if len(self.h.shape) != 1:
            raise ValueError("not a vector")
        self.twice = self.h * scale


def test_dataclasses_are_not_made_again() -> None:
    batched = tp.batch(lambda x: State(half(x), 2.0))
    for (found,) in (batched([np.ones(2)]), batched.one_by_one([np.ones(2)])):
        np.testing.assert_array_equal(found.h, [0.5, 0.5])
        np.testing.assert_array_equal(found.twice, [1, 1])


class Thing:
    def __init__(self, h: Any) -> None:
        self.h = h


def test_results_are_of_their_mini_batch() -> None:
    (thing,) = tp.batch(lambda x: Thing(half(x)))([1.0])
    with pytest.raises(ProgramError, match="is read after its mini-batch"):
        float(thing.h)
    with pytest.raises(ProgramError, match="is of another mini-batch"):
        thing.h + 1


def test_context_variables() -> None:
    scale = contextvars.ContextVar("scale", default=1.0)

    def model(x: float) -> list[float]:
        with_one, with_other = tp.parallel(lambda: float(half(x)) * scale.get(), lambda: float(half(x)) + scale.get())
        return [with_one, with_other]

    batched = tp.batch(model)
    for value in (10.0, 20.0):
        scale.set(value)
        assert batched([2.0, 4.0]) == [[value, 1 + value], [2 * value, 2 + value]]


def test_a_mini_batch_inside_reads_what_is_outside() -> None:
    def model(x: float) -> Any:
        v = half(x)
        return tp.batch(lambda y: half(y) if float(v) > 1 else y)([1.0, 2.0])

    batched = tp.batch(model)
    assert batched([4.0, 1.0, 6.0]) == batched.one_by_one([4.0, 1.0, 6.0]) == [[0.5, 1], [1, 2], [0.5, 1]]


def test_a_mini_batch_inside_that_waits_for_both() -> None:
    def model(x: float) -> Any:
        v = half(x)
        return tp.batch(lambda y: float(half(y)) + float(v))([1.0, 2.0])

    with pytest.raises(ProgramError, match=r"float32\[\] of cell half>, of another mini-batch, is read in one inside"):
        tp.batch(model)([4.0, 1.0])
    assert tp.batch(half)([4.0, 1.0]) == [2, 0.5]


def test_cells_inside_of_cells() -> None:
    outer = tp.cell(lambda x: half(x) + 1, name="outer")
    for run in (tp.batch(outer), tp.batch(outer).one_by_one):
        with pytest.raises(ProgramError, match="cell half is called inside of another cell"):
            run([1.0])


@pytest.mark.parametrize("dtype", (">f4", ">f8", ">i4", ">i8"))
def test_the_order_of_bytes(dtype: str) -> None:
    data = np.array([1, 2, 6], dtype)
    np.testing.assert_array_equal(tp.batch(half)([data]), [[0.5, 1, 3]])
    fold = tp.fold(lambda v: v * 1.0, lambda children: tp.sum(children, axis=0))
    np.testing.assert_array_equal(fold(tp.forest(**TREE, v=data)), [8, 2, 6])


def test_integers_that_do_not_fit() -> None:
    for data in ([3, 2**32 + 3], [np.array([1, 2**40])]):
        for run in (tp.batch(same), tp.batch(same).one_by_one):
            with pytest.raises(InputError, match=r"which does not fit into int32"):
                run(data)
    with pytest.raises(InputError, match="cells are given 1099511627776, which does not fit into int32"):
        tp.forest(**TREE, v=[1, 2, 2**40])


def test_parameters_are_copies() -> None:
    linear = tp.cell(nn.Linear(64, 64), name="linear")
    batched = tp.batch(linear, cells={"linear": linear})
    data = [np.full(64, n, np.float32) for n in range(9)]
    memory = np.zeros(64 * 64 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64  # where JAX would take the memory as it is
    weight = memory[start : start + 64 * 64 * 4].view(np.float32).reshape(64, 64)
    weight[:] = np.eye(64)
    batched.parameters = {"linear.weight": weight, "linear.bias": np.zeros(64, np.float32)}
    weight *= 2
    for some in (data, data[:1]):
        np.testing.assert_array_equal(batched(some), some)


def test_gradients_of_what_no_cell_was_given() -> None:
    dot = tp.cell(lambda a, b: a @ b, name="dot")
    batched = tp.batch(lambda x: dot(x[0], x[1]))
    with pytest.raises(GradientError, match="no cell was given any of these arrays"):
        batched.value_and_grad([np.ones((2, 3), np.float32)], inputs=lambda x: x)


@pytest.mark.parametrize("seed", (np.int64(3), np.int32(3), np.uint8(3)))
def test_seeds_of_numpy(seed: Any) -> None:
    noise = tp.cell(lambda x: x + tp.random.normal((3,)), name="noise")
    batched = tp.batch(noise)
    data = [np.zeros(3, np.float32)]
    np.testing.assert_array_equal(batched(data, seed=seed), batched(data, seed=3))
    np.testing.assert_allclose(batched.one_by_one(data, seed=seed), batched(data, seed=3))


# -- forests ----------------------------------------------------------------------------------------------------


def test_nodes_of_other_dtypes() -> None:
    """Of which some have the same bytes."""
    forest = tp.forest(**TREE, value=[0.0, 1.0, 2.0])
    fold = tp.fold(lambda value: value, lambda children: tp.sum(children, axis=0), loss=lambda state: state)
    for nodes in (np.array([1], np.int64), np.array([1, 0], np.int32), np.array([0, 0], np.int32), [0]):
        np.testing.assert_array_equal(fold(forest, nodes=nodes), np.array([3, 1, 2])[np.asarray(nodes)])
        loss, _ = fold.value_and_grad(forest, nodes=nodes)
        assert loss == np.mean(np.array([3, 1, 2])[np.asarray(nodes)])


def test_children_that_are_none() -> None:
    fold = tp.fold(lambda value: value, lambda children: tp.sum(children, axis=0))
    for children in ([[1, -2], [], []], np.array([[1, -2], [-1, -1], [-3, -1]])):
        np.testing.assert_array_equal(fold(tp.forest(children=children, value=[0.0, 1.0, 9.0])), [1, 1, 9])


@pytest.mark.parametrize("children", (np.array([1, -1]), np.array([[1.0], [-1.0]])))
def test_arrays_that_are_no_children(children: Any) -> None:
    with pytest.raises(InputError, match="children is an array of shape"):
        tp.forest(children=children, value=[0.0, 1.0])


@pytest.mark.parametrize("name", ("state", "present"))
def test_names_that_cells_know(name: str) -> None:
    with pytest.raises(InputError, match=f"no array can be named {name}"):
        tp.forest(**TREE, **{name: [0.0, 1.0, 2.0]})


def test_states_of_nothing() -> None:
    fold = tp.fold(lambda v: v, lambda children: tp.sum(children, axis=0))
    assert fold(tp.forest(**TREE, v=np.zeros((3, 0), np.float32))).shape == (3, 0)


# -- programs over time -----------------------------------------------------------------------------------------


def test_arguments_of_programs() -> None:
    with tp.Program("total") as prog:
        t, T = prog.dim("t")
        w = prog.input("w", shape=2, domain=t, dtype="int32")
        prog.output("total", tp.sum(w[0:T], axis=0))
    with tp.Program("other") as other:
        _, foreign = other.dim("t")
    total = tp.cell(prog)
    batched = tp.batch(total)
    np.testing.assert_array_equal(batched([np.array([[1, 2], [3, 4]])]), [[4, 6]])
    with pytest.raises(ShapeError, match=r"argument w has shape \(4, 1\), expected \(4, 2\)"):
        batched([np.ones((4, 1), np.int32)])
    with pytest.raises(DtypeError, match="argument w has dtype float32, which does not convert to int32"):
        batched([np.ones((4, 2))])
    with pytest.raises(BoundError, match="has no bound T of its own"):
        tp.batch(tp.cell(prog, bounds={foreign: 3}))([np.ones((3, 2), np.int32)])
    with pytest.raises(BoundError, match="has no bound S"):
        tp.batch(tp.cell(prog, bounds={"S": 3}))([np.ones((3, 2), np.int32)])
