"""PPO with a policy that remembers: back-propagation through time, through all steps of an iteration.

As ``ppo``, but a minibatch m has all steps of some environments, and the network goes through them in order again, from
the memory with which the iteration began, which is emptied where episodes end:

    memory[0] = memory when the iteration began
    memory[t] = advance(o[t], memory[t - 1], or zeros where step t - 1 ended its episode)
"""

from __future__ import annotations

import tempo as tp
from tempo import nn, optim
from tempo.rl.algorithms.algorithm import (
    Algorithm,
    emit_episodes,
    expect_distribution,
    expect_parts,
    weighted_entropy,
)
from tempo.rl.counts import expect_counts
from tempo.rl.environments import Environment, Gymnasium, Rollout
from tempo.rl.learner import Learner
from tempo.rl.recurrent import RecurrentPolicy
from tempo.rl.returns import gae

Tensor = tp.RecurrentTensor


class Whole(nn.Module):
    """All that is learned: parameters are named ``policy.`` and their name."""

    def __init__(self, policy: RecurrentPolicy) -> None:
        self.policy = policy


def recurrent_ppo(
    env: Environment | Gymnasium,
    policy: RecurrentPolicy | None = None,
    *,
    iterations: int,
    count: int,
    steps: int,
    epochs: int = 4,
    minibatches: int = 4,
    gamma: float = 0.99,
    lam: float = 0.95,
    rate: float = 1e-3,
    anneal: bool = True,
    clip: float = 0.2,
    value_weight: float = 0.5,
    entropy_weight: float = 0.01,
    most_norm: float = 0.5,
) -> Algorithm:
    """``count`` environments act ``steps`` steps in every iteration, and what they saw is learned from in
    ``epochs`` times ``minibatches`` updates, each from all steps of some of the environments.

    ``anneal`` lets the learning rate go to 0 with the iterations. Emits ``loss``, ``episodes`` and ``episode_return``
    in every iteration; outputs are the parameters in the end, by name.
    """
    expect_counts(iterations=iterations, count=count, steps=steps, epochs=epochs, minibatches=minibatches)
    size, rest = divmod(count, minibatches)
    if rest:
        raise tp.errors.ProgramError(
            f"{count} environments cannot be shared out among {minibatches} minibatches",
            places=[("here", tp.errors.user_line())],
            hint="a minibatch has all steps of some environments: minibatches has to divide count",
        )
    expect_parts(env, count, policy=policy)
    policy = policy or RecurrentPolicy(env)
    with tp.Program("recurrent_ppo") as prog:
        i, I = prog.dim("i")
        e, E = prog.dim("e")
        m, M = prog.dim("m")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        learner = Learner(Whole(policy), prog, i, (e, m))
        net, acting = learner.net.policy, learner.acting.policy

        # Acting
        play = Rollout(env, over=(i, t), batch=b)
        start = prog.state("memory.start", tp.zeros((policy.size,)), over=i, domain=b)
        before = prog.recurrent("memory", (policy.size,), (i, b, t))
        before[i, b, 0] = start
        after = acting.advance(play.observation, before)
        p = expect_distribution(acting.policy(after), env)
        action = p.sample()
        made = play.step(action)
        ended = made.terminated | made.truncated
        kept = tp.where(ended, 0.0, after)
        before[t > 0] = kept[i, b, t - 1]
        start.next = kept[i, b, T - 1]
        value = acting.value(after)
        ahead = acting.value(acting.advance(made.next_observation, after))
        advantage = gae(made.reward, value, ahead, made.terminated, made.truncated, t, gamma, lam)

        # Minibatches: all steps of some environments, others in every epoch
        chosen = tp.random.permutation(count, domain=(i, e)).space[m * size : (m + 1) * size]

        def minibatch(x: Tensor) -> Tensor:
            """What the environments that were chosen have, at a step t or at all."""
            if b in x.domain:
                x = x[tuple(slice(0, B) if d is b else d for d in x.domain)].take(chosen, axis=0)
            return tp.stop_gradient(x)

        # Learning: the network goes through the steps once more
        again = prog.recurrent("again", (size, policy.size), (i, e, m, t))
        again[i, e, m, 0] = minibatch(start)
        remembered = net.advance(minibatch(play.observation), again)
        emptied = tp.where(tp.expand_dims(minibatch(ended), -1), 0.0, remembered)
        again[t > 0] = emptied[i, e, m, t - 1]
        q = net.policy(remembered)
        v = net.value(remembered)

        A, v_before = minibatch(advantage), minibatch(value)
        G = A + v_before
        every = A[i, e, m, 0:T]
        A = (A - tp.mean(every)) / (tp.std(every) + 1e-8)
        ratio = tp.exp(q.log_prob(minibatch(action)) - minibatch(p.log_prob(action)))
        gain = tp.minimum(ratio * A, tp.clip(ratio, 1 - clip, 1 + clip) * A)
        error = 0.5 * tp.square(v - G)
        parts = value_weight * error - gain - weighted_entropy(entropy_weight, q)
        loss = tp.mean(parts[i, e, m, 0:T])
        gradients = optim.clip_by_global_norm(tp.grad(loss, learner.parameters), most_norm)
        left = 1 - i.value.astype(tp.float32) / iterations if anneal else 1.0
        learner.update(optim.Adam(rate * left, epsilon=1e-5), gradients)

        prog.emit("loss", tp.mean(loss[i, 0:E, 0:M]))
        emit_episodes(prog, made, i)
        for name, parameter in learner.final.items():
            prog.output(name, parameter)
    tensors = {"observation": play.observation, "action": action, "memory": before, "value": value, "loss": loss}
    tensors |= {"advantage": advantage, "chosen": chosen, **made._asdict()}
    bounds = {I: iterations, E: epochs, M: minibatches, B: count, T: steps}
    return Algorithm(prog, bounds, tensors, env, policy, iterations, count * steps)
