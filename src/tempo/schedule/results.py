"""Which points of an output are handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tempo.analysis.relations import Relations
from tempo.given import resolve
from tempo.graph.node import Edge, Graph
from tempo.graph.structural import RECURRENT
from tempo.symbolic import conjunction
from tempo.symbolic.polyhedral import span

MOST_KNOWN = 2**12
"""How many numbers of steps are remembered: those of a dim, or of a few together."""


def handed_out(relations: Relations, numbers: Mapping[Any, int], edge: Edge) -> tuple[range, ...]:
    """All points where an output is defined, if they are a box; the steps of its dims otherwise."""
    if edge.node.op is RECURRENT and edge.is_here:
        defined = relations.defined_by_cases(edge.node)
        own = {d: span(defined, d) or (0, -1) for d in edge.domain}
        box = conjunction(part for d, (first, last) in own.items() for part in (d >= first, d <= last))
        if relations.points(box, edge.domain).is_subset(defined):
            return tuple(range(first, last + 1) for first, last in own.values())
    return tuple(range(d.bound.evaluate(numbers)) for d in edge.domain)


def made(graph: Graph, numbers: Mapping[Any, int], name: str) -> tuple[range, ...]:
    """The points of an output after a run in which dims made these numbers of steps."""
    return handed_out(Relations(replace(graph, stops={}), numbers), numbers, graph.outputs[name])


class Cuts:
    """Outputs that were computed for all ``steps`` that dims may make, cut to those that they made.

    Which points those are is found with isl, which takes longer than a short run and keeps some memory each time; so it
    is found once for every number of steps.
    """

    def __init__(self, graph: Graph, steps: Mapping[str, Sequence[range]]) -> None:
        self.graph = graph
        self.steps = steps
        self.known: dict[tuple[Any, ...], tuple[slice, ...]] = {}

    def __call__(self, numbers: Mapping[Any, int], name: str, array: Any) -> Any:
        """An output after a run in which dims made these numbers of steps."""
        key = (name, *numbers.values())
        if key not in self.known:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            self.known[key] = self._parts(numbers, name)
        return array[self.known[key]]

    def _parts(self, numbers: Mapping[Any, int], name: str) -> tuple[slice, ...]:
        pairs = zip(made(self.graph, numbers, name), self.steps[name], strict=True)
        points = [slice(real.start - most.start, real.stop - most.start) for real, most in pairs]
        return (*points, *(slice(0, size) for size in resolve(self.graph.outputs[name].shape, numbers)))
