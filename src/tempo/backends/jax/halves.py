"""Products of large matrices in single precision, each as three products of half precision.

A number of 24 bits is the sum of two of 11 bits each, but for its last two bits, and three of the four products of
these parts are as exact as what single precision makes of the sum. Matrix units multiply them more than ten times as
fast as numbers in single precision are multiplied without.

Half precision has few exponents. So rows are multiplied by a power of two that brings their largest number near the top
of its range, and what is left behind the first 11 bits by another one. Numbers that are smaller than the largest of
their row by 2**32 or more do not fit, nor do infinities: tiles of rows with such numbers are made by matrix units from
numbers in single precision, in as much time as the library takes.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from tempo.backends.jax.padded import outline
from tempo.backends.jax.pallas import THREE_PRODUCTS, dot, pl, triton

Array = Any

TOP = 14
"""The largest number of a row is brought between 2**14 and 2**15; half precision goes up to nearly 2**16."""
LOW = 2.0**11
"""What is left behind the first 11 bits is multiplied by this."""
LEAST = 2.0**-18
"""Numbers that come to less than this have fewer than 18 bits."""
BIAS = 127
"""What is added to an exponent where a number is stored."""
EXPONENTS = 60
"""The largest number of a row is between 2**-60 and 2**60: no product of two powers is too large or too small."""

# What was fastest of some dozen combinations on an H200.
ROWS = 128
"""A program makes so many rows of the result,"""
SUMMED = 64
"""out of so many numbers of each at a time."""
SUMMED_WHOLE = 32
"""Of numbers in single precision, so many at a time."""
STAGES = 3
MULTIPROCESSORS = 132
"""Each has room for one program."""


class Width(NamedTuple):
    """Of a program's tile."""

    columns: int
    warps: int
    time: float
    """How long it takes, beside others."""


WIDTHS = Width(128, warps=8, time=1.0), Width(64, warps=4, time=0.6)
GROUP = 8
"""Programs that run at the same time make so many tiles below each other: they read the same numbers."""


class Halves(NamedTuple):
    """Rows of numbers, each the product of a power of two and the sum of two numbers of half precision. Zeros behind
    them make their number a multiple of ``SUMMED``."""

    whole: Array
    high: Array
    low: Array
    """To be divided by ``LOW``."""
    powers: Array
    """One for every row."""
    is_wide: Array
    """1 for rows that have numbers which do not fit, otherwise 0."""


def halves_of(rows: Array) -> Halves:
    rows = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % SUMMED)))
    sizes = jnp.abs(rows)
    top = jnp.max(sizes, 1, keepdims=True)
    exponent = (lax.bitcast_convert_type(top, jnp.int32) >> 23) - BIAS
    # Nothing is rounded by multiplying with a power of two.
    scaled = rows * _power(TOP - exponent)
    # XLA would leave out a conversion there and back.
    high = lax.reduce_precision(scaled, 5, 10)
    low = (scaled - high) * LOW
    fits = (sizes == 0) | (jnp.abs(scaled) >= LEAST) & (jnp.abs(exponent) <= EXPONENTS)
    return Halves(
        rows,
        high.astype(jnp.float16),
        low.astype(jnp.float16),
        _power(exponent - TOP)[:, 0],
        jnp.any(~fits, 1).astype(jnp.int32),
    )


def _power(exponent: Array) -> Array:
    """Two to this power, or to the nearest one that there is."""
    return lax.bitcast_convert_type(jnp.clip(exponent + BIAS, 1, 2 * BIAS) << 23, jnp.float32)


def product_of(x: Halves, matrix: Halves, interpret: bool = False) -> Array:
    """``x @ matrix.T`` for x (rows, summed) and a matrix (columns, summed)."""
    rows, columns = len(x.whole), len(matrix.whole)
    width = width_of(rows, columns)
    arrays = (*x, *matrix)
    return pl.pallas_call(
        functools.partial(_tile, width=width.columns, interpret=interpret),
        out_shape=outline((rows, columns), jnp.float32),
        grid=(pl.cdiv(rows, ROWS) * pl.cdiv(columns, width.columns),),
        in_specs=[_all_of(array) for array in arrays],
        out_specs=pl.BlockSpec((rows, columns), lambda n: (0, 0)),
        compiler_params=triton.CompilerParams(num_warps=width.warps, num_stages=STAGES),
        interpret=interpret,
        name="halves",
    )(*arrays)


