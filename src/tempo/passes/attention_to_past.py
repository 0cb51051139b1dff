"""Attention to the past, of all steps at once: in training, and wherever else no step waits for another's result.

Each step's queries see the keys and values of ``[0:t + 1]``, or of a window that ends there. What is between the two
contractions, and what a gradient makes of it, is only looked at from outside: for random scores it must be what a
softmax and the gradient of one are, however they were written and simplified. Then the first contraction, the second
one, and those of the gradient are two operations, for which a device has kernels that keep no scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.given import resolve
from tempo.graph.build import make, reshaped, scalar
from tempo.graph.node import Edge, Graph, Node, Size
from tempo.graph.structural import HOST, HOST_RESULT, RECURRENT
from tempo.ops.attention import ATTENTION_TO_PAST, ATTENTION_TO_PAST_GRADIENT
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.elementwise import CAST
from tempo.ops.indexing import PLACE, SLICE
from tempo.ops.shaping import RESHAPE
from tempo.passes.attention import FLOATS as DTYPES
from tempo.passes.attention import Readers, readers_of, scores_of, softmax_of
from tempo.passes.rewrite import Rebuilt, rebuild
from tempo.passes.simplify import number
from tempo.symbolic import Dim, Expr, Slice, constant, maximum
from tempo.symbolic.intervals import at_least, extremes

# What cuDNN has kernels for.
FLOATS = (dtypes.bfloat16, dtypes.float16)
MOST_SIZE = 128
UNIT = 8
# The fewest for which they were measured to be faster than products, on an H200.
LEAST_STEPS = 512

# At this step it is tried out what is computed from scores, or at the last one before it.
TRIED = 5
EXACT = 1e-9

# The axes of queries, keys, values, scores and averages at one step: heads, queries of a head, steps seen, sizes.
QUERIES, KEYS, VALUES, SCORES, AVERAGES = "gmd", "sgd", "sge", "gms", "gme"
TIME = "a"


@dataclass(eq=False)
class _Attention:
    """What one attention is made of, and the contractions of its gradient."""

    product: Node
    node: Node
    q: Edge
    keys: Edge
    values: Edge
    t: Dim
    first: Expr
    """The first step that is seen."""
    scale: float
    window: int | None
    without: str
    """The axes that there are not."""
    flow: Edge | None = None
    """The gradient of the averages."""
    of_q: list[Node] = field(default_factory=list)
    of_keys: list[Node] = field(default_factory=list)
    of_values: list[Node] = field(default_factory=list)

    def axes(self, names: str) -> str:
        return "".join(name for name in names if name not in self.without)


def fuse_attention_to_past(graph: Graph, numbers: Mapping[Any, int]) -> Graph:
    """The graph with one operation for each attention that can be computed for all steps at once, and one for its
    gradient."""
    readers = readers_of(graph)
    ready = _Ready(graph)
    roles: dict[Node, tuple[str, _Attention]] = {}
    for node in graph.nodes:
        found = _found(node, graph, numbers, readers, ready)
        if found is not None:
            roles[node] = "averages", found
            for name, nodes in (("q", found.of_q), ("keys", found.of_keys), ("values", found.of_values)):
                roles |= {n: (name, found) for n in nodes}
    if not roles:
        return graph
    made: dict[tuple[_Attention, bool], Edge] = {}

    def change(node: Node, done: Rebuilt) -> Edge | None:
        if node not in roles:
            return None
        role, found = roles[node]
        is_gradient = role != "averages"
        key = found, is_gradient
        if key not in made:
            made[key] = _made(found, is_gradient, done)
        return _part(made[key], role, found, node)

    return rebuild(graph, change)


def _made(found: _Attention, is_gradient: bool, done: Rebuilt) -> Edge:
    """The operation for all steps, or that of its gradient."""
    operands = [found.q, found.keys, found.values]
    if is_gradient:
        assert found.flow is not None
        operands.append(found.flow)
    edges = []
    for edge in operands:
        flat = reshaped(RESHAPE, done.edge(edge.node.here()), (_heads(edge), edge.shape[-1]))
        edges.append(_over_all(flat, found.t))
    domain = tuple(d for d in found.node.domain if d is not found.t)
    op = ATTENTION_TO_PAST_GRADIENT if is_gradient else ATTENTION_TO_PAST
    return make(op, *edges, domain=domain, source=found.node.source, scale=found.scale, window=found.window)


def _heads(edge: Edge) -> int:
    """How many heads there are at one step."""
    return math.prod(size for size in edge.node.shape[:-1] if isinstance(size, int))


def _over_all(edge: Edge, t: Dim) -> Edge:
    """An edge that is read at all steps of a dim."""
    everything = Slice(constant(0), t.bound)
    return Edge(edge.node, tuple(everything if item == t else item for item in edge.index))


def _part(whole: Edge, role: str, found: _Attention, node: Node) -> Edge:
    """What a node of the graph is a part of: a step's averages, or gradients."""
    steps, _, size = whole.shape
    heads, groups = _heads(found.q), _heads(found.keys)
    one = role in ("averages", "q")
    start = {"keys": heads, "values": heads + groups}.get(role, 0)
    starts: tuple[Size | Expr, ...] = (found.t if one else 0, start, 0)
    sizes = (1 if one else steps, heads if one else groups, size)
    if sizes != whole.shape:
        whole = make(SLICE, whole, source=node.source, starts=starts, sizes=sizes, steps=(1, 1, 1))
    return reshaped(RESHAPE, whole, node.shape)


