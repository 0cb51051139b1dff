"""Selections: nodes that read some elements of an axis, what they can move through, and what becomes of them then.

A selection of what an operation computes is the operation on selections of its operands, for every operation that does
not mix the elements of the selected axis:

    argmax(x + A, axis=0).take(i)  =  argmax(x + A.take(i, axis=1), axis=0)

While it moves, a selection leaves the number of axes as it is: an index that is a number is a list of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tempo.graph.build import make, reshaped
from tempo.graph.node import Edge, Node, Size
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.creation import FULL, GRID, IOTA
from tempo.ops.gathering import TAKE, TAKE_ALONG_AXIS
from tempo.ops.indexing import PLACE, SLICE
from tempo.ops.shaping import BROADCAST_TO, RESHAPE, TRANSPOSE
from tempo.passes.axes import ALIGNED, operand_axes, with_item
from tempo.passes.rewrite import Rebuilt
from tempo.passes.variables import attribute_in
from tempo.symbolic import Expr

VIEWS = (RESHAPE, TRANSPOSE, BROADCAST_TO)
"""What is not computed at all, but where it is kept."""

SHAPES = {BROADCAST_TO: "shape", RESHAPE: "shape", FULL: "shape", PLACE: "shape", SLICE: "sizes"}
"""The attributes that say how large a result is."""


@dataclass(frozen=True)
class Place:
    """The axis of a value that is selected from, and those along which the indices vary (None for one that an operand
    lacks)."""

    axis: int
    along: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Selection:
    """A node that reads ``count`` elements of an axis of its first operand."""

    node: Node
    place: Place
    count: int

    @property
    def read(self) -> Edge:
        return self.node.edges[0]

    @property
    def part(self) -> float:
        """How much of the axis it reads."""
        size = self.read.shape[self.place.axis]
        assert isinstance(size, int)
        return self.count / size


def selection(node: Node) -> Selection | None:
    """What a node selects, if it does nothing else."""
    if node.op not in (TAKE, TAKE_ALONG_AXIS, SLICE):
        return None
    x, *indices = node.edges
    count: Size
    if node.op is TAKE:
        place = Place(node.attributes["axis"])
        count = math.prod(indices[0].shape)
    elif node.op is TAKE_ALONG_AXIS:
        axis = node.attributes["axis"]
        place = Place(axis, tuple(n for n, size in enumerate(node.shape) if n != axis and size != 1))
        count = node.shape[axis]
    else:
        cut = [n for n, size in enumerate(x.shape) if size != node.shape[n]]
        if len(cut) != 1:
            return None
        place = Place(cut[0])
        count = node.shape[cut[0]]
    size = x.shape[place.axis]
    if not isinstance(size, int) or not isinstance(count, int) or not 0 < count < size:
        return None
    return Selection(node, place, count)


# -- what it moves through --------------------------------------------------------------------------------------------


def operands(edge: Edge, place: Place) -> list[tuple[Edge, Place | None]] | None:
    """The operands of what an edge reads, as its reader sees them, and what of each is needed: all of it (None), or the
    selected elements. None if these elements cannot be computed alone."""
    node = edge.node
    # Steps that are read at once are axes of the value that is read, and of no operation.
    if not all(isinstance(item, Expr) for item in edge.index) or node.op in (IOTA, GRID) or None in place.along:
        return None
    if node.op is EINSUM and any(len(set(term)) < len(term) for term in subscript_terms(node.attributes["subscripts"])):
        return None  # a diagonal is two axes of an operand
    theirs = [n for n in (place.axis, *place.along) if n is not None]
    axes = [operand_axes(node, n) for n in theirs]
    found: list[tuple[Edge, Place | None]] = []
    for n, operand in enumerate(node.edges):
        own = [None if axis is None else axis[n] for axis in axes]
        if None in axes:
            return None
        if own[0] is None:
            found.append((_seen(operand, edge), None))
            continue
        pairs = zip(own, theirs, strict=True)
        if not all(a is None or operand.shape[a] == node.shape[b] for a, b in pairs):
            return None  # a part of the axis, or one with a margin
        if None in own and node.op not in ALIGNED:
            return None
        found.append((_seen(operand, edge), Place(own[0], tuple(own[1:]))))
    return None if None in axes else found


def _seen(operand: Edge, edge: Edge) -> Edge:
    """What the node that an edge reads reads itself, from where the edge is."""
    steps: Any = dict(zip(edge.node.domain, edge.index, strict=True))
    return operand.substitute(steps)


def inside(edge: Edge) -> Edge | None:
    """What an edge reads in another shape, if it is only that."""
    if edge.node.op in VIEWS and all(isinstance(item, Expr) for item in edge.index):
        return _seen(edge.node.edges[0], edge)
    return None


# -- what becomes of it -----------------------------------------------------------------------------------------------


class Moved:
    """The nodes that a selection becomes, which moves on wherever ``moves`` says so."""

    def __init__(self, one: Selection, moves: Callable[[Edge, Place], bool], done: Rebuilt) -> None:
        self.one = one
        self.moves = moves
        self.done = done
        self.made: dict[tuple[Edge, Place | None], Edge] = {}

    def result(self) -> Edge:
        """What is read in place of the node that selects."""
        return reshaped(RESHAPE, self.value(self.one.read, self.one.place), self.one.node.shape)

    def value(self, edge: Edge, place: Place | None) -> Edge:
        """The selected elements of what an edge reads; all of them without a place."""
        if (edge, place) not in self.made:
            self.made[edge, place] = self.whole(edge) if place is None else self.selected(edge, place)
        return self.made[edge, place]

    def whole(self, edge: Edge) -> Edge:
        view = inside(edge)
        return self.done.edge(edge) if view is None else self.again(edge, [self.value(view, None)])

    def selected(self, edge: Edge, place: Place) -> Edge:
        parts = operands(edge, place) if self.moves(edge, place) else None
        if parts is None:
            return self.taken(self.done.edge(edge), place)
        edges = [
            self.spread(self.done.edge(read), place, len(edge.shape))
            if at is not None and None in at.along
            else self.value(read, at)
            for read, at in parts
        ]
        return self.again(edge, edges, place)

    def again(self, edge: Edge, edges: Sequence[Edge], place: Place | None = None) -> Edge:
        """The operation that an edge reads, on other operands."""
        node = edge.node
        steps: Any = dict(zip(node.domain, edge.index, strict=True))
        attributes = {name: attribute_in(value, steps) for name, value in node.attributes.items()}
        if place is not None and node.op in SHAPES:
            name = SHAPES[node.op]
            attributes[name] = with_item(attributes[name], place.axis, self.one.count)
        return make(node.op, *edges, source=node.source, **attributes)

    def taken(self, x: Edge, place: Place) -> Edge:
        """The selected elements of something that stays as it is."""
        node = self.one.node
        if node.op is SLICE:
            start, size, step = (node.attributes[name][self.one.place.axis] for name in ("starts", "sizes", "steps"))
            rank, sizes = len(x.shape), with_item(x.shape, place.axis, size)
            starts, steps = with_item((0,) * rank, place.axis, start), with_item((1,) * rank, place.axis, step)
            return make(SLICE, x, source=node.source, starts=starts, sizes=sizes, steps=steps)
        if not place.along:
            return make(TAKE, x, self.indices(), source=node.source, axis=place.axis)
        axes = [n for n in (*place.along, place.axis) if n is not None]
        turned = _transposed(self.indices(), tuple(sorted(range(len(axes)), key=axes.__getitem__)))
        own = with_item(x.shape, place.axis, self.one.count)
        indices = reshaped(RESHAPE, turned, tuple(size if n in axes else 1 for n, size in enumerate(own)))
        if indices.shape != own:
            indices = make(BROADCAST_TO, indices, source=node.source, shape=own)
        return make(TAKE_ALONG_AXIS, x, indices, source=node.source, axis=place.axis)

    def indices(self) -> Edge:
        """The indices: an axis for each along which they vary, and the selected elements last."""
        node, place = self.one.node, self.one.place
        edge = self.done.edge(node.edges[1])
        if node.op is TAKE:
            return reshaped(RESHAPE, edge, (self.one.count,))
        axes = tuple(n for n in (*place.along, place.axis) if n is not None)
        rest = tuple(n for n in range(len(edge.shape)) if n not in axes)
        return reshaped(RESHAPE, _transposed(edge, (*axes, *rest)), tuple(edge.shape[n] for n in axes))

    def spread(self, x: Edge, place: Place, rank: int) -> Edge:
        """The selected elements of an operand that lacks axes along which the indices vary, and has them then."""
        indices = self.indices()
        along = [n for n in place.along if n is not None]
        sizes = dict(zip(along, indices.shape, strict=False))
        shape = (1,) * (rank - len(x.shape)) + x.shape
        lacking = [n for n in along if shape[n] != sizes[n]]
        if lacking != along:
            full = tuple(sizes[n] if n in lacking else size for n, size in enumerate(shape))
            return self.taken(make(BROADCAST_TO, reshaped(RESHAPE, x, shape), shape=full), place)
        others = [n for n in range(rank) if n not in along]
        at = others.index(place.axis)
        flat = reshaped(RESHAPE, x, tuple(shape[n] for n in others))
        taken = make(TAKE, flat, indices, source=self.one.node.source, axis=at)
        now = [*others[:at], *along, *others[at:]]
        return _transposed(taken, tuple(now.index(n) for n in range(rank)))


def _transposed(edge: Edge, axes: tuple[int, ...]) -> Edge:
    return edge if axes == tuple(range(len(axes))) else make(TRANSPOSE, edge, source=edge.node.source, axes=axes)
