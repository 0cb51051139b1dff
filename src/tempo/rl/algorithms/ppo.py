"""Proximal policy optimisation (Schulman et al., 2017), with the details of its usual implementations.

In every iteration i, environments b act for steps t with the policy as it is, whose advantages are those of GAE. Then
epochs e go over all that was seen, each in another order, in minibatches m:

    ratio = pi(a | o) / pi_acting(a | o)
    policy loss = -mean(min(ratio A, clip(ratio, 1 - c, 1 + c) A))
    value loss = 1/2 mean(max((v - G)^2, (clip(v, v_acting - c, v_acting + c) - G)^2)),  G = A + v_acting
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
from tempo.rl.learner import Learner
from tempo.rl.networks import Critic, Policy
from tempo.rl.normalisation import Normalised, Running, discounted_so_far
from tempo.rl.returns import gae

Tensor = tp.RecurrentTensor


class ActorCritic(nn.Module):
    """A policy and a critic, as one module."""

    def __init__(self, policy: nn.Module, critic: nn.Module) -> None:
        self.policy: Any = policy
        self.critic: Any = critic


def ppo(
    env: Environment | Gymnasium,
    policy: nn.Module | None = None,
    critic: nn.Module | None = None,
    *,
    iterations: int,
    count: int,
    steps: int,
    epochs: int = 4,
    minibatches: int = 4,
    gamma: float = 0.99,
    lam: float = 0.95,
    rate: float = 2.5e-4,
    anneal: bool = True,
    clip: float = 0.2,
    clip_value: bool = True,
    normalise: bool = True,
    normalise_observations: bool = False,
    normalise_rewards: bool = False,
    value_weight: float = 0.5,
    entropy_weight: float = 0.01,
    most_norm: float = 0.5,
    init: bool = True,
) -> Algorithm:
    """``count`` environments act ``steps`` steps in every iteration, and what they saw is learned from in
    ``epochs`` times ``minibatches`` updates.

    ``anneal`` lets the learning rate go to 0 with the iterations; ``normalise`` gives the advantages of a minibatch
    a mean of 0 and a standard deviation of 1. ``normalise_observations`` does so with observations, by the statistics
    of all iterations before; ``normalise_rewards`` divides rewards by the standard deviation of discounted returns, but
    not those of ``episode_return``. Emits ``loss``, ``episodes`` and ``episode_return`` in every iteration; outputs are
    the parameters in the end, by name. With ``init=False`` their first values are inputs (``Learner``).
    """
    expect_counts(iterations=iterations, count=count, steps=steps, epochs=epochs, minibatches=minibatches)
    size, rest = divmod(count * steps, minibatches)
    if rest:
        raise tp.errors.ProgramError(
            f"{count} environments times {steps} steps cannot be shared out among {minibatches} minibatches",
            places=[("here", tp.errors.user_line())],
            hint="minibatches has to divide count * steps",
        )
    expect_parts(env, count, policy=policy, critic=critic)
    policy, critic = policy or Policy(env), critic or Critic(env)
    with tp.Program("ppo") as prog:
        i, I = prog.dim("i")
        e, E = prog.dim("e")
        m, M = prog.dim("m")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        learner = Learner(ActorCritic(policy, critic), prog, i, (e, m), init)
        net, acting = learner.net, learner.acting

        # Acting
        play = Rollout(env, over=(i, t), batch=b)
        known = Running(prog, "observation", env.observation.shape, i) if normalise_observations else None
        observed = play.observation if known is None else known.normalised(play.observation)
        p = expect_distribution(acting.policy(observed), env)
        action = p.sample()
        made = play.step(action)
        led_to = made.next_observation if known is None else known.normalised(made.next_observation)
        if known is not None:
            known.learn(play.observation)
        reward = made.reward
        so_far = discounted_so_far(prog, made, (i, t), b, gamma) if normalise_rewards else None
        if so_far is not None:
            returns = Running(prog, "return", (), i)
            returns.learn(so_far)
            reward = returns.scaled(reward)
        value = expect_value(acting.critic(observed))
        ahead = acting.critic(led_to)
        advantage = gae(reward, value, ahead, made.terminated, made.truncated, t, gamma, lam)

        # Minibatches: all steps of all environments, in an order of every epoch's own
        order = tp.random.permutation(count * steps, domain=(i, e))
        chosen = order.space[m * size : (m + 1) * size]

        def minibatch(x: Tensor) -> Tensor:
            # One minibatch has all steps, and no order changes what is learned from it. Step by step it can be learned
            # from in blocks, and what was seen need not be on the device as a whole.
            if minibatches == 1:
                return tp.stop_gradient(x)
            together = x[i, 0:count, 0:steps]
            flat = together.reshape((count * steps, *together.shape[2:]))
            return tp.stop_gradient(flat.take(chosen, axis=0))

        def whole(x: Tensor) -> Tensor:
            """Something for every step of a minibatch, as one array."""
            return x[tuple(slice(0, d.bound) if d in (b, t) else d for d in x.domain)]

        seen, done = minibatch(observed), minibatch(action)
        A, v_before = minibatch(advantage), minibatch(value)
        G = A + v_before
        if normalise:
            A = (A - tp.mean(whole(A))) / (tp.std(whole(A)) + 1e-8)

        # Learning
        q = net.policy(seen)
        ratio = tp.exp(q.log_prob(done) - minibatch(p.log_prob(action)))
        policy_loss = -tp.mean(whole(tp.minimum(ratio * A, tp.clip(ratio, 1 - clip, 1 + clip) * A)))
        v = net.critic(seen)
        error = tp.square(v - G)
        if clip_value:
            error = tp.maximum(error, tp.square(v_before + tp.clip(v - v_before, -clip, clip) - G))
        value_loss = 0.5 * tp.mean(whole(error))
        loss = (
            policy_loss + value_weight * value_loss - weighted_entropy(entropy_weight, q, lambda x: tp.mean(whole(x)))
        )
        gradients = optim.clip_by_global_norm(tp.grad(loss, learner.parameters), most_norm)
        left = 1 - i.value.astype(tp.float32) / iterations if anneal else 1.0
        learner.update(optim.Adam(rate * left, epsilon=1e-5), gradients)

        prog.emit("loss", tp.mean(loss[i, 0:E, 0:M]))
        emit_episodes(prog, made, i)
        final = learner.final
        if known is not None:
            policy = Normalised(policy, env.observation.shape)
            final = {f"policy.{name}" if name.startswith("policy.") else name: x for name, x in final.items()}
            final |= {"policy.mean": known.mean.final, "policy.variance": known.variance.final}
        for name, parameter in final.items():
            prog.output(name, parameter)
    tensors = {"observation": play.observation, "action": action, "log_prob": p.log_prob(action), "value": value}
    tensors |= {"next_value": ahead, "advantage": advantage, "order": order, "loss": loss, **made._asdict()}
    if so_far is not None:
        tensors["so_far"] = so_far
    bounds = {I: iterations, E: epochs, M: minibatches, B: count, T: steps}
    return Algorithm(prog, bounds, tensors, env, policy, iterations, count * steps)
