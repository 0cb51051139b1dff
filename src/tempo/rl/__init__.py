"""Reinforcement learning: distributions, returns, environments and algorithms, written in Tempo's public API alone."""

from tempo.rl.algorithms import Algorithm, ppo, reinforce
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
from tempo.rl.learner import Learner
from tempo.rl.networks import Critic, Policy
from tempo.rl.returns import discounted, gae, n_step, td_lambda, vtrace

__all__ = [
    "Acrobot",
    "Algorithm",
    "Bernoulli",
    "Box",
    "CartPole",
    "Catch",
    "Categorical",
    "Critic",
    "Discrete",
    "Distribution",
    "Environment",
    "EnvironmentState",
    "Gymnasium",
    "Learner",
    "Normal",
    "Pendulum",
    "Policy",
    "Rollout",
    "Steps",
    "Synthetic",
    "TanhNormal",
    "Transition",
    "discounted",
    "gae",
    "kl",
    "n_step",
    "ppo",
    "reinforce",
    "td_lambda",
    "vtrace",
]
