"""What random programs have found in the compiler, reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable

Built = tuple[tp.Program, dict[Any, int], dict[str, Any]]


def a_case_that_never_applies() -> Built:
    """With one step, y[T - 1] is y[0]; what the other case reads, its gradient included, is needed nowhere."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.recurrent("x", domain=(t, s), dtype="float64")
        y = prog.recurrent("y", domain=(t, s), dtype="float64")
        x[t, s] = 1.0
        y[0, s] = -0.25
        y[T - 1, s] = y[0] * x[0, s + 1]
        prog.output("g", tp.grad(tp.sum(y[0:T, 0:S]), y))
    return prog, {T: 1, S: 1}, {}


def a_loop_that_is_all_at_once_at_one_step_around_it() -> Built:
    """What a range of no length gives is computed for all s at once at that t, and in a loop over s at all others."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", shape=2, domain=(t, s), dtype="float64")
        w = prog.state("w", tp.full(2, 1.0, dtype="float64"), over=(t, s), domain=(t, s))
        turned = tp.einsum("ik,k->i", tp.broadcast_to(w[(t + 1) // 2], shape=(2, 2)), x)
        w.next = tp.tanh(tp.where(tp.not_equal(s, 0), x, turned))
        slope = tp.grad(w[0, 0 : s + 1].space[-1].space[0], x)
        prog.output("g", tp.grad(tp.sum(slope[0:T] * slope[0:T]), w))
    return prog, {T: 3, S: 3}, {"x": np.linspace(-1, 1, 18).reshape(3, 3, 2)}


def a_case_that_is_shorter_than_the_others() -> Built:
    """The range 0:t has a length of 0 in the gradient at step 0, which is a case beside zeros of all lengths."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        flags = prog.recurrent("flags", shape=2, domain=t, dtype="bool")
        y = prog.recurrent("y", shape=2, domain=t, dtype="float64")
        flags[1] = flags[0] != flags[0]
        y[0] = np.full(2, 0.5)
        x = tp.any(flags, axis=0).astype("float64")
        product = tp.broadcast_to((x[0:t] * tp.sum(y, axis=0)) @ x[0:t], shape=(2,))
        prog.output("g", tp.grad(tp.sum(product[0], axis=0), y))
    return prog, {T: 3}, {}


def a_case_without_steps() -> Built:
    """With one step of b, no step is left for the second case."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        b, B = prog.dim("b")
        x = prog.input("x", dtype="float64")
        y = prog.recurrent("y", domain=(t, b), dtype="float64")
        y[t, 0] = 0.5
        y[t, b] = y[t, B] * x
        prog.output("g", tp.grad(y[0, 0], x))
    return prog, {T: 1, B: 1}, {"x": 2.0}


def a_gradient_past_the_last_step() -> Built:
    """A state has a value after its last step, where no loss stands: the gradient there is zero."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.state("w", tp.constant(2.0, "float64"), over=i)
        w.next = w * 0.5
        loss = w[tp.max(i - 1, 0)] * w[tp.min(i + 1, I)]
        prog.output("g", tp.grad(loss, w)[I])
    return prog, {I: 3}, {}


def a_gradient_of_growing_values() -> Built:
    """The adjoint of a value of size t + 1 is summed over steps padded to one size."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        grown = tp.copy(x[0 : t + 1])
        prog.output("g", tp.grad(tp.sum(grown[T - 1]) + tp.sum(tp.cumsum(grown)), grown).space[0])
        prog.output("h", tp.grad(tp.sum(grown[T - 1]), x))
    return prog, {T: 3}, {"x": [1.0, 2.0, 3.0]}


def a_store_that_is_wider_than_its_node() -> Built:
    """A loop over two dims that reaches one step past s must not write where s = 0 is kept."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=(t, s), dtype="float64")
        w = prog.state("w", tp.constant(0.5, "float64"), over=(t, s))
        w.next = w - 0.1 * tp.tanh(tp.grad((w - x) * (w - x), w))
        loss = tp.sum(w[0:T, 0:S] * w[0:T, 0:S])
        g = tp.grad(loss, w)
        prog.output("h", tp.grad(tp.sum(g[0:T, 0:S] * g[0:T, 0:S]), w))
    return prog, {T: 3, S: 1}, {"x": np.linspace(0, 1, 3).reshape(3, 1)}


