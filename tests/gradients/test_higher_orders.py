"""Gradients of gradients, and places where no gradient flows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tests.gradients.common import F64, Array, Tensor, check, close, numbers

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

        own = w + 0 * x  # a copy per task
        adapted = own - 0.1 * tp.grad(loss(own), own)
        w.next = w - 0.1 * tp.grad(loss(adapted), w)
        prog.output("w", w)
    x_ = numbers(3)

    def task_loss(w: Array, x: Array) -> Array:
        return jnp.sin(w * x) + w**2 * x**2

    @jax.jit
    @jax.grad
    def outer(w: Array) -> Array:
        return sum(task_loss(w - 0.1 * jax.grad(task_loss)(w, x), x) for x in x_)

    expected = [0.4]
    for _ in range(3):
        expected.append(expected[-1] - 0.1 * outer(expected[-1]))
    close(prog.evaluate({I: 3, K: 3}, x=x_).w, expected)


def test_hypergradient_of_a_schedule() -> None:
    """A learning rate per iteration: each has its own effect on the end of the training."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        lr = prog.input("lr", domain=(i,), dtype=F64)
        x = prog.input("x", domain=(i,), dtype=F64)
        w = prog.state("w", tp.constant(0.5, F64), over=i)
        w.next = w - lr * tp.grad(tp.sin(w * x), w)
        loss = w.final**2

    def reference(lr: Array, x: Array) -> Array:
        w = 0.5
        for rate, value in zip(lr, x, strict=True):
            w = w - rate * jax.grad(lambda w, value: jnp.sin(w * value))(w, value)
        return w**2

    given = {"lr": 0.1 + numbers(4) ** 2, "x": numbers(4, seed=1)}
    check(prog, {I: 4}, loss, {"lr": lr, "x": x}, reference, **given)


def test_learning_the_learning_rate() -> None:
    """A whole training over i inside every step k of an outer one, which descends the hypergradient."""
    with tp.Program() as prog:
        k, K = prog.dim("k")
        i, I = prog.dim("i")
        x = prog.input("x", domain=(i,), dtype=F64)
        lr = prog.state("lr", tp.constant(0.1, F64), over=k)
        w = prog.state("w", tp.constant(0.5, F64), over=i, domain=k)
        w.next = w - lr * tp.grad(tp.sin(w * x), w)
        lr.next = lr - 0.3 * tp.grad(w.final**2, lr)
        prog.output("lr", lr)
    x_ = numbers(4)

    @jax.jit
    @jax.grad
    def outcome(lr: Array) -> Array:
        w = 0.5
        for value in x_:
            w = w - lr * value * jnp.cos(w * value)
        return w**2

    expected = [0.1]
    for _ in range(3):
        expected.append(expected[-1] - 0.3 * outcome(expected[-1]))
    close(prog.evaluate({K: 3, I: 4}, x=x_).lr, expected)


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
    "a case that does not apply here": lambda x, y, t, T: by_cases(x, y, t)[1],
    "earlier steps": lambda x, y, t, T: tp.where(t > 0, tp.sum(x[tp.max(t - 1, 0)]), 0),
}


def by_cases(x: Tensor, y: Tensor, t: Any) -> Tensor:
    h = x.program.recurrent("h", domain=(t,), dtype=F64)
    h[t < 2] = tp.sum(y)
    h[t] = tp.sum(x) + h[t - 1]
    return h


@pytest.mark.parametrize("name", UNCONNECTED)
def test_zero_where_nothing_flows(name: str) -> None:
    g = zero_gradient(UNCONNECTED[name])
    assert g.dtype == np.float64
    assert g.tolist() == [[0, 0], [0, 0], [0, 0]]
