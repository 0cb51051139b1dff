"""Stores of which every step of an unrolled dim is an array of its own.

In a state such a store is a tuple of arrays, the last of its unrolled dims fastest. A read at a step that is known
while compiling is one of them as it is; any other read stacks those that it may be about.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from tempo.backends.jax.padded import jx
from tempo.backends.jax.reading import Block
from tempo.graph.node import Edge
from tempo.schedule.storage import Apart, Keeping, Latest, Steps, Store
from tempo.symbolic import Dim, Expr, Slice
from tempo.symbolic.grid import evaluate
from tempo.symbolic.intervals import interval

Array = Any


def unrolled(store: Store) -> dict[Dim, Apart]:
    """The dims whose steps are arrays of their own."""
    return {d: kept for d, kept in store.dims.items() if isinstance(kept, Apart)}


def part_of(store: Store) -> Store:
    """The layout of each of a store's arrays."""
    apart = unrolled(store)
    return replace(store, dims={d: Latest() if d in apart else kept for d, kept in store.dims.items()})


def count(store: Store) -> int:
    """How many arrays a store is."""
    return math.prod(kept.size for kept in unrolled(store).values())


def zeros(store: Store, **options: Any) -> Any:
    """A store with nothing in it: an array, or a tuple of them."""
    if not unrolled(store):
        return jnp.zeros(store.shape, store.node.dtype, **options)
    shape = part_of(store).shape
    return tuple(jnp.zeros(shape, store.node.dtype, **options) for _ in range(count(store)))


def positions(store: Store, at: Mapping[Dim, Any]) -> list[int]:
    """Which arrays of a store are those at some steps; of unrolled dims that are not given, at all of them."""
    spans = [[kept.slot(at[d])] if d in at else range(kept.size) for d, kept in unrolled(store).items()]
    return _numbers(store, spans)


def _numbers(store: Store, slots: Sequence[Sequence[int]]) -> list[int]:
    sizes = [kept.size for kept in unrolled(store).values()]
    strides = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
    return [sum(s * stride for s, stride in zip(point, strides, strict=True)) for point in itertools.product(*slots)]


def replaced(parts: tuple[Array, ...], numbers: Sequence[int], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The parts with some of them changed."""
    changed = dict(zip(numbers, arrays, strict=True))
    return tuple(changed.get(n, part) for n, part in enumerate(parts))


def cut(array: Array, store: Store, axes: Sequence[Dim]) -> tuple[Array, ...]:
    """The parts of a store out of an array in which some of its unrolled dims are axes, the others being left out."""
    apart = [d for d in axes if d in unrolled(store)]
    if not apart:
        return (array,)
    axis = axes.index(apart[0])
    rest = [d for d in axes if d is not apart[0]]
    slices = (array[(slice(None),) * axis + (n,)] for n in range(array.shape[axis]))
    return tuple(part for one in slices for part in cut(one, store, rest))


def gathered(edge: Edge, parts: tuple[Array, ...], store: Store, block: Block) -> tuple[Array, Store]:
    """The parts that a block reads through an edge as one array, and its layout."""
    slots: list[range] = []
    layout: dict[Dim, Keeping] = dict(store.dims)
    for d, item in zip(edge.node.domain, edge.index, strict=True):
        kept = store.dims[d]
        if isinstance(kept, Apart):
            span = _span(item, kept, block)
            slots.append(span)
            # What is at one known step for all points of the block needs no axis.
            single = len(span) == 1 and isinstance(item, Expr)
            layout[d] = Latest() if single else Steps(kept.start + span.start, len(span))
    chosen = [parts[n] for n in _numbers(store, slots)]
    stacked = [d for d in unrolled(store) if not isinstance(layout[d], Latest)]
    if not stacked:
        return chosen[0], replace(store, dims=layout)
    lengths = [len(span) for d, span in zip(unrolled(store), slots, strict=True) if d in stacked]
    # A part that the present block has not computed yet has the length of another block.
    shape = tuple(map(max, *(part.shape for part in chosen))) if len(chosen) > 1 else chosen[0].shape
    array = jnp.stack([jx.fit(part, shape) for part in chosen]).reshape((*lengths, *shape))
    # The axes of the unrolled dims are in front; they belong where their dims are.
    axes = [d for d, kept in layout.items() if not isinstance(kept, Latest)]
    array = jnp.moveaxis(array, range(len(stacked)), [axes.index(d) for d in stacked])
    return array, replace(store, dims=layout)


def _span(item: Expr | Slice, kept: Apart, block: Block) -> range:
    """The slots of an unrolled dim that a block may read."""
    first = item.start if isinstance(item, Slice) else item
    if not any(d in first.symbols() for d in block.dims):
        step = evaluate(first, {**block.bounds.values, **block.at}, jnp)
        if isinstance(step, int):
            length = 1
            if isinstance(item, Slice):
                known = {d: here for d, here in block.at.items() if isinstance(here, int)}
                length = interval(item.length.substitute({**block.bounds.numbers, **known}), block.spans())[1]
            # Outside of the store read slices of no length, and cases that do not apply.
            low = min(max(kept.slot(step), 0), kept.size - 1)
            high = min(max(kept.slot(step) + length, low + 1), kept.size)
            return range(low, high)
    return range(kept.size)
