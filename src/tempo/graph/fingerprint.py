"""What a program is, apart from who wrote it where: a number for every node and one text for all of them, the same in
every process."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tempo.graph.node import Edge, Graph, Node, Primitive
from tempo.graph.structural import HOST
from tempo.graph.traversal import producers
from tempo.symbolic import Condition, Expr, Slice
from tempo.symbolic import index as indices
from tempo.symbolic.grid import Grid


def numbered(graph: Graph) -> dict[Node, int]:
    """The nodes that results and host calls need, in the order in which these lead to them. (A node's own number tells
    when it was made, among all nodes of the process.)"""
    results = [edge.node for edge in (*graph.outputs.values(), *graph.emits.values(), *graph.stops.values())]
    calls = [node for node in graph.nodes if node.op is HOST]
    numbers: dict[Node, int] = {}
    pending = [*results, *calls][::-1]
    while pending:
        node = pending.pop()
        if node not in numbers:
            numbers[node] = len(numbers)
            pending.extend(reversed(list(producers(node, graph.cases))))
    return numbers


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fingerprint(graph: Graph) -> str:
    """A text that graphs share if their structure is the same: dims, operations, who reads whom where, and results."""
    numbers = numbered(graph)
    lines = [f"dim {d} < {d.bound} from {d.origin} + {d.start}" for d in graph.dims]
    lines += [_node(graph, node, numbers) for node in numbers]
    for kind, results in (("output", graph.outputs), ("emit", graph.emits), ("stop", graph.stops)):
        lines += [f"{kind} {name} = {_edge(edge, numbers)}" for name, edge in results.items()]
    return digest(lines)


def identity(graph: Graph) -> str | None:
    """A text that graphs share if they are the same in everything that a compiler looks at. (The names of tensors are
    not in it: those that Tempo gives differ from process to process.) None where nobody can tell: of a Python function,
    or of an operation that Tempo does not have itself, only the name is known."""
    ours = {id(p) for name, m in [*sys.modules.items()] if name.startswith("tempo.") for p in _primitives(m)}
    lines = [graph.name, fingerprint(graph)]
    for node in numbered(graph):
        if id(node.op) not in ours:
            return None
        kinds = [_kind(value) for _, value in sorted(node.attributes.items())]
        if None in kinds:
            return None
        guards = [str(case.guards) for case in graph.cases.get(node, ())]
        lines.append(f"{kinds} {guards}")
    lines += [f"input {name}: {node.dtype.name}{node.shape}" for name, node in graph.inputs.items()]
    return digest(lines)


def _primitives(module: Any) -> list[Primitive]:
    return [value for value in [*vars(module).values()] if isinstance(value, Primitive)]


def _kind(value: Any) -> str | None:
    """The type of an attribute, if its text says the rest."""
    if isinstance(value, tuple):
        kinds = [_kind(item) for item in value]
        return None if None in kinds else f"{type(value).__name__}{kinds}"
    if isinstance(value, Grid):
        return f"grid of {[str(d.bound) for d in value.axes]}"
    plain = None | bool | int | float | str | np.ndarray | np.generic | np.dtype | Expr | Condition | Slice
    return type(value).__name__ if isinstance(value, plain) else None


def _node(graph: Graph, node: Node, numbers: Mapping[Node, int]) -> str:
    parts = [f"{numbers[node]} {node.op.name}({', '.join(map(str, node.domain))}): {node.dtype.name}{node.shape}"]
    parts += [_edge(edge, numbers) for edge in node.edges]
    parts += [f"{key}={_attribute(value)}" for key, value in sorted(node.attributes.items())]
    for scatter in node.scatters:
        parts.append(f"{numbers[scatter.node]} into [{indices.show(scatter.index)}] if {scatter.condition}")
    for case in graph.cases.get(node, ()):
        parts.append(f"case {case.region}: {_edge(case.value, numbers)}")
    return "; ".join(parts)


def _edge(edge: Edge, numbers: Mapping[Node, int]) -> str:
    return f"{numbers[edge.node]}[{indices.show(edge.index)}]"


def _attribute(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_attribute, value))})"
    if callable(value):
        # Of a function only the name is sure to be the same in another process.
        return getattr(value, "__name__", type(value).__name__)
    return str(value)
