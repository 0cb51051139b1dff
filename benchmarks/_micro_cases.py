"""The programs of the micro benchmarks: each as its definition and as JAX written by hand.

The hand-written side hoists whatever does not depend on the recurrence, and comes in several variants: how far a scan
is unrolled, an associative scan, gradients of weights as one product.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tempo as tp

Array = Any
Expert = Callable[..., dict[str, Array]]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A program and the same thing in JAX, in one or more variants."""

    size: str
    prog: tp.Program
    bounds: Mapping[Any, int]
    inputs: Mapping[str, np.ndarray]
    experts: Mapping[str, Expert]


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return (scale * np.random.default_rng([seed, *shape]).normal(size=shape)).astype(np.float32)


def unrolled(function: Callable[..., dict[str, Array]], factors: tuple[int, ...]) -> dict[str, Expert]:
    name = function.__name__
    return {f"{name}, unroll {n}": functools.partial(function, n) for n in factors}


# -- first-order recurrences -------------------------------------------------------------------------------------


def decaying(
    factor: float, values: Array, start: Array, unroll: int, weight: float = 1.0, reverse: bool = False
) -> Array:
    """``c = factor * c + weight * value`` for every value, from ``start`` on."""

    def step(c: Array, value: Array) -> tuple[Array, Array]:
        c = factor * c + weight * value
        return c, c

    return lax.scan(step, start, values, unroll=unroll, reverse=reverse)[1]


