"""Values with padded axes, and what primitives need to cope with them.

An axis whose size depends on the point (``t + 1``) is as long as it ever gets; what lies beyond its true size is
arbitrary. A primitive masks it where it would do harm, with its own neutral element, unless that is known to be there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = Any


@dataclass(frozen=True)
class Extent:
    """A size that depends on the point: what finds its value there (traced), and the most it can be."""

    find: Callable[[], Array]
    most: int

    @property
    def value(self) -> Array:
        """Traced only where it is asked for, which is at few of the primitives that have such sizes; and each time,
        since what was traced inside of another function must not leave it."""
        return self.find()


Size = int | Extent


@dataclass(frozen=True)
class Padded:
    """An array and the true sizes of its axes.

    ``settled`` says that padding holds values of other steps or zeros, as a slice of a store does, rather than
    what some computation left there. ``padding`` is the one number that padding holds, if it is known.
    """

    array: Array
    sizes: tuple[Size, ...]
    settled: bool = False
    padding: Any = None

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def ragged(self) -> tuple[int, ...]:
        """The axes that have padding."""
        return tuple(n for n, size in enumerate(self.sizes) if isinstance(size, Extent))

    def other(self, array: Array) -> Padded:
        """Another array of the same sizes."""
        return replace(self, array=array, padding=None)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two numbers are the same, as two zeros of different signs are not."""
    return bool(a == b) and math.copysign(1, a) == math.copysign(1, b)


class Jx:
    """What a primitive's ``jax`` function works with: JAX itself and the handling of padding."""

    jax: ModuleType = jax
    np: ModuleType = jnp
    lax: ModuleType = lax

    @staticmethod
    def most(size: Size) -> int:
        """The length of an axis of this size."""
        return size.most if isinstance(size, Extent) else size

    @staticmethod
    def true(size: Size) -> Array:
        """The true size, a number or traced."""
        return size.value if isinstance(size, Extent) else size

    @staticmethod
    def masked(x: Padded, axes: Iterable[int], fill: Any) -> Array:
        """The array with ``fill`` in the padding of these axes."""
        array = x.array
        if x.padding is not None and _is_same(x.padding, fill):
            return array
        for axis in axes:
            size = x.sizes[axis]
            if isinstance(size, Extent):
                position = lax.broadcasted_iota(jnp.int32, array.shape, axis)
                array = jnp.where(position < size.value, array, jnp.asarray(fill, array.dtype))
        return array

    @staticmethod
    def gather(array: Array, positions: Array, axis: int) -> Array:
        """The elements of an axis at these positions, whose shape takes the axis' place; outside, anything."""
        if not array.shape[axis]:
            return jnp.zeros(array.shape[:axis] + positions.shape + array.shape[axis + 1 :], array.dtype)

        def gathered(array: Array, positions: Array) -> Array:
            return jnp.take(array, positions, axis, mode="clip")

        def tied(array: Array, positions: Array) -> Array:
            return gathered(*lax.optimization_barrier((array, positions)))  # type: ignore[no-untyped-call]

        # XLA for CPUs converts what it gathers from half precision; and all of a table before a loop in which that
        # stays the same, unless it depends on what does not.
        if array.dtype in (jnp.bfloat16, jnp.float16):
            return lax.platform_dependent(array, positions, cpu=tied, default=gathered)
        return gathered(array, positions)

    @staticmethod
    def fit(array: Array, lengths: tuple[int, ...], fill: Any = None) -> Array:
        """The array with the ends of its axes cut off, or filled up (with zeros), to these lengths."""
        if array.shape == lengths:
            return array
        margins = [(0, length - found, 0) for found, length in zip(array.shape, lengths, strict=True)]
        return lax.pad(array, jnp.asarray(0 if fill is None else fill, array.dtype), margins)


jx = Jx()


def outline(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of which only the shape and the dtype are known."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
