"""Calls of Python functions from within a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tempo import dtypes
from tempo.dtypes import DType, DTypeLike
from tempo.errors import DomainError, ProgramError
from tempo.graph.node import Domain, Node, Shape, dims_of, shape_symbols
from tempo.graph.structural import HOST, HOST_RESULT
from tempo.ops.creation import as_shape
from tempo.source import user_line
from tempo.symbolic import Dim
from tempo.tensor import RecurrentTensor, ShapeLike, TensorLike, as_tensor, common_program


class Spec(NamedTuple):
    """The shape and dtype of a result, for one point."""

    shape: Shape
    dtype: DType


def spec(shape: ShapeLike = (), dtype: DTypeLike = "float32") -> Spec:
    """What a host function returns, for one point."""
    return Spec(as_shape(shape), dtypes.as_dtype(dtype))


def declared(op: str, function: Any, out: Spec | Sequence[Spec]) -> tuple[Spec, ...]:
    """What a function that is given to an operation returns."""
    if not callable(function):
        raise ProgramError(
            f"{op}: {function!r} cannot be called",
            places=[("here", user_line())],
            hint=f"the first argument of tp.{op} is the function, the tensors come after it",
        )
    specs: tuple[Any, ...] = tuple(out) if isinstance(out, list | tuple) and not isinstance(out, Spec) else (out,)
    for one in specs:
        if not isinstance(one, Spec):
            raise ProgramError(
                f"{op}: {one!r} in out does not say what the function returns",
                places=[("here", user_line())],
                hint="declare results as out=tp.spec(shape, dtype), or a list of those",
            )
    return specs


def host(
    function: Callable[..., Any],
    *arguments: TensorLike,
    out: Spec | Sequence[Spec] | None = None,
    sequence: Domain | Dim = (),
    batch: Domain | Dim = (),
) -> Any:
    """Call a Python function with the arguments' values, as NumPy arrays.

    Calls are made in the lexicographic order of ``sequence``, one for all points of ``batch`` at once: arguments
    that vary over batch dims, and all results, have those dims as leading axes. ``out`` declares the results with
    ``tp.spec(shape, dtype)``: one spec gives one tensor, a list of specs a tuple of tensors, None no tensor.
    """
    here = user_line()
    specs = declared("host", function, () if out is None else out)
    program = common_program([a for a in arguments if isinstance(a, RecurrentTensor)])
    tensors = [as_tensor(a, program) for a in arguments]
    ordered, together = program.as_domain(sequence), program.as_domain(batch)
    domain = dims_of(frozenset(ordered) | frozenset(together))
    for tensor in tensors:
        stray = [d.name for d in tensor.domain if d not in domain]
        if stray:
            raise DomainError(
                f"host: the argument {tensor} varies over {', '.join(stray)}, "
                "which is neither in sequence nor in batch",
                places=[("here", here), (tensor.name, tensor.edge.node.source)],
                hint="add it to sequence=(...) for one call per step, or to batch=(...) for one call for all steps",
            )
        if shape_symbols(tensor.shape) & set(together):
            raise DomainError(
                f"host: the shape of the argument {tensor} varies over a batch dim",
                places=[("here", here), (tensor.name, tensor.edge.node.source)],
                hint="values of different shapes cannot be handed over in one array",
            )
    sizes = shape_symbols(tuple(size for result in specs for size in result.shape))
    program.check_symbols(sizes)
    stray = [d.name for d in dims_of(sizes) if d not in ordered]
    if stray:
        raise DomainError(
            f"host: the shape of a result varies over {', '.join(stray)}, which is not in sequence",
            places=[("here", here)],
            hint="only results of calls that are made one by one may differ in shape: add it to sequence=(...)",
        )
    if set(ordered) & set(together):
        raise DomainError(
            "host: a dim is both in sequence and in batch",
            places=[("here", here)],
            hint="a dim either orders the calls or is handed over as an axis",
        )
    name = getattr(function, "__name__", "function")
    attributes = {"function": function, "out": specs, "sequence": ordered, "batch": together}
    edges = tuple(t.edge for t in tensors)
    call = Node(HOST, edges, domain, (), dtypes.bool_, here, attributes, name=f"host {name}")
    program.hosts.append(call)
    program.changed()
    results = tuple(
        RecurrentTensor(
            program,
            Node(HOST_RESULT, (call.here(),), domain, shape, dtype, here, {"position": n}).here(),
        )
        for n, (shape, dtype) in enumerate(specs)
    )
    return None if out is None else results[0] if isinstance(out, Spec) else results