# -- finding ---------------------------------------------------------------------------------------------------------


class _Ready:
    """Which nodes have a value at all steps of a dim before an attention along it begins: nothing that they are
    computed from is defined by cases along it, or read at other steps than those there are."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known: dict[Dim, set[Node]] = {}

    def __call__(self, edge: Edge, t: Dim) -> bool:
        if t not in self.known:
            self.known[t] = self.found(t)
        return edge.node in self.known[t]

    def found(self, t: Dim) -> set[Node]:
        ready: set[Node] = set()
        for node in self.graph.nodes:
            along = [d for d in node.domain if d.origin is t.origin]
            if not along:
                ready.add(node)
            elif along == [t] and node.op not in (RECURRENT, HOST, HOST_RESULT):
                if all(edge.node in ready and _is_inside(edge, t) for edge in node.edges):
                    ready.add(node)
        return ready


def _is_inside(edge: Edge, t: Dim) -> bool:
    """Whether an edge reads steps of a dim that there are, at every step of it."""
    steps = {t: (constant(0), t.bound - 1)}
    for d, item in zip(edge.node.domain, edge.index, strict=True):
        if d.origin is t.origin and item != t:
            first, stop = (item.start, item.stop) if isinstance(item, Slice) else (item, item + 1)
            if not all(at_least(extremes(room, steps)[0], constant(0)) for room in (first, d.bound - stop)):
                return False
    return True


def _found(node: Node, graph: Graph, numbers: Mapping[Any, int], readers: Readers, ready: _Ready) -> _Attention | None:
    """The attention whose averages a node is, if all of it can be computed for all steps at once."""
    found = _forward(node, graph, numbers)
    if found is None or not all(ready(edge, found.t) for edge in (found.q, found.keys, found.values)):
        return None
    of_values = dict.fromkeys(reader.node for reader in readers[found.values.node])
    flows = [node for node in of_values if node is not None and _is_flow(node, found)]
    if len(flows) > 1:
        return None
    region = _region([found.product, *flows], readers)
    if region is None or not _with_gradient(found, flows, region, readers):
        return None
    return found if _is_softmax(found, flows, region, readers, numbers) else None


def _forward(node: Node, graph: Graph, numbers: Mapping[Any, int]) -> _Attention | None:
    if node.op is not EINSUM or node.dtype not in FLOATS:
        return None
    for weights, values in (node.edges, node.edges[::-1]):
        softmax = softmax_of(weights)
        scores = None if softmax is None else scores_of(softmax)
        if scores is None or scores.seen is not None:
            continue
        for q, keys in (scores.product.edges, scores.product.edges[::-1]):
            seen = _past(keys, node)
            if seen is None or not q.is_here or seen != _past(values, node) or seen[0] in graph.stops:
                continue
            t, first, window = seen
            without = _missing(q, keys)
            found = _Attention(scores.product, node, q, keys, values, t, first, scores.scale, window, without)
            sizes = {q.shape[-1], keys.shape[-1], values.shape[-1]}
            (size, *others) = sizes
            fits = (
                not others
                and isinstance(size, int)
                and size % UNIT == 0
                and size <= MOST_SIZE
                and t.bound.evaluate(numbers) >= LEAST_STEPS
                and {e.dtype for e in (q, keys, values)} == {node.dtype}
                and t in q.node.domain
                and all(isinstance(n, int) for e in (q, keys, values) for n in e.node.shape)
                and _is_product(scores.product, (q, QUERIES), (keys, KEYS), SCORES, found)
                and _is_product(node, (weights, SCORES), (values, VALUES), AVERAGES, found)
            )
            if fits:
                return found
    return None


def _past(edge: Edge, reader: Node) -> tuple[Dim, Expr, int | None] | None:
    """The dim whose steps up to its reader's own an edge reads, the first of them, and how many there are at most."""
    seen = None
    for d, item in zip(edge.node.domain, edge.index, strict=True):
        if isinstance(item, Slice) and seen is None and d in reader.domain and item.stop == d + 1:
            window = None if item.start == 0 else _window(item.start, d)
            if window == 0:
                return None
            seen = d, item.start, window
        elif item != d:
            return None
    return seen


