"""Attention, found in what it is made of: a contraction, scale and mask, a softmax, and a second contraction.

Nothing else may read what is between the two contractions, as a gradient does. Then all of it is one operation, for
which a device has a kernel that keeps no scores; and which, of windows, reads all that several steps see at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempo import dtypes
from tempo.graph.build import make
from tempo.graph.node import Edge, Graph, Node, Primitive
from tempo.ops.attention import ATTENTION, HEADS, OUT, QUERIES, SIZE, STEPS
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.elementwise import CAST, DIVIDE, EXP, MULTIPLY, SUBTRACT, WHERE
from tempo.ops.reduction import SUM
from tempo.ops.shaping import RESHAPE
from tempo.passes.rewrite import Rebuilt, rebuild
from tempo.passes.simplify import number
from tempo.symbolic import Slice

Readers = Mapping[Node, Sequence["_Reader"]]

# What is between the two contractions: a dozen operations at most, where nothing else reads any of it.
MOST_BETWEEN = 24
# What a kernel has room for: queries with the same keys, and the sizes of keys and values.
MOST_QUERIES = 16
KERNEL_SIZES = (16, 32, 64, 128, 256)
FLOATS = (dtypes.float32, dtypes.bfloat16, dtypes.float16)


@dataclass(frozen=True)
class _Reader:
    """Who reads a node: another one, or None for an output, and whether at the same point."""

    node: Node | None
    here: bool


@dataclass(frozen=True)
class _Scores:
    """A contraction times ``scale``, and ``fill`` where it is not ``seen``."""

    product: Node
    scale: float
    fill: float
    seen: Edge | None


def fuse_attention(graph: Graph, of_windows: bool = False) -> Graph:
    """The graph with one operation for each attention whose weights nothing else needs and that a GPU has a kernel for;
    or, ``of_windows``, for each that sees steps from a first one on which is not the same for all."""
    readers = readers_of(graph)
    fits = _moves if of_windows else _suits_a_kernel

    def change(node: Node, done: Rebuilt) -> Edge | None:
        if node.op is not EINSUM:
            return None
        for position, edge in enumerate(node.edges):
            found = _attention(node, edge, node.edges[1 - position], position, readers)
            if found is not None and fits(node, *found):
                edges, attributes = found
                return make(ATTENTION, *map(done.edge, edges), domain=node.domain, source=node.source, **attributes)
        return None

    return rebuild(graph, change)


def readers_of(graph: Graph) -> Readers:
    found: dict[Node, list[_Reader]] = {node: [] for node in graph.nodes}
    for node in graph.nodes:
        for edge in node.edges:
            found[edge.node].append(_Reader(node, edge.is_here))
        for case in graph.cases.get(node, ()):
            found[case.value.node].append(_Reader(None, False))
    for edge in (*graph.outputs.values(), *graph.emits.values(), *graph.stops.values()):
        found[edge.node].append(_Reader(None, False))
    return found


def _attention(
    node: Node, weights: Edge, values: Edge, position: int, readers: Readers
) -> tuple[list[Edge], dict[str, Any]] | None:
    """The operands and attributes of the attention whose last contraction a node is, with these weights."""
    softmax = softmax_of(weights)
    scores = None if softmax is None else scores_of(softmax)
    if scores is None or not _is_closed(scores.product, node, values.node, readers):
        return None
    *operands, out = subscript_terms(node.attributes["subscripts"])
    terms = operands[position], operands[1 - position], out
    return _operands(scores, values, terms)


def softmax_of(weights: Edge) -> Edge | None:
    """What the weights are the softmax of, along the last axis."""
    divide = _of(_uncast(weights), DIVIDE)
    if divide is None:
        return None
    power, total = divide.edges
    exp = _of(power, EXP)
    shape = _of(total, RESHAPE)
    sum_ = None if shape is None else _of(shape.edges[0], SUM)
    if exp is None or sum_ is None or sum_.edges[0] != power:
        return None
    difference = _of(exp.edges[0], SUBTRACT)
    last = len(exp.shape) - 1
    if difference is None or sum_.attributes["axes"] != (last,) or shape is None or shape.shape[-1:] != (1,):
        return None
    x, shift = difference.edges
    # A softmax does not depend on what is taken off all scores of a query.
    return x if x.shape == exp.shape and (not shift.shape or shift.shape[-1] == 1) else None


def scores_of(edge: Edge) -> _Scores | None:
    """Scores as a contraction with a scale and a mask."""
    scale, fill, seen = 1.0, 0.0, None
    for _ in range(MOST_BETWEEN):
        node = edge.node
        if not edge.is_here:
            return None
        if node.op is EINSUM:
            return _Scores(node, scale, fill, seen)
        if node.op is CAST:
            edge = node.edges[0]
            if edge.dtype not in FLOATS:
                return None
        elif node.op in (MULTIPLY, DIVIDE) and (factor := number(node.edges[1])) is not None:
            scale = scale * factor if node.op is MULTIPLY else scale / factor
            edge = node.edges[0]
        elif node.op is MULTIPLY and (factor := number(node.edges[0])) is not None:
            scale *= factor
            edge = node.edges[1]
        elif node.op is WHERE and seen is None and (other := number(node.edges[2])) is not None:
            seen, edge, _ = node.edges
            fill = scale * other
            if any(size != 1 for size in seen.shape[:-1]) or seen.shape[-1:] != edge.shape[-1:]:
                return None
        else:
            return None
        if edge.shape != node.shape:
            return None
    return None


def _is_closed(product: Node, node: Node, values: Node, readers: Readers) -> bool:
    """Whether what depends on a contraction is used for a second one alone, at the same point, and not as values."""
    between = {product}
    pending = [product]
    while pending:
        for reader in readers[pending.pop()]:
            if reader.node is None or not reader.here:
                return False
            if reader.node is not node and reader.node not in between:
                between.add(reader.node)
                pending.append(reader.node)
                if len(between) > MOST_BETWEEN:
                    return False
    return values not in between


def _operands(scores: _Scores, values: Edge, terms: tuple[str, str, str]) -> tuple[list[Edge], dict[str, Any]] | None:
    """Queries, keys, values and mask, with the names of their axes in ``ATTENTION``, if there is one for each."""
    *inputs, scored = subscript_terms(scores.product.attributes["subscripts"])
    of_weights, of_values, out = terms
    if len(of_weights) != len(scored):
        return None
    swapped = scored[-1] in inputs[0]
    of_q, of_k = reversed(inputs) if swapped else inputs
    q, k = reversed(scores.product.edges) if swapped else scores.product.edges
    names = {scored[-1]: STEPS}
    for letter in of_q:
        names[letter] = QUERIES if letter not in of_k else HEADS if letter in scored else SIZE
    theirs = {letter: names.get(own) for letter, own in zip(of_weights, scored, strict=True)}
    theirs |= {letter: OUT for letter in of_values if letter not in theirs}
    of_q, of_k = ("".join(names.get(letter, "?") for letter in term) for term in (of_q, of_k))
    of_values, out = ("".join(theirs.get(letter) or "?" for letter in term) for term in (of_values, out))
    heads = HEADS if HEADS in of_q else ""
    fits = (
        of_k in {STEPS + heads + SIZE, heads + STEPS + SIZE}
        and of_values in {STEPS + heads + OUT, heads + STEPS + OUT}
        and sorted(out) == sorted(of_q.replace(SIZE, OUT))
        and len(set(of_q)) == len(of_q)
    )
    edges = [q, k, values]
    if not fits or {edge.dtype for edge in edges} - {q.dtype} or q.dtype not in FLOATS:
        return None
    attributes = {"terms": f"{of_q},{of_k},{of_values}->{out}", "scale": scores.scale, "fill": scores.fill}
    return edges if scores.seen is None else [*edges, scores.seen], attributes


def _suits_a_kernel(node: Node, edges: Sequence[Edge], attributes: Mapping[str, Any]) -> bool:
    q, k, values, *_ = edges
    of_q, *_ = subscript_terms(attributes["terms"])
    queries = q.shape[of_q.index(QUERIES)] if QUERIES in of_q else 1
    few = isinstance(queries, int) and queries <= MOST_QUERIES
    return few and k.shape[-1] in KERNEL_SIZES and values.shape[-1] in KERNEL_SIZES


def _moves(node: Node, edges: Sequence[Edge], attributes: Mapping[str, Any]) -> bool:
    """Whether keys are read from another step on at every step."""
    starts = (item.start.symbols() for item in edges[1].index if isinstance(item, Slice))
    return any(d in symbols for symbols in starts for d in node.domain)


def _of(edge: Edge, op: Primitive) -> Node | None:
    """The node that an edge reads at the same point, if it is this operation."""
    return edge.node if edge.is_here and edge.node.op is op else None


def _uncast(edge: Edge) -> Edge:
    cast = _of(edge, CAST)
    return edge if cast is None or cast.edges[0].dtype not in FLOATS else cast.edges[0]
