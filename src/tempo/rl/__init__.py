"""Reinforcement learning: distributions, returns, environments and algorithms, written in Tempo's public API alone."""

from tempo.rl.distributions import Bernoulli, Categorical, Distribution, Normal, TanhNormal, kl
from tempo.rl.environments import (
    Acrobot,
    Box,
    CartPole,
    Catch,
    Discrete,
    Environment,
    EnvironmentState,
    Gymnasium,
    Pendulum,
    Rollout,
    Steps,
    Synthetic,
    Transition,
)
from tempo.rl.returns import discounted, gae, n_step, td_lambda, vtrace

__all__ = [
    "Acrobot",
    "Bernoulli",
    "Box",
    "CartPole",
    "Catch",
    "Categorical",
    "Discrete",
    "Distribution",
    "Environment",
    "EnvironmentState",
    "Gymnasium",
    "Normal",
    "Pendulum",
    "Rollout",
    "Steps",
    "Synthetic",
    "TanhNormal",
    "Transition",
    "discounted",
    "gae",
    "kl",
    "n_step",
    "td_lambda",
    "vtrace",
]
