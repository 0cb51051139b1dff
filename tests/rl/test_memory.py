"""Memory follows the algorithm: what looks n steps ahead needs n steps, what looks ahead to the end needs the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import rl

BUDGET = 16 * 2**30


def planned(steps: int, n: int | None, side: int = 128, algorithm: str = "reinforce", plan: Any = None) -> Any:
    """What the compiler plans for large observations, without running anything."""
    env = rl.Synthetic((3, side, side))
    networks: Any = rl.Policy(env), rl.Critic(env)
    sizes: Any = {"iterations": 3, "count": 256, "steps": steps}
    if algorithm == "ppo":
        made = rl.ppo(env, *networks, epochs=1, minibatches=1, **sizes)
    else:
        made = rl.reinforce(env, *networks, n=n, **sizes)
    return made.program.compile(made.bounds, backend="numpy", memory=BUDGET, plan=plan)


@pytest.mark.parametrize("n", [1, 64])
def test_n_step_returns_take_the_same_memory_for_any_number_of_steps(n: int) -> None:
    """A little more where ends of episodes, which no action changes here, are computed beforehand: that fits."""
    short, long = (planned(steps, n) for steps in (1000, 4000))
    for run in (short, long):
        assert run.plan.host == ()
        assert run.storage.peak <= BUDGET
    # Blocks are as large as the budget allows.
    assert short.plan.blocks["t"] == long.plan.blocks["t"] > 1
    for plan in (tp.Plan(blocks={"i": 1, "t": 1}), tp.Plan(blocks={"i": 1, "t": 8})):
        assert planned(1000, n, plan=plan).storage.peak == planned(4000, n, plan=plan).storage.peak


def test_returns_of_all_steps_are_offloaded() -> None:
    run = planned(1000, None)
    seen = 1000 * 256 * 3 * 128 * 128 * 4
    hosted = sum(store.bytes for store in run.storage.stores.values() if store.host)
    assert run.storage.peak <= BUDGET < seen <= hosted <= 2.1 * seen


def test_ppo_is_offloaded_where_observations_do_not_fit() -> None:
    """What one minibatch is learned from was one array, which nothing could cut."""
    run = planned(1000, None, algorithm="ppo")
    assert run.storage.peak <= BUDGET
    assert run.plan.host
    assert not planned(1000, None, side=8, algorithm="ppo").plan.host


@pytest.mark.parametrize("n", [2, None])
def test_what_is_learned_does_not_depend_on_the_budget(n: int | None) -> None:
    env = rl.Synthetic((3, 8, 8), limit=7)
    algorithm = rl.reinforce(
        env, rl.Policy(env, [4]), rl.Critic(env, [4]), iterations=2, count=4, steps=64, n=n, rate=1e-3
    )
    whole = algorithm.program.compile(algorithm.bounds)
    limited = algorithm.program.compile(algorithm.bounds, memory=int(0.4 * 64 * 4 * 768 + 130_000))
    assert sum(limited._machine.memory().values()) < sum(whole._machine.memory().values()) / 4
    expected, found = whole(), limited()
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
