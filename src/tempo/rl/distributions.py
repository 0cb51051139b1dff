"""What policies draw actions from.

A distribution works at one point: its parameters have a shape like (actions,), batches and time are dims. (Leading axes
work as well.) ``sample(domain)`` draws anew at every point of ``domain``, by default of the parameters' own dims.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import Any

import tempo as tp

Tensor = tp.RecurrentTensor
Domain = tp.Dim | tuple[tp.Dim, ...] | None

# Stands for infinite logits, so that 0 times one is 0; a number that half precision has, too, stands for them there.
HUGE, HALF_HUGE = 1e30, 3e4


class Distribution(ABC):
    """The base of distributions."""

    @abstractmethod
    def sample(self, domain: Domain = None) -> Tensor:
        """A draw, its own at every point of ``domain``."""

    @abstractmethod
    def log_prob(self, action: Any) -> Tensor:
        """The logarithm of an action's probability, or density: shape (...), without the action's own axis."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The likeliest action."""

    def entropy(self) -> Tensor:
        """Shape (...). Not all distributions have it in closed form."""
        raise _unknown(f"the entropy of {type(self).__name__} has no closed form", "use the mean of -log_prob(sample)")


class Categorical(Distribution):
    """One of n: ``logits`` of shape (..., n), actions int32 of shape (...), from 0 to n - 1."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = tp.log_softmax(logits, axis=-1)

    def sample(self, domain: Domain = None) -> Tensor:
        return tp.random.categorical(self.logits, domain).astype(tp.int32)

    def log_prob(self, action: Any) -> Tensor:
        chosen = tp.take_along_axis(self.logits, tp.expand_dims(tp.astype(action, tp.int32), -1), axis=-1)
        return tp.squeeze(chosen, -1)

    def mode(self) -> Tensor:
        return tp.argmax(self.logits, axis=-1).astype(tp.int32)

    def entropy(self) -> Tensor:
        return -tp.sum(self._probabilities() * self._finite(), axis=-1)

    def kl(self, other: Categorical) -> Tensor:
        # Where p is 0, p log(p / q) is 0, whatever q is. Gradients go through both sides of a where: infinities must
        # not come to the subtraction at all.
        possible = self._probabilities() > 0
        terms = self._probabilities() * (self._finite() - tp.where(possible, other.logits, 0.0))
        return tp.sum(tp.where(possible, terms, 0.0), axis=-1)

    def _probabilities(self) -> Tensor:
        return tp.exp(self.logits)

    def _finite(self) -> Tensor:
        """Logits of -inf rule an action out; 0 times -inf would be nan."""
        finite: Tensor = tp.maximum(self.logits, -_huge(self.logits))
        return finite


class MultiCategorical(Distribution):
    """Several independent choices: ``logits`` (..., sum of counts), one after the other, actions int32 (..., n)."""

    def __init__(self, logits: Tensor, counts: Sequence[int]) -> None:
        if sum(counts) != logits.shape[-1]:
            raise tp.errors.ShapeError(
                f"MultiCategorical: {logits.shape[-1]} logits for choices of {', '.join(map(str, counts))}",
                places=[("here", tp.errors.user_line())],
                hint=f"these choices take {sum(counts)} logits: one for each that can be chosen",
            )
        ends = [sum(counts[:n]) for n in range(1, len(counts))]
        self.parts = [Categorical(part) for part in tp.split(logits, ends, axis=-1)]

    def sample(self, domain: Domain = None) -> Tensor:
        return tp.stack([part.sample(domain) for part in self.parts], axis=-1)

    def log_prob(self, action: Any) -> Tensor:
        each = tp.split(action, len(self.parts), axis=-1)
        return _total([part.log_prob(tp.squeeze(one, -1)) for part, one in zip(self.parts, each, strict=True)])

    def mode(self) -> Tensor:
        return tp.stack([part.mode() for part in self.parts], axis=-1)

    def entropy(self) -> Tensor:
        return _total([part.entropy() for part in self.parts])

    def kl(self, other: MultiCategorical) -> Tensor:
        return _total([p.kl(q) for p, q in zip(self.parts, other.parts, strict=True)])


class Bernoulli(Distribution):
    """n independent bits: ``logits`` of shape (..., n), actions of the same shape, bool or numbers 0 and 1."""

    def __init__(self, logits: Tensor) -> None:
        self.logits: Tensor = tp.clip(logits, -_huge(logits), _huge(logits))

    def sample(self, domain: Domain = None) -> Tensor:
        return tp.random.bernoulli(tp.sigmoid(self.logits), domain=domain)

    def log_prob(self, action: Any) -> Tensor:
        bits = tp.astype(action, self.logits.dtype)
        return tp.sum(bits * self.logits - tp.softplus(self.logits), axis=-1)

    def mode(self) -> Tensor:
        return self.logits > 0

    def entropy(self) -> Tensor:
        p = tp.sigmoid(self.logits)
        return tp.sum(tp.softplus(self.logits) - p * self.logits, axis=-1)

    def kl(self, other: Bernoulli) -> Tensor:
        # log p is -softplus(-logits), log(1 - p) is -softplus(logits): no large numbers are subtracted.
        ones = tp.sigmoid(self.logits) * (tp.softplus(-other.logits) - tp.softplus(-self.logits))
        zeros = tp.sigmoid(-self.logits) * (tp.softplus(other.logits) - tp.softplus(self.logits))
        return tp.sum(ones + zeros, axis=-1)


class Normal(Distribution):
    """n independent normal numbers: ``mean`` and ``std`` of shape (..., n), actions of the same shape.

    Samples are ``mean + std * noise``, so that gradients flow through them.
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean = mean
        self.std = std

    def sample(self, domain: Domain = None) -> Tensor:
        shape = (self.mean + self.std).shape
        return tp.random.normal(shape, domain, self.mean, self.std, self.mean.dtype)

    def log_prob(self, action: Any) -> Tensor:
        distance = (action - self.mean) / self.std
        return -tp.sum(0.5 * tp.square(distance) + tp.log(self.std) + 0.5 * math.log(2 * math.pi), axis=-1)

    def mode(self) -> Tensor:
        return self.mean

    def entropy(self) -> Tensor:
        return tp.sum(0.0 * self.mean + tp.log(self.std) + 0.5 * (1 + math.log(2 * math.pi)), axis=-1)

    def kl(self, other: Normal) -> Tensor:
        ratio = tp.square(self.std / other.std)
        distance = tp.square((self.mean - other.mean) / other.std)
        return 0.5 * tp.sum(ratio + distance - 1 - tp.log(ratio), axis=-1)


