"""Small policies and critics, for environments as they are; any module with the same shapes does as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tempo as tp
from tempo import nn
from tempo.rl.distributions import Categorical, Distribution, MultiCategorical, Normal
from tempo.rl.environments.environment import Box, Discrete, MultiDiscrete
from tempo.rl.environments.gymnasium import expect_environment

Tensor = tp.RecurrentTensor


class Policy(nn.Module):
    """From an observation (..., *shape) to a distribution over the environment's actions.

    ``Categorical`` for actions that are counted, ``MultiCategorical`` for several of those, else ``Normal`` with a
    standard deviation that is a parameter.
    """

    def __init__(self, env: Any, hidden: Sequence[int] = (64, 64), activation: Callable[..., Tensor] = tp.tanh) -> None:
        expect_environment(env)
        self.shape = env.observation.shape
        self.action = env.action
        outputs = outputs_for(env.action)
        self.net = _network(math.prod(self.shape), hidden, outputs, activation, last_gain=0.01)
        self.log_std: Any = nn.Parameter((outputs,), nn.init.zeros) if isinstance(env.action, Box) else None

    def __call__(self, observation: Tensor) -> Distribution:
        return distribution_over(self.action, self.net(flat(observation, self.shape)), self.log_std)


def outputs_for(action: Discrete | MultiDiscrete | Box) -> int:
    """How many numbers a network gives for a distribution over such actions."""
    if isinstance(action, Discrete):
        return action.count
    return sum(action.counts) if isinstance(action, MultiDiscrete) else math.prod(action.shape)


def distribution_over(action: Discrete | MultiDiscrete | Box, y: Tensor, log_std: Any) -> Distribution:
    """The distribution that a network's numbers stand for."""
    if isinstance(action, Discrete):
        return Categorical(y)
    return MultiCategorical(y, action.counts) if isinstance(action, MultiDiscrete) else Normal(y, tp.exp(log_std))


class Critic(nn.Module):
    """From an observation (..., *shape) to its value (...)."""

    def __init__(self, env: Any, hidden: Sequence[int] = (64, 64), activation: Callable[..., Tensor] = tp.tanh) -> None:
        expect_environment(env)
        self.shape = env.observation.shape
        self.net = _network(math.prod(self.shape), hidden, 1, activation, last_gain=1.0)

    def __call__(self, observation: Tensor) -> Tensor:
        return tp.squeeze(self.net(flat(observation, self.shape)), -1)


class QNetwork(nn.Module):
    """From an observation (..., *shape) to what actions are worth: ``values``, (..., n).

    Called, it is a policy: a ``Categorical`` whose likeliest action is the best one.
    """

    def __init__(
        self, env: Any, hidden: Sequence[int] = (120, 84), activation: Callable[..., Tensor] = tp.tanh
    ) -> None:
        expect_environment(env)
        if not isinstance(env.action, Discrete):
            raise tp.errors.ProgramError(
                f"the actions are {env.action}: there is no value for each of them",
                places=[("here", tp.errors.user_line())],
                hint="Q-learning is for actions that are counted (rl.Discrete); rl.ppo takes others",
            )
        self.shape = env.observation.shape
        self.count = env.action.count
        self.net = _network(math.prod(self.shape), hidden, self.count, activation, last_gain=1.0)

    def values(self, observation: Tensor) -> Tensor:
        """What each action is worth: shape (..., actions)."""
        return self.net(flat(observation, self.shape))

    def __call__(self, observation: Tensor) -> Distribution:
        return Categorical(self.values(observation))


def _network(
    inputs: int, hidden: Sequence[int], outputs: int, activation: Callable[..., Tensor], last_gain: float
) -> nn.MLP:
    """Weights keep the size of what goes through, but for the last layer; nothing is preferred at first."""
    if not isinstance(hidden, Sequence):
        raise tp.errors.ProgramError(
            f"hidden is {hidden!r}, not the sizes of layers",
            places=[("here", tp.errors.user_line())],
            hint="hidden=(64, 64) are two layers of 64 numbers",
        )
    net = nn.MLP([inputs, *hidden, outputs], activation)
    for layer in net.layers:
        gain = last_gain if layer is net.layers[-1] else math.sqrt(2)
        layer.weight.init = nn.init.kaiming_uniform(gain)
        layer.bias.init = nn.init.zeros
    return net


def flat(observation: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """All axes of an observation as one."""
    leading = observation.shape[: observation.ndim - len(shape)]
    if observation.shape != (*leading, *shape):
        raise tp.errors.ShapeError(
            f"observations of the shape {observation.shape}: the network is for those of the shape {shape}",
            places=[("here", tp.errors.user_line())],
            hint="make the network for the environment that it acts in, e.g. rl.Policy(env)",
        )
    return observation.reshape((*leading, math.prod(shape))).astype(tp.float32)
