"""Deep Q-learning (Mnih et al., 2015), with double Q-learning (van Hasselt et al., 2016).

    loss = mean(huber(r + gamma (1 - terminated) q_target(o', a') - q(o, a))),  a' = argmax q(o')

over transitions (o, a, r, o') from the last ``replay`` steps of every environment. The replay memory is nothing but the
past: ``x[i - replay + 1 : i + 1]`` is what was seen, and ``.take(which)`` some of it.
"""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo import optim
from tempo.rl.algorithms.algorithm import Algorithm, emit_episodes, expect_parts
from tempo.rl.counts import expect_counts
from tempo.rl.environments import Environment, Gymnasium, Rollout
from tempo.rl.networks import QNetwork

Tensor = tp.RecurrentTensor


def dqn(
    env: Environment | Gymnasium,
    network: QNetwork | None = None,
    *,
    iterations: int,
    count: int,
    replay: int = 10_000,
    batch: int = 32,
    gamma: float = 0.99,
    rate: float = 1e-3,
    anneal: bool = True,
    target_rate: float = 0.003,
    double: bool = True,
    first_epsilon: float = 1.0,
    last_epsilon: float = 0.05,
    exploration: float = 0.3,
    warmup: int = 500,
    most_norm: float = 10.0,
) -> Algorithm:
    """``count`` environments make one step in every iteration, and the network one update from ``batch`` earlier steps
    of each of them, after ``warmup`` iterations.

    Actions are random with a probability that goes from ``first_epsilon`` to ``last_epsilon`` in the first part
    (``exploration``) of the iterations. The target network follows by ``target_rate`` in every iteration. ``double``
    lets the network itself say what the best next action is, and only the target network what it is worth. Emits
    ``loss``, ``episodes`` and ``episode_return`` in every iteration; outputs are the parameters in the end, by name.
    """
    expect_counts(iterations=iterations, count=count, replay=replay, batch=batch)
    expect_parts(env, count, network=network)
    network = network or QNetwork(env)
    with tp.Program("dqn") as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        with prog.training(over=i):
            q: Any = network.declare(prog, "policy")
            target: Any = network.declare(prog, "target")

        # Acting
        play = Rollout(env, over=i, batch=b)
        progress = i.value.astype(tp.float32) / iterations
        epsilon = optim.linear(first_epsilon, last_epsilon, exploration * iterations)(i.value)
        explores = tp.random.uniform((), (i, b)) < epsilon
        anything = tp.random.randint(0, network.count, (), (i, b))
        action = tp.where(explores, anything, q(play.observation).mode()).astype(tp.int32)
        made = play.step(action)

        # Replay: steps of the last iterations, chosen anew in every one
        first = tp.max(0, i - replay + 1)
        known = tp.index_value(i + 1 - first).astype(tp.float32)
        which = tp.minimum(tp.floor(tp.random.uniform((batch,), (i, b)) * known), known - 1).astype(tp.int32)

        def replayed(x: Tensor) -> Tensor:
            if i not in x.domain:  # the same at every step, as the reward of CartPole is
                return x
            past = x[tuple(slice(first, i + 1) if d is i else d for d in x.domain)]
            return tp.stop_gradient(past.take(which, axis=0))

        seen, done, after = replayed(play.observation), replayed(action), replayed(made.next_observation)
        reward, ended = replayed(made.reward), replayed(made.terminated)

        # Learning
        there = target.values(after)
        best = tp.argmax(q.values(after) if double else there, axis=-1)
        worth = reward + gamma * (1 - ended.astype(tp.float32)) * _of(there, best)
        error = _of(q.values(seen), done) - tp.stop_gradient(worth)
        size = tp.abs(error)
        huber = tp.where(size < 1, 0.5 * tp.square(error), size - 0.5)
        loss = tp.mean(huber[i, 0:B])
        parameters: Any = {name: value for name, value in prog.params.items() if name.startswith("policy.")}
        gradients = optim.clip_by_global_norm(tp.grad(loss, parameters), most_norm)
        left = 1 - progress if anneal else 1.0
        optim.Adam(rate * left * (i.value >= warmup).astype(tp.float32)).update(parameters, gradients)
        for name, parameter in parameters.items():
            follower: Any = prog.params[f"target{name.removeprefix('policy')}"]
            # The same at first; then it follows.
            ahead = parameter.next
            follower.next = tp.where(i.value == 0, ahead, follower + target_rate * (ahead - follower))

        prog.emit("loss", loss)
        emit_episodes(prog, made, i)
        for name, parameter in parameters.items():
            prog.output(name, parameter.final)
    tensors = {"observation": play.observation, "action": action, "which": which, "epsilon": epsilon, "loss": loss}
    tensors |= made._asdict()
    return Algorithm(prog, {I: iterations, B: count}, tensors, env, network, iterations, count)


def _of(values: Tensor, action: Tensor) -> Tensor:
    """The values (n, actions) of these actions (n,)."""
    chosen = tp.take_along_axis(values, tp.expand_dims(action.astype(tp.int32), -1), axis=-1)
    return tp.squeeze(chosen, -1)
