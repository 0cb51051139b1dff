"""Where the boxes of a drawing are, and how arrows go between them: in layers, from top to bottom.

First it is found out which arrows must go up, because there are circles. Then every box gets a layer, so that all other
arrows go down; an arrow that passes a layer, or has its label there, has a place of its own in it, so that it does not
cross boxes. Places are ordered so that few arrows cross, and moved until these are nearly straight. (It is Sugiyama's
method.)
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tempo.graph.traversal import components

Point = tuple[float, float]

# Between boxes, between an arrow and what is beside it, and between layers.
BETWEEN_BOXES = 18.0
BESIDE_ARROWS = 9.0
BETWEEN_LAYERS = 30.0
LABEL_HEIGHT = 14.0

# A layer has at most so many boxes.
MOST_IN_LAYER = 12

SWEEPS = 10

# The part of a box's side that arrows begin and end at.
DOORS = 0.7

# How much straighter an arrow is drawn where it passes layers than where it meets a box.
STRAIGHT = 6.0


@dataclass(frozen=True)
class Box:
    """What is drawn of a tensor."""

    width: float
    height: float


@dataclass(frozen=True)
class Arrow:
    """From one box to another, by their numbers, with a label so wide. The ``loose`` ones go up first, if some must."""

    start: int
    end: int
    label: float = 0.0
    loose: bool = False


@dataclass(frozen=True)
class Layout:
    """The upper left corners of boxes, and for every arrow its way from box to box, the middle of its label, and
    whether it goes up."""

    corners: Sequence[Point]
    ways: Sequence[Sequence[Point]]
    labels: Sequence[Point]
    upward: frozenset[int]
    width: float
    height: float


def layout(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> Layout:
    """Place boxes and arrows, of which none is from a box to itself."""
    upward = find_upward(len(boxes), arrows)
    down = [Arrow(a.end, a.start, a.label) if n in upward else a for n, a in enumerate(arrows)]
    places = _Places(boxes, down, find_layers(len(boxes), down), upward)
    places.order()
    places.straighten()
    return places.drawn(upward)


def find_upward(count: int, arrows: Sequence[Arrow]) -> frozenset[int]:
    """The numbers of arrows without which there are no circles: no more than it takes, and loose ones first."""
    following: dict[int, list[int]] = {n: [] for n in range(count)}
    for arrow in arrows:
        following[arrow.start].append(arrow.end)
    circle = {n: number for number, members in enumerate(components(following)) for n in members}
    chosen: dict[int, list[int]] = {n: [] for n in range(count)}
    upward = set()
    for number in sorted(range(len(arrows)), key=lambda number: arrows[number].loose):
        start, end = arrows[number].start, arrows[number].end
        if circle[start] != circle[end]:
            continue
        if _leads(end, start, chosen):
            upward.add(number)
        else:
            chosen[start].append(end)
    return frozenset(upward)


def _leads(start: int, end: int, following: Mapping[int, Sequence[int]]) -> bool:
    seen = {start}
    ahead = [start]
    while ahead and end not in seen:
        found = {n for n in following[ahead.pop()] if n not in seen}
        seen |= found
        ahead += found
    return end in seen


def find_layers(count: int, arrows: Sequence[Arrow]) -> list[int]:
    """A layer for every box, further down than those of all arrows to it, by two where an arrow has a label."""
    leaving: dict[int, list[Arrow]] = {n: [] for n in range(count)}
    coming: dict[int, list[Arrow]] = {n: [] for n in range(count)}
    for arrow in arrows:
        leaving[arrow.start].append(arrow)
        coming[arrow.end].append(arrow)
    # From the last ones upwards, so that what comes from nowhere is close to where it is read.
    above: dict[int, int] = {}
    filled: dict[int, int] = {}
    for (n,) in components({n: [a.end for a in leaving[n]] for n in range(count)}):
        layer = max((above[a.end] + _length(a) for a in leaving[n]), default=0)
        while filled.get(layer, 0) == MOST_IN_LAYER:
            layer += 1
        above[n] = layer
        filled[layer] = filled.get(layer, 0) + 1
    lowest = max(above.values(), default=0)
    layers = [lowest - above[n] for n in range(count)]
    # What leads nowhere is close to what it reads.
    for n in range(count):
        if not leaving[n] and coming[n]:
            layer = max(layers[a.start] + _length(a) for a in coming[n])
            while layer < layers[n] and filled.get(lowest - layer, 0) == MOST_IN_LAYER:
                layer += 1
            filled[lowest - layers[n]] -= 1
            filled[lowest - layer] = filled.get(lowest - layer, 0) + 1
            layers[n] = layer
    first = min(layers, default=0)
    return [layer - first for layer in layers]


def _length(arrow: Arrow) -> int:
    return 2 if arrow.label else 1


class _Places:
    """Boxes, and the places of arrows in the layers that they pass."""

    def __init__(
        self, boxes: Sequence[Box], arrows: Sequence[Arrow], layers: Sequence[int], upward: frozenset[int]
    ) -> None:
        self.widths = [box.width for box in boxes]
        self.heights = [box.height for box in boxes]
        self.boxes = len(boxes)
        self.rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
        for n, layer in enumerate(layers):
            self.rows[layer].append(n)
        self.above: list[list[tuple[int, float]]] = [[] for _ in boxes]
        self.below: list[list[tuple[int, float]]] = [[] for _ in boxes]
        self.chains: list[list[int]] = []
        """For every arrow the places that it goes through."""
        self.labelled: list[int] = []
        """For every arrow where its label is."""
        for number, arrow in enumerate(arrows):
            passed = range(layers[arrow.start] + 1, layers[arrow.end])
            # A label is beside what reads.
            at = (passed[0] if number in upward else passed[-1]) if passed else None
            chain = [arrow.start]
            for layer in passed:
                chain.append(self.add(layer, arrow.label if layer == at else 0.0))
            chain.append(arrow.end)
            self.labelled.append(chain[at - layers[arrow.start]] if at is not None else arrow.start)
            for a, b in itertools.pairwise(chain):
                weight = STRAIGHT if a >= self.boxes and b >= self.boxes else 1.0
                self.below[a].append((b, weight))
                self.above[b].append((a, weight))
            self.chains.append(chain)

    def add(self, layer: int, label: float) -> int:
        self.widths.append(label)
        self.heights.append(LABEL_HEIGHT if label else 0.0)
        self.above.append([])
        self.below.append([])
        self.rows[layer].append(len(self.widths) - 1)
        return len(self.widths) - 1

    # -- order ---------------------------------------------------------------------------------------------------------

    def order(self) -> None:
        """Put the places of every layer into an order in which few arrows cross."""
        best, fewest = [[*row] for row in self.rows], self.crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            downwards = sweep % 2 == 0
            rows = self.rows[1:] if downwards else self.rows[-2::-1]
            befores = self.rows if downwards else self.rows[:0:-1]
            for before, row in zip(befores, rows, strict=False):
                where = {n: at for at, n in enumerate(before)}
                beside = self.above if downwards else self.below
                means = {n: _mean([(where[m], w) for m, w in beside[n]], at) for at, n in enumerate(row)}
                row.sort(key=means.__getitem__)
            crossings = self.crossings()
            if crossings < fewest:
                best, fewest = [[*row] for row in self.rows], crossings
        self.rows = best

    def crossings(self) -> int:
        total = 0
        for upper, lower in itertools.pairwise(self.rows):
            where = {n: at for at, n in enumerate(lower)}
            passed: list[int] = []
            for n in upper:
                ends = sorted(where[m] for m, _ in self.below[n])
                total += sum(len(passed) - bisect_left(passed, end + 1) for end in ends)
                for end in ends:
                    insort(passed, end)
        return total

    # -- coordinates ---------------------------------------------------------------------------------------------------

    def straighten(self) -> None:
        """Find where in its layer each place is."""
        self.x = [0.0] * len(self.widths)
        for row in self.rows:
            for before, n in itertools.pairwise(row):
                self.x[n] = self.x[before] + self.apart(before, n)
        for sweep in range(SWEEPS):
            for row in self.rows if sweep % 2 == 0 else self.rows[::-1]:
                beside = self.above if sweep % 2 == 0 else self.below
                if sweep >= SWEEPS - 2:
                    self.move(row, [self.above[n] + self.below[n] for n in row])
                else:
                    self.move(row, [beside[n] for n in row])
        left = min((self.x[n] - self.widths[n] / 2 for row in self.rows for n in row), default=0.0)
        self.x = [x - left for x in self.x]

    def apart(self, left: int, right: int) -> float:
        """How far the middles of two neighbours are apart at least."""
        between = BETWEEN_BOXES if max(left, right) < self.boxes else BESIDE_ARROWS
        return (self.widths[left] + self.widths[right]) / 2 + between

    def move(self, row: Sequence[int], beside: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Move places as close as possible to what they are connected with, in their order and apart from each other:
        those that would be too close to each other are moved together. (Isotonic regression.)"""
        offsets = [0.0, *itertools.accumulate(self.apart(a, b) for a, b in itertools.pairwise(row))]
        groups: list[tuple[float, float, int]] = []
        for n, offset, neighbours in zip(row, offsets, beside, strict=True):
            mean = _mean([(self.x[m], w) for m, w in neighbours], self.x[n]) - offset
            weight, size = sum(w for _, w in neighbours) or 0.1, 1
            while groups and groups[-1][0] >= mean:
                other, heavy, more = groups.pop()
                mean = (mean * weight + other * heavy) / (weight + heavy)
                weight, size = weight + heavy, size + more
            groups.append((mean, weight, size))
        means = [mean for mean, _, size in groups for _ in range(size)]
        for n, mean, offset in zip(row, means, offsets, strict=True):
            self.x[n] = mean + offset

    def drawn(self, upward: frozenset[int]) -> Layout:
        tops, bottoms, y = [], [], 0.0
        for row in self.rows:
            tops.append(y)
            y += max((self.heights[n] for n in row), default=0.0)
            bottoms.append(y)
            y += BETWEEN_LAYERS
        layer = {n: number for number, row in enumerate(self.rows) for n in row}
        middle = {n: (tops[layer[n]] + bottoms[layer[n]]) / 2 for n in layer}
        corners = [(self.x[n] - self.widths[n] / 2, middle[n] - self.heights[n] / 2) for n in range(self.boxes)]
        leaves = self.doors([(chain[0], chain[1]) for chain in self.chains])
        enters = self.doors([(chain[-1], chain[-2]) for chain in self.chains])
        ways = []
        for number, chain in enumerate(self.chains):
            start, *passed, end = chain
            way = [(leaves[number], corners[start][1] + self.heights[start])]
            for n in passed:
                way += [(self.x[n], tops[layer[n]]), (self.x[n], bottoms[layer[n]])]
            way.append((enters[number], corners[end][1]))
            ways.append(way[::-1] if number in upward else way)
        labels = [(self.x[n], middle[n]) for n in self.labelled]
        width = max((self.x[n] + self.widths[n] / 2 for n in layer), default=0.0)
        return Layout(corners, ways, labels, upward, width, bottoms[-1] if bottoms else 0.0)

    def doors(self, ends: Sequence[tuple[int, int]]) -> dict[int, float]:
        """Where on the side of its box each arrow begins or ends: beside each other, in the order of the places beyond.
        ``ends`` are the boxes with these places."""
        found: dict[int, float] = {}
        meeting: dict[int, list[int]] = {}
        for number, (box, _) in enumerate(ends):
            meeting.setdefault(box, []).append(number)
        for box, numbers in meeting.items():
            numbers.sort(key=lambda number: self.x[ends[number][1]])
            room = DOORS * self.widths[box]
            for at, number in enumerate(numbers):
                found[number] = self.x[box] - room / 2 + room * (at + 0.5) / len(numbers)
        return found


def _mean(values: Sequence[tuple[float, float]], otherwise: float) -> float:
    return sum(v * w for v, w in values) / sum(w for _, w in values) if values else otherwise
