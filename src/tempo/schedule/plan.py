"""What a program's plan says: a value that can be printed, saved, changed and given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tempo.errors import ProgramError
from tempo.graph.node import Graph
from tempo.symbolic import Dim


@dataclass(frozen=True)
class Plan:
    """How much is computed at once. ``blocks``: by the names of dims, how many steps of what has no recurrence over the
    dim; all of them where nothing is said."""

    blocks: Mapping[str, int] = field(default_factory=dict)

    def sizes(self, graph: Graph) -> dict[Dim, int]:
        """The blocks by dim."""
        dims = {d.name: d for d in graph.dims if d.origin is d}
        for name, size in self.blocks.items():
            if name not in dims:
                raise ProgramError(
                    f"the plan has blocks of {name}, and program '{graph.name}' has no such dim",
                    hint=f"its dims are: {', '.join(dims)}",
                )
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ProgramError(
                    f"blocks of {name} = {size!r}: a block is a positive integer", hint="the number of steps at once"
                )
        return {dims[name]: size for name, size in self.blocks.items()}
