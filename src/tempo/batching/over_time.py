"""Cells that are programs over time: a recurrence over a sentence, inside of a tree of sentences.

A program is compiled for the lengths of its arguments; calls with the same lengths are one kernel. Its function of
arrays, loops over time included, is ``vmap``ped over the calls, as that of any other cell is. A loop that stops on data
then goes on until it has stopped for the last of them; of the others nothing changes any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import tree_util

import tempo as tp
from tempo.batching.trace import KEY, Kind, Trace, kind
from tempo.errors import BoundError, DtypeError, ProgramError, ShapeError, user_line
from tempo.given import can_cast, check_bounds, resolve
from tempo.graph.node import Graph, Node, shape_symbols, show_shape
from tempo.graph.structural import HOST, INPUT
from tempo.runtime.executable import Executable
from tempo.symbolic import Symbol

if TYPE_CHECKING:
    from tempo.batching.cell import Cell

Array = Any


@dataclass(frozen=True, eq=False)
class OverTime:
    """A program as the body of a cell. Its inputs that are named as parameters of ``parameters`` are those; the others
    are the cell's arguments, in their order or by name. ``bounds`` are those that do not follow from arguments."""

    program: tp.Program
    parameters: tp.nn.Module | None
    bounds: Mapping[Any, int]

    def trace(self, cell: Cell, structure: Any, kinds: tuple[Kind, ...]) -> Trace:
        graph = self.program.graph
        for node in graph.nodes:
            if node.op is HOST:
                raise ProgramError(
                    f"cell {cell.name} is a program that calls the host",
                    places=[("here", node.source)],
                    hint="a cell is a function of its arguments",
                )
        if graph.emits:
            raise ProgramError(f"cell {cell.name} is a program that emits values", hint="let it only have outputs")
        _check_outputs(cell, graph)
        inputs = {node.attributes["input"]: node for node in graph.nodes if node.op is INPUT}
        draws = inputs.pop("seed", None) is not None
        names = tuple(self.parameters.parameters()) if self.parameters is not None else ()
        read = tuple(name for name in names if name in inputs)
        free = [name for name in inputs if name not in names]
        order = self._order(cell, structure, free)
        arguments = {name: inputs[name] for name in order}
        bounds = check_bounds(graph, self._bounds(cell, arguments, kinds))
        _check_arguments(cell, arguments, kinds, bounds)
        run = Executable(graph, bounds)
        lowering, wide = run._machine.lowering, run._machine.wide
        if wide:
            raise DtypeError(f"cell {cell.name} computes with 64 bits: 32 bits at most")
        outputs = sorted(graph.outputs)  # as JAX orders the keys of a dict

        def function(parameters: Sequence[Array], arguments: Sequence[Array]) -> tuple[Array, ...]:
            named = [*order, "seed"] if draws else order
            given = {**dict(zip(read, parameters, strict=True)), **dict(zip(named, arguments, strict=True))}
            apart = {
                name: tuple(array) if name in run._machine.apart else array
                for name, array in given.items()
                if name in run._machine.inputs
            }
            found, _ = lowering(apart)
            return tuple([found[name] for name in outputs])

        shapes = self.parameters.parameters() if self.parameters is not None else {}
        own = [jax.ShapeDtypeStruct(tuple(shapes[n].shape), np.dtype(shapes[n].dtype or np.float32)) for n in read]  # type: ignore[no-untyped-call]
        kinds = (*kinds, KEY) if draws else kinds
        given = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in kinds]  # type: ignore[no-untyped-call]
        results = tuple(kind(tuple(s.shape), np.dtype(s.dtype)) for s in jax.eval_shape(function, own, given))
        form = 0 if len(outputs) == 1 else dict.fromkeys(outputs, 0)
        structure = tree_util.tree_structure(form)
        return Trace(
            cell, structure, read, kinds, results, (), (), function=function, stops=bool(graph.stops), draws=draws
        )

    def _bounds(self, cell: Cell, inputs: Mapping[str, Node], kinds: Sequence[Kind]) -> dict[str, int]:
        """The numbers of steps: those that follow from the arguments, and those that were given with the program."""
        needed = {bound.name: (bound, dim) for dim in self.program.graph.dims for bound in dim.bound.symbols()}
        bounds = {getattr(bound, "name", bound): size for bound, size in self.bounds.items()}
        for bound in self.bounds:
            own, _ = needed.get(getattr(bound, "name", bound), (None, None))
            if own is None or (isinstance(bound, Symbol) and bound is not own):
                raise BoundError(
                    f"cell {cell.name}: program '{self.program.name}' has no bound {bound}"
                    f"{' of its own' if own is not None else ''}",
                    hint=f"there are: {', '.join(needed) or 'none'}",
                )
        given = set(bounds)
        for (name, node), one in zip(inputs.items(), kinds, strict=True):
            axes = len(node.domain)
            if len(one.shape) != axes + len(node.shape):
                raise ShapeError(
                    f"cell {cell.name}: argument {name} has shape {one.shape}: {axes} dims of time, then a value"
                )
            for dim, size in zip(node.domain, one.shape, strict=False):
                bound = str(dim.bound)
                if bounds.setdefault(bound, size) != size:
                    other = f"the cell was made with {bound}" if bound in given else "another has"
                    raise ShapeError(
                        f"cell {cell.name}: argument {name} has {size} steps of {dim.name}, {other} {bounds[bound]}"
                    )
        for name, (_, dim) in needed.items():
            if name not in bounds:
                raise BoundError(
                    f"cell {cell.name} is a program, and no argument says how many steps of {dim.name} there are",
                    places=[("here", user_line())],
                    hint=f"tp.cell(program, bounds={{{name}: ...}})",
                )
        return bounds

    def _order(self, cell: Cell, structure: Any, free: Sequence[str]) -> list[str]:
        """The inputs that the arguments are, in their order."""
        args, kwargs = tree_util.tree_unflatten(structure, range(structure.num_leaves))
        named = dict(zip(free, args, strict=False)) | kwargs
        if len(args) > len(free) or len(named) != len(args) + len(kwargs) or set(named) != set(free):
            raise ProgramError(
                f"cell {cell.name} is a program with the inputs {', '.join(free)}, "
                f"called with {len(args)} arguments{''.join(f', {name}=' for name in kwargs)}",
                places=[("here", user_line())],
                hint="every input that is no parameter is an argument: an array",
            )
        if any(not isinstance(n, int) for n in named.values()):
            raise ProgramError(
                f"cell {cell.name} is a program: its arguments are arrays", places=[("here", user_line())]
            )
        return sorted(named, key=named.__getitem__)


