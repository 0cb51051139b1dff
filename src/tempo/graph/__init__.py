"""The symbolic dependence graph."""

from tempo.graph.node import Case, Domain, Edge, Graph, Node, Primitive, Scatter, Shape, Size

__all__ = ["Case", "Domain", "Edge", "Graph", "Node", "Primitive", "Scatter", "Shape", "Size"]