def a_growing_value_that_nobody_reads_last() -> Built:
    """At the last step nothing is added to the adjoint, which is larger there than all that is added elsewhere."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        grown = prog.recurrent("grown", shape=(t + 1,), domain=t, dtype="float64")
        grown[0] = 2.0 * x[0]
        grown[t] = tp.concatenate([grown[t - 1], tp.broadcast_to(x, (1,))])
        seen = tp.sum(grown[tp.max(t - 1, 0)])
        prog.output("g", tp.grad(tp.sum(seen[0:T]), x))
    return prog, {T: 4}, {"x": [1.0, 2.0, 3.0, 4.0]}


def a_batch_of_host_calls_that_are_one_call() -> Built:
    """No loop is needed for the only step of s, but the call is made at that step."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        y = tp.host(lambda number: number, 10 * t.value + s.value, out=tp.spec((), "int32"), sequence=s, batch=t)
        prog.output("y", y)
    return prog, {T: 3, S: 1}, {}


def host_results_of_some_steps_of_a_batch() -> Built:
    """Only h[1] is read: what a call returns has all steps of its batch."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        h = tp.host(lambda _: np.arange(6.0).reshape(3, 2), t.value, out=tp.spec((), "float64"), batch=(t, s))
        prog.output("y", h[1])
    return prog, {T: 3, S: 2}, {}


def a_copy_of_what_is_defined_beyond_its_steps() -> Built:
    """y has T + 1 values, and its copy has T."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=t)
        y[0] = 1.0
        y[t + 1] = 2 * y[t]
        prog.output("copy", tp.copy(y))
    return prog, {T: 3}, {}


