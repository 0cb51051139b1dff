"""A pendulum to swing up, as Gymnasium's Pendulum-v1."""

from __future__ import annotations

import math
from typing import Any

import tempo as tp
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Box, Environment

Tensor = tp.RecurrentTensor

GRAVITY, STEP, FASTEST, STRONGEST = 10.0, 0.05, 8.0, 2.0


class Pendulum(Environment):
    """Turn the pendulum, which is too heavy to be lifted at once: an action (1,), the torque, from -2 to 2.

    Observation (3,): cosine and sine of the angle from upright, and the angular speed. The reward is
    -(angle^2 + 0.1 speed^2 + 0.001 torque^2). Episodes do not end, they are cut off.
    """

    action = Box((1,), -STRONGEST, STRONGEST)

    def __init__(self, limit: int | None = 200, dtype: Any = tp.float32) -> None:
        super().__init__(limit, dtype)
        self.observation = tp.spec((3,), dtype)

    def start(self, domain: Domain) -> Tensor:
        return tp.random.uniform((2,), domain, -1.0, 1.0, self.dtype) * tp.constant([math.pi, 1.0], dtype=self.dtype)

    def observe(self, x: Tensor) -> Tensor:
        angle, speed = x.space[0], x.space[1]
        return tp.stack([tp.cos(angle), tp.sin(angle), speed])

    def dynamics(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = x.space[0], x.space[1]
        torque = tp.clip(action.space[0], -STRONGEST, STRONGEST).astype(self.dtype)
        from_upright = tp.mod(angle + math.pi, 2 * math.pi) - math.pi
        cost = tp.square(from_upright) + 0.1 * tp.square(speed) + 0.001 * tp.square(torque)
        faster = tp.clip(speed + STEP * (1.5 * GRAVITY * tp.sin(angle) + 3.0 * torque), -FASTEST, FASTEST)
        return tp.stack([angle + STEP * faster, faster]), -cost, tp.zeros((), dtype=tp.bool_)
