"""Training: logs, checkpoints that go on to the bit, evaluation, GIFs, settings."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

import tempo as tp
from tempo import rl
from tempo.cli import main
from tempo.rl.training import tensorboard
from tempo.rl.training.checkpoints import Checkpoints

ITERATIONS = 6


def small(env: Any, iterations: int = ITERATIONS) -> rl.Algorithm:
    parts = {"policy": rl.Policy(env, hidden=(8,)), "critic": rl.Critic(env, hidden=(8,))}
    return rl.reinforce(env, **parts, iterations=iterations, count=2, steps=8)


def make(kind: str) -> Any:
    return rl.CartPole(limit=5) if kind == "within" else rl.Gymnasium("CartPole-v1", 2, seed=3)


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("backend", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["within", "gymnasium"])
def test_a_training_goes_on_to_the_bit(
    kind: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its second checkpoint, with more of the log written: parameters and log as without."""
    how: dict[str, Any] = {"seed": 5, "every": 2, "backend": backend}
    expected = rl.train(small(make(kind)), tmp_path / "whole", **how)

    save = Checkpoints.save
    saved = []

    def save_twice(self: Checkpoints, *given: Any) -> None:
        if len(saved) == 2:
            raise KilledError
        saved.append(save(self, *given))

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_twice)
        with pytest.raises(KilledError):
            rl.train(small(make(kind)), tmp_path / "parts", **how)
    assert len(rl.read_log(tmp_path / "parts")["loss"]) == 6
    assert [path.name for path in sorted((tmp_path / "parts" / "checkpoints").iterdir())] == ["00000002", "00000004"]

    found = rl.train(small(make(kind)), tmp_path / "parts", resume=True, **how)
    assert [row["iteration"] for row in found.log] == [4, 5]
    assert found.parameters.keys() == expected.parameters.keys()
    for name, array in expected.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], array)
        np.testing.assert_array_equal(rl.load_parameters(tmp_path / "parts")[name], array)
    ours, theirs = (rl.read_log(tmp_path / name) for name in ("parts", "whole"))
    for name in ("iteration", "steps", "loss", "episodes", "episode_return"):
        np.testing.assert_array_equal(ours[name], theirs[name])


PROGRAM = """
import sys
from tempo import rl
from tests.rl.test_training import small

rl.train(small(rl.CartPole(limit=5), iterations=200_000), sys.argv[1], seed=5, every=1, backend="numpy")
"""


def test_a_process_that_is_killed_leaves_a_checkpoint(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env={**os.environ, "PYTHONPATH": "src:."}
    )
    end = time.monotonic() + 60
    while Checkpoints(tmp_path).newest() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    newest = Checkpoints(tmp_path).newest()
    assert newest is not None
    algorithm = small(rl.CartPole(limit=5), iterations=200_000)
    run = algorithm.program.compile(algorithm.bounds, backend="numpy", plan=tp.Plan(blocks={"i": 1}))
    rows = Checkpoints(tmp_path).load(newest, run, algorithm.env)["rows"]
    assert rows == int(newest.name)
    record = next(run.stream(seed=5))
    assert record.point["i"] == rows


def test_seeds_repeat(tmp_path: Path) -> None:
    first, again, other = (rl.train(small(make("within")), seed=seed, backend="numpy") for seed in (1, 1, 2))
    name = "policy.net.layers.0.weight"
    np.testing.assert_array_equal(first.parameters[name], again.parameters[name])
    assert not np.array_equal(first.parameters[name], other.parameters[name])


