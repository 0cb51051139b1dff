"""Buckets: loops cut into pieces, each compiled for the sizes that ranges such as ``0:t + 1`` have in it.

Without cuts every step pays for the largest size: twice the work for a range that grows over the whole loop. A cut
costs the time to compile the loop's body once more. Cutting a piece of L steps in half saves L^2 / 4 steps' worth of
padding wherever in the loop it is (the range grows, or shrinks, by one each step), so pieces of equal length are best:
eight of them leave an eighth of the padding, where as many that double in length leave a third.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tempo.graph.node import Case, Node, Shape, shape_symbols
from tempo.symbolic import Dim
from tempo.symbolic.intervals import interval

# What XLA takes to compile one node of a loop's body: 5 to 9 s for the 360 nodes of a decoder with 12 layers.
COMPILE_SECONDS = 0.02

# How often a program is run once it is compiled, at a guess.
RUNS = 100

# What a step of a loop reads and writes in a second.
CPU_SPEED = 1e10
GPU_SPEED = 3e12

# A loop has at most so many pieces, which begin at multiples of so many steps; the first and the last may have half as
# many.
MOST_PIECES = 8
LEAST_STEPS = 64


@dataclass(frozen=True)
class Buckets:
    """Where loops are cut: over some dims, at given steps; over others, where it pays on a device that reads so many
    bytes a second."""

    given: Mapping[Dim, Sequence[int]] = field(default_factory=dict)
    speed: float = CPU_SPEED

    def pieces(self, family: Dim, start: int, stop: int, sizes: Sizes) -> list[tuple[int, int]]:
        """The pieces of a loop over the steps from ``start`` up to, not including, ``stop``."""
        if not sizes.found:
            return [(start, stop)]
        if family not in self.given:
            return self.suggested(start, stop, sizes)
        pieces: list[tuple[int, int]] = []
        cuts = [start, *(c for c in self.given[family] if start < c < stop), stop]
        for low, high in itertools.pairwise(cuts):
            if pieces and sizes.at(low, high) == sizes.at(*pieces[-1]):
                low = pieces.pop()[0]
            pieces.append((low, high))
        return pieces

    def suggested(self, start: int, stop: int, sizes: Sizes) -> list[tuple[int, int]]:
        """Pieces that are cut in half, those first that gain most, as long as that saves more time than it costs."""
        pieces = [(start, stop)]

        def gain(piece: tuple[int, int]) -> float:
            halves = _halves(*piece)
            steps = [(piece, 1), *((half, -1) for half in halves)]
            return sum(sign * (high - low) * sizes.bytes(low, high) for (low, high), sign in steps) if halves else 0.0

        while len(pieces) < MOST_PIECES:
            gains = [gain(piece) for piece in pieces]
            best = max(range(len(pieces)), key=gains.__getitem__)
            if RUNS * gains[best] / self.speed <= COMPILE_SECONDS * sizes.nodes:
                break
            pieces[best : best + 1] = _halves(*pieces[best])
        return pieces


def _halves(start: int, stop: int) -> list[tuple[int, int]]:
    middle = round((start + stop) / 2 / LEAST_STEPS) * LEAST_STEPS
    if min(middle - start, stop - middle) < LEAST_STEPS // 2:
        return []
    return [(start, middle), (middle, stop)]


@dataclass(frozen=True)
class _Array:
    """What nodes read or compute at a step of a loop. Layers of a model have many of the same kind."""

    shape: Shape
    dim: Dim
    offset: int
    spans: tuple[tuple[Any, tuple[int, int]], ...]


class Sizes:
    """The arrays of a loop's body whose sizes depend on its step."""

    def __init__(self, numbers: Mapping[Any, int]) -> None:
        self.numbers = numbers
        self.nodes = 0
        self.found: Counter[_Array] = Counter()
        """The bytes of an element, of all arrays of a kind."""

    def add(
        self, node: Node, dim: Dim, offset: int, cases: Sequence[Case], spans: Mapping[Any, tuple[int, int]], times: int
    ) -> None:
        """Take a node of the body into account, which is ``offset`` steps behind the loop over ``dim``, and computed
        for so many steps of other dims at once."""
        self.nodes += 1
        edges = [*node.edges, *(case.value for case in cases)]
        for shape, dtype in [(node.shape, node.dtype), *((edge.shape, edge.dtype) for edge in edges)]:
            symbols = shape_symbols(shape)
            if dim in symbols:
                known = tuple((s, span) for s, span in spans.items() if s in symbols)
                self.found[_Array(shape, dim, offset, known)] += times * dtype.itemsize

    def at(self, start: int, stop: int) -> list[int]:
        """How large the arrays get from one step of the loop up to another."""
        result = []
        for array, times in self.found.items():
            spans = {**dict(array.spans), array.dim: (start - array.offset, stop - 1 - array.offset)}
            sizes = (interval(size, spans, self.numbers)[1] for size in array.shape)
            result.append(times * math.prod(max(size, 0) for size in sizes))
        return result

    def bytes(self, start: int, stop: int) -> int:
        """What one step reads and writes of them, padded to these sizes."""
        return sum(self.at(start, stop))
