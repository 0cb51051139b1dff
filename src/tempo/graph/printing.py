"""A graph as text: one line per node, in an order in which a person can read it.

y(t): float32[] is                            # ema.py:6
    y[0] = x[0]
    y[t] = add_5
add_5(t): float32[] = add(multiply_3, multiply_4)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tempo.graph.node import Case, Graph, Node, show_shape
from tempo.graph.structural import ACCUMULATE, INPUT, RECURRENT
from tempo.symbolic import TRUE, Condition


def show_graph(graph: Graph) -> str:
    dims = ", ".join(f"{d.name} < {d.bound}" for d in graph.dims)
    lines = [f"program {graph.name}({dims})"]
    for node in graph.nodes:
        lines.extend(f"  {line}" for line in show_node(graph, node))
    for dim, edge in graph.stops.items():
        lines.append(f"  stop {dim.name} when {edge}")
    for name, edge in graph.emits.items():
        lines.append(f"  emit {name} = {edge}")
    for name, edge in graph.outputs.items():
        lines.append(f"  output {name} = {edge}")
    return "\n".join(lines)


def show_node(graph: Graph, node: Node) -> list[str]:
    head = f"{node.label}({', '.join(d.name for d in node.domain)}): {show_type(node)}"
    if node.op is INPUT:
        return [f"{head} = input"]
    if node.op is RECURRENT:
        cases = graph.cases.get(node, ())
        return [f"{head} is", *(f"    {show_case(node, case)}" for case in cases)]
    if node.op is ACCUMULATE:
        return [f"{head} sums", *(f"    {scatter}" for scatter in node.scatters)]
    operands = [str(edge) for edge in node.edges]
    operands += [f"{key}={show_attribute(value)}" for key, value in node.attributes.items()]
    return [f"{head} = {node.op.name}({', '.join(operands)})"]


def show_type(node: Node) -> str:
    return f"{node.dtype.name}[{show_shape(node.shape)[1:-1].rstrip(',')}]"


def show_case(node: Node, case: Case) -> str:
    """A case as it is read: the value at the points of the tensor, and where it applies."""
    pinned = [str(e) if d not in e.symbols() else str(d) for d, e in zip(node.domain, case.target, strict=True)]
    plain = all(e == d for e, d in case.guards)
    condition: Condition = case.condition if plain else case.region
    text = f"{node.label}[{', '.join(pinned)}] = {case.value}"
    free_condition = condition is not TRUE and bool(
        not plain or any(d in e.symbols() for d, e in zip(node.domain, case.target, strict=True))
    )
    return f"{text} if {condition}" if free_condition else text


def show_attribute(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value.item()) if value.size == 1 else f"array{list(value.shape)}"
    if isinstance(value, np.dtype):
        return value.name
    if callable(value):
        return getattr(value, "__name__", "function")
    if isinstance(value, tuple):
        return f"({', '.join(map(show_attribute, value))})"
    return str(value)
