"""How far reads look back along dims, and by how much computing later can make them look back rather than ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tempo.analysis.causality import Distance, retimed, steps_back
from tempo.analysis.relations import Read
from tempo.graph.node import Node, find_dim
from tempo.graph.structural import RECURRENT
from tempo.symbolic import Dim, Slice

Shifts = dict[tuple[Node, Dim], int]
"""By how many steps of a loop over a dim a node is computed later than its own step says."""


@dataclass(eq=False)
class Dependence:
    """A read, with the steps it looks back along each dim."""

    read: Read
    numbers: Mapping[Any, int]
    shifts: Shifts
    distances: dict[Dim, Distance] = field(default_factory=dict)

    @property
    def consumer(self) -> Node:
        return self.read.consumer

    @property
    def producer(self) -> Node:
        return self.read.producer

    def distance(self, family: Dim) -> Distance:
        """The least and greatest number of a loop's steps back; None if nothing is read at all."""
        steps = self.unshifted(family)
        shift = self.shifts.get((self.consumer, family), 0) - self.shifts.get((self.producer, family), 0)
        if steps is None or shift == 0:
            return steps
        low, high = steps
        return None if low is None else low + shift, None if high is None else high + shift

    def unshifted(self, family: Dim) -> Distance:
        """``distance`` if every node were computed at the loop's own step."""
        if family not in self.distances:
            self.distances[family] = self._distance(family)
        return self.distances[family]

    def _distance(self, family: Dim) -> Distance:
        own, theirs = find_dim(self.consumer, family), find_dim(self.producer, family)
        if own is None or theirs is None:  # a fold reads all steps of a dim that it does not have
            return None, None
        if self.read.index is not None:
            item = self.read.index[self.producer.domain.index(theirs)]
            if not isinstance(item, Slice):
                back = (own + own.start) - (item + theirs.start)
                if back.is_constant:
                    return back.constant, back.constant
        return steps_back(self.read, own, theirs, self.numbers)


def by_consumer(dependences: Iterable[Dependence]) -> dict[Node, list[Dependence]]:
    """What nodes read."""
    found: dict[Node, list[Dependence]] = {}
    for d in dependences:
        found.setdefault(d.consumer, []).append(d)
    return found


def by_producer(dependences: Iterable[Dependence]) -> dict[Node, list[Dependence]]:
    """Who reads nodes."""
    found: dict[Node, list[Dependence]] = {}
    for d in dependences:
        found.setdefault(d.producer, []).append(d)
    return found


class Among:
    """Finds the dependences of which both ends are among some nodes, in their order."""

    def __init__(self, dependences: Sequence[Dependence]) -> None:
        self.reads: dict[Node, list[tuple[int, Dependence]]] = {}
        for at, d in enumerate(dependences):
            self.reads.setdefault(d.consumer, []).append((at, d))

    def __call__(self, nodes: Sequence[Node]) -> list[Dependence]:
        members = set(nodes)
        found = [(at, d) for node in members for at, d in self.reads.get(node, ()) if d.producer in members]
        return [d for _, d in sorted(found, key=lambda pair: pair[0])]


def delays(dependences: Sequence[Dependence], family: Dim, backwards: bool) -> dict[Node, int] | None:
    """By how many steps to delay the nodes of a circle so that no read of it looks ahead, if that can be done.

    ``h[t + 1] = f(c[t + 1])`` reads f one step back, and f reads c one step ahead: computed one step later, f reads
    both where they are.
    """
    sign = -1 if backwards else 1
    edges = []
    for d in dependences:
        steps = d.unshifted(family)
        if steps is None:
            continue
        back = steps[1] if backwards else steps[0]
        if back is None:
            return None
        edges.append((d.consumer, d.producer, sign * back))
    shift = retimed(edges)
    if shift is None or all(back + shift[c] - shift[p] == 0 for c, p, back in edges):
        return None
    # Tensors with names keep their own steps where they can.
    named = [shift[node] for node in shift if node.op is RECURRENT] or [0]
    return {node: sign * (steps - max(named)) for node, steps in shift.items()}


def allowed(distance: Distance, backwards: bool) -> bool:
    """Whether a loop in this direction has what a read needs by the time it is needed."""
    if distance is None:
        return True
    low, high = distance
    return (high is not None and high <= 0) if backwards else (low is not None and low >= 0)


def stays(distance: Distance) -> bool:
    """Whether a read may stay within one iteration of a loop."""
    if distance is None:
        return False
    low, high = distance
    return low is None or high is None or low <= 0 <= high
