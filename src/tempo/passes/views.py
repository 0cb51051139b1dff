"""Other shapes of a tensor: one for the recurrence that it is part of, and one for those who read it afterwards.

A loop that keeps a tensor and the same numbers in another shape, one read within and one after it, would keep them
twice. A reshape costs nothing where it is read.
"""

from __future__ import annotations

from tempo.analysis.causality import nested_circles
from tempo.graph.node import Edge, Graph, Node
from tempo.ops.shaping import RESHAPE
from tempo.passes.rewrite import Rebuilt, rebuild, with_edges


def split_views(graph: Graph) -> Graph:
    """The graph in which operations of different recurrences have reshapes of their own."""
    circles: dict[Node, tuple[int, ...]] = {}
    for number, (circle, _) in enumerate(nested_circles(graph)):
        for node in circle:
            circles[node] = (*circles.get(node, ()), number)
    copies: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def read(edge: Edge, around: tuple[int, ...], done: Rebuilt) -> Edge:
        node = edge.node
        if node.op is not RESHAPE or not node.edges[0].is_here or circles.get(node, ()) in ((), around):
            return done.edge(edge)
        if (node, around) not in copies:
            new = done.edges[node].node
            copies[node, around] = with_edges(new, new.edges)
        return Edge(copies[node, around], edge.index)

    def change(node: Node, done: Rebuilt) -> Edge:
        edges = tuple(read(edge, circles.get(node, ()), done) for edge in node.edges)
        return (node if edges == node.edges else with_edges(node, edges)).here()

    return rebuild(graph, change)
