"""Means and variances of all that was seen so far, as states of a program."""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo import nn
from tempo.rl.distributions import Distribution
from tempo.rl.environments import Steps

Tensor = tp.RecurrentTensor

# Numbers further from the mean than so many standard deviations are outliers, and cut off.
FURTHEST = 10.0


class Running:
    """Mean and variance of a tensor over (i, ...), of all iterations before i: 0 and 1 at first.

    ``learn(x)`` takes the values of an iteration in, once (Chan et al., 1979):

    mean' = mean + d n / N,  m2' = m2 + m2(x) + d^2 count n / N,  d = mean(x) - mean,  N = count + n
    """

    def __init__(self, prog: tp.Program, name: str, shape: tuple[Any, ...], i: tp.Dim) -> None:
        self.i = i
        self.mean = prog.state(f"{name}.mean", tp.zeros(shape), over=i)
        self.variance = prog.state(f"{name}.variance", tp.ones(shape), over=i)
        # As if the first values had been seen a little, so that nothing is divided by 0.
        self.count = prog.state(f"{name}.count", tp.constant(1e-4), over=i)

    def learn(self, x: Tensor) -> None:
        """Take the values of ``x`` in this iteration, over all of its other dims, into the statistics of the next."""
        together = x[tuple(d if d is self.i else slice(0, d.bound) for d in x.domain)].astype(tp.float32)
        axes = tuple(range(together.ndim - len(self.mean.shape)))
        n: Any = 1.0
        for d in x.domain:
            n = n if d is self.i else n * tp.index_value(d.bound).astype(tp.float32)
        total = self.count + n
        distance = tp.mean(together, axis=axes) - self.mean
        squares = self.variance * self.count + tp.var(together, axis=axes) * n
        self.mean.next = self.mean + distance * n / total
        self.variance.next = (squares + tp.square(distance) * self.count * n / total) / total
        self.count.next = total

    def normalised(self, x: Tensor) -> Tensor:
        """Less the mean, and divided by the standard deviation."""
        return _normalised(x, self.mean, self.variance)

    def scaled(self, x: Tensor) -> Tensor:
        """Divided by the standard deviation: what is positive stays so."""
        return tp.clip(x / tp.sqrt(self.variance + 1e-8), -FURTHEST, FURTHEST)


def discounted_so_far(prog: tp.Program, made: Steps, over: tuple[tp.Dim, tp.Dim], b: tp.Dim, gamma: float) -> Tensor:
    """The rewards of every episode up to each step, earlier ones discounted more: what returns vary like."""
    i, t = over
    dtype = made.reward.dtype
    start = prog.state("so_far.start", tp.zeros((), dtype=dtype), over=i, domain=b)
    before = prog.recurrent("so_far", (), tuple(d for d in prog.dims if d in (i, b, t)), dtype)
    total = made.reward + gamma * before
    kept = tp.where(made.terminated | made.truncated, 0.0, total)

    def at(step: Any) -> Tensor:
        return kept[tuple(step if d is t else d for d in kept.domain)]

    before[tuple(0 if d is t else d for d in before.domain)] = start
    before[t > 0] = at(t - 1)
    start.next = at(t.bound - 1)
    return total


class Normalised(nn.Module):
    """A policy on observations with a mean of 0 and a variance of 1, by a ``mean`` and a ``variance`` that are
    parameters."""

    def __init__(self, policy: nn.Module, shape: tuple[Any, ...]) -> None:
        self.mean: Any = nn.Parameter(shape, nn.init.zeros)
        self.variance: Any = nn.Parameter(shape, nn.init.constant(1.0))
        self.policy: Any = policy

    def __call__(self, observation: Tensor) -> Distribution:
        found: Distribution = self.policy(_normalised(observation, self.mean, self.variance))
        return found


def _normalised(x: Tensor, mean: Any, variance: Any) -> Tensor:
    apart = (x.astype(tp.float32) - mean) / tp.sqrt(variance + 1e-8)
    return tp.clip(apart, -FURTHEST, FURTHEST)
