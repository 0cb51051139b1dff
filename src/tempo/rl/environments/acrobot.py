"""Two links of which only the joint between them is driven (Sutton, 1996), as Gymnasium's Acrobot-v1."""

from __future__ import annotations

import math
from typing import Any

import tempo as tp
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Discrete, Environment

Tensor = tp.RecurrentTensor

GRAVITY, STEP = 9.8, 0.2
FASTEST = (4 * math.pi, 9 * math.pi)


class Acrobot(Environment):
    """Swing the tip above the bar: torque -1 (0), 0 (1) or 1 (2) between the links, -1 for every step until then.

    Observation (6,): cosine and sine of either angle, and both angular speeds. The links are 1 long and weigh 1.
    """

    action = Discrete(3)

    def __init__(self, limit: int | None = 500, dtype: Any = tp.float32) -> None:
        super().__init__(limit, dtype)
        self.observation = tp.spec((6,), dtype)

    def start(self, domain: Domain) -> Tensor:
        return tp.random.uniform((4,), domain, -0.1, 0.1, self.dtype)

    def observe(self, x: Tensor) -> Tensor:
        upper, lower = x.space[0], x.space[1]
        return tp.stack([tp.cos(upper), tp.sin(upper), tp.cos(lower), tp.sin(lower), x.space[2], x.space[3]])

    def dynamics(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torque = (action - 1).astype(self.dtype)
        # One step of the classical Runge-Kutta method.
        k1 = _slopes(x, torque)
        k2 = _slopes(x + 0.5 * STEP * k1, torque)
        k3 = _slopes(x + 0.5 * STEP * k2, torque)
        k4 = _slopes(x + STEP * k3, torque)
        after = x + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        angles = tp.mod(after.space[:2] + math.pi, 2 * math.pi) - math.pi
        most = tp.constant(FASTEST, dtype=self.dtype)
        after = tp.concatenate([angles, tp.clip(after.space[2:], -most, most)])
        upper, lower = after.space[0], after.space[1]
        above = -tp.cos(upper) - tp.cos(upper + lower) > 1
        return after, tp.where(above, 0.0, -1.0).astype(self.dtype), above


def _slopes(x: Tensor, torque: Tensor) -> Tensor:
    """How fast angles and speeds change: equations (11.4) and following of Sutton and Barto's book."""
    upper, lower, upper_speed, lower_speed = (x.space[n] for n in range(4))
    cosine, sine = tp.cos(lower), tp.sin(lower)
    d1 = 3.5 + cosine
    d2 = 1.25 + 0.5 * cosine
    phi2 = 0.5 * GRAVITY * tp.sin(upper + lower)
    phi1 = -0.5 * lower_speed * (lower_speed + 2 * upper_speed) * sine + 1.5 * GRAVITY * tp.sin(upper) + phi2
    pull = torque + d2 / d1 * phi1 - 0.5 * tp.square(upper_speed) * sine - phi2
    lower_turn = pull / (1.25 - tp.square(d2) / d1)
    upper_turn = -(d2 * lower_turn + phi1) / d1
    return tp.stack([upper_speed, lower_speed, upper_turn, lower_turn])
