"""What has the same values everywhere is computed once, recurrences among them.

    acting[0] = init,  acting[i] = f(learned[i - 1])
    learned[0] = init, learned[i] = f(learned[i - 1])

Simplification finds operations on the same operands, but these tensors are only seen to be equal if they are taken to
be. So all recurrent tensors of the same dims, shape and cases are taken to be equal at first, and told apart by what
their cases read, until nothing more is told apart (Moore's algorithm for automata that do the same). What is left is
equal by induction: a value needs earlier ones only, as the analysis has shown.

Draws are the same where their keys are. Host calls and inputs are only equal to themselves.
"""

from __future__ import annotations

from collections.abc import Hashable

from tempo.graph.node import Edge, Graph, Node, frozen
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import edges_of
from tempo.passes.rewrite import Rebuilt, rebuild

MOST_ROUNDS = 32
"""Each round goes once over the graph, and tells recurrences apart that read, through operations alone, what the round
before told apart: two chains of as many recurrences that differ at their ends take as many rounds."""


def merge_equal(graph: Graph) -> Graph:
    """The graph with one node for all that always have the same values."""
    classes = _classes(graph)
    if classes is None or len(set(classes.values())) == len(classes):
        return graph
    first: dict[int, Node] = {}
    for node in graph.nodes:
        first.setdefault(classes[node], node)
    recurrent = {node: first[classes[node]] for node in graph.nodes if node.op is RECURRENT}

    def change(node: Node, done: Rebuilt) -> Edge | None:
        same = first[classes[node]]
        return None if same is node else done.edges[same]

    return rebuild(graph, change, recurrent=recurrent)


def _classes(graph: Graph) -> dict[Node, int] | None:
    """A number for every node, the same for nodes that always have the same values; None if that takes too long."""
    # What a node is apart from what it reads, and where it reads, is looked at once.
    numbers = _Numbers()
    what = {node: numbers[_what(graph, node)] for node in graph.nodes}
    reads: dict[Node, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        reads[node] = [(edge.node, numbers[edge.index]) for edge in edges_of(node, graph.cases)]
    classes = {node: what[node] for node in graph.nodes if node.op is RECURRENT}
    for _ in range(MOST_ROUNDS):
        told_apart = _Numbers()
        found = {node: -1 - number for node, number in classes.items()}  # operations have numbers from 0 on
        for node in graph.nodes:
            if node.op is not RECURRENT:
                found[node] = told_apart[what[node], *((found[n], index) for n, index in reads[node])]
        refined = {node: told_apart[found[node], *((found[n], index) for n, index in reads[node])] for node in classes}
        if len(set(refined.values())) == len(set(classes.values())):
            return found
        classes = refined
    return None


class _Numbers(dict[Hashable, int]):
    """A number for everything that it is asked for."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = len(self)
        return self[key]


def _what(graph: Graph, node: Node) -> Hashable:
    """What a node is, apart from the values that it reads."""
    if node.op in (INPUT, HOST, HOST_RESULT):
        return node
    cases = tuple((case.target, case.guards, case.condition) for case in graph.cases.get(node, ()))
    return node.op, node.domain, node.shape, node.dtype, frozen(node.attributes), cases
