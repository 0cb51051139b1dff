"""What functions that build a training program give."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import tempo as tp
from tempo import nn
from tempo.rl.environments import Environment, Gymnasium, Steps

Tensor = tp.RecurrentTensor


class Algorithm(NamedTuple):
    """A training program, the bounds to compile it with, and its tensors by name, for results of your own."""

    program: tp.Program
    bounds: dict[Any, int]
    tensors: dict[str, Tensor]
    env: Environment | Gymnasium
    policy: nn.Module
    """What acts when all is learned; its parameters are outputs of the program, named ``policy.`` and their name."""
    iterations: int
    steps: int
    """How many steps of environments one iteration makes."""


def expect_counts(**counts: Any) -> None:
    """Raise an error unless there is at least one of each."""
    for name, count in counts.items():
        if not isinstance(count, int | np.integer) or count < 1:
            raise tp.errors.ProgramError(
                f"{name} is {count!r}",
                places=[("here", tp.errors.user_line())],
                hint=f"{name} is an integer, 1 or more",
            )


def emit_episodes(prog: tp.Program, steps: Steps, i: tp.Dim) -> None:
    """Emit, for every iteration i, how many ``episodes`` ended and their mean ``episode_return`` (nan if none did)."""
    ended = (steps.terminated | steps.truncated).astype(tp.float32)
    # Where episodes never end, nothing here goes over the dims of the rollout.
    ended = tp.full(ended.shape, ended, domain=steps.episode_return.domain)
    total = ended * steps.episode_return

    def everywhere(x: Tensor) -> Tensor:
        return tp.sum(x[tuple(d if d is i else slice(0, d.bound) for d in x.domain)])

    episodes = everywhere(ended)
    prog.emit("episodes", episodes)
    prog.emit("episode_return", tp.where(episodes > 0, everywhere(total) / tp.maximum(episodes, 1.0), float("nan")))
