"""Results that a host waits for.

To fetch an array from a GPU's memory takes 190 us after it is computed, most of it waiting for threads of the runtime
(JAX 0.11, H200). If a program itself writes the array to memory that host and device have in common, that takes 30.

A function that is donated arrays must give what they become before what it hands over: JAX takes the first result of
the same shape and type for an array's successor, wherever that result is.
"""

from __future__ import annotations

from typing import Any

import jax

Array = Any

MEMORY = "pinned_host"


def handed_over(array: Array) -> Array:
    """Inside of a compiled function: one of its results, in memory that the host has, too."""
    return array if _platform() == "cpu" else jax.device_put(array, jax.memory.Space.Host)


def is_handed_over(array: Array) -> bool:
    """Whether an array is where the host has it."""
    return _platform() == "cpu" or array.sharding.memory_kind == MEMORY


def _platform() -> str:
    """Of the device that functions are compiled for."""
    settings: Any = jax.config
    device = settings.jax_default_device
    return str(getattr(device, "platform", device)) if device is not None else jax.default_backend()
