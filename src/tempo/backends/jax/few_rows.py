"""Products of a few rows with a large matrix, in half precision, in little more time than it takes to read the matrix.

Matrix units multiply 64 rows or more by as few as eight columns. XLA's kernels, and the library's, take the rows of
such a product for those 64, and most of them are padding. Here the columns of the matrix are, of which there are
enough: the product is computed transposed, and a program has room for more of the matrix on its way from memory. So
that all multiprocessors are busy, sums are made in parts where there are few columns; XLA adds them up, together with
what comes behind the product.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from tempo.backends.jax.padded import outline
from tempo.backends.jax.pallas import dot, pl, span, triton

Array = Any

# What was fastest of some dozen combinations on an H200, for 4 to 64 rows.
COLUMNS, SUMMED = 64, 128
"""A program makes so many columns of the result, out of so many numbers of each at a time."""
PROGRAMS = 264
"""So many programs keep all multiprocessors busy, two each."""
MOST_PARTS = 8
WARPS, STAGES = 4, 3
LEAST_ROWS = 16
"""Fewer rows are filled up to these."""
START = 2
"""A program takes as long to begin and to end as it takes for so many tiles."""


class Shares(NamedTuple):
    """How the sums of every column are shared out."""

    parts: int
    """Among so many programs."""
    tiles: int
    """Of which each has so many tiles, the last one the rest."""


def shares_of(columns: int, summed: int) -> Shares:
    """Programs run in rounds of as many as there is room for, each as long as its share takes."""
    tiles = summed // SUMMED

    def rounds(parts: int) -> int:
        share = pl.cdiv(tiles, parts) + START
        return int(pl.cdiv(pl.cdiv(columns, COLUMNS) * parts, PROGRAMS) * share)

    share = pl.cdiv(tiles, min(range(1, min(MOST_PARTS, tiles) + 1), key=rounds))
    return Shares(pl.cdiv(tiles, share), share)


def product(x: Array, matrix: Array, interpret: bool = False) -> Array:
    """``x @ matrix.T`` for x (rows, summed) and a matrix (columns, summed), of a multiple of ``SUMMED`` numbers."""
    (rows, summed), columns = x.shape, matrix.shape[0]
    shares = shares_of(columns, summed)
    sums = pl.pallas_call(
        functools.partial(_some_columns, shares=shares),
        out_shape=outline((shares.parts, rows, columns), jnp.float32 if shares.parts > 1 else x.dtype),
        grid=(pl.cdiv(columns, COLUMNS), shares.parts),
        in_specs=[pl.BlockSpec(array.shape, lambda n, part: (0, 0)) for array in (x, matrix)],
        out_specs=pl.BlockSpec((None, rows, columns), lambda n, part: (part, 0, 0)),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
        name="few_rows",
    )(x, matrix)
    return sums[0] if shares.parts == 1 else jnp.sum(sums, 0).astype(x.dtype)


def _some_columns(x: Any, matrix: Any, out: Any, shares: Shares) -> None:
    """One program: some columns of the result, or a part of their sums."""
    rows, columns = out.shape
    size = max(LEAST_ROWS, 2 ** math.ceil(math.log2(rows)))
    own, all_rows = pl.ds(pl.program_id(0) * COLUMNS, COLUMNS), span(0, size)
    here = pl.program_id(0) * COLUMNS + jnp.arange(COLUMNS, dtype=jnp.int32) < columns
    used = jnp.arange(size, dtype=jnp.int32) < rows
    first = pl.program_id(1) * shares.tiles

    def body(n: Array, so_far: Array) -> Array:
        numbers = pl.ds((first + n) * SUMMED, SUMMED)
        tile = _loaded(matrix.at[own, numbers], None if columns % COLUMNS == 0 else here)
        return so_far + dot(tile, _loaded(x.at[all_rows, numbers], None if size == rows else used), trans_b=True)

    tiles = jnp.minimum(jnp.int32(shares.tiles), jnp.int32(x.shape[1] // SUMMED) - first)
    sums = lax.fori_loop(jnp.int32(0), tiles, body, jnp.zeros((COLUMNS, size), jnp.float32))
    triton.store(out.at[all_rows, own], sums.T.astype(out.dtype), mask=used[:, None] & here[None, :])


def _loaded(place: Any, there: Array | None) -> Array:
    return triton.load(place) if there is None else triton.load(place, mask=there[:, None], other=0.0)
