"""reshape, transpose, broadcast, join, cut and pad, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.errors import ShapeError
from tests.ops.checks import bfloat16, gradients, numbers, prefix_gradients, same, same_padded, same_prefixes, value

DTYPES = [np.float32, np.float64, bfloat16, np.int32, np.uint8, np.bool_]

ONE_OPERAND = {
    "reshape": ((2, 3, 4), lambda m, x: m.reshape(x, (4, 6))),
    "reshape -1": ((2, 3, 4), lambda m, x: m.reshape(x, (3, -1))),
    "reshape flat": ((2, 3, 4), lambda m, x: m.reshape(x, -1)),
    "reshape empty": ((0, 3), lambda m, x: m.reshape(x, (3, 0, 2))),
    "reshape scalar": ((1, 1), lambda m, x: m.reshape(x, ())),
    "transpose": ((2, 3, 4), lambda m, x: m.transpose(x)),
    "transpose axes": ((2, 3, 4), lambda m, x: m.transpose(x, (1, -1, 0))),
    "swapaxes": ((2, 3, 4), lambda m, x: m.swapaxes(x, 0, -1)),
    "moveaxis": ((2, 3, 4), lambda m, x: m.moveaxis(x, 0, -1)),
    "moveaxis several": ((2, 3, 4, 5), lambda m, x: m.moveaxis(x, (0, -1), (-2, 0))),
    "broadcast_to": ((3, 1), lambda m, x: m.broadcast_to(x, (2, 3, 4))),
    "broadcast_to empty": ((3, 1), lambda m, x: m.broadcast_to(x, (3, 0))),
    "broadcast_to scalar": ((), lambda m, x: m.broadcast_to(x, (2, 3))),
    "expand_dims": ((2, 3), lambda m, x: m.expand_dims(x, -1)),
    "expand_dims several": ((2, 3), lambda m, x: m.expand_dims(x, (0, 2))),
    "squeeze": ((1, 3, 1), lambda m, x: m.squeeze(x)),
    "squeeze axis": ((1, 3, 1), lambda m, x: m.squeeze(x, -1)),
    "flip": ((2, 3), lambda m, x: m.flip(x)),
    "flip axis": ((2, 3, 4), lambda m, x: m.flip(x, (0, -1))),
    "roll": ((3, 4), lambda m, x: m.roll(x, 5)),
    "roll axis": ((3, 4), lambda m, x: m.roll(x, -1, 1)),
    "roll axes": ((3, 4), lambda m, x: m.roll(x, (1, -2), (0, 1))),
    "roll empty": ((0, 2), lambda m, x: m.roll(x, 1, 0)),
    "repeat": ((2, 3), lambda m, x: m.repeat(x, 2)),
    "repeat axis": ((2, 3), lambda m, x: m.repeat(x, 3, axis=-1)),
    "tile": ((2, 3), lambda m, x: m.tile(x, 2)),
    "tile more axes": ((3,), lambda m, x: m.tile(x, (2, 1, 2))),
    "tile fewer": ((2, 1, 3), lambda m, x: m.tile(x, (2, 2))),
    "pad": ((2, 3), lambda m, x: m.pad(x, 1)),
    "pad pair": ((2, 3), lambda m, x: m.pad(x, (1, 2))),
    "pad one pair": ((2, 3), lambda m, x: m.pad(x, ((0, 2),))),
    "pad per axis": ((2, 3), lambda m, x: m.pad(x, ((1, 0), (0, 2)), constant_values=1)),
    "pad by axis": ((2, 3), lambda m, x: m.pad(x, {-1: (2, 1)})),
    "split": ((6, 2), lambda m, x: m.split(x, 3)),
    "split at": ((2, 6), lambda m, x: m.split(x, [2, 3, 9], axis=-1)),
}


@pytest.mark.parametrize("name", ONE_OPERAND)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rearranges_as_numpy_does(name, dtype):
    shape, fn = ONE_OPERAND[name]
    same(lambda x: fn(tp, x), lambda x: fn(np, x), numbers(*shape, dtype=dtype))


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_gradients(name):
    shape, fn = ONE_OPERAND[name]
    gradients(lambda x: fn(tp, x) if "split" in name else tp.square(fn(tp, x)), numbers(*shape))


JOINS = {
    "concatenate": ([(2, 3), (4, 3)], lambda m, *xs: m.concatenate(xs)),
    "concatenate axis": ([(2, 3), (2, 0), (2, 1)], lambda m, *xs: m.concatenate(xs, axis=-1)),
    "concatenate flat": ([(2, 3), (4,)], lambda m, *xs: m.concatenate(xs, axis=None)),
    "stack": ([(2, 3), (2, 3)], lambda m, *xs: m.stack(xs)),
    "stack axis": ([(2, 3), (2, 3), (2, 3)], lambda m, *xs: m.stack(xs, axis=-1)),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins(name):
    shapes, fn = JOINS[name]
    arrays = [numbers(*s, seed=n) for n, s in enumerate(shapes)]
    same(lambda *xs: fn(tp, *xs), lambda *xs: fn(np, *xs), *arrays)
    gradients(lambda *xs: tp.square(fn(tp, *xs)), *arrays)


def test_joined_dtypes_are_promoted():
    same(
        lambda a, b: tp.concatenate([a, b]),
        lambda a, b: np.concatenate([a, b.astype(np.float32)]),
        numbers(2, dtype=np.float32),
        numbers(2, dtype=np.int32),
    )


# -- symbolic sizes -----------------------------------------------------------------------------------------

KEEP_AXIS = {
    "reshape a divisor": lambda m, x: m.reshape(m.reshape(x, (x.shape[0] * 3, 2)), (x.shape[0], -1)),
    "transpose twice": lambda m, x: m.transpose(m.moveaxis(x, 0, 2), (2, 1, 0)),
    "flip": lambda m, x: m.flip(x, 0),
    "repeat": lambda m, x: m.repeat(x, 2, 1),
    "broadcast": lambda m, x: m.broadcast_to(m.expand_dims(x, 1), (x.shape[0], 4, 2, 3)),
    "roll": lambda m, x: m.roll(x, 1, 0),
    "roll back": lambda m, x: m.roll(x, -1, 0),
    "split": lambda m, x: m.split(x, [1])[0],
    "split rest": lambda m, x: m.split(x, [1])[1],
}
OTHER_SIZES = {
    "reshape to the whole": lambda m, x: m.reshape(x, (-1, 1)),
    "reshape to a product": lambda m, x: m.reshape(x, (x.shape[0] * 2, 3)),
    "concatenate": lambda m, x: m.concatenate([x, m.flip(x, 0), m.ones((1, 2, 3))]),
    "repeat": lambda m, x: m.repeat(x, 2, 0),
    "tile": lambda m, x: m.tile(x, (2, 1, 1)),
    "pad": lambda m, x: m.pad(x, ((x.shape[0], 1), (0, 0), (0, 0))),
}


@pytest.mark.parametrize("name", KEEP_AXIS)
def test_symbolic_sizes(name):
    fn = KEEP_AXIS[name]
    same_padded(lambda x: fn(tp, x), lambda x: fn(np, x), numbers(4, 2, 3))


@pytest.mark.parametrize("fn", [*KEEP_AXIS.values(), *OTHER_SIZES.values()], ids=[*KEEP_AXIS, *OTHER_SIZES])
def test_symbolic_sizes_reduced(fn):
    def weighted(m, x):
        y = m.reshape(fn(m, x), (-1,))
        return m.sum(y * m.cumsum(0 * y + 1, 0), 0)

    same_prefixes(lambda x: weighted(tp, x), lambda x: weighted(np, x), numbers(4, 2, 3))
    prefix_gradients(lambda x: tp.square(weighted(tp, x)), numbers(3, 2, 3))


def test_a_symbolic_size_divides_out():
    with tp.Program() as prog:
        _, B = prog.dim("b")
        t, T = prog.dim("t")
        x = tp.zeros((B, T, 6))
        assert tp.reshape(x, (-1, 3)).shape == (2 * B * T, 3)
        assert tp.reshape(x, (B, -1)).shape == (B, 6 * T)
        assert tp.reshape(tp.zeros((B * T + T,)), (B + 1, -1)).shape == (B + 1, T)
        assert tp.reshape(tp.zeros((t * t + 2 * t + 1,)), (-1, t + 1)).shape == (t + 1, t + 1)
        assert tp.split(x, 3, axis=2)[0].shape == (B, T, 2)
        with pytest.raises(ShapeError, match=r"reshape: the size -1 of \(t, -1\) cannot be found"):
            tp.reshape(x, (t, -1))


# -- mistakes -------------------------------------------------------------------------------------------------

MISTAKES = [
    (lambda x: tp.reshape(x, (4, 2)), "reshape: shape (2, 3) has 6 elements, (4, 2) has 8"),
    (lambda x: tp.reshape(x, (-1, -1)), "reshape: (-1, -1) has more than one -1"),
    (lambda x: tp.reshape(x, (-1, 4)), "reshape: the size -1 of (-1, 4) cannot be found"),
    (lambda x: tp.reshape(x, (2.0, 3)), "reshape: 2.0 is not a size"),
    (lambda x: tp.transpose(x, (0, 0)), "transpose: axes (0, 0) are no order of the 2 axes of shape (2, 3)"),
    (lambda x: tp.moveaxis(x, (0, 1), 0), "moveaxis: axes (0, 1) cannot move to 0"),
    (lambda x: tp.broadcast_to(x, (3, 3)), "broadcast_to: shape (2, 3) does not broadcast to (3, 3)"),
    (lambda x: tp.expand_dims(x, 3), "expand_dims: axis 3 is no place in a result of 3 axes (from shape (2, 3))"),
    (lambda x: tp.squeeze(x, 0), "squeeze: axis 0 of shape (2, 3) has size 2, not 1"),
    (lambda x: tp.flip(x, 2), "flip: axis 2 is out of range for shape (2, 3)"),
    (lambda x: tp.concatenate([x, tp.zeros((2, 4))]), "concatenate: shapes (2, 3) and (2, 4) cannot be joined"),
    (lambda x: tp.concatenate([]), "concatenate: needs a list of tensors, found none"),
    (lambda x: tp.concatenate(x), "concatenate: needs a list of tensors, found x"),
    (lambda x: tp.stack([x, tp.zeros(3)]), "stack: shapes (2, 3) and (3,) differ"),
    (lambda x: tp.split(x, 2, axis=1), "split: axis 1 of shape (2, 3) cannot be cut into 2 equal parts"),
    (lambda x: tp.pad(x, 1, mode="edge"), "pad: mode 'edge' is not supported"),
    (lambda x: tp.pad(x, -1), "pad: -1 is no pad width for shape (2, 3)"),
    (lambda x: tp.pad(x, ((0, 1),) * 3), "pad: 3 widths for the 2 axes of shape (2, 3)"),
    (lambda x: tp.pad(x, 1, constant_values=[1, 2]), "pad: the value must be one number, found [1, 2]"),
    (lambda x: tp.roll(x, (1, 2), 0), "roll: 2 shifts for 1 axes"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes(wrong, message):
    with tp.Program() as prog:
        x = prog.input("x", shape=(2, 3))
        with pytest.raises(ShapeError) as caught:
            wrong(x)
    assert str(caught.value).startswith(message)
    assert "test_shaping.py" in str(caught.value)


def test_the_whole_message_of_a_reshape():
    with tp.Program() as prog:
        x = prog.input("x", shape=(2, 3))
        with pytest.raises(ShapeError) as caught:
            x.reshape(4, 2)
    lines = str(caught.value).splitlines()
    assert lines[0] == "reshape: shape (2, 3) has 6 elements, (4, 2) has 8"
    assert lines[1].endswith("x.reshape(4, 2)")
    assert lines[2].endswith('x = prog.input("x", shape=(2, 3))')
    assert lines[3] == "  hint: the numbers of elements must be equal; one size may be -1, for what is left"


def test_methods_are_the_functions():
    x = numbers(2, 3, 4)
    assert np.array_equal(value(lambda x: x.T, x), x.T)
    assert np.array_equal(value(lambda x: x.transpose(1, 0, 2), x), x.transpose(1, 0, 2))
    assert np.array_equal(value(lambda x: x.reshape(6, 4), x), x.reshape(6, 4))
    assert np.array_equal(value(lambda x: x.flatten(), x), x.flatten())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: tp.reshape(x, 0.5), "reshape: 0.5 is not a size"),
        (
            lambda x: tp.expand_dims(x, 0.5),
            "expand_dims: axis 0.5 is no place in a result of 3 axes (from shape (2, 3))",
        ),
        (lambda x: tp.transpose(x, 0.5), "transpose: axis 0.5 is out of range for shape (2, 3)"),
        (lambda x: tp.pad(x, 0.5), "pad: 0.5 is no pad width for shape (2, 3)"),
        (lambda x: tp.split(x, 0.5), "x.space[...]: 0.5 is no end or step of a slice"),
    ],
)
def test_numbers_that_are_no_integers(wrong, message):
    with tp.Program() as prog:
        x = prog.input("x", shape=(2, 3))
        with pytest.raises(tp.TempoError) as caught:
            wrong(x)
    assert str(caught.value).splitlines()[0] == message


def test_tiles_of_a_number_of_numpys():
    same(lambda x: tp.tile(x, np.int64(2)), lambda x: np.tile(x, 2), numbers(2, 3))
