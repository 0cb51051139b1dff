"""XLA programs that may be compiled before they run, and the one that makes stores of zeros."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax.state import State


@dataclass(frozen=True)
class Prepared:
    """A function for XLA, which JAX compiles when it is called, unless it was compiled before."""

    function: Any
    programs: dict[Any, Any] = field(default_factory=dict)
    """What was compiled of it before it ran, by the shapes that it is given."""

    def __call__(self, *given: Any) -> Any:
        program = self.programs.get(shapes(given)) if self.programs else None
        return (program or self.function)(*given)


def shapes(given: Any) -> tuple[Any, ...]:
    """The shapes of arrays: equal for what the same XLA program computes with."""
    return tuple(np.shape(array) for array in jax.tree.leaves(given))


def zeros(outlines: State) -> State:
    """A state of zeros, made by one XLA program: programs have many stores, and a call for each of them takes longer
    than some programs."""
    leaves, form = jax.tree.flatten(list(outlines.values()))
    maker = zeros_maker(outlines)
    made = iter(maker() if maker is not None else ())
    filled = [next(made) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in leaves]
    return dict(zip(outlines, jax.tree.unflatten(form, filled), strict=True))


def zeros_maker(outlines: State) -> Prepared | None:
    """The program that makes a state's zeros, if there are any."""
    leaves = jax.tree.leaves(list(outlines.values()))
    missing = tuple((leaf.shape, leaf.dtype) for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct))
    # What is compiled is for one device.
    return _zeros_maker(missing, jax.config.jax_default_device) if missing else None  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1024)
def _zeros_maker(outlines: tuple[tuple[tuple[int, ...], Any], ...], device: Any) -> Prepared:
    return Prepared(jax.jit(lambda: [jnp.zeros(shape, dtype) for shape, dtype in outlines]))