def _window(start: Expr, t: Dim) -> int:
    """How many steps there are at most from ``max(0, t - window + 1)`` to t; 0 if that is not where they start."""
    late = constant(2**40)
    steps = (late - start.substitute({t: late})) + 1
    return steps.constant if steps.is_constant and start == maximum(0, t - steps.constant + 1) else 0


def _missing(q: Edge, keys: Edge) -> str:
    """Which of the axes g and m there are not."""
    grouped = len(keys.node.shape) > 1
    queries = len(q.shape) > (2 if grouped else 1)
    return ("" if grouped else "g") + ("" if queries else "m")


def _is_product(node: Node, left: tuple[Edge, str], right: tuple[Edge, str], out: str, found: _Attention) -> bool:
    """Whether a node multiplies two edges, in any order, whose axes have these names."""
    if node.op is not EINSUM:
        return False
    *terms, result = subscript_terms(node.attributes["subscripts"])
    for (first, of_first), (second, of_second) in ((left, right), (right, left)):
        if node.edges != (first, second):
            continue
        names: dict[str, str] = {}
        for term, axes in zip(terms, (of_first, of_second), strict=True):
            own = found.axes(axes)
            if len(own) != len(term) or any(
                names.setdefault(c, name) != name for c, name in zip(term, own, strict=True)
            ):
                return False
        sizes: dict[str, set[Size]] = {}
        for term, edge in zip(terms, (first, second), strict=True):
            for letter, size in zip(term, edge.shape, strict=True):
                sizes.setdefault(letter, set()).add(size)
        alike = all(len(one) == 1 for one in sizes.values())
        return alike and len({*names.values()}) == len(names) and "".join(names[c] for c in result) == found.axes(out)
    return False


def _is_flow(node: Node, found: _Attention) -> bool:
    """Whether a node is the product of a gradient of the averages with the values."""
    return node is not found.product and any(  # which it looks like, if keys are values
        edge.is_here
        and found.t in edge.node.domain
        and _is_product(node, (edge, AVERAGES), (found.values, VALUES), SCORES, found)
        for edge in node.edges
    )


def _region(roots: Sequence[Node], readers: Readers) -> dict[Node, list[Node]] | None:
    """What is computed from some contractions before the next ones, and which of those read it; None if others do."""
    region: dict[Node, list[Node]] = {}
    pending = [*roots]
    while pending:
        node = pending.pop()
        if node in region:
            continue
        region[node] = []
        for reader in readers[node]:
            if reader.node is None or not reader.here:
                return None
            if reader.node.op in (EINSUM, PLACE):
                region[node].append(reader.node)
            else:
                pending.append(reader.node)
    inside = all(edge.node in region or number(edge) is not None for n in region if n not in roots for edge in n.edges)
    return region if inside else None


