"""What is written several times has one gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tempo as tp
from tempo.ops.contraction import EINSUM
from tempo.passes import apply_passes
from tests.gradients.common import F64, close, numbers


def parts(written: int) -> tuple[tp.Program, Any]:
    """Two halves of a product, which is written once or for each of them."""
    with tp.Program("parts") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 3, t, dtype=F64)
        w = prog.input("w", (4, 3), dtype=F64)
        products = [w @ x for _ in range(written)]
        loss = tp.sum((tp.sin(products[0].space[:2]) * products[-1].space[2:]).sum()[0:T])
        for name, gradient in tp.grad(loss, {"x": x, "w": w}).items():
            prog.output(name, gradient)
    return prog, T


def test_a_product_that_is_written_twice() -> None:
    (once, T), (twice, U) = parts(1), parts(2)
    count = [sum(node.op is EINSUM for node in apply_passes(prog.graph).nodes) for prog in (once, twice)]
    assert count == [3, 3]
    inputs = {"x": numbers(4, 3), "w": numbers(4, 3, seed=1)}
    for name in ("x", "w"):
        close(twice.evaluate({U: 4}, **inputs)[name], once.evaluate({T: 4}, **inputs)[name])


def test_only_one_of_two_is_asked_for() -> None:
    """Of equal tensors, each is a variable of its own."""
    with tp.Program("one") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (), t, dtype=F64)
        first, second, third = (tp.sin(x) for _ in range(3))
        loss = tp.sum((first * second * tp.cos(third))[0:T])
        prog.output("second", tp.grad(loss, second))
        prog.output("x", tp.grad(loss, x))
    x = np.linspace(0.1, 1, 5)
    found = prog.evaluate({T: 5}, x=x)
    s = np.sin(x)
    close(found.second, s * np.cos(s))
    close(found.x, np.cos(x) * (2 * s * np.cos(s) - s * s * np.sin(s)))


def test_a_loss_that_is_written_twice() -> None:
    with tp.Program("loss") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (), t, dtype=F64)
        first, second = (tp.sum(tp.square(x)[0:T]) for _ in range(2))
        prog.output("x", tp.grad(second, x))
        prog.output("both", tp.grad(first * second, x))
    x = np.linspace(0.1, 1, 5)
    found = prog.evaluate({T: 5}, x=x)
    close(found.x, 2 * x)
    close(found.both, 4 * x * np.sum(x * x))


def test_a_loss_that_steps_before_it_compute_as_well() -> None:
    with tp.Program("recurrence") as prog:
        t, T = prog.dim("t")
        a = prog.input("a", 2, dtype=F64)
        x = prog.recurrent("x", 2, t, dtype=F64)
        x[0] = a
        x[t + 1] = tp.sin(x) * tp.sum(x * a)
        loss = tp.sum(x * a)
        prog.output("a", tp.grad(loss[T - 1], a))
    a = numbers(2)

    def last(a: Any) -> Any:
        x = a
        for _ in range(3):
            x = jnp.sin(x) * jnp.sum(x * a)
        return jnp.sum(x * a)

    close(prog.evaluate({T: 4}, a=a).a, jax.grad(last)(a))
