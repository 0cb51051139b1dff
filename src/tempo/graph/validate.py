"""What every legal graph satisfies. Run in the tests after every construction and every pass."""

from __future__ import annotations

from tempo.graph.node import (
    Domain,
    Edge,
    Graph,
    Node,
    attribute_symbols,
    dims_of,
    shape_symbols,
    show_shape,
    substitute_shape,
)
from tempo.graph.structural import ACCUMULATE, HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.symbolic import Expr, Slice
from tempo.symbolic import index as indices


class InvalidGraphError(Exception):
    """A graph that no correct pass would produce: a bug in Tempo, never in a user's program."""


def validate(graph: Graph) -> None:
    """Raise ``InvalidGraphError`` unless the graph is well-formed."""
    known = set(graph.nodes)
    numbers = [node.number for node in graph.nodes]
    _require(numbers == sorted(set(numbers)), "nodes are unique and in order of creation")
    for node in graph.nodes:
        _validate_node(graph, node, known)
    for name, edge in (*graph.outputs.items(), *graph.emits.items()):
        _validate_edge(edge, edge.domain, known, f"result {name}")
    for dim, edge in graph.stops.items():
        _validate_edge(edge, (dim,), known, f"stop of {dim.name}")


def _validate_node(graph: Graph, node: Node, known: set[Node]) -> None:
    where = node.label
    _require(node.domain == dims_of(frozenset(node.domain)), f"{where}: domain in declaration order")
    symbols = shape_symbols(node.shape) | attribute_symbols(tuple(node.attributes.values()))
    _require(set(dims_of(symbols)) <= set(node.domain), f"{where}: shape and attributes use its dims")
    for edge in node.edges:
        _validate_edge(edge, node.domain, known, where)
        if node.op not in (HOST, HOST_RESULT):
            _require(edge.node.number < node.number, f"{where}: operands are older")
    _require(
        (node.op is RECURRENT) == (node in graph.cases),
        f"{where}: exactly recurrent nodes have cases",
    )
    _require(not node.scatters or node.op is ACCUMULATE, f"{where}: only accumulations have scatters")
    for case in graph.cases.get(node, ()):
        _validate_edge(case.value, node.domain, known, where)
        allowed = set(node.domain)
        _require(set(dims_of(case.region.symbols())) <= allowed, f"{where}: cases use its dims")
        _require(case.value.dtype == node.dtype, f"{where}: case of dtype {case.value.dtype.name}")
        _validate_case_shape(node, case.value, case.target)
    for scatter in node.scatters:
        _require(scatter.node in known, f"{where}: scatters come from nodes of the graph")
        _require(len(scatter.index) == len(node.domain), f"{where}: one scatter item per dim")
        used = indices.symbols(scatter.index) | scatter.condition.symbols()
        _require(set(dims_of(used)) <= set(scatter.node.domain), f"{where}: scatter uses producer's dims")
        _require(scatter.node.dtype == node.dtype, f"{where}: scatter of the same dtype")
    if node.op.infer is not None:
        shape, dtype = node.op.infer(*node.edges, **node.attributes)
        _require(shape == node.shape, f"{where}: shape {show_shape(node.shape)} is {show_shape(shape)}")
        _require(dtype == node.dtype, f"{where}: dtype {node.dtype.name} is {dtype.name}")
    else:
        structural = (INPUT, RECURRENT, ACCUMULATE, HOST, HOST_RESULT)
        _require(node.op in structural, f"{where}: {node.op.name} has no shape rule")


def _validate_case_shape(node: Node, value: Edge, target: tuple[Expr, ...]) -> None:
    pinned = {d: e for d, e in zip(node.domain, target, strict=True) if d not in e.symbols()}
    shape = substitute_shape(node.shape, pinned)
    found = substitute_shape(value.shape, pinned)
    _require(found == shape, f"{node.label}: case of shape {show_shape(found)}, not {show_shape(shape)}")


def _validate_edge(edge: Edge, domain: Domain, known: set[Node], where: str) -> None:
    _require(edge.node in known, f"{where}: reads {edge}, which is not in the graph")
    _require(len(edge.index) == len(edge.node.domain), f"{where}: one index item per dim of {edge}")
    _require(all(isinstance(i, Expr | Slice) for i in edge.index), f"{where}: index of {edge}")
    _require(set(edge.domain) <= set(domain), f"{where}: {edge} uses the consumer's dims")


def _require(truth: bool, what: str) -> None:
    if not truth:
        raise InvalidGraphError(f"not a legal graph: {what}")
