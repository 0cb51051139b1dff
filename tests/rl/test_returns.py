"""Returns against plain loops over steps, with episodes that end at random, on the oracle and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import rl

GAMMA, LAMBDA = 0.9, 0.8
Data = dict[str, Any]


def loop_discounted(d: Data) -> np.ndarray:
    found = np.zeros_like(d["reward"])
    ahead = d["next_value"][:, -1]
    for t in reversed(range(found.shape[1])):
        ahead = np.where(d["truncated"][:, t], d["next_value"][:, t], ahead)
        ahead = np.where(d["terminated"][:, t], 0, ahead)
        found[:, t] = ahead = d["reward"][:, t] + GAMMA * ahead
    return found


def loop_n_step(d: Data, n: int) -> np.ndarray:
    found = np.zeros_like(d["reward"])
    count, steps = found.shape
    for b in range(count):
        for t in range(steps):
            weight = 1.0
            for k in range(t, t + n):
                found[b, t] += weight * d["reward"][b, k]
                weight *= GAMMA
                if d["terminated"][b, k]:
                    break
                if d["truncated"][b, k] or k in (t + n - 1, steps - 1):
                    found[b, t] += weight * d["next_value"][b, k]
                    break
    return found


def loop_td_lambda(d: Data) -> np.ndarray:
    """The mean of n-step returns, by its definition: those that reach beyond the episode's end are all the same."""
    steps = d["reward"].shape[1]
    each = [loop_n_step(d, n) for n in range(1, steps + 1)]
    weights = [(1 - LAMBDA) * LAMBDA ** (n - 1) for n in range(1, steps + 1)]
    return sum(w * x for w, x in zip(weights, each, strict=True)) + LAMBDA**steps * each[-1]


def loop_gae(d: Data) -> np.ndarray:
    found = np.zeros_like(d["reward"])
    ahead = np.zeros(len(found))
    for t in reversed(range(found.shape[1])):
        follows = np.where(d["terminated"][:, t], 0, d["next_value"][:, t])
        delta = d["reward"][:, t] + GAMMA * follows - d["value"][:, t]
        ended = d["terminated"][:, t] | d["truncated"][:, t]
        found[:, t] = ahead = delta + GAMMA * LAMBDA * np.where(ended, 0, ahead)
    return found


def loop_vtrace(d: Data) -> tuple[np.ndarray, np.ndarray]:
    targets, advantages = np.zeros_like(d["reward"]), np.zeros_like(d["reward"])
    ratio = np.exp(d["log_ratio"])
    rho, c = np.minimum(1.2, ratio), LAMBDA * np.minimum(0.9, ratio)
    for b in range(len(targets)):
        for t in reversed(range(targets.shape[1])):
            v, last = d["value"][b], t == targets.shape[1] - 1
            follows = 0.0 if d["terminated"][b, t] else d["next_value"][b, t]
            delta = rho[b, t] * (d["reward"][b, t] + GAMMA * follows - v[t])
            if d["terminated"][b, t] or d["truncated"][b, t] or last:
                targets[b, t] = v[t] + delta
            else:
                targets[b, t] = v[t] + delta + GAMMA * c[b, t] * (targets[b, t + 1] - v[t + 1])
                follows = targets[b, t + 1]
            advantages[b, t] = rho[b, t] * (d["reward"][b, t] + GAMMA * follows - v[t])
    return targets, advantages


