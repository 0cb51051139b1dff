"""What XLA is told when it compiles."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tempo.backends.jax import compiling
from tempo.backends.jax.compiling import (
    GRAPHS,
    LIBRARY_ONLY,
    ONCE,
    is_for_matrix_units,
    is_tall,
    options,
    prepared,
    products,
    waits,
)

CUDA = SimpleNamespace(platform="gpu", client=SimpleNamespace(platform_version="cuda 13000"), compute_capability="9.0")
VOLTA = SimpleNamespace(platform="gpu", client=CUDA.client, compute_capability="7.0")
CPU = SimpleNamespace(platform="cpu", client=SimpleNamespace(platform_version="cpu"))


def lowered(subscripts: str, *shapes: tuple[int, ...]) -> jax.stages.Lowered:
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(lambda *arrays: jnp.einsum(subscripts, *arrays)).lower(*arrays)


@pytest.mark.parametrize(
    "subscripts, left, right, sides",
    [
        ("ij,jk->ik", (20, 3), (3, 5), {20, 5, 3}),
        ("bij,bjk->bik", (7, 20, 3), (7, 3, 5), {20, 5, 3}),
        ("abi,abo->io", (4, 6, 3), (4, 6, 5), {24, 3, 5}),
        ("i,i->", (48,), (48,), {1, 48}),
    ],
)
def test_sides_of_products(subscripts: str, left: tuple[int, ...], right: tuple[int, ...], sides: set[int]) -> None:
    ((*found,),) = products(lowered(subscripts, left, right).as_text())
    assert set(found) == sides


def test_bfloat16_is_a_product_too() -> None:
    half = jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)
    assert list(products(jax.jit(jnp.matmul).lower(half, half).as_text())) == [(4, 4, 4)]


def test_tall_products() -> None:
    """All steps of a batch with the weights of a small network; not a vocabulary, and not a step."""
    assert is_tall((128_000, 64, 48))
    assert is_tall((64, 48, 128_000))
    assert not is_tall((4, 3072, 128_256))
    assert not is_tall((64, 1024, 256))


def test_the_library_computes_tall_products_alone() -> None:
    tall = lowered("ij,jk->ik", (20_000, 48), (48, 64))
    assert options(tall, CUDA) == LIBRARY_ONLY
    assert options(tall, CPU) is None
    assert options(lowered("ij,jk->ik", (64, 48), (48, 64)), CUDA) is None
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((20_000, 48), (48, 48))]
    both = jax.jit(lambda x, w: (x @ w, w @ w)).lower(*shapes)
    assert options(both, CUDA) is None


def test_nothing_is_looked_for_where_it_takes_longer_than_what_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = lowered("ij,jk->ik", (64, 3072), (3072, 3072))
    assert prepared(prompt, CUDA, once=True) == ONCE
    assert prepared(prompt, CPU, once=True) is None
    assert prepared(prompt, CUDA) is None
    long = lowered("ij,jk->ik", (2**20, 4096), (4096, 4096))
    assert prepared(long, CUDA, once=True) is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=fusion")
    assert prepared(prompt, CUDA, once=True) is None


def test_matrix_units_make_products_in_single_precision() -> None:
    """Those of a batch with weights; not of one row, of short sums or many matrices, nor where less is asked for."""
    assert is_for_matrix_units((64, 768, 3072))
    assert is_for_matrix_units((64, 50_257, 768))
    assert is_for_matrix_units((50_257, 64, 2048))
    assert not is_for_matrix_units((1, 768, 3072))
    assert not is_for_matrix_units((2048, 2048, 2048))
    assert not is_for_matrix_units((64, 64, 128_000))
    assert not is_for_matrix_units((128_000, 64, 48))
    assert not is_for_matrix_units((128_000, 256, 256))

    def function(x: jax.Array, w: jax.Array, many: jax.Array, half: jax.Array) -> Any:
        exact = partial(jnp.matmul, precision="highest")
        loop = lax.fori_loop(0, 3, lambda _, x: exact(x, w), x)
        return loop, exact(x[:1], w), exact(many, many), jnp.matmul(x, w), exact(half, half)

    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (64, 64), (3, 64, 64))]
    lowered = jax.jit(function).lower(*arrays, jax.ShapeDtypeStruct((64, 64), jnp.bfloat16))
    before = lowered.as_text()
    for other in (CPU, VOLTA):
        assert prepared(lowered, other) is None and lowered.as_text() == before
    assert prepared(lowered, CUDA) is None
    (line,) = [line for line in lowered.as_text().splitlines() if "num_primitive_operations = 3" in line]
    assert "tensor<64x64xf32>" in line and "HIGHEST" not in line
    assert lowered.compiler_ir("stablehlo").operation.verify()


def several(x: jax.Array, n: Any) -> Any:
    return lax.fori_loop(0, n, lambda _, x: 2 * x, x)


@pytest.mark.parametrize(
    "function, is_waited_for",
    [
        pytest.param(lambda x, n: several(x, n), True, id="number given"),
        pytest.param(lambda x, n: several(x, 5), False, id="number known"),
        pytest.param(lambda x, n: lax.while_loop(lambda x: x.sum() < 10, lambda x: 2 * x, x), True, id="data"),
        pytest.param(lambda x, n: lax.fori_loop(0, n, lambda _, x: several(x, n), x), True, id="one inside"),
        pytest.param(lambda x, n: lax.fori_loop(0, n, lambda _, x: several(x, 5), x), False, id="a known one inside"),
        pytest.param(lambda x, n: x + n, False, id="none"),
    ],
)
def test_loops_that_a_host_waits_for(function: Any, is_waited_for: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are CUDA graphs, unless a user or a release of JAX says otherwise; what else is asked for is asked for as
    well."""
    found = jax.jit(lambda x, w, n: function(x @ w, n)).lower(jnp.ones((20_000, 48)), jnp.ones((48, 64)), 3)
    assert waits(found.compiler_ir("stablehlo")) == is_waited_for
    monkeypatch.setattr(compiling, "LEAST_VERSION", jax.__version_info__)
    assert prepared(found, CUDA) == (LIBRARY_ONLY | GRAPHS if is_waited_for else LIBRARY_ONLY)
    assert prepared(found, CPU) is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_command_buffer=")
    assert prepared(found, CUDA) == LIBRARY_ONLY
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(compiling, "LEAST_VERSION", (*jax.__version_info__[:2], jax.__version_info__[2] + 1))
    assert prepared(found, CUDA) == LIBRARY_ONLY


def test_xla_knows_what_is_put_into_graphs() -> None:
    """A wrong name would be an error on GPUs alone."""
    jax.jit(lambda x: x).lower(1.0).compile(compiler_options=GRAPHS)