def _check_arguments(cell: Cell, inputs: Mapping[str, Node], kinds: Sequence[Kind], bounds: Mapping[Any, int]) -> None:
    """Raise if arguments are not what a program's inputs are declared as."""
    for (name, node), one in zip(inputs.items(), kinds, strict=True):
        expected = tuple(resolve((*(dim.bound for dim in node.domain), *node.shape), bounds))
        if one.shape != expected:
            raise ShapeError(
                f"cell {cell.name}: argument {name} has shape {show_shape(one.shape)}, expected {show_shape(expected)}",
                places=[("here", user_line()), (name, node.source)],
            )
        if not can_cast(one.dtype, node.dtype):
            raise DtypeError(
                f"cell {cell.name}: argument {name} has dtype {one.dtype.name}, "
                f"which does not convert to {node.dtype.name}",
                places=[("here", user_line()), (name, node.source)],
            )


def _check_outputs(cell: Cell, graph: Graph) -> None:
    """Raise if there are results that have as many steps as were made: a kernel's results are all of one size."""
    stopped = {dim.origin: dim for dim in graph.stops}
    bounds = {bound for dim in stopped for bound in dim.bound.symbols()}
    for name, edge in graph.outputs.items():
        if any(d.origin in stopped for d in edge.domain) or bounds & shape_symbols(edge.shape):
            dims = ", ".join(dim.name for dim in stopped.values())
            raise ProgramError(
                f"cell {cell.name} is a program whose output {name} has a value for every step that is made of {dims}",
                places=[("here", edge.node.source)],
                hint="behind a stop, let outputs be of one step, or of all together: x[T - 1], x[0:T].sum()",
            )
