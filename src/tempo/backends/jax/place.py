"""Where a program runs: its device, and its inputs there."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax import jitted, transfer
from tempo.errors import InputError
from tempo.source import user_line

Array = Any


class Place:
    """A device, and what a program is given there: the outlines of its ``inputs``, one for every step of the first
    dim if that is unrolled. Those that are ``offloaded`` stay in host memory."""

    def __init__(self, device: Any, wide: bool, inputs: Mapping[str, Any], offloaded: Container[str] = ()) -> None:
        self.device = device
        self.devices = {device}
        self.wide = wide
        self.inputs = inputs
        self.offloaded = offloaded
        self.apart = frozenset(name for name, declared in inputs.items() if isinstance(declared, tuple))
        self.take_apart = jax.jit(tuple)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """JAX with 64-bit types where the program has any, on the program's device, compiling."""
        with jax.enable_x64(self.wide), jax.default_device(self.device), jitted.enabled():
            yield

    def put(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs on the device."""
        return {name: self.steps_on_device(name, inputs[name]) for name in self.inputs if name not in self.offloaded}

    def hand_over(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs for one call of one XLA program, which puts NumPy arrays on its device itself: for a small one
        that takes 2 us, where ``device_put`` takes 45."""
        arrays = {name: inputs[name] for name in self.inputs}
        others = (n for n, array in arrays.items() if n in self.apart or not self.is_handed_over(array))
        return arrays | {name: self.steps_on_device(name, arrays[name]) for name in others}

    def is_handed_over(self, array: Array) -> bool:
        return isinstance(array, np.ndarray) and not transfer.goes_in_pieces(array, self.device)

    def steps_on_device(self, name: str, given: Any) -> Any:
        """An input on the device, or one array for each step of its first dim, if that is unrolled."""
        if name not in self.apart:
            return self.on_device(given)
        if isinstance(given, jax.Array):
            given = self.take_apart(given)
        return tuple(map(self.on_device, given))

    def on_device(self, array: Array) -> Array:
        if isinstance(array, jax.Array) and array.devices() == self.devices:
            return array
        return transfer.put(array, self.device)

    def adopt(self, value: Any) -> Array | None:
        """The array of another library, or of JAX, without a detour over NumPy; many of NumPy's, as one on the device,
        if that is faster than to stack them first. None for anything else."""
        if isinstance(value, jax.core.Tracer):
            raise InputError(
                "a compiled program was given a traced value: it is called within jax.jit, jax.grad or jax.vmap",
                places=[("here", user_line())],
                hint="call it outside of them: tp.grad gives gradients, a dim many instances at once",
            )
        if isinstance(value, jax.Array):
            return None if value.is_deleted() else value
        if isinstance(value, list | tuple):
            return None if self.offloaded else transfer.put_listed(value, self.device)
        if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
            return None
        with jax.enable_x64(True):  # nothing may lose bits before its dtype is checked
            try:
                # Not the memory itself, in which its owner may write while the program runs.
                return jnp.array(jax.dlpack.from_dlpack(value), copy=True)
            except (TypeError, ValueError, RuntimeError, BufferError):  # a device or a dtype that JAX does not know
                return None
