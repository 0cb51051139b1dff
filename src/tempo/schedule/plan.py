"""What a program's plan says: a value that can be printed, saved, changed and given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tempo.errors import ProgramError
from tempo.graph.node import Graph
from tempo.symbolic import Dim


@dataclass(frozen=True)
class Plan:
    """How much is computed at once, and what is kept apart.

    ``blocks``: by the names of dims, how many steps of what has no recurrence over the dim; all of them where nothing
    is said. ``unroll``: the names of dims, of few steps, that get no loop: each step is computed by code of its own,
    from arrays of its own, so that the weights of a layer are not cut out of those of all layers.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)
    unroll: tuple[str, ...] = ()

    def sizes(self, graph: Graph) -> dict[Dim, int]:
        """The blocks by dim."""
        dims = _declared(graph)
        for name, size in self.blocks.items():
            _check_name(f"blocks of {name}", name, graph)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ProgramError(
                    f"blocks of {name} = {size!r}: a block is a positive integer", hint="the number of steps at once"
                )
        return {dims[name]: size for name, size in self.blocks.items()}

    def unrolled(self, graph: Graph) -> frozenset[Dim]:
        """The dims that get no loop."""
        if isinstance(self.unroll, str):
            raise ProgramError(
                f"the plan unrolls {self.unroll!r}, which is one string", hint=f"give a tuple: ({self.unroll!r},)"
            )
        dims = _declared(graph)
        stopped = {d.name for d in graph.stops}
        for name in self.unroll:
            _check_name(f"{name} unrolled", name, graph)
            if name in self.blocks:
                raise ProgramError(
                    f"the plan has blocks of {name} and unrolls it", hint="steps are in blocks, or each on its own"
                )
            if name in stopped:
                raise ProgramError(
                    f"the plan unrolls {name}, which stops on data",
                    hint="a dim is unrolled whose number of steps is known before the run",
                )
        return frozenset(dims[name] for name in self.unroll)


def _declared(graph: Graph) -> dict[str, Dim]:
    return {d.name: d for d in graph.dims if d.origin is d}


def _check_name(what: str, name: str, graph: Graph) -> None:
    dims = _declared(graph)
    if name not in dims:
        raise ProgramError(
            f"the plan has {what}, and program '{graph.name}' has no such dim",
            hint=f"its dims are: {', '.join(dims)}",
        )
