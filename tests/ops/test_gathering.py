"""take, take_along_axis, one_hot and scatter_add, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.errors import DtypeError, InputError, ShapeError
from tests.ops.checks import (
    bfloat16,
    close,
    gradients,
    numbers,
    prefix_gradients,
    same,
    same_padded,
    same_prefixes,
    value,
)

INDICES = [
    np.array(1, np.int32),
    np.array([2, 0, 0, -1], np.int32),
    np.array([[1, 2], [-3, 0]], np.int64),
    np.array([], np.int32),
    np.array([0, 2, 1], np.uint8),
]


@pytest.mark.parametrize("indices", INDICES, ids=lambda i: f"{i.dtype}{i.shape}")
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take(indices, axis):
    for dtype in (np.float64, bfloat16, np.int32, np.bool_):
        x = numbers(3, 3, 4, dtype=dtype)
        same(lambda x, i: tp.take(x, i, axis), lambda x, i: np.take(x, i, axis), x, indices)
    gradients(lambda x, i: tp.square(tp.take(x, i, axis)), numbers(3, 3, 4), indices)


def test_take_of_a_list():
    same(lambda x: x.take([1, 1, 0]), lambda x: x.take([1, 1, 0], 0), numbers(2, 3))


@pytest.mark.parametrize(
    ("shape", "indices", "axis"),
    [
        ((3, 4), [[1], [0], [-1]], 1),
        ((3, 4), [[0, 2, 1, -1]], 0),
        ((3, 4), [[3, 3, 0], [1, 2, 3], [0, -4, 1]], -1),
        ((2, 1, 3), [[[1, 0], [2, 2]], [[0, -1], [1, 1]]], 2),
        ((1, 3), [[0, 1], [2, 2]], 1),
        ((4,), [], 0),
    ],
)
def test_take_along_axis(shape, indices, axis):
    idx = np.asarray(indices, np.int32)
    same(
        lambda x, i: tp.take_along_axis(x, i, axis),
        lambda x, i: np.take_along_axis(x, i, axis),
        numbers(*shape),
        idx,
    )
    gradients(lambda x, i: tp.square(tp.take_along_axis(x, i, axis)), numbers(*shape), idx)


def test_one_hot():
    idx = np.array([[0, 2], [1, 5]], np.int32)
    expected = np.array([[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 0]]])
    close(value(lambda i: tp.one_hot(i, 3), idx), expected.astype(np.float32))
    close(value(lambda i: tp.one_hot(i, 3, tp.int32), idx), expected.astype(np.int32))
    close(value(lambda i: tp.one_hot(i, 3, tp.bool_), idx.astype(np.int64)), expected.astype(bool))


def test_one_hot_of_a_step():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        prog.output("eye", tp.one_hot(t.value, T))
    close(prog.evaluate({T: 3}).eye, np.eye(3, dtype=np.float32))


def added(x, indices, updates, axis):
    result = np.moveaxis(x.copy(), axis, 0)
    spread = np.broadcast_to(updates, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])
    np.add.at(result, indices, np.moveaxis(spread, range(axis, axis + indices.ndim), range(indices.ndim)))
    return np.moveaxis(result, 0, axis)


@pytest.mark.parametrize("indices", INDICES, ids=lambda i: f"{i.dtype}{i.shape}")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter_add(indices, axis):
    for dtype in (np.float64, np.float32, np.int32):
        x = numbers(3, 3, 4, dtype=dtype)
        shape = np.take(x, indices, axis).shape
        updates = numbers(*shape, dtype=dtype, seed=1)
        same(
            lambda x, i, u: tp.scatter_add(x, i, u, axis),
            lambda x, i, u: added(x, i, u, axis),
            x,
            indices,
            updates,
        )
        if dtype == np.float64:
            gradients(lambda x, i, u: tp.square(tp.scatter_add(x, i, u, axis)), x, indices, updates)


def test_scatter_add_broadcasts_and_counts():
    idx = np.array([2, 0, 2, 2], np.int32)
    close(value(lambda i: tp.scatter_add(tp.zeros(3), i, 1.0), idx), np.array([1, 0, 3], np.float32))


def test_half_precision_is_added_in_single():
    idx = np.zeros(1000, np.int32)
    found = value(lambda i: tp.scatter_add(tp.zeros(1, tp.bfloat16), i, tp.ones(1000, tp.bfloat16)), idx)
    close(found, np.asarray([1000.0], bfloat16))


# -- symbolic sizes -----------------------------------------------------------------------------------------


def test_negative_indices_count_from_the_end_of_a_symbolic_axis():
    idx = np.array([-1, 0], np.int32)
    same_prefixes(lambda x: tp.take(x, idx), lambda x: np.take(x, idx, 0), numbers(4, 3))
    prefix_gradients(lambda x: tp.square(tp.take(x, idx)), numbers(4, 2))


def test_symbolic_axes():
    x = numbers(4, 3)
    at = np.array([[0, -1, 0]], np.int32)
    same_prefixes(lambda x: tp.take_along_axis(x, at, 0), lambda x: np.take_along_axis(x, at, 0), x)
    same_padded(lambda x: tp.take(x, [2, 0], 1), lambda x: np.take(x, [2, 0], 1), x)
    prefix_gradients(lambda x: tp.square(tp.take_along_axis(x, at, 0)), x)
    prefix_gradients(lambda x: tp.sum(tp.square(tp.take(x, [2, 0], 1)), 0), x)


def test_reading_the_past_at_places_given_by_data():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=(t,), dtype=tp.float64)
        back = prog.input("back", domain=(t,), dtype=tp.int32)
        prog.output("y", x[0 : t + 1].take(t.value - back))
    x, back = numbers(4, 2), np.array([0, 1, 0, 3], np.int32)
    close(prog.evaluate({T: 4}, x=x, back=back).y, x[np.arange(4) - back])


# -- mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [3, -4])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: tp.take(x, i, 1),
        lambda x, i: tp.scatter_add(x, i, 0.0, 1),
        lambda x, i: tp.take_along_axis(x, tp.reshape(i, (1, -1)), 1),
    ],
)
def test_an_index_out_of_range_is_an_error(fn, wrong):
    with pytest.raises(InputError) as caught:
        value(fn, numbers(2, 3), np.array([0, wrong], np.int32))
    assert f"index {wrong} is out of range for axis 1 of size 3" in str(caught.value)
    assert "test_gathering.py" in str(caught.value)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("backend", ["evaluate", "numpy", "jax"])
def test_indices_of_a_type_that_does_not_hold_the_size(backend, dtype):
    x, i = numbers(300, dtype=np.float32), np.array([-1 if dtype == "int8" else 200, 3], dtype)
    with tp.Program() as prog:
        data, at = prog.input("x", shape=(300,)), prog.input("i", shape=(2,), dtype=dtype)
        prog.output("taken", data.take(at))
        prog.output("added", tp.scatter_add(data, at, 1.0))
    result = prog.evaluate({}, x=x, i=i) if backend == "evaluate" else prog.compile({}, backend=backend)(x=x, i=i)
    np.testing.assert_array_equal(result.taken, x[i])
    x[i] += 1
    np.testing.assert_array_equal(result.added, x)


@pytest.mark.parametrize("dtype", [bfloat16, np.float16])
def test_a_loop_reads_rows_in_half_precision_from_the_table_itself(dtype):
    """On a CPU, XLA would convert the whole table before the loop."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        table = prog.input("table", shape=(10_000, 3), dtype=dtype)
        row = prog.recurrent("row", domain=t, dtype="int32")
        row[0] = 7
        row[t + 1] = tp.argmax(tp.take(table, row))
        prog.output("last", row[T])
    run = prog.compile({T: 5}, device="cpu")
    assert run._whole.compiled.memory_analysis().temp_size_in_bytes < 10_000
    x = numbers(10_000, 3, dtype=dtype)
    expected = 7
    for _ in range(5):
        expected = np.argmax(x[expected])
    assert run(table=x).last == expected


