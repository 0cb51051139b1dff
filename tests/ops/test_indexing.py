"""x.space[key] against NumPy's x[key]."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tempo as tp
from tempo.errors import DtypeError, InputError, ShapeError
from tests.ops.checks import close, gradients, numbers, prefix_gradients, prefixes, same, same_padded, same_prefixes

KEYS = [
    np.s_[1],
    np.s_[-1],
    np.s_[np.int64(1), 2],
    np.s_[...],
    np.s_[()],
    np.s_[:, -2],
    np.s_[..., 0],
    np.s_[1:, :2, 1:3],
    np.s_[:, 1:-1],
    np.s_[::2, ::-1],
    np.s_[..., ::-2],
    np.s_[:, 4:0:-3],
    np.s_[5:1:2],
    np.s_[-100:100, 7:2],
    np.s_[None, 1],
    np.s_[:, None, ..., None, 2],
    np.s_[[0, 2]],
    np.s_[:, np.array([[0, 1], [-1, 2]])],
    np.s_[..., [3, 0]],
    np.s_[1, [2, 0]],
    np.s_[1, :, [2, 0]],
    np.s_[:, None, 1, [2, 0]],
    np.s_[[1, 0], ::-1, None],
    np.s_[:, np.array(1)],
    np.s_[:, []],
]


def show(key):
    return str(key).replace("slice", "")


@pytest.mark.parametrize("key", KEYS, ids=show)
def test_keys_as_in_numpy(key):
    x = numbers(3, 5, 4)
    same(lambda x: x.space[key], lambda x: x[key], x)
    same(lambda x: x.space[key], lambda x: x[key], numbers(3, 5, 4, dtype=np.int32))
    gradients(lambda x: tp.square(x.space[key]), x)


ends = st.none() | st.integers(-8, 8)
slices = st.builds(slice, ends, ends, st.none() | st.integers(-3, 3).filter(bool))
items = slices | st.integers(-3, 2) | st.none()


@settings(max_examples=60, deadline=None)
@given(st.lists(items, max_size=4).filter(lambda k: sum(i is not None for i in k) <= 3).map(tuple))
def test_random_keys(key):
    same(lambda x: x.space[key], lambda x: x[key], np.arange(27.0).reshape(3, 3, 3))


def test_a_tensor_as_key():
    x, idx = numbers(4, 3), np.array([[3, 0], [-1, 1]], np.int32)
    same(lambda x, i: x.space[i], lambda x, i: x[i], x, idx)
    same(lambda x, i: x.space[:, i], lambda x, i: x[:, i], x.T, idx)
    gradients(lambda x, i: tp.square(x.space[i]), x, idx)


# -- index expressions --------------------------------------------------------------------------------------


def test_expressions_on_a_static_axis():
    """Minibatches of a permutation, one element per step, growing and shrinking slices."""
    with tp.Program() as prog:
        m, M = prog.dim("m")
        x = prog.input("x", shape=(6, 2), dtype=tp.float64)
        prog.output("batch", x.space[m * 2 : (m + 1) * 2])
        prog.output("one", x.space[m])
        prog.output("back", x.space[5 - m, 1])
        prog.output("growing", tp.sum(x.space[0 : m + 1], 0))
        prog.output("shrinking", tp.sum(x.space[m:], 0))
        prog.output("reversed", x.space[m * 2 + 1 : m * 2 : -1])
        prog.output("strided", tp.sum(x.space[m::2], 0))
        loss = tp.sum(tp.square(x.space[m * 2 : (m + 1) * 2]) * (m.value + 1))[0:M]
        prog.output("slope", tp.grad(tp.sum(loss), x))
    x = numbers(6, 2)
    out = prog.evaluate({M: 3}, x=x)
    close(out.batch, x.reshape(3, 2, 2))
    close(out.one, x[:3])
    close(out.back, x[[5, 4, 3], 1])
    close(out.growing, np.cumsum(x, 0)[:3])
    close(out.shrinking, np.stack([x[m:].sum(0) for m in range(3)]))
    close(out.reversed, np.stack([x[2 * m + 1 : 2 * m : -1] for m in range(3)]))
    close(out.strided, np.stack([x[m::2].sum(0) for m in range(3)]))
    close(out.slope, 2 * x * np.repeat([1, 2, 3], 2)[:, None])


@pytest.mark.parametrize("key", [np.s_[-1], np.s_[0], np.s_[-1, ::-1], np.s_[None, 0, 1:]], ids=show)
def test_points_of_a_symbolic_axis(key):
    same_prefixes(lambda x: x.space[key], lambda x: x[key], numbers(4, 3))


@pytest.mark.parametrize(
    "key",
    [np.s_[1:], np.s_[:-1], np.s_[:], np.s_[::-1], np.s_[::2], np.s_[-1:], np.s_[-1::-2], np.s_[:1], np.s_[:, 1:]],
    ids=show,
)
def test_slices_of_a_symbolic_axis(key):
    x = numbers(5, 3)
    same_padded(lambda x: x.space[key], lambda x: x[key], x)
    same_prefixes(lambda x: tp.sum(tp.square(x.space[key]), 0), lambda x: np.sum(x[key] ** 2, 0), x)
    prefix_gradients(lambda x: tp.sum(tp.square(x.space[key]), 0), numbers(4, 2))


def test_a_slice_of_a_slice():
    x = numbers(5, 3)
    found = prefixes(lambda x, t, T: tp.sum(x.space[1 : t + 1], 0), x, start=2 - 1)
    close(found, np.stack([x[1 : t + 1].sum(0) for t in range(5)]))


def test_the_size_of_a_symbolic_slice():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = tp.zeros((t + 3, T))
        assert x.space[1:].shape == (t + 2, T)
        assert x.space[:-1, 2:].shape == (t + 2, T - 2)
        assert x.space[-2:].shape == (2, T)
        assert x.space[::2].shape == ((t + 4) // 2, T)
        assert x.space[0 : t + 1, t].shape == (t + 1,)
        assert x.space[t : t + 2].shape == (2, T)
        assert x.space[:, t:T].shape == (t + 3, T - t)


def test_an_index_outside_is_found_where_it_is_evaluated():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,))
        prog.output("y", x.space[t])
    with pytest.raises(InputError) as caught:
        prog.evaluate({T: 5}, x=np.zeros(3, np.float32))
    message = str(caught.value).splitlines()
    assert message[0] == "slice failed at t=3: element 3 of axis 0 asked for, whose size is 3"
    assert message[1].endswith('prog.output("y", x.space[t])')


def test_a_slice_outside_is_found_where_it_is_evaluated():
    with pytest.raises(InputError, match="elements 0 to 2 of axis 0 asked for, whose size is 1"):
        prefixes(lambda x, t, T: x.space[:3], numbers(4, 2), start=1)
    with pytest.raises(InputError, match="the length -1 along axis 0 is negative"):
        prefixes(lambda x, t, T: tp.sum(x.space[1:], 0), numbers(4, 2), start=0)


MISTAKES = [
    (lambda x: x.space[0, 0, 0], "x.space[...]: 3 indices for shape (2, 3)"),
    (lambda x: x.space[..., ...], "x.space[...]: 0 indices for shape (2, 3) and more than one '...'"),
    (lambda x: x.space[2], "x.space[...]: index 2 is out of range for axis 0 of shape (2, 3)"),
    (lambda x: x.space[:, -4], "x.space[...]: index -4 is out of range for axis 1 of shape (2, 3)"),
    (lambda x: x.space[True], "x.space[...]: True is a truth value, not an index"),
    (lambda x: x.space[x > 0], "x.space[...]: a bool tensor would give a size that depends on data"),
    (lambda x: x.space[x], "x.space[...]: a tensor of float32 is no index"),
    (lambda x: x.space[0.5], "x.space[...]: 0.5 of type float is no index"),
    (lambda x: x.space[0:1.5], "x.space[...]: 1.5 is no end or step of a slice"),
    (lambda x: x.space[::0], "x.space[...]: the step 0 of a slice must be a non-zero integer"),
    (lambda x: x.space[[0], [1]], "x.space[...]: only one axis can be indexed by a tensor"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes(wrong, message):
    with tp.Program() as prog:
        x = prog.input("x", shape=(2, 3))
        with pytest.raises((ShapeError, DtypeError)) as caught:
            wrong(x)
    assert str(caught.value).startswith(message)
    assert "test_indexing.py" in str(caught.value)
