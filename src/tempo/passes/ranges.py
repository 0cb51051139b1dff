"""Range tiling: a reduction over a long range becomes an accumulation over tiles of it.

    y[t] = sum(f(x[0:t + 1]))

has all elements of f at once, for every step that is computed at once. With a dim k that counts tiles of B steps it is

    part[t, k] = sum(f(x[k*B:min(k*B + B, t + 1)]))
    y[t] = sum(part[t, 0:K])

and in blocks of one step of k that is a loop that adds up the parts.

What is between the range and the reduction, the *chain*, is made anew for every reduction. A softmax needs its greatest
score before it can add up the others, and scores kept in between would be those of the whole range. (Where reductions
share a loop, XLA finds what they have in common.)

A chain may also end in one element of what it leads to. The gradient of ``k[0:t + 1]``, for all its steps, is one
contraction over t that has the range as an axis. Step s of it is an element of tile ``s // B``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempo import dtypes
from tempo.graph.build import make, scalar
from tempo.graph.node import Edge, Graph, Node, Size, normal_size
from tempo.graph.structural import HOST_RESULT, INPUT, RECURRENT
from tempo.ops.contraction import EINSUM
from tempo.ops.creation import CONSTANT, FULL, GRID, INDEX_VALUE, IOTA
from tempo.ops.elementwise import ADD, CAST
from tempo.ops.indexing import PLACE, SLICE
from tempo.ops.reduction import MAX, MIN, SUM
from tempo.ops.shaping import BROADCAST_TO, RESHAPE
from tempo.passes.axes import REDUCTIONS, Axes, operand_axes, reduced_axes, with_item
from tempo.passes.rewrite import Rebuilt, rebuild, through
from tempo.symbolic import Dim, Expr, Slice, as_expr, constant, maximum, minimum
from tempo.symbolic.grid import Grid
from tempo.symbolic.intervals import interval

_KEPT = (CONSTANT, HOST_RESULT, INPUT, RECURRENT)
"""What is there as a whole in any case: a tile is a part of it."""


def tile_ranges(graph: Graph, sizes: Mapping[Dim, int], numbers: Mapping[Any, int]) -> tuple[Graph, dict[Dim, Dim]]:
    """The graph with reductions over ranges of some dims in tiles of so many steps, and the dims that count tiles, each
    with the dim whose ranges they are of.

    ``numbers`` are those of the bounds; of dims that stop on data, the most steps that they may make.
    """
    tiles = _Tiles(graph, sizes, numbers)
    tiled = rebuild(graph, tiles.change) if sizes else graph
    return (tiled, tiles.used) if tiles.used else (graph, {})


@dataclass(frozen=True)
class _Piece:
    """The elements ``start, ..., start + size - 1`` of an axis."""

    start: Expr
    size: Size


_Part = tuple[Node, int, _Piece]
"""A piece of an axis of a node's value."""

_Reads = tuple[tuple[int, _Piece] | None, ...]
"""Per operand an axis and a piece of it that is read; None for all of the operand."""


class _UntiledError(Exception):
    """A chain that cannot be made tile by tile."""


