"""Environments against Gymnasium's, step by step, and small boards by hand."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import tempo as tp
from tempo import rl

CASES: dict[str, Any] = {
    "CartPole-v1": (rl.CartPole, [2.6, 3, 0.25, 3]),
    "Pendulum-v1": (rl.Pendulum, [10, 8]),
    "Acrobot-v1": (rl.Acrobot, [np.pi, np.pi, 12, 27]),
}


def random_actions(rng: np.random.Generator, env: rl.Environment, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(env.action, rl.Discrete):
        return rng.integers(0, env.action.count, size=shape)
    return rng.uniform(1.5 * env.action.low, 1.5 * env.action.high, size=shape + env.action.shape)


def declared_action(prog: tp.Program, env: rl.Environment, domain: Any) -> tp.RecurrentTensor:
    if isinstance(env.action, rl.Discrete):
        return prog.input("action", (), domain, "int32")
    return prog.input("action", env.action.shape, domain, env.dtype)


@pytest.mark.parametrize("name", CASES)
def test_a_step_from_anywhere(name: str, rng: np.random.Generator) -> None:
    make, widest = CASES[name]
    env, count = make(), 100
    start = rng.uniform(-1, 1, size=(count, len(widest))) * widest
    actions = random_actions(rng, env, (count,))
    with tp.Program() as prog:
        b, B = prog.dim("b")
        state = rl.EnvironmentState(prog.input("start", len(widest), b), tp.constant(0))
        made = env.step(state, declared_action(prog, env, b))
        for output in ("observation", "reward", "terminated"):
            prog.output(output, getattr(made, output))
    result = prog.compile({B: count})(start=start, action=actions)
    theirs: Any = gymnasium.make(name).unwrapped
    theirs.reset(seed=0)
    ends = 0
    for n in range(count):
        theirs.state = start[n].copy()
        theirs.steps_beyond_terminated = None
        observation, reward, terminated, _, _ = theirs.step(actions[n])
        scale = np.maximum(1, np.abs(observation))
        np.testing.assert_allclose(result.observation[n] / scale, observation / scale, atol=1e-5)
        np.testing.assert_allclose(np.broadcast_to(result.reward, count)[n], reward, rtol=1e-5)
        assert np.broadcast_to(result.terminated, count)[n] == terminated
        ends += terminated
    assert (ends > 0) == (name != "Pendulum-v1")


@pytest.mark.parametrize("name", CASES)
def test_an_episode(name: str, rng: np.random.Generator) -> None:
    """In double precision, as Gymnasium computes: errors do not grow from step to step."""
    make, _ = CASES[name]
    env, steps = make(limit=50, dtype=tp.float64), 60
    theirs: Any = gymnasium.make(name, max_episode_steps=50)
    theirs.reset(seed=3)
    actions = random_actions(rng, env, (steps,))
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", theirs.unwrapped.state.shape, t, "float64")
        made = prog.recurrent("made", (), t, "int32")
        after, *found = env.step(rl.EnvironmentState(x, made), declared_action(prog, env, t))
        x[0], made[0] = prog.input("start", x.shape, dtype="float64"), 0
        x[t + 1], made[t + 1] = after
        for output, tensor in zip(("observation", "reward", "terminated", "truncated"), found, strict=True):
            prog.output(output, tensor)
    inputs = {"start": theirs.unwrapped.state, "action": actions}
    for result in (prog.compile({T: steps})(**inputs), prog.evaluate({T: steps}, **inputs)):
        theirs.reset(seed=3)
        for n in range(steps):
            observation, reward, terminated, truncated, _ = theirs.step(actions[n])
            np.testing.assert_allclose(result.observation[n], observation, atol=1e-5)
            np.testing.assert_allclose(np.broadcast_to(result.reward, steps)[n], reward, atol=1e-5)
            assert np.broadcast_to(result.terminated, steps)[n] == terminated
            assert result.truncated[n] == truncated
            if terminated or truncated:
                break
        assert 5 < n < 50


def test_catch() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        env = rl.Catch(rows=4, columns=3)
        play = rl.Rollout(env, over=t)
        # Follow the ball, which is the only 1 above the last row.
        ball = tp.argmax(tp.max(play.observation.space[:-1], axis=0))
        paddle = tp.argmax(play.observation.space[-1])
        steps = play.step(1 + tp.sign(ball - paddle))
        prog.output("seen", play.observation)
        prog.output("next", steps.next_observation)
        prog.output("reward", steps.reward)
        prog.output("terminated", steps.terminated)
        prog.output("episode_return", steps.episode_return)
    result = prog.evaluate({T: 9})
    np.testing.assert_array_equal(result.terminated, [False, False, True] * 3)
    np.testing.assert_array_equal(result.reward, [0, 0, 1] * 3)
    np.testing.assert_array_equal(result.episode_return, [0, 0, 1] * 3)
    np.testing.assert_array_equal(result.seen[[0, 3, 6], 0].sum(-1), [1, 1, 1])
    np.testing.assert_array_equal(result.seen[[0, 3, 6], 3], [[0, 1, 0]] * 3)
    np.testing.assert_array_equal(result.next[[2, 5, 8]].sum((1, 2)), [1, 1, 1])  # the ball on the paddle


def test_rollouts_go_on_from_iteration_to_iteration() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        play = rl.Rollout(rl.CartPole(limit=6), over=(i, t), batch=b)
        steps = play.step(rl.Categorical(tp.zeros(2)).sample(domain=(i, b, t)))
        prog.output("seen", play.observation)
        for name in ("terminated", "truncated", "next_observation", "episode_return"):
            prog.output(name, getattr(steps, name))
    bounds = {I: 3, B: 2, T: 4}
    result, reference = prog.compile(bounds)(), prog.evaluate(bounds)
    for name, array in reference.outputs.items():
        np.testing.assert_allclose(result[name], array, atol=1e-5)
    seen, after = (np.moveaxis(x, 0, 1).reshape(2, 12, 4) for x in (result.seen[:, :, :4], result.next_observation))
    ended = np.moveaxis(result.truncated, 0, 1).reshape(2, 12)
    np.testing.assert_array_equal(ended, [[False] * 5 + [True] + [False] * 5 + [True]] * 2)
    assert not result.terminated.any()
    np.testing.assert_array_equal(seen[:, 1:][~ended[:, :-1]], after[:, :-1][~ended[:, :-1]])
    assert np.abs(seen[:, [0, 6]]).max() < 0.05
    assert len(np.unique(seen[:, [0, 6]])) == 16
    assert np.abs(after[:, 5, 1]).max() > 0.1
    np.testing.assert_array_equal(np.moveaxis(result.episode_return, 0, 1).reshape(2, 12), [[1, 2, 3, 4, 5, 6] * 2] * 2)


def test_synthetic_has_an_observation_of_any_shape() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        play = rl.Rollout(rl.Synthetic((2, 3), actions=5), over=t)
        steps = play.step(tp.constant(4))
        prog.output("seen", play.observation)
        prog.output("reward", steps.reward)
    result = prog.evaluate({T: 3})
    np.testing.assert_allclose(result.seen[1:3], 0.95 * result.seen[:2] + 0.05, rtol=1e-6)
    np.testing.assert_allclose(result.reward[:2], -np.square(result.seen[1:3]).mean((1, 2)), rtol=1e-6)


def test_gymnasium_environments() -> None:
    """As single environments with the same seeds and actions, through ends and starts."""
    count, iterations, steps = 3, 2, 15
    env = rl.Gymnasium("CartPole-v1", count, seed=7)
    assert (env.observation, env.action) == (tp.spec((4,)), rl.Discrete(2))
    with tp.Program() as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        play = rl.Rollout(env, over=(i, t), batch=b)
        taken = play.step((play.observation.space[2] < 0).astype("int32"))  # the wrong way: ends soon
        prog.output("seen", play.observation[i, b, t])
        for name in ("reward", "terminated", "truncated", "next_observation", "episode_return"):
            prog.output(name, getattr(taken, name))
    run = prog.compile({I: iterations, B: count, T: steps})
    result = run()
    for name, array in run().outputs.items():
        np.testing.assert_array_equal(array, result[name])
    ends = 0
    for n in range(count):
        single = gymnasium.make("CartPole-v1")
        observation, _ = single.reset(seed=7 + n)
        total = 0.0
        for k in range(iterations * steps):
            at = (k // steps, n, k % steps)
            np.testing.assert_array_equal(result.seen[at], observation)
            observation, reward, terminated, truncated, _ = single.step(int(observation[2] < 0))
            total += float(reward)
            np.testing.assert_array_equal(result.next_observation[at], observation)
            assert (result.reward[at], result.terminated[at], result.truncated[at]) == (reward, terminated, truncated)
            assert result.episode_return[at] == total
            if terminated or truncated:
                observation, _ = single.reset()
                total, ends = 0.0, ends + 1
    assert ends >= 3


def test_gymnasium_with_continuous_actions() -> None:
    env = rl.Gymnasium("Pendulum-v1", 2, seed=0, max_episode_steps=3)
    assert env.action == rl.Box((1,), -2.0, 2.0)
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        play = rl.Rollout(env, over=t, batch=b)
        steps = play.step(tp.random.uniform(1, (b, t), -2.0, 2.0))
        prog.output("seen", play.observation[b, t])
        prog.output("next", steps.next_observation)
        prog.output("truncated", steps.truncated)
    result = prog.compile({B: 2, T: 6})()
    np.testing.assert_array_equal(result.truncated, [[False, False, True] * 2] * 2)
    np.testing.assert_array_equal(result.next[:, [0, 1, 3, 4]], result.seen[:, [1, 2, 4, 5]])
    assert not np.allclose(result.next[:, 2], result.seen[:, 3])


def test_without_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(tp.errors.PackageError) as error:
        rl.Gymnasium("CartPole-v1", 2)
    assert error.value.message == "Gymnasium environments need the package gymnasium, 1.1 or newer"


class Parts(gymnasium.Env[Any, Any]):
    """Observations put together of several, and two actions at once; the last step is the third."""

    observation_space = gymnasium.spaces.Dict(
        {
            "place": gymnasium.spaces.Box(-9, 9, (2, 2), np.float32),
            "arm": gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3, start=1), gymnasium.spaces.MultiBinary(2))),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.seen(), {}

    def seen(self) -> Any:
        place = np.full((2, 2), self.count, np.float32)
        return {"place": place, "arm": (np.int64(1 + self.count % 3), np.array([0, 1], np.int8))}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.seen(), float(10 * action[0] + action[1]), self.count == 3, False, {}


class Counted(Parts):
    """Sees where it is as a number."""

    observation_space = gymnasium.spaces.Discrete(4, start=5)

    def seen(self) -> Any:
        return np.int64(5 + self.count)


class Words(Parts):
    observation_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Text(3)})


class Pair(Parts):
    action_space = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(2),))


class Checking(Parts):
    """Takes no actions but those of its space."""

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return (*super().step(action)[:1], float(action.sum()), False, False, {})


class Switches(Checking):
    action_space = gymnasium.spaces.MultiBinary(2)


class Notches(Checking):
    action_space = gymnasium.spaces.Box(-3, 3, (2,), np.int32)


@pytest.fixture
def registered() -> Iterator[None]:
    names = {"Parts-v0": Parts, "Words-v0": Words, "Pair-v0": Pair, "Switches-v0": Switches, "Notches-v0": Notches}
    names["Counted-v0"] = Counted
    for name, kind in names.items():
        gymnasium.register(name, kind)
    yield
    for name in names:
        del gymnasium.registry[name]


def test_observations_of_several_pieces_and_several_actions(registered: None) -> None:
    env = rl.Gymnasium("Parts-v0", 2)
    assert env.observation == tp.spec((9,))
    assert env.action == rl.MultiDiscrete((2, 3))
    with tp.Program("parts") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        play = rl.Rollout(env, over=t, batch=b)
        pieces = env.pieces(play.observation)
        steps = play.step(tp.constant([1, 2], dtype="int32") + 0 * play.observation.space[:2].astype("int32"))
        for name, piece in pieces.items():
            prog.output(name.replace(".", "_"), piece)
        prog.output("reward", steps.reward)
        prog.output("led_to", env.pieces(steps.next_observation)["place"])
    result = prog.compile({B: 2, T: 4}, backend="numpy")()
    assert result.place.shape == (2, 4, 2, 2)
    assert result.place[0, :, 0, 0].tolist() == [0, 1, 2, 0]
    assert result.led_to[0, :, 0, 0].tolist() == [1, 2, 3, 1]  # the last observation of an episode
    assert result.arm_0[1].argmax(axis=-1).tolist() == [0, 1, 2, 0]
    assert result.arm_1[1].tolist() == 4 * [[0, 1]]
    assert result.reward.tolist() == 2 * [4 * [12]]


def test_an_observation_that_counts_is_one_hot(registered: None) -> None:
    """As within a dictionary: a network makes nothing of the order of numbers that only count."""
    env = rl.Gymnasium("Counted-v0", 2)
    assert env.observation == tp.spec((4,))
    with tp.Program("counted") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        play = rl.Rollout(env, over=t, batch=b)
        steps = play.step(tp.constant([1, 2], dtype="int32") + 0 * play.observation.space[:2].astype("int32"))
        prog.output("seen", play.observation)
        prog.output("led_to", steps.next_observation)
    result = prog.compile({B: 2, T: 4})()
    np.testing.assert_array_equal(result.seen[1], np.eye(4)[[0, 1, 2, 0]])
    np.testing.assert_array_equal(result.led_to[1], np.eye(4)[[1, 2, 3, 1]])
    with pytest.raises(tp.errors.ProgramError) as error:
        env.pieces(play.observation)
    assert error.value.message == "the observations of Counted-v0 are not put together of pieces"


@pytest.mark.parametrize(
    ("name", "action", "done", "rewards"),
    [
        ("Switches-v0", rl.MultiDiscrete((2, 2)), [1, 0], [1, 1]),
        ("Notches-v0", rl.Box((2,), -3, 3), [0.6, 8.0], [4, 4]),
    ],
)
def test_actions_are_those_that_an_environment_takes(
    name: str, action: Any, done: Any, rewards: Any, registered: None
) -> None:
    env = rl.Gymnasium(name, 1)
    assert env.action == action
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        steps = rl.Rollout(env, over=t, batch=b).step(tp.constant(done) + 0 * t.value + 0 * b.value)
        prog.output("reward", steps.reward)
    assert prog.evaluate({B: 1, T: 2}).reward.tolist() == [rewards]


def test_ppo_with_several_actions(registered: None) -> None:
    env = rl.Gymnasium("Parts-v0", 2, seed=0)
    parts = {"policy": rl.Policy(env, hidden=(4,)), "critic": rl.Critic(env, hidden=(4,))}
    algorithm = rl.ppo(env, **parts, iterations=2, count=2, steps=3, epochs=1, minibatches=2)
    trained = rl.train(algorithm, backend="numpy")
    assert trained.parameters["policy.net.layers.1.weight"].shape == (5, 4)
    assert [row["episodes"] for row in trained.log] == [2, 2]


def test_spaces_that_are_no_arrays(registered: None) -> None:
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.Gymnasium("Words-v0", 2)
    assert error.value.message == (
        "the observations of Words-v0 are Dict('word': Text(1, 3, charset=0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        "abcdefghijklmnopqrstuvwxyz)), which Tempo has no tensor for"
    )
    assert error.value.hint == "wrap the environment, e.g. with gymnasium.wrappers.FlattenObservation"
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.Gymnasium("Pair-v0", 2)
    assert error.value.message == "the actions of Pair-v0 are Tuple(Discrete(2)), which Tempo has no tensor for"
    assert error.value.hint == "wrap the environment, e.g. with gymnasium.wrappers.TransformAction"
    with pytest.raises(tp.errors.ProgramError) as error:
        env = rl.Gymnasium("CartPole-v1", 2)
        with tp.Program("pieces"):
            env.pieces(tp.ones(4))
    assert error.value.message == "the observations of CartPole-v1 are not put together of pieces"


def test_dims_that_do_not_fit() -> None:
    with tp.Program() as prog:
        b, B = prog.dim("b")
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        with pytest.raises(tp.errors.DomainError) as error:
            rl.Rollout(rl.CartPole(), over=(b, i, t))
        assert error.value.message == "a rollout goes over iterations and steps, or steps alone, not over b, i, t"
        with pytest.raises(tp.errors.DomainError) as error:
            rl.Rollout(rl.CartPole(), over="t")  # type: ignore[arg-type]
        assert error.value.message == "a rollout goes over iterations and steps, or steps alone, not over t"
        env = rl.Gymnasium("CartPole-v1", 3)
        with pytest.raises(tp.errors.DomainError) as error:
            rl.Rollout(env, over=t)
        assert error.value.message == "3 environments CartPole-v1 need one batch dim, not 0"
        play = rl.Rollout(env, over=t, batch=b, name="gymnasium")
        prog.output("reward", play.step(tp.constant(0)).reward)
    with pytest.raises(tp.errors.HostError) as error:
        prog.evaluate({B: 2, I: 1, T: 1})
    assert error.value.message == "host function reset returned shape (3, 4) at its only point, declared is (2, 4)"


@pytest.mark.parametrize(
    "use", [rl.Policy, rl.Critic, rl.QNetwork, rl.RecurrentPolicy, lambda env: rl.Rollout(env, ())]
)
@pytest.mark.parametrize(("env", "shown"), [("CartPole-v1", "'CartPole-v1'"), (rl.Catch, "<class .*Catch'>")])
def test_names_and_classes_are_no_environments(use: Any, env: Any, shown: str) -> None:
    with pytest.raises(tp.errors.ProgramError, match=rf"^{shown} is no environment\n(.*\n)?  hint: rl.make"):
        use(env)


def test_an_environment_that_there_is_not():
    with pytest.raises(tp.errors.ProgramError, match=r"Gymnasium cannot make 'NoSuch-v1': .*doesn't exist"):
        rl.Gymnasium("NoSuch-v1", 2)


def test_an_environment_of_ones_own_is_made_by_its_class_or_a_function() -> None:
    for kind in (Switches, lambda: Switches()):
        env = rl.Gymnasium(kind, 2, seed=0)
        assert env.action == rl.MultiDiscrete((2, 2))
        assert env.copies(3).count == 3
    algorithm = rl.ppo(rl.Gymnasium(Parts, 2, seed=0), iterations=1, count=2, steps=4, minibatches=1, epochs=1)
    trained = rl.train(algorithm, backend="numpy")
    evaluation = rl.evaluate(algorithm.policy, trained.parameters, algorithm.env, 3, backend="numpy")
    assert evaluation.lengths.tolist() == [3, 3, 3]
    with pytest.raises(tp.errors.ProgramError, match=r"(?s)cannot make '.*give the class of your environment"):
        rl.Gymnasium(Switches(), 2)
    with pytest.raises(tp.errors.ProgramError, match="count is 0"):
        rl.Gymnasium("CartPole-v1", 0)


@pytest.mark.parametrize(
    ("env", "action", "message"),
    [
        (rl.CartPole(), 0.5, r"float32 of the shape \(\); .*Discrete\(count=2\), are integers of the shape \(\)"),
        (rl.CartPole(), [1], r"int32 of the shape \(1,\); .*are integers of the shape \(\)"),
        (rl.Pendulum(), 1.0, r"float32 of the shape \(\); .*are numbers of the shape \(1,\)"),
        (rl.Pendulum(), [1.0, 2.0], r"float32 of the shape \(2,\); .*are numbers of the shape \(1,\)"),
    ],
)
def test_actions_that_do_not_fit(env: rl.Environment, action: Any, message: str) -> None:
    with tp.Program("actions") as prog:
        t, _ = prog.dim("t")
        with pytest.raises(tp.errors.ShapeError, match=f"^the actions are {message}"):
            rl.Rollout(env, over=t).step(action)


class Boxed(Parts):
    """Takes numbers of a shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.action_space = gymnasium.spaces.Box(-1, 1, shape)

    def step(self, action: Any) -> Any:
        assert np.shape(action) == self.action_space.shape
        return super().step([0, 0])


