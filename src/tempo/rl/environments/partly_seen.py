"""Environments of which a part is hidden, so that a policy has to remember."""

from __future__ import annotations

from collections.abc import Sequence

import tempo as tp
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Environment

Tensor = tp.RecurrentTensor


class PartlySeen(Environment):
    """Another environment, of whose observation (a vector) only these numbers are seen.

    ``rl.PartlySeen(rl.CartPole(), (0, 2))`` hides the speeds of cart and pole.
    """

    def __init__(self, env: Environment, seen: Sequence[int]) -> None:
        super().__init__(env.limit, env.dtype)
        if len(env.observation.shape) != 1:
            raise tp.errors.ShapeError(
                f"{type(env).__name__} has observations of the shape {env.observation.shape}, which is no vector",
                places=[("here", tp.errors.user_line())],
                hint="rl.PartlySeen sees some numbers of a vector, e.g. rl.PartlySeen(rl.CartPole(), (0, 2))",
            )
        self.env = env
        self.seen = tuple(seen)
        self.action = env.action
        self.observation = tp.spec((len(self.seen),), env.observation.dtype)

    def start(self, domain: Domain) -> Tensor:
        return self.env.start(domain)

    def observe(self, x: Tensor) -> Tensor:
        whole = self.env.observe(x)
        return tp.stack([whole.space[n] for n in self.seen])

    def dynamics(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.env.dynamics(x, action)
