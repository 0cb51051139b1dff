"""Gradients through every kind of temporal index.

First small ones with their numbers written out, then tables with one entry per index, compared with JAX.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tests.gradients.common import F64, Array, Tensor, check, numbers

# -- written out -----------------------------------------------------------------------------------------


def over_time(steps: int, write: Callable[[Tensor, Any, Any], Tensor]) -> list[float]:
    """The gradient of ``write(x, t, T)`` with respect to x, which is 1, 2, 3, ..."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        loss = write(x, t, T)
        prog.output("loss", loss)
        prog.output("g", tp.grad(loss, x))
    return prog.evaluate({T: steps}, x=np.arange(1.0, steps + 1)).g.tolist()


def test_sum_of_all_steps() -> None:
    assert over_time(5, lambda x, t, T: tp.sum(x[0:T])) == [1, 1, 1, 1, 1]


def test_steps_that_are_read_twice_or_never() -> None:
    def clamped(x: Tensor, t: Any, T: Any) -> Tensor:
        y = tp.copy(x[tp.min(t + 1, T - 1)])
        return tp.sum(y[0:T])

    assert over_time(5, clamped) == [0, 1, 1, 1, 2]
    assert over_time(1, clamped) == [1]


def test_a_slice_of_a_view_needs_no_copy() -> None:
    assert over_time(5, lambda x, t, T: tp.sum(x[tp.min(t + 1, T - 1)][0:T])) == [0, 1, 1, 1, 2]


def test_prefixes_are_read_by_all_later_steps() -> None:
    assert over_time(4, lambda x, t, T: tp.sum(tp.sum(x[0 : t + 1])[0:T])) == [4, 3, 2, 1]


def test_suffixes_are_read_by_all_earlier_steps() -> None:
    assert over_time(4, lambda x, t, T: tp.sum(tp.sum(x[t:T])[0:T])) == [1, 2, 3, 4]


def test_a_parameter_gets_the_sum_of_its_uses() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        w = prog.param("w", dtype=F64)
        loss = tp.sum((w * x)[0:T]) + 10 * w
        prog.output("loss", loss)
        prog.output("g", tp.grad(loss, w))
    assert prog.evaluate({T: 3}, x=[1.0, 2.0, 3.0], w=0.5).g == 16


def test_gradient_of_the_loss_itself() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        loss = x * x
        prog.output("loss", loss)
        prog.output("g", tp.grad(loss, loss))
    assert prog.evaluate({T: 3}, x=[1.0, 2.0, 3.0]).g.tolist() == [1, 1, 1]


# -- reads over one dim ----------------------------------------------------------------------------------