def random_episodes(count: int, steps: int, seed: int) -> Data:
    """Values follow from one step to the next within an episode, as a critic's do."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, count, steps)) < 0.2
    value, next_value = rng.normal(size=(2, count, steps))
    ended = (terminated | truncated)[:, :-1]
    next_value[:, :-1] = np.where(ended, next_value[:, :-1], value[:, 1:])
    data = {"terminated": terminated, "truncated": truncated, "value": value, "next_value": next_value}
    return data | {"reward": rng.normal(size=(count, steps)), "log_ratio": 0.5 * rng.normal(size=(count, steps))}


def build(n: int) -> Any:
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        names = ("reward", "value", "next_value", "log_ratio")
        reward, value, next_value, log_ratio = (prog.input(name, (), (b, t), "float64") for name in names)
        ends = [prog.input(name, (), (b, t), "bool") for name in ("terminated", "truncated")]
        targets, advantages = rl.vtrace(
            log_ratio, reward, value, next_value, *ends, t, GAMMA, LAMBDA, most_rho=1.2, most_c=0.9
        )
        results = {
            "discounted": rl.discounted(reward, *ends, t, GAMMA, next_value),
            "n_step": rl.n_step(reward, next_value, *ends, t, GAMMA, n),
            "td_lambda": rl.td_lambda(reward, next_value, *ends, t, GAMMA, LAMBDA, name="lambda_returns"),
            "gae": rl.gae(reward, value, next_value, *ends, t, GAMMA, LAMBDA),
            "vtrace": targets,
            "vtrace_advantages": advantages,
        }
        for name, result in results.items():
            prog.output(name, result)
    return prog, B, T


@pytest.mark.parametrize("n", [1, 3, 20])
def test_as_loops(n: int) -> None:
    prog, B, T = build(n)
    data = random_episodes(4, 9, seed=n)
    expected = {
        "discounted": loop_discounted(data),
        "n_step": loop_n_step(data, n),
        "td_lambda": loop_td_lambda(data),
        "gae": loop_gae(data),
        "vtrace": loop_vtrace(data)[0],
        "vtrace_advantages": loop_vtrace(data)[1],
    }
    bounds = {B: 4, T: 9}
    for result in (prog.evaluate(bounds, **data), prog.compile(bounds)(**data)):
        for name, value in expected.items():
            np.testing.assert_allclose(result[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_ends_by_hand() -> None:
    """Three steps: one ends the episode, one is cut off, one is the last that was made."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        terminated, truncated = (prog.input(name, (), t, "bool") for name in ("terminated", "truncated"))
        ends = terminated, truncated
        one = tp.constant(1.0)
        prog.output("returns", rl.discounted(one, *ends, t, 0.5, 8.0))
        prog.output("without", rl.discounted(one, *ends, t, 0.5, name="without"))
        prog.output("n_step", rl.n_step(one, 8.0, *ends, t, 0.5, 2))
        prog.output("advantages", rl.gae(one, 2.0, 8.0, *ends, t, 0.5, 1.0))
    result = prog.evaluate({T: 4}, terminated=[False, True, False, False], truncated=[False, False, True, False])
    np.testing.assert_allclose(result.returns, [1.5, 1, 5, 5])
    np.testing.assert_allclose(result.without, [1.5, 1, 1, 1])
    np.testing.assert_allclose(result.n_step, [1.5, 1, 5, 5])
    np.testing.assert_allclose(result.advantages, [1 + 4 - 2 - 0.5, -1, 3, 3])


def test_numbers_do_for_what_is_the_same_at_all_steps() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        prog.output("returns", rl.discounted(tp.constant(1.0), False, False, t, 0.5, 4.0))
        prog.output("n_step", rl.n_step(tp.constant(1.0), 0.0, False, False, t, 0.5, 2))
    result = prog.evaluate({T: 3})
    np.testing.assert_allclose(result.returns, [2.25, 2.5, 3])
    np.testing.assert_allclose(result.n_step, [1.5, 1.5, 1])


@pytest.mark.parametrize("number", [int, float, np.float64, np.float32, np.int64, np.array])
def test_numbers_of_python_and_numpy(number: Any) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        one, four = number(1), number(4)
        prog.output("returns", rl.discounted(one, False, False, t, 0.5, four))
        prog.output("n_step", rl.n_step(one, four, False, False, t, 0.5, 2))
        prog.output("gae", rl.gae(one, number(2), four, False, False, t, 0.5, 1.0))
        prog.output("vtrace", rl.vtrace(tp.constant(0.0), one, number(2), four, False, False, t, 0.5)[0])
    result = prog.evaluate({T: 3})
    np.testing.assert_allclose(result.returns, [2.25, 2.5, 3])
    np.testing.assert_allclose(result.n_step, [2.5, 2.5, 3])
    np.testing.assert_allclose(result.gae, [1.75, 1.5, 1])
    np.testing.assert_allclose(result.vtrace, [3.75, 3.5, 3])
    assert result.returns.dtype == result.n_step.dtype == np.float32


def test_returns_of_no_steps() -> None:
    with tp.Program() as prog, pytest.raises(tp.errors.ProgramError) as error:
        t, _ = prog.dim("t")
        rl.n_step(1.0, 0.0, False, False, t, 0.5, 0)
    assert error.value.message == "returns of n = 0 steps"