class Moved(rl.Environment):
    """The sum of all that was done, in numbers of a shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(limit=5, dtype=tp.float32)
        self.action = rl.Box(shape, -1, 1)
        self.observation = tp.spec((1,))

    def start(self, domain: Any) -> Any:
        return tp.zeros(self.action.shape)

    def observe(self, x: Any) -> Any:
        return tp.sum(x).reshape((1,))

    def dynamics(self, x: Any, action: Any) -> Any:
        return x + action, -tp.abs(tp.sum(x)), False


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_actions_of_numbers_have_any_shape(shape: tuple[int, ...]) -> None:
    for env in (Moved(shape), rl.Gymnasium(lambda: Boxed(shape), 2)):
        with tp.Program("numbers") as prog:
            b, B = prog.dim("b")
            t, T = prog.dim("t")
            play = rl.Rollout(env, over=t, batch=b)
            action = rl.Policy(env, hidden=()).declare(prog)(play.observation).sample()
            prog.output("reached", play.step(action).next_observation)
        assert prog.evaluate({B: 2, T: 2}).reached.shape[:2] == (2, 2)


def test_actions_may_be_numbers_and_are_given_once() -> None:
    with tp.Program("actions") as prog:
        t, T = prog.dim("t")
        play = rl.Rollout(rl.CartPole(), over=t)
        prog.output("next", play.step(1).next_observation)
        with pytest.raises(tp.errors.ProgramError, match="step was called a second time"):
            play.step(1)
    assert prog.evaluate({T: 2}).next.shape == (2, 4)


class Counter(rl.Environment):
    """Counts, and says so in plain numbers."""

    action = rl.Discrete(2)

    def __init__(self, dtype: Any = tp.float32) -> None:
        super().__init__(limit=2, dtype=dtype)
        self.observation = tp.spec((), dtype)

    def start(self, domain: Any) -> Any:
        return 0.5

    def observe(self, x: Any) -> Any:
        return x

    def dynamics(self, x: Any, action: Any) -> Any:
        return x + 1, 1.0, False


@pytest.mark.parametrize("dtype", [tp.float32, tp.float64])
def test_an_environment_of_plain_numbers(dtype: Any) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        play = rl.Rollout(Counter(dtype), over=t)
        steps = play.step(tp.constant(0))
        prog.output("seen", play.observation)
        prog.output("so_far", steps.episode_return)
    found = prog.evaluate({T: 4})
    assert found.seen.dtype == found.so_far.dtype == dtype
    assert found.seen.tolist() == [0.5, 1.5, 0.5, 1.5]
    assert found.so_far.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("build", [rl.reinforce, functools.partial(rl.ppo, epochs=1, normalise_rewards=True)])
def test_algorithms_in_double_precision(build: Any) -> None:
    """The environment's: networks stay in single precision."""
    algorithm = build(Counter(tp.float64), iterations=2, count=2, steps=2)
    returns = algorithm.program.evaluate(algorithm.bounds).emits["episode_return"]
    assert [float(record.value) for record in returns] == [2, 2]


class Pairs(Counter):
    def observe(self, x: Any) -> Any:
        return tp.stack([x, x])


class Endless(Counter):
    def dynamics(self, x: Any, action: Any) -> Any:
        return x, tp.stack([x, x]), False


class Wavering(Counter):
    def dynamics(self, x: Any, action: Any) -> Any:
        return x, x, 0.5


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Pairs, "an observation of Pairs is float32 of the shape (2,), not of the shape (), as its attribute says"),
        (Endless, "a reward of Endless is float32 of the shape (2,), not a number"),
        (Wavering, "an end of Wavering is float32 of the shape (), not a bool"),
    ],
)
def test_environments_that_give_something_else(kind: Any, message: str) -> None:
    with tp.Program() as prog, pytest.raises(tp.errors.ShapeError) as error:
        t, _ = prog.dim("t")
        rl.Rollout(kind(), over=t).step(tp.constant(0))
    assert error.value.message == message


def test_parts_of_what_is_no_vector() -> None:
    with pytest.raises(tp.errors.ShapeError) as error:
        rl.PartlySeen(rl.Catch(4, 3), (0,))
    assert error.value.message == "Catch has observations of the shape (4, 3), which is no vector"