def least(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tp.min(a, b)


def most(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else tp.max(a, b)


# x's dim, first, cut, read: x is read at steps first <= t < T - cut. A dim of its own, k, has 12 steps.
# The same function reads the tensor, t and T being symbols, and the array, t and T being integers.
READS: dict[str, tuple[str, int, int, Callable[[Any, Any, Any], Any]]] = {
    "here": ("t", 0, 0, lambda x, t, T: x[t]),
    "step before": ("t", 1, 0, lambda x, t, T: x[t - 1]),
    "three steps before": ("t", 3, 0, lambda x, t, T: x[t - 3]),
    "next step": ("t", 0, 1, lambda x, t, T: x[t + 1]),
    "two steps ahead": ("t", 0, 2, lambda x, t, T: x[t + 2]),
    "reversed": ("t", 0, 0, lambda x, t, T: x[T - 1 - t]),
    "reversed and shifted": ("t", 1, 0, lambda x, t, T: x[T - t]),
    "clamped below": ("t", 0, 0, lambda x, t, T: x[most(t - 2, 0)]),
    "clamped above": ("t", 0, 0, lambda x, t, T: x[least(t + 2, T - 1)]),
    "clamped twice": ("t", 0, 0, lambda x, t, T: x[most(least(2 * t - 1, T - 1), 0)]),
    "first": ("t", 0, 0, lambda x, t, T: x[0]),
    "last": ("t", 0, 0, lambda x, t, T: x[T - 1]),
    "every second": ("k", 0, 0, lambda x, t, T: x[2 * t]),
    "every second, from one": ("k", 0, 0, lambda x, t, T: x[2 * t + 1]),
    "every second, backwards": ("k", 0, 0, lambda x, t, T: x[11 - 2 * t]),
    "halved": ("t", 0, 0, lambda x, t, T: x[t // 2]),
    "halved, from three": ("k", 0, 0, lambda x, t, T: x[(t + 7) // 2]),
    "modulo": ("k", 0, 0, lambda x, t, T: x[t % 3]),
    "modulo, shifted": ("k", 0, 0, lambda x, t, T: x[(2 * t + 1) % 5]),
    "halves and remainders": ("k", 0, 0, lambda x, t, T: x[3 * (t // 2) + t % 2]),
    "prefix": ("t", 0, 0, lambda x, t, T: x[0 : t + 1]),
    "prefix without the present": ("t", 0, 0, lambda x, t, T: x[0:t]),
    "suffix": ("t", 0, 0, lambda x, t, T: x[t:T]),
    "suffix without the present": ("t", 0, 0, lambda x, t, T: x[t + 1 : T]),
    "window": ("t", 2, 0, lambda x, t, T: x[t - 2 : t + 1]),
    "window ahead": ("t", 0, 2, lambda x, t, T: x[t : t + 3]),
    "window clipped below": ("t", 0, 0, lambda x, t, T: x[most(0, t - 2) : t + 1]),
    "window clipped above": ("t", 0, 0, lambda x, t, T: x[t : least(t + 3, T)]),
    "window clipped on both sides": ("t", 0, 0, lambda x, t, T: x[most(0, t - 1) : least(t + 3, T)]),
    "window of the reversed": ("t", 0, 0, lambda x, t, T: x[T - 1 - t : T]),
    "window of strides": ("k", 0, 0, lambda x, t, T: x[2 * t : 2 * t + 2]),
    "window from halves": ("t", 0, 0, lambda x, t, T: x[t // 2 : t + 1]),
    "block": ("k", 0, 0, lambda x, t, T: x[2 * (t // 2) : 2 * (t // 2) + 2]),
    "all": ("t", 0, 0, lambda x, t, T: x[0:T]),
    "some": ("k", 0, 0, lambda x, t, T: x[2:6]),
    "some of the end": ("t", 0, 0, lambda x, t, T: x[T // 2 : T]),
    "none": ("t", 0, 0, lambda x, t, T: x[0:0]),
}


def score(value: Tensor) -> Tensor:
    """A number from a value (2,), or from a stack of them, in which every element counts differently."""
    stack = tp.reshape(value, (-1, 2))
    weights = 1 + tp.arange(stack.shape[0], dtype=F64)
    return tp.sum(tp.sin(stack) * weights.space[:, None] * tp.constant([1.0, 0.5], F64))


def weights_of(positions: Array, shape: tuple[int, ...]) -> Array:
    """What ``score`` is: the weight of every element of x, of which those at ``positions`` were read."""
    weights = np.zeros(shape)
    stack = positions.reshape(-1, 2)
    np.add.at(weights.reshape(-1), stack, np.arange(1.0, len(stack) + 1)[:, None] * [1.0, 0.5])
    return weights


def positions_in(*shape: int) -> Array:
    """An array in which every element is its own position."""
    return np.arange(np.prod(shape)).reshape(shape)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", READS)
def test_read(name: str, steps: int) -> None:
    over, first, cut, read = READS[name]
    with tp.Program() as prog:
        t, T = prog.dim("t")
        k, K = prog.dim("k")
        x = prog.input("x", 2, domain=(t if over == "t" else k,), dtype=F64)
        # Where the read is out of range, y has no value; nobody asks for it there.
        y = (t + 1) * score(read(x, t, T))
        begin = tp.min(first, T)
        loss = tp.sum(y[begin : tp.max(begin, T - cut)])

    shape = (steps if over == "t" else 12, 2)
    reads = [(t, read(positions_in(*shape), t, steps)) for t in range(first, steps - cut)]
    weights = sum(((t + 1) * weights_of(read, shape) for t, read in reads), start=np.zeros(shape))
    check(prog, {T: steps, K: 12}, loss, {"x": x}, lambda x: jnp.sum(weights * jnp.sin(x)), x=numbers(*shape))


@pytest.mark.parametrize("name", READS)
def test_read_in_a_recurrence(name: str) -> None:
    """h follows x where the read is in range, and decays elsewhere."""
    over, first, cut, read = READS[name]
    with tp.Program() as prog:
        t, T = prog.dim("t")
        k, K = prog.dim("k")
        x = prog.input("x", 2, domain=(t if over == "t" else k,), dtype=F64)
        h = prog.recurrent("h", domain=(t,), dtype=F64)
        h[-1] = 1.0
        h[(t >= first) & (t < T - cut)] = h[t - 1] * tp.cos(score(read(x, t, T)))
        if first or cut:
            h[t] = 0.5 * h[t - 1]
        loss = h[T - 1] + tp.sum(h[0:T] ** 2)

    shape = (5 if over == "t" else 12, 2)

    def reference(x: Array) -> Array:
        h, squares = 1.0, 0.0
        for t in range(5):
            if first <= t < 5 - cut:
                weights = weights_of(read(positions_in(*shape), t, 5), shape)
                h = h * jnp.cos(jnp.sum(weights * jnp.sin(x)))
            else:
                h = 0.5 * h
            squares = squares + h**2
        return h + squares

    check(prog, {T: 5, K: 12}, loss, {"x": x}, reference, x=numbers(*shape))


# -- reads over two dims ---------------------------------------------------------------------------------

# x is read at all points (i, j) of 3 x 4. Over a dim of its own, k, it has 12 steps.
READS_OF_TWO: dict[str, tuple[str, Callable[..., Any]]] = {
    "here": ("ij", lambda x, i, j, I, J: x[i, j]),
    "row": ("ij", lambda x, i, j, I, J: x[i, 0:J]),
    "column": ("ij", lambda x, i, j, I, J: x[0:I, j]),
    "everything": ("ij", lambda x, i, j, I, J: x[0:I, 0:J]),
    "a corner": ("ij", lambda x, i, j, I, J: x[0, J - 1]),
    "quarter behind": ("ij", lambda x, i, j, I, J: x[0 : i + 1, 0 : j + 1]),
    "quarter ahead": ("ij", lambda x, i, j, I, J: x[i:I, j:J]),
    "clipped neighbourhood": (
        "ij",
        lambda x, i, j, I, J: x[most(i - 1, 0) : least(i + 2, I), most(j - 1, 0) : least(j + 2, J)],
    ),
    "both reversed": ("ij", lambda x, i, j, I, J: x[I - 1 - i, J - 1 - j]),
    "clamped diagonal": ("ij", lambda x, i, j, I, J: x[least(i + 1, I - 1), most(j - 1, 0)]),
    "sheared": ("ij", lambda x, i, j, I, J: x[i, least(i + j, J - 1)]),
    "skewed": ("k", lambda x, i, j, I, J: x[i + j]),
    "skewed the other way": ("k", lambda x, i, j, I, J: x[i - j + J - 1]),
    "flattened": ("k", lambda x, i, j, I, J: x[4 * i + j]),
    "skewed strides": ("k", lambda x, i, j, I, J: x[i + 2 * j]),
    "skewed prefix": ("k", lambda x, i, j, I, J: x[0 : i + j]),
    "skewed window": ("k", lambda x, i, j, I, J: x[i + j : i + j + 2]),
    "window between dims": ("k", lambda x, i, j, I, J: x[i : i + j + 1]),
    "only the first dim": ("i", lambda x, i, j, I, J: x[i]),
    "the first by the second": ("i", lambda x, i, j, I, J: x[least(j, I - 1)]),
    "only the second, prefix by the first": ("j", lambda x, i, j, I, J: x[0 : i + 1]),
}


@pytest.mark.parametrize("name", READS_OF_TWO)
def test_read_of_two_dims(name: str) -> None:
    over, read = READS_OF_TWO[name]
    sizes = {"i": 3, "j": 4, "k": 12}
    with tp.Program() as prog:
        dims = {d: prog.dim(d) for d in sizes}
        (i, I), (j, J), (_, K) = dims.values()
        x = prog.input("x", 2, domain=tuple(dims[d][0] for d in over), dtype=F64)
        y = (4 * i + j + 1) * score(read(x, i, j, I, J))
        loss = tp.sum(y[0:I, 0:J])

    shape = (*(sizes[d] for d in over), 2)
    points = [(i, j) for i in range(3) for j in range(4)]
    reads = [(4 * i + j + 1, read(positions_in(*shape), i, j, 3, 4)) for i, j in points]
    weights = sum(factor * weights_of(read, shape) for factor, read in reads)
    reference = lambda x: jnp.sum(weights * jnp.sin(x))  # noqa: E731
    check(prog, {I: 3, J: 4, K: 12}, loss, {"x": x}, reference, x=numbers(*shape))


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_range_without_steps(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        nothing = x[t:t].sum()
        prog.output("g", tp.grad(tp.sum((nothing * nothing + x)[0:T]), x))
    assert prog.compile({T: 3}, backend)(x=[1, 2, 3]).g.tolist() == [1, 1, 1]