class _Tiles:
    """What all tiles of a graph share: the dims that count them, one for every number of tiles."""

    def __init__(self, graph: Graph, sizes: Mapping[Dim, int], numbers: Mapping[Any, int]) -> None:
        stopped = {d.bound for d in graph.stops}
        self.sizes = sizes
        self.numbers = {bound: number for bound, number in numbers.items() if bound not in stopped}
        self.open = {bound: (0, number) for bound, number in numbers.items() if bound in stopped}
        self.dims: dict[tuple[Dim, int], Dim] = {}
        self.used: dict[Dim, Dim] = {}

    def change(self, node: Node, done: Rebuilt) -> Edge | None:
        for size, axes in reduced_axes(node):
            for family, chain in self.chains(node, size, axes):
                if not chain.is_folded:
                    self.used[chain.tile] = family
                    return chain.reduction(done)
        if node.op is SLICE and node.edges[0].is_here and node.edges[0].node.op in (EINSUM, *REDUCTIONS):
            for axis, size in enumerate(node.edges[0].shape):
                if node.shape[axis] == 1:
                    for family, chain in self.chains(node, size, (axis,)):
                        self.used[chain.tile] = family
                        return chain.element(axis, done)
        return None

    def chains(self, node: Node, size: Size, axes: Axes) -> Iterator[tuple[Dim, _Chain]]:
        """The dims to be tiled of which an axis of a node's operands is a range, each with the chain from there."""
        most = self.between(as_expr(size), {})[1]
        for family, block in self.sizes.items():
            count = -(-most // block)
            if count < 2:
                continue
            tile = self.dims.setdefault((family, count), Dim(f"tile({family.name})", count))
            try:
                chain = _Chain(self, node, axes, tile, block, size)
            except _UntiledError:
                continue
            if any(d.origin is family for d, _ in chain.slices):
                yield family, chain

    def between(self, expr: Expr, ranges: Mapping[Any, tuple[int, int]]) -> tuple[int, int]:
        """The least and the most that an expression can be."""
        numeric = expr.substitute(self.numbers)
        dims = (s for s in numeric.symbols() if isinstance(s, Dim) and s not in ranges)
        steps = {d: (0, self.between(d.bound, {})[1] - 1) for d in dims}
        return interval(numeric, {**self.open, **steps, **ranges})


class _Chain:
    """What leads from ranges to axes of the operands of a node, its ``end``: pieces of other nodes' values."""

    def __init__(self, tiles: _Tiles, end: Node, axes: Axes, tile: Dim, block: int, size: Size) -> None:
        self.tiles = tiles
        self.end = end
        self.tile = tile
        self.block = block
        self.ends = _all_read(axes, self.tile_of(size))
        self.slices: list[tuple[Dim, Slice]] = []
        self.parts: dict[_Part, _Reads | None] = {}
        """What is read for each piece; None if the piece is cut out of the whole."""
        self.follow()

    def tile_of(self, size: Size) -> _Piece:
        """A tile of an axis: the last ones may have fewer elements, or none."""
        start = self.tile * self.block
        left = as_expr(size) - start
        steps = {self.tile: (0, self.tile.bound.constant - 1)}
        if self.tiles.between(left, steps)[0] >= self.block:
            return _Piece(start, self.block)
        return _Piece(start, normal_size(minimum(self.block, maximum(0, left))))

    def follow(self) -> None:
        """Find all pieces, from the end to where ranges are read."""
        pending = [(self.end.edges, self.ends)]
        while pending:
            for edge, read in zip(*pending.pop(), strict=True):
                if read is None:
                    continue
                part = self.inside(edge, *read)
                if isinstance(part, int):
                    item = edge.index[part]
                    assert isinstance(item, Slice)
                    self.slices.append((edge.node.domain[part], item))
                elif part not in self.parts:
                    self.parts[part] = reads = self.reads(*part)
                    if reads is not None:
                        pending.append((part[0].edges, reads))

    def reads(self, node: Node, axis: int, piece: _Piece) -> _Reads | None:
        """What a piece of a node's value is computed from; None if it is a part of what is there as a whole."""
        axes = None if node.op in _KEPT else operand_axes(node, axis)
        if axes is not None:
            return _all_read(axes, self.operand_piece(node, axis, piece))
        if node.op in _KEPT or not node.domain:
            return None
        raise _UntiledError

    def inside(self, edge: Edge, axis: int, piece: _Piece) -> _Part | int:
        """The piece of its node's value that an edge reads; if the axis is a range, which item of its index that is."""
        sliced = [n for n, item in enumerate(edge.index) if isinstance(item, Slice)]
        if axis < len(sliced):
            return sliced[axis]
        own = axis - len(sliced)
        if edge.is_here:
            return edge.node, own, piece
        if piece == self.tile_of(edge.shape[axis]):
            return edge.node, own, self.tile_of(edge.node.shape[own])
        moved = {d for d, item in zip(edge.node.domain, edge.index, strict=True) if item != d}
        if moved & (piece.start.symbols() | as_expr(piece.size).symbols()):
            raise _UntiledError
        return edge.node, own, piece

    def operand_piece(self, node: Node, axis: int, piece: _Piece) -> _Piece:
        """What a piece of a node's value is made of."""
        if node.op is SLICE:
            return _Piece(piece.start + node.attributes["starts"][axis], piece.size)
        if node.op is PLACE:
            size = node.edges[0].shape[axis]
            if piece == self.tile_of(node.shape[axis]):
                return self.tile_of(size)
            return _Piece(piece.start, normal_size(minimum(piece.size, maximum(0, as_expr(size) - piece.start))))
        return piece

    @property
    def is_folded(self) -> bool:
        """Whether a reduction of all steps can be put together from blocks of the dim itself, which keeps less: the
        values that are reduced need not be there for all steps."""
        ends = (item.substitute(self.tiles.numbers) for _, item in self.slices)
        return not self.parts and all(s.start.is_constant and s.stop.is_constant for s in ends)

    # -- the graph for a tile -------------------------------------------------------------------------------------

    def reduction(self, done: Rebuilt) -> Edge:
        """The reduction of every tile, and of what comes of them."""
        node, source = self.end, self.end.source
        edges = self.operands(done)
        attributes: dict[str, Any] = dict(node.attributes)
        combined: dict[str, Any] = {"axes": (0,)}
        wide = dtypes.accumulator_of(node.dtype)
        if wide != node.dtype:  # every tile would be rounded
            edges = [make(CAST, edge, source=source, dtype=wide) for edge in edges]
        if node.op in (MAX, MIN):
            neutral = dtypes.lowest if node.op is MAX else dtypes.highest
            initial = attributes["initial"]  # or what stands for the extremum of a tile without elements
            attributes["initial"] = scalar(neutral(wide) if initial is None else initial, wide)
            combined["initial"] = None
        part = make(node.op, *edges, source=source, **attributes).node
        every = Slice(constant(0), self.tile.bound)
        parts = Edge(part, tuple(every if d is self.tile else d for d in part.domain))
        op = SUM if node.op is EINSUM else node.op
        result = make(op, parts, source=source, **combined)
        return result if wide == node.dtype else make(CAST, result, source=source, dtype=node.dtype)

    def element(self, axis: int, done: Rebuilt) -> Edge:
        """An element of the tile that it is in, in place of one of the whole."""
        (whole,) = self.operands(done)
        attributes = self.end.attributes
        at = as_expr(attributes["starts"][axis])
        index = tuple(at // self.block if d is self.tile else d for d in whole.node.domain)
        starts = with_item(attributes["starts"], axis, normal_size(at % self.block))
        return make(SLICE, Edge(whole.node, index), source=self.end.source, **{**attributes, "starts": starts})

    def operands(self, done: Rebuilt) -> list[Edge]:
        """What the end of the chain reads, for a tile."""
        built: dict[_Part, Edge] = {}

        def read(edge: Edge, axis: int, piece: _Piece) -> Edge:
            part = self.inside(edge, axis, piece)
            if isinstance(part, int):
                item = edge.index[part]
                assert isinstance(item, Slice)
                start = item.start + piece.start
                found = done.edge(Edge(edge.node, with_item(edge.index, part, Slice(start, start + piece.size))))
            else:
                found = through(edge, built[part])
            # That a tile is never cut short may be known of what is read, and not of what it is read from.
            return found if found.shape[axis] == piece.size else _cut(found, axis, _Piece(constant(0), piece.size))

        def operands(node: Node, reads: _Reads) -> list[Edge]:
            pairs = zip(node.edges, reads, strict=True)
            return [done.edge(edge) if own is None else read(edge, *own) for edge, own in pairs]

        for part, reads in sorted(self.parts.items(), key=lambda item: item[0][0].number):
            node, axis, piece = part
            if reads is None:
                built[part] = _cut(done.edge(node.here()), axis, piece)
            else:
                built[part] = _computed(node, axis, piece, operands(node, reads))
        return operands(self.end, self.ends)


def _all_read(axes: Axes, piece: _Piece) -> _Reads:
    return tuple(None if axis is None else (axis, piece) for axis in axes)


def _computed(node: Node, axis: int, piece: _Piece, operands: Sequence[Edge]) -> Edge:
    """A piece of a node's value, from operands of which pieces are read."""
    found = make(node.op, *operands, source=node.source, **_attributes(node, axis, piece))
    if node.op is not IOTA:
        return found
    first = make(INDEX_VALUE, source=node.source, expr=piece.start)
    return make(ADD, found, make(CAST, first, source=node.source, dtype=node.dtype), source=node.source)


def _cut(edge: Edge, axis: int, piece: _Piece) -> Edge:
    """A piece of what an edge reads."""
    rank = len(edge.shape)
    return make(
        SLICE,
        edge,
        source=edge.node.source,
        starts=with_item((0,) * rank, axis, normal_size(piece.start)),
        sizes=with_item(edge.shape, axis, piece.size),
        steps=(1,) * rank,
    )


def _attributes(node: Node, axis: int, piece: _Piece) -> dict[str, Any]:
    """The attributes of an operation for a piece of an axis of its result."""
    found = dict(node.attributes)
    if node.op in (BROADCAST_TO, FULL, PLACE, RESHAPE):
        found["shape"] = with_item(node.shape, axis, piece.size)
    elif node.op is SLICE:
        found["sizes"] = with_item(node.shape, axis, piece.size)
        found["starts"] = with_item(found["starts"], axis, 0)
    elif node.op is IOTA:
        found["size"] = piece.size
    elif node.op is GRID:
        grid: Grid = found["grid"]
        old = grid.axes[axis]
        new = Dim(old.name, piece.size, old.origin)
        found["grid"] = Grid(grid.value.substitute({old: new + piece.start}), with_item(grid.axes, axis, new))
    return found
