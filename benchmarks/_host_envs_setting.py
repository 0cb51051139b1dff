"""What both systems of benchmarks/host_envs.py agree on, beside the numbers of PPO in ``_ppo_setting``."""

from __future__ import annotations

from dataclasses import dataclass

EPOCHS, MINIBATCHES = 4, 4


@dataclass(frozen=True)
class Setting:
    """Sizes of one case: CleanRL's for CartPole, but for the number of environments."""

    envs: int
    steps: int = 128
    hidden: tuple[int, ...] = (64, 64)
    name: str = "CartPole-v1"
    iterations: int = 10
