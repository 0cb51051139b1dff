"""Environments of Gymnasium, which run in Python, beside the program."""

from __future__ import annotations

from typing import Any

import numpy as np

import tempo as tp
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Box, Discrete

Tensor = tp.RecurrentTensor


class Gymnasium:
    """``count`` copies of the Gymnasium environment ``name``, stepped together by ``gymnasium.vector``.

    To be given to ``rl.Rollout``, with a batch dim whose bound is ``count``. Every run of the program starts with a
    reset by ``seed``, so that runs repeat. Actions of numbers are clipped to what the environment takes. Further
    keywords are those of ``gymnasium.make_vec``.
    """

    observation: tp.Spec
    action: Discrete | Box

    def __init__(self, name: str, count: int, seed: int | None = None, **options: Any) -> None:
        self.name = name
        self.count = count
        self.seed = seed
        self.options = dict(options)
        self.frames: list[Any] | None = None
        """A list, to have a picture of the first environment before every step; None for no pictures."""
        gymnasium = _package()
        # An environment that ends starts again in the same step, and says what it was last: no step is lost.
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        mode = options.pop("vectorization_mode", "sync")
        self.envs = gymnasium.make_vec(
            name, num_envs=count, vectorization_mode=mode, vector_kwargs=same_step, **options
        )
        seen, done = self.envs.single_observation_space, self.envs.single_action_space
        if seen.shape is None:
            raise _unsupported(name, "observations", seen)
        self.observation = tp.spec(seen.shape, "int32" if seen.dtype == np.int64 else seen.dtype)
        if isinstance(done, gymnasium.spaces.Discrete):
            self.action = Discrete(int(done.n))
            self._first_action = int(done.start)
        elif isinstance(done, gymnasium.spaces.Box):
            self.action = Box(done.shape, float(done.low.min()), float(done.high.max()))
            self._limits = done.low, done.high
        else:
            raise _unsupported(name, "actions", done)

    def reset(self, batch: Domain) -> Tensor:
        """The first observations, one for every point of ``batch``."""
        dims = _dims(batch)
        if len(dims) != 1:
            raise tp.errors.DomainError(
                f"{self.count} environments {self.name} need one batch dim, not {len(dims)}",
                places=[("here", tp.errors.user_line())],
                hint="rl.Rollout(env, over=(i, t), batch=b)",
            )

        def reset() -> Any:
            observation, _ = self.envs.reset(seed=self.seed)
            return np.asarray(observation, self.observation.dtype)

        first: Tensor = tp.host(reset, out=self.observation, batch=dims)
        return first

    def step(self, action: Tensor, sequence: Domain, batch: Domain) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The observation to act on next, what the step led to, reward, terminated and truncated."""
        dtype = self.observation.dtype

        def step(actions: Any) -> Any:
            if isinstance(self.action, Discrete):
                actions = actions.astype(np.int64) + self._first_action
            else:
                actions = np.clip(actions.reshape(-1, *self.action.shape), *self._limits)
            if self.frames is not None:
                self.frames.append(np.asarray(self.envs.render()[0]))
            observation, reward, terminated, truncated, info = self.envs.step(actions)
            reached = np.array(observation, dtype)
            for n in np.flatnonzero(terminated | truncated):
                reached[n] = info["final_obs"][n]
            return np.asarray(observation, dtype), reached, reward.astype(np.float32), terminated, truncated

        out = [self.observation, self.observation, tp.spec(), tp.spec((), "bool"), tp.spec((), "bool")]
        results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = tp.host(
            step, action, out=out, sequence=_dims(sequence), batch=_dims(batch)
        )
        return results

    def copies(self, count: int, seed: int | None = None, **options: Any) -> Gymnasium:
        """So many other environments of the same kind."""
        return Gymnasium(self.name, count, seed, **{**self.options, **options})

    def state(self) -> bytes:
        """What the environments remember, random numbers included, for ``restore``."""
        import cloudpickle  # comes with Gymnasium

        try:
            data: bytes = cloudpickle.dumps(self.envs)
        except Exception as error:
            raise tp.errors.CheckpointError(
                f"the environments {self.name} cannot be saved: {error}",
                hint="environments in processes of their own cannot; use vectorization_mode='sync'",
            ) from error
        return data

    def restore(self, data: bytes) -> None:
        """Let the environments be as they were when ``state`` was called. The data is code: trust where it is from."""
        import cloudpickle

        self.envs.close()
        self.envs = cloudpickle.loads(data)

    def close(self) -> None:
        """End the environments, and processes that they run in."""
        self.envs.close()


def _dims(domain: Domain) -> tuple[tp.Dim, ...]:
    return () if domain is None else domain if isinstance(domain, tuple) else (domain,)


def _package() -> Any:
    try:
        import gymnasium
        from gymnasium.vector import AutoresetMode  # noqa: F401
    except ImportError as error:
        raise tp.errors.PackageError(
            "Gymnasium environments need the package gymnasium, 1.1 or newer",
            places=[("here", tp.errors.user_line())],
            hint="pip install 'tempo-compiler[rl]'; environments such as rl.CartPole need no package",
        ) from error
    return gymnasium


def _unsupported(name: str, what: str, space: Any) -> tp.errors.ProgramError:
    return tp.errors.ProgramError(
        f"the {what} of {name} are {space}, which is no array of a fixed shape",
        places=[("here", tp.errors.user_line())],
        hint="wrap the environment, e.g. with gymnasium.wrappers.FlattenObservation",
    )
