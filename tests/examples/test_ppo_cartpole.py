"""The example of PPO: it learns, and the policy acts."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tempo import rl

EXAMPLE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "examples" / "ppo_cartpole.py")))


def test_a_policy_acts() -> None:
    """One that always pushes to the right does not keep the pole up for long."""
    shapes = {f"policy.{name}": p.shape for name, p in rl.Policy(rl.CartPole()).parameters().items()}
    parameters = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    parameters["policy.net.layers.2.bias"] = np.array([0, 1], np.float32)
    lengths = EXAMPLE.act(parameters)
    assert lengths.shape == (16,)
    assert lengths.min() >= 8
    assert lengths.max() <= 11


@pytest.mark.slow
def test_it_learns(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = EXAMPLE.act(EXAMPLE.train())
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert lengths.mean() > 300