class TanhNormal(Distribution):
    """The tanh of ``Normal(mean, std)``: n numbers between -1 and 1, of shape (..., n).

    ``mode`` is the tanh of the mean, as is usual. (It is the median; the density may be higher elsewhere.)
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.normal = Normal(mean, std)

    def sample(self, domain: Domain = None) -> Tensor:
        return tp.tanh(self.normal.sample(domain))

    def sample_and_log_prob(self, domain: Domain = None) -> tuple[Tensor, Tensor]:
        """A draw of shape (..., n) and its ``log_prob`` of shape (...), exact also where tanh has rounded to 1."""
        before = self.normal.sample(domain)
        return tp.tanh(before), self._log_prob(before)

    def log_prob(self, action: Any) -> Tensor:
        # Actions that tanh has rounded to 1 count as the number before it.
        most = 1 - (2.0**-53 if self.normal.mean.dtype == tp.float64 else 2.0**-24)
        inside = tp.clip(action, -most, most)
        return self._log_prob(0.5 * (tp.log1p(inside) - tp.log1p(-inside)))

    def mode(self) -> Tensor:
        return tp.tanh(self.normal.mean)

    def kl(self, other: TanhNormal) -> Tensor:
        # Both went through the same function, which has an inverse: nothing was lost.
        return self.normal.kl(other.normal)

    def _log_prob(self, before: Tensor) -> Tensor:
        """log(1 - tanh(x)^2) is 2 (log 2 - x - softplus(-2 x)), which does not round to log(0)."""
        slope = 2 * (math.log(2) - before - tp.softplus(-2 * before))
        return self.normal.log_prob(before) - tp.sum(slope, axis=-1)


def kl(p: Any, q: Any) -> Tensor:
    """The Kullback-Leibler divergence of q from p, two distributions of one kind: shape (...)."""
    if type(p) is not type(q) or not hasattr(p, "kl"):
        names = f"{type(p).__name__} and {type(q).__name__}"
        raise _unknown(f"kl of {names} has no closed form", "use two distributions of the same kind")
    divergence: Tensor = p.kl(q)
    return divergence


def _huge(logits: Tensor) -> float:
    return HALF_HUGE if logits.dtype == tp.float16 else HUGE


def _total(tensors: Sequence[Tensor]) -> Tensor:
    return reduce(tp.add, tensors)


def _unknown(problem: str, hint: str) -> tp.errors.ProgramError:
    return tp.errors.ProgramError(problem, places=[("here", tp.errors.user_line())], hint=hint)
