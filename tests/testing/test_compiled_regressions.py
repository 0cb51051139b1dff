"""What random programs have found in the compiler, reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp

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


FOUND = [
    a_growing_value_that_nobody_reads_last,
    a_case_that_never_applies,
    a_case_without_steps,
    a_gradient_past_the_last_step,
    a_gradient_of_growing_values,
    a_store_that_is_wider_than_its_node,
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
