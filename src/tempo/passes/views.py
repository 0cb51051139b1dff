"""Other shapes of a tensor, one for each of its readers.

A loop that keeps a tensor and the same numbers in another shape, one read within and one after it, would keep
them twice. A reshape costs nothing where it is read.
"""

from __future__ import annotations

from tempo.graph.node import Edge, Graph, Node
from tempo.ops.shaping import RESHAPE
from tempo.passes.rewrite import Rebuilt, rebuild, refreshed, with_edges


def split_views(graph: Graph) -> Graph:
    """The graph in which every operation has reshapes of its own."""
    views = {node for node in graph.nodes if node.op is RESHAPE and node.edges[0].is_here}
    read: set[Node] = set()

    def change(node: Node, done: Rebuilt) -> Edge:
        for view in dict.fromkeys(edge.node for edge in node.edges if edge.node in views):
            if view in read:
                new = done.edges[view].node
                done.edges[view] = with_edges(new, new.edges).here()
            read.add(view)
        return refreshed(node, done)

    return rebuild(graph, change)
