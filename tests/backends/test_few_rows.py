"""Products of a few rows with a large matrix: the kernel, interpreted, and where it is put in place of XLA's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tempo.backends.jax.compiling import prepared
from tempo.backends.jax.few_rows import Shares, product, shares_of
from tempo.backends.jax.replaced import FewRows, Side
from tests.backends.test_compiling import CPU, CUDA, VOLTA

AMPERE = SimpleNamespace(platform="gpu", client=CUDA.client, compute_capability="8.0")
KERNEL = 'name = "few_rows"'


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(
    "rows, columns, summed",
    [
        pytest.param(16, 128, 256, id="whole tiles"),
        pytest.param(5, 100, 384, id="rows and columns that fill no tile"),
        pytest.param(33, 64, 128, id="one part"),
        pytest.param(2, 70, 128 * 11, id="parts of different lengths"),
        pytest.param(1, 100, 256, id="one row"),
    ],
)
def test_the_kernel_makes_the_product(rows: int, columns: int, summed: int, dtype: Any) -> None:
    random = np.random.default_rng(0)
    x, matrix = (jnp.asarray(random.normal(size=(n, summed)), dtype) for n in (rows, columns))
    found = product(x, matrix, interpret=True)
    assert found.dtype == dtype
    expected = np.asarray(x, np.float64) @ np.asarray(matrix, np.float64).T
    rounded = jnp.asarray(expected, dtype).astype(jnp.float32)
    np.testing.assert_allclose(found.astype(jnp.float32), rounded, rtol=jnp.finfo(dtype).eps, atol=1e-3)


def test_sums_are_shared_out_so_that_all_programs_run_at_once() -> None:
    """Those of Llama's matrices: 80, 48, 256 and 48 tiles of columns for 264 programs; in two rounds if need be."""
    assert shares_of(5120, 3072) == Shares(parts=3, tiles=8)
    assert shares_of(3072, 3072) == Shares(parts=5, tiles=5)
    assert shares_of(16384, 3072) == Shares(parts=1, tiles=24)
    assert shares_of(3072, 8192) == Shares(parts=5, tiles=13)
    assert shares_of(128256, 3072) == Shares(parts=1, tiles=24)
    assert shares_of(24576, 3072) == Shares(parts=2, tiles=12)
    assert shares_of(64, 128) == Shares(parts=1, tiles=1)
    # Six parts of two tiles are all of eleven: none is left without any.
    assert shares_of(64, 128 * 11) == Shares(parts=6, tiles=2)


def text(function: Any, *shapes: tuple[int, ...], dtype: Any = jnp.bfloat16, device: Any = CUDA) -> str:
    """A StableHLO program as XLA is given it for a device."""
    # A function of its own: JAX keeps what it has lowered, and what is in there now would be there for the next device.
    lowered = jax.jit(lambda *arrays: function(*arrays)).lower(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes))
    prepared(lowered, device)
    assert lowered.compiler_ir("stablehlo").operation.verify()
    return lowered.as_text()


def at_points(x: jax.Array, w: jax.Array) -> jax.Array:
    """As a program has it: a product at every point of a dim."""
    return jax.vmap(lambda x: jnp.einsum("oi,i->o", w, x))(x)


