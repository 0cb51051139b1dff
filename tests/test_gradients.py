"""Gradients of every kind of read and definition, against ``jax.grad`` of the same thing in plain JAX, in float64.

The tables hold one entry per pattern. Each is checked three times: its value, its gradient, and the gradient of its
gradient's squared norm, which differentiates the adjoints themselves.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp

F64 = tp.float64
Tensor = tp.RecurrentTensor
Array = Any


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=1e-9, atol=1e-12)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def squared_norm(g: Tensor) -> Tensor:
    """The sum of squares of a tensor over all its steps."""
    return tp.sum(g[(slice(None),) * len(g.domain)] ** 2)


def check(
    prog: tp.Program,
    bounds: dict[Any, int],
    loss: Tensor,
    wrt: dict[str, Tensor],
    reference: Callable[..., Array],
    **inputs: Array,
) -> None:
    """The loss, its gradients and those of their squared norm, with respect to the inputs of these names."""
    with prog:
        gradients = tp.grad(loss, wrt)
        penalty = sum(squared_norm(g) for g in gradients.values())
        prog.output("loss", loss)
        for name, gradient in gradients.items():
            prog.output(f"d_{name}", gradient)
        for name, gradient in tp.grad(penalty, wrt).items():
            prog.output(f"dd_{name}", gradient)

    def expected(chosen: dict[str, Array]) -> Array:
        return reference(**{**inputs, **chosen})

    def expected_penalty(chosen: dict[str, Array]) -> Array:
        return sum(jnp.sum(g**2) for g in jax.grad(expected)(chosen).values())

    chosen = {name: inputs[name] for name in wrt}
    result = prog.evaluate(bounds, **inputs)
    close(result.loss, expected(chosen))
    for name, gradient in jax.grad(expected)(chosen).items():
        close(result[f"d_{name}"], gradient)
    for name, gradient in jax.grad(expected_penalty)(chosen).items():
        close(result[f"dd_{name}"], gradient)


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


# x is read at steps first <= t < T - cut. Over a dim of its own, k, it has 12 steps. The same function reads the
# tensor, t and T being symbols, and the array, t and T being integers.
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
    "last by a view": ("t", 0, 0, lambda x, t, T: x[T - 1 - t][0] if isinstance(x, Tensor) else x[T - 1]),
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


def score(value: Any) -> Any:
    """A number from a value (2,) or from a stack of them, in which every element counts differently."""
    if not isinstance(value, Tensor):
        value = jnp.reshape(value, (-1, 2))
        return jnp.sum(jnp.sin(value) * jnp.arange(1.0, len(value) + 1)[:, None] * jnp.array([1.0, 0.5]))
    if value.ndim == 1:
        value = tp.expand_dims(value, 0)
    weights = tp.arange(value.shape[0], dtype=F64) + 1
    return tp.sum(tp.sin(value) * weights.space[:, None] * tp.constant([1.0, 0.5], F64))


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
        loss = tp.sum(y[tp.min(first, T) : tp.max(T - cut, tp.min(first, T))])

    def reference(x: Array) -> Array:
        return sum(
            ((t + 1) * score(read(x, t, steps)) for t in range(first, steps - cut)), start=0.0 * x.sum()
        )

    x_ = numbers(steps if over == "t" else 12, 2)
    check(prog, {T: steps, K: 12}, loss, {"x": x}, reference, x=x_)


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
        h[t] = 0.5 * h[t - 1]
        loss = h[T - 1] + tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h, squares = 1.0, 0.0
        for t in range(5):
            h = h * jnp.cos(score(read(x, t, 5))) if first <= t < 5 - cut else 0.5 * h
            squares = squares + h**2
        return h + squares

    check(prog, {T: 5, K: 12}, loss, {"x": x}, reference, x=numbers(5 if over == "t" else 12, 2))


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
        value = read(x, i, j, I, J)
        if value.ndim == 3:
            value = tp.reshape(value, (value.shape[0] * value.shape[1], 2))
        y = (4 * i + j + 1) * score(value)
        loss = tp.sum(y[0:I, 0:J])

    def reference(x: Array) -> Array:
        return sum((4 * i + j + 1) * score(read(x, i, j, 3, 4)) for i in range(3) for j in range(4))

    x_ = numbers(*(sizes[d] for d in over), 2)
    check(prog, {I: 3, J: 4, K: 12}, loss, {"x": x}, reference, x=x_)


# -- definitions by cases --------------------------------------------------------------------------------


def check_definition(
    write: Callable[..., Tensor], reference: Callable[[Array], Array], steps: tuple[int, ...] = (1, 2, 5)
) -> None:
    """``write(h, x, t, T)`` defines h by cases and returns a loss; it is differentiated with respect to x."""
    for number in steps:
        with tp.Program() as prog:
            t, T = prog.dim("t")
            x = prog.input("x", domain=(t,), dtype=F64)
            h = prog.recurrent("h", domain=(t,), dtype=F64)
            loss = write(h, x, t, T)
        check(prog, {T: number}, loss, {"x": x}, reference, x=numbers(number))


def test_a_value_after_the_last_step() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[0] = 0.5
        h[t + 1] = tp.sin(h[t]) + x[t]
        return h[T] * tp.sum(h[0 : T + 1] ** 2)

    def reference(x: Array) -> Array:
        h = [0.5]
        for value in x:
            h.append(jnp.sin(h[-1]) + value)
        return h[-1] * sum(value**2 for value in h)

    check_definition(write, reference)


def test_a_value_before_the_first_step() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[-1] = x[T - 1]
        h[t] = tp.sin(h[t - 1]) * x[t]
        return h[T - 1] * h[-1]

    def reference(x: Array) -> Array:
        h = x[-1]
        for value in x:
            h = jnp.sin(h) * value
        return h * x[-1]

    check_definition(write, reference)


def test_two_values_on_either_side() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[-2] = x[0] ** 2
        h[-1] = x[0] ** 3
        h[T + 1] = tp.sin(h[T])
        h[T] = h[T - 1] * h[-2]
        h[t] = h[t - 1] * tp.cos(h[t - 2]) + x[t]
        return h[T + 1] * h[T] + tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h = [x[0] ** 2, x[0] ** 3]
        for value in x:
            h.append(h[-1] * jnp.cos(h[-2]) + value)
        after = h[-1] * h[0]
        return jnp.sin(after) * after + sum(value**2 for value in h[2:])

    check_definition(write, reference)


def test_against_time() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[T - 1] = x[T - 1]
        h[t] = tp.sin(h[t + 1]) * x[t]
        return tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h = [x[-1]]
        for value in x[-2::-1]:
            h.append(jnp.sin(h[-1]) * value)
        return sum(value**2 for value in h)

    check_definition(write, reference)


def test_a_reversed_target() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[T] = 0.3
        h[T - 1 - t] = tp.sin(h[T - t]) + x[t]
        return tp.sum(((t + 1) * h**2)[0:T]) * h[T]

    def reference(x: Array) -> Array:
        steps = len(x)
        h = {steps: 0.3}
        for t in range(steps):
            h[steps - 1 - t] = jnp.sin(h[steps - t]) + x[t]
        return sum((t + 1) * h[t] ** 2 for t in range(steps)) * 0.3

    check_definition(write, reference)


def test_the_first_case_that_matches_wins() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[2] = 10 * x[0]
        h[t < 3] = x[t] ** 2
        h[t >= T - 1] = tp.sin(x[t])
        h[1] = 1000 * x[0]  # never applies: 1 < 3
        h[t] = h[t - 1] * x[t] + x[t - 3]
        return tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for t in range(len(x)):
            if t == 2:
                h.append(10 * x[0])
            elif t < 3:
                h.append(x[t] ** 2)
            elif t >= len(x) - 1:
                h.append(jnp.sin(x[t]))
            else:
                h.append(h[t - 1] * x[t] + x[t - 3])
        return sum(value**2 for value in h)

    check_definition(write, reference, steps=(1, 2, 3, 4, 7))


def test_known_then_generated() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t < 3] = x
        h[t] = tp.sin(h[t - 1] + 2 * h[t - 3])
        return tp.sum(((t + 1) * h)[0:T])

    def reference(x: Array) -> Array:
        h = list(x[:3])
        for t in range(3, len(x)):
            h.append(jnp.sin(h[t - 1] + 2 * h[t - 3]))
        return sum((t + 1) * value for t, value in enumerate(h))

    check_definition(write, reference, steps=(1, 2, 3, 7))


def test_cases_by_remainder() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[tp.equal(t % 3, 0)] = x[t // 3] * x[t]
        h[(t % 3 >= 2) | (t >= 4)] = h[t - 1] ** 2
        h[t] = h[3 * (t // 3)] + x[t]
        return tp.sum(tp.sin(h)[0:T])

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for t in range(len(x)):
            if t % 3 == 0:
                h.append(x[t // 3] * x[t])
            elif t % 3 == 2 or t >= 4:
                h.append(h[t - 1] ** 2)
            else:
                h.append(h[3 * (t // 3)] + x[t])
        return sum(jnp.sin(value) for value in h)

    check_definition(write, reference, steps=(1, 2, 3, 7))


def test_a_tree_of_halves() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[0] = x[0]
        h[t] = tp.sin(h[(t - 1) // 2]) * x[t]
        return tp.sum((h**2)[0:T])

    def reference(x: Array) -> Array:
        h = [x[0]]
        for t in range(1, len(x)):
            h.append(jnp.sin(h[(t - 1) // 2]) * x[t])
        return sum(value**2 for value in h)

    check_definition(write, reference, steps=(1, 2, 7))


def test_a_recurrence_over_its_whole_past() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t] = x[t] * tp.cos(tp.sum(h[0:t]))
        return tp.sum(h[0:T])

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for value in x:
            h.append(value * jnp.cos(sum(h, start=0.0)))
        return sum(h)

    check_definition(write, reference)


def test_a_recurrence_over_its_whole_future() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t] = x[t] * tp.cos(tp.sum(tp.sin(h[t + 1 : T])))
        return h[0]

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for value in x[::-1]:
            h.append(value * jnp.cos(sum((jnp.sin(later) for later in h), start=0.0)))
        return h[-1]

    check_definition(write, reference)


def test_a_recurrence_over_a_window_of_its_past() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        h[t] = x[t] * tp.cos(tp.sum(h[tp.max(0, t - 2) : t]))
        return tp.sum((h**2)[0:T])

    def reference(x: Array) -> Array:
        h: list[Array] = []
        for t, value in enumerate(x):
            h.append(value * jnp.cos(sum(h[max(0, t - 2) : t], start=0.0)))
        return sum(value**2 for value in h)

    check_definition(write, reference)


def test_two_recurrences_through_each_other() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        other = h.program.recurrent("other", domain=(t,), dtype=F64)
        h[0] = x[0]
        h[t] = tp.sin(other[t - 1]) + x[t]
        other[t] = h[t] * tp.cos(h[tp.max(t - 2, 0)])
        return other[T - 1] * h[T - 1]

    def reference(x: Array) -> Array:
        h, other = [], []
        for t, value in enumerate(x):
            h.append(jnp.sin(other[-1]) + value if t else value)
            other.append(h[t] * jnp.cos(h[max(t - 2, 0)]))
        return other[-1] * h[-1]

    check_definition(write, reference)


def test_forth_and_back() -> None:
    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        back = h.program.recurrent("back", domain=(t,), dtype=F64)
        h[-1] = 0.1
        h[t] = tp.sin(h[t - 1]) + x[t]
        back[T] = h[T - 1]
        back[t] = tp.sin(back[t + 1]) * h[t]
        return tp.sum((back * h[T - 1 - t])[0:T])

    def reference(x: Array) -> Array:
        h, last = [], 0.1
        for value in x:
            last = jnp.sin(last) + value
            h.append(last)
        back = [last]
        for value in h[::-1]:
            back.append(jnp.sin(back[-1]) * value)
        return sum(a * b for a, b in zip(back[1:], h, strict=True))

    check_definition(write, reference)


def test_points_where_an_operation_has_no_value_are_not_asked_for() -> None:
    """x[0] * h[t - 1] exists for t >= 1 only, x[0] * x[t + 1] ** 3 up to T - 2: gradients must look no further."""

    def write(h: Tensor, x: Tensor, t: Any, T: Any) -> Tensor:
        step = x[0] * h[t - 1]
        ahead = x[0] * x[t + 1] ** 3
        h[0] = x[0]
        h[t < T - 1] = tp.sin(step) * ahead
        h[t] = step
        return tp.sum(h[0:T] ** 2)

    def reference(x: Array) -> Array:
        h = [x[0]]
        for t in range(1, len(x)):
            step = x[0] * h[-1]
            h.append(jnp.sin(step) * x[0] * x[t + 1] ** 3 if t < len(x) - 1 else step)
        return sum(value**2 for value in h)

    check_definition(write, reference)


def test_a_recurrence_over_two_dims() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j), dtype=F64)
        w = prog.param("w", dtype=F64)
        D = prog.recurrent("D", domain=(i, j), dtype=F64)
        D[0, 0] = 1.0
        D[0, j + 1] = w * D[0, j]
        D[i + 1, 0] = tp.sin(D[i, 0]) + w
        D[i + 1, j + 1] = tp.cos(D[i, j] * x[i, j]) + w * D[i, j + 1] * D[i + 1, j]
        loss = D[I, J] + tp.sum(D[0, 0 : J + 1])

    def reference(x: Array, w: Array) -> Array:
        D = {(0, 0): 1.0}
        for j in range(4):
            D[0, j + 1] = w * D[0, j]
        for i in range(3):
            D[i + 1, 0] = jnp.sin(D[i, 0]) + w
            for j in range(4):
                D[i + 1, j + 1] = jnp.cos(D[i, j] * x[i, j]) + w * D[i, j + 1] * D[i + 1, j]
        return D[3, 4] + sum(D[0, j] for j in range(5))

    check(prog, {I: 3, J: 4}, loss, {"x": x, "w": w}, reference, x=numbers(3, 4), w=np.array(0.7))


def test_both_targets_reversed() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j), dtype=F64)
        D = prog.recurrent("D", domain=(i, j), dtype=F64)
        D[I, j] = 1.0
        D[I - 1 - i, J - 1 - j] = tp.sin(D[I - i, J - 1 - j]) * x[i, j]
        loss = tp.sum(((i + 1) * (2 * j + 1) * D**2)[0:I, 0:J])

    def reference(x: Array) -> Array:
        D = {(3, j): 1.0 for j in range(4)}
        for i in range(3):
            for j in range(4):
                D[2 - i, 3 - j] = jnp.sin(D[3 - i, 3 - j]) * x[i, j]
        return sum((i + 1) * (2 * j + 1) * D[i, j] ** 2 for i in range(3) for j in range(4))

    check(prog, {I: 3, J: 4}, loss, {"x": x}, reference, x=numbers(3, 4))


def test_state_in_lexicographic_order() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", domain=(i, j), dtype=F64)
        w0 = prog.input("w0", dtype=F64)
        w = prog.state("w", w0, over=(i, j))
        w.next = tp.sin(w) * x + w
        loss = w.final * w[1, 2]

    def reference(x: Array, w0: Array) -> Array:
        w, middle = w0, None
        for i in range(3):
            for j in range(4):
                middle = w if (i, j) == (1, 2) else middle
                w = jnp.sin(w) * x[i, j] + w
        return w * middle

    check(prog, {I: 3, J: 4}, loss, {"x": x, "w0": w0}, reference, x=numbers(3, 4), w0=np.array(0.7))


# -- held dims -------------------------------------------------------------------------------------------
#
# Dims that the loss and the tensor share are held at the same point: of the whole Jacobian d loss[i] / d w[j],
# tp.grad gives the diagonal.

Losses = Callable[[Tensor, Any, Any], Tensor]

HELD: dict[str, tuple[Losses, Callable[[Array, int], list[Array]]]] = {
    "here only": (
        lambda w, i, I: tp.sin(w) * (i + 1),
        lambda w, I: [jnp.sin(w[i]) * (i + 1) for i in range(I)],
    ),
    "the past does not count": (
        lambda w, i, I: w * w[tp.max(i - 1, 0)],
        lambda w, I: [w[i] * w[max(i - 1, 0)] for i in range(I)],
    ),
    "the future does not count": (
        lambda w, i, I: w * w[tp.min(i + 1, I - 1)],
        lambda w, I: [w[i] * w[min(i + 1, I - 1)] for i in range(I)],
    ),
    "prefix": (
        lambda w, i, I: tp.sum(w[0 : i + 1]) ** 3,
        lambda w, I: [jnp.sum(w[: i + 1]) ** 3 for i in range(I)],
    ),
    "window": (
        lambda w, i, I: tp.prod(w[tp.max(0, i - 1) : tp.min(i + 2, I)]),
        lambda w, I: [jnp.prod(w[max(0, i - 1) : min(i + 2, I)]) for i in range(I)],
    ),
    "all": (
        lambda w, i, I: tp.sin(tp.sum(w[0:I])) * (i + 1),
        lambda w, I: [jnp.sin(jnp.sum(w)) * (i + 1) for i in range(I)],
    ),
    "there and back": (
        # y reads the past and the loss reads the future, so w[i] comes back to i.
        lambda w, i, I: (lambda y: tp.sin(y[tp.min(i + 1, I - 1)]) * y)((w**2)[tp.max(i - 1, 0)] * 1.0),
        lambda w, I: [
            jnp.sin(w[max(min(i + 1, I - 1) - 1, 0)] ** 2) * w[max(i - 1, 0)] ** 2 for i in range(I)
        ],
    ),
    "reversed": (
        lambda w, i, I: w[I - 1 - i] ** 2,
        lambda w, I: [w[I - 1 - i] ** 2 for i in range(I)],
    ),
    "reversed twice": (
        lambda w, i, I: (w**3)[I - 1 - i][I - 1 - i],
        lambda w, I: [w[i] ** 3 for i in range(I)],
    ),
    "a view of the losses": (
        lambda w, i, I: (w**3)[tp.min(i + 1, I - 1)],
        lambda w, I: [w[min(i + 1, I - 1)] ** 3 for i in range(I)],
    ),
    "halved": (
        lambda w, i, I: w[i // 2] * w,
        lambda w, I: [w[i // 2] * w[i] for i in range(I)],
    ),
    "modulo": (
        lambda w, i, I: w[i % 2] ** 2 * w,
        lambda w, I: [w[i % 2] ** 2 * w[i] for i in range(I)],
    ),
    "at one step": (
        lambda w, i, I: w[0] ** 2 * (i + 1) + w[I - 1] ** 3,
        lambda w, I: [w[0] ** 2 * (i + 1) + w[I - 1] ** 3 for i in range(I)],
    ),
}


def diagonal(losses: Callable[[Array, int], list[Array]], w: Array) -> Array:
    return jnp.diag(jax.jacobian(lambda w: jnp.stack(losses(w, len(w))))(w))


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", HELD)
def test_held_dim(name: str, steps: int) -> None:
    write, losses = HELD[name]
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.input("w", domain=(i,), dtype=F64)
        loss = write(w, i, I)
        g = tp.grad(loss, w)
        prog.output("loss", loss)
        prog.output("g", g)
        # A gradient is a tensor like any other: held once more, and with all dims flowing.
        prog.output("held_again", tp.grad(g**2, w))
        prog.output("flowing", tp.grad(squared_norm(g), w))
    w_ = numbers(steps)
    result = prog.evaluate({I: steps}, w=w_)
    close(result.loss, jnp.stack(losses(w_, steps)))
    close(result.g, diagonal(losses, w_))
    close(result.held_again, diagonal(lambda w, I: list(diagonal(losses, w) ** 2), w_))
    close(result.flowing, jax.grad(lambda w: jnp.sum(diagonal(losses, w) ** 2))(w_))


def test_a_step_of_training_does_not_see_later_ones() -> None:
    """w[i]'s gradient is that of loss[i] alone, however the loss and the update were written."""
    for update_first in (False, True):
        with tp.Program() as prog:
            i, I = prog.dim("i")
            x = prog.input("x", domain=(i,), dtype=F64)
            w = prog.state("w", tp.constant(0.5, F64), over=i)
            if update_first:
                loss = prog.recurrent("loss", domain=(i,), dtype=F64)
                w.next = w - 0.1 * tp.grad(loss, w)
                loss[i] = tp.sin(w * x)
            else:
                loss = tp.sin(w * x)
                w.next = w - 0.1 * tp.grad(loss, w)
            prog.output("w", w)
        x_ = numbers(4)
        expected = [0.5]
        for value in x_:
            expected.append(expected[-1] - 0.1 * value * np.cos(expected[-1] * value))
        close(prog.evaluate({I: 4}, x=x_).w, expected)


