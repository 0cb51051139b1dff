"""What our kernels for GPUs are written in: Pallas, by way of Triton, if JAX has it.

JAX has announced that this way will be removed. Whatever a kernel of ours does, XLA can do as well, in more time; so
without it programs still run, and nothing here is imported from anywhere else.
"""

from __future__ import annotations

from typing import Any


def _imported() -> tuple[Any, Any]:
    try:
        from jax.experimental import pallas
        from jax.experimental.pallas import triton
    except ImportError:
        return None, None
    return pallas, triton


pl, triton = _imported()
IS_THERE = triton is not None
