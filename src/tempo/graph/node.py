"""What a program is: nodes with a domain, edges with an index, definitions by cases.

The grammar of the symbolic dependence graph:

    Graph      ::= Node*  cases: Node -> Case*  outputs, emits, stops: name -> Edge
    Node       ::= Primitive  (Edge* | Scatter*)  attributes  domain  shape  dtype
    Edge       ::= Node [Index]          the consumer reads the producer there
    Scatter    ::= Node -> [Index] if Condition   the producer's value is added into the consumer there
    Case       ::= Guard* Condition Edge the value of a recurrent node where guard and condition hold
    Index      ::= (Expr | Slice)*       one item per dim of the producer's domain (of the consumer's, in a Scatter)

Nodes are immutable. Recurrence closes through the ``cases`` of recurrent nodes, which live in the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tempo.copying import PartOfProgram
from tempo.dtypes import DType
from tempo.source import SourceLine
from tempo.symbolic import TRUE, Condition, Dim, Expr, Index, Slice, Symbol, as_expr, conjunction
from tempo.symbolic import index as indices
from tempo.symbolic.grid import Grid

Size = int | Expr
Shape = tuple[Size, ...]
Domain = tuple[Dim, ...]

_node_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Primitive:
    """One operation of the language, on one point's values.

    ``infer(*edges, **attributes)`` gives shape and dtype or raises; ``reference(*arrays, **attributes)`` is
    the meaning in NumPy; ``gradient(g, out, *operands, **attributes)`` gives, per operand, a tensor of the
    operand's shape, or None for operands through which nothing flows. Primitives without ``gradient`` have
    derivative zero. Attributes may hold index expressions; ``reference`` sees their values at the point.

    ``jax(jx, *operands, **attributes)`` is the same on JAX arrays, for one point, where axes whose size depends on
    the point are padded: ``operands`` are ``backends.jax.padded.Padded``, sizes in attributes that depend on the
    point are ``Extent``, and what lies in the padding of the result does not matter. ``neutral(dtype, **attributes)``
    is what it puts into the padding of an operand that would do harm.
    """

    name: str
    infer: Callable[..., tuple[Shape, DType]] | None = None
    reference: Callable[..., Any] | None = None
    gradient: Callable[..., tuple[Any, ...]] | None = None
    jax: Callable[..., Any] | None = None
    neutral: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Node(PartOfProgram):
    """An operation at every point of a domain."""

    op: Primitive
    edges: tuple[Edge, ...]
    domain: Domain
    shape: Shape
    dtype: DType
    source: SourceLine | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    scatters: tuple[Scatter, ...] = ()
    name: str = ""
    number: int = field(default_factory=lambda: next(_node_numbers))

    @property
    def label(self) -> str:
        """The name a user gave, or one made from the operation."""
        return self.name or f"{self.op.name}_{self.number}"

    def _named(self) -> str:
        return self.label

    def here(self) -> Edge:
        """This node read at the same point."""
        return Edge(self, self.domain)


@dataclass(frozen=True, slots=True)
class Edge:
    """A producer read through an index: what ``x[t - 1]`` stands for."""

    node: Node
    index: Index

    @property
    def domain(self) -> Domain:
        """The dims that the value read depends on, in declaration order."""
        return dims_of(indices.symbols(self.index))

    @property
    def shape(self) -> Shape:
        return _shape_read(self.node.shape, self.node.domain, self.index)

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def is_here(self) -> bool:
        return self.index == self.node.domain

    def substitute(self, replacement: Mapping[Any, Expr]) -> Edge:
        return Edge(self.node, indices.substitute(self.index, replacement))

    def __str__(self) -> str:
        return self.node.label if self.is_here else f"{self.node.label}[{indices.show(self.index)}]"


@lru_cache(maxsize=2**14)  # asked for again and again, and most layers of a model are alike
def _shape_read(shape: Shape, domain: Domain, index: Index) -> Shape:
    lengths = tuple(normal_size(s.length) for s in indices.slices(index))
    points = {d: i for d, i in zip(domain, index, strict=True) if isinstance(i, Expr)}
    return lengths + substitute_shape(shape, points)


@dataclass(frozen=True, slots=True)
class Scatter:
    """A producer's values added into the consumer: the adjoint of an ``Edge``.

    ``index`` and ``condition`` are over the *producer's* domain and give the points of the consumer into which
    its value goes; the axes that a slice in ``index`` spreads are the leading axes of that value.
    """

    node: Node
    index: Index
    condition: Condition = TRUE

    def __str__(self) -> str:
        text = f"{self.node.label} -> [{indices.show(self.index)}]"
        return text if self.condition is TRUE else f"{text} if {self.condition}"


@dataclass(frozen=True, slots=True)
class Case:
    """One line ``x[target] = value`` or ``x[condition] = value`` of a definition by cases.

    ``guards`` and ``condition`` are over the points of ``x``: a guard ``(e, d)`` says that the expression e must be a
    step of dim d, which is how ``x[t + 1] = ...`` is turned into the values for ``x[t]``. They are kept apart from the
    condition because the steps of a dim that stops on data are only known while it runs.
    """

    target: tuple[Expr, ...]
    guards: tuple[tuple[Expr, Dim], ...]
    condition: Condition
    value: Edge
    source: SourceLine | None = None

    @property
    def region(self) -> Condition:
        """Where the case applies (if none before it does)."""
        return _region(self.guards, self.condition)


@lru_cache(maxsize=2**14)  # passes ask for it again and again, of cases that differ in their values only
def _region(guards: tuple[tuple[Expr, Dim], ...], condition: Condition) -> Condition:
    return conjunction([*(part for e, d in guards for part in (e >= 0, e < d.bound)), condition])


@dataclass(frozen=True, slots=True)
class Graph(PartOfProgram):
    """A whole program."""

    name: str
    dims: Domain
    nodes: tuple[Node, ...]
    cases: Mapping[Node, tuple[Case, ...]]
    outputs: Mapping[str, Edge]
    emits: Mapping[str, Edge]
    stops: Mapping[Dim, Edge]
    inputs: Mapping[str, Node]
    """Everything a run may be given, needed or not."""

    def __str__(self) -> str:
        from tempo.graph.printing import show_graph

        return show_graph(self)

    def _named(self) -> str:
        return f"the graph of '{self.name}'"


def dims_of(symbols: frozenset[Symbol]) -> Domain:
    """The dims among some symbols, in declaration order; a derived dim stands where its origin would."""
    return tuple(sorted((s for s in symbols if isinstance(s, Dim)), key=lambda s: (s.origin.number, s.number)))


def find_dim(node: Node, family: Dim) -> Dim | None:
    """The dim of a node that counts steps of a dim that a user declared, if it has one."""
    return next((d for d in node.domain if d.origin is family), None)


def dim_of(node: Node, family: Dim) -> Dim:
    """``find_dim`` of a node that has one."""
    return next(d for d in node.domain if d.origin is family)


def union(*domains: Domain) -> Domain:
    return dims_of(frozenset().union(*map(frozenset, domains)))


def normal_size(size: Size) -> Size:
    """A size as an ``int`` where it is one."""
    size = as_expr(size)
    return size.constant if size.is_constant else size


def substitute_shape(shape: Shape, replacement: Mapping[Any, Any]) -> Shape:
    if not replacement or all(isinstance(size, int) for size in shape):
        return shape
    return tuple(normal_size(as_expr(size).substitute(replacement)) for size in shape)


def shape_symbols(shape: Shape) -> frozenset[Symbol]:
    return frozenset().union(*(s.symbols() for s in shape if isinstance(s, Expr)))


def show_shape(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def attribute_symbols(value: Any) -> frozenset[Symbol]:
    """The symbols in an attribute, however nested."""
    if isinstance(value, Expr | Condition | Slice | Grid):
        return value.symbols()
    if isinstance(value, tuple | list):
        return frozenset().union(*map(attribute_symbols, value))
    return frozenset()


def frozen(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Attributes as something that can be a key."""

    def hashable(value: Any) -> Any:
        return (value.shape, value.dtype, value.tobytes()) if isinstance(value, np.ndarray) else value

    return tuple((name, hashable(value)) for name, value in sorted(attributes.items()))


def show_domain(domain: Domain) -> str:
    return f"({', '.join(d.name for d in domain)}{',' if len(domain) == 1 else ''})"
