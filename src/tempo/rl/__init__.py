"""Reinforcement learning: distributions, returns, environments and algorithms, written in Tempo's public API alone."""

from tempo.rl.distributions import Bernoulli, Categorical, Distribution, Normal, TanhNormal, kl
from tempo.rl.returns import discounted, gae, n_step, td_lambda, vtrace

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Normal",
    "TanhNormal",
    "discounted",
    "gae",
    "kl",
    "n_step",
    "td_lambda",
    "vtrace",
]
