"""Environments of gymnax (the extra ``gymnax``), as functions of JAX within a program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo import rl

gymnax = pytest.importorskip("gymnax")


class FromGymnax(rl.Environment):
    """Any environment of gymnax whose actions are counted: its state, flattened, is where an episode is."""

    def __init__(self, name: str) -> None:
        self.env, self.params = gymnax.make(name)
        leaves, self.tree = jax.tree.flatten(jax.eval_shape(self.env.reset, jax.random.key(0), self.params)[1])
        self.leaves = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self.size = sum(int(np.prod(shape)) for shape, _ in self.leaves)
        self.observation = tp.spec(self.env.observation_space(self.params).shape)
        self.action = rl.Discrete(self.env.action_space(self.params).n)
        super().__init__(limit=None, dtype=tp.float32)  # gymnax counts steps itself

    def flat(self, state: Any) -> Any:
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(state)])

    def state(self, x: Any) -> Any:
        parts, first = [], 0
        for shape, dtype in self.leaves:
            count = int(np.prod(shape))
            parts.append(x[first : first + count].reshape(shape).astype(dtype))
            first += count
        return jax.tree.unflatten(self.tree, parts)

    def start(self, domain: Any) -> Any:
        def reset(bits: Any) -> Any:
            return self.flat(self.env.reset(jax.random.wrap_key_data(bits), self.params)[1])

        return tp.jax_function(reset, tp.random.bits((2,), domain), out=tp.spec(self.size))

    def observe(self, x: Any) -> Any:
        return tp.jax_function(lambda x: self.env.get_obs(self.state(x)), x, out=self.observation)

    def dynamics(self, x: Any, action: Any) -> Any:
        def step(x: Any, action: Any) -> Any:
            # CartPole draws nothing while it goes on.
            _, state, reward, done, _ = self.env.step_env(jax.random.key(0), self.state(x), action, self.params)
            return self.flat(state), reward.astype(jnp.float32), done

        out = [tp.spec(self.size), tp.spec(), tp.spec((), "bool")]
        return tp.jax_function(step, x, action, out=out)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
def test_steps_are_those_of_gymnax(compiled: bool) -> None:
    env = FromGymnax("CartPole-v1")
    actions = np.array([0, 1, 1, 0, *(16 * [1])], np.int32)
    with tp.Program("steps") as prog:
        t, T = prog.dim("t")
        play = rl.Rollout(env, over=t)
        steps = play.step(prog.input("action", domain=t, dtype="int32"))
        for name in ("reward", "terminated", "next_observation"):
            prog.output(name, getattr(steps, name))
        prog.output("seen", play.observation)
    bounds = {T: len(actions)}
    found = prog.compile(bounds)(action=actions) if compiled else prog.evaluate(bounds, action=actions)
    assert found.terminated.any()
    values = dict(zip(("x", "x_dot", "theta", "theta_dot"), found.seen[0], strict=True))
    _, first = env.env.reset(jax.random.key(0), env.params)
    state = first.replace(time=0, **values)
    for n, action in enumerate(actions):
        seen, state, reward, done, _ = env.env.step_env(jax.random.key(0), state, action, env.params)
        np.testing.assert_allclose(found.next_observation[n], seen, rtol=1e-4, atol=1e-5)
        assert (bool(found.terminated[n]), float(found.reward[n])) == (bool(done), float(reward))
        if done:
            break  # the next step starts another episode


def test_a_policy_learns_in_it() -> None:
    algorithm = rl.ppo(FromGymnax("CartPole-v1"), iterations=12, count=8, steps=64, rate=2.5e-3)
    returns = [float(r.value) for r in algorithm.program.compile(algorithm.bounds)().emits["episode_return"]]
    assert np.nanmean(returns[-3:]) > 1.5 * np.nanmean(returns[:3])