def _with_gradient(
    found: _Attention, flows: Sequence[Node], region: Mapping[Node, Sequence[Node]], readers: Readers
) -> bool:
    """Note the contractions of the gradient; whether there are no others."""
    if flows:
        (found.flow,) = (edge for edge in flows[0].edges if edge != found.values)
    for inner, outside in region.items():
        for reader in outside:
            if reader is found.node:
                continue
            if found.flow is None:
                return False
            if reader.op is EINSUM:
                if not _is_product(reader, (inner.here(), SCORES), (found.keys, KEYS), QUERIES, found):
                    return False
                found.of_q.append(reader)
                continue
            if not _is_placed(reader, found):
                return False
            placed = _over_all(reader.here(), found.t), TIME + SCORES
            flow = _over_all(found.flow, found.t), TIME + AVERAGES
            queries = _over_all(found.q, found.t), TIME + QUERIES
            for last in readers[reader]:
                if last.node is None:
                    return False
                if _is_product(last.node, placed, flow, VALUES, found):
                    found.of_values.append(last.node)
                elif _is_product(last.node, placed, queries, KEYS, found):
                    found.of_keys.append(last.node)
                else:
                    return False
    # The contractions over all steps read the gradient at all of them: it has a value there.
    return not flows or bool(found.of_values or found.of_keys)


def _is_placed(node: Node, found: _Attention) -> bool:
    """Whether a node puts what belongs to the steps that are seen among all steps, with zeros for the others."""
    notes = node.attributes
    rank = len(node.shape)
    return (
        node.shape[:-1] == found.product.shape[:-1]
        and node.shape[-1] == found.t.bound
        and notes["starts"] == (*(0 for _ in range(rank - 1)), _plain(found.first))
        and notes["steps"] == (1,) * rank
        and notes["value"] == scalar(0, node.dtype)
    )


def _plain(expr: Expr) -> Size:
    return expr.constant if expr.is_constant else expr


def _is_softmax(
    found: _Attention,
    flows: Sequence[Node],
    region: Mapping[Node, Sequence[Node]],
    readers: Readers,
    numbers: Mapping[Any, int],
) -> bool:
    """Whether, for random scores, what the contractions read are weights or the gradient of the scores."""
    step = min(TRIED, found.t.bound.evaluate(numbers) - 1)
    here = {**numbers, **{d: 0 for node in region for d in node.domain}, found.t: step}
    random = np.random.default_rng(0)
    shape = resolve(found.product.shape, here)
    known = {root: random.normal(size=shape) for root in (found.product, *flows)}
    scores, *given = known.values()
    powers = np.exp(found.scale * scores)
    weights = powers / powers.sum(-1, keepdims=True)
    of_scores = [found.scale * weights * (flow - (weights * flow).sum(-1, keepdims=True)) for flow in given]
    for node in sorted(region, key=lambda n: n.number):
        if node not in known:
            known[node] = _exact(node, known, here)
    for inner, outside in region.items():
        for reader in outside:
            is_of_weights = reader is found.node or any(last.node in found.of_values for last in readers[reader])
            (wanted,) = [weights] if is_of_weights else of_scores
            if known[inner].shape != wanted.shape or not np.allclose(known[inner], wanted, rtol=0, atol=EXACT):
                return False
    return True


def _exact(node: Node, known: Mapping[Node, Any], here: Mapping[Any, int]) -> Any:
    """The value of an operation in double precision, whatever its own is."""
    operands = [known[edge.node] if edge.node in known else np.float64(number(edge) or 0.0) for edge in node.edges]
    if node.op is CAST and node.dtype in DTYPES:
        return operands[0]
    assert node.op.reference is not None
    with np.errstate(all="ignore"):
        return node.op.reference(*operands, **{name: resolve(value, here) for name, value in node.attributes.items()})
