"""Returns and advantages: what follows a step, discounted, up to the end of its episode.

All are functions of tensors over ``t`` (and any other dims), which share these arguments:

    reward       r[t], what step t gave
    value        v[t], the critic's value of the observation that step t acted on
    next_value   the critic's value of the observation that step t led to. Where an episode ended, that is its final
                 observation, not the first one of the next episode
    terminated   bool: step t ended its episode, and nothing follows
    truncated    bool: step t's episode was cut off; what would have followed is worth next_value
    t            the dim that time is

So ``next_value`` counts at truncations and at the last step of t, never at terminations. With ``o`` as observations and
``final`` as what steps led to, it is ``critic(final)``. What is the same at all steps may be a number, Python's or
NumPy's. Returns are defined by cases under ``name``, which two calls in one program cannot share. Gradients flow
through them: what is a target is ``tp.stop_gradient(...)`` of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tempo as tp

Tensor = tp.RecurrentTensor


def discounted(
    reward: Any,
    terminated: Any,
    truncated: Any,
    t: tp.Dim,
    gamma: float,
    next_value: Any = 0.0,
    name: str = "returns",
) -> Tensor:
    """All that follows: G[t] = r[t] + gamma G[t + 1]."""
    return td_lambda(reward, next_value, terminated, truncated, t, gamma, 1.0, name)


def n_step(reward: Any, next_value: Any, terminated: Any, truncated: Any, t: tp.Dim, gamma: float, n: int) -> Tensor:
    """What n steps give, and the value of what they lead to:

    R[t] = r[t] + ... + gamma^(n - 1) r[t + n - 1] + gamma^n next_value[t + n - 1]
    """
    if n < 1:
        raise tp.errors.ProgramError(
            f"returns of n = {n} steps", places=[("here", tp.errors.user_line())], hint="n is 1 or more"
        )
    reward, next_value = _tensors(t, reward, next_value)
    goes_on, cut = _ends(terminated, truncated, reward.dtype)
    keep = _over(t, gamma * goes_on)
    gain = _over(t, reward + gamma * cut * next_value)
    ahead = _over(t, next_value)
    end = tp.min(t + n, t.bound)
    # The first step counts in full, the one k steps later by the k factors before it.
    later = tp.cumprod(_at(keep, t, slice(t, end - 1)), axis=0) * _at(gain, t, slice(t + 1, end))
    rest: Tensor = tp.prod(_at(keep, t, slice(t, end)), axis=0) * _at(ahead, t, end - 1)
    return gain + tp.sum(later, axis=0) + rest


def td_lambda(
    reward: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    t: tp.Dim,
    gamma: float,
    lam: float,
    name: str = "returns",
) -> Tensor:
    """The mean of all n-step returns, weighted by (1 - lambda) lambda^(n - 1):

    G[t] = r[t] + gamma ((1 - lambda) next_value[t] + lambda G[t + 1])
    """
    reward, next_value = _tensors(t, reward, next_value)
    goes_on, cut = _ends(terminated, truncated, reward.dtype)
    ahead = _over(t, next_value)
    gain = reward + gamma * (cut + (1 - lam) * goes_on) * ahead
    here, _ = _backwards(name, t, gain, gamma * lam * goes_on, _at(ahead, t, t.bound - 1))
    return here


def gae(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    t: tp.Dim,
    gamma: float,
    lam: float,
    name: str = "advantages",
) -> Tensor:
    """Generalised advantage estimation:

    delta[t] = r[t] + gamma next_value[t] - v[t]
    A[t] = delta[t] + gamma lambda A[t + 1]
    """
    reward, next_value = _tensors(t, reward, next_value)
    goes_on, cut = _ends(terminated, truncated, reward.dtype)
    delta = reward + gamma * (goes_on + cut) * next_value - value
    here, _ = _backwards(name, t, delta, gamma * lam * goes_on, 0.0)
    return here


def vtrace(
    log_ratio: Tensor,
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    t: tp.Dim,
    gamma: float,
    lam: float = 1.0,
    most_rho: float = 1.0,
    most_c: float = 1.0,
    name: str = "vtrace",
) -> tuple[Tensor, Tensor]:
    """V-trace (IMPALA): targets for the critic and advantages for the policy, from what another policy did.

    ``log_ratio`` is log pi(a) - log mu(a), of the policy that learns and the one that acted.

    rho[t] = min(most_rho, pi / mu), c[t] = lambda min(most_c, pi / mu)
    vs[t] - v[t] = rho[t] (r[t] + gamma next_value[t] - v[t]) + gamma c[t] (vs[t + 1] - v[t + 1])
    A[t] = rho[t] (r[t] + gamma vs[t + 1] - v[t])
    """
    reward, next_value = _tensors(t, reward, next_value)
    goes_on, cut = _ends(terminated, truncated, reward.dtype)
    ratio = tp.exp(log_ratio)
    rho, c = tp.minimum(most_rho, ratio), lam * tp.minimum(most_c, ratio)
    delta = rho * (reward + gamma * (goes_on + cut) * next_value - value)
    correction, correction_ahead = _backwards(name, t, delta, gamma * goes_on * c, 0.0)
    # vs[t + 1] is next_value[t] and its correction, which is 0 behind the last step.
    target = (goes_on + cut) * next_value + goes_on * correction_ahead
    return value + correction, rho * (reward + gamma * target - value)


def _ends(terminated: Any, truncated: Any, dtype: Any) -> tuple[Tensor, Tensor]:
    """1 where the episode goes on, and 1 where it is only cut off; 0 elsewhere."""
    terminated, truncated = tp.astype(terminated, tp.bool_), tp.astype(truncated, tp.bool_)
    return (~(terminated | truncated)).astype(dtype), (truncated & ~terminated).astype(dtype)


def _backwards(name: str, t: tp.Dim, gain: Tensor, keep: Tensor, last: Any) -> tuple[Tensor, Tensor]:
    """x[t] = gain[t] + keep[t] x[t + 1], with x[T] = last: x[t] and x[t + 1], both for the steps before T."""
    like = _over(t, gain + keep)
    x = like.program.recurrent(name, like.shape, like.domain, like.dtype)
    x[tuple(t.bound if d is t else d for d in like.domain)] = tp.astype(last, like.dtype)
    ahead = _at(x, t, t + 1)
    here = gain + keep * ahead
    x[like.domain] = here
    return here, ahead


def _over(t: tp.Dim, x: Any) -> Tensor:
    """x as a tensor over t, and over its other dims."""
    return tp.full(x.shape, x, domain=t)


def _tensors(t: tp.Dim, reward: Any, next_value: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors: numbers have the dtype that the reward has."""

    def tensor(x: Any, dtype: Any) -> Tensor:
        return x if isinstance(x, Tensor) else tp.full(np.shape(x), tp.constant(x, dtype, program=t.program), domain=t)

    reward = tensor(reward, tp.float32)
    return reward, tensor(next_value, reward.dtype)


def _at(x: Tensor, t: tp.Dim, index: Any) -> Tensor:
    """x at other steps of t, and here over its other dims."""
    return x[tuple(index if d is t else d for d in x.domain)]
