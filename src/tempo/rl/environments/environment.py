"""What an environment is: where episodes start, and where a step leads to, as functions of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import tempo as tp
from tempo.rl.distributions import Domain

Tensor = tp.RecurrentTensor


@dataclass(frozen=True)
class Discrete:
    """Actions 0, ..., count - 1: int32 of shape ()."""

    count: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several actions at once, each counted: int32 of shape (n,), action k from 0 to counts[k] - 1."""

    counts: tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """Actions of numbers: floats of this shape, from low to high."""

    shape: tuple[int, ...]
    low: float
    high: float


class EnvironmentState(NamedTuple):
    """What an environment remembers."""

    x: Tensor
    """Where the episode is: a shape of the environment's own."""
    steps: Tensor
    """How many steps the episode has taken: shape (), int32."""


class Transition(NamedTuple):
    """What a step gives."""

    state: EnvironmentState
    observation: Tensor
    reward: Tensor
    """Shape ()."""
    terminated: Tensor
    """Shape (), bool: the episode has ended."""
    truncated: Tensor
    """Shape (), bool: the episode was cut off, after ``limit`` steps."""


class Environment(ABC):
    """The base of environments that are computed within the program, at one point: batches are dims.

    One of your own says where episodes start (``start``), what is seen of it (``observe``) and where an action leads
    (``dynamics``). Episodes are cut off after ``limit`` steps, if it is not None.
    """

    observation: tp.Spec
    action: Discrete | MultiDiscrete | Box

    def __init__(self, limit: int | None, dtype: Any) -> None:
        self.limit = limit
        self.dtype = dtype

    @abstractmethod
    def start(self, domain: Domain) -> Tensor:
        """Where an episode starts, drawn anew at every point of ``domain``."""

    @abstractmethod
    def observe(self, x: Tensor) -> Tensor:
        """What is seen there: of the shape and dtype of ``self.observation``."""

    @abstractmethod
    def dynamics(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where an action leads, the reward, and whether that ends the episode."""

    def reset(self, domain: Domain) -> EnvironmentState:
        """A new episode at every point of ``domain``."""
        return EnvironmentState(self._tensor(self.start(domain)), tp.zeros((), dtype=tp.int32))

    def step(self, state: EnvironmentState, action: Tensor) -> Transition:
        """Where an action leads. An episode that has ended has to be ``reset``."""
        x, reward, terminated = map(self._tensor, self.dynamics(state.x, action))
        self._expect("a reward", reward, "a number", reward.shape == () and reward.dtype != tp.bool_)
        self._expect("an end", terminated, "a bool", terminated.shape == () and terminated.dtype == tp.bool_)
        steps = state.steps + 1
        truncated = steps >= self.limit if self.limit is not None else tp.zeros((), dtype=tp.bool_)
        return Transition(EnvironmentState(x, steps), self.checked_observation(x), reward, terminated, truncated)

    def checked_observation(self, x: Tensor) -> Tensor:
        """What is seen there, ``observe(x)``, checked: networks are made for the shape of ``self.observation``."""
        found = self._tensor(self.observe(x))
        wanted = self.observation.shape
        self._expect("an observation", found, f"of the shape {wanted}, as its attribute says", found.shape == wanted)
        return found

    def _tensor(self, value: Any) -> Tensor:
        """What is the same at every point may be a number or an array."""
        if isinstance(value, Tensor):
            return value
        number: Tensor = tp.constant(value)
        return number.astype(self.dtype) if number.dtype == tp.float32 else number

    def _expect(self, what: str, found: Tensor, wanted: str, fits: bool) -> None:
        if not fits:
            raise tp.errors.ShapeError(
                f"{what} of {type(self).__name__} is {found.dtype.name} of the shape {found.shape}, not {wanted}",
                places=[("here", tp.errors.user_line())],
                hint="dynamics(x, action) gives the next x, a reward and a bool (the end); observe(x) what is seen",
            )
