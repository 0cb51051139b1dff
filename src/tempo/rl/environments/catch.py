"""A ball to catch (Mnih et al., 2014): a small board, for algorithms that look at pictures."""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Discrete, Environment

Tensor = tp.RecurrentTensor


class Catch(Environment):
    """A ball falls a row a step; move the paddle in the last row left (0), not at all (1) or right (2).

    Observation (rows, columns): 1 where the ball and where the paddle is. In the last row the episode ends, with a
    reward of 1 if the paddle is under the ball, else -1.
    """

    action = Discrete(3)

    def __init__(self, rows: int = 10, columns: int = 5, dtype: Any = tp.float32) -> None:
        super().__init__(None, dtype)
        self.rows = rows
        self.columns = columns
        self.observation = tp.spec((rows, columns), dtype)

    def start(self, domain: Domain) -> Tensor:
        """Row and column of the ball, and column of the paddle: shape (3,), int32."""
        column = tp.random.randint(0, self.columns, domain=() if domain is None else domain)
        return tp.stack([0 * column, column, 0 * column + self.columns // 2])

    def observe(self, x: Tensor) -> Tensor:
        row, column, paddle = (x.space[n] for n in range(3))
        ball = tp.expand_dims(tp.equal(tp.arange(self.rows), row), 1) & tp.equal(tp.arange(self.columns), column)
        last = tp.expand_dims(tp.equal(tp.arange(self.rows), self.rows - 1), 1)
        board: Tensor = ball | (last & tp.equal(tp.arange(self.columns), paddle))
        return board.astype(self.dtype)

    def dynamics(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row, column, paddle = x.space[0] + 1, x.space[1], x.space[2]
        paddle = tp.clip(paddle + action.astype(tp.int32) - 1, 0, self.columns - 1)
        landed = row == self.rows - 1
        reward = tp.where(landed, tp.where(paddle == column, 1.0, -1.0), 0.0).astype(self.dtype)
        return tp.stack([row, column, paddle]), reward, landed
