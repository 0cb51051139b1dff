"""Half precision where XLA has no products in it: operands that stay the same in a loop are converted once.

For a product in half precision, XLA for CPUs converts both operands to single precision. It does that before a loop
with what stays the same in it, such as weights. But a loop that emits is run in chunks, each a call of its own, and
every one of them would convert all weights: of 234 MB that took 280 ms, where a token of the model takes 30. What
a product of the single precision that they are converted to comes to is rounded once, as before.
"""

from __future__ import annotations

from collections.abc import Mapping

from tempo import dtypes
from tempo.analysis.causality import node_circles
from tempo.graph.build import make
from tempo.graph.node import Edge, Graph, Node
from tempo.ops.contraction import EINSUM
from tempo.ops.elementwise import CAST
from tempo.passes.rewrite import Rebuilt, rebuild
from tempo.symbolic import Dim


def widen_what_stays(graph: Graph) -> Graph:
    """The graph with products in half precision, in circles, made of what was converted before."""
    circle_of = {node: number for number, circle in enumerate(node_circles(graph)) for node in circle}
    around = _dims_around(circle_of)
    converted: dict[Node, Edge] = {}

    def stays(node: Node, edge: Edge) -> bool:
        return edge.node not in circle_of and around[circle_of[node]].isdisjoint(edge.domain)

    def single(edge: Edge) -> Edge:
        return make(CAST, edge, dtype=dtypes.accumulator_of(edge.dtype))

    def change(node: Node, done: Rebuilt) -> Edge | None:
        half = dtypes.accumulator_of(node.dtype) != node.dtype
        if node.op is not EINSUM or not half or not any(stays(node, edge) for edge in node.edges if node in circle_of):
            return None
        operands = []
        for edge in node.edges:
            new = done.edge(edge)
            if stays(node, edge):
                if new.node not in converted:
                    converted[new.node] = single(new.node.here())
                operands.append(Edge(converted[new.node].node, new.index))
            else:
                operands.append(single(new))
        product = make(EINSUM, *operands, domain=node.domain, source=node.source, **node.attributes)
        return make(CAST, product, domain=node.domain, source=node.source, dtype=node.dtype)

    return rebuild(graph, change)


def _dims_around(circle_of: Mapping[Node, int]) -> dict[int, set[Dim]]:
    """By circle, the dims that all of its nodes have: those along which it may go round."""
    found: dict[int, set[Dim]] = {}
    for node, number in circle_of.items():
        found[number] = found.get(number, set(node.domain)) & set(node.domain)
    return found
