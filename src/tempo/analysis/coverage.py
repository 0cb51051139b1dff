"""A proof that every value anyone may need is defined, and that slices have no negative length.

Sufficient, not necessary: a recurrent tensor is taken to be needed wherever it is defined. Other nodes are needed where
their consumers read them, exactly.
"""

from __future__ import annotations

from typing import Any

from tempo.analysis.relations import Points, Relations
from tempo.graph.node import Edge, Node
from tempo.graph.structural import HOST, RECURRENT
from tempo.symbolic import FALSE, TRUE, Condition, Slice, conjunction, disjunction


def is_covered(relations: Relations) -> bool:
    """Whether everything needed is defined."""
    return needed_points(relations)[1]


def needed_points(relations: Relations) -> tuple[dict[Node, Points], bool]:
    """Where each node is needed, and whether all of that is defined."""
    graph, defined = relations.graph, relations.defined
    needed: dict[Node, Points] = {}
    covered = True

    def need(node: Node, points: Points) -> None:
        if node not in needed:
            needed[node] = points
        elif needed[node] != points:
            needed[node] = needed[node].union(points).coalesce()

    for node in graph.nodes:
        if node.op in (RECURRENT, HOST):
            need(node, defined[node])
    for edge in (*graph.outputs.values(), *graph.emits.values(), *graph.stops.values()):
        if edge.node.op is RECURRENT and edge.is_here and edge not in graph.emits.values():
            covered = covered and _handed_out(relations, edge)
            continue
        box = relations.box(edge.domain)
        read = relations.access(edge.index, edge.domain, edge.node.domain, _lengths(edge)).intersect_domain(box)
        broken = relations.points(~_lengths(edge), edge.domain).intersect(box)
        covered = covered and broken.is_empty() and read.range().is_subset(defined[edge.node])
        need(edge.node, read.range().intersect(defined[edge.node]))

    # Recurrent nodes first, whose needs are known; then consumers before their operands, which are older.
    # Layers of a model need the same of each other: what was found for one holds for all.
    found: dict[Any, tuple[Points, bool]] = {}
    ordered = sorted(graph.nodes, key=lambda n: (n.op is not RECURRENT, -n.number))
    for node in ordered:
        if node not in needed:
            continue
        covered = covered and _lengths_hold(relations, node, needed[node])
        for read in relations.reads(node):
            # isl takes sets for equal whose dims have other names.
            key = read.relation, needed[node], defined[read.producer], node.domain, read.producer.domain
            if key not in found:
                points = read.relation.intersect_domain(needed[node]).range()
                found[key] = points.intersect(defined[read.producer]), points.is_subset(defined[read.producer])
            points, inside = found[key]
            covered = covered and inside
            if read.producer.op not in (RECURRENT, HOST):
                need(read.producer, points)
    return needed, covered


def _handed_out(relations: Relations, edge: Edge) -> bool:
    """Whether an output is defined on its whole box, or at least at all steps of its dims."""
    return bool(relations.box(edge.domain).is_subset(relations.defined[edge.node]))


def _lengths(edge: Edge) -> Condition:
    return conjunction(s.length >= 0 for s in edge.index if isinstance(s, Slice))


def _lengths_hold(relations: Relations, node: Node, needed: Points) -> bool:
    """Whether no slice that a node reads has a negative length where the node is needed."""
    edges = [(edge, TRUE) for edge in node.edges]
    edges += [(case.value, case.region) for case in relations.graph.cases.get(node, ())]
    broken = disjunction(conjunction([~_lengths(edge), region]) for edge, region in edges)
    return broken is FALSE or bool(relations.points(broken, node.domain).intersect(needed).is_empty())