def test_momentum_and_running_statistics_do_not_leak_into_the_gradient() -> None:
    """The loss also sees the past through other states; held at i, that is constant."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        x = prog.input("x", domain=(i,), dtype=F64)
        w = prog.state("w", tp.constant(0.5, F64), over=i)
        scale = prog.state("scale", tp.constant(1.0, F64), over=i)
        momentum = prog.state("momentum", tp.constant(0.0, F64), over=i)
        loss = tp.sin(w * x) * scale + w**2
        g = tp.grad(loss, w)
        scale.next = 0.9 * scale + 0.1 * w**2
        momentum.next = 0.8 * momentum + g
        w.next = w - 0.1 * momentum.next
        prog.output("w", w)

    x_ = numbers(5)
    w_, scale_, momentum_, expected = 0.5, 1.0, 0.0, [0.5]
    for value in x_:
        gradient = value * np.cos(w_ * value) * scale_ + 2 * w_
        scale_ = 0.9 * scale_ + 0.1 * w_**2
        momentum_ = 0.8 * momentum_ + gradient
        w_ = w_ - 0.1 * momentum_
        expected.append(w_)
    close(prog.evaluate({I: 5}, x=x_).w, expected)


def test_dims_that_only_the_loss_has_are_summed_over() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", domain=(i, t), dtype=F64)
        w = prog.input("w", domain=(i,), dtype=F64)
        b = prog.input("b", dtype=F64)
        loss = tp.sin(w * x) * b
        for name, gradient in tp.grad(loss, {"w": w, "b": b, "x": x}).items():
            prog.output(name, gradient)
    x_, w_, b_ = numbers(3, 4), numbers(3, seed=1), 0.7

    def total(x: Array, w: Array, b: Array) -> Array:
        return jnp.sum(jnp.sin(w[:, None] * x) * b)

    result = prog.evaluate({I: 3, T: 4}, x=x_, w=w_, b=b_)
    for name, expected in zip("xwb", jax.grad(total, argnums=(0, 1, 2))(x_, w_, b_), strict=True):
        close(result[name], expected)


def test_dims_that_only_the_tensor_has_flow() -> None:
    """One back-propagation through time for every i."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", domain=(i, t), dtype=F64)
        h = prog.recurrent("h", domain=(i, t), dtype=F64)
        h[i, 0] = x[i, 0]
        h[i, t] = tp.sin(h[i, t - 1]) + x[i, t] * x[tp.max(i - 1, 0), t]
        prog.output("dx", tp.grad(h[i, T - 1], x))
        prog.output("dh", tp.grad(h[i, T - 1], h))
    x_ = numbers(3, 4)

    def last(own: Array, before: Array, at_first: bool) -> Array:
        h = own[0]
        for t in range(1, 4):
            h = jnp.sin(h) + own[t] * (own[t] if at_first else before[t])
        return h

    result = prog.evaluate({I: 3, T: 4}, x=x_)
    for i in range(3):
        close(result.dx[i], jax.grad(last)(x_[i], x_[max(i - 1, 0)], i == 0))
    h = x_[:, 0]
    slopes = []
    for t in range(1, 4):
        slopes.append(np.cos(h))
        h = np.sin(h) + x_[:, t] * x_[[0, 0, 1], t]
    close(
        result.dh,
        np.stack([slopes[0] * slopes[1] * slopes[2], slopes[1] * slopes[2], slopes[2], np.ones(3)], 1),
    )


