"""Networks that remember: a policy and a critic, each with a recurrent cell."""

from __future__ import annotations

import math
from typing import Any

import tempo as tp
from tempo import nn
from tempo.rl.distributions import Distribution
from tempo.rl.environments.environment import Box
from tempo.rl.environments.gymnasium import expect_environment
from tempo.rl.networks import distribution_over, flat, outputs_for

Tensor = tp.RecurrentTensor


class Remembering(nn.Module):
    """From a vector, by way of a cell with ``hidden`` numbers, to ``outputs`` numbers."""

    def __init__(self, inputs: int, hidden: int, outputs: int, cell: str, gain: float) -> None:
        self.inward = nn.Linear(inputs, hidden)
        self.cell: nn.GRUCell | nn.LSTMCell = (nn.GRUCell if cell == "gru" else nn.LSTMCell)(hidden, hidden)
        self.outward = nn.Linear(hidden, outputs)
        self.outward.weight.init = nn.init.kaiming_uniform(gain)
        self.outward.bias.init = nn.init.zeros
        self.hidden = hidden

    def advance(self, x: Tensor, memory: Tensor) -> Tensor:
        x = tp.tanh(self.inward(x))
        if isinstance(self.cell, nn.GRUCell):
            return self.cell(x, memory)
        h, c = tp.split(memory, 2, axis=-1)
        return tp.concatenate(self.cell(x, (h, c)), axis=-1)

    def say(self, memory: Tensor) -> Tensor:
        """What follows from a memory, of which an LSTM shows the first half."""
        shown = memory if isinstance(self.cell, nn.GRUCell) else tp.split(memory, 2, axis=-1)[0]
        return self.outward(shown)


class RecurrentPolicy(nn.Module):
    """A policy and a critic that remember, each in a cell (``"gru"`` or ``"lstm"``) of ``hidden`` numbers.

    ``memory`` is a tensor (..., size) of both: ``advance(observation, memory)`` is the memory after an observation, and
    ``policy(memory)`` and ``value(memory)`` are what follows from it. An episode begins with a memory of zeros.
    """

    def __init__(self, env: Any, hidden: int = 64, cell: str = "gru") -> None:
        if cell not in ("gru", "lstm"):
            raise tp.errors.ProgramError(
                f"there is no cell '{cell}'",
                places=[("here", tp.errors.user_line())],
                hint='cells are "gru" and "lstm"',
            )
        expect_environment(env)
        self.shape = env.observation.shape
        self.size = 2 * hidden * (1 if cell == "gru" else 2)
        self.action = env.action
        outputs = outputs_for(env.action)
        # What the critic learns is large at first, and would drown what a shared cell learns of acting.
        self.actor = Remembering(math.prod(self.shape), hidden, outputs, cell, gain=0.01)
        self.critic = Remembering(math.prod(self.shape), hidden, 1, cell, gain=1.0)
        self.log_std: Any = nn.Parameter((outputs,), nn.init.zeros) if isinstance(env.action, Box) else None

    def advance(self, observation: Tensor, memory: Tensor) -> Tensor:
        """The memory after an observation."""
        x = flat(observation, self.shape)
        of_actor, of_critic = tp.split(memory, 2, axis=-1)
        return tp.concatenate([self.actor.advance(x, of_actor), self.critic.advance(x, of_critic)], axis=-1)

    def policy(self, memory: Tensor) -> Distribution:
        """The distribution to draw actions from."""
        return distribution_over(self.action, self.actor.say(tp.split(memory, 2, axis=-1)[0]), self.log_std)

    def value(self, memory: Tensor) -> Tensor:
        """What is yet to come, by the critic: shape (...)."""
        return tp.squeeze(self.critic.say(tp.split(memory, 2, axis=-1)[1]), -1)
