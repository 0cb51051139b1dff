"""Tiles without elements: which iterations of a loop over the tiles of a range add nothing.

Of ``0:t + 1`` there is one tile in the first block of t, and all of them in the last. Of a loop that only adds up what
comes of its tiles, the iterations behind the last tile with elements need not be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tempo.graph.node import Node
from tempo.ops.contraction import EINSUM
from tempo.ops.indexing import PLACE
from tempo.ops.reduction import SUM
from tempo.passes.axes import reduced_axes
from tempo.schedule.folds import Fold
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop
from tempo.schedule.storage import Storage
from tempo.symbolic import Dim, Expr


@dataclass(frozen=True)
class Share:
    """What an iteration adds to a reduction: nothing where ``size``, at the points of ``node``, is 0.

    What is reduced by loops around this one must be set to something by the first of their iterations, the one with
    which all of ``folds`` begin.
    """

    node: Node
    size: Expr
    folds: tuple[Fold, ...]


def shares(loop: Loop, schedule: Schedule, storage: Storage) -> list[Share] | None:
    """What the iterations of a loop over tiles add up; None if all of them must be made."""
    if loop.dim not in schedule.tiles or loop.backwards or loop.start or loop.block or loop.inner:
        return None
    found = []
    for statement in loop.body:
        if not isinstance(statement, Compute) or schedule.shifts.get((statement.node, loop.dim)):
            return None
        if statement.folds or storage.stores[statement.node].outlives(loop.dim):
            share = _share(statement, loop.dim)
            if share is None:
                return None
            found.append(share)
    return found


def _share(statement: Compute, tile: Dim) -> Share | None:
    node, folds = statement.node, statement.folds
    if [fold.family for fold in folds] == [tile]:
        part = node.edges[0].node
        return _of_size(part, [size for size, _ in reduced_axes(part)], tile, ())
    if folds and node.op in (EINSUM, SUM) and all(fold.family is not tile for fold in folds):
        for edge in node.edges:
            # Nothing, placed among zeros, is zeros.
            if edge.node.op is PLACE and not edge.node.attributes["value"].any():
                return _of_size(edge.node, edge.node.edges[0].shape, tile, folds)
    return None


def _of_size(node: Node, sizes: Sequence[int | Expr], tile: Dim, folds: tuple[Fold, ...]) -> Share | None:
    """What a size decides that differs from tile to tile and between steps of other dims."""
    for size in sizes:
        if isinstance(size, Expr) and tile in size.symbols() and size.symbols() & ({*node.domain} - {tile}):
            return Share(node, size, folds)
    return None
