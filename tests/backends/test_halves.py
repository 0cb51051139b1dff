"""Products of large matrices in single precision: the kernel, interpreted, and where it is put in place of XLA's."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir

from tempo.backends.jax import replaced
from tempo.backends.jax.halves import halves_of, product_of, width_of
from tempo.backends.jax.replaced import Halved, HalvesOf, Side
from tests.backends.test_compiling import CPU, VOLTA
from tests.backends.test_few_rows import AMPERE, text

KERNEL = 'name = "halves"'


def product(x: np.ndarray, matrix: np.ndarray) -> Any:
    return product_of(halves_of(jnp.asarray(x)), halves_of(jnp.asarray(matrix)), interpret=True)


def error(found: Any, x: Any, matrix: Any) -> float:
    """The largest difference from the exact product, beside the sum of its terms' sizes."""
    x, matrix = (np.asarray(array, np.float64) for array in (x, matrix))
    return float(np.max(np.abs(np.asarray(found) - x @ matrix.T) / (np.abs(x) @ np.abs(matrix).T)))


def rows_and_columns(rows: int, columns: int, summed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns, some of which have much larger numbers than others."""
    random = np.random.default_rng(0)
    x, matrix = (random.normal(size=(n, summed)) * np.exp(5 * random.normal(size=(n, 1))) for n in (rows, columns))
    return x.astype(np.float32), matrix.astype(np.float32)


@pytest.mark.parametrize(
    "rows, columns, summed",
    [
        pytest.param(256, 256, 128, id="whole tiles"),
        pytest.param(150, 70, 64, id="rows and columns that fill no tile"),
        pytest.param(128, 64, 100, id="sums that fill no tile"),
        pytest.param(1200, 64, 32, id="more tiles than are made below each other"),
    ],
)
def test_products_are_as_exact_as_in_single_precision(rows: int, columns: int, summed: int) -> None:
    x, matrix = rows_and_columns(rows, columns, summed)
    found = product(x, matrix)
    assert found.shape == (rows, columns) and found.dtype == jnp.float32
    assert error(found, x, matrix) < 2**-22


def test_a_number_is_the_sum_of_two() -> None:
    """Of 11 bits each, in the range of half precision, times a power of two for its row."""
    rows = np.array([[1.0, 3.0, -(1 + 2**-11), 0.0], [2.0**50, 1.5 * 2.0**50, 2.0**19, -(2.0**30)]], np.float32)
    halves = halves_of(jnp.asarray(rows))
    np.testing.assert_array_equal(halves.powers, [2.0 ** (1 - 14), 2.0 ** (50 - 14)])
    high, low = (np.asarray(part, np.float64)[:, :4] for part in (halves.high, halves.low))
    np.testing.assert_array_equal(high[0], [2.0**13, 3 * 2.0**13, -(2.0**13), 0])
    np.testing.assert_array_equal(low[0], [0, 0, -(2.0**2) * 2**11, 0])
    np.testing.assert_array_equal((high + low / 2**11) * np.asarray(halves.powers)[:, None], rows)
    np.testing.assert_array_equal(halves.is_wide, [0, 0])


@pytest.mark.parametrize(
    "row, is_wide",
    [
        pytest.param([1.0, 2.0**-31, 0], False, id="down to 2**-32"),
        pytest.param([1.0, 2.0**-33, 0], True, id="too small beside the largest"),
        pytest.param([1.0, np.inf, 0], True, id="infinite"),
        pytest.param([1.0, np.nan, 0], True, id="not a number"),
        pytest.param([2.0**61, 2.0**61, 0], True, id="all too large"),
        pytest.param([2.0**-61, 2.0**-61, 0], True, id="all too small"),
        pytest.param([0.0, 0, 0], False, id="zeros"),
    ],
)
def test_rows_whose_numbers_do_not_fit_are_known(row: list[float], is_wide: bool) -> None:
    assert bool(halves_of(jnp.asarray([row], jnp.float32)).is_wide[0]) == is_wide


def test_tiles_with_such_rows_are_made_of_single_precision() -> None:
    """As a mask of large numbers beside small ones, of which zeros choose the small ones; and infinities."""
    x, matrix = rows_and_columns(260, 70, 64)
    x[3, 5], matrix[:, 5] = 1e30, 0
    x[130, 7] = np.inf
    x[250] *= 1e35
    found = product(x, matrix)
    finite = np.arange(260) != 130
    assert error(found[finite], x[finite], matrix) < 2**-22
    np.testing.assert_array_equal(found[130], np.sign(matrix[:, 7]) * np.inf)
    # Zero times infinity, of which half of them has made another infinity or none.
    matrix[4, 7] = 0
    found = product(x, matrix)
    assert np.isnan(found[130, 4]) and np.isfinite(found[0, 4])


def test_tiles_are_narrow_where_multiprocessors_would_have_nothing_to_do() -> None:
    assert width_of(8192, 2304).columns == 128
    assert width_of(1024, 1024).columns == 64  # 64 tiles of 128 for 132 multiprocessors
    assert width_of(768, 2304).columns == 128  # 108 of them take less time than two rounds of narrow ones


@pytest.mark.parametrize(
    "subscripts, shapes",
    [
        pytest.param("bi,oi->bo", ((2048, 768), (768, 768)), id="rows with rows"),
        pytest.param("bi,io->bo", ((2048, 768), (768, 768)), id="rows with columns"),
        pytest.param("bi,bo->io", ((4096, 768), (4096, 768)), id="a weight's gradient"),
        pytest.param("bti,oi->bto", ((16, 128, 768), (768, 768)), id="two axes of rows"),
        pytest.param("bi,oi->bo", ((2**15, 768), (768, 768)), id="so many rows that the library makes what is left"),
    ],
)
def test_it_makes_products_of_large_matrices(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    def function(*arrays: Any) -> Any:
        return jnp.einsum(subscripts, *arrays, precision=lax.Precision.HIGHEST)

    found = text(function, *shapes, dtype=jnp.float32)
    assert found.count(KERNEL) == 1 and "stablehlo.dot_general" not in found
    for other in (CPU, VOLTA, AMPERE):
        assert KERNEL not in text(function, *shapes, dtype=jnp.float32, device=other)


@pytest.mark.parametrize(
    "subscripts, shapes, precision",
    [
        pytest.param("bi,oi->bo", ((512, 4096), (4096, 4096)), "highest", id="few rows"),
        pytest.param("bi,oi->bo", ((4096, 128), (4096, 128)), "highest", id="short sums"),
        pytest.param("bi,oi->bo", ((640, 640), (640, 640)), "highest", id="little work"),
        pytest.param("abi,aoi->abo", ((4, 2048, 768), (4, 768, 768)), "highest", id="several products"),
        pytest.param("bi,oi->bo", ((2048, 768), (768, 768)), "default", id="products that may be rounded"),
    ],
)
def test_xla_makes_all_others(subscripts: str, shapes: tuple[tuple[int, ...], ...], precision: str) -> None:
    found = text(lambda *arrays: jnp.einsum(subscripts, *arrays, precision=precision), *shapes, dtype=jnp.float32)
    assert KERNEL not in found and "stablehlo.dot_general" in found


@pytest.mark.parametrize(
    "sides",
    [
        pytest.param((Side((70, 64), (1,)), Side((30, 64), (1,))), id="rows with rows"),
        pytest.param((Side((64, 70), (0,)), Side((64, 30), (0,))), id="columns with columns"),
        pytest.param((Side((5, 8, 7, 4), (3, 1)), Side((4, 6, 8, 3), (0, 2))), id="several axes"),
    ],
)
def test_a_form_is_what_dot_general_makes(sides: tuple[Side, Side]) -> None:
    random = np.random.default_rng(0)
    arrays = [jnp.asarray(random.normal(size=side.shape), jnp.float32) for side in sides]
    parts = [part for side, array in zip(sides, arrays, strict=True) for part in HalvesOf(side)(array)]
    found = Halved(sides)(*parts, interpret=True)
    axes = sides[0].axes, sides[1].axes
    expected = lax.dot_general(*arrays, (axes, ((), ())), precision=lax.Precision.HIGHEST)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def in_loops(x: jax.Array, fixed: jax.Array, changing: jax.Array) -> jax.Array:
    """Two products in a loop inside of another: of a matrix that stays, and of one that the outer loop changes."""

    def inner(_: Any, x: jax.Array, matrix: jax.Array) -> jax.Array:
        x = jnp.tanh(jnp.einsum("bi,oi->bo", x, fixed, precision="highest"))
        return jnp.tanh(jnp.einsum("bi,oi->bo", x, matrix, precision="highest"))

    def outer(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, matrix = carry
        return lax.fori_loop(0, 5, partial(inner, matrix=matrix), x), matrix + 1

    return lax.fori_loop(0, 3, outer, (x, changing))[0]


def places(program: str) -> list[int]:
    """How far every call of what makes halves is indented."""
    lines = [line for line in program.splitlines() if "call @tempo_halves_of_0_main" in line]
    return sorted(len(line) - len(line.lstrip()) for line in lines)


def test_what_stays_the_same_in_a_loop_is_halved_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixed matrix before both loops, the other one before the inner one, the rows of both products inside."""
    shapes = (1024, 1024), (1024, 1024), (1024, 1024)
    found = text(in_loops, *shapes, dtype=jnp.float32)
    assert found.count(KERNEL) == 1
    before, between, *inside = places(found)
    assert before < between < inside[0] == inside[1] and len(inside) == 2
    # Where there is no memory for halves that stay, all are made inside.
    monkeypatch.setattr(replaced, "MOST_KEPT", 2**20 - 1)
    assert places(text(in_loops, *shapes, dtype=jnp.float32)) == [inside[0]] * 4


def test_loops_give_the_same_with_halves_made_before_them() -> None:
    """What is put into a program refers to values outside of its loops, which XLA makes arguments of them: tried with
    sums in place of halves, since a CPU has no such kernels."""
    lowered = jax.jit(in_loops).lower(*(jax.ShapeDtypeStruct((4, 4), jnp.float32) for _ in range(3)))
    module = lowered.compiler_ir("stablehlo")
    products, callers = [], {}

    def visit(one: Any) -> Any:
        operation = one.operation
        if operation.name == "stablehlo.dot_general":
            products.append(operation)
        elif operation.name == "func.call":
            callers[ir.FlatSymbolRefAttr(operation.attributes["callee"]).value] = [operation]
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    with module.context, ir.Location.unknown():
        for product_ in products:
            replaced._inline(product_, callers)
            value, place = replaced._before_loops(product_.operands[1], product_)
            before = ir.InsertionPoint(place)
            product_.operands[1] = ir.Operation.create(
                "stablehlo.add", [value.type], [value, value], ip=before
            ).results[0]
    random = np.random.default_rng(0)
    x, fixed, changing = (jnp.asarray(random.normal(size=(4, 4)) / 4, jnp.float32) for _ in range(3))
    found = lowered.compile()(x, fixed, changing)
    expected = x
    for n in range(3):
        for _ in range(5):
            expected = jnp.tanh(expected @ (2 * fixed).T)
            expected = jnp.tanh(expected @ (2 * (changing + n)).T)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
