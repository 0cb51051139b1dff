"""What our kernels for GPUs are written in: Pallas, by way of Triton, if JAX has it.

JAX has announced that this way will be removed. Whatever a kernel of ours does, XLA can do as well, in more time; so
without it programs still run, and nothing here is imported from anywhere else.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

# A number in single precision is the sum of two that matrix units know, of whose products only the least is left out:
# as good as single precision to the last two bits, and three times as fast as products without matrix units.
THREE_PRODUCTS = lax.DotAlgorithmPreset.TF32_TF32_F32_X3


def _imported() -> tuple[Any, Any, Any]:
    """Pallas, its way by Triton, and its product by matrix units, which was elsewhere until JAX 0.10.1."""
    try:
        from jax.experimental import pallas
        from jax.experimental.pallas import triton
    except ImportError:
        return None, None, None
    return pallas, triton, getattr(triton, "dot", None) or pallas.dot


pl, triton, dot = _imported()
IS_THERE = triton is not None


def span(start: Any, size: int) -> Any:
    """``size`` positions, some of which may be beyond the end of their axis and have to be masked. Pallas refuses such
    a slice where it knows the start for a number, so that is made an array."""
    return pl.ds(jnp.asarray(start, jnp.int32), size)
