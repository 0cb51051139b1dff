"""XLA programs that may be compiled before they run, and those that make stores of zeros and make stores longer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from tempo.backends.jax.padded import jx
from tempo.backends.jax.state import State

Array = Any


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
    return _zeros_maker(missing, device()) if missing else None


@functools.lru_cache(maxsize=1024)
def _zeros_maker(outlines: tuple[tuple[tuple[int, ...], Any], ...], device: Any) -> Prepared:
    # Bound to the device, as all that is computed with inputs is: JAX would compile the programs that are given these
    # zeros at first, and what was computed later, twice.
    bound = SingleDeviceSharding(device)
    return Prepared(jax.jit(lambda: [jnp.zeros(shape, dtype) for shape, dtype in outlines], out_shardings=bound))


def grown(array: Array, room: tuple[int, ...]) -> Array:
    """A store with more room."""
    return array if array.shape == room else _grower(array.shape, np.dtype(array.dtype), room, device())(array)


def prepare_growth(old: Any, room: tuple[int, ...]) -> None:
    """Compile what makes a store longer. Otherwise the first run would wait for that at every piece of its loops."""
    grower = _grower(old.shape, np.dtype(old.dtype), room, device())
    if not grower.programs:
        grower.programs[shapes(old)] = grower.function.lower(old).compile()


@functools.lru_cache(maxsize=1024)
def _grower(shape: tuple[int, ...], dtype: Any, room: tuple[int, ...], device: Any) -> Prepared:
    return Prepared(jax.jit(lambda array: jx.fit(array, room)))


def device() -> Any:
    """The one for which programs are compiled."""
    return jax.config.jax_default_device  # type: ignore[attr-defined]