MISTAKES = [
    (lambda x: tp.take(x, [0.5]), "take: indices must be integers, found float32"),
    (lambda x: tp.take(x, x > 0), "take: indices must be integers, found bool"),
    (lambda x: tp.one_hot(x, 3), "one_hot: indices must be integers, found float32"),
    (lambda x: tp.take(x, [0], 2), "take: axis 2 is out of range for shape (2, 3)"),
    (
        lambda x: tp.take_along_axis(x, [0, 1], 0),
        "take_along_axis: indices of shape (2,) do not fit shape (2, 3) along axis 0",
    ),
    (
        lambda x: tp.take_along_axis(x, [[0, 1]], 0),
        "take_along_axis: indices of shape (1, 2) do not fit shape (2, 3) along axis 0",
    ),
    (
        lambda x: tp.scatter_add(x, [0, 1, 1], tp.zeros((2, 3))),
        "scatter_add: updates of shape (2, 3) do not fit: indices of shape (3,) into axis 0 of shape (2, 3) "
        "make it (3, 3)",
    ),
    (lambda x: tp.scatter_add(x > 0, [0], True), "scatter_add: bool tensors have no arithmetic"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes(wrong, message):
    with tp.Program() as prog:
        x = prog.input("x", shape=(2, 3))
        with pytest.raises((ShapeError, DtypeError)) as caught:
            wrong(x)
    assert str(caught.value).splitlines()[0] == message
    assert "test_gathering.py" in str(caught.value)


def test_more_classes_than_small_integers_count():
    x = np.array([0, 5, 255], np.uint8)
    same(lambda x: tp.one_hot(x, 300), lambda x: np.eye(300, dtype=np.float32)[x], x)
