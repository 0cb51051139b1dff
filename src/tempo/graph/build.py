"""Making nodes outside of the frontend: what passes use."""

from __future__ import annotations

from typing import Any

import numpy as np

from tempo.dtypes import DType
from tempo.graph.node import Domain, Edge, Node, Primitive, Shape, attribute_symbols, dims_of, shape_symbols
from tempo.source import SourceLine


def make(op: Primitive, *edges: Edge, domain: Domain = (), source: SourceLine | None = None, **attributes: Any) -> Edge:
    """An operation on what edges read, over the dims that they, the attributes and ``domain`` need."""
    assert op.infer is not None
    shape, dtype = op.infer(*edges, **attributes)
    used = frozenset(domain).union(*(e.domain for e in edges), attribute_symbols(tuple(attributes.values())))
    full = dims_of(frozenset(used) | shape_symbols(shape))
    return Node(op, edges, full, shape, dtype, source, attributes).here()


def scalar(value: float, dtype: DType) -> np.ndarray[Any, Any]:
    return np.asarray(value).astype(dtype)


def with_domain(edge: Edge, copy: Primitive, domain: Domain) -> Edge:
    """The edge's values as a node over exactly these dims."""
    if edge.is_here and edge.node.domain == domain:
        return edge
    return make(copy, edge, domain=domain, source=edge.node.source)


def reshaped(reshape: Primitive, edge: Edge, shape: Shape) -> Edge:
    return edge if edge.shape == shape else make(reshape, edge, shape=shape, source=edge.node.source)
