"""Where a dim stops on data, what is read at its last step is computed there.

    w[i + 1] = w[i] - grad[i]
    accuracy[i] = f(w[i])
    handed out: accuracy[I - 1]

If the number of steps is known, no other step of ``accuracy`` is needed, and none is computed. But any step may turn
out to be the last one of a dim that stops on data, so that all of them would be, and all of ``w`` kept for them. So the
read moves to the operands: what is handed out is f(w[I - 1]), of the one ``w`` that is there when the loop has ended.
"""

from __future__ import annotations

from tempo.graph.node import Edge, Graph, Node, dims_of
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.passes.rewrite import Rebuilt, rebuild
from tempo.passes.variables import in_variables
from tempo.symbolic import Dim, Expr, Slice, Symbol

Steps = dict[Symbol, Expr]
"""The steps of dims at which a node is read, whoever reads it."""


def compute_last_steps(graph: Graph) -> Graph:
    """The graph with what is read at one step of a dim that stops on data computed at this step alone."""
    steps = _steps(graph)
    if not steps:
        return graph

    def change(node: Node, done: Rebuilt) -> Edge | None:
        if node not in steps:
            return None
        edges = tuple(done.edge(edge.substitute(steps[node])) for edge in node.edges)
        rest = tuple(d for d in node.domain if d not in steps[node])
        return in_variables(node, steps[node], rest, edges, node.name).here()

    return rebuild(graph, change)


def _steps(graph: Graph) -> dict[Node, Steps]:
    """The nodes that are read at one step of dims that stop on data, and at which one."""
    read: dict[Node, list[Edge]] = {}
    results = (*graph.outputs.values(), *graph.emits.values(), *graph.stops.values())
    for edge in (*results, *(case.value for cases in graph.cases.values() for case in cases)):
        read.setdefault(edge.node, []).append(edge)
    found: dict[Node, Steps] = {}
    # Readers first: those that are computed at one step only read what they need there.
    for node in reversed(graph.nodes):
        if node.op not in (RECURRENT, INPUT, HOST, HOST_RESULT) and node in read:
            stopped = [d for d in node.domain if d.origin in graph.stops]
            own: Steps = {d: step for d in stopped if (step := _single(d, read[node])) is not None}
            if own:
                found[node] = own
        for edge in node.edges:
            read.setdefault(edge.node, []).append(edge.substitute(found.get(node, {})))
    return found


def _single(dim: Dim, edges: list[Edge]) -> Expr | None:
    """The step of a dim of a node that all of these read, if there is one."""
    items = {edge.index[edge.node.domain.index(dim)] for edge in edges}
    (item, *others) = items
    return None if others or isinstance(item, Slice) or dims_of(item.symbols()) else item
