"""What the records of the primitives share: shape rules, axes, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.dtypes import DType
from tempo.errors import DtypeError, ShapeError
from tempo.graph.node import Edge, Shape, Size, show_shape
from tempo.source import user_line
from tempo.symbolic import Dim, Expr
from tempo.tensor import RecurrentTensor, describe


def places(edges: Sequence[Edge]) -> list[tuple[str, Any]]:
    """Where an operation and its operands were written."""
    return [("here", user_line()), *((describe(e), e.node.source) for e in edges)]


def broadcast_shapes(op: str, edges: Sequence[Edge], shapes: Sequence[Shape] | None = None) -> Shape:
    """NumPy's broadcasting; sizes that are expressions must be equal as expressions."""
    shapes = [e.shape for e in edges] if shapes is None else shapes
    rank = max((len(s) for s in shapes), default=0)
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = {s[axis]: None for s in shapes if len(s) >= -axis and s[axis] != 1}
        if len(sizes) > 1:
            listed = " and ".join(show_shape(e.shape) for e in edges)
            raise ShapeError(
                f"{op}: shapes {listed} do not broadcast: axis {axis} has sizes " + " and ".join(map(str, sizes)),
                places=places(edges),
                hint="sizes must be equal or 1; expressions such as t + 1 are equal only to themselves",
            )
        result.append(next(iter(sizes), 1))
    return tuple(result)


def normal_axis(op: str, edge: Edge, axis: int) -> int:
    rank = len(edge.shape)
    if not isinstance(axis, int | np.integer) or isinstance(axis, bool) or not -rank <= axis < rank:
        hint = f"axes are integers from {-rank} to {rank - 1}" if rank else "a scalar has no axes"
        if edge.domain:
            d = axis if isinstance(axis, Dim) else edge.domain[-1]
            hint += f"; to go over the steps of {d.name}, stack them first: x[0:{d.bound}] has them as axis 0"
        raise ShapeError(
            f"{op}: axis {axis} is out of range for shape {show_shape(edge.shape)}",
            places=places([edge]),
            hint=hint,
        )
    return int(axis) % rank


def listed(value: Any) -> list[Any]:
    """One thing, or several."""
    return list(value) if isinstance(value, Iterable) else [value]


def normal_axes(op: str, edge: Edge, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Axes as a sorted tuple of non-negative integers; None means all."""
    if axis is None:
        return tuple(range(len(edge.shape)))
    axes = tuple(sorted(normal_axis(op, edge, a) for a in listed(axis)))
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{op}: axis {axis} names an axis twice", places=places([edge]))
    return axes


def require_integer(op: str, edge: Edge) -> None:
    if not dtypes.is_integer(edge.dtype):
        raise DtypeError(
            f"{op}: indices must be integers, found {edge.dtype.name}",
            places=places([edge]),
            hint="cast with .astype(tp.int32)",
        )


def require_numbers(op: str, edges: Sequence[Edge], hint: str = "cast with .astype(tp.int32)") -> None:
    if any(dtypes.is_bool(edge.dtype) for edge in edges):
        raise DtypeError(f"{op}: bool tensors have no arithmetic", places=places(edges), hint=hint)


def to_float(x: RecurrentTensor) -> RecurrentTensor:
    """The tensor in the float type in which functions such as exp are computed."""
    from tempo.ops.elementwise import astype

    return astype(x, dtypes.float_of(x.dtype))


def accumulate_in(x: np.ndarray, dtype: DType | None = None) -> np.ndarray:
    """An array in the type in which sums over it are kept (float32 for half precision)."""
    return x.astype(dtypes.accumulator_of(x.dtype if dtype is None else dtype), copy=False)


def is_symbolic(size: Size) -> bool:
    return isinstance(size, Expr)
