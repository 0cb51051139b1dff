"""Attention of all steps at once, each to itself and those before it, and its gradient.

Two products would keep the scores of all pairs of steps in memory. In half precision cuDNN has kernels that do not, and
that leave out what a step does not see.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from tempo.backends.jax.compiling import has_matrix_units
from tempo.backends.jax.prepared import device

Array = Any


def attention_to_past(q: Array, keys: Array, values: Array, scale: float, window: int | None) -> Array:
    """The averages (steps, heads, size) for queries of the same shape; keys and values have a head for each group."""

    def run(*arrays: Array) -> Array:
        # With what a gradient needs. Where there is one, XLA sees that both compute the same.
        return jax.vjp(_attention(scale, window), *arrays)[0]

    return _with_batches(run)(q, keys, values)


def gradients(
    q: Array, keys: Array, values: Array, g: Array, scale: float, window: int | None
) -> tuple[Array, Array, Array]:
    """Of queries, keys and values, for a gradient ``g`` of the averages."""

    def run(*arrays: Array) -> tuple[Array, Array, Array]:
        *operands, flow = arrays
        found: tuple[Array, Array, Array] = jax.vjp(_attention(scale, window), *operands)[1](flow)
        return found

    found: tuple[Array, Array, Array] = _with_batches(run)(q, keys, values, g)
    return found


def _attention(scale: float, window: int | None) -> Callable[..., Array]:
    return functools.partial(
        jax.nn.dot_product_attention,
        scale=scale,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn" if has_matrix_units(device() or jax.devices()[0]) else "xla",
    )


def _with_batches(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays with a leading axis of instances, for arrays without one: all axes that ``vmap`` adds become
    one."""

    @custom_vmap
    def batched(*arrays: Array) -> Any:
        return run(*arrays)

    @batched.def_vmap
    def more(size: int, are_batched: list[bool], *arrays: Array) -> tuple[Any, Any]:
        whole = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(arrays, are_batched, strict=True)]
        found = batched(*(x.reshape(-1, *x.shape[2:]) for x in whole))
        apart = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), found)
        return apart, jax.tree.map(lambda _: True, apart)

    def alone(*arrays: Array) -> Any:
        return jax.tree.map(lambda x: x[0], batched(*(x[None] for x in arrays)))

    return alone