def test_files_of_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = rl.train(small(make("within")), tmp_path, backend="numpy", progress=True)
    with open(tmp_path / "progress.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["iteration", "steps", "seconds", "steps_per_second", "loss", "episodes", "episode_return"]
    assert [row[:2] for row in rows] == [[str(n), str(16 * (n + 1))] for n in range(ITERATIONS)]
    assert [float(row[4]) for row in rows] == [row["loss"] for row in trained.log]
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.format == "PNG"
    assert capsys.readouterr().err.splitlines()[-1].startswith("iteration 6 of 6: return ")

    (events,) = (read_events(path) for path in tmp_path.glob("events.out.tfevents.*"))
    losses = [(step, scalars["loss"]) for step, scalars in events if "loss" in scalars]
    assert losses == [(16 * (n + 1), np.float32(row["loss"])) for n, row in enumerate(trained.log)]


def read_events(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Steps and scalars of an event file, its checksums checked."""
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert tensorboard._masked(data[:8]) == data[8:12]
        event, data = data[12 : 12 + length], data[12 + length :]
        assert tensorboard._masked(event) == data[:4]
        data = data[4:]
        fields = read_message(event)
        values = [read_message(value) for summary in fields.get(5, []) for value in read_message(summary).get(1, [])]
        scalars = {value[1][0].decode(): np.float32(struct.unpack("<f", value[2][0])[0]) for value in values}
        events.append((fields[2][0], scalars))
    return events


def read_message(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}

    def varint() -> int:
        nonlocal data
        number = shift = 0
        while True:
            byte, data = data[0], data[1:]
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while data:
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if size == 0:
            value: Any = varint()
        else:
            size = varint() if size is None else size
            value, data = data[:size], data[size:]
        found.setdefault(key >> 3, []).append(value)
    return found


def test_checksums_are_those_of_the_standard() -> None:
    assert tensorboard.crc32c(b"123456789") == 0xE3069283


def test_a_directory_with_another_training(tmp_path: Path) -> None:
    rl.train(small(make("within")), tmp_path, every=2, backend="numpy")
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.train(small(make("within")), tmp_path, backend="numpy")
    assert error.value.message == f"'{tmp_path}' has a training already"
    with pytest.raises(tp.errors.CheckpointError, match="seed = 7"):
        rl.train(small(make("within")), tmp_path, seed=7, resume=True, backend="numpy")
    with pytest.raises(tp.errors.CheckpointError, match="I was 6"):
        rl.train(small(make("within"), iterations=7), tmp_path, resume=True, backend="numpy")


def test_a_log_takes_numbers(tmp_path: Path) -> None:
    algorithm = small(make("within"))
    with algorithm.program as prog:
        prog.emit("action", algorithm.tensors["action"])
    with pytest.raises(tp.errors.ProgramError, match=r"'action' is emitted over \(i, b, t\)"):
        rl.train(algorithm, tmp_path, backend="numpy")


def test_parameters_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(tp.errors.CheckpointError) as error:
        rl.load_parameters(tmp_path)
    assert error.value.message == f"no training has ended in '{tmp_path}': there is no parameters.safetensors"


# -- evaluation ----------------------------------------------------------------------------------------------------


class Countdown(gymnasium.Env[np.ndarray, int]):
    """An episode takes four steps; action 1 is worth 1, action 0 nothing."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as Gymnasium has it)
    observation_space = gymnasium.spaces.Box(0, 4, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 4
        return np.array([self.left], np.float32), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        return np.array([self.left], np.float32), float(action), self.left == 0, False, {}

    def render(self) -> Any:
        return np.full((8, 8, 3), 40 * self.left, np.uint8)


@pytest.fixture
def countdown() -> Any:
    gymnasium.register("Countdown-v0", Countdown)
    yield rl.Gymnasium("Countdown-v0", 2)
    del gymnasium.registry["Countdown-v0"]


def always_one(env: Any) -> tuple[Any, dict[str, np.ndarray]]:
    policy = rl.Policy(env, hidden=())
    weights = {"weight": np.zeros((2, 1), np.float32), "bias": np.array([0, 1], np.float32)}
    return policy, {f"policy.net.layers.0.{name}": array for name, array in weights.items()}


def test_evaluation(countdown: Any) -> None:
    policy, parameters = always_one(countdown)
    best = rl.evaluate(policy, parameters, countdown, 5)
    assert best.returns.tolist() == [4, 4, 4, 4, 4]
    assert best.lengths.tolist() == [4, 4, 4, 4, 4]
    assert rl.evaluate(policy, parameters, countdown, 2, limit=3).returns.tolist() == [3, 3]
    drawn = rl.evaluate(policy, parameters, countdown, 50, sample=True)
    assert 2.5 < drawn.returns.mean() < 3.5  # 4 / (1 + 1 / e) is 2.92


def test_evaluation_within_the_program() -> None:
    """The first episode of every environment, and no more of it."""
    env = rl.CartPole()
    policy = rl.Policy(env, hidden=())
    weights = {"weight": np.array([[0, 0, -1, 0], [0, 0, 1, 0]], np.float32), "bias": np.zeros(2, np.float32)}
    parameters = {f"policy.net.layers.0.{name}": array for name, array in weights.items()}
    found = rl.evaluate(policy, parameters, env, 20)
    np.testing.assert_array_equal(found.returns, found.lengths)
    assert 20 < found.lengths.mean() < 100 and len(set(found.lengths)) > 5
    with pytest.raises(tp.errors.InputError) as error:
        rl.evaluate(policy, {}, env)
    assert error.value.message == (
        "the policy needs policy.net.layers.0.bias, policy.net.layers.0.weight, which the parameters do not have"
    )


def test_a_gif(countdown: Any, tmp_path: Path) -> None:
    policy, parameters = always_one(countdown)
    assert rl.render(policy, parameters, countdown, tmp_path / "episode.gif").returns.tolist() == [4]
    with Image.open(tmp_path / "episode.gif") as picture:
        assert (picture.format, picture.n_frames, picture.info["duration"]) == ("GIF", 4, 100)
    with pytest.raises(tp.errors.ProgramError, match="is no environment of Gymnasium"):
        rl.render(policy, parameters, rl.CartPole(), tmp_path / "episode.gif")  # type: ignore[arg-type]


def test_settings() -> None:
    assert rl.preset("ppo", "Pendulum-v1") == rl.preset("ppo", "Pendulum")
    assert rl.preset("ppo", "Unknown-v3")["total"] == 500_000
    assert isinstance(rl.make("CartPole", 2), rl.CartPole)
    assert isinstance(rl.make("CartPole-v1", 2), rl.Gymnasium)
    with pytest.raises(tp.errors.ProgramError, match="there are no settings for an algorithm 'a3c'"):
        rl.preset("a3c", "CartPole")


# -- the command -----------------------------------------------------------------------------------------------------


def test_train_and_evaluate_by_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the seconds that XLA takes.
    monkeypatch.setattr(rl, "train", partial(rl.train, backend="numpy"))
    monkeypatch.setattr(rl, "evaluate", partial(rl.evaluate, backend="numpy", limit=9))
    where = str(tmp_path / "run")
    few = ["--total", "64", "--set", "count=2", "steps=8", "--directory", where, "--episodes", "3", "--device", "cpu"]
    assert main(["train", "reinforce", "--env", "Catch", *few]) == 0
    assert re.match(
        r"return over 3 episodes: mean [-\d.]+, from [-\d.]+ to [-\d.]+; mean length ", capsys.readouterr().out
    )
    assert main(["evaluate", where, "--episodes", "2", "--sample"]) == 0
    assert capsys.readouterr().out.startswith("return over 2 episodes: mean ")
    assert main(["evaluate", where, "--episodes", "1", "--gif", str(tmp_path / "no.gif")]) == 1
    assert "Catch has no pictures" in capsys.readouterr().err
    assert main(["train", "reinforce", "--env", "Catch", *few]) == 1
    assert f"'{where}' has a training already" in capsys.readouterr().err


def test_settings_are_those_of_the_training_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of a call that failed before it, nor of one that is refused after it."""
    monkeypatch.setattr(rl, "train", partial(rl.train, backend="numpy"))

    def train(steps: int, *options: str) -> int:
        few = ["--total", "16", "--set", "count=2", f"steps={steps}", "--directory", str(tmp_path), "--episodes", "0"]
        return main(["train", "reinforce", "--env", "Catch", *few, *options])

    def steps() -> int:
        found: int = json.loads((tmp_path / "settings.json").read_text())["settings"]["steps"]
        return found

    assert train(2, "--every", "0") == 1
    assert train(4) == 0
    assert steps() == 4
    assert train(8) == 1
    assert steps() == 4
    assert train(8, "--resume", "--every", "1") == 0  # there was no checkpoint yet: it begins anew
    assert steps() == 8
    assert train(4, "--resume") == 1  # another program than that of the checkpoint
    assert steps() == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rat=1", "reinforce has no argument 'rat'"),
        ("rate=fast", "'rate=fast' gives rate no value"),
        ("count=0", "count is 0"),
        ("steps=2.5", "steps is 2.5"),
    ],
)
def test_arguments_that_do_not_fit(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "reinforce", "--env", "CartPole", "--set", text]) == 1
    assert message in capsys.readouterr().err


def test_evaluating_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path)]) == 1
    assert f"nothing was trained in '{tmp_path}'" in capsys.readouterr().err


# -- what does not fit -----------------------------------------------------------------------------------------------


def test_episodes_that_never_end() -> None:
    env = rl.Pendulum(limit=None)
    log = rl.train(small(env, iterations=2), backend="numpy").log
    assert [row["episodes"] for row in log] == [0, 0]
    assert all(np.isnan(row["episode_return"]) for row in log)


def test_checkpoints_without_a_log(tmp_path: Path) -> None:
    rl.train(small(make("within")), tmp_path, every=2, backend="numpy")
    (tmp_path / "progress.csv").unlink()
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.train(small(make("within")), tmp_path, backend="numpy")
    assert error.value.message == f"'{tmp_path}' has a training already"
    with pytest.raises(tp.errors.CheckpointError) as lost:
        rl.train(small(make("within")), tmp_path, resume=True, backend="numpy")
    assert lost.value.message == f"'{tmp_path}' has checkpoints, but no progress.csv to go on with"


def test_a_checkpoint_that_is_not_whole(tmp_path: Path) -> None:
    rl.train(small(make("within")), tmp_path, every=2, backend="numpy")
    newest = Checkpoints(tmp_path).newest()
    assert newest is not None
    (newest / "logs.json").unlink()
    with pytest.raises(tp.errors.CheckpointError) as error:
        rl.train(small(make("within")), tmp_path, resume=True, backend="numpy")
    assert error.value.message == f"the checkpoint '{newest}' has no logs.json"


def test_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.train(small(make("within")), path, backend="numpy")
    assert error.value.message == f"'{path}' is a file, not a directory"


@pytest.mark.parametrize("wrong", ["episodes", "limit"])
def test_evaluating_for_no_time(wrong: str) -> None:
    env = rl.CartPole()
    with pytest.raises(tp.errors.ProgramError) as error:
        rl.evaluate(rl.Policy(env), {}, env, **{wrong: 0})
    assert error.value.message == f"{wrong} is 0"


def test_what_is_trained_and_evaluated_is_of_the_right_kind() -> None:
    with pytest.raises(tp.errors.ProgramError, match=r"^<function ppo at .*> is no algorithm to train\n"):
        rl.train(rl.ppo)  # type: ignore[arg-type]
    env = rl.CartPole()
    trained: Any = rl.Trained({}, [])
    with pytest.raises(tp.errors.InputError, match=r"^the parameters are of the type Trained, not arrays by name\n"):
        rl.evaluate(rl.Policy(env), trained, env, 2)