def test_held_recurrent_tensor() -> None:
    """h[t]'s effect on loss[t] is direct; its effect on loss[t + 1] through h[t + 1] does not count."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        h = prog.recurrent("h", domain=(t,), dtype=F64)
        h[0] = x[0]
        h[t] = tp.sin(h[t - 1]) + x[t]
        prog.output("h", h)
        prog.output("g", tp.grad(h**3, h))
        prog.output("gx", tp.grad(h**3, x))
    result = prog.evaluate({T: 5}, x=numbers(5))
    close(result.g, 3 * result.h**2)
    close(result.gx, 3 * result.h**2)


def test_two_held_dims_of_which_one_comes_back() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        w = prog.input("w", domain=(i, b), dtype=F64)
        before = tp.sin(w)[tp.max(i - 1, 0), b] * 1.0
        loss = before[tp.min(i + 1, I - 1), b] * w * w[i, tp.max(b - 1, 0)]
        prog.output("g", tp.grad(loss, w))
    w_ = numbers(3, 4)

    def losses(w: Array) -> Array:
        def at(i: int, b: int) -> Array:
            return jnp.sin(w[max(min(i + 1, 2) - 1, 0), b]) * w[i, b] * w[i, max(b - 1, 0)]

        return jnp.stack([jnp.stack([at(i, b) for b in range(4)]) for i in range(3)])

    jacobian = jax.jacobian(losses)(w_)
    close(prog.evaluate({I: 3, B: 4}, w=w_).g, jnp.einsum("ibib->ib", jacobian))


def test_tensors_that_share_different_dims_with_the_loss() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        a = prog.input("a", domain=(i,), dtype=F64)
        b = prog.input("b", domain=(t,), dtype=F64)
        c = prog.input("c", domain=(i, t), dtype=F64)
        loss = tp.sum(tp.sin(a * b * c)[i, 0:T])
        for name, gradient in tp.grad(loss, {"a": a, "b": b, "c": c}).items():
            prog.output(name, gradient)
    a_, b_, c_ = numbers(3), numbers(4, seed=1), numbers(3, 4, seed=2)

    def total(a: Array, b: Array, c: Array) -> Array:
        return jnp.sum(jnp.sin(a[:, None] * b * c))

    result = prog.evaluate({I: 3, T: 4}, a=a_, b=b_, c=c_)
    for name, expected in zip("abc", jax.grad(total, argnums=(0, 1, 2))(a_, b_, c_), strict=True):
        close(result[name], expected)


def test_a_tensor_and_what_is_made_of_it() -> None:
    """Each gradient is the total effect, also through the other."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        y = x**2
        loss = tp.sum((x * y)[0:T])
        dx, dy = tp.grad(loss, (x, y))
        prog.output("dx", dx)
        prog.output("dy", dy)
    x_ = numbers(4)
    result = prog.evaluate({T: 4}, x=x_)
    close(result.dx, 3 * x_**2)
    close(result.dy, x_)


