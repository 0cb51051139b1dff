"""Scatters as others that are easier to turn into reads, and the values that they add.

A scatter adds a producer's values into other points. One to ``max(t - 1, 0)`` is two pieces, and one to ``t - 4 * j``
is one to ``t``, from a node that varies over ``t`` and ``j``.
"""

from __future__ import annotations

from tempo.graph.build import make, scalar, with_domain
from tempo.graph.node import Case, Domain, Edge, Node, Scatter, Shape, dims_of, shape_symbols
from tempo.ops.creation import FULL
from tempo.ops.elementwise import COPY
from tempo.ops.gathering import SCATTER_ADD, SCATTER_ADD_ALONG_AXIS
from tempo.ops.indexing import PLACE
from tempo.passes.rewrite import Rebuilt
from tempo.source import SourceLine
from tempo.symbolic import TRUE, Dim, Expr, Slice, Symbol, as_expr, conjunction
from tempo.symbolic.expr import Max, Min
from tempo.symbolic.regions import within
from tempo.temporal import recurrent_node


def pieces(scatter: Scatter) -> list[Scatter]:
    """A scatter to ``max(t - 1, 0)`` as one to ``t - 1`` where that is greater and one to ``0`` elsewhere.

    Each piece is then a read at a fixed distance or a sum over one range; the whole would read all steps from the first
    and mask most of them, and where those steps need the point that is added into, there would be no order of steps.
    """
    for n, item in enumerate(scatter.index):
        if isinstance(item, Slice):
            continue
        clipped = next(((a, c) for a, c in item.terms if isinstance(a, Min | Max)), None)
        if clipped is None:
            continue
        atom, factor = clipped
        rest = item - factor * atom
        found = []
        for k, argument in enumerate(atom.arguments):
            ahead = [argument - other if isinstance(atom, Max) else other - argument for other in atom.arguments]
            # Of equal arguments the first one counts.
            wins = [a >= (1 if m < k else 0) for m, a in enumerate(ahead) if m != k]
            index = (*scatter.index[:n], rest + factor * argument, *scatter.index[n + 1 :])
            found += pieces(Scatter(scatter.node, index, conjunction([scatter.condition, *wins])))
        return found
    return [scatter]


def seen_from(target: Node, scatter: Scatter, done: Rebuilt, together: bool) -> Scatter:
    """A scatter to ``t - 4 * j`` as one to ``t``, from a node whose steps ``t, j`` have what the producer has at
    ``t + 4 * j, j``, and zero where there is no such step.

    What a point is given is then a sum over ``j``. Otherwise it would be one over all ``t`` and ``j``, with a mask: a
    convolution written over a dim of taps would take all pairs of steps for each tap. ``together`` says that the
    producer and the target need each other's earlier values.
    """
    for n, item in enumerate(scatter.index):
        producer, q = scatter.node, target.domain[n]
        inside = dims_of(item.symbols())
        if isinstance(item, Slice) or len(inside) < 2:
            continue
        # Not any for which values or other points have another size or place, nor one of which another place is a dim
        # of its own already: it would be two again, and so on without end.
        others = [*scatter.index[:n], *scatter.index[n + 1 :]]
        settled = [other for other in others if isinstance(other, Slice) or len(dims_of(other.symbols())) < 2]
        taken = shape_symbols(producer.shape).union(*(other.symbols() for other in settled))
        found = [d for d in inside if _is_unit(d, item) and d not in taken]
        own = [*(d for d in found if d.origin is q.origin), *(d for d in found if d.bound == q.bound), *found]
        if not own:
            continue
        d, to = own[0], q
        if q is not d and q in producer.domain:
            if together:  # no loop goes over a dim that is not the target's
                continue
            to = Dim(q.name, q.bound)
        factor = dict(item.terms)[d]
        steps: dict[Symbol, Expr] = {d: factor * (to - (item - factor * d))}
        domain = dims_of(frozenset(producer.domain) - {d} | {to})
        value = with_domain(done.edges.get(producer, producer.here()), COPY, producer.domain).substitute(steps)
        seen = by_cases(
            done,
            domain,
            Case(
                domain,
                tuple((as_expr(e).substitute(steps), e) for e in producer.domain),
                within(scatter.condition.substitute(steps), domain),
                value,
                target.source,
            ),
        )
        index = tuple(to if m == n else other.substitute(steps) for m, other in enumerate(scatter.index))
        return seen_from(target, Scatter(seen, index), done, together)
    return scatter


def _is_unit(d: Dim, expr: Expr) -> bool:
    """Whether a dim stands in an expression with the factor 1 or -1, and nowhere else."""
    factor = dict(expr.terms).get(d, 0)
    return factor in (1, -1) and d not in (expr - factor * d).symbols()


def by_cases(done: Rebuilt, domain: Domain, case: Case) -> Node:
    """A node with the value of a case where that applies, and zero elsewhere."""
    value = case.value
    node = recurrent_node("", domain, value.shape, value.dtype, case.source)
    zero = make(FULL, source=case.source, shape=value.shape, value=scalar(0, value.dtype))
    done.cases[node] = case, Case(domain, tuple((as_expr(d), d) for d in domain), TRUE, zero, case.source)
    return node


def in_zeros(edge: Edge, shape: Shape, source: SourceLine | None) -> Edge:
    """A value at the beginning of a larger one, and zeros behind it."""
    if edge.shape == shape:
        return edge
    starts, steps, zero = (0,) * len(shape), (1,) * len(shape), scalar(0, edge.dtype)
    return make(PLACE, edge, source=source, shape=shape, starts=starts, steps=steps, value=zero)


def added_into_zeros(node: Node) -> tuple[Edge, Edge, int] | None:
    """Where along an axis a node adds what into zeros, if it is that."""
    if node.op not in (SCATTER_ADD, SCATTER_ADD_ALONG_AXIS):
        return None
    table, indices, updates = node.edges
    if table.node.op is not FULL or table.node.attributes["value"] != 0:
        return None
    return indices, updates, node.attributes["axis"]
