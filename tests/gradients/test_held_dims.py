"""What exactly is differentiated: dims that the loss and the tensor share are held at the same point, dims
that only the loss has are summed over, everything else flows."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tests.gradients.common import F64, Array, Tensor, close, numbers, squared_norm

# Of the whole Jacobian d loss[i] / d w[j], tp.grad gives the diagonal.

Losses = Callable[[Tensor, Any, Any], Tensor]


def there_and_back(w: Tensor, i: Any, I: Any) -> Tensor:
    """One read goes back and one ahead, so that w[i] comes back to i, except at the end."""
    before = tp.copy(w[tp.max(i - 1, 0)])
    return tp.sin(before[tp.min(i + 1, I - 1)])


def average(w: Tensor, i: Any) -> Tensor:
    """A tensor that has w[i] in it from step i + 1 on."""
    m = w.program.recurrent("m", domain=i, dtype=F64)
    m[0] = 1.0
    m[i + 1] = 0.5 * m + w**2
    return m


def averages(w: Array) -> list[Array]:
    return list(itertools.accumulate(w, lambda m, w: 0.5 * m + w**2, initial=jnp.float64(1)))


def average_from_the_end(w: Tensor, i: Any, I: Any) -> Tensor:
    """The other way round: w[i] is in it up to step i - 1."""
    m = w.program.recurrent("m", domain=i, dtype=F64)
    m[I - 1] = 1.0
    m[i - 1] = 0.5 * m + w**2
    return m


def first_step_apart(w: Tensor, i: Any, I: Any) -> Tensor:
    """A case for one step goes through what does not vary at all, and comes back to that step."""
    y = w.program.recurrent("y", domain=i, dtype=F64)
    y[0] = tp.sin(w[0] ** 2)
    y[i] = w * y[i - 1]
    return y**2


def first_step_everywhere(w: Tensor, i: Any, I: Any) -> Tensor:
    """Here what does not vary is read at every step, and counts at the first one alone."""
    y = w.program.recurrent("y", domain=i, dtype=F64)
    first = w[0] ** 2
    y[0] = tp.sin(first)
    y[i] = w * first
    return y**2


def steps_of(first: Callable[[Array], Array], rest: Callable[..., Array]) -> Callable[[Array, int], list[Array]]:
    def losses(w: Array, I: int) -> list[Array]:
        y = [first(w)]
        for i in range(1, I):
            y.append(rest(w, i, y[-1]))
        return [value**2 for value in y]

    return losses


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
    "there and back": (there_and_back, lambda w, I: [jnp.sin(w[max(min(i, I - 2), 0)]) for i in range(I)]),
    "ahead and back": (
        lambda w, i, I: tp.sin(average(w, i)[i + 1]) * w,
        lambda w, I: [jnp.sin(averages(w)[i + 1]) * w[i] for i in range(I)],
    ),
    "up to a step ahead, and back": (
        lambda w, i, I: tp.sum(average(w, i)[0 : i + 2]) ** 2,
        lambda w, I: [sum(averages(w)[: i + 2]) ** 2 for i in range(I)],
    ),
    "back and ahead": (
        lambda w, i, I: tp.sin(average_from_the_end(w, i, I)[i - 1]) * w,
        lambda w, I: [jnp.sin(averages(w[::-1])[I - i]) * w[i] for i in range(I)],
    ),
    "the first step apart": (
        first_step_apart,
        steps_of(lambda w: jnp.sin(w[0] ** 2), lambda w, i, before: w[i] * before),
    ),
    "the first step everywhere": (
        first_step_everywhere,
        steps_of(lambda w: jnp.sin(w[0] ** 2), lambda w, i, before: w[i] * w[0] ** 2),
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

    @jax.jit
    def expected(w: Array) -> dict[str, Array]:
        def squares(w: Array) -> Array:
            return diagonal(losses, w) ** 2

        return {
            "loss": jnp.stack(losses(w, steps)),
            "g": diagonal(losses, w),
            "held_again": jnp.diag(jax.jacobian(squares)(w)),
            "flowing": jax.grad(lambda w: jnp.sum(squares(w)))(w),
        }

    for output, value in expected(w_).items():
        close(result[output], value)


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


def test_momentum_that_is_read_a_step_ahead() -> None:
    """The right side of w[i + 1] reads what is at i + 1, but is used there alone: none of it comes back to loss[i]."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.recurrent("w", domain=i, dtype=F64)
        momentum = prog.recurrent("momentum", domain=i, dtype=F64)
        g = tp.grad(tp.square(w - 3), w)
        w[0] = 0.0
        momentum[0] = 0.0
        momentum[i + 1] = 0.5 * momentum + g
        w[i + 1] = w - 0.25 * momentum[i + 1]
        prog.output("w", w)
    close(prog.evaluate({I: 3}).w, [0, 1.5, 3, 3.75])
    close(prog.compile({I: 3})().w, [0, 1.5, 3, 3.75])


