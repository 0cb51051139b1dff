"""matmul, einsum and their relatives, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo.errors import DtypeError, ShapeError
from tests.ops.checks import bfloat16, close, gradients, numbers, prefix_gradients, prefixes, same, value

MATMUL = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((1, 2, 3), (5, 3, 4)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((1, 1), (1, 1)),
    ((2, 0), (0, 3)),
    ((0, 2), (2, 3)),
]


@pytest.mark.parametrize(("a", "b"), MATMUL, ids=str)
def test_matmul(a, b):
    arrays = numbers(*a, seed=1), numbers(*b, seed=2)
    same(lambda a, b: a @ b, np.matmul, *arrays)
    gradients(lambda a, b: tp.square(a @ b), *arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.uint16, bfloat16, np.float16])
def test_matmul_keeps_the_dtype(dtype):
    same(tp.matmul, np.matmul, numbers(3, 4, dtype=dtype), numbers(4, 2, dtype=dtype))


def test_half_precision_accumulates_in_single():
    ones = np.ones((1, 3000), bfloat16)
    close(value(lambda a: a @ tp.transpose(a), ones), np.asarray([[3000.0]], bfloat16))


EINSUM = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ba,cb", (2, 3), (4, 2)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,kl->ilkj", (2, 3), (4, 1)),
    ("i,j->ij", (2,), (3,)),
    ("i,->i", (2,), ()),
    ("ijk->ki", (2, 3, 4)),
    ("ijk->", (2, 3, 4)),
    ("ijk->kji", (2, 3, 4)),
    ("ji", (2, 3)),
    ("ijk,k->i", (2, 3, 4), (4,)),
    ("ijk,l->ij", (2, 3, 4), (2,)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("...ij,...jk->...ik", (5, 2, 3), (5, 3, 4)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk", (6, 5, 2, 3), (5, 3, 4)),
    ("...ij,jk->ik...", (5, 2, 3), (3, 4)),
    ("...,...->...", (2, 3), (3,)),
    ("...i,...i->...", (1, 3), (4, 3)),
    ("ij,jk->ik", (1, 3), (3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 2), (2, 3)),
    ("ij,ij,ij->i", (2, 3), (2, 3), (2, 3)),
    ("i,j,k->kji", (2,), (3,), (4,)),
    (" i j , j -> i ", (2, 3), (3,)),
]


@pytest.mark.parametrize(("subscripts", "shapes"), [(s, shapes) for s, *shapes in EINSUM], ids=str)
def test_einsum(subscripts, shapes):
    arrays = [numbers(*s, seed=n) for n, s in enumerate(shapes)]
    same(lambda *xs: tp.einsum(subscripts, *xs), lambda *xs: np.einsum(subscripts, *xs), *arrays)
    gradients(lambda *xs: tp.square(tp.einsum(subscripts, *xs)), *arrays, tolerance=1e-5)


def test_einsum_of_one_tensor_with_itself():
    same(lambda x: tp.einsum("ij,ik->jk", x, x), lambda x: np.einsum("ij,ik->jk", x, x), numbers(3, 2))
    gradients(lambda x: tp.einsum("ij,ik->jk", x, x), numbers(3, 2))


def test_a_chain_is_contracted_in_the_cheap_order():
    """(1000, 2) (2, 1000) (1000, 3): the large product in the middle is never formed."""
    with tp.Program():
        y = tp.einsum("ij,jk,kl->il", tp.zeros((1000, 2)), tp.zeros((2, 1000)), tp.zeros((1000, 3)))
    assert [e.shape for e in y.edge.node.edges if e.shape == (2, 3)] == [(2, 3)]


OTHERS = {
    "dot vectors": ((3,), (3,), lambda m, a, b: m.dot(a, b)),
    "dot matrices": ((2, 3), (3, 4), lambda m, a, b: m.dot(a, b)),
    "dot more": ((2, 5, 3), (4, 3, 2), lambda m, a, b: m.dot(a, b)),
    "dot scalar": ((), (3, 4), lambda m, a, b: m.dot(a, b)),
    "dot of more as a method": ((2, 5, 3), (4, 3, 2), lambda m, a, b: a.dot(b)),
    "dot of a scalar as a method": ((), (3, 4), lambda m, a, b: a.dot(b)),
    "outer": ((2, 3), (4,), lambda m, a, b: m.outer(a, b)),
    "tensordot": ((2, 3, 4), (3, 4, 5), lambda m, a, b: m.tensordot(a, b)),
    "tensordot none": ((2, 3), (4,), lambda m, a, b: m.tensordot(a, b, 0)),
    "tensordot lists": ((2, 3, 4), (4, 5, 2), lambda m, a, b: m.tensordot(a, b, ([0, -1], [2, 0]))),
    "tensordot one": ((2, 3), (4, 3), lambda m, a, b: m.tensordot(a, b, (1, 1))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products(name):
    a, b, fn = OTHERS[name]
    arrays = numbers(*a, seed=1), numbers(*b, seed=2)
    same(lambda a, b: fn(tp, a, b), lambda a, b: fn(np, a, b), *arrays)
    gradients(lambda a, b: tp.square(fn(tp, a, b)), *arrays)


def test_symbolic_sizes():
    """Attention of every step to all before it, and a Gram matrix of symbolic size."""
    x = numbers(4, 3)

    def attention(m, x, last):
        return m.einsum("k,kd->d", m.matmul(x, last), x)

    found = prefixes(lambda x, t, T: attention(tp, x, x.space[-1]), x, start=1)
    close(found, np.stack([attention(np, x[: t + 1], x[t]) for t in range(4)]))
    found = prefixes(lambda x, t, T: tp.sum(tp.square(x @ tp.transpose(x))), x, start=0)
    close(found, np.stack([np.sum((x[:t] @ x[:t].T) ** 2) for t in range(4)]))
    prefix_gradients(lambda x: attention(tp, x, x.space[-1]), x)
    prefix_gradients(lambda x: tp.sum(tp.square(x @ tp.transpose(x))), x, start=0)


def test_the_larger_operand_is_read_in_the_order_of_its_axes():
    """XLA would copy it into another one, in every turn of a loop."""
    with tp.Program() as prog:
        few, many = prog.input("few", shape=(4, 8)), prog.input("many", shape=(4, 8, 64))
        prog.output("one", tp.einsum("zd,zdw->w", few, many))
        prog.output("other", tp.einsum("zda,dz->a", many, tp.transpose(few)))
    text = prog.compile({}, device="cpu")._whole.compiled.as_text()
    assert "4,8,64]" in text
    assert "8,4,64]" not in text


MISTAKES = [
    (lambda a, b: a @ a, "matmul: shapes (2, 3) and (2, 3) do not fit: the last size of the first is 3, "),
    (lambda a, b: a @ 2.0, "matmul: shapes (2, 3) and (): a scalar is no matrix"),
    (
        lambda a, b: tp.zeros((4, 1, 2)) @ tp.zeros((3, 2, 1)),
        "matmul: shapes (4, 1, 2) and (3, 2, 1): leading sizes 4 and 3 do not broadcast",
    ),
    (
        lambda a, b: tp.einsum("ij,kj->ik", a, b),
        "einsum 'ij,kj->ik': 'j' has sizes 3 and 4 in shapes (2, 3) and (3, 4)",
    ),
    (lambda a, b: tp.einsum("ij->i", a, b), "einsum 'ij->i': 1 terms for 2 operands"),
    (lambda a, b: tp.einsum("ijk->i", a), "einsum 'ijk->i': 'ijk' names 3 axes, the operand has shape (2, 3)"),
    (lambda a, b: tp.einsum("ii->i", tp.zeros((2, 2))), "einsum 'ii->i': 'i' occurs twice in one term"),
    (lambda a, b: tp.einsum("ij->ik", a), "einsum 'ij->ik': 'k' is in the result but in no operand"),
    (lambda a, b: tp.einsum("i...->i", a), "einsum 'i...->i': '...' is not in the result"),
    (lambda a, b: tp.einsum("i1->i", a), "einsum 'i1->i': indices are letters"),
    (lambda a, b: tp.tensordot(a, b, (0, 0)), "tensordot: axis 0 of shape (2, 3) has size 2, axis 0 of shape (3, 4)"),
    (lambda a, b: tp.tensordot(a, b, ([0, 1], [0])), "tensordot: 2 axes of the first operand, 1 of the second"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes(wrong, message):
    with tp.Program() as prog:
        a, b = prog.input("a", shape=(2, 3)), prog.input("b", shape=(3, 4))
        with pytest.raises(ShapeError) as caught:
            wrong(a, b)
    assert str(caught.value).startswith(message)
    assert "test_contraction.py" in str(caught.value)


def test_bools_have_no_products():
    with tp.Program() as prog:
        a = prog.input("a", shape=(2, 2), dtype=tp.bool_)
        with pytest.raises(DtypeError, match="matmul: bool tensors have no arithmetic"):
            a @ a
