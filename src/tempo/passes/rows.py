"""Rows that one iteration hands on to the next, as tensors of their own.

    start[i] = x[i - 1, T - 1]
    x[i, t] = f(x[i, t - 1]),  x[i, 0] = g(start[i])

Only the last step of x is read in the next iteration, but x would have to be kept until then, with all steps. The row
``last[i] = x[i, T - 1]`` is taken when x is complete, and x need not outlive its own iteration.
"""

from __future__ import annotations

from dataclasses import replace

from tempo.analysis.causality import node_circles
from tempo.graph.build import make
from tempo.graph.node import Case, Edge, Graph, Node, dims_of
from tempo.graph.structural import HOST, INPUT, RECURRENT
from tempo.ops.elementwise import COPY
from tempo.passes.rewrite import with_cases
from tempo.symbolic import Dim, Expr


def hand_rows_on(graph: Graph) -> Graph:
    """The graph with copies of rows that the recurrence they belong to reads in another iteration."""
    if graph.stops:  # the last step is then known only when it is there
        return graph
    circles = node_circles(graph)
    circle_of = {node: n for n, circle in enumerate(circles) for node in circle}
    # Where Python runs the loop over steps, nothing is copied in it, and a row of its own is one more program to start.
    by_python = {n for n, circle in enumerate(circles) if any(node.op is HOST for node in circle)}
    rows: dict[tuple[Node, tuple[tuple[Dim, Expr], ...]], Node] = {}

    def handed_on(node: Node, case: Case) -> Case:
        value = case.value
        within = node in circle_of and circle_of.get(value.node) == circle_of[node]
        is_row = value.node.op is not INPUT and not (value.node.op is RECURRENT and circle_of.get(node) in by_python)
        fixed = _fixed(value) if within and is_row else ()
        if not fixed or not _is_in_another_iteration(node, value, fixed):
            return case
        key = value.node, fixed
        if key not in rows:
            steps = dict(fixed)
            here = zip(value.node.domain, value.node.here().index, strict=True)
            index = tuple(steps.get(d, item) for d, item in here)
            rows[key] = make(COPY, Edge(value.node, index), source=value.node.source).node
        items = dict(zip(value.node.domain, value.index, strict=True))
        return replace(case, value=Edge(rows[key], tuple(items[d] for d in rows[key].domain)))

    cases = {node: tuple(handed_on(node, case) for case in old) for node, old in graph.cases.items()}
    if not rows:
        return graph
    return with_cases(graph, cases)


def _fixed(edge: Edge) -> tuple[tuple[Dim, Expr], ...]:
    """The dims of which an edge reads one step, whatever the point."""
    if not all(isinstance(item, Expr) for item in edge.index) or not all(isinstance(s, int) for s in edge.node.shape):
        return ()
    items = zip(edge.node.domain, edge.index, strict=True)
    return tuple((d, item) for d, item in items if isinstance(item, Expr) and not dims_of(item.symbols()))


def _is_in_another_iteration(node: Node, edge: Edge, fixed: tuple[tuple[Dim, Expr], ...]) -> bool:
    """Whether an edge reads another step than the reader's own, of a dim that both have."""
    steps = dict(fixed)
    others = [item for d, item in zip(edge.node.domain, edge.index, strict=True) if d not in steps]
    return any(item not in node.domain for item in others)
