"""A weighted average of values, with weights ``softmax(scale * q @ k)``, that reads keys and values once.

XLA makes two products of it, with all scores in memory between them, and for a few queries it is several times slower
than memory allows. On a GPU this kernel goes over the steps in tiles instead. So that all of the device is busy with a
single query, each head's steps are shared out among several programs, whose parts are put together afterwards.

Where many queries have the same keys, as those of a prompt do, each seeing some more steps than the one before it, a
second kernel does the same for tiles of queries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from tempo.backends.jax.padded import outline
from tempo.backends.jax.pallas import IS_THERE, dot, pl, span, triton
from tempo.ops.attention import LEAST_AT_ONCE

Array = Any

# What was fastest of some dozen combinations on an H200, in half precision.
PROGRAMS = 256
"""So many programs keep all multiprocessors busy, two each: one more has to wait until another one has ended."""
MULTIPROCESSORS = range(112, 133)
"""For so many heads, one program each keeps all multiprocessors busy: there is nothing to put together (130 us for 128
heads and 8,192 steps, 134 in two parts)."""
TILE, ROOM = 64, 2**14
"""The steps of a tile, or as many as have so many numbers; twice as many where a multiprocessor has one program."""
WARPS = 4
LEAST_ROWS = 16
"""Matrix units multiply no fewer rows at once."""

# The same in single precision, where one warp goes over a tile: few registers for each of its threads.
SINGLE_PROGRAMS = 1536
SINGLE_TILE = 2048
"""The numbers of a tile."""
SINGLE_STAGES = 4

TIMES = 128
"""Of queries at many times that have the same keys, so many are a tile, in half precision."""
LOWEST = -1e38
"""Below any score, but finite: there is a difference of two of it."""


@dataclass(frozen=True)
class Layout:
    """What attention is of, beside its arrays: (..., heads, queries, size) and (..., steps, heads, size), or
    (..., heads, steps, size) for ``keys_inside`` and ``values_inside``. Leading axes are of instances."""

    scale: float
    fill: float
    keys_inside: bool
    values_inside: bool
    finite: bool = True
    """Whether values in the padding are numbers, which no weight other than zero belongs to."""

    def steps(self, keys: Array) -> int:
        return int(keys.shape[-2 if self.keys_inside else -3])


def attention(q: Array, keys: Array, values: Array, length: Array, seen: Array | None, layout: Layout) -> Array:
    """The averages for q (heads, queries, size), over the first ``length`` steps.

    ``seen`` (steps,) has 1 where a step is seen, 0 where ``fill`` stands in place of its score, and -1 for slots that
    hold none of the steps.
    """
    seen = jnp.ones(layout.steps(keys)) if seen is None else seen
    return _batched(layout)(q, keys, values, jnp.asarray(length, jnp.int32), seen.astype(jnp.int32))


OWN = (3, 3, 3, 0, 1)
"""How many axes queries, keys, values, lengths and masks have behind those of instances."""


@functools.cache
def _batched(layout: Layout) -> Any:
    """Attention with axes of instances, to which ``vmap`` adds one where each has its own keys."""

    run = _by_device(kernel, products, layout)

    @run.def_vmap
    def more(size: int, batched: list[bool], *arrays: Array) -> tuple[Array, bool]:
        if batched[:3] == [True, False, False]:
            q, keys, values, length, seen = _whole(size, [True, True, True, *batched[3:]], arrays)
            instances = keys.shape[:-3]
            times = [_flat(jnp.moveaxis(x, 0, len(instances)), own + 1) for x, own in ((q, 3), (length, 0), (seen, 1))]
            averages = _shared(layout)(*times, _flat(keys, 3), _flat(values, 3))
            return jnp.moveaxis(averages.reshape(*instances, *averages.shape[1:]), len(instances), 0), True
        if not all(batched[:3]):
            axes = [0 if b else None for b in batched]
            return jax.vmap(functools.partial(products, layout=layout), in_axes=axes)(*arrays), True
        return run(*_whole(size, batched, arrays)), True

    return run


@functools.cache
def _shared(layout: Layout) -> Any:
    """Attention for q (batch, times, heads, queries, size), for each time over the first ``length`` (batch, times)
    steps, as ``seen`` (batch, times, steps) says, of the same keys and values: a product of matrices."""

    run = _by_device(_fastest_shared, shared_products, layout)

    @run.def_vmap
    def more(size: int, batched: list[bool], *arrays: Array) -> tuple[Array, bool]:
        if any(batched[3:]):
            result = run(*(_flat(x, x.ndim - 2) for x in _whole(size, batched, arrays)))
            return result.reshape(size, len(result) // size, *result.shape[1:]), True
        # More times at which the keys are the same.
        *own, keys, values = arrays
        whole = _whole(size, batched[:3], own)
        inside = (jnp.moveaxis(x, 0, 1).reshape(x.shape[1], size * x.shape[2], *x.shape[3:]) for x in whole)
        result = run(*inside, keys, values)
        times = result.shape[1] // size
        return jnp.moveaxis(result.reshape(len(result), size, times, *result.shape[2:]), 1, 0), True

    return run


def _by_device(on_gpu: Callable[..., Array], elsewhere: Callable[..., Array], layout: Layout) -> custom_vmap:
    """One of two functions of the same arrays, and how ``vmap`` adds an axis is still to be said."""

    def run(*arrays: Array) -> Array:
        gpu, default = (functools.partial(way, layout=layout) for way in (on_gpu, elsewhere))
        return lax.platform_dependent(*arrays, **({"cuda": gpu} if IS_THERE else {}), default=default)

    return custom_vmap(run)


def _whole(size: int, batched: list[bool], arrays: Sequence[Array]) -> list[Array]:
    """All of some arrays with the axis that ``vmap`` adds to those that are ``batched``."""
    return [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(arrays, batched, strict=True)]


def _flat(array: Array, own: int) -> Array:
    """An array with one axis before its ``own`` last ones, which may be of no steps."""
    first = array.ndim - own
    return array.reshape(math.prod(array.shape[:first]), *array.shape[first:])


def _fastest_shared(q: Array, length: Array, seen: Array, keys: Array, values: Array, layout: Layout) -> Array:
    is_long = min(q.shape[1], layout.steps(keys)) >= LEAST_AT_ONCE
    way = shared_kernel if is_long and q.dtype.itemsize < 4 and layout.finite else shared_products
    return way(q, length, seen, keys, values, layout)


def products(q: Array, keys: Array, values: Array, length: Array, seen: Array, layout: Layout) -> Array:
    """Attention as two products, for which XLA is left to find the best way."""
    k = "...gsd" if layout.keys_inside else "...sgd"
    v = "...gse" if layout.values_inside else "...sge"
    product = functools.partial(
        jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.promote_types(q.dtype, jnp.float32)
    )
    # Of a single query it is a product of a matrix and a vector, for which a CPU need not copy the keys.
    alone = q.shape[-2] == 1
    scores = product(f"{k},...gd->...gs", keys, q[..., 0, :]) if alone else product(f"...gmd,{k}->...gms", q, keys)
    there = (jnp.arange(layout.steps(keys)) < length[..., None]) & (seen >= 0)
    seen, inside = (jnp.expand_dims(x, (-2,) if alone else (-2, -3)) for x in (seen > 0, there))
    scores = jnp.where(seen, scores * layout.scale, layout.fill)
    weights = jax.nn.softmax(jnp.where(inside, scores, -jnp.inf), where=inside).astype(values.dtype)
    if not layout.finite:
        values = jnp.where(jnp.expand_dims(there, (-1, -3 if layout.values_inside else -2)), values, 0)
    averages = product(f"...gs,{v}->...ge" if alone else f"...gms,{v}->...gme", weights, values).astype(values.dtype)
    return averages[..., None, :] if alone else averages


def shared_products(q: Array, length: Array, seen: Array, keys: Array, values: Array, layout: Layout) -> Array:
    def at_one_time(q: Array, length: Array, seen: Array) -> Array:
        return products(q, keys, values, length, seen, layout)

    return jax.vmap(at_one_time, in_axes=1, out_axes=1)(q, length, seen)


def kernel(
    q: Array, keys: Array, values: Array, length: Array, seen: Array, layout: Layout, interpret: bool = False
) -> Array:
    instances = q.shape[:-3]
    q, keys, values, length, seen = (_flat(x, own) for x, own in zip((q, keys, values, length, seen), OWN, strict=True))
    batch, heads, queries, size = q.shape
    out = values.shape[-1]
    steps = layout.steps(keys)
    half = q.dtype.itemsize < 4
    rows = LEAST_ROWS if half else 2 ** math.ceil(math.log2(queries))
    if half:
        shares = _shares(batch * heads, steps, 2 ** math.ceil(math.log2(size + out)))
    else:
        shares = _single_shares(batch * heads, steps, rows * max(size, out))
    parts = shares.parts

    def cache(inside: bool, size: int) -> pl.BlockSpec:
        if inside:
            return pl.BlockSpec((None, None, steps, size), lambda b, h, n: (b, h, 0, 0))
        return pl.BlockSpec((None, steps, None, size), lambda b, h, n: (b, 0, h, 0))

    def of_head(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, *shape), lambda b, h, n: (b, h, *(0 for _ in shape)))

    def of_part(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, None, *shape), lambda b, h, n: (b, h, n, *(0 for _ in shape)))

    shapes = [(queries, out), (queries,), (queries,)][: 3 if parts > 1 else 1]
    dtype = jnp.float32 if parts > 1 else values.dtype
    found = pl.pallas_call(
        functools.partial(_part, layout=layout, rows=rows, tile=shares.tile, parts=parts, half=half),
        out_shape=[outline((batch, heads, parts, *shape), dtype) for shape in shapes],
        grid=(batch, heads, parts),
        in_specs=[
            pl.BlockSpec((1,), lambda b, h, n: (b,)),
            of_head(queries, size),
            cache(layout.keys_inside, size),
            cache(layout.values_inside, out),
            pl.BlockSpec((None, steps), lambda b, h, n: (b, 0)),
        ],
        out_specs=[of_part(*shape) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=shares.warps, num_stages=shares.stages),
        interpret=interpret,
        name="attention",
    )(length, q, keys, values, seen)
    if parts == 1:
        return found[0].reshape(*instances, heads, queries, out)
    averages = pl.pallas_call(
        _together,
        out_shape=outline((batch, heads, queries, out), values.dtype),
        grid=(batch, heads, queries),
        in_specs=[of_head(parts, *shape) for shape in shapes],
        out_specs=of_head(queries, out),
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
        name="attention_of_parts",
    )(*found)
    return averages.reshape(*instances, heads, queries, out)


class Shares(NamedTuple):
    """How the steps of every head are shared out."""

    parts: int
    """Among so many programs."""
    tile: int
    """So many steps at a time."""
    warps: int
    stages: int
    """So many tiles are on their way from memory at once."""


def _shares(heads: int, steps: int, numbers: int) -> Shares:
    """In half precision, with so many numbers of a key and a value."""
    alone = heads in MULTIPROCESSORS
    tile = min(TILE, ROOM // numbers) * (2 if alone else 1)
    parts = 1 if alone else max(1, min(PROGRAMS // heads, pl.cdiv(steps, tile)))
    # With fewer tiles on their way, a multiprocessor has room for three programs.
    return Shares(parts, tile, WARPS, stages=3 if heads * parts <= PROGRAMS else 2)


def _single_shares(heads: int, steps: int, numbers: int) -> Shares:
    """In single precision, with so many numbers at a step for all queries."""
    tile = max(16, SINGLE_TILE // numbers)
    parts = max(1, min(pl.cdiv(SINGLE_PROGRAMS, heads), pl.cdiv(steps, 2 * tile)))
    return Shares(parts, tile, warps=1, stages=SINGLE_STAGES)


def shared_kernel(
    q: Array, length: Array, seen: Array, keys: Array, values: Array, layout: Layout, interpret: bool = False
) -> Array:
    batch, times, heads, queries, size = q.shape
    out = values.shape[-1]
    steps = layout.steps(keys)
    number = jnp.arange(steps, dtype=jnp.int32)
    seen = jnp.where(number < length[:, :, None], seen, -1).astype(jnp.int8)
    first = jnp.min(jnp.where(seen >= 0, number, steps), -1)
    last = jnp.max(jnp.where(seen >= 0, number + 1, 0), -1)

    def cache(inside: bool, size: int) -> pl.BlockSpec:
        if inside:
            return pl.BlockSpec((None, None, steps, size), lambda b, h, m, n: (b, h, 0, 0))
        return pl.BlockSpec((None, steps, None, size), lambda b, h, m, n: (b, 0, h, 0))

    def of_query(size: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, times, None, None, size), lambda b, h, m, n: (b, 0, h, m, 0))

    def for_all_heads(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, *shape), lambda b, h, m, n: (b, *(0 for _ in shape)))

    return pl.pallas_call(
        functools.partial(_some_times, layout=layout),
        out_shape=outline((batch, times, heads, queries, out), values.dtype),
        grid=(batch, heads, queries, pl.cdiv(times, TIMES)),
        in_specs=[
            of_query(size),
            for_all_heads(times),
            for_all_heads(times),
            for_all_heads(times, steps),
            cache(layout.keys_inside, size),
            cache(layout.values_inside, out),
        ],
        out_specs=of_query(out),
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=3 if max(size, out) <= 128 else 2),
        interpret=interpret,
        name="attention_of_many",
    )(q, first, last, seen, keys, values)


def _some_times(q: Any, first: Any, last: Any, seen: Any, keys: Any, values: Any, found: Any, layout: Layout) -> None:
    """One program: the averages for one query at some times, of which each sees steps from ``first`` to ``last``."""
    # In the order in which those that see most come first: the others fill up what is left of the device.
    time = (pl.num_programs(3) - 1 - pl.program_id(3)) * TIMES
    own = pl.ds(time, TIMES)
    used = time + jnp.arange(TIMES, dtype=jnp.int32) < q.shape[0]
    queries = triton.load(q.at[own, :], mask=used[:, None], other=0.0)
    begin = jnp.min(triton.load(first.at[own], mask=used, other=keys.shape[0]))
    end = jnp.max(triton.load(last.at[own], mask=used, other=0))
    out = values.shape[1]

    def body(n: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        so_far, top, weight = carry
        number = n * TILE + jnp.arange(TILE, dtype=jnp.int32)
        inside, steps = number < end, pl.ds(n * TILE, TILE)
        k = triton.load(keys.at[steps, :], mask=inside[:, None], other=0.0)
        scores = layout.scale * dot(queries, k, trans_b=True)
        here = triton.load(seen.at[own, steps], mask=used[:, None] & inside[None, :], other=-1)
        scores = jnp.where(here > 0, scores, layout.fill)
        scores = jnp.where(here >= 0, scores, LOWEST)
        higher = jnp.maximum(top, jnp.max(scores, 1))
        fades = jnp.exp(top - higher)
        weights = jnp.where(here >= 0, jnp.exp(scores - higher[:, None]), 0.0)
        v = triton.load(values.at[steps, :], mask=inside[:, None], other=0.0)
        new = dot(weights.astype(v.dtype), v)
        return so_far * fades[:, None] + new, higher, weight * fades + jnp.sum(weights, 1)

    lowest = jnp.full(TIMES, LOWEST, jnp.float32)
    start = jnp.zeros((TIMES, out), jnp.float32), lowest, jnp.zeros(TIMES, jnp.float32)
    sums, _, total = lax.fori_loop(lax.div(begin, jnp.int32(TILE)), _divided(end, TILE), body, start)
    averages = _average(sums, total[:, None]).astype(found.dtype)
    triton.store(found.at[own, :], averages, mask=used[:, None])


def _part(
    length: Any,
    q: Any,
    keys: Any,
    values: Any,
    seen: Any,
    *found: Any,
    layout: Layout,
    rows: int,
    tile: int,
    parts: int,
    half: bool,
) -> None:
    """One program: a part of the steps of one head, as a sum of values, the score by which it is to be scaled, and the
    sum of their weights; or their average, if it is all of the steps."""
    count = length[0]
    share = _divided(count, parts * tile) * tile
    first = pl.program_id(2) * share
    last = jnp.minimum(first + share, count)
    all_rows, used = span(0, rows), jnp.arange(rows, dtype=jnp.int32) < q.shape[0]
    queries = triton.load(q.at[all_rows, :], mask=used[:, None], other=0.0)
    out = values.shape[1]

    def body(n: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        so_far, top, weight = carry
        start = first + n * tile
        inside = start + jnp.arange(tile, dtype=jnp.int32) < last
        steps = pl.ds(start, tile)
        k = triton.load(keys.at[steps, :], mask=inside[:, None], other=0.0)
        scores = layout.scale * (dot(queries, k, trans_b=True) if half else _product(queries, k))
        here = triton.load(seen.at[steps], mask=inside, other=-1)
        scores = jnp.where((here > 0)[None, :], scores, layout.fill)
        scores = jnp.where((here >= 0)[None, :], scores, LOWEST)
        higher = jnp.maximum(top, jnp.max(scores, 1))
        fades = jnp.exp(top - higher)
        weights = jnp.where((here >= 0)[None, :], jnp.exp(scores - higher[:, None]), 0.0)
        v = triton.load(values.at[steps, :], mask=inside[:, None], other=0.0)
        new = dot(weights.astype(v.dtype), v) if half else _sum(weights, v)
        return so_far * fades[:, None] + new, higher, weight * fades + jnp.sum(weights, 1)

    start = jnp.zeros((rows, out), jnp.float32), jnp.full(rows, LOWEST, jnp.float32), jnp.zeros(rows, jnp.float32)
    tiles = _divided(jnp.maximum(last - first, 0), tile)
    sums, greatest, total = lax.fori_loop(0, tiles, body, start)
    if parts == 1:
        sums = _average(sums, total[:, None])
    triton.store(found[0].at[all_rows, :], sums.astype(found[0].dtype), mask=used[:, None])
    for ref, array in zip(found[1:], (greatest, total), strict=False):
        triton.store(ref.at[all_rows], array, mask=used)


def _together(sums: Any, greatest: Any, total: Any, result: Any) -> None:
    """One program: the average for one query, out of what the parts of its head have found."""
    query = pl.program_id(2)
    parts = sums.shape[0]
    rows = 2 ** math.ceil(math.log2(parts))
    all_parts, used = span(0, rows), jnp.arange(rows, dtype=jnp.int32) < parts
    top = triton.load(greatest.at[all_parts, query], mask=used, other=LOWEST)
    factors = jnp.exp(top - jnp.max(top))
    weight = jnp.sum(factors * triton.load(total.at[all_parts, query], mask=used, other=0.0))
    whole = jnp.sum(factors[:, None] * triton.load(sums.at[all_parts, query, :], mask=used[:, None], other=0.0), 0)
    result[query, :] = _average(whole, weight).astype(result.dtype)


def _average(sums: Array, weight: Array) -> Array:
    """That of no steps is 0."""
    return sums / jnp.where(weight > 0, weight, 1.0)


def _divided(number: Array, by: int) -> Array:
    """A quotient, rounded up: always in 32 bits."""
    return lax.div(number + jnp.int32(by - 1), jnp.int32(by))


# In single precision matrix units would round, and there are too few rows to multiply matrices otherwise.


def _product(q: Array, k: Array) -> Array:
    return jnp.sum(q[:, None, :] * k[None, :, :], 2)


def _sum(weights: Array, v: Array) -> Array:
    return jnp.sum(weights[:, :, None] * v[None, :, :], 1)
