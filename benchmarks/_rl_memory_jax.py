"""REINFORCE and PPO in JAX as one would write them by hand: a scan that acts, and all of it kept for one update."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from _ppo_jax import apply, network
from _ppo_setting import CLIP, ENTROPY, GAMMA, LAMBDA, VALUE

Array = Any
RATE = 1e-3


def train(case: Any, limit: int, key: Array) -> dict[str, Array]:
    """All iterations; the mean reward of each, and the parameters in the end."""
    B, T, size = case.envs, case.steps, math.prod(case.shape)
    keys = jax.random.split(key, 4)
    parameters = {
        "policy": network(keys[0], [size, *case.hidden, 2], 0.01),
        "critic": network(keys[1], [size, *case.hidden, 1], 1.0),
    }
    moments = tuple(jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
    world = jax.random.normal(keys[2], (B, size)), jnp.zeros(B, jnp.int32)

    def act(parameters: Any, world: Any, key: Array) -> Any:
        x, n = world
        first, second = jax.random.split(key)
        log_p = jax.nn.log_softmax(apply(parameters["policy"], x))
        action = jnp.argmax(log_p + jax.random.gumbel(first, log_p.shape), axis=-1)
        after = 0.95 * x + 0.1 * (action[:, None].astype(jnp.float32) - 0.5)
        ended = n + 1 >= limit
        fresh = jax.random.normal(second, x.shape)
        world = jnp.where(ended[:, None], fresh, after), jnp.where(ended, 0, n + 1)
        chosen = jnp.take_along_axis(log_p, action[:, None], axis=-1)[:, 0]
        # What a step led to is kept as its value alone.
        ahead = apply(parameters["critic"], after)[:, 0]
        return world, (x, action, chosen, -jnp.mean(jnp.square(after), axis=-1), ended, ahead)

    def returns(value: Array, reward: Array, ended: Array, ahead: Array) -> Array:
        """What every step is worth: (T, B)."""
        going_on = 1.0 - ended
        if case.ahead is None or case.ahead == 0:
            decay = GAMMA * LAMBDA if case.ahead == 0 else GAMMA
            gain = reward + GAMMA * ahead - value if case.ahead == 0 else reward + GAMMA * ended * ahead
            last = jnp.zeros(B) if case.ahead == 0 else ahead[-1]

            def back(later: Array, given: Any) -> Any:
                here = given[0] + decay * given[1] * later
                return here, here

            _, found = jax.lax.scan(back, last, (gain, going_on), reverse=True)
            return found + value if case.ahead == 0 else found
        found = reward + GAMMA * ahead
        for _ in range(case.ahead - 1):  # of n steps, from that of n - 1
            later = jnp.concatenate([found[1:], ahead[-1:]])
            found = reward + GAMMA * jnp.where(ended > 0, ahead, later)
        return found

    def loss(parameters: Any, x: Array, action: Array, before: Array, value: Array, target: Array) -> Array:
        log_p = jax.nn.log_softmax(apply(parameters["policy"], x))
        chosen = jnp.take_along_axis(log_p, action[..., None], axis=-1)[..., 0]
        v = apply(parameters["critic"], x)[..., 0]
        advantage = target - value
        if case.ahead == 0:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = jnp.exp(chosen - before)
            gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
        else:
            gain = chosen * advantage
        entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        return jnp.mean(VALUE * jnp.square(v - target) - gain - ENTROPY * entropy)

    def iteration(carry: Any, i: Array) -> Any:
        parameters, (mean, square), world, key = carry
        key, own = jax.random.split(key)
        steps = jax.random.split(own, T)
        world, (x, action, before, reward, ended, ahead) = jax.lax.scan(
            lambda world, key: act(parameters, world, key), world, steps
        )
        value = apply(parameters["critic"], x)[..., 0]
        target = returns(value, reward, ended.astype(jnp.float32), ahead)
        gradients = jax.grad(loss)(parameters, x, action, before, value, target)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * jnp.square(g), square, gradients)
        first, second = 1 - 0.9 ** (i + 1), 1 - 0.999 ** (i + 1)
        parameters = jax.tree.map(
            lambda p, m, v: p - RATE * (m / first) / (jnp.sqrt(v / second) + 1e-5), parameters, mean, square
        )
        return (parameters, (mean, square), world, key), reward.mean()

    carry = (parameters, moments, world, keys[3])
    (parameters, *_), reward = jax.lax.scan(iteration, carry, jnp.arange(case.iterations))
    return {"reward": reward, "parameters": parameters}
