"""Putting what a block has computed into a node's store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax.reading import Block
from tempo.backends.jax.state import Beside
from tempo.schedule.storage import Apart, Latest, Present, Steps, Store, Window
from tempo.symbolic import Dim

Array = Any


def stored_dims(store: Store) -> list[tuple[Dim, Steps | Window | Present | Apart]]:
    """The dims that a store has axes for, and how it keeps them."""
    return [(d, kept) for d, kept in store.dims.items() if not isinstance(kept, Latest)]


def has_room(store: Store, held: Array) -> bool:
    """Whether an array has the axes of a store, and room for its longest blocks: a part of a loop whose blocks are
    shorter, or no blocks, leaves its own there."""
    axes = stored_dims(store)
    short = any(isinstance(kept, Present) and n < kept.size for n, (_, kept) in zip(held.shape, axes, strict=False))
    return held.ndim == len(axes) + len(store.value) and not short


def put(store: Store, held: Array, array: Array, block: Block) -> Array:
    """What a store's array becomes when that of a block is put into it."""
    starts: list[Any] = []
    wraps = False
    for axis, (d, kept) in enumerate(stored_dims(store)):
        if isinstance(kept, Present) and d in block.at:  # a part of the loop that is no block: one step of it
            starts.append(0)
            array = jnp.expand_dims(array, axis)
        elif d.origin not in block.loops or isinstance(kept, Present):
            starts.append(0)
        elif d in block.at:
            starts.append(kept.slot(block.at[d]))
            array = jnp.expand_dims(array, axis)
        else:
            start = kept.slot(block.ranges[d].start)
            starts.append(start)
            is_before_end = isinstance(start, int) and start + block.ranges[d].length <= kept.size
            wraps = wraps or (isinstance(kept, Window) and not is_before_end)
    if not wraps:
        starts += [0] * len(store.value)
        slots = [jnp.asarray(s, jnp.int32) for s in starts]
        return lax.dynamic_update_slice(held, array, slots, allow_negative_indices=False)
    # A block may end at the beginning of a circle.
    places = []
    for axis, start in enumerate(starts):
        slots = (start + np.arange(array.shape[axis])) % store.shape[axis]
        places.append(slots.reshape([-1 if n == axis else 1 for n in range(len(starts))]))
    return held.at[tuple(places)].set(array)


def put_beside(
    store: Store, held: Array, array: Array, d: Dim, axis: int, block: Block, first_step: int, is_level: bool
) -> tuple[Array, Beside]:
    """What a short circle of steps of a dim, of which there are some from ``first_step`` on, becomes when a block is
    put into it, of which it has room for the last ones. And an array that has the block behind the steps before it, for
    those who read them at the same time."""
    steps, size = block.ranges[d], store.shape[axis]
    before = size - 1
    if isinstance(steps.start, int):
        before = min(before, steps.start - first_step)
    both = array
    if before:
        slots = (steps.start - before + np.arange(before)) % size
        both = jnp.concatenate([jnp.take(held, slots, axis=axis, mode="clip"), array], axis)
    straight = replace(store, dims={**store.dims, d: Steps(steps.start - before, before + steps.length)})
    beside = Beside(both, straight, d.origin, block.loops[d.origin], is_level)
    last = min(steps.length, size)
    latest = lax.slice_in_dim(array, steps.length - last, steps.length, axis=axis)
    first = (steps.start + steps.length - last) % size
    if isinstance(first, int) and first + last <= size:
        return lax.dynamic_update_slice_in_dim(held, latest, first, axis), beside
    return held.at[(*[slice(None)] * axis, (first + np.arange(last)) % size)].set(latest), beside
