"""Environments of Gymnasium, which run in Python, beside the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tempo as tp
from tempo.rl.counts import expect_counts
from tempo.rl.distributions import Domain
from tempo.rl.environments.environment import Box, Discrete, Environment, MultiDiscrete
from tempo.rl.environments.pieces import Piece, flattened, pieces_of

Tensor = tp.RecurrentTensor


class Gymnasium:
    """``count`` copies of the Gymnasium environment ``name``, stepped together by ``gymnasium.vector``. In place of a
    name, a class of yours or a function may make them.

    To be given to ``rl.Rollout``, with a batch dim whose bound is ``count``. Every run of the program starts with a
    reset by ``seed``, so that runs repeat. Actions of numbers are clipped to what the environment takes, and rounded if
    that is integers. Further keywords are those of ``gymnasium.make_vec``.

    An observation that counts is one-hot, alone and within others. One that is a dictionary or a tuple becomes one
    vector of floats; ``pieces(observation)`` are its parts.
    """

    observation: tp.Spec
    action: Discrete | MultiDiscrete | Box

    def __init__(self, name: str | Callable[..., Any], count: int, seed: int | None = None, **options: Any) -> None:
        expect_counts(count=count)
        self.made_by = name
        self.name = name if isinstance(name, str) else getattr(name, "__name__", str(name))
        self.count = count
        self.seed = seed
        self.options = dict(options)
        self.frames: list[Any] | None = None
        """A list, to have a picture of the first environment before every step; None for no pictures."""
        gymnasium = _package()
        # An environment that ends starts again in the same step, and says what it was last: no step is lost.
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        mode = options.pop("vectorization_mode", "sync")
        kind = gymnasium.envs.registration.EnvSpec("Own-v0", entry_point=name) if callable(name) else name
        try:
            self.envs = gymnasium.make_vec(
                kind, num_envs=count, vectorization_mode=mode, vector_kwargs=same_step, **options
            )
        except gymnasium.error.Error as error:
            own = "give the class of your environment, or a function that makes one"
            named = "gymnasium.pprint_registry() lists its environments; some need packages of their own"
            raise tp.errors.ProgramError(
                f"Gymnasium cannot make '{self.name}': {error}",
                places=[("here", tp.errors.user_line())],
                hint=named if isinstance(name, str) else own,
            ) from error
        name = self.name
        seen, done = self.envs.single_observation_space, self.envs.single_action_space
        self._pieces: list[Piece] | None = None
        if isinstance(seen, gymnasium.spaces.Dict | gymnasium.spaces.Tuple | gymnasium.spaces.Discrete):
            self._pieces = list(pieces_of(seen))
            if any(piece.shape is None for piece in self._pieces):
                raise _unsupported(name, "observations", seen)
            self.observation = tp.spec((sum(piece.size for piece in self._pieces),))
        elif seen.shape is None:
            raise _unsupported(name, "observations", seen)
        else:
            self.observation = tp.spec(seen.shape, "int32" if seen.dtype == np.int64 else seen.dtype)
        if isinstance(done, gymnasium.spaces.Discrete):
            self.action = Discrete(int(done.n))
            self._first_action = done.start
        elif isinstance(done, gymnasium.spaces.MultiDiscrete) and done.nvec.ndim == 1:
            self.action = MultiDiscrete(tuple(int(n) for n in done.nvec))
            self._first_action = done.start
        elif isinstance(done, gymnasium.spaces.MultiBinary) and len(done.shape) == 1:
            self.action = MultiDiscrete(done.shape[0] * (2,))
            self._first_action = 0
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
            return self._array(observation)

        first: Tensor = tp.host(reset, out=self.observation, batch=dims)
        return first

    def step(self, action: Tensor, sequence: Domain, batch: Domain) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The observation to act on next, what the step led to, reward, terminated and truncated."""

        def step(actions: Any) -> Any:
            if not isinstance(self.action, Box):
                actions = actions.astype(np.int64) + self._first_action
            else:
                actions = np.clip(actions.reshape(-1, *self.action.shape), *self._limits)
                dtype = self.envs.single_action_space.dtype
                # A policy draws numbers with fractions; environments with steps between them get the nearest one.
                actions = (np.rint(actions) if np.issubdtype(dtype, np.integer) else actions).astype(dtype)
            if self.frames is not None:
                self.frames.append(np.asarray(self.envs.render()[0]))
            observation, reward, terminated, truncated, info = self.envs.step(actions)
            seen = self._array(observation)
            reached = seen.copy()
            for n in np.flatnonzero(terminated | truncated):
                last = info["final_obs"][n]
                reached[n] = last if self._pieces is None else flattened(last, self._pieces)[0]
            return seen, reached, reward.astype(np.float32), terminated, truncated

        out = [self.observation, self.observation, tp.spec(), tp.spec((), "bool"), tp.spec((), "bool")]
        results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = tp.host(
            step, action, out=out, sequence=_dims(sequence), batch=_dims(batch)
        )
        return results

    def pieces(self, observation: Tensor) -> dict[str, Tensor]:
        """The parts of an observation (..., size) that is a dictionary or a tuple, by name: (..., *shape), float32.

        Parts of parts have names such as ``"arm.angle"``, those of tuples numbers. One that counts is one-hot.
        """
        if self._pieces is None or not any(piece.keys for piece in self._pieces):
            raise tp.errors.ProgramError(
                f"the observations of {self.name} are not put together of pieces",
                places=[("here", tp.errors.user_line())],
                hint="only those that are dictionaries or tuples are",
            )
        ends = [sum(piece.size for piece in self._pieces[:n]) for n in range(1, len(self._pieces))]
        leading = observation.shape[:-1]
        parts = tp.split(observation, ends, axis=-1)
        return {p.name: x.reshape((*leading, *p.shape)) for p, x in zip(self._pieces, parts, strict=True)}

    def copies(self, count: int, seed: int | None = None, **options: Any) -> Gymnasium:
        """So many other environments of the same kind."""
        return Gymnasium(self.made_by, count, seed, **{**self.options, **options})

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

    def _array(self, observations: Any) -> Any:
        """What all environments see, as one array."""
        if self._pieces is not None:
            return flattened(observations, self._pieces)
        return np.asarray(observations, self.observation.dtype)

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
    wrapper = "FlattenObservation" if what == "observations" else "TransformAction"
    return tp.errors.ProgramError(
        f"the {what} of {name} are {space}, which Tempo has no tensor for",
        places=[("here", tp.errors.user_line())],
        hint=f"wrap the environment, e.g. with gymnasium.wrappers.{wrapper}",
    )


def expect_environment(env: Any, kinds: Any = Environment | Gymnasium) -> None:
    """Raise an error unless something is an environment, of one of these kinds."""
    if not isinstance(env, kinds):
        what = "no environment of Gymnasium" if isinstance(env, Environment) else "no environment"
        raise tp.errors.ProgramError(
            f"{env!r} is {what}",
            places=[("here", tp.errors.user_line())],
            hint='rl.make("CartPole-v1", count=8) is one of Gymnasium, rl.CartPole() one within the program',
        )
