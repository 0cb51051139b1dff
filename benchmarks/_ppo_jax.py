"""PPO in JAX, written by hand as PureJaxRL has it: one jitted program of scans, for the synthetic environment.

``hoisted`` makes the random draws of an iteration for all steps at once; ``unroll`` is that of the acting scan. What is
learned is what ``rl.ppo`` learns with one epoch and one minibatch: where an episode is cut off, the critic's value of
its last observation is what follows.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from _ppo_setting import ADAM, ANNEAL, CLIP, ENTROPY, GAMMA, LAMBDA, MOST_NORM, RATE, VALUE, Setting

Array = Any
VARIANTS = {
    "scan": {"hoisted": False, "unroll": 1},
    "hoisted": {"hoisted": True, "unroll": 1},
    "hoisted, unroll 10": {"hoisted": True, "unroll": 10},
}


def network(key: Array, sizes: list[int], last: float) -> list[tuple[Array, Array]]:
    layers = []
    for n, (a, b) in enumerate(pairwise(sizes)):
        gain = last if n == len(sizes) - 2 else math.sqrt(2)
        limit = gain * math.sqrt(3 / a)
        layers.append(
            (jax.random.uniform(jax.random.fold_in(key, n), (a, b), minval=-limit, maxval=limit), jnp.zeros(b))
        )
    return layers


def apply(layers: list[tuple[Array, Array]], x: Array) -> Array:
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def train(setting: Setting, key: Array, hoisted: bool, unroll: int) -> dict[str, Array]:
    """All iterations; the mean reward of each, and the parameters in the end."""
    B, T, size = setting.envs, setting.steps, math.prod(setting.observation)
    hidden = setting.layers * [setting.width]
    keys = jax.random.split(key, 4)
    parameters = {
        "policy": network(keys[0], [size, *hidden, 2], 0.01),
        "critic": network(keys[1], [size, *hidden, 1], 1.0),
    }
    moments = tuple(jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
    world = jax.random.normal(keys[2], (B, size)), jnp.zeros(B, jnp.int32)

    def act(parameters: Any, world: Any, draws: Any) -> Any:
        x, n = world
        gumbel, fresh = draws
        log_p = jax.nn.log_softmax(apply(parameters["policy"], x))
        action = jnp.argmax(log_p + gumbel, axis=-1)
        after = 0.95 * x + 0.1 * (action[:, None].astype(jnp.float32) - 0.5)
        reward = -jnp.mean(jnp.square(after), axis=-1)
        ended = n + 1 >= setting.limit
        world = jnp.where(ended[:, None], fresh, after), jnp.where(ended, 0, n + 1)
        chosen = jnp.take_along_axis(log_p, action[:, None], axis=-1)[:, 0]
        return world, (x, action, chosen, reward, ended, after)

    def draws(key: Array, shape: tuple[int, ...]) -> Any:
        first, second = jax.random.split(key)
        return jax.random.gumbel(first, (*shape, B, 2)), jax.random.normal(second, (*shape, B, size))

    def loss(parameters: Any, x: Array, action: Array, before: Array, value: Array, advantage: Array) -> Array:
        target = advantage + value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_p = jax.nn.log_softmax(apply(parameters["policy"], x))
        ratio = jnp.exp(jnp.take_along_axis(log_p, action[:, None], axis=-1)[:, 0] - before)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
        v = apply(parameters["critic"], x)[:, 0]
        clipped = value + jnp.clip(v - value, -CLIP, CLIP)
        error = 0.5 * jnp.mean(jnp.maximum(jnp.square(v - target), jnp.square(clipped - target)))
        entropy = -jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=-1))
        return -gain.mean() + VALUE * error - ENTROPY * entropy

    def iteration(carry: Any, i: Array) -> Any:
        parameters, (mean, square), world, key = carry
        key, own = jax.random.split(key)
        if hoisted:
            world, seen = jax.lax.scan(
                lambda world, given: act(parameters, world, given), world, draws(own, (T,)), unroll=unroll
            )
        else:
            world, seen = jax.lax.scan(
                lambda world, given: act(parameters, world, draws(given, ())),
                world,
                jax.random.split(own, T),
                unroll=unroll,
            )
        x, action, before, reward, ended, after = seen
        value = apply(parameters["critic"], x)[..., 0]
        ahead = apply(parameters["critic"], after)[..., 0]
        delta = reward + GAMMA * ahead - value

        def back(later: Array, given: Any) -> Any:
            delta, ended = given
            here = delta + GAMMA * LAMBDA * (1 - ended) * later
            return here, here

        _, advantage = jax.lax.scan(
            back, jnp.zeros(B), (delta, ended.astype(jnp.float32)), reverse=True, unroll=min(16, T)
        )
        flat = (array.reshape(B * T, *array.shape[2:]) for array in (x, action, before, value, advantage))
        gradients = jax.grad(loss)(parameters, *flat)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients)))
        scale = jnp.minimum(1.0, MOST_NORM / (norm + 1e-6))
        mean = jax.tree.map(lambda m, g: ADAM[0] * m + (1 - ADAM[0]) * scale * g, mean, gradients)
        square = jax.tree.map(lambda v, g: ADAM[1] * v + (1 - ADAM[1]) * jnp.square(scale * g), square, gradients)
        rate = RATE * (1 - i / setting.iterations if ANNEAL else 1.0)
        first, second = 1 - ADAM[0] ** (i + 1), 1 - ADAM[1] ** (i + 1)
        parameters = jax.tree.map(
            lambda p, m, v: p - rate * (m / first) / (jnp.sqrt(v / second) + 1e-5), parameters, mean, square
        )
        return (parameters, (mean, square), world, key), reward.mean()

    carry = (parameters, moments, world, keys[3])
    (parameters, *_), reward = jax.lax.scan(iteration, carry, jnp.arange(setting.iterations))
    return {"reward": reward, "parameters": parameters}
