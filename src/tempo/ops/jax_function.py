"""Functions written in JAX, as operations of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType
from tempo.errors import ShapeError
from tempo.graph.node import Edge, Primitive, Shape, show_shape
from tempo.ops.host import Spec, declared
from tempo.source import user_line
from tempo.tensor import RecurrentTensor, TensorLike, apply, as_tensor, common_program

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]


def _infer(
    *edges: Edge, function: Callable[..., Any], position: int, shape: Shape, dtype: DType
) -> tuple[Shape, DType]:
    return shape, dtype


def _reference(*arrays: Array, function: Callable[..., Any], position: int, shape: Any, dtype: DType) -> Array:
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(_has_wide(dtype, *(array.dtype for array in arrays))):
        result = np.asarray(_results(function, [jnp.asarray(array) for array in arrays])[position])
    array: Array = _checked(function, position, result, shape, dtype)
    return array


def _jax(jx: Jx, *operands: Padded, function: Callable[..., Any], position: int, shape: Any, dtype: DType) -> Any:
    for n, operand in enumerate(operands):
        if not all(isinstance(size, int) for size in operand.sizes):
            raise ShapeError(
                f"jax_function: the size of argument {n} of {_name(function)} differs from step to step",
                hint="JAX functions take arrays of one shape; read a range of fixed length, such as x[t - 7:t + 1]",
            )
    # Every result is an operation of its own; XLA computes what they share once.
    result = _results(function, [operand.array for operand in operands])[position]
    return _checked(function, position, result, shape, dtype)


def _gradient(
    g: RecurrentTensor,
    out: RecurrentTensor,
    *operands: RecurrentTensor,
    function: Callable[..., Any],
    position: int,
    shape: Shape,
    dtype: DType,
) -> tuple[RecurrentTensor | None, ...]:
    def pulled_back(n: int) -> Callable[..., Any]:
        def pullback(g: Any, *arguments: Any) -> Any:
            import jax

            def of_one(x: Any) -> Any:
                return _results(function, [*arguments[:n], x, *arguments[n + 1 :]])[position]

            return jax.vjp(of_one, arguments[n])[1](g)[0]

        pullback.__name__ = f"gradient of {_name(function)} by argument {n}"
        return pullback

    if not dtypes.is_float(dtype):
        return (None,) * len(operands)
    return tuple(
        apply(JAX_FUNCTION, (g, *operands), function=pulled_back(n), position=0, shape=x.shape, dtype=x.dtype)
        if dtypes.is_float(x.dtype)
        else None
        for n, x in enumerate(operands)
    )


JAX_FUNCTION = Primitive("jax_function", infer=_infer, reference=_reference, gradient=_gradient, jax=_jax)
"""The result at ``position`` of a function of JAX arrays, at one point."""


def jax_function(function: Callable[..., Any], *arguments: TensorLike, out: Spec | Sequence[Spec]) -> Any:
    """What a function that JAX can trace makes of the arguments' values, at every point.

    ``out`` declares its results, for one point, with ``tp.spec(shape, dtype)``: one spec gives one tensor, a list of
    specs a tuple of tensors, for a function that returns a sequence of arrays. The function is to be pure: it is
    compiled with the program, vectorised over dims, and differentiated by ``jax.vjp``.
    """
    specs = declared("jax_function", function, out)
    program = common_program([a for a in arguments if isinstance(a, RecurrentTensor)])
    tensors = [as_tensor(a, program) for a in arguments]
    _check_shapes(function, tensors, specs)
    results = tuple(
        apply(JAX_FUNCTION, tensors, program=program, function=function, position=n, shape=s.shape, dtype=s.dtype)
        for n, s in enumerate(specs)
    )
    return results[0] if isinstance(out, Spec) else results


def _check_shapes(function: Callable[..., Any], tensors: Sequence[RecurrentTensor], specs: Sequence[Spec]) -> None:
    """Let JAX say what the function returns, where all sizes are known while the program is written."""
    shapes = [*(tensor.shape for tensor in tensors), *(one.shape for one in specs)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return
    import jax

    abstract: Any = jax.ShapeDtypeStruct
    given = [abstract(tensor.shape, tensor.dtype) for tensor in tensors]
    with jax.enable_x64(_has_wide(*(x.dtype for x in tensors), *(one.dtype for one in specs))):
        found = jax.eval_shape(lambda *arrays: _results(function, arrays), *given)
    if len(found) != len(specs):
        raise ShapeError(
            f"jax_function: {_name(function)} returns {len(found)} arrays, and out declares {len(specs)}",
            places=[("here", user_line())],
            hint="out has a spec for every result",
        )
    for n, (result, wanted) in enumerate(zip(found, specs, strict=True)):
        _checked(function, n, result, wanted.shape, wanted.dtype)


def _has_wide(*dtypes_: DType) -> bool:
    """Whether JAX has to be told that there are types of 64 bits, which programs that have them are compiled with."""
    return any(dtype.itemsize == 8 for dtype in dtypes_)


def _results(function: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
    found = function(*arrays)
    return tuple(_array(function, n, r) for n, r in enumerate(found if isinstance(found, tuple | list) else (found,)))


def _array(function: Callable[..., Any], position: int, result: Any) -> Any:
    import jax.numpy as jnp

    try:
        return jnp.asarray(result)
    except (TypeError, ValueError):
        raise ShapeError(
            f"jax_function: result {position} of {_name(function)} is {result!r}, which is no array",
            places=[("here", user_line())],
            hint="return one array for every spec of out, of arrays of JAX or numbers",
        ) from None


def _checked(function: Callable[..., Any], position: int, result: Any, shape: Any, dtype: DType) -> Any:
    if tuple(result.shape) != tuple(shape) or result.dtype != dtype:
        raise ShapeError(
            f"jax_function: result {position} of {_name(function)} is {result.dtype}{show_shape(result.shape)}, "
            f"and out declares {dtype.name}{show_shape(shape)}",
            places=[("here", user_line())],
            hint="out says what the function returns for one point, without axes for dims",
        )
    return result


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
