"""Advantage actor-critic (Mnih et al., 2016), with all environments in step.

    loss = -log pi(a | o) A + w_v 1/2 (G - v(o))^2 - w_e entropy,  G = A + v(o)

In every iteration environments act for a few steps, the policy is updated once, and the steps are forgotten. With
``lam=1`` the advantages are those of returns up to the last step; below, generalised ones.
"""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo import nn, optim
from tempo.rl.algorithms.algorithm import (
    Algorithm,
    emit_episodes,
    expect_distribution,
    expect_parts,
    expect_value,
    weighted_entropy,
)
from tempo.rl.counts import expect_counts
from tempo.rl.environments import Environment, Gymnasium, Rollout
from tempo.rl.networks import Critic, Policy
from tempo.rl.returns import gae


def a2c(
    env: Environment | Gymnasium,
    policy: nn.Module | None = None,
    critic: nn.Module | None = None,
    *,
    iterations: int,
    count: int,
    steps: int,
    gamma: float = 0.99,
    lam: float = 0.95,
    rate: float = 1e-3,
    anneal: bool = True,
    value_weight: float = 0.5,
    entropy_weight: float = 0.01,
    most_norm: float = 0.5,
) -> Algorithm:
    """``count`` environments act ``steps`` steps in every iteration, and the policy is updated once.

    ``anneal`` lets the learning rate go to 0 with the iterations. Emits ``loss``, ``episodes`` and ``episode_return``
    in every iteration; outputs are the parameters in the end, by name.
    """
    expect_counts(iterations=iterations, count=count, steps=steps)
    expect_parts(env, count, policy=policy, critic=critic)
    policy, critic = policy or Policy(env), critic or Critic(env)
    with tp.Program("a2c") as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        with prog.training(over=i):
            pi: Any = policy.declare(prog, "policy")
            v: Any = critic.declare(prog, "critic")

        play = Rollout(env, over=(i, t), batch=b)
        seen = tp.stop_gradient(play.observation)
        p = expect_distribution(pi(seen), env)
        action = tp.stop_gradient(p.sample())
        made = play.step(action)
        value = expect_value(v(seen))
        ahead = v(tp.stop_gradient(made.next_observation))
        advantage = tp.stop_gradient(gae(made.reward, value, ahead, made.terminated, made.truncated, t, gamma, lam))
        error = tp.square(advantage + tp.stop_gradient(value) - value)
        loss = -p.log_prob(action) * advantage + value_weight * 0.5 * error - weighted_entropy(entropy_weight, p)
        mean = tp.mean(loss[i, 0:B, 0:T])

        parameters: Any = prog.params
        gradients = optim.clip_by_global_norm(tp.grad(mean, parameters), most_norm)
        left = 1 - i.value.astype(tp.float32) / iterations if anneal else 1.0
        optim.Adam(rate * left, epsilon=1e-5).update(parameters, gradients)

        prog.emit("loss", mean)
        emit_episodes(prog, made, i)
        for name, parameter in parameters.items():
            prog.output(name, parameter.final)
    tensors = {"observation": seen, "action": action, "advantage": advantage, "loss": mean, **made._asdict()}
    return Algorithm(prog, {I: iterations, B: count, T: steps}, tensors, env, policy, iterations, count * steps)
