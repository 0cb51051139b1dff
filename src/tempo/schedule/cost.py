"""How long a plan takes, roughly: by what it computes, what it moves, and how many kernels it starts.

What is computed element by element reads nothing of its own: it is computed where it is read. Any other kernel takes
the longer of its arithmetic and its traffic; a loop adds the time between iterations. This tells plans apart that
differ by factors, not by percents: ``tp.autotune`` measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, INPUT, RECURRENT
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.convolution import CONVOLUTION
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop, Tree
from tempo.schedule.peak import CHEAP, COSTLY, HABITS, Habits
from tempo.schedule.storage import Storage
from tempo.symbolic import Dim
from tempo.symbolic.intervals import extent


@dataclass(frozen=True)
class Rates:
    """What a device does in a second: the arithmetic of products, that of everything else, and bytes of memory moved;
    and the seconds that a kernel and an iteration of a loop take at least."""

    flops: float
    elements: float
    bytes: float
    kernel: float
    iteration: float
    memory: Habits = HABITS["cpu"]
    """What XLA does with the device's memory."""
    host: bool = True
    """Whether there is memory beside the device's, for stores that do not fit into that."""


# By their order of magnitude, and not measured each time, so that a program's plan is the same whenever it is compiled.
RATES = {
    # An H200. The times of a further small kernel and of a loop's way back were measured there, the others are not.
    "gpu": Rates(flops=4e13, elements=4e12, bytes=4e12, kernel=2e-6, iteration=9e-6, memory=HABITS["gpu"]),
    # Two cores of a server: so chosen that the micro benchmarks take about as long as they do.
    "cpu": Rates(flops=5e10, elements=1e9, bytes=1e10, kernel=1e-6, iteration=5e-6),
}


def seconds(graph: Graph, schedule: Schedule, storage: Storage, rates: Rates) -> float:
    """How long a run takes, roughly."""
    return _Walk(graph, schedule, storage, rates).trees(schedule.trees, {})


class _Walk:
    def __init__(self, graph: Graph, schedule: Schedule, storage: Storage, rates: Rates) -> None:
        self.graph = graph
        self.schedule = schedule
        self.storage = storage
        self.rates = rates

    def trees(self, trees: Sequence[Tree], at_once: Mapping[Dim, int]) -> float:
        """Trees one after the other, in loops that compute so many steps of some dims at once."""
        return sum(self.loop(t, at_once) if isinstance(t, Loop) else self.compute(t, at_once) for t in trees)

    def loop(self, loop: Loop, at_once: Mapping[Dim, int]) -> float:
        once = self.trees(loop.body, {**at_once, loop.dim: loop.block or 1})
        count = len(loop.steps)
        return count * once + (self.rates.iteration * count if count > 1 else 0)

    def compute(self, statement: Compute, at_once: Mapping[Dim, int]) -> float:
        node = statement.node
        if node.op in (INPUT, HOST):
            return 0.0
        spans = {d: self.span(statement, d) for d in node.domain}
        points = math.prod(at_once.get(d.origin, last - first + 1) for d, (first, last) in spans.items())
        shape = [self.extent(size, spans) for size in node.shape]
        if node.op is RECURRENT or node.op.name in CHEAP | COSTLY:
            size = points * math.prod(shape)
            written = size * node.dtype.itemsize if self.is_kept(node) else 0
            return written / self.rates.bytes + (size / self.rates.elements if node.op is not RECURRENT else 0)
        shapes = [[self.extent(size, spans) for size in edge.shape] for edge in node.edges]
        moved = points * math.prod(shape) * node.dtype.itemsize
        for edge, operand in zip(node.edges, shapes, strict=True):
            # What is the same for all points is read once.
            own = {d: span for d, span in spans.items() if d in edge.domain}
            read = math.prod(at_once.get(d.origin, last - first + 1) for d, (first, last) in own.items())
            moved += read * math.prod(operand) * edge.dtype.itemsize
        rate = self.rates.flops if node.op in (EINSUM, CONVOLUTION) else self.rates.elements
        return max(self.rates.kernel, points * _work(node, shape, shapes) / rate, moved / self.rates.bytes)

    def span(self, statement: Compute, dim: Dim) -> tuple[int, int]:
        """The first and the last step of a dim at which a node is computed."""
        if dim.origin in statement.within:
            first, last = (self.schedule.own_step(statement.node, dim, step) for step in statement.within[dim.origin])
            return first, last
        start, stop = self.schedule.steps(statement.node, dim)
        return start, stop - 1

    def extent(self, size: Any, spans: Mapping[Dim, tuple[int, int]]) -> int:
        return extent(size, {**self.schedule.open, **spans}, self.schedule.numbers)

    def is_kept(self, node: Node) -> bool:
        """Whether a node's values outlive the iteration that computes them."""
        families = {family for place in self.schedule.places[node] for family, _ in place}
        store = self.storage.stores[node]
        return not families or any(store.outlives(family) for family in families)


def _work(node: Node, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """The arithmetic of one point."""
    if node.op is EINSUM:
        terms = subscript_terms(node.attributes["subscripts"])[:-1]
        sizes = (zip(term, operand, strict=True) for term, operand in zip(terms, operands, strict=True))
        letters: dict[str, int] = {}
        for letter, size in (pair for pairs in sizes for pair in pairs):
            letters[letter] = max(letters.get(letter, 1), size)
        return 2 * math.prod(letters.values())
    if node.op is CONVOLUTION:
        _, per_group, *window = operands[1]
        return 2 * math.prod(shape) * per_group * math.prod(window)
    return max(map(math.prod, (shape, *operands)))
