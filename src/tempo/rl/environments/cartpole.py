"""A pole on a cart (Barto, Sutton and Anderson, 1983), as Gymnasium's CartPole-v1."""

from __future__ import annotations

import math
from typing import Any

import tempo as tp
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Discrete, Environment

Tensor = tp.RecurrentTensor

GRAVITY, FORCE, STEP = 9.8, 10.0, 0.02
POLE, TOTAL, HALF_LENGTH = 0.1, 1.1, 0.5
FURTHEST, STEEPEST = 2.4, 12 * math.pi / 180


class CartPole(Environment):
    """Push the cart left (0) or right (1), so that the pole stays up: a reward of 1 for every step.

    Observation (4,): position, speed, angle, angular speed. Episodes end where the cart is further than 2.4 from the
    middle, or the pole more than 12 degrees from upright.
    """

    action = Discrete(2)

    def __init__(self, limit: int | None = 500, dtype: Any = tp.float32) -> None:
        super().__init__(limit, dtype)
        self.observation = tp.spec((4,), dtype)

    def start(self, domain: Domain) -> Tensor:
        return tp.random.uniform((4,), domain, -0.05, 0.05, self.dtype)

    def observe(self, x: Tensor) -> Tensor:
        return x

    def dynamics(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, speed, angle, spin = (x.space[n] for n in range(4))
        sine, cosine = tp.sin(angle), tp.cos(angle)
        force = tp.where(action == 1, FORCE, -FORCE).astype(self.dtype)
        push = (force + POLE * HALF_LENGTH * tp.square(spin) * sine) / TOTAL
        turn = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4 / 3 - POLE * tp.square(cosine) / TOTAL))
        drive = push - POLE * HALF_LENGTH * turn * cosine / TOTAL
        after = tp.stack([position + STEP * speed, speed + STEP * drive, angle + STEP * spin, spin + STEP * turn])
        fallen = (tp.abs(after.space[0]) > FURTHEST) | (tp.abs(after.space[2]) > STEEPEST)
        return after, tp.ones((), dtype=self.dtype), fallen
