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


def handed_out(relations: Relations, numbers: Mapping[Any, int], edge: Edge) -> tuple[range, ...]:
    """All points where an output is defined, if they are a box; the steps of its dims otherwise."""
    if edge.node.op is RECURRENT and edge.is_here:
        defined = relations.defined[edge.node]
        own = {d: span(defined, d) or (0, -1) for d in edge.domain}
        box = conjunction(part for d, (first, last) in own.items() for part in (d >= first, d <= last))
        if relations.points(box, edge.domain).is_subset(defined):
            return tuple(range(first, last + 1) for first, last in own.values())
    return tuple(range(d.bound.evaluate(numbers)) for d in edge.domain)


def made(graph: Graph, numbers: Mapping[Any, int], name: str) -> tuple[range, ...]:
    """The points of an output after a run in which dims made these numbers of steps."""
    return handed_out(Relations(replace(graph, stops={}), numbers), numbers, graph.outputs[name])


def cut(graph: Graph, numbers: Mapping[Any, int], name: str, steps: Sequence[range], array: Any) -> Any:
    """An output that was computed for all ``steps`` that dims may make, for those that they made."""
    parts = [
        slice(real.start - most.start, real.stop - most.start)
        for real, most in zip(made(graph, numbers, name), steps, strict=True)
    ]
    parts += [slice(0, size) for size in resolve(graph.outputs[name].shape, numbers)]
    return array[tuple(parts)]