# -- higher orders ---------------------------------------------------------------------------------------


def test_third_derivative_through_a_recurrence() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        w = prog.param("w", dtype=F64)
        h = prog.recurrent("h", domain=(t,), dtype=F64)
        h[0] = 0.5
        h[t + 1] = tp.sin(w * h[t])
        first = tp.grad(h[T], w)
        second = tp.grad(first, w)
        prog.output("third", tp.grad(second, w))

    def last(w: Array) -> Array:
        h = 0.5
        for _ in range(4):
            h = jnp.sin(w * h)
        return h

    close(prog.evaluate({T: 4}, w=1.3).third, jax.grad(jax.grad(jax.grad(last)))(1.3))


def test_hessian_vector_product() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(t,), dtype=F64)
        direction = prog.input("direction", 2, domain=(t,), dtype=F64)
        h = prog.recurrent("h", 2, domain=(t,), dtype=F64)
        h[-1] = 0.5
        h[t] = tp.sin(h[t - 1] * x[T - 1 - t]) + x[t]
        g = tp.grad(tp.sum(h[T - 1] ** 2), x)
        prog.output("product", tp.grad(tp.sum((g * direction)[0:T]), x))
    x_, v_ = numbers(4, 2), numbers(4, 2, seed=1)

    def loss(x: Array) -> Array:
        h = 0.5
        for t in range(4):
            h = jnp.sin(h * x[3 - t]) + x[t]
        return jnp.sum(h**2)

    close(prog.evaluate({T: 4}, x=x_, direction=v_).product, jax.jvp(jax.grad(loss), (x_,), (v_,))[1])


