"""REINFORCE (Williams, 1992) with a critic as its baseline.

    loss = -log pi(a | o) (G - v(o)) + 1/2 (G - v(o))^2

where G is what follows a step: all of it, or n steps and the critic's value of what they lead to. With the latter, the
compiler may learn from steps while it still acts.
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
from tempo.rl.returns import discounted, n_step


def reinforce(
    env: Environment | Gymnasium,
    policy: nn.Module | None = None,
    critic: nn.Module | None = None,
    *,
    iterations: int,
    count: int,
    steps: int,
    n: int | None = None,
    gamma: float = 0.99,
    rate: float = 1e-2,
    entropy_weight: float = 0.01,
) -> Algorithm:
    """``count`` environments act ``steps`` steps in every iteration, and the policy is updated once.

    ``n`` is how many steps returns look ahead, None for all. Emits ``loss``, ``episodes`` and ``episode_return`` in
    every iteration; outputs are the parameters in the end, by name.
    """
    expect_counts(iterations=iterations, count=count, steps=steps)
    expect_parts(env, count, policy=policy, critic=critic)
    policy, critic = policy or Policy(env), critic or Critic(env)
    with tp.Program("reinforce") as prog:
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
        ahead = expect_value(v(made.next_observation))

        if n is None:
            G = discounted(made.reward, made.terminated, made.truncated, t, gamma, ahead)
        else:
            G = n_step(made.reward, ahead, made.terminated, made.truncated, t, gamma, n)
        advantage = tp.stop_gradient(G) - v(seen)
        loss = -p.log_prob(action) * tp.stop_gradient(advantage) + 0.5 * tp.square(advantage)
        mean = tp.mean((loss - weighted_entropy(entropy_weight, p))[i, 0:B, 0:T])
        parameters: Any = prog.params
        optim.Adam(rate).update(parameters, tp.grad(mean, parameters))

        prog.emit("loss", mean)
        emit_episodes(prog, made, i)
        for name, parameter in parameters.items():
            prog.output(name, parameter.final)
    tensors = {"observation": seen, "action": action, "returns": G, "loss": mean, **made._asdict()}
    return Algorithm(prog, {I: iterations, B: count, T: steps}, tensors, env, policy, iterations, count * steps)
