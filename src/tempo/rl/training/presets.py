"""Environments by name, and settings with which algorithms are known to learn in them."""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo.rl.environments import Acrobot, CartPole, Catch, Environment, Gymnasium, Pendulum

# Environments within the program, by the name of what they are like in Gymnasium, without its version.
WITHIN: dict[str, type[Environment]] = {
    "Acrobot": Acrobot,
    "CartPole": CartPole,
    "Catch": Catch,
    "Pendulum": Pendulum,
}

# ``total`` is the number of steps of environments in all; the rest are arguments of the algorithm. (Those of ``dqn``
# have no steps: an iteration is one.)
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "": {"total": 500_000, "count": 8, "steps": 128},
        "Acrobot": {"total": 400_000, "count": 16, "steps": 128, "rate": 1e-3},
        "CartPole": {"total": 300_000, "count": 8, "steps": 128, "rate": 2.5e-3},
        "Pendulum": {
            "total": 300_000,
            "count": 16,
            "steps": 128,
            "epochs": 8,
            "gamma": 0.9,
            "rate": 2e-3,
            "clip_value": False,  # values go down to -160
            "entropy_weight": 0.0,
        },
    },
    "recurrent_ppo": {
        "": {"total": 500_000, "count": 16, "steps": 64},
        "CartPole": {"total": 500_000, "count": 16, "steps": 64, "rate": 1.2e-3},
    },
    "a2c": {
        "": {"total": 500_000, "count": 16, "steps": 8},
        "CartPole": {"total": 300_000, "count": 16, "steps": 32, "rate": 3e-3},
    },
    "dqn": {
        "": {"total": 500_000, "count": 4},
        "CartPole": {
            "total": 500_000,
            "count": 10,
            "replay": 1000,
            "batch": 13,
            "rate": 2.5e-4,
            "target_rate": 0.02,
            "double": False,
            "exploration": 0.5,
            "warmup": 1000,
        },
    },
    "reinforce": {
        "": {"total": 500_000, "count": 16, "steps": 64},
        "CartPole": {"total": 200_000, "count": 16, "steps": 64},
    },
}


def make(name: str, count: int, seed: int | None = None) -> Environment | Gymnasium:
    """The environment of this name: ``"CartPole"`` within the program, ``"CartPole-v1"`` that of Gymnasium."""
    if name in WITHIN:
        make_one: Any = WITHIN[name]
        env: Environment = make_one()
        return env
    return Gymnasium(name, count, seed)


def preset(algorithm: str, env: str) -> dict[str, Any]:
    """Settings for an algorithm and an environment by name: ``total`` steps, and arguments of the algorithm."""
    if algorithm not in PRESETS:
        raise tp.errors.ProgramError(
            f"there are no settings for an algorithm '{algorithm}'", hint=f"algorithms are {', '.join(PRESETS)}"
        )
    known = PRESETS[algorithm]
    kind, _, _ = env.rpartition("-v")
    return {**known[""], **known.get(kind or env, {})}