def test_minibatches() -> None:
    """A state over iterations and minibatches is held at both."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        m, M = prog.dim("m")
        x = prog.input("x", domain=(i, m), dtype=F64)
        w = prog.state("w", tp.constant(0.5, F64), over=(i, m))
        w.next = w - 0.1 * tp.grad(tp.sin(w * x), w)
        prog.output("w", w.final)
    x_, expected = numbers(2, 3), 0.5
    for value in x_.ravel():
        expected -= 0.1 * value * np.cos(expected * value)
    close(prog.evaluate({I: 2, M: 3}, x=x_).w, expected)


def game(a: Any, b: Any, sin: Callable[[Any], Any]) -> Any:
    """What a wants to be large and b small."""
    return sin(a * b) + a - b**2


def test_two_players_at_once() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        a = prog.state("a", tp.constant(0.5, F64), over=i)
        b = prog.state("b", tp.constant(0.2, F64), over=i)
        a.next = a + 0.1 * tp.grad(game(a, b, tp.sin), a)
        b.next = b - 0.1 * tp.grad(game(a, b, tp.sin), b)
        prog.output("a", a)
        prog.output("b", b)

    expected = [(0.5, 0.2)]
    for _ in range(3):
        a_, b_ = expected[-1]
        da, db = jax.grad(lambda a, b: game(a, b, jnp.sin), argnums=(0, 1))(a_, b_)
        expected.append((a_ + 0.1 * da, b_ - 0.1 * db))
    result = prog.evaluate({I: 3})
    close(np.stack([result.a, result.b], 1), expected)


def test_two_players_in_turn() -> None:
    """b answers to a's next value, which depends on b through a's gradient."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        a = prog.state("a", tp.constant(0.5, F64), over=i)
        b = prog.state("b", tp.constant(0.2, F64), over=i)
        a.next = a + 0.1 * tp.grad(game(a, b, tp.sin), a)
        b.next = b - 0.1 * tp.grad(game(a.next, b, tp.sin), b)
        prog.output("a", a)
        prog.output("b", b)

    def answer(a: Array, b: Array) -> Array:
        return a + 0.1 * jax.grad(lambda a: game(a, b, jnp.sin))(a)

    expected = [(0.5, 0.2)]
    for _ in range(3):
        a_, b_ = expected[-1]
        db = jax.grad(lambda b, a: game(answer(a, b), b, jnp.sin))(b_, a_)
        expected.append((answer(a_, b_), b_ - 0.1 * db))
    result = prog.evaluate({I: 3})
    close(np.stack([result.a, result.b], 1), expected)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_loss_that_also_sees_older_weights(stopped: bool) -> None:
    """Those of every third iteration: there they are the present ones, and count unless stopped."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        x = prog.input("x", domain=(i,), dtype=F64)
        w = prog.state("w", tp.constant(0.5, F64), over=i)
        older = tp.sin(w[3 * (i // 3)] * x)
        target = tp.stop_gradient(older) if stopped else older
        w.next = w - 0.1 * tp.grad((tp.sin(w * x) - target - 1) ** 2, w)
        prog.output("w", w)

    def loss(w: Array, older: Array, x: Array) -> Array:
        return (jnp.sin(w * x) - jnp.sin(older * x) - 1) ** 2

    x_, expected = numbers(5), [0.5]
    for i, value in enumerate(x_):
        now, older_ = jax.grad(loss, argnums=(0, 1))(expected[-1], expected[3 * (i // 3)], value)
        flows = i % 3 == 0 and not stopped
        expected.append(expected[-1] - 0.1 * (now + older_ if flows else now))
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


def test_leapfrog() -> None:
    """A force that every momentum reads, the first one in a case of its own: refused, as if it needed itself."""
    with tp.Program() as prog:
        s, S = prog.dim("s")
        x = prog.recurrent("x", domain=s, dtype=F64)
        p = prog.recurrent("p", domain=s, dtype=F64)
        force = -tp.grad(x**4, x)
        x[0] = 1.0
        x[s] = x[s - 1] + 0.1 * p[s - 1]
        p[0] = 0.05 * force[0]
        p[s] = p[s - 1] + 0.1 * force
        prog.output("x", x)
    place, momentum, places = 1.0, -0.05 * 4, [1.0]
    for _ in range(4):
        place += 0.1 * momentum
        momentum -= 0.1 * 4 * place**3
        places.append(place)
    close(prog.evaluate({S: 5}).x, places)
    with jax.enable_x64(True):
        close(prog.compile({S: 5})().x, places)
