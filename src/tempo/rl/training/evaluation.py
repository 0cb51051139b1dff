"""How well a policy acts, in numbers and in pictures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import tempo as tp
from tempo import nn
from tempo.rl.counts import expect_counts
from tempo.rl.environments import Environment, Gymnasium, Rollout
from tempo.rl.environments.gymnasium import expect_environment
from tempo.rl.recurrent import RecurrentPolicy

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]

# Where an environment does not say how long its episodes are at most.
LONGEST = 10_000


class Evaluation(NamedTuple):
    """What came of some episodes."""

    returns: Array
    """The sum of rewards of each."""
    lengths: Array
    """How many steps each took."""


def evaluate(
    policy: nn.Module,
    parameters: Mapping[str, Any],
    env: Environment | Gymnasium,
    episodes: int = 100,
    *,
    seed: int = 0,
    sample: bool = False,
    limit: int | None = None,
    backend: str = "jax",
    device: str | None = None,
) -> Evaluation:
    """Let a policy act in so many episodes, side by side: its likeliest actions, or with ``sample`` draws.

    ``parameters`` are what a training gives; those named ``policy.`` are used. Of Gymnasium environments, others of the
    same kind are made, and closed in the end. Episodes that are not over after ``limit`` steps count as far as they
    went.
    """
    _check(episodes, limit)
    if not isinstance(env, Gymnasium):
        return _episodes(policy, parameters, env, episodes, seed, sample, limit, backend, device)
    with contextlib.closing(env.copies(episodes, seed)) as own:
        return _episodes(policy, parameters, own, episodes, seed, sample, limit, backend, device)


def render(
    policy: nn.Module,
    parameters: Mapping[str, Any],
    env: Gymnasium,
    path: PathLike,
    *,
    seed: int = 0,
    sample: bool = False,
    limit: int | None = None,
) -> Evaluation:
    """Write one episode of a Gymnasium environment as a GIF. (It has to offer ``render_mode="rgb_array"``.)"""
    try:
        from PIL import Image
    except ImportError as error:
        raise tp.errors.PackageError(
            "GIFs need the package pillow", hint="pip install 'tempo-compiler[report]'"
        ) from error
    _check(1, limit)
    expect_environment(env, Gymnasium)
    with contextlib.closing(env.copies(1, seed, render_mode="rgb_array")) as own:
        own.frames = []
        evaluation = _episodes(policy, parameters, own, 1, seed, sample, limit)
        pictures = [Image.fromarray(frame) for frame in own.frames]
        duration = 1000 / own.envs.metadata.get("render_fps", 30)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=duration, loop=0, format="GIF")
    return evaluation


def _check(episodes: int, limit: int | None) -> None:
    expect_counts(episodes=episodes, limit=1 if limit is None else limit)


def _episodes(
    policy: nn.Module,
    parameters: Mapping[str, Any],
    env: Environment | Gymnasium,
    episodes: int,
    seed: int,
    sample: bool,
    limit: int | None,
    backend: str = "jax",
    device: str | None = None,
) -> Evaluation:
    with tp.Program("evaluation") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        acting: Any = policy.declare(prog, "policy", init=False)
        play = Rollout(env, over=t, batch=b)
        p = _distribution(prog, acting, play.observation, (b, t))
        made = play.step(p.sample((b, t)) if sample else p.mode())
        over = made.terminated | made.truncated

        # What comes after the first end of an environment is another episode.
        going_on = prog.recurrent("going_on", (), (b, t), "bool")
        total = prog.recurrent("total", (), (b, t), made.reward.dtype)
        length = prog.recurrent("length", (), (b, t), "int32")
        going_on[b, 0], total[b, 0], length[b, 0] = True, 0.0, 0
        going_on[b, t + 1] = going_on & ~over
        total[b, t + 1] = total + tp.where(going_on, made.reward, 0.0)
        length[b, t + 1] = length + going_on.astype("int32")
        prog.stop(t, when=tp.all((~going_on[b, t + 1])[0:B]))
        prog.output("returns", total[b, T])
        prog.output("lengths", length[b, T])
    if not isinstance(parameters, Mapping):
        raise tp.errors.InputError(
            f"the parameters are of the type {type(parameters).__name__}, not arrays by name",
            places=[("here", tp.errors.user_line())],
            hint="trained = rl.train(...) has them as trained.parameters",
        )
    needed = {f"policy.{name}" for name in policy.parameters()}
    missing = sorted(needed - set(parameters))
    if missing:
        raise tp.errors.InputError(
            f"the policy needs {', '.join(missing)}, which the parameters do not have",
            places=[("here", tp.errors.user_line())],
            hint="evaluate algorithm.policy, with what its training gives",
        )
    run = prog.compile({B: episodes, T: limit or _longest(env)}, backend=backend, device=device)
    result = run(seed=seed, **{name: parameters[name] for name in needed})
    return Evaluation(result.returns, result.lengths)


def _distribution(prog: tp.Program, acting: Any, observation: Any, domain: tuple[tp.Dim, tp.Dim]) -> Any:
    """What the policy draws from, with what it remembers of the episode if it does."""
    if not isinstance(acting, RecurrentPolicy):
        return acting(observation)
    b, t = domain
    memory = prog.recurrent("memory", (acting.size,), domain)
    after = acting.advance(observation, memory)
    memory[b, 0] = tp.zeros((acting.size,))
    memory[b, t + 1] = after
    return acting.policy(after)


def _longest(env: Environment | Gymnasium) -> int:
    """How many steps an episode takes at most."""
    return (env.limit if isinstance(env, Environment) else env.envs.spec.max_episode_steps) or LONGEST
