"""Products summed over shared axes: matmul, einsum and their relatives, all made of one primitive.

``einsum`` of two operands, in which every letter occurs in at least two of the three terms. Its gradients
are then of the same form: the adjoint of ``a`` in ``a,b->out`` is ``out,b->a``.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo.dtypes import DType
from tempo.errors import ShapeError
from tempo.graph.node import Edge, Primitive, Shape, Size, show_shape
from tempo.ops.common import accumulate_in, listed, normal_axis, places, require_numbers
from tempo.ops.reduction import sum as sum_
from tempo.ops.shaping import reshape, transpose
from tempo.source import user_line
from tempo.tensor import RecurrentTensor, TensorLike, apply, coerce

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]

ALPHABET = sorted(string.ascii_letters)
# In a path through symbolic sizes an unknown size counts as this.
_TYPICAL_SIZE = 64


def _infer(a: Edge, b: Edge, *, subscripts: str) -> tuple[Shape, DType]:
    left, right, out = subscript_terms(subscripts)
    sizes = _sizes(subscripts, (a, b), (left, right))
    return tuple(sizes[letter] for letter in out), a.dtype


def subscript_terms(subscripts: str) -> list[str]:
    inputs, out = subscripts.split("->")
    return [*inputs.split(","), out]


def _sizes(subscripts: str, edges: Sequence[Edge], terms: Sequence[str]) -> dict[str, Size]:
    """The size of every letter; axes of size 1 broadcast."""
    sizes: dict[str, Size] = {}
    for edge, term in zip(edges, terms, strict=True):
        for letter, size in zip(term, edge.shape, strict=True):
            known = sizes.get(letter, 1)
            if 1 not in (known, size) and known != size:
                raise ShapeError(
                    f"einsum '{subscripts}': '{letter}' has sizes {known} and {size} in shapes "
                    + " and ".join(show_shape(e.shape) for e in edges),
                    places=places(edges),
                    hint="an index stands for one size everywhere",
                )
            sizes[letter] = size if known == 1 else known
    return sizes


def _reference(a: Array, b: Array, *, subscripts: str) -> Array:
    with np.errstate(all="ignore"):
        product = np.einsum(subscripts, accumulate_in(a), accumulate_in(b), optimize=True)
    return np.asarray(product).astype(a.dtype)


def _jax(jx: Jx, a: Padded, b: Padded, *, subscripts: str) -> Any:
    left, right, out = subscript_terms(subscripts)
    if is_outer(subscripts):  # is fused with what reads it, even where XLA does not see that nothing is summed
        return jx.np.multiply(*(_spread(jx, x.array, term, out) for x, term in ((a, left), (b, right))))
    # Where one operand is zero the other must only be finite. What other steps computed is taken to be; to mask it as
    # well would make a copy of it for every step that is computed at once.
    spare = b if b.settled else a if a.settled else None
    arrays = [
        x.array if x is spare else jx.masked(x, [n for n, letter in enumerate(term) if letter not in out], 0)
        for x, term in ((a, left), (b, right))
    ]
    larger, other = (right, left) if arrays[1].size > arrays[0].size else (left, right)
    # Sums in half precision are made in single precision all the same: only what they come to is rounded.
    return jx.np.einsum(
        _in_order(subscripts, larger + other),
        *arrays,
        precision=jx.lax.Precision.HIGHEST,
        preferred_element_type=a.dtype,
    )


def _spread(jx: Jx, array: Any, term: str, out: str) -> Any:
    """An operand with the axes of the result."""
    turned = jx.np.transpose(array, sorted(range(len(term)), key=lambda n: out.index(term[n])))
    return jx.np.expand_dims(turned, [n for n, letter in enumerate(out) if letter not in term])


def _in_order(subscripts: str, letters: str) -> str:
    """The subscripts with other letters, whose alphabetical order is that in which they stand in ``letters``. JAX sums
    over several axes in alphabetical order, and XLA makes a copy of an operand that has them in another one."""
    names = dict(zip(dict.fromkeys(letters), ALPHABET, strict=False))
    return "".join(names.get(c, c) for c in subscripts)


def _gradient(
    g: RecurrentTensor, out: RecurrentTensor, a: RecurrentTensor, b: RecurrentTensor, *, subscripts: str
) -> tuple[RecurrentTensor, RecurrentTensor]:
    left, right, result = subscript_terms(subscripts)
    return (
        apply(EINSUM, (g, b), subscripts=f"{result},{right}->{left}"),
        apply(EINSUM, (a, g), subscripts=f"{left},{result}->{right}"),
    )


def spare_letters(subscripts: str, count: int) -> list[str]:
    """Letters that ``subscripts`` does not use."""
    return [letter for letter in string.ascii_letters if letter not in subscripts][:count]


EINSUM = Primitive("einsum", _infer, _reference, _gradient, _jax, neutral=lambda dtype, **_: 0)


def is_outer(subscripts: str) -> bool:
    """Whether an einsum only multiplies, and sums over nothing."""
    inputs, out = subscripts.split("->")
    return set(inputs) - {","} <= set(out)


def _contract(subscripts: str, operands: Sequence[RecurrentTensor]) -> RecurrentTensor:
    """An explicit einsum without repeated letters in a term, two operands at a time."""
    *terms, out = subscript_terms(subscripts)
    sizes = _sizes(subscripts, [x.edge for x in operands], terms)
    work = [_without_broadcast(x, term, sizes) for x, term in zip(operands, terms, strict=True)]
    for positions in _path(work, out, sizes):
        chosen = [work.pop(p) for p in sorted(positions, reverse=True)][::-1]
        x, term = chosen[0]
        for n, (y, other) in enumerate(chosen[1:], 1):
            rest = "".join(t for _, t in (*work, *chosen[n + 1 :])) + out
            x, term = _pair(x, term, y, other, rest)
        work.append((x, term))
    ((x, term),) = work
    return _rearranged(*_reduced(x, term, out), out)


def _without_broadcast(x: RecurrentTensor, term: str, sizes: dict[str, Size]) -> tuple[RecurrentTensor, str]:
    """Axes of size 1 that another operand has larger are dropped: they broadcast."""
    kept = [n for n, letter in enumerate(term) if x.shape[n] == sizes[letter]]
    return reshape(x, tuple(x.shape[n] for n in kept)), "".join(term[n] for n in kept)


def _path(work: Sequence[tuple[RecurrentTensor, str]], out: str, sizes: dict[str, Size]) -> list[tuple[int, ...]]:
    """The order in which to contract: which operands next, counted as they then stand."""
    if len(work) <= 2:
        return [tuple(range(len(work)))]
    numbers = {letter: size if isinstance(size, int) else _TYPICAL_SIZE for letter, size in sizes.items()}
    shapes = [np.broadcast_to(np.zeros(()), tuple(numbers[letter] for letter in term)) for _, term in work]
    subscripts = ",".join(term for _, term in work) + "->" + out
    return [tuple(step) for step in np.einsum_path(subscripts, *shapes, optimize="greedy")[0][1:]]


def _pair(x: RecurrentTensor, term: str, y: RecurrentTensor, other: str, rest: str) -> tuple[RecurrentTensor, str]:
    """Two operands contracted over what nothing else needs."""
    x, term = _reduced(x, term, other + rest)
    y, other = _reduced(y, other, term + rest)
    out = "".join(letter for letter in dict.fromkeys(term + other) if letter in rest)
    return apply(EINSUM, (x, y), subscripts=f"{term},{other}->{out}"), out


def _reduced(x: RecurrentTensor, term: str, needed: str) -> tuple[RecurrentTensor, str]:
    """Sums over the axes that occur nowhere else."""
    axes = [n for n, letter in enumerate(term) if letter not in needed]
    return (sum_(x, axes), "".join(c for c in term if c in needed)) if axes else (x, term)


def _rearranged(x: RecurrentTensor, term: str, out: str) -> RecurrentTensor:
    return transpose(x, [term.index(letter) for letter in out])


def _numbers(op: str, *values: TensorLike) -> tuple[RecurrentTensor, ...]:
    tensors = coerce(*values)
    require_numbers(op, [x.edge for x in tensors])
    return tensors


# -- einsum -----------------------------------------------------------------------------------------------


def einsum(subscripts: str, *operands: TensorLike) -> RecurrentTensor:
    """The sum of products that Einstein's notation names: ``einsum("bij,bjk->bik", a, b)``.

    Without ``->`` the result has the indices that occur once, in alphabetical order. ``...`` stands for leading
    axes, which broadcast.
    """
    if not isinstance(subscripts, str):
        raise ShapeError(
            f"einsum: {subscripts!r} does not say what is summed",
            places=[("here", user_line())],
            hint='indices come first, then the tensors: tp.einsum("ij,j->i", a, b)',
        )
    tensors = _numbers("einsum", *operands) if operands else ()
    edges = [x.edge for x in tensors]
    text = subscripts.replace(" ", "")
    inputs, arrow, out = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(tensors):
        raise ShapeError(
            f"einsum '{subscripts}': {len(terms)} terms for {len(tensors)} operands",
            places=places(edges),
            hint="one comma-separated term per operand",
        )
    expanded = [_with_ellipsis(subscripts, e, term, text) for e, term in zip(edges, terms, strict=True)]
    # Every letter that "..." stands for, outermost first.
    spread = max((_hidden(term, e, text) for e, term in zip(edges, terms, strict=True)), key=len, default="")
    letters = "".join(expanded)
    if arrow:
        out = out.replace("...", spread)
    else:
        once = (c for c in sorted(set(letters)) if letters.count(c) == 1 and c not in spread)
        out = spread + "".join(once)
    _check(subscripts, edges, expanded, out)
    return _contract(",".join(expanded) + "->" + out, tensors)


def _hidden(term: str, edge: Edge, text: str) -> str:
    """The letters that stand for the axes behind "..." in a term, the same for every operand, from the last."""
    if "..." not in term:
        return ""
    count = len(edge.shape) - len(term.replace("...", ""))
    free = [c for c in string.ascii_letters if c not in text]
    return "".join(reversed(free[: max(count, 0)]))


def _with_ellipsis(subscripts: str, edge: Edge, term: str, text: str) -> str:
    expanded = term.replace("...", _hidden(term, edge, text), 1)
    if len(expanded) != len(edge.shape):
        raise ShapeError(
            f"einsum '{subscripts}': '{term}' names {len(expanded)} axes, the operand has shape "
            f"{show_shape(edge.shape)}",
            places=places([edge]),
            hint="one letter per axis; ... stands for any number of them",
        )
    return expanded


def _check(subscripts: str, edges: Sequence[Edge], terms: Sequence[str], out: str) -> None:
    problem = ""
    for term in (*terms, out):
        repeated = [c for c in term if term.count(c) > 1]
        if repeated:
            problem = f"'{repeated[0]}' occurs twice in one term"
        if not all(c in string.ascii_letters for c in term):
            problem = "indices are letters"
    missing = [c for c in out if not any(c in term for term in terms)]
    if missing:
        problem = f"'{missing[0]}' is in the result but in no operand"
    if "->" in subscripts and "..." in subscripts and "..." not in subscripts.split("->")[1]:
        problem = "'...' is not in the result"
    if problem:
        raise ShapeError(
            f"einsum '{subscripts}': {problem}",
            places=places(edges),
            hint="for a diagonal multiply by tp.eye(n) and sum"
            if "twice" in problem
            else 'write e.g. tp.einsum("ij,jk->ik", a, b)',
        )


# -- products with names ------------------------------------------------------------------------------------


def matmul(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """The matrix product; leading axes broadcast, vectors lose their axis, as in NumPy."""
    left, right = _numbers("matmul", a, b)
    edges = (left.edge, right.edge)
    if not left.ndim or not right.ndim:
        raise ShapeError(
            f"matmul: shapes {show_shape(left.shape)} and {show_shape(right.shape)}: a scalar is no matrix",
            places=places(edges),
            hint="multiply by a scalar with *",
        )
    inner = right.shape[0] if right.ndim == 1 else right.shape[-2]
    if left.shape[-1] != inner:
        raise ShapeError(
            f"matmul: shapes {show_shape(left.shape)} and {show_shape(right.shape)} do not fit: "
            f"the last size of the first is {left.shape[-1]}, the size it meets is {inner}",
            places=places(edges),
            hint="(..., n, k) @ (..., k, m); .T or tp.swapaxes(x, -1, -2) turns a matrix round",
        )
    batch = string.ascii_letters[: max(left.ndim, right.ndim, 2) - 2][::-1]
    first = batch[len(batch) - max(left.ndim - 2, 0) :] + ("Y" if left.ndim > 1 else "") + "X"
    second = batch[len(batch) - max(right.ndim - 2, 0) :] + "X" + ("Z" if right.ndim > 1 else "")
    out = batch + ("Y" if left.ndim > 1 else "") + ("Z" if right.ndim > 1 else "")
    _check_batch(edges)
    return _contract(f"{first},{second}->{out}", (left, right))


def _check_batch(edges: tuple[Edge, Edge]) -> None:
    a, b = (e.shape[:-2] for e in edges)
    for m, n in zip(reversed(a), reversed(b), strict=False):
        if 1 not in (m, n) and m != n:
            raise ShapeError(
                f"matmul: shapes {show_shape(edges[0].shape)} and {show_shape(edges[1].shape)}: "
                f"leading sizes {m} and {n} do not broadcast",
                places=places(edges),
                hint="all axes but the last two must be equal or 1",
            )


def dot(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """The sum over the last axis of ``a`` and the last but one (of a vector: the only one) of ``b``."""
    left, right = _numbers("dot", a, b)
    if not left.ndim or not right.ndim:
        return left * right
    return tensordot(left, right, ((-1,), (-2 if right.ndim > 1 else 0,)))


def outer(a: TensorLike, b: TensorLike) -> RecurrentTensor:
    """The products of every element of ``a`` with every element of ``b``."""
    left, right = _numbers("outer", a, b)
    return _contract("a,b->ab", (reshape(left, -1), reshape(right, -1)))


def tensordot(
    a: TensorLike, b: TensorLike, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> RecurrentTensor:
    """The sum over pairs of axes: the last ``axes`` of ``a`` with the first of ``b``, or two lists of axes."""
    left, right = _numbers("tensordot", a, b)
    pairs: list[Any] = [range(-axes, 0), range(axes)] if isinstance(axes, int) else [*map(listed, listed(axes))]
    of_left, of_right = (*pairs, [], [])[:2]
    if len(of_left) != len(of_right):
        raise ShapeError(
            f"tensordot: {len(of_left)} axes of the first operand, {len(of_right)} of the second",
            places=places([left.edge, right.edge]),
            hint="axes are summed over in pairs",
        )
    first = [normal_axis("tensordot", left.edge, n) for n in of_left]
    second = [normal_axis("tensordot", right.edge, n) for n in of_right]
    for n, m in zip(first, second, strict=True):
        if left.shape[n] != right.shape[m]:
            raise ShapeError(
                f"tensordot: axis {n} of shape {show_shape(left.shape)} has size {left.shape[n]}, "
                f"axis {m} of shape {show_shape(right.shape)} has size {right.shape[m]}",
                places=places([left.edge, right.edge]),
                hint="axes that are summed over together must have one size",
            )
    one = list(string.ascii_letters[: left.ndim])
    two = list(string.ascii_letters[left.ndim : left.ndim + right.ndim])
    for n, m in zip(first, second, strict=True):
        two[m] = one[n]
    out = [c for n, c in enumerate(one) if n not in first] + [c for n, c in enumerate(two) if n not in second]
    return _contract(f"{''.join(one)},{''.join(two)}->{''.join(out)}", (left, right))
