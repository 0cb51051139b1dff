"""Reductions over all steps of a dim, put together from blocks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempo import dtypes
from tempo.graph.node import Edge, Node
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.reduction import ALL, ANY, MAX, MIN, PROD, SUM
from tempo.symbolic import Dim, Slice

COMBINE = {
    SUM: "add",
    EINSUM: "add",
    PROD: "multiply",
    MAX: "maximum",
    MIN: "minimum",
    ANY: "logical_or",
    ALL: "logical_and",
}
"""Reductions that can be put together from parts, and the NumPy function that does it."""


@dataclass(frozen=True)
class Fold:
    """A node that reduces ``count`` steps of dims that come from ``family``, folded in block by block.

    ``starts`` has, for every edge that reads such steps, the first of them; the loop folds it in at its step ``base``.
    The loop may go through the blocks ``backwards``.
    """

    family: Dim
    starts: tuple[int | None, ...]
    count: int
    base: int = 0
    backwards: bool = False

    def begins(self, start: Any, length: int) -> Any:
        """Whether a block, which begins at a step that may be traced, is the first to be folded in."""
        return start + length == self.base + self.count if self.backwards else start == self.base

    def at_block(self, edges: Sequence[Edge], length: int) -> tuple[Edge, ...]:
        """What the node reads for a block of ``length`` steps, which begins where the loop over the family is."""
        return tuple(
            edge if start is None else _at_block(edge, self.family, start - self.base, length)
            for edge, start in zip(edges, self.starts, strict=True)
        )


def _at_block(edge: Edge, family: Dim, ahead: int, length: int) -> Edge:
    index = tuple(
        Slice(family + ahead, family + ahead + length) if d.origin is family else item
        for d, item in zip(edge.node.domain, edge.index, strict=True)
    )
    return Edge(edge.node, index)


def fold(node: Node, family: Dim, numbers: Mapping[Any, int]) -> Fold | None:
    """How a node can be folded over a dim, if it is a reduction over a range of it and of nothing else of it."""
    if node.op not in COMBINE or any(d.origin is family for d in node.domain):
        return None
    if dtypes.accumulator_of(node.dtype) != node.dtype:  # every block would be rounded
        return None
    starts: list[int | None] = []
    axes: set[str | int] = set()
    counts: set[int] = set()
    for position, edge in enumerate(node.edges):
        sliced = [item for item in edge.index if isinstance(item, Slice)]
        own = [item for d, item in zip(edge.node.domain, edge.index, strict=True) if d.origin is family]
        if not own:
            starts.append(None)
            continue
        (item, *more) = own
        if more or not isinstance(item, Slice):
            return None
        start, length = item.start.substitute(numbers), item.length.substitute(numbers)
        if not (start.is_constant and length.is_constant):
            return None
        starts.append(start.constant)
        counts.add(length.constant)
        axes.add(_axis(node, position, next(n for n, s in enumerate(sliced) if s is item)))
    if len(axes) != 1 or len(counts) != 1 or counts == {0} or not _reduces(node, axes.pop(), starts):
        return None
    return Fold(family, tuple(starts), counts.pop())


def _axis(node: Node, operand: int, axis: int) -> str | int:
    """What tells the axes of a reduction apart: the letters of a contraction, or their numbers."""
    return subscript_terms(node.attributes["subscripts"])[operand][axis] if node.op is EINSUM else axis


def _reduces(node: Node, axis: str | int, starts: Sequence[int | None]) -> bool:
    """Whether a node reduces an axis, and has it in no operand that is not cut into blocks."""
    if node.op is not EINSUM:
        return axis in node.attributes["axes"]
    *operands, out = subscript_terms(node.attributes["subscripts"])
    whole = [term for term, start in zip(operands, starts, strict=True) if start is None]
    return str(axis) not in out and all(str(axis) not in term for term in whole)
