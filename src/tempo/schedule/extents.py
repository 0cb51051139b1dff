"""The steps at which nodes are computed, which may be more than are needed, and earlier or later than their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from tempo.graph.node import Node, dim_of
from tempo.schedule.dependences import Shifts
from tempo.symbolic import Dim
from tempo.symbolic.intervals import interval


@dataclass
class Extents:
    """What is known of the steps of nodes while loops are chosen."""

    numbers: Mapping[Any, int]
    limits: Mapping[Any, tuple[int, int]]
    """The fewest and the most steps that dims may make which stop on data, by their bounds."""
    spans: dict[Node, dict[Dim, tuple[int, int]]]
    """The first and the last step at which a node is computed."""
    shifts: Shifts
    known_bytes: dict[Any, int] = field(default_factory=dict)

    def offset(self, node: Node, dim: Dim) -> int:
        """How far a loop, which counts the steps of the dim that a user declared, is ahead of those of a node's dim."""
        return dim.start.evaluate(self.numbers) + self.shifts.get((node, dim.origin), 0)

    def in_loop(self, node: Node, family: Dim) -> range:
        """The steps of a loop at which a node is computed."""
        own = dim_of(node, family)
        (low, high), offset = self.spans[node][own], self.offset(node, own)
        return range(low + offset, high + 1 + offset)

    def widen(self, node: Node, family: Dim, start: int, stop: int) -> None:
        """Let a node be computed at all steps of a loop that it is in, and have room for what comes of it."""
        own = dim_of(node, family)
        shift = self.offset(node, own)
        low, high = self.spans[node][own]
        self.spans[node][own] = (min(low, start - shift), max(high, stop - 1 - shift))

    def bytes(self, node: Node, around: Set[Dim] = frozenset()) -> int:
        """What all values of a node take: at one step of the loops ``around``."""
        spans = self.spans[node]
        key = node, frozenset(around), tuple(spans.values())
        if key not in self.known_bytes:
            steps = math.prod(max(last - first + 1, 0) for d, (first, last) in spans.items() if d.origin not in around)
            ranges = {**self.limits, **spans}
            sizes = (interval(s, ranges, self.numbers)[1] for s in node.shape)
            self.known_bytes[key] = steps * math.prod(sizes) * node.dtype.itemsize
        return self.known_bytes[key]
