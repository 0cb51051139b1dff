"""Which axis of its operands becomes an axis of an operation's result, so that a part of it can be computed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tempo.graph.node import Node, Primitive, Size
from tempo.ops import elementwise
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.creation import FULL, GRID, IOTA
from tempo.ops.gathering import TAKE, TAKE_ALONG_AXIS
from tempo.ops.indexing import PLACE, SLICE
from tempo.ops.reduction import ALL, ANY, ARGMAX, ARGMIN, MAX, MIN, PROD, SUM
from tempo.ops.scan import CUMMAX, CUMMIN, CUMPROD, CUMSUM
from tempo.ops.shaping import BROADCAST_TO, CONCATENATE, FLIP, RESHAPE, TRANSPOSE
from tempo.ops.sizes import total
from tempo.ops.sorting import ARGSORT

Axes = tuple[int | None, ...]
"""Per operand its axis, if it has one."""

REDUCTIONS = (SUM, PROD, MAX, MIN, ANY, ALL)

ALIGNED = {*(op for op in vars(elementwise).values() if isinstance(op, Primitive)), BROADCAST_TO}
"""Operations whose operands' axes are counted from the last one; those of size 1 broadcast."""


def operand_axes(node: Node, axis: int) -> Axes | None:
    """The axes of a node's operands that become an axis of its value. None if a part of that cannot be computed from
    the same part of those."""
    rule = _RULES.get(node.op)
    return None if rule is None else rule(node, axis)


def reduced_axes(node: Node) -> Iterator[tuple[Size, Axes]]:
    """The axes that a node reduces: their sizes, and which they are of each operand."""
    if node.op is EINSUM:
        *terms, out = subscript_terms(node.attributes["subscripts"])
        for letter in dict.fromkeys("".join(terms)):
            if letter not in out:
                places = ((edge, term.find(letter)) for edge, term in zip(node.edges, terms, strict=True))
                size = next((edge.shape[n] for edge, n in places if n >= 0 and edge.shape[n] != 1), 1)
                yield size, _lettered(node, letter, size)
    elif node.op in REDUCTIONS:
        for axis in node.attributes["axes"]:
            yield node.edges[0].shape[axis], (axis,)


def with_item(values: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    """A shape, or something else that has an item per axis, with another item."""
    return (*values[:position], value, *values[position + 1 :])


def _aligned(node: Node, axis: int) -> Axes:
    """Axes are counted from the last one, and those of size 1 broadcast."""
    from_last = len(node.shape) - axis
    own = ((edge, len(edge.shape) - from_last) for edge in node.edges)
    return tuple(n if n >= 0 and edge.shape[n] == node.shape[axis] else None for edge, n in own)


def _contracted(node: Node, axis: int) -> Axes:
    *_, out = subscript_terms(node.attributes["subscripts"])
    return _lettered(node, out[axis], node.shape[axis])


def _lettered(node: Node, letter: str, size: Size) -> Axes:
    *terms, _ = subscript_terms(node.attributes["subscripts"])
    found = zip(node.edges, (term.find(letter) for term in terms), strict=True)
    return tuple(n if n >= 0 and edge.shape[n] == size else None for edge, n in found)


def _reduced(node: Node, axis: int) -> Axes:
    kept = [n for n in range(len(node.edges[0].shape)) if n not in node.attributes["axes"]]
    return (kept[axis],)


def _position(node: Node, axis: int) -> Axes:
    return (axis if axis < node.attributes["axis"] else axis + 1,)


def _reshaped(node: Node, axis: int) -> Axes | None:
    """An axis stays one if there are as many elements before it, and therefore behind it."""
    (edge,) = node.edges
    before, size = total(node.shape[:axis]), node.shape[axis]
    found = (n for n, other in enumerate(edge.shape) if other == size and total(edge.shape[:n]) == before)
    own = next(found, None)
    return None if own is None else (own,)


def _placed(node: Node, axis: int) -> Axes | None:
    plain = node.attributes["starts"][axis] == 0 and node.attributes["steps"][axis] == 1
    return (axis,) if plain else None


def _cut(node: Node, axis: int) -> Axes | None:
    return (axis,) if node.attributes["steps"][axis] == 1 else None


def _taken(node: Node, axis: int) -> Axes:
    at, rank = node.attributes["axis"], len(node.edges[1].shape)
    if at <= axis < at + rank:
        return None, axis - at
    return (axis if axis < at else axis - rank + 1), None


def _beside(node: Node, axis: int) -> Axes | None:
    """Operations along one axis do not touch the others."""
    return None if axis == node.attributes["axis"] else (axis,) * len(node.edges)


def _turned(node: Node, axis: int) -> Axes | None:
    return None if axis in node.attributes["axes"] else (axis,)


_RULES: Mapping[Primitive, Callable[[Node, int], Axes | None]] = {
    **dict.fromkeys(ALIGNED, _aligned),
    **dict.fromkeys(REDUCTIONS, _reduced),
    **dict.fromkeys((ARGMAX, ARGMIN), _position),
    **dict.fromkeys((ARGSORT, CONCATENATE, CUMMAX, CUMMIN, CUMPROD, CUMSUM, TAKE_ALONG_AXIS), _beside),
    **dict.fromkeys((FULL, GRID, IOTA), lambda node, axis: ()),
    EINSUM: _contracted,
    FLIP: _turned,
    PLACE: _placed,
    RESHAPE: _reshaped,
    SLICE: _cut,
    TAKE: _taken,
    TRANSPOSE: lambda node, axis: (node.attributes["axes"][axis],),
}
