"""A world of any size, for measurements."""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Discrete, Environment

Tensor = tp.RecurrentTensor


class Synthetic(Environment):
    """An observation of any shape, which decays and is pushed by one of ``actions``: x' = 0.95 x + 0.1 push.

    The push goes from -0.5 (action 0) to 0.5 (the last one). The reward is minus the mean square of the observation.
    """

    def __init__(
        self, shape: tuple[int, ...] = (4,), actions: int = 2, limit: int | None = 100, dtype: Any = tp.float32
    ) -> None:
        super().__init__(limit, dtype)
        self.observation = tp.spec(shape, dtype)
        self.action = Discrete(actions)
        self.last = actions - 1

    def start(self, domain: Domain) -> Tensor:
        return tp.random.normal(self.observation.shape, domain, dtype=self.dtype)

    def observe(self, x: Tensor) -> Tensor:
        return x

    def dynamics(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        push = action.astype(self.dtype) / max(self.last, 1) - 0.5
        after = 0.95 * x + 0.1 * push
        return after, -tp.mean(tp.square(after)), tp.zeros((), dtype=tp.bool_)