def test_gradient_penalty_in_a_training_loop() -> None:
    """A critic whose slope in its input is kept near 1; the slope is held at every sample and iteration."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        x = prog.input("x", 2, domain=(i, b), dtype=F64)
        w = prog.state("w", tp.constant([0.5, -0.3], F64), over=i)
        critic = tp.tanh(w @ x)
        slope = tp.grad(critic, x)
        penalty = (tp.sqrt(tp.sum(slope**2)) - 1) ** 2
        loss = tp.mean((critic + 2 * penalty)[i, 0:B])
        w.next = w - 0.1 * tp.grad(loss, w)
        prog.output("w", w)
    x_ = numbers(3, 4, 2)

    def loss_(w: Array, batch: Array) -> Array:
        def critic(sample: Array) -> Array:
            return jnp.tanh(w @ sample)

        norms = jnp.sqrt(jnp.sum(jax.vmap(jax.grad(critic))(batch) ** 2, axis=1))
        return jnp.mean(jax.vmap(critic)(batch) + 2 * (norms - 1) ** 2)

    expected = [jnp.array([0.5, -0.3])]
    for batch in x_:
        expected.append(expected[-1] - 0.1 * jax.grad(loss_)(expected[-1], batch))
    close(prog.evaluate({I: 3, B: 4}, x=x_).w, expected)


def test_learning_to_learn() -> None:
    """An inner step of gradient descent per task, differentiated within an outer training (MAML)."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        k, K = prog.dim("k")
        x = prog.input("x", domain=(k,), dtype=F64)
        w = prog.state("w", tp.constant(0.4, F64), over=i)

        def loss(w: Tensor) -> Tensor:
            return tp.sin(w * x) + w**2 * x**2

        adapted = w - 0.1 * tp.grad(loss(tp.copy(w) + 0 * x), w)
        per_task = prog.recurrent("per_task", domain=(i, k), dtype=F64)
        own = w + 0 * x
        per_task[i, k] = own - 0.1 * tp.grad(loss(own), own)
        w.next = w - 0.1 * tp.grad(loss(per_task), w)
        prog.output("w", w)
        prog.output("adapted", adapted)
    x_ = numbers(3)

    def task_loss(w: Array, x: Array) -> Array:
        return jnp.sin(w * x) + w**2 * x**2

    def outer(w: Array) -> Array:
        return sum(task_loss(w - 0.1 * jax.grad(task_loss)(w, x), x) for x in x_)

    expected = [0.4]
    for _ in range(3):
        expected.append(expected[-1] - 0.1 * jax.grad(outer)(expected[-1]))
    result = prog.evaluate({I: 3, K: 3}, x=x_)
    close(result.w, expected)
    total = jax.grad(lambda w: sum(task_loss(w, x) for x in x_))
    close(result.adapted, [w - 0.1 * total(w) for w in expected[:3]])


