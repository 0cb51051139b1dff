"""Environments, computed within the program or by Gymnasium, and the loop that acts in them."""

from tempo.rl.environments.acrobot import Acrobot
from tempo.rl.environments.cartpole import CartPole
from tempo.rl.environments.catch import Catch
from tempo.rl.environments.environment import (
    Box,
    Discrete,
    Environment,
    EnvironmentState,
    MultiDiscrete,
    Transition,
)
from tempo.rl.environments.gymnasium import Gymnasium
from tempo.rl.environments.partly_seen import PartlySeen
from tempo.rl.environments.pendulum import Pendulum
from tempo.rl.environments.rollout import Rollout, Steps
from tempo.rl.environments.synthetic import Synthetic

__all__ = [
    "Acrobot",
    "Box",
    "CartPole",
    "Catch",
    "Discrete",
    "Environment",
    "EnvironmentState",
    "Gymnasium",
    "MultiDiscrete",
    "PartlySeen",
    "Pendulum",
    "Rollout",
    "Steps",
    "Synthetic",
    "Transition",
]
