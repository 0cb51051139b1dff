"""Running statistics against NumPy's, over all that came before; PPO with them."""

from __future__ import annotations

import numpy as np

import tempo as tp
from tempo import rl


def test_statistics_of_all_iterations_before() -> None:
    with tp.Program("running") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", (2,), (i, t))
        running = rl.Running(prog, "x", (2,), i)
        running.learn(x)
        prog.output("mean", running.mean)
        prog.output("variance", running.variance)
        prog.output("normalised", running.normalised(x))
    x = np.random.default_rng(0).normal(3, 2, (4, 50, 2)).astype(np.float32)
    for result in (prog.evaluate({I: 4, T: 50}, x=x), prog.compile({I: 4, T: 50}, backend="numpy")(x=x)):
        assert result.mean[0].tolist() == [0, 0] and result.variance[0].tolist() == [1, 1]
        for i in range(1, 4):
            before = x[:i].reshape(-1, 2)
            np.testing.assert_allclose(result.mean[i], before.mean(0), rtol=1e-3)
            np.testing.assert_allclose(result.variance[i], before.var(0), rtol=1e-3)
        np.testing.assert_allclose(
            result.normalised[3], (x[3] - result.mean[3]) / np.sqrt(result.variance[3]), rtol=1e-4
        )


def test_ppo_with_both() -> None:
    """Rewards of CartPole are 1: returns so far are 1, 1.5 and 1.75, and 1 again in the next episode."""
    env = rl.CartPole(limit=3)
    parts = {"policy": rl.Policy(env, hidden=(4,)), "critic": rl.Critic(env, hidden=(4,))}
    algorithm = rl.ppo(
        env,
        **parts,
        iterations=2,
        count=2,
        steps=6,
        epochs=1,
        minibatches=2,
        gamma=0.5,
        normalise_observations=True,
        normalise_rewards=True,
    )
    with algorithm.program as prog:
        observation, so_far = algorithm.tensors["observation"], algorithm.tensors["so_far"]
        prog.output("observation", observation)
        prog.output("so_far", so_far)
    result = prog.evaluate(algorithm.bounds)
    np.testing.assert_allclose(result.so_far[1, 0], [1, 1.5, 1.75, 1, 1.5, 1.75])
    seen = result.observation.reshape(-1, 4)
    np.testing.assert_allclose(result["policy.mean"], seen.mean(0), atol=1e-3)
    np.testing.assert_allclose(result["policy.variance"], seen.var(0), atol=1e-3)
    found = prog.compile(algorithm.bounds, backend="numpy")()
    for name, array in result.outputs.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)
    assert rl.evaluate(algorithm.policy, result.outputs, env, 2).lengths.tolist() == [3, 3]
