"""Nodes in other variables: what an operation or a case becomes when dims are replaced by expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tempo.graph.node import Case, Domain, Edge, Node, substitute_shape
from tempo.symbolic import Condition, Dim, Expr, Slice, Symbol, conjunction
from tempo.symbolic.grid import Grid
from tempo.symbolic.regions import within

Replacement = Mapping[Symbol, Expr]


def in_variables(node: Node, replacement: Replacement, domain: Domain, edges: tuple[Edge, ...], name: str) -> Node:
    """The node's operation over another domain, on edges that are already in the new variables."""
    attributes = {key: attribute_in(value, replacement) for key, value in node.attributes.items()}
    shape = substitute_shape(node.shape, replacement)
    return Node(node.op, edges, domain, shape, node.dtype, node.source, attributes, name=name)


def attribute_in(value: Any, replacement: Replacement) -> Any:
    """An attribute in other variables, however nested."""
    if isinstance(value, Expr | Condition | Slice):
        return value.substitute(replacement)
    if isinstance(value, Grid):
        bounds = {d: d.bound.substitute(replacement) for d in value.axes}
        axes = {d: d if bound == d.bound else Dim(d.name, bound, d.origin, d.start) for d, bound in bounds.items()}
        return Grid(value.value.substitute({**replacement, **axes}), tuple(axes.values()))
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(attribute_in(v, replacement) for v in value)
    return value


def case_in(case: Case, replacement: Replacement, target: tuple[Expr, ...], value: Edge) -> Case:
    """A case in other variables, with a value that already is.

    What its guards say goes into the condition where it is about replaced dims.
    """
    kept = tuple((e, d) for e, d in case.guards if not e.symbols() & set(replacement))
    changed = replace(case, guards=tuple(g for g in case.guards if g not in kept)).region.substitute(replacement)
    return Case(target, kept, conjunction([within(changed, ())]), value, case.source)