def test_hypergradient_of_a_schedule() -> None:
    """A learning rate per iteration: each has its own effect on the end of the training."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        lr = prog.input("lr", domain=(i,), dtype=F64)
        x = prog.input("x", domain=(i,), dtype=F64)
        w = prog.state("w", tp.constant(0.5, F64), over=i)
        w.next = w - lr * tp.grad(tp.sin(w * x), w)
        loss = w.final**2
    reference_x = numbers(4, seed=1)

    def reference(lr: Array, x: Array) -> Array:
        w = 0.5
        for rate, value in zip(lr, x, strict=True):
            w = w - rate * jax.grad(lambda w, value: jnp.sin(w * value))(w, value)
        return w**2

    check(prog, {I: 4}, loss, {"lr": lr, "x": x}, reference, lr=0.1 + numbers(4) ** 2, x=reference_x)


# -- where nothing flows ---------------------------------------------------------------------------------


def test_stop_gradient() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=F64)
        h = prog.recurrent("h", domain=(t,), dtype=F64)
        h[0] = x[0]
        h[t] = tp.stop_gradient(h[t - 1]) * x[t]
        prog.output("h", h)
        prog.output("g", tp.grad(tp.sum(h[0:T]), x))
    result = prog.evaluate({T: 4}, x=[2.0, 3.0, 5.0, 7.0])
    assert result.h.tolist() == [2, 6, 30, 210]
    assert result.g.tolist() == [1, 2, 6, 30]


def test_a_gradient_can_be_stopped() -> None:
    with tp.Program() as prog:
        x = prog.input("x", dtype=F64)
        g = tp.grad(x**3, x)
        prog.output("flows", tp.grad(x * g, x))
        prog.output("stopped", tp.grad(x * tp.stop_gradient(g), x))
    result = prog.evaluate(x=2.0)
    assert result.flows == 9 * 2.0**2
    assert result.stopped == 3 * 2.0**2


def zero_gradient(write: Callable[..., Tensor]) -> Array:
    """The gradient of ``write(x, y, t, T)`` with respect to x; y is another input."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(t,), dtype=F64)
        y = prog.input("y", 2, domain=(t,), dtype=F64)
        prog.output("x", x)
        prog.output("y", y)
        prog.output("g", tp.grad(write(x, y, t, T), x))
    return prog.evaluate({T: 3}, x=numbers(3, 2), y=numbers(3, 2, seed=1)).g


