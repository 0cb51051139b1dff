"""What lacks a dim, as something that is computed at a step of it, where there is no order otherwise.

    f[s] = sin(d[s])
    x[0] = exp(f[0])
    x[s] = g(f[s], x[s - 1]),  d[s + 1] = h(x[s])

The value ``exp(f[0])`` does not vary over s, but f needs d, which needs x, which needs the value: a circle of nodes
that share no dim over which a loop could go, although one loop over s has everything in time. So the value gets a dim
of its own with a single step, which is step 0 of s.

Where it would be in time at several steps, after what it reads and before who reads it, it is computed at the last of
them: a loop is cut there anyway, where its reader is a case for that step. Unlike a row that is split off (see
``pinned``), nothing is computed twice, and what is read at the step may need steps before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from tempo.analysis.causality import circles, uncarried
from tempo.analysis.coverage import needed_points
from tempo.analysis.relations import Points, Read, Relations
from tempo.analysis.stops import waits
from tempo.graph.node import Case, Edge, Graph, Node, dims_of
from tempo.graph.structural import HOST, HOST_RESULT, RECURRENT
from tempo.graph.traversal import components
from tempo.passes.rewrite import Rebuilt, assemble, refreshed
from tempo.passes.variables import in_variables
from tempo.symbolic import Dim, conjunction, constant, equal
from tempo.symbolic.polyhedral import span

Steps = dict[Node, int]
"""The steps of a dim at which nodes are computed that lack it."""


def place_at_steps(graph: Graph, numbers: Mapping[Any, int]) -> Graph:
    """The graph with nodes of circles that no dim carries at steps of a dim that others of the circle have.

    ``numbers`` are those of the bounds.
    """
    while places := _places(graph, numbers):  # a node of a table may lack several dims
        graph = _placed(graph, places)
    return graph


def _places(graph: Graph, numbers: Mapping[Any, int]) -> dict[Node, Dim]:
    """Nodes that get another dim, of one step."""
    relations = Relations(graph, numbers)
    needed = {node: points for node, points in needed_points(relations)[0].items() if not points.is_empty()}
    reads = [
        replace(r, relation=r.relation.intersect_domain(needed[r.consumer]))
        for r in (*(r for node in graph.nodes if node in needed for r in relations.reads(node)), *waits(relations))
        if r.consumer in needed and r.producer in needed
    ]
    dims: dict[tuple[Dim, int], Dim] = {}
    places: dict[Node, Dim] = {}
    separate = circles(graph.nodes, reads)
    number = {node: n for n, circle in enumerate(separate) for node in circle}
    within: list[list[Read]] = [[] for _ in separate]
    for r in reads:
        if r.consumer in number and number[r.consumer] == number.get(r.producer):
            within[number[r.consumer]].append(r)
    for n, around in enumerate(separate):
        for circle, inside in uncarried(around, within[n], relations.numbers):
            for family in dims_of(frozenset(d.origin for node in circle for d in node.domain)):
                steps = _steps(circle, inside, family, relations.numbers)
                for node, step in steps.items():
                    places[node] = dims.setdefault((family, step), Dim(f"{family.name}={step}", 1, family, step))
                if steps:
                    break
    return places


def _steps(circle: Set[Node], reads: Sequence[Read], family: Dim, numbers: Mapping[Any, int]) -> Steps:
    """Steps for the nodes of a circle that lack a dim, after all that they read in a loop over it and before all that
    reads them; none if there are none for some."""
    having = {node: d for node in circle for d in node.domain if d.origin is family}
    lacking = [node for node in circle if node not in having]
    if any(node.op in (HOST, HOST_RESULT) for node in lacking):  # calls have an order of their own
        return {}
    readers: dict[Node, list[Node]] = {node: [] for node in lacking}
    read: dict[Node, list[int]] = {node: [] for node in lacking}
    wanted: dict[Node, list[int]] = {node: [] for node in lacking}

    def ends(node: Node, points: Points) -> tuple[int, ...]:
        """The first and the last step of some points of a node."""
        start = having[node].start.evaluate(numbers)
        return tuple(start + step for step in span(points, having[node]) or ())

    for r in reads:
        if r.producer in readers and r.consumer in readers:
            readers[r.producer].append(r.consumer)
        elif r.consumer in readers:
            read[r.consumer] += ends(r.producer, r.relation.range())
        elif r.producer in readers:
            wanted[r.producer] += ends(r.consumer, r.relation.domain())
    together = components(readers)  # readers come first
    for first, sign in ((min, 1), (max, -1)):  # in a loop that goes forward, and in one that goes backwards
        placed: Steps = {}
        for nodes in together:
            later = [placed[c] for node in nodes for c in readers[node] if c in placed]
            steps = [*later, *(step for node in nodes for step in wanted[node])]
            if not steps:  # whoever reads it does so nowhere
                return {}
            placed.update(dict.fromkeys(nodes, first(steps)))
        if all(sign * step <= sign * placed[node] for node in lacking for step in read[node]):
            return placed
    return {}


def _placed(graph: Graph, places: Mapping[Node, Dim]) -> Graph:
    """The graph with nodes over one more dim each. Results have the steps of the dims that they had."""
    done = Rebuilt()

    def place(node: Node, edges: tuple[Edge, ...]) -> Edge:
        new = in_variables(node, {}, dims_of(frozenset((*node.domain, places[node]))), edges, node.name)
        return Edge(new, tuple(constant(0) if d is places[node] else d for d in new.domain))

    for node in graph.nodes:
        if node.op is RECURRENT:
            done.edges[node] = place(node, ()) if node in places else node.here()
    for node in graph.nodes:
        if node.op is not RECURRENT:
            placed = node in places
            done.edges[node] = place(node, tuple(map(done.edge, node.edges))) if placed else refreshed(node, done)
    for node, old in graph.cases.items():
        # A tensor that is handed out where it is defined is so as it was.
        done.cases[node] = tuple(replace(case, value=done.edge(case.value)) for case in old)
        if node in places:
            new = done.edges[node].node
            done.cases[new] = tuple(_over(case, node, new) for case in done.cases[node])

    def result(edge: Edge) -> Edge:
        return edge if edge.node.op is RECURRENT and edge.is_here else done.edge(edge)

    outputs = {name: result(edge) for name, edge in graph.outputs.items()}
    emits = {name: result(edge) for name, edge in graph.emits.items()}
    stops = {dim: done.edge(edge) for dim, edge in graph.stops.items()}
    return assemble(graph, done.cases, outputs, emits, stops, done)


def _over(case: Case, node: Node, new: Node) -> Case:
    """The case of a node over one more dim, at the one step of that."""
    items = dict(zip(node.domain, case.target, strict=True))
    there = [equal(d, 0) for d in new.domain if d not in items]
    target = tuple(items.get(d, constant(0)) for d in new.domain)
    return replace(case, target=target, condition=conjunction([case.condition, *there]))