@pytest.mark.parametrize(
    "function, shapes",
    [
        pytest.param(lambda x, w: jnp.einsum("bi,oi->bo", x, w), ((16, 2048), (2048, 2048)), id="rows first"),
        pytest.param(at_points, ((16, 2048), (2048, 2048)), id="matrix first"),
        pytest.param(lambda x, w: jnp.einsum("abi,oi->abo", x, w), ((4, 4, 2048), (2048, 2048)), id="two axes of rows"),
        pytest.param(lambda x, w: jnp.einsum("ib,oi->bo", x, w), ((2048, 16), (2048, 2048)), id="rows that lie apart"),
        pytest.param(lambda x, w: jnp.einsum("oi,i->o", w, x), ((1024,), (2**17, 1024)), id="one row, a huge matrix"),
    ],
)
def test_it_makes_products_of_few_rows(function: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """In every form that they come in, on GPUs that it was measured on."""
    found = text(function, *shapes)
    assert found.count(KERNEL) == 1 and "stablehlo.dot_general" not in found
    for other in (CPU, VOLTA, AMPERE):
        assert KERNEL not in text(function, *shapes, device=other)


@pytest.mark.parametrize(
    "subscripts, shapes, dtype",
    [
        pytest.param("bi,oi->bo", ((1, 2048), (2**16 - 1, 2048)), jnp.bfloat16, id="one row"),
        pytest.param("bi,oi->bo", ((65, 2048), (2048, 2048)), jnp.bfloat16, id="many rows"),
        pytest.param("bi,oi->bo", ((16, 1024), (1024, 1024)), jnp.bfloat16, id="a small matrix"),
        pytest.param("bi,io->bo", ((16, 2048), (2048, 2048)), jnp.bfloat16, id="columns that lie apart"),
        pytest.param("bi,oi->bo", ((16, 2000), (2048, 2000)), jnp.bfloat16, id="no whole tiles"),
        pytest.param("bi,boi->bo", ((16, 2048), (16, 2048, 2048)), jnp.bfloat16, id="a matrix for each row"),
        pytest.param("bi,oi->bo", ((16, 2048), (2048, 2048)), jnp.float32, id="single precision"),
        pytest.param("oi,oi->", ((2048, 2048), (2048, 2048)), jnp.bfloat16, id="no columns"),
    ],
)
def test_xla_makes_all_others(subscripts: str, shapes: tuple[tuple[int, ...], ...], dtype: Any) -> None:
    found = text(lambda *arrays: jnp.einsum(subscripts, *arrays), *shapes, dtype=dtype)
    assert KERNEL not in found and "stablehlo.dot_general" in found


def test_a_program_has_each_form_once() -> None:
    """Two products of one form and one of another, in a loop; what else there is in a program stays."""

    def function(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        def step(_: Any, x: jax.Array) -> jax.Array:
            wide = jnp.tanh(jnp.einsum("bi,oi->bo", x, v))
            return at_points(wide[:, :2048], w) + at_points(wide[:, 2048:], w)

        return lax.fori_loop(0, 3, step, x)

    found = text(function, (16, 2048), (2048, 2048), (4096, 2048))
    assert found.count(KERNEL) == 2 and found.count("call @tempo_few_rows_") == 3
    assert "stablehlo.tanh" in found and "stablehlo.while" in found


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(FewRows((Side((3, 256), (1,)), Side((70, 256), (1,))), 1, "bf16"), id="rows first"),
        pytest.param(FewRows((Side((70, 256), (1,)), Side((3, 256), (1,))), 0, "bf16"), id="matrix first"),
        pytest.param(FewRows((Side((2, 256, 3), (1,)), Side((70, 256), (1,))), 1, "bf16"), id="rows that lie apart"),
        pytest.param(FewRows((Side((4, 3, 64, 2), (3, 2)), Side((6, 7, 2, 64), (2, 3))), 1, "bf16"), id="several axes"),
        pytest.param(FewRows((Side((70, 256), (1,)), Side((256,), (0,))), 0, "bf16"), id="a vector"),
    ],
)
def test_a_form_is_what_dot_general_makes(form: FewRows) -> None:
    random = np.random.default_rng(0)
    left, right = (jnp.asarray(random.normal(size=side.shape), jnp.bfloat16) for side in form.sides)
    axes = form.sides[0].axes, form.sides[1].axes
    found, expected = form(left, right, interpret=True), lax.dot_general(left, right, (axes, ((), ())))
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found.astype(jnp.float32), expected.astype(jnp.float32), rtol=0.01, atol=1e-3)