UNCONNECTED: dict[str, Callable[..., Tensor]] = {
    "another tensor": lambda x, y, t, T: tp.sum(y[0:T]),
    "a constant": lambda x, y, t, T: tp.constant(3.0, F64),
    "whole numbers": lambda x, y, t, T: tp.sum(x[0].astype(tp.int32).astype(F64)),
    "where the greatest is": lambda x, y, t, T: tp.sum(y[0].take(tp.argmax(x[0]))),
    "a comparison": lambda x, y, t, T: tp.sum(tp.where(x > y, y, 2 * y)[0:T]),
    "floor": lambda x, y, t, T: tp.sum(tp.floor(x)[0:T]),
    "a case that never applies": lambda x, y, t, T: never(x, y, t)[0],
    "at other points only": lambda x, y, t, T: (
        tp.sum(x[0]) * (t + 1) - tp.sum(x[0]) * tp.where(t < 1, t + 1, 1.0 + t)
    ),
}


def never(x: Tensor, y: Tensor, t: Any) -> Tensor:
    h = x.program.recurrent("h", domain=(t,), dtype=F64)
    h[t >= 0] = tp.sum(y)
    h[1] = tp.sum(x[0])
    return h


@pytest.mark.parametrize("name", UNCONNECTED)
def test_zero_where_nothing_flows(name: str) -> None:
    g = zero_gradient(UNCONNECTED[name])
    assert g.dtype == np.float64
    assert g.tolist() == [[0, 0], [0, 0], [0, 0]]