def decaying_at_once(factor: float, values: Array, reverse: bool = False) -> Array:
    """The same from zero on, as a logarithmic number of passes over all values."""

    def join(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        return a[0] * b[0], b[0] * a[1] + b[1]

    factors = jnp.full((len(values), 1), factor, values.dtype)
    return lax.associative_scan(join, (factors, values), reverse=reverse)[1]


def ema(quick: bool) -> Pair:
    """An exponential moving average of many channels."""
    steps, channels = (1000, 100) if quick else (10_000, 1000)
    with tp.Program("ema") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", channels, t)
        y = prog.recurrent("y", channels, t)
        y[0] = x[0]
        y[t] = 0.9 * y[t - 1] + 0.1 * x[t]
        prog.output("y", y)

    def scan(unroll: int, x: Array) -> dict[str, Array]:
        # The first step as one of the loop, 0.9 x[0] + 0.1 x[0], so that nothing is put together afterwards.
        return {"y": decaying(0.9, x, x[0], unroll, weight=0.1)}

    def associative(x: Array) -> dict[str, Array]:
        return {"y": decaying_at_once(0.9, jnp.concatenate([x[:1], 0.1 * x[1:]]))}

    experts = unrolled(scan, (1, 8, 32)) | {"associative": associative}
    return Pair(f"{steps} x {channels}", prog, {T: steps}, {"x": normal(steps, channels)}, experts)


def gae(quick: bool) -> Pair:
    """Generalised advantage estimation, backwards in time."""
    steps, actors = (128, 256) if quick else (1000, 4000)
    gamma, lam = 0.99, 0.95
    with tp.Program("gae") as prog:
        t, T = prog.dim("t")
        reward = prog.input("reward", actors, t)
        estimate = prog.input("estimate", actors, t)
        last = prog.input("last", actors)
        value = prog.recurrent("value", actors, t)
        value[t < T] = estimate
        value[T] = last
        delta = reward + gamma * value[t + 1] - value[t]
        advantage = prog.recurrent("advantage", actors, t)
        advantage[T - 1] = delta[T - 1]
        advantage[t] = delta[t] + gamma * lam * advantage[t + 1]
        prog.output("advantage", advantage)

    def deltas(reward: Array, estimate: Array, last: Array) -> Array:
        value = jnp.concatenate([estimate, last[None]])
        return reward + gamma * value[1:] - value[:-1]

    def scan(unroll: int, reward: Array, estimate: Array, last: Array) -> dict[str, Array]:
        delta = deltas(reward, estimate, last)
        return {"advantage": decaying(gamma * lam, delta, jnp.zeros(actors), unroll, reverse=True)}

    def inside(unroll: int, reward: Array, estimate: Array, last: Array) -> dict[str, Array]:
        # As PureJaxRL has it: the next value is carried, so that no delta is stored.
        def step(carry: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            advantage, following = carry
            reward, value = now
            advantage = reward + gamma * following - value + gamma * lam * advantage
            return (advantage, value), advantage

        start = (jnp.zeros(actors), last)
        return {"advantage": lax.scan(step, start, (reward, estimate), unroll=unroll, reverse=True)[1]}

    def associative(reward: Array, estimate: Array, last: Array) -> dict[str, Array]:
        return {"advantage": decaying_at_once(gamma * lam, deltas(reward, estimate, last), reverse=True)}

    inputs = {"reward": normal(steps, actors), "estimate": normal(steps, actors, seed=1), "last": normal(actors)}
    experts = unrolled(scan, (1, 8)) | unrolled(inside, (1, 8, 32)) | {"associative": associative}
    return Pair(f"{steps} x {actors}", prog, {T: steps}, inputs, experts)


# -- an LSTM -----------------------------------------------------------------------------------------------------


def lstm(quick: bool, training: bool = False) -> Pair:
    """The last state of an LSTM; or a step of gradient descent on its squares, by back-propagation through time."""
    steps, batch, hidden = (32, 8, 32) if quick else (128, 64, 256)
    rate = 0.1
    with tp.Program("lstm") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (batch, hidden), t)
        Wx, Wh, b = weights = [
            prog.input("Wx", (hidden, 4 * hidden)),
            prog.input("Wh", (hidden, 4 * hidden)),
            prog.input("b", 4 * hidden),
        ]
        h = lstm_layer(prog, "", x, Wx, Wh, b, t)
        if training:
            loss = tp.sum(tp.square(h[T - 1]))
            prog.output("loss", loss)
            for weight, gradient in zip(weights, tp.grad(loss, weights), strict=True):
                prog.output(weight.name, weight - rate * gradient)
        else:
            prog.output("h", h[T - 1])

    def cell(Wh: Array, carry: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = carry
        i, f, g, o = jnp.split(now + h @ Wh, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), h

    def states(xs: Array, Wh: Array, unroll: int) -> tuple[Array, Array]:
        """The last state, and at every step the one before it."""
        zero = jnp.zeros((batch, hidden))
        (last, _), before = lax.scan(functools.partial(cell, Wh), (zero, zero), xs, unroll=unroll)
        return last, before

    def forward(unroll: int, x: Array, Wx: Array, Wh: Array, b: Array) -> dict[str, Array]:
        return {"h": states(x @ Wx + b, Wh, unroll)[0]}

    def updated(loss: Array, weights: Mapping[str, Array], gradients: Mapping[str, Array]) -> dict[str, Array]:
        return {"loss": loss} | {name: weights[name] - rate * gradients[name] for name in weights}

    def grad(unroll: int, x: Array, **weights: Array) -> dict[str, Array]:
        def squares(weights: Mapping[str, Array]) -> Array:
            return jnp.sum(jnp.square(forward(unroll, x, **weights)["h"]))

        loss, gradients = jax.value_and_grad(squares)(weights)
        return updated(loss, weights, gradients)

    def one_product(unroll: int, x: Array, Wx: Array, Wh: Array, b: Array) -> dict[str, Array]:
        # Differentiated up to the gates only: the weights' gradients are then one product over all steps.
        def squares(xs: Array) -> tuple[Array, Array]:
            last, before = states(xs, Wh, unroll)
            return jnp.sum(jnp.square(last)), before

        (loss, before), d = jax.value_and_grad(squares, has_aux=True)(x @ Wx + b)
        gradients = {
            "Wx": jnp.einsum("tbi,tbj->ij", x, d),
            "Wh": jnp.einsum("tbi,tbj->ij", before, d),
            "b": jnp.sum(d, axis=(0, 1)),
        }
        return updated(loss, {"Wx": Wx, "Wh": Wh, "b": b}, gradients)

    inputs = {
        "x": normal(steps, batch, hidden),
        "Wx": normal(hidden, 4 * hidden, scale=hidden**-0.5),
        "Wh": normal(hidden, 4 * hidden, scale=hidden**-0.5, seed=1),
        "b": normal(4 * hidden),
    }
    experts = unrolled(grad, (1, 4)) | unrolled(one_product, (1, 4)) if training else unrolled(forward, (1, 2, 4))
    return Pair(f"T={steps}, batch {batch}, hidden {hidden}", prog, {T: steps}, inputs, experts)


def lstm_layer(prog: tp.Program, name: str, x: Any, Wx: Any, Wh: Any, b: Any, t: Any) -> Any:
    """An LSTM over ``t`` that starts from zero."""
    shape = (x.shape[0], Wh.shape[0])
    h = prog.recurrent(f"h{name}", shape, t)
    c = prog.recurrent(f"c{name}", shape, t)
    i, f, g, o = tp.split(x @ Wx + b + h[t - 1] @ Wh, 4, axis=-1)
    h[-1] = 0
    c[-1] = 0
    c[t] = tp.sigmoid(f) * c[t - 1] + tp.sigmoid(i) * tp.tanh(g)
    h[t] = tp.sigmoid(o) * tp.tanh(c[t])
    return h


# -- attention ---------------------------------------------------------------------------------------------------


def attention(quick: bool, gradient: bool = False) -> Pair:
    """Causal attention of one head; with the gradients of the sum of its squares."""
    steps, width = (64, 16) if quick else (512, 64)
    scale = width**-0.5
    with tp.Program("attention") as prog:
        t, T = prog.dim("t")
        q, k, v = (prog.input(name, width, t) for name in "qkv")
        y = tp.softmax(scale * (k[0 : t + 1] @ q)) @ v[0 : t + 1]
        prog.output("y", y)
        if gradient:
            loss = tp.sum(tp.square(y[0:T]))
            for name, g in zip("qkv", tp.grad(loss, (q, k, v)), strict=True):
                prog.output(f"d{name}", g)

    def masked(q: Array, k: Array, v: Array) -> Array:
        causal = jnp.tril(jnp.ones((steps, steps), bool))
        return jax.nn.softmax(jnp.where(causal, (scale * q) @ k.T, -jnp.inf)) @ v

    def library(q: Array, k: Array, v: Array) -> Array:
        q, k, v = (a[None, :, None] for a in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v, scale=scale, is_causal=True)[0, :, 0]

    def expert(form: Callable[..., Array], **inputs: Array) -> dict[str, Array]:
        if not gradient:
            return {"y": form(**inputs)}

        def sum_of_squares(inputs: Mapping[str, Array]) -> tuple[Array, Array]:
            y = form(**inputs)
            return jnp.sum(jnp.square(y)), y

        found, y = jax.grad(sum_of_squares, has_aux=True)(inputs)
        return {"y": y} | {f"d{name}": g for name, g in found.items()}

    inputs = {name: normal(steps, width, seed=n) for n, name in enumerate("qkv")}
    experts = {form.__name__: functools.partial(expert, form) for form in (masked, library)}
    return Pair(f"T={steps}, d={width}", prog, {T: steps}, inputs, experts)


# -- dynamic programs --------------------------------------------------------------------------------------------


def viterbi(quick: bool) -> Pair:
    """The best path through a trellis, by backpointers."""
    steps, states = (100, 32) if quick else (1000, 256)
    with tp.Program("viterbi") as prog:
        t, T = prog.dim("t")
        score = prog.input("score", states, t)
        A = prog.input("A", (states, states))
        best = prog.recurrent("best", states, t)
        candidates = tp.expand_dims(best[t - 1], 1) + A
        best[0] = score[0]
        best[t] = tp.max(candidates, axis=0) + score[t]
        before = tp.argmax(candidates, axis=0)
        path = prog.recurrent("path", domain=t, dtype=tp.int32)
        path[T - 1] = tp.argmax(best[T - 1])
        path[t] = before[t + 1].take(path[t + 1])
        prog.output("path", path)

    def backpointers(unroll: int, score: Array, A: Array) -> dict[str, Array]:
        def forward(best: Array, score: Array) -> tuple[Array, Array]:
            candidates = best[:, None] + A
            return jnp.max(candidates, axis=0) + score, jnp.argmax(candidates, axis=0)

        def backward(state: Array, before: Array) -> tuple[Array, Array]:
            return before[state], before[state]

        best, before = lax.scan(forward, score[0], score[1:], unroll=unroll)
        last = jnp.argmax(best)
        path = lax.scan(backward, last, before, reverse=True, unroll=8)[1]
        return {"path": jnp.append(path, last)}

    def on_the_way_back(unroll: int, score: Array, A: Array) -> dict[str, Array]:
        # Only the backpointers on the path are ever computed, from the stored scores.
        def forward(best: Array, score: Array) -> tuple[Array, Array]:
            return jnp.max(best[:, None] + A, axis=0) + score, best

        def backward(state: Array, best: Array) -> tuple[Array, Array]:
            state = jnp.argmax(best + A.T[state])
            return state, state

        final, best = lax.scan(forward, score[0], score[1:], unroll=unroll)
        last = jnp.argmax(final)
        path = lax.scan(backward, last, best, reverse=True, unroll=4)[1]
        return {"path": jnp.append(path, last)}

    inputs = {"score": normal(steps, states), "A": normal(states, states)}
    experts = unrolled(backpointers, (1, 4)) | unrolled(on_the_way_back, (1, 4))
    return Pair(f"T={steps}, {states} states", prog, {T: steps}, inputs, experts)


def edit_distance(quick: bool) -> Pair:
    """The edit distance of two words: a recurrence over two dims."""
    length = 64 if quick else 512
    with tp.Program("edit_distance") as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        # Letters count from 1 on: D[i, j] is the distance of the first i letters of a and the first j of b.
        a = prog.input("a", domain=i, dtype=tp.int32)
        b = prog.input("b", domain=j, dtype=tp.int32)
        D = prog.recurrent("D", domain=(i, j), dtype=tp.int32)
        D[0, j] = j.value
        D[i, 0] = i.value
        D[i, j] = tp.minimum(
            D[i - 1, j - 1] + tp.where(a[i] == b[j], 0, 1),
            tp.minimum(D[i, j - 1], D[i - 1, j]) + 1,
        )
        prog.output("distance", D[I - 1, J - 1])

    def wavefront(unroll: int, a: Array, b: Array) -> dict[str, Array]:
        # Element i of diagonal d is D[i, d - i]. Elements beyond the table are never read by those inside it.
        rows = jnp.arange(length + 1)
        a, turned = a[1:], jnp.pad(b[:0:-1], length)

        def step(carry: tuple[Array, Array], d: Array) -> tuple[tuple[Array, Array], None]:
            before, last = carry
            letters = lax.dynamic_slice(turned, (2 * length - d + 1,), (length,))
            changed = before[:-1] + (a != letters)
            inner = jnp.minimum(changed, jnp.minimum(last[1:], last[:-1]) + 1)
            now = jnp.concatenate([d[None], inner])
            return (last, jnp.where(rows == d, d, now)), None

        zero = jnp.zeros(length + 1, jnp.int32)
        diagonals = jnp.arange(2, 2 * length + 1, dtype=jnp.int32)
        (_, last), _ = lax.scan(step, (zero, zero + 1), diagonals, unroll=unroll)
        return {"distance": last[length]}

    rng = np.random.default_rng(0)
    inputs = {name: rng.integers(4, size=length + 1, dtype=np.int32) for name in "ab"}
    bounds = {I: length + 1, J: length + 1}
    return Pair(f"{length} x {length}", prog, bounds, inputs, unrolled(wavefront, (1, 8, 32)))


PAIRS: Mapping[str, Callable[[bool], Pair]] = {
    "ema": ema,
    "gae": gae,
    "lstm": lstm,
    "lstm_train": functools.partial(lstm, training=True),
    "attention": attention,
    "attention_grad": functools.partial(attention, gradient=True),
    "viterbi": viterbi,
    "edit_distance": edit_distance,
}


# -- a program of any size ---------------------------------------------------------------------------------------


def stack(layers: int, batch: int = 4, hidden: int = 8) -> tuple[tp.Program, Any]:
    """A training step of LSTMs on top of each other."""
    with tp.Program("lstm_stack") as prog:
        t, T = prog.dim("t")
        below = prog.input("x", (batch, hidden), t)
        for n in range(layers):
            Wx = prog.param(f"Wx{n}", (hidden, 4 * hidden))
            Wh = prog.param(f"Wh{n}", (hidden, 4 * hidden))
            b = prog.param(f"b{n}", 4 * hidden)
            below = lstm_layer(prog, str(n), below, Wx, Wh, b, t)
        loss = tp.mean(tp.square(below[T - 1]))
        gradients = tp.grad(loss, prog.params)
        prog.output("loss", loss)
        for name, parameter in prog.params.items():
            prog.output(name, parameter - 0.1 * gradients[name])
    return prog, T
