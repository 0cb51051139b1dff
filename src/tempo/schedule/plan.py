"""What a program's plan says: a value that can be printed, saved, changed and given back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tempo.errors import ProgramError
from tempo.graph.node import Graph
from tempo.symbolic import Dim


@dataclass(frozen=True)
class Plan:
    """How much is computed at once, and how often it is compiled.

    ``blocks``: by the names of dims, how many steps of what has no recurrence over the dim; all of them where nothing
    is said. ``buckets``: by the names of dims, the steps at which loops over the dim begin another piece, each compiled
    for the sizes that ranges such as ``0:t + 1`` have in it; where nothing is said, Tempo chooses; ``[]`` for no cuts.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def sizes(self, graph: Graph) -> dict[Dim, int]:
        """The blocks by dim."""
        dims = _dims(graph, "blocks", self.blocks)
        for name, size in self.blocks.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ProgramError(
                    f"blocks of {name} = {size!r}: a block is a positive integer", hint="the number of steps at once"
                )
        return {dims[name]: size for name, size in self.blocks.items()}

    def cuts(self, graph: Graph) -> dict[Dim, tuple[int, ...]]:
        """The steps at which buckets begin, by dim."""
        dims = _dims(graph, "buckets", self.buckets)
        for name, cuts in self.buckets.items():
            whole = all(isinstance(step, int) and not isinstance(step, bool) for step in cuts)
            if not whole or list(cuts) != sorted({*cuts}) or any(step < 1 for step in cuts):
                raise ProgramError(
                    f"buckets of {name} = {cuts!r}: not positive integers, each greater than the one before",
                    hint="the steps at which the next bucket begins, or [] for none",
                )
        return {dims[name]: tuple(cuts) for name, cuts in self.buckets.items()}


def _dims(graph: Graph, what: str, names: Iterable[str]) -> dict[str, Dim]:
    """The dims of a program by name, among which these names must be."""
    dims = {d.name: d for d in graph.dims if d.origin is d}
    for name in names:
        if name not in dims:
            raise ProgramError(
                f"the plan has {what} of {name}, and program '{graph.name}' has no such dim",
                hint=f"its dims are: {', '.join(dims)}",
            )
    return dims
