"""What functions that build a training program give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tempo as tp
from tempo import nn
from tempo.rl.distributions import Categorical, MultiCategorical
from tempo.rl.environments import Discrete, Environment, Gymnasium, MultiDiscrete, Steps
from tempo.rl.environments.gymnasium import expect_environment

Tensor = tp.RecurrentTensor


class Algorithm(NamedTuple):
    """A training program, the bounds to compile it with, and its tensors by name, for results of your own."""

    program: tp.Program
    bounds: dict[Any, int]
    tensors: dict[str, Tensor]
    env: Environment | Gymnasium
    policy: nn.Module
    """What acts when all is learned; its parameters are outputs of the program, named ``policy.`` and their name."""
    iterations: int
    steps: int
    """How many steps of environments one iteration makes."""


def expect_parts(env: Any, count: int, **modules: Any) -> None:
    """Raise an error unless an algorithm is given an environment, in ``count`` copies if it has any, and modules."""
    expect_environment(env)
    if isinstance(env, Gymnasium) and env.count != count:
        raise tp.errors.ProgramError(
            f"there are {env.count} environments {env.name}, and count is {count}",
            places=[("here", tp.errors.user_line())],
            hint=f"rl.Gymnasium('{env.name}', count={count}) has as many",
        )
    for name, module in modules.items():
        if module is not None and not isinstance(module, nn.Module):
            raise tp.errors.ProgramError(
                f"the {name} is {module!r}, not a module",
                places=[("here", tp.errors.user_line())],
                hint=f"give one that was made: rl.{name.capitalize()}(env), or one of your own, an nn.Module",
            )


def expect_distribution(p: Any, env: Environment | Gymnasium) -> Any:
    """What a policy gives, which is to be a distribution over as many actions as an environment has."""
    wanted = env.action
    if not (hasattr(p, "sample") and hasattr(p, "log_prob")):
        what = f"a tensor of the shape {p.shape}" if isinstance(p, Tensor) else f"{p!r}"
        raise _no_distribution(f"the policy gives {what}, not a distribution")
    if isinstance(p, Categorical) and isinstance(wanted, Discrete):
        _expect_choices((p.logits.shape[-1],), (wanted.count,))
    if isinstance(p, MultiCategorical) and isinstance(wanted, MultiDiscrete):
        _expect_choices(tuple(part.logits.shape[-1] for part in p.parts), wanted.counts)
    return p


def _expect_choices(found: tuple[Any, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        there, chosen = (", ".join(map(str, counts)) for counts in (wanted, found))
        raise _no_distribution(f"the policy chooses among {chosen} actions, and the environment has {there}")


def _no_distribution(problem: str) -> tp.errors.ProgramError:
    return tp.errors.ProgramError(
        problem,
        places=[("here", tp.errors.user_line())],
        hint="from an observation, a policy gives e.g. rl.Categorical(logits), with a logit for each action",
    )


def expect_value(v: Any) -> Tensor:
    """What a critic gives, which is to be a number."""
    if not isinstance(v, Tensor) or v.shape != ():
        what = f"a tensor of the shape {v.shape}" if isinstance(v, Tensor) else f"{v!r}"
        raise tp.errors.ShapeError(
            f"the critic gives {what}, not a number",
            places=[("here", tp.errors.user_line())],
            hint="tp.squeeze(x, -1) makes a number of the single one in x",
        )
    return v


def weighted_entropy(weight: float, p: Any, mean: Callable[[Tensor], Tensor] = lambda x: x) -> Any:
    """Not all distributions have an entropy in closed form; where it counts for nothing, they need none."""
    return weight * mean(p.entropy()) if isinstance(weight, Tensor) or weight != 0 else 0.0


def emit_episodes(prog: tp.Program, steps: Steps, i: tp.Dim) -> None:
    """Emit, for every iteration i, how many ``episodes`` ended and their mean ``episode_return`` (nan if none did)."""
    ended = (steps.terminated | steps.truncated).astype(tp.float32)
    # Where episodes never end, nothing here goes over the dims of the rollout.
    ended = tp.full(ended.shape, ended, domain=steps.episode_return.domain)
    total = ended * steps.episode_return

    def everywhere(x: Tensor) -> Tensor:
        return tp.sum(x[tuple(d if d is i else slice(0, d.bound) for d in x.domain)])

    episodes = everywhere(ended)
    prog.emit("episodes", episodes)
    prog.emit("episode_return", tp.where(episodes > 0, everywhere(total) / tp.maximum(episodes, 1.0), float("nan")))
