"""Algorithms: a PPO update against plain PyTorch, and policies that learn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tempo as tp
from tempo import nn, rl

COUNT, STEPS, EPOCHS, MINIBATCHES, ITERATIONS = 3, 8, 2, 3, 2
GAMMA, LAMBDA, RATE, CLIP = 0.9, 0.8, 1e-2, 0.1


class TorchPPO:
    """PPO as one would write it in PyTorch, on what the program saw and did."""

    def __init__(self, initial: dict[str, np.ndarray]) -> None:
        self.parameters = {name: torch.tensor(array, requires_grad=True) for name, array in initial.items()}
        self.optimiser = torch.optim.Adam(self.parameters.values(), lr=RATE, eps=1e-5)

    def net(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weights = [self.parameters[f"{name}.net.layers.{n}.{part}"] for n in (0, 1) for part in ("weight", "bias")]
        return torch.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]

    def policy(self, x: torch.Tensor) -> Any:
        y = self.net("policy", x)
        if "policy.log_std" not in self.parameters:
            return torch.distributions.Categorical(logits=y)
        normal = torch.distributions.Normal(y, self.parameters["policy.log_std"].exp())
        return torch.distributions.Independent(normal, 1)

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return self.net("critic", x).squeeze(-1)

    def iteration(self, progress: float, data: dict[str, torch.Tensor]) -> None:
        self.optimiser.param_groups[0]["lr"] = RATE * (1 - progress)
        seen, action, reward = data["observation"], data["action"], data["reward"]
        with torch.no_grad():
            value, ahead = self.value(seen), self.value(data["next_observation"])
            log_prob = self.policy(seen).log_prob(action)
            advantage = torch.zeros_like(value)
            last = torch.zeros(COUNT)
            for t in reversed(range(STEPS)):
                delta = reward[:, t] + GAMMA * ahead[:, t] * ~data["terminated"][:, t] - value[:, t]
                going_on = ~(data["terminated"][:, t] | data["truncated"][:, t])
                advantage[:, t] = last = delta + GAMMA * LAMBDA * going_on * last
            target = advantage + value
        flat = {"seen": seen, "action": action, "log_prob": log_prob, "A": advantage, "G": target, "v": value}
        flat = {name: x.flatten(0, 1) for name, x in flat.items()}
        for order in data["order"]:
            for chosen in order.long().split(COUNT * STEPS // MINIBATCHES):
                self.update(**{name: x[chosen] for name, x in flat.items()})

    def update(self, seen: Any, action: Any, log_prob: Any, A: Any, G: Any, v: Any) -> None:
        A = (A - A.mean()) / (A.std(correction=0) + 1e-8)
        p = self.policy(seen)
        ratio = (p.log_prob(action) - log_prob).exp()
        policy_loss = torch.max(-A * ratio, -A * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        new = self.value(seen)
        clipped = v + (new - v).clamp(-CLIP, CLIP)
        value_loss = 0.5 * torch.max((new - G) ** 2, (clipped - G) ** 2).mean()
        self.optimiser.zero_grad()
        (policy_loss + 0.5 * value_loss - 0.01 * p.entropy().mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 0.5)
        self.optimiser.step()


@pytest.mark.parametrize("env", [rl.CartPole(limit=5), rl.Pendulum(limit=5)], ids=["discrete", "continuous"])
def test_ppo_as_pytorch(env: rl.Environment) -> None:
    """Two iterations of two epochs of three minibatches: the same parameters in the end."""
    policy, critic = rl.Policy(env, hidden=(8,)), rl.Critic(env, hidden=(8,))
    algorithm = rl.ppo(
        env,
        policy,
        critic,
        iterations=ITERATIONS,
        count=COUNT,
        steps=STEPS,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        gamma=GAMMA,
        lam=LAMBDA,
        rate=RATE,
        clip=CLIP,
        init=False,
    )
    data = ("observation", "action", "reward", "terminated", "truncated", "next_observation", "order")
    rng = np.random.default_rng(0)
    initial = {
        f"{part}.{name}": 0.5 * rng.normal(size=parameter.shape).astype(np.float32)
        for part, module in (("policy", policy), ("critic", critic))
        for name, parameter in module.parameters().items()
    }
    with algorithm.program as prog:
        for name in data:
            prog.output(f"data.{name}", algorithm.tensors[name])
    run = prog.compile(algorithm.bounds, backend="numpy")
    result = run(**{f"initial.{name}": array for name, array in initial.items()})

    theirs = TorchPPO(initial)
    # What is the same everywhere has no dims: the reward of CartPole, the terminations of Pendulum.
    seen = {name: np.asarray(result[f"data.{name}"]) for name in data}
    full = {name: x if x.ndim else np.full((ITERATIONS, COUNT, STEPS), x) for name, x in seen.items()}
    for i in range(ITERATIONS):
        theirs.iteration(i / ITERATIONS, {name: torch.tensor(x[i]) for name, x in full.items()})
    for name, parameter in theirs.parameters.items():
        assert np.abs(result[name] - initial[name]).max() > 1e-3
        np.testing.assert_allclose(result[name], parameter.detach(), atol=1e-5)


def mean_return(emits: dict[str, list[Any]], last: int) -> float:
    """The mean return of the episodes that ended in the last iterations."""
    counts, returns = (
        np.array([record.value for record in emits[name][-last:]]) for name in ("episodes", "episode_return")
    )
    return float(np.nansum(counts * returns) / counts.sum())


@pytest.mark.slow
def test_ppo_learns() -> None:
    algorithm = rl.ppo(rl.CartPole(), iterations=50, count=8, steps=64, rate=2.5e-3)
    emits = algorithm.program.compile(algorithm.bounds)().emits
    assert float(emits["episode_return"][0].value) < 50
    assert mean_return(emits, last=10) > 150


@pytest.mark.slow
@pytest.mark.parametrize("n", [None, 8])
def test_reinforce_learns(n: int | None) -> None:
    algorithm = rl.reinforce(rl.CartPole(), iterations=40, count=16, steps=64, n=n)
    emits = algorithm.program.compile(algorithm.bounds)().emits
    assert float(emits["episode_return"][0].value) < 50
    assert mean_return(emits, last=10) > 100


@pytest.mark.slow
def test_a2c_learns() -> None:
    algorithm = rl.a2c(rl.CartPole(), iterations=600, count=16, steps=8)
    emits = algorithm.program.compile(algorithm.bounds)().emits
    assert mean_return(emits, last=50) > 200


@pytest.mark.slow
def test_dqn_learns() -> None:
    algorithm = rl.dqn(rl.CartPole(), iterations=12_000, count=4, anneal=False)
    emits = algorithm.program.compile(algorithm.bounds)().emits
    assert mean_return(emits, last=2000) > 100


@pytest.mark.slow
def test_recurrent_ppo_learns_what_is_hidden() -> None:
    env = rl.PartlySeen(rl.CartPole(), (0, 2))
    algorithm = rl.recurrent_ppo(env, iterations=50, count=16, steps=64, rate=2.5e-3)
    emits = algorithm.program.compile(algorithm.bounds)().emits
    assert mean_return(emits, last=10) > 120


def compiled_as_evaluated(algorithm: rl.Algorithm) -> None:
    found = algorithm.program.compile(algorithm.bounds, backend="numpy")()
    expected = algorithm.program.evaluate(algorithm.bounds)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)
        assert np.abs(array).max() > 0


def test_a2c_compiled_as_evaluated() -> None:
    env = rl.CartPole(limit=5)
    parts = {"policy": rl.Policy(env, hidden=(4,)), "critic": rl.Critic(env, hidden=(4,))}
    compiled_as_evaluated(rl.a2c(env, **parts, iterations=3, count=2, steps=4))


@pytest.mark.parametrize("double", [False, True])
def test_dqn_compiled_as_evaluated(double: bool) -> None:
    """More iterations than the replay memory holds."""
    env = rl.CartPole(limit=5)
    network = rl.QNetwork(env, hidden=(4,))
    compiled_as_evaluated(rl.dqn(env, network, iterations=9, count=2, replay=4, batch=3, warmup=2, double=double))


def test_dqn_explores_less_and_less() -> None:
    algorithm = rl.dqn(rl.CartPole(), iterations=10, count=1, exploration=0.5, first_epsilon=1.0, last_epsilon=0.1)
    with algorithm.program as prog:
        prog.output("epsilon", algorithm.tensors["epsilon"])
    epsilon = prog.evaluate(algorithm.bounds).epsilon
    np.testing.assert_allclose(epsilon, [1, 0.82, 0.64, 0.46, 0.28, 0.1, 0.1, 0.1, 0.1, 0.1], rtol=1e-5)


def test_dqn_needs_actions_that_are_counted() -> None:
    with pytest.raises(tp.errors.ProgramError, match="there is no value for each of them"):
        rl.dqn(rl.Pendulum(), iterations=1, count=1)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_ppo_compiled_as_evaluated(cell: str) -> None:
    env = rl.PartlySeen(rl.CartPole(limit=3), (0, 2))
    policy = rl.RecurrentPolicy(env, 3, cell)
    compiled_as_evaluated(rl.recurrent_ppo(env, policy, iterations=2, count=2, steps=4, epochs=2, minibatches=2))


@pytest.mark.parametrize(("limit", "empty"), [(1, [0, 1, 2, 3]), (2, [0, 2]), (3, [0, 3])])
def test_memory_is_emptied_where_episodes_end(limit: int, empty: list[int]) -> None:
    env = rl.PartlySeen(rl.CartPole(limit=limit), (0, 2))
    policy = rl.RecurrentPolicy(env, 3)
    algorithm = rl.recurrent_ppo(env, policy, iterations=1, count=1, steps=4, epochs=1, minibatches=1)
    with algorithm.program as prog:
        prog.output("memory", algorithm.tensors["memory"])
    memory = prog.evaluate(algorithm.bounds).memory[0, 0]
    assert [t for t in range(4) if not memory[t].any()] == empty


def test_environments_that_cannot_be_shared_out() -> None:
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.recurrent_ppo(rl.CartPole(), iterations=1, count=3, steps=5, minibatches=2)
    assert error.value.message == "3 environments cannot be shared out among 2 minibatches"


@pytest.mark.parametrize("n", [None, 3])
def test_reinforce_compiled_as_evaluated(n: int | None) -> None:
    env = rl.Catch(rows=4, columns=3)
    parts = {"policy": rl.Policy(env, hidden=(8,)), "critic": rl.Critic(env, hidden=(8,))}
    algorithm = rl.reinforce(env, **parts, iterations=3, count=4, steps=6, n=n)
    found = algorithm.program.compile(algorithm.bounds, backend="numpy")()
    expected = algorithm.program.evaluate(algorithm.bounds)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)
    for a, b in zip(found.emits["episodes"], expected.emits["episodes"], strict=True):
        assert a.value == b.value == 8


def test_minibatches_that_do_not_come_out_even() -> None:
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.ppo(rl.CartPole(), iterations=1, count=3, steps=5, minibatches=4)
    assert error.value.message == "3 environments times 5 steps cannot be shared out among 4 minibatches"


class Pair(NamedTuple):
    first: Any
    second: Any


class Sum(nn.Module):
    def __init__(self) -> None:
        self.pair = Pair(nn.Parameter((), nn.init.ones), nn.Parameter((), nn.init.ones))


def test_a_learner_replaces_parameters_in_named_tuples() -> None:
    with tp.Program() as prog:
        i, _ = prog.dim("i")
        e, _ = prog.dim("e")
        learner = rl.Learner(Sum(), prog, i, (e,))
    assert learner.net.pair == Pair(*learner.parameters.values())
    assert learner.acting.pair.first.domain == (i,)


def test_dqn_that_does_not_explore() -> None:
    algorithm = rl.dqn(rl.CartPole(), iterations=3, count=1, exploration=0, last_epsilon=0.1)
    with algorithm.program as prog:
        prog.output("epsilon", algorithm.tensors["epsilon"])
    np.testing.assert_allclose(prog.evaluate(algorithm.bounds).epsilon, [0.1, 0.1, 0.1], rtol=1e-6)


ON_POLICY = ("iterations", "count", "steps")
COUNTS = [
    *((rl.a2c, name) for name in ON_POLICY),
    *((rl.reinforce, name) for name in ON_POLICY),
    *((make, name) for make in (rl.ppo, rl.recurrent_ppo) for name in (*ON_POLICY, "epochs", "minibatches")),
    *((rl.dqn, name) for name in ("iterations", "count", "replay", "batch")),
]


@pytest.mark.parametrize(("make", "wrong"), COUNTS)
def test_counts_are_one_or_more(make: Any, wrong: str) -> None:
    needed = ("iterations", "count") if make is rl.dqn else ON_POLICY
    with pytest.raises(tp.errors.ProgramError) as error:
        make(rl.CartPole(), **{**dict.fromkeys(needed, 4), wrong: 0})
    assert str(error.value).splitlines()[::2] == [f"{wrong} is 0", f"  hint: {wrong} is an integer, 1 or more"]


class Linear(nn.Module):
    """A layer, and what is made of its result."""

    def __init__(self, inputs: int, outputs: int, made: Any = lambda y: y) -> None:
        self.layer = nn.Linear(inputs, outputs)
        self.made = made

    def __call__(self, observation: Any) -> Any:
        return self.made(self.layer(observation))


@pytest.mark.parametrize("make", [rl.reinforce, rl.a2c, rl.ppo])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"policy": Linear(4, 2)}, r"the policy gives a tensor of the shape \(2,\), not a distribution"),
        ({"policy": Linear(4, 3, rl.Categorical)}, "the policy chooses among 3 actions, and the environment has 2"),
        ({"policy": rl.Policy}, "the policy is <class .*Policy'>, not a module"),
        ({"policy": rl.Policy(rl.Pendulum())}, r"observations of the shape \(4,\): .* for those of the shape \(3,\)"),
        ({"critic": Linear(4, 1)}, r"the critic gives a tensor of the shape \(1,\), not a number"),
        ({"critic": rl.CartPole()}, "the critic is .*CartPole.*, not a module"),
    ],
)
def test_parts_that_do_not_fit(make: Any, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(tp.errors.TempoError, match=f"^{message}"):
        make(rl.CartPole(), **parts, iterations=1, count=4, steps=4)


@pytest.mark.parametrize("make", [rl.reinforce, rl.a2c, rl.ppo, rl.recurrent_ppo, rl.dqn])
def test_copies_of_an_environment_are_as_many_as_the_algorithm_has(make: Any) -> None:
    env = rl.Gymnasium("CartPole-v1", 2)
    needed = ("iterations", "count") if make is rl.dqn else ON_POLICY
    with pytest.raises(tp.errors.ProgramError, match=r"^there are 2 environments CartPole-v1, and count is 4\n"):
        make(env, **dict.fromkeys(needed, 4))


@pytest.mark.parametrize("make", [rl.reinforce, rl.a2c, rl.ppo])
def test_an_entropy_that_counts_for_nothing_need_not_be_known(make: Any) -> None:
    policy = Linear(3, 1, lambda y: rl.TanhNormal(y, tp.ones(1)))
    algorithm = make(rl.Pendulum(), policy, iterations=1, count=2, steps=4, entropy_weight=0)
    assert algorithm.program.evaluate(algorithm.bounds).outputs


def test_the_sizes_of_hidden_layers() -> None:
    with pytest.raises(tp.errors.ProgramError, match=r"^hidden is 64, not the sizes of layers"):
        rl.Policy(rl.CartPole(), hidden=64)  # type: ignore[arg-type]
