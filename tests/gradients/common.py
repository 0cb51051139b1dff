"""What the tests of gradients share: a comparison with JAX, in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tempo as tp

F64 = tp.float64
Tensor = tp.RecurrentTensor
Array = Any


def close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=1e-9, atol=1e-12)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def squared_norm(g: Tensor) -> Tensor:
    """The sum of squares of a tensor over all its steps."""
    return tp.sum(g[(slice(None),) * len(g.domain)] ** 2)


def check(
    prog: tp.Program,
    bounds: dict[Any, int],
    loss: Tensor,
    wrt: dict[str, Tensor],
    reference: Callable[..., Array],
    **inputs: Array,
) -> None:
    """The loss of a program against ``reference(**inputs)``, in three ways: its value, its gradients with
    respect to the inputs named in ``wrt``, and the gradients of their squared norm, which go
    through the adjoints.
    """
    with prog:
        gradients = tp.grad(loss, wrt)
        penalty = sum(squared_norm(g) for g in gradients.values())
        prog.output("loss", loss)
        for name, gradient in gradients.items():
            prog.output(f"d_{name}", gradient)
        for name, gradient in tp.grad(penalty, wrt).items():
            prog.output(f"dd_{name}", gradient)

    def value(chosen: dict[str, Array]) -> Array:
        return reference(**{**inputs, **chosen})

    def penalty_of(chosen: dict[str, Array]) -> Array:
        return sum(jnp.sum(g**2) for g in jax.grad(value)(chosen).values())

    @jax.jit
    def expected(chosen: dict[str, Array]) -> tuple[Array, ...]:
        return value(chosen), jax.grad(value)(chosen), jax.grad(penalty_of)(chosen)

    result = prog.evaluate(bounds, **inputs)
    loss_, first, second = expected({name: inputs[name] for name in wrt})
    close(result.loss, loss_)
    for name in wrt:
        close(result[f"d_{name}"], first[name])
        close(result[f"dd_{name}"], second[name])