def results_of_calls_whose_steps_follow_no_dim() -> Built:
    """A result is taken before the next call, also where points are computed one by one."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=t, dtype="int32")
        h = tp.host(lambda n, x: n + 10 * x, t.value, y, out=tp.spec((), "int32"), sequence=t)
        y[0] = 1
        y[t] = h[t // 2] + tp.where(t < T - 1, 0, h[0])
        prog.output("h", h)
        prog.output("y", y)
    return prog, {T: 4}, {}


def a_circle_that_is_late_in_one_loop_and_tangled_inside() -> Built:
    """The loop over t delays what reads y one step ahead; unrolled in its stead, nothing is late."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        y = prog.recurrent("y", domain=t, dtype="float64")
        a = x * tp.minimum(y[tp.max(t - 1, 0)], y[tp.min(2 * t, T - 1)])
        y[0] = 0.5
        y[t + 1] = tp.tanh(a[t // 2] + y[0])
        prog.output("a", a)
        prog.output("y", y)
    return prog, {T: 4}, {"x": [1.0, 2.0, 3.0, 4.0]}


def a_circle_whose_order_is_that_of_no_dim_until_a_stop() -> Built:
    """Where y[0] is read from depends on the number of steps; one order is right for all of them."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        done = prog.input("done", domain=t, dtype="bool")
        y = prog.recurrent("y", domain=t, dtype="float64")
        y[T - 1] = 1.0
        y[0] = y[T - 1] + 1.0
        y[t] = y[0] + y[t // 2]
        prog.output("y", y)
        prog.stop(t, when=done)
    return prog, {T: 5}, {"done": [False, False, False, True, False]}


def a_circle_with_another_order_for_every_number_of_steps() -> Built:
    """The last value of z is a tensor without dims: for two steps it is z[1], before y[0]; for three z[2], before y[1]
    and z[1]."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        done = prog.input("done", domain=t, dtype="bool")
        y = prog.recurrent("y", domain=t, dtype="float64")
        z = prog.recurrent("z", domain=t, dtype="float64")
        y[t >= T - 1] = 1.0
        y[t] = 0.5 * tp.square(z[T - 1]) + z[t + 1]
        z[t] = y[tp.min(2 * t, T - 1)] + 2 * y
        prog.output("z", z)
        prog.stop(t, when=done)
    return prog, {T: 4}, {"done": [False, False, True, False]}


def an_adjoint_that_is_added_to_from_other_steps_only() -> Built:
    """Of the steps s that may add to a point, those are read that do: with t = 0 the step before, never itself."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", dtype="float64")
        y = prog.recurrent("y", domain=(t, s), dtype="float64")
        y[t, 0] = x
        y[t, s + 1] = tp.tanh(y[tp.min(2 * t, T - 1), tp.min(s + t, S - 1)])
        prog.output("g", tp.grad(tp.sum(y[0:T, 0 : S + 1]), x))
    return prog, {T: 4, S: 1}, {"x": 0.5}


def an_earlier_step_read_at_another_step_of_the_loop_around() -> Built:
    """b[t - 1] is read where s - 1 is, not where s is, though there is but one s: no register has it."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        a = prog.recurrent("a", domain=(t, s), dtype="float64")
        b = prog.recurrent("b", domain=(t, s), dtype="float64")
        a[0, s] = 1.0
        a[t, s] = tp.tanh(b[t - 1, tp.max(s - 1, 0)])
        b[0, s] = a[T - 1, 0:s].sum()
        b[t + 1, s] = a[t, s] + 1
        prog.output("a", a)
    return prog, {T: 5, S: 1}, {}


def a_convolution_behind_a_stop() -> Built:
    """The mean of no steps, behind the stop, is no number; XLA must not multiply it by zero for the steps before."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        done = prog.input("done", domain=t, dtype="bool")
        x = prog.input("x", shape=(1, 1, 3), domain=t, dtype="float64")
        prog.output("y", tp.conv1d(tp.mean(x[t:T], axis=0), x))
        prog.stop(t, when=done)
    return prog, {T: 4}, {"done": [False, True, False, False], "x": np.linspace(0, 1, 12).reshape(4, 1, 1, 3)}


def averages_of_what_is_no_number_behind_a_stop() -> Built:
    """All steps behind t are padding, with weight zero. Those behind the stop are means of no steps."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        done = prog.input("done", domain=t, dtype="bool")
        x = prog.input("x", shape=3, domain=t, dtype="float64")
        to_come = tp.mean(x[t:T], axis=0)
        prog.output("y", tp.softmax(x[0 : t + 1] @ x) @ to_come[0 : t + 1])
        prog.stop(t, when=done)
    return prog, {T: 4}, {"done": [False, True, False, False], "x": np.linspace(0, 1, 12).reshape(4, 3)}


def a_product_with_a_triangle_of_points() -> Built:
    """Where s >= t, the mean is one of no steps, and only padding."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", shape=3, domain=t, dtype="float64")
        means = tp.mean(x[s:t], axis=0)
        prog.output("y", tp.einsum("sa,sa->a", x[0:t], means[t, 0:t]))
    return prog, {T: 4, S: 4}, {"x": np.linspace(0, 1, 12).reshape(4, 3)}


def a_circle_of_steps_behind_a_stop() -> Built:
    """A loop that runs backwards begins behind the stop. What it computes there is still in the circle of the last
    steps when it comes to those before the stop."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        done = prog.input("done", domain=t, dtype="bool")
        x = prog.input("x", domain=t, dtype="float64")
        y = prog.recurrent("y", domain=t, dtype="float64")
        next_ones = slice(t + 1, tp.min(t + 4, T))
        y[t] = tp.mean(x[t:T]) + x[next_ones] @ y[next_ones]
        prog.output("y", y[0])
        prog.stop(t, when=done)
    return prog, {T: 9}, {"done": np.arange(9) == 4, "x": np.linspace(0, 1, 9)}


def an_element_of_a_range_that_is_empty_elsewhere() -> Built:
    """Two reads of a say where it is needed. At the last step of s its range is empty and has no first element."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=s, dtype="float64")
        w = prog.input("w", domain=t, dtype="float64")
        a = w * x[s + 1 : S].space[0]
        prog.output("g", tp.grad(tp.sum(a[0:T, 0]) + a[T - 1, tp.max(s - 2, 0)], x))
    return prog, {T: 2, S: 3}, {"x": np.arange(3.0), "w": np.array([1.0, 2.0])}


def random_numbers_over_two_dims() -> Built:
    """Compiled by newer versions of XLA, which took hours where rows' keys were not arrays of their own."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        prog.output("drawn", tp.random.normal(domain=(t, s), dtype="float64"))
    return prog, {T: 2, S: 4}, {}


FOUND = [
    a_loop_that_is_all_at_once_at_one_step_around_it,
    a_growing_value_that_nobody_reads_last,
    a_case_that_never_applies,
    a_case_that_is_shorter_than_the_others,
    a_case_without_steps,
    a_gradient_past_the_last_step,
    a_gradient_of_growing_values,
    a_store_that_is_wider_than_its_node,
    a_batch_of_host_calls_that_are_one_call,
    host_results_of_some_steps_of_a_batch,
    a_copy_of_what_is_defined_beyond_its_steps,
    results_of_calls_whose_steps_follow_no_dim,
    an_earlier_step_read_at_another_step_of_the_loop_around,
    a_circle_that_is_late_in_one_loop_and_tangled_inside,
    a_circle_whose_order_is_that_of_no_dim_until_a_stop,
    a_circle_with_another_order_for_every_number_of_steps,
    an_adjoint_that_is_added_to_from_other_steps_only,
    a_convolution_behind_a_stop,
    averages_of_what_is_no_number_behind_a_stop,
    a_product_with_a_triangle_of_points,
    a_circle_of_steps_behind_a_stop,
    an_element_of_a_range_that_is_empty_elsewhere,
    random_numbers_over_two_dims,
]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("build", FOUND)
def test_compiled_as_evaluated(build: Callable[[], Built], backend: str) -> None:
    prog, bounds, inputs = build()
    expected = prog.evaluate(bounds, **inputs)
    found = prog.compile(bounds, backend=backend)(**inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)


def test_values() -> None:
    prog, bounds, inputs = a_gradient_past_the_last_step()
    assert prog.evaluate(bounds, **inputs).g == 0
    prog, bounds, inputs = a_case_without_steps()
    assert prog.evaluate(bounds, **inputs).g == 0


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_block_before_the_first_call_of_a_host_function(backend: str) -> None:
    """y begins a step before the calls do: what they return is nothing there, and nobody reads it."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        y = prog.recurrent("y", domain=t)
        y[T - 1] = 1.0
        y[t - 1] = 0.5
        h = tp.host(lambda a, b: a + b, tp.index_value(t + s), y, out=tp.spec(()), sequence=t, batch=s)
        prog.output("g", tp.grad(h[T - 1, 1] + tp.sum(y[0:T] ** 2), y))
        prog.output("h", h)
    bounds = {T: 3, S: 3}
    expected = prog.evaluate(bounds)
    found = prog.compile(bounds, backend=backend, plan=tp.Plan(blocks={"t": 2, "s": 3}, host=("*",)))()
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_an_unrolled_store_of_nothing_in_a_program_that_runs_in_parts(backend: str) -> None:
    """With one step, no step follows it: what is read of those is empty, and kept apart for every t all the same."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        x = prog.input("x", domain=(t, l))
        y = prog.recurrent("y", domain=(t, l))
        y[t, -1] = 0.5
        y[t, l] = tp.sin(y[t, l - 1] + x)
        rest = y[t + 1 : T, l] * y
        prog.emit("first", tp.sum(rest[t, 0]))
        prog.output("sums", tp.sum(rest))
        prog.output("y", y)
    bounds, inputs = {T: 1, L: 3}, {"x": np.ones((1, 3), np.float32)}
    expected = prog.evaluate(bounds, **inputs)
    found = prog.compile(bounds, backend=backend, plan=tp.Plan({"l": 1}, unroll=("t",), host=("*",)))(**inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_a_last_block_that_is_shorter_than_a_tile_of_it() -> None:
    """Of four steps in blocks of three, the last block has one, and tiles of t have room for two."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        y = prog.recurrent("y", domain=(t, s))
        z = prog.recurrent("z", shape=2, domain=(t, s))
        y[s >= S - 1] = 0.5
        z[t, S - 1] = tp.broadcast_to(y[..., 0], shape=(2,))
        z[t, s] = tp.broadcast_to(y[(t + 1) // 2, tp.min(s * 2, S - 1)], shape=(2,))
        following = tp.prod(z[t + 1 : T, tp.min(tp.max(s, 2), S - 1)], axis=0)
        prog.output("g", tp.grad(tp.sum(tp.tanh(following), axis=0), y))
    bounds, plan = {T: 4, S: 1}, tp.Plan({"t": 3, "s": 1}, tiles={"t": 2, "s": 1})
    found = Executable(prog.graph, bounds, plan=plan, skip=["drop single steps"])()
    np.testing.assert_allclose(found["g"], prog.evaluate(bounds)["g"], rtol=1e-5)


@pytest.mark.parametrize("steps", [4, 5])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_block_behind_the_steps_of_a_range(size: int, steps: int) -> None:
    """y has a step more than x: in the last block, ``x[t + 1:...]`` would be shorter than nothing."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        y = prog.recurrent("y", domain=t, dtype="float64")
        y[0] = x[0]
        y[t + 1] = tp.tanh(y[t] + x[t])
        following = tp.sum(x[t + 1 : tp.min(t + 3, T)])
        loss = y * tp.var(tp.cumprod(tp.tanh(x[0 : t + 1]), axis=0), axis=0) * following
        prog.output("g", tp.grad(loss, x))
    inputs = {"x": np.linspace(-0.7, 0.9, steps)}
    found = prog.compile({T: steps}, plan=tp.Plan(blocks={t: size}))(**inputs)
    np.testing.assert_allclose(found.g, prog.evaluate({T: steps}, **inputs).g, atol=1e-12)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("size, tile", [(2, 1), (5, 4)])
def test_a_block_after_a_shorter_one_that_was_not_in_tiles(size: int, tile: int, backend: str) -> None:
    """The window is late by a block: the last block but one is a single step, at once, and the last is in tiles."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype="float64")
        y = tp.tanh(x)
        prog.output("so_far", tp.max(y[0 : t + 1]))
        prog.output("ahead", tp.max(y[t : tp.min(t + size, T)]))
    bounds, inputs = {T: 4 * size - 1}, {"x": np.sin(np.arange(4 * size - 1))}
    expected = prog.evaluate(bounds, **inputs)
    found = prog.compile(bounds, backend, plan=tp.Plan(blocks={"t": size}, tiles={"t": tile}))(**inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array)
