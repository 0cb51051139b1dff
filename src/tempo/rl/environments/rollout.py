"""Acting: the loop of a policy and an environment, over iterations i and steps t, as recurrences.

    play = rl.Rollout(env, over=(i, t), batch=b)
    action = rl.Categorical(policy(play.observation)).sample()
    steps = play.step(action)

Episodes that end start again by themselves, and go on from one iteration to the next.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import tempo as tp
from tempo.rl.environments.environment import Box, Discrete, Environment, EnvironmentState
from tempo.rl.environments.gymnasium import Gymnasium, expect_environment

Tensor = tp.RecurrentTensor


class Steps(NamedTuple):
    """What every step gave: tensors over the dims of the rollout, or without dims where it is always the same."""

    reward: Tensor
    """Shape (), float32 or what the environment's dtype is."""
    terminated: Tensor
    """Shape (), bool: this step ended its episode."""
    truncated: Tensor
    """Shape (), bool: this step's episode was cut off."""
    next_observation: Tensor
    """What the step led to: where an episode ended, its final observation, not the first of the next one."""
    episode_return: Tensor
    """Shape (): the sum of rewards of the episode up to and with this step."""


class Rollout:
    """Acting in ``env`` over ``(i, t)``, or ``t`` alone, in ``batch`` environments side by side.

    ``observation`` is what every step acts on; ``step(action)``, called once, says what comes of it.
    """

    observation: Tensor

    def __init__(
        self,
        env: Environment | Gymnasium,
        over: tp.Dim | tuple[tp.Dim, ...],
        batch: tp.Dim | tuple[tp.Dim, ...] = (),
        name: str = "env",
    ) -> None:
        expect_environment(env)
        self.env = env
        self.over = over if isinstance(over, tuple) else (over,)
        self.batch = batch if isinstance(batch, tuple) else (batch,)
        self.name = name
        self._starts: dict[str, tp.State] = {}
        self._stepped = False
        if len(self.over) not in (1, 2) or not all(isinstance(d, tp.Dim) for d in self.over):
            raise tp.errors.DomainError(
                f"a rollout goes over iterations and steps, or steps alone, not over {', '.join(map(str, self.over))}",
                places=[("here", tp.errors.user_line())],
                hint="rl.Rollout(env, over=(i, t), batch=b)",
            )
        self.program = self.over[0].program
        self.domain = tuple(d for d in self.program.dims if d in self.over + self.batch)
        if isinstance(env, Environment):
            first = env.reset(self.batch)
            self._state = EnvironmentState(self._carried("x", first.x), self._carried("steps", first.steps))
            self.observation = env.checked_observation(self._state.x)
        else:
            self.observation = self._carried("observation", env.reset(self.batch))

    def step(self, action: Tensor) -> Steps:
        """What comes of acting so at every step."""
        env = self.env
        if self._stepped:
            raise tp.errors.ProgramError(
                "a rollout makes one step at every point: step was called a second time",
                places=[("here", tp.errors.user_line())],
                hint="its tensors go over all steps already; another rl.Rollout, with another name, acts beside it",
            )
        self._stepped = True
        action = self._checked(action)
        if isinstance(env, Environment):
            after, seen, reward, terminated, truncated = env.step(self._state, action)
            ended = terminated | truncated
            fresh = env.reset(self.domain)
            for carried, going_on, anew in zip(self._state, after, fresh, strict=True):
                self._continue(carried, tp.where(ended, anew, going_on).astype(carried.dtype))
        else:
            on, seen, reward, terminated, truncated = env.step(action, self.over, self.batch)
            ended = terminated | truncated
            self._continue(self.observation, on)
        before = self._carried("episode_return", tp.zeros((), dtype=reward.dtype))
        total = before + reward
        self._continue(before, tp.where(ended, 0.0, total).astype(reward.dtype))
        return Steps(reward, terminated, truncated, seen, total)

    def _checked(self, given: Any) -> Tensor:
        """An action of the shape and kind that the environment takes. Policies give numbers in one row."""
        action: Tensor = given if isinstance(given, Tensor) else tp.constant(given, program=self.program)
        wanted = self.env.action
        counted = not isinstance(wanted, Box)
        shape = (
            () if isinstance(wanted, Discrete) else wanted.shape if isinstance(wanted, Box) else (len(wanted.counts),)
        )
        if isinstance(wanted, Box) and action.shape == (math.prod(shape),):
            action = action.reshape(shape)
        if action.shape != shape or (counted and not np.issubdtype(action.dtype, np.integer) and action.dtype != bool):
            kind = "integers" if counted else "numbers"
            raise tp.errors.ShapeError(
                f"the actions are {action.dtype.name} of the shape {action.shape}; "
                f"those of the environment, {wanted}, are {kind} of the shape {shape}",
                places=[("here", tp.errors.user_line())],
                hint="rl.Policy(env) gives a distribution over the actions that an environment takes",
            )
        return action

    def _carried(self, name: str, first: Any) -> Tensor:
        """A tensor that is ``first`` at the first step of all, and goes on from iteration to iteration."""
        name = f"{self.name}.{name}"
        x = self.program.recurrent(name, first.shape, self.domain, first.dtype)
        *outer, t = self.over
        if outer:
            # What an iteration starts from, as a tensor of its own: x itself is not kept until the next one.
            first = self._starts[name] = self.program.state(f"{name}.start", first, over=outer, domain=self.batch)
        x[_at(self.domain, t, 0)] = first
        return x

    def _continue(self, x: Tensor, after: Tensor) -> None:
        """``after`` is what x is at the next step."""
        t = self.over[-1]
        x[t > 0] = after[_at(after.domain, t, t - 1)]
        if x.name in self._starts:
            self._starts[x.name].next = after[_at(after.domain, t, t.bound - 1)]


def _at(domain: tuple[Any, ...], t: tp.Dim, index: Any) -> tuple[Any, ...]:
    """An index at another step of t, and here over all other dims."""
    return tuple(index if d is t else d for d in domain)
