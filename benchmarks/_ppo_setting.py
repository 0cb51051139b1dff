"""What all systems of benchmarks/ppo.py agree on."""

from __future__ import annotations

from dataclasses import dataclass

GAMMA, LAMBDA, CLIP, RATE = 0.99, 0.95, 0.2, 2.5e-4
VALUE, ENTROPY, MOST_NORM = 0.5, 0.01, 0.5
ADAM, ANNEAL = (0.9, 0.999), True


@dataclass(frozen=True)
class Setting:
    """Sizes of one case: one epoch of one minibatch, and separate networks of ``layers`` times ``width``."""

    envs: int = 512
    steps: int = 250
    width: int = 64
    layers: int = 2
    observation: tuple[int, ...] = (3, 4, 4)
    limit: int = 100
    iterations: int = 20
