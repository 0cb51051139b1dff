"""Next values, read where they are computed: what stop conditions and emits read of later steps.

    x[s + 1] = f(x[s])
    stop s when x[s + 1] > 100

Step s computes f(x[s]), and so knows ``x[s + 1]``. But a loop that computes x at its own step has it one step later,
and the condition, which no recurrence needs, would come after the loop: no step would be saved. So the condition reads
``f(x[s])``, as if the user had given that a name.

In general, a read of a recurrent tensor is one of the value of a case, if this case alone defines all that is read.
Such a read is replaced where the tensor is read at a later step than the reader's own, and the value at no later one;
and only in what has to be known at each step of a dim, for it to stop or to be handed out. Other reads stay:
they would have values kept that are kept already as steps of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tempo.graph.node import Case, Domain, Edge, Graph, Node
from tempo.graph.traversal import components, reachable
from tempo.passes.rewrite import rebuild, refreshed, with_edges
from tempo.symbolic import Condition, Dim, Expr, Slice, Symbol, box_of, conjunction
from tempo.symbolic.intervals import at_least
from tempo.symbolic.polyhedral import may_hold


def read_next_values(graph: Graph) -> Graph:
    """The graph in which stops and emits read next values where they are computed. Accumulations must have been
    resolved."""
    along: dict[Node, set[Dim]] = {}
    for handed in (*graph.stops.values(), *graph.emits.values()):
        for node in reachable([handed.node], graph.cases):
            along.setdefault(node, set()).update(d.origin for d in handed.domain)

    if not along:
        return graph

    def known(edge: Edge, reader: Node | None, domain: Domain, where: Condition) -> Edge:
        for own in domain:
            if reader is None or own.origin in along.get(reader, ()):
                edge = _known(graph, edge, domain, where, own)
        return edge

    edges = {n: tuple(known(edge, n, n.domain, box_of(n.domain)) for edge in n.edges) for n in graph.nodes}
    cases = {
        node: tuple(replace(case, value=known(case.value, node, node.domain, case.region)) for case in old)
        for node, old in graph.cases.items()
    }
    stops = {dim: known(edge, None, edge.domain, box_of(edge.domain)) for dim, edge in graph.stops.items()}
    emits = {name: known(edge, None, edge.domain, box_of(edge.domain)) for name, edge in graph.emits.items()}
    changed = replace(graph, nodes=_in_order(edges), cases=cases, stops=stops, emits=emits)
    if changed == graph and all(edges[node] == node.edges for node in graph.nodes):
        return graph
    return rebuild(changed, lambda n, done: None if edges[n] == n.edges else refreshed(with_edges(n, edges[n]), done))


def _in_order(edges: dict[Node, tuple[Edge, ...]]) -> tuple[Node, ...]:
    """The nodes, operands first: what a user wrote before a case may now read its value. Where they would read each
    other in circles (a case that reads all earlier steps of what reads it), they get back the operands they had."""
    following = {node: [edge.node for edge in found] for node, found in edges.items()}
    circles = components(following)
    for circle in circles:
        if any(other in circle for node in circle for other in following[node]):
            edges.update((node, node.edges) for node in circle)
            return _in_order(edges)
    return tuple(node for (node,) in circles)


def _known(graph: Graph, edge: Edge, domain: Domain, where: Condition, own: Dim) -> Edge:
    """What an edge, whose reader has points of a domain ``where`` a condition holds, reads at no later step of a dim
    than the reader's ``own``; the edge itself if nothing is known to be that."""
    found: Edge | None = edge
    while found is not None and not _is_so_far(found, domain, where, own):
        found = _value(found, graph.cases.get(found.node, ()), domain, where)
    if found is None or found is edge:
        return edge
    # What is called or handed out has the dims over which it was written to vary.
    return found if (found.domain, found.shape) == (edge.domain, edge.shape) else edge


def _is_so_far(edge: Edge, domain: Domain, where: Condition, own: Dim) -> bool:
    """Whether an edge reads no later step of a dim than the reader's own."""
    for d, item in zip(edge.node.domain, edge.index, strict=True):
        if d.origin is own.origin:
            last = item + d.start if isinstance(item, Expr) else item.stop - 1 + d.start
            now = own + own.start
            if not at_least(now, last) and may_hold(where & (last > now), domain):
                return False
    return True


def _value(edge: Edge, cases: Sequence[Case], domain: Domain, where: Condition) -> Edge | None:
    """What the one case reads that defines everything an edge reads, if one does."""
    items: dict[Symbol, Expr] = {}
    parts = [where]
    for d, item in zip(edge.node.domain, edge.index, strict=True):
        if isinstance(item, Slice):
            items[d] = point = Symbol(d.name)
            parts += [point >= item.start, point < item.stop]
        else:
            items[d] = item
    read = conjunction(parts)
    for case in cases:
        region = case.region.substitute(items)
        if may_hold(read & region, domain):
            return None if may_hold(read & ~region, domain) else _through(edge, case.value)
    return None


def _through(edge: Edge, value: Edge) -> Edge | None:
    """What an edge reads if its producer has a value everywhere that is an edge over the producer's domain. Ranges of
    steps must be ranges of steps, in the same order, that is: of axes."""
    by_dim = dict(zip(edge.node.domain, edge.index, strict=True))
    points = {d: item for d, item in by_dim.items() if isinstance(item, Expr)}
    ranges = {d: item for d, item in by_dim.items() if isinstance(item, Slice)}
    left = list(ranges)
    index: list[Expr | Slice] = []
    for item in value.index:
        if ranges.keys().isdisjoint(item.symbols()) and not (ranges and isinstance(item, Slice)):
            index.append(item.substitute(points))
            continue
        d = left.pop(0) if left else None
        if d is None or isinstance(item, Slice) or not ranges.keys().isdisjoint((item - d).symbols()):
            return None
        shift = (item - d).substitute(points)
        index.append(Slice(ranges[d].start + shift, ranges[d].stop + shift))
    return None if left else Edge(value.node, tuple(index))
