"""Learning from a few steps ahead, in blocks of steps: what is kept does not grow with the episode."""

from __future__ import annotations

import numpy as np
import pytest

import tempo as tp
from tempo import rl
from tempo.random import RANDOM_BITS
from tempo.runtime.executable import Executable
from tempo.schedule.looptree import Loop, computes


def compiled(steps: int, **options: object) -> Executable:
    env = rl.Synthetic((5, 5), limit=7)
    networks = rl.Policy(env, (4,)), rl.Critic(env, (4,))
    algorithm = rl.reinforce(env, *networks, n=2, iterations=2, count=3, steps=steps)
    return algorithm.program.compile(algorithm.bounds, **options)


@pytest.mark.parametrize("steps", [24, 27])
def test_blocks_learn_the_same(steps: int) -> None:
    expected, found = (
        [record.value for record in compiled(steps, plan=plan)().emits["loss"]] for plan in (None, tp.Plan({"t": 4}))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_blocks_keep_no_more_observations_of_longer_episodes() -> None:
    """The environments' last states are what the next iteration begins with: the end of a window, not of a row."""

    def observations(steps: int) -> int:
        run = compiled(steps, backend="numpy", plan=tp.Plan({"t": 4}))
        inside = {c.node for c in computes(t for t in run.schedule.trees if isinstance(t, Loop) and t.dim.name == "i")}
        stores = (store for node, store in run.storage.stores.items() if node in inside)
        # Small draws of all steps are made at once.
        return sum(s.bytes for s in stores if s.node.shape[-2:] == (5, 5) and s.node.op is not RANDOM_BITS)

    assert observations(24) == observations(48)
