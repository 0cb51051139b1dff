"""Kernels of cells with large products, which are made by matrix units where we have a kernel for them.

Such products are put into programs when they are lowered, and ``jax.jit`` compiles what it has lowered without asking.
So these kernels are lowered and compiled here, for all shapes that come. To find a program by its shapes takes 50 us,
which is little beside its products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tempo.backends.jax import pallas
from tempo.backends.jax.compiling import LEAST_FOR_KERNELS, has_matrix_units
from tempo.backends.jax.replaced import LEAST_WORK, use_kernels

Program = Callable[..., Any]


def has_large_products(work: float) -> bool:
    """Whether there may be any in a kernel that makes so many operations, and something faster for them."""
    if work < 2 * LEAST_WORK or not pallas.IS_THERE:
        return False
    device = jax.devices()[0]
    return has_matrix_units(device) and float(device.compute_capability) >= LEAST_FOR_KERNELS


class WithLargeProducts:
    """A function like one of ``jax.jit``, compiled with our kernels for some of its products."""

    def __init__(self, jitted: Any, static: Sequence[int]) -> None:
        self.jitted = jitted
        self.static = frozenset(static)
        self.programs: dict[Any, Program] = {}

    def __call__(self, *arguments: Any) -> Any:
        key = self._key(arguments)
        if key not in self.programs:
            self.lower(*arguments).compile()
        return self.programs[key](*self._arrays(arguments))

    def lower(self, *arguments: Any) -> _Lowered:
        lowered = self.jitted.lower(*arguments)
        use_kernels(lowered.compiler_ir("stablehlo"))
        return _Lowered(lowered, self.programs, self._key(arguments))

    def _arrays(self, arguments: Sequence[Any]) -> list[Any]:
        return [argument for n, argument in enumerate(arguments) if n not in self.static]

    def _key(self, arguments: Sequence[Any]) -> Any:
        leaves, form = jax.tree.flatten(self._arrays(arguments))
        kinds = tuple([(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves])
        return tuple([arguments[n] for n in sorted(self.static)]), form, kinds


class _Lowered(NamedTuple):
    lowered: Any
    programs: dict[Any, Program]
    key: Any

    def compile(self) -> None:
        self.programs[self.key] = self.lowered.compile()
