"""Simplification: small rewrites, each a few lines, applied operands first in one walk over the graph.

Each rule looks at one node, whose operands are already simplified, and gives an edge to read instead, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tempo.given import resolve
from tempo.graph.build import make
from tempo.graph.node import Edge, Graph, Node, Primitive, attribute_symbols, dims_of, frozen, shape_symbols, union
from tempo.graph.structural import HOST, HOST_RESULT, INPUT
from tempo.ops import elementwise
from tempo.ops.creation import CONDITION_VALUE, CONSTANT, FULL, INDEX_VALUE
from tempo.ops.elementwise import (
    ADD,
    CAST,
    COPY,
    DIVIDE,
    LOGICAL_AND,
    LOGICAL_OR,
    MULTIPLY,
    NEGATIVE,
    STOP_GRADIENT,
    SUBTRACT,
    WHERE,
)
from tempo.ops.indexing import SLICE
from tempo.ops.reduction import SUM
from tempo.ops.shaping import BROADCAST_TO, RESHAPE, TRANSPOSE
from tempo.passes.rewrite import Rebuilt, rebuild, refreshed

Rule = Callable[[Node], Edge | None]

ELEMENTWISE = {p for p in vars(elementwise).values() if isinstance(p, Primitive)} - {COPY, STOP_GRADIENT}


def simplify(graph: Graph) -> Graph:
    """The same results from fewer operations. Accumulations must have been resolved."""
    assert not any(node.scatters for node in graph.nodes)
    seen: dict[Any, Edge] = {}

    def change(node: Node, done: Rebuilt) -> Edge | None:
        edge = refreshed(node, done)
        if edge.node.op in (INPUT, HOST, HOST_RESULT):
            return edge
        edge = _narrowed(edge.node)
        for rule in RULES:
            found = rule(edge.node)
            # A replacement stands for the node only if it has its values everywhere the node has.
            if (
                found is not None
                and found.shape == node.shape
                and found.dtype == node.dtype
                and set(found.domain) <= set(node.domain)
            ):
                return found
        return seen.setdefault(_key(edge.node), edge)

    return rebuild(graph, change)


def _narrowed(node: Node) -> Edge:
    """A node over the dims that it depends on. (A copy may be there to have more.)"""
    symbols = attribute_symbols(tuple(node.attributes.values())) | shape_symbols(node.shape)
    used = union(*(edge.domain for edge in node.edges), dims_of(symbols))
    if node.op is COPY or set(node.domain) <= set(used):
        return node.here()
    return Node(node.op, node.edges, used, node.shape, node.dtype, node.source, node.attributes, name=node.name).here()


def _key(node: Node) -> Any:
    """What two nodes share that always have the same values."""
    return node.op, node.edges, node.domain, node.shape, node.dtype, frozen(node.attributes)


def number(edge: Edge) -> float | None:
    """The one number that an edge reads everywhere, if it is known."""
    if edge.node.op in (CONSTANT, FULL) and edge.node.attributes["value"].size == 1:
        value: float = edge.node.attributes["value"].item()
        return value
    return None


def _copies(node: Node) -> Edge | None:
    """A copy (over no more dims than its operand) is its operand."""
    if node.op in (COPY, STOP_GRADIENT) and node.edges[0].domain == node.domain:
        return node.edges[0]
    return None


def _same_shape(node: Node) -> Edge | None:
    """Reshaping or broadcasting to the shape it has, casting to the dtype it has, transposing nothing."""
    if node.op in (RESHAPE, BROADCAST_TO, CAST):
        return node.edges[0]
    if node.op is TRANSPOSE and node.attributes["axes"] == tuple(range(len(node.shape))):
        return node.edges[0]
    return None


def _reshape_twice(node: Node) -> Edge | None:
    if node.op is RESHAPE and node.edges[0].node.op is RESHAPE and node.edges[0].is_here:
        inner = node.edges[0].node.edges[0]
        if inner.shape == node.shape:
            return inner
        return make(RESHAPE, inner, source=node.source, shape=node.shape)
    return None


def _known(node: Node) -> Edge | None:
    """An operation on numbers that are known, the same at all places."""
    if node.op not in ELEMENTWISE or any(number(edge) is None for edge in node.edges):
        return None
    if not all(isinstance(size, int) for size in node.shape):
        return None
    assert node.op.reference is not None
    values = [edge.node.attributes["value"].reshape(()) for edge in node.edges]
    value = np.asarray(node.op.reference(*values, **node.attributes)).astype(node.dtype)
    return make(FULL, source=node.source, shape=node.shape, value=value)


def _known_index(node: Node) -> Edge | None:
    """An index or a condition on indices that is the same at all points."""
    if node.op not in (INDEX_VALUE, CONDITION_VALUE) or attribute_symbols(tuple(node.attributes.values())):
        return None
    (found,) = (resolve(value, {}) for value in node.attributes.values())
    return make(FULL, source=node.source, shape=(), value=np.asarray(found, node.dtype))


def _sum_of_one(node: Node) -> Edge | None:
    """A sum over axes of size 1."""
    if node.op is not SUM or any(node.edges[0].shape[n] != 1 for n in node.attributes["axes"]):
        return None
    reshaped = make(RESHAPE, node.edges[0], source=node.source, shape=node.shape)
    return _reshape_twice(reshaped.node) or reshaped


def _logical(node: Node) -> Edge | None:
    """x or false, x and true, and the other way around; what is chosen where it is always, or never."""
    if node.op in (LOGICAL_OR, LOGICAL_AND):
        a, b = node.edges
        neutral = node.op is LOGICAL_AND
        return b if number(a) == neutral else a if number(b) == neutral else None
    if node.op is WHERE and number(node.edges[0]) is not None:
        return node.edges[1] if number(node.edges[0]) else node.edges[2]
    return None


def _add_zero(node: Node) -> Edge | None:
    """x + 0, 0 + x, x - 0."""
    if node.op in (ADD, SUBTRACT) and number(node.edges[1]) == 0:
        return node.edges[0]
    if node.op is ADD and number(node.edges[0]) == 0:
        return node.edges[1]
    return None


def _times_one(node: Node) -> Edge | None:
    """x * 1, 1 * x, x / 1."""
    if node.op in (MULTIPLY, DIVIDE) and number(node.edges[1]) == 1:
        return node.edges[0]
    if node.op is MULTIPLY and number(node.edges[0]) == 1:
        return node.edges[1]
    return None


def _twice_negative(node: Node) -> Edge | None:
    if node.op is NEGATIVE and node.edges[0].node.op is NEGATIVE and node.edges[0].is_here:
        return node.edges[0].node.edges[0]
    return None


def _part_of_broadcast(node: Node) -> Edge | None:
    """A slice or another shape of one number at all places is that number at fewer, or other, places.

    The gradient of a mean is such a number; without this rule it would be stored for all steps.
    """
    if node.op not in (SLICE, RESHAPE) or node.edges[0].node.op is not BROADCAST_TO or not node.edges[0].is_here:
        return None
    number = node.edges[0].node.edges[0]
    if any(size != 1 for size in number.shape):
        return None
    ones = make(RESHAPE, number, source=node.source, shape=(1,) * len(node.shape))
    return make(BROADCAST_TO, ones, source=node.source, shape=node.shape) if node.shape else ones


def _same_choice(node: Node) -> Edge | None:
    """where(c, x, x)."""
    return node.edges[1] if node.op is WHERE and node.edges[1] == node.edges[2] else None


RULES: tuple[Rule, ...] = (
    _known,
    _known_index,
    _sum_of_one,
    _copies,
    _same_shape,
    _reshape_twice,
    _add_zero,
    _times_one,
    _twice_negative,
    _part_of_broadcast,
    _same_choice,
    _logical,
)