def width_of(rows: int, columns: int) -> Width:
    """Programs run in rounds of as many as there are multiprocessors."""

    def time(width: Width) -> float:
        programs = pl.cdiv(rows, ROWS) * pl.cdiv(columns, width.columns)
        return width.time * int(pl.cdiv(programs, MULTIPROCESSORS))

    return min(WIDTHS, key=time)


def _all_of(array: Array) -> Any:
    return pl.BlockSpec(array.shape, lambda n: (0,) * array.ndim)


def _tile(*refs: Any, width: int, interpret: bool) -> None:
    """One program: a tile of the result."""
    count = len(Halves._fields)
    x, matrix, out = Halves(*refs[:count]), Halves(*refs[count:-1]), refs[-1]
    row, column = _place(pl.cdiv(out.shape[0], ROWS), pl.cdiv(out.shape[1], width))
    left, right = _Rows(x, row * ROWS, ROWS), _Rows(matrix, column * width, width)
    summed = x.whole.shape[1]
    zeros = jnp.zeros((ROWS, width), jnp.float32)

    def of_halves() -> Array:
        powers = left.of(x.powers)[:, None]

        def body(n: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            high, low = sums
            at = pl.ds(n * SUMMED, SUMMED)
            a, b = left.of(x.high, at), right.of(matrix.high, at)
            low = low + dot(a, right.of(matrix.low, at), trans_b=True)
            low = low + dot(left.of(x.low, at), b, trans_b=True)
            # Matrix units do not round what they add up, but cut it off: 3.7e-6 for sums of 3,072. Multiplied by
            # something before it is added, it is not they that add it.
            return high + dot(a, b, trans_b=True) * powers, low

        high, low = lax.fori_loop(jnp.int32(0), jnp.int32(summed // SUMMED), body, (zeros, zeros))
        return (high + low * (powers * (1 / LOW))) * right.of(matrix.powers)[None, :]

    def of_whole() -> Array:
        def body(n: Array, sums: Array) -> Array:
            at = pl.ds(n * SUMMED_WHOLE, SUMMED_WHOLE)
            precision = lax.Precision.HIGHEST if interpret else THREE_PRODUCTS
            a, b = left.of(x.whole, at), right.of(matrix.whole, at)
            return sums + dot(a, b, trans_b=True, precision=precision)

        return lax.fori_loop(jnp.int32(0), jnp.int32(summed // SUMMED_WHOLE), body, zeros)

    is_wide = jnp.max(left.of(x.is_wide)) + jnp.max(right.of(matrix.is_wide)) > 0
    sums = lax.cond(is_wide, of_whole, of_halves)
    triton.store(out.at[left.place, right.place], sums, mask=left.there[:, None] & right.there[None, :])


class _Rows:
    """Some rows of what one operand has, in the padding of which there are zeros."""

    def __init__(self, operand: Halves, first: Array, count: int) -> None:
        self.place = pl.ds(first, count)
        self.there = first + jnp.arange(count, dtype=jnp.int32) < operand.whole.shape[0]
        self.all_there = operand.whole.shape[0] % count == 0

    def of(self, array: Any, *at: Any) -> Array:
        place = array.at[(self.place, *at)]
        if self.all_there:
            return triton.load(place)
        return triton.load(place, mask=self.there[:, None] if at else self.there, other=0)


def _place(rows: int, columns: int) -> tuple[Array, Array]:
    """Which of so many tiles a program makes: programs go down ``GROUP`` tiles, then to the next column of tiles."""
    number = pl.program_id(0)
    group, within = number // (GROUP * columns), number % (GROUP * columns)
    height = jnp.minimum(rows - group * GROUP, GROUP)
    return group * GROUP + within % height, within // height
