"""Reinforcement learning: distributions, returns, environments and algorithms, written in Tempo's public API alone."""

from tempo.rl.distributions import Bernoulli, Categorical, Distribution, Normal, TanhNormal, kl

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Normal",
    "TanhNormal",
    "kl",
]
