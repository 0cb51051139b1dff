"""What XLA is told when it compiles."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tempo.backends.jax.compiling import LIBRARY_ONLY, is_tall, options, products

CUDA = SimpleNamespace(platform="gpu", client=SimpleNamespace(platform_version="cuda 13000"))
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
