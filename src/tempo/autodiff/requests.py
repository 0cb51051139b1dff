"""Asking for gradients: ``tp.grad`` and what it checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempo import dtypes
from tempo.errors import DtypeError, GradientError, ShapeError
from tempo.graph.node import Edge, Node, show_shape
from tempo.source import SourceLine, user_line
from tempo.symbolic import index as indices
from tempo.temporal import recurrent_node
from tempo.tensor import RecurrentTensor, foreign


@dataclass(frozen=True, eq=False)
class Request:
    """One call of ``tp.grad``: the nodes that stand for the gradients, until they are defined."""

    loss: Edge
    wrt: tuple[Node, ...]
    results: tuple[Node, ...]
    source: SourceLine


def grad(loss: RecurrentTensor, wrt: Any) -> Any:
    """The gradient of ``loss`` with respect to ``wrt``, a tensor or a list, tuple or dict of tensors.

    ``loss`` is a scalar at each point of its domain. The result has the domain, shape and dtype of ``wrt``: dims
    that both have are held at the same point, dims that only ``loss`` has are summed over, and everything else
    flows, through all cases and recurrences.
    """
    structure, tensors = _flatten(wrt)
    here = user_line()
    _check_loss(loss, here)
    for tensor in tensors:
        _check_wrt(loss, tensor, here)
    program = loss.program
    nodes = tuple(tensor.edge.node for tensor in tensors)
    over = loss.edge.node.label
    results = tuple(recurrent_node(f"d({over})/d({n.label})", n.domain, n.shape, n.dtype, here) for n in nodes)
    program.gradients.append(Request(loss.edge, nodes, results, here))
    program.changed()
    return _unflatten(structure, [RecurrentTensor(program, node.here()) for node in results])


def value_and_grad(loss: RecurrentTensor, wrt: Any) -> tuple[RecurrentTensor, Any]:
    """``loss`` and its gradient."""
    return loss, grad(loss, wrt)


def _flatten(wrt: Any) -> tuple[Any, list[Any]]:
    if isinstance(wrt, Mapping):
        return list(wrt), list(wrt.values())
    if isinstance(wrt, list | tuple):
        return type(wrt), list(wrt)
    return None, [wrt]


def _unflatten(structure: Any, results: list[RecurrentTensor]) -> Any:
    if structure is None:
        return results[0]
    if isinstance(structure, list):
        return dict(zip(structure, results, strict=True))
    # Named tuples take their elements one by one.
    return structure(*results) if hasattr(structure, "_fields") else structure(results)


def _check_loss(loss: RecurrentTensor, here: SourceLine) -> None:
    if not isinstance(loss, RecurrentTensor):
        raise GradientError(
            f"tp.grad: the loss must be a tensor of a program, found a {type(loss).__name__}",
            places=[("here", here)],
            hint="tp.grad(loss, wrt) takes the loss itself, not a function that computes it",
        )
    if loss.shape != ():
        raise ShapeError(
            f"tp.grad: the loss must be a scalar at each point, {loss} has shape {show_shape(loss.shape)}",
            places=[("here", here), (loss.name, loss.edge.node.source)],
            hint="sum or average it first, e.g. tp.sum(loss)",
        )
    if not dtypes.is_float(loss.dtype):
        raise DtypeError(
            f"tp.grad: {loss} is {loss.dtype.name}, which has no gradient",
            places=[("here", here), (loss.name, loss.edge.node.source)],
            hint="only floating-point tensors can be differentiated",
        )


def _check_wrt(loss: RecurrentTensor, wrt: Any, here: SourceLine) -> None:
    if not isinstance(wrt, RecurrentTensor):
        raise GradientError(
            f"tp.grad: cannot differentiate with respect to a {type(wrt).__name__}, only to tensors of a program",
            places=[("here", here)],
            hint="wrt is a tensor, or one list, tuple or dict of tensors",
        )
    places = [("here", here), (wrt.name, wrt.edge.node.source)]
    if wrt.program is not loss.program:
        raise foreign(wrt, loss.program)
    if not dtypes.is_float(wrt.dtype):
        raise DtypeError(
            f"tp.grad: cannot differentiate with respect to {wrt}, which is {wrt.dtype.name}",
            places=places,
            hint="only floating-point tensors can be differentiated",
        )
    if not wrt.edge.is_here:
        raise GradientError(
            f"tp.grad: differentiate with respect to the tensor {wrt.name}, not to its part {wrt}",
            places=places,
            hint=f"take the gradient with respect to {wrt.name} and index that: "
            f"tp.grad(loss, {wrt.name})[{indices.show(wrt.edge.index)}]",
        )
