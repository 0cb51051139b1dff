"""Dims of one step, dropped.

    w[i, 0] = init if i == 0
    w[i, e] = f(w[i, e - 1]),  w[i, 0] = f(w[i - 1, E - 1])

With E = 1 nothing goes over e: every operation has one value there, and w at e = 0 is an ordinary recurrence over i. So
each node becomes one without the dim for each step at which it is read: step 0, and for tensors defined by cases the
steps next to it (``h[-1]``), or for adjoints, which have a dim of their own that is a step longer. What was a
recurrence over the dim is a chain of operations then, or equal to another tensor, which later passes see.

Inputs, host calls and what is handed out keep the dims that the user knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

from tempo.graph.build import make, scalar
from tempo.graph.node import (
    Case,
    Domain,
    Edge,
    Graph,
    Node,
    attribute_symbols,
    normal_size,
    shape_symbols,
    substitute_shape,
)
from tempo.graph.regions import ends
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import components
from tempo.ops.creation import FULL
from tempo.ops.shaping import CONCATENATE, RESHAPE
from tempo.passes.rewrite import Rebuilt, assemble, handed_out, over, through, with_edges
from tempo.passes.variables import in_variables
from tempo.symbolic import FALSE, TRUE, Bound, Dim, Expr, Slice, Symbol, conjunction, constant, equal

KEPT = (INPUT, HOST, HOST_RESULT)


def drop_single_steps(
    graph: Graph, numbers: Mapping[Any, int] | None = None, unrolled: Set[Dim] = frozenset()
) -> Graph:
    """The graph without the dims that have one step, by the bounds' numbers. Accumulations must have been resolved.

    Dims that stop on data stay, and those that are ``unrolled`` anyway.
    """
    open_bounds = frozenset(d.bound for d in graph.stops)
    dims = {
        d
        for d in graph.dims
        if numbers is not None
        and d.origin is d
        and d not in unrolled
        and not d.bound.symbols() & open_bounds
        and d.bound.evaluate(numbers) == 1
    }
    while numbers is not None and any(d.origin in dims for n in graph.nodes if n.op not in KEPT for d in n.domain):
        try:
            return _Dropped(graph, numbers, frozenset(dims)).result()
        except _UnknownStepError as unknown:
            dims.remove(unknown.dim.origin)
    return graph


class _UnknownStepError(Exception):
    """A read of several steps, or of one that is not defined, that depends on other dims."""

    def __init__(self, dim: Dim) -> None:
        self.dim = dim


class _Instance(NamedTuple):
    """A node at one step of each of its dropped dims."""

    node: Node
    steps: tuple[int, ...]


class _Dropped:
    """A graph without some dims."""

    def __init__(self, graph: Graph, numbers: Mapping[Any, int], dims: frozenset[Dim]) -> None:
        self.graph = graph
        self.numbers = numbers
        self.dims = dims
        self.bounds: dict[Symbol, Expr] = {d.bound: constant(1) for d in dims if isinstance(d.bound, Bound)}
        # Who reads at step 0, whatever else: results and host calls.
        self.first: dict[Symbol, Expr] = {**self.bounds, **dict.fromkeys(dims, constant(0))}
        self.spans: dict[Node, dict[Dim, range]] = {}
        self.edges: dict[_Instance, tuple[Edge, ...]] = {}
        self.cases: dict[_Instance, tuple[Case, ...]] = {}
        self.nodes: dict[_Instance, Node] = {}
        self.done: dict[_Instance, Edge] = {}
        self.stacks: dict[Edge, Edge] = {}

    def result(self) -> Graph:
        needed = self.needed()
        counts: dict[Node, int] = {}
        for found in needed:
            counts[found.node] = counts.get(found.node, 0) + 1
        for found in needed:
            if found.node.op is RECURRENT:
                self.nodes[found] = self.at_steps(found, (), counts)
                self.done[found] = self.nodes[found].here()
        # Operands come first; circles go through recurrent nodes, which are there already.
        for circle in components(needed):
            for found in sorted(circle, key=lambda f: (f.node.number, f.steps)):
                alone = len(circle) == 1 and found not in needed[found]
                self.done[found] = (
                    self.recurrent(found, alone) if found in self.cases else self.operation(found, counts)
                )
        cases = {
            self.nodes[found]: tuple(replace(case, value=self.read(case.value)) for case in old)
            for found, old in self.cases.items()
        }
        graph = self.graph
        outputs = {name: self.output(edge, cases) for name, edge in graph.outputs.items()}
        emits = {name: over(edge, self.read(edge.substitute(self.first))) for name, edge in graph.emits.items()}
        stops = {dim: self.read(edge.substitute(self.first)) for dim, edge in graph.stops.items()}
        rebuilt = Rebuilt()
        rebuilt.edges = {found.node: edge for found, edge in self.done.items() if found.node.op is HOST}
        return assemble(graph, cases, outputs, emits, stops, rebuilt)

    # -- which nodes are needed at which steps -------------------------------------------------------------------

    def needed(self) -> dict[_Instance, list[_Instance]]:
        """All instances that results and host calls need, with those that each reads."""
        graph = self.graph
        pending = [_Instance(node, ()) for node in graph.nodes if node.op is HOST]
        for edge in (*graph.outputs.values(), *graph.emits.values(), *graph.stops.values()):
            pending += self.instances(edge.substitute(self.first))
        pending += [found for edge in graph.outputs.values() if self.is_table(edge) for found in self.table(edge.node)]
        reads: dict[_Instance, list[_Instance]] = {}
        while pending:
            found = pending.pop()
            if found not in reads:
                self.edges[found] = tuple(self.reads(found))
                reads[found] = [other for edge in self.edges[found] for other in self.instances(edge)]
                pending += reads[found]
        return reads

    def reads(self, found: _Instance) -> Iterator[Edge]:
        """What an instance reads, in terms of old nodes and the dims that it still has."""
        if found.node.op is RECURRENT:
            yield from (case.value for case in self.cases_at(found))
        elif found.node.op is HOST_RESULT:
            yield from found.node.edges
        else:
            replacement = self.first if found.node.op in KEPT else self.replacement(found)
            yield from (edge.substitute(replacement) for edge in found.node.edges)

    def instances(self, edge: Edge) -> list[_Instance]:
        """Those that an edge reads."""
        if edge.node.op in KEPT:
            return [_Instance(edge.node, ())]
        steps = [
            self.steps(edge.node, d, item)
            for d, item in zip(edge.node.domain, edge.index, strict=True)
            if d.origin in self.dims
        ]
        return [_Instance(edge.node, found) for found in itertools.product(*steps)]

    def steps(self, node: Node, dim: Dim, item: Expr | Slice) -> range:
        """The steps of a dropped dim that an item of an index stands for."""
        span = self.span(node)[dim]
        if isinstance(item, Expr):
            if len(span) == 1:  # the analysis has shown that nothing else is read
                return span
            item = Slice(item, item + 1)
        if not item.start.is_constant or not item.stop.is_constant:
            raise _UnknownStepError(dim)
        found = range(item.start.constant, item.stop.constant)
        if found and not (found[0] in span and found[-1] in span):
            raise _UnknownStepError(dim)
        return found

    def span(self, node: Node) -> dict[Dim, range]:
        """The steps that a node may have of its dropped dims."""
        if node not in self.spans:
            self.spans[node] = {
                d: range(start.evaluate(self.numbers), stop.evaluate(self.numbers))
                for d, (start, stop) in zip(node.domain, ends(node, self.graph.cases), strict=True)
                if d.origin in self.dims
            }
        return self.spans[node]

    def cases_at(self, found: _Instance) -> tuple[Case, ...]:
        """The cases of a recurrent node that apply at an instance's steps, values still in terms of old nodes."""
        if found not in self.cases:
            self.cases[found] = tuple(self.applying(found))
            if not self.cases[found]:
                raise _UnknownStepError(next(d for d in found.node.domain if d.origin in self.dims))
        return self.cases[found]

    def applying(self, found: _Instance) -> Iterator[Case]:
        replacement = self.replacement(found)
        for case in self.graph.cases[found.node]:
            guards = [(e.substitute(replacement), d) for e, d in case.guards]
            decided = [part for e, d in guards if d.origin in self.dims for part in (e >= 0, self.below(e, d))]
            condition = conjunction([case.condition.substitute(replacement), *decided])
            new = Case(
                self.rest(found.node.domain, case.target),
                tuple((e, d) for e, d in guards if d.origin not in self.dims),
                condition,
                case.value.substitute(replacement),
                case.source,
            )
            if new.region is not FALSE:
                yield new
            if new.region is TRUE:
                return

    def below(self, expr: Expr, dim: Dim) -> Any:
        return expr < dim.bound.substitute(self.bounds)

    def replacement(self, found: _Instance) -> dict[Symbol, Expr]:
        """Numbers in place of an instance's dropped dims, and of their bounds."""
        dropped = [d for d in found.node.domain if d.origin in self.dims]
        return {**self.bounds, **{d: constant(step) for d, step in zip(dropped, found.steps, strict=True)}}

    def rest(self, domain: Domain, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of some items, one per dim of a domain, that belong to dims that stay."""
        return tuple(item for d, item in zip(domain, items, strict=True) if d.origin not in self.dims)

    # -- what they become ------------------------------------------------------------------------------------------

    def operation(self, found: _Instance, counts: Mapping[Node, int]) -> Edge:
        node = found.node
        if node.op is HOST_RESULT:
            edges = tuple(Edge(self.nodes[_Instance(edge.node, ())], edge.index) for edge in node.edges)
        else:
            edges = tuple(map(self.read, self.edges[found]))
        if node.op is HOST:  # an argument has an axis for every batch dim over which it was written to vary
            edges = tuple(over(*both) for both in zip(node.edges, edges, strict=True))
        self.nodes[found] = self.at_steps(found, edges, counts)
        return self.nodes[found].here()

    def recurrent(self, found: _Instance, alone: bool) -> Edge:
        """What a recurrent node becomes: where one case is left of a recurrence, the value of that."""
        node, (case, *others) = self.nodes[found], self.cases[found]
        if found.steps and alone and not others:
            value = self.read(case.value)
            if value.is_here and value.node.domain == node.domain:
                return value
        return node.here()

    def at_steps(self, found: _Instance, edges: tuple[Edge, ...], counts: Mapping[Node, int]) -> Node:
        """The node of an instance: the old one if nothing about it changes."""
        node = found.node
        used = shape_symbols(node.shape) | attribute_symbols(tuple(node.attributes.values()))
        if not found.steps and not used & set(self.bounds):
            return node if edges == node.edges else with_edges(node, edges)
        if node.op in KEPT:
            return replace(with_edges(node, edges), shape=substitute_shape(node.shape, self.bounds))
        dropped = [d.name for d in node.domain if d.origin in self.dims]
        where = ", ".join(f"{d} = {step}" for d, step in zip(dropped, found.steps, strict=True))
        name = f"{node.name} at {where}" if node.name and counts[node] > 1 else node.name
        domain = self.rest(node.domain, node.domain)
        new = in_variables(node, self.replacement(found), domain, edges, name)
        new = replace(new, attributes={key: _plain(value) for key, value in new.attributes.items()})
        # The only one takes the place of the old one: tensors stay in the order in which they were declared.
        return replace(new, number=node.number) if node.op is RECURRENT and counts[node] == 1 else new

    def read(self, edge: Edge) -> Edge:
        """What an edge, whose index has numbers in place of dropped dims, reads now."""
        node = edge.node
        if node.op in KEPT:
            return Edge(self.nodes[_Instance(node, ())], edge.index)
        for n, (d, item) in enumerate(zip(node.domain, edge.index, strict=True)):
            if d.origin in self.dims and isinstance(item, Slice):
                if edge not in self.stacks:
                    self.stacks[edge] = self.stacked(edge, n, self.steps(node, d, item))
                return self.stacks[edge]
        (found,) = self.instances(edge)
        made, new = self.nodes[found], self.done[found]
        here = Edge(made, self.rest(node.domain, edge.index))
        return here if new.node is made else through(here, new)

    def stacked(self, edge: Edge, n: int, steps: range) -> Edge:
        """A range of a dropped dim: the values at its steps along an axis."""
        axis = sum(isinstance(item, Slice) for item in edge.index[:n])
        pieces = [self.read(replace(edge, index=(*edge.index[:n], constant(s), *edge.index[n + 1 :]))) for s in steps]
        if not pieces:
            return make(FULL, shape=substitute_shape(edge.shape, self.bounds), value=scalar(0, edge.dtype))
        rows = [make(RESHAPE, p, shape=(*p.shape[:axis], 1, *p.shape[axis:]), source=p.node.source) for p in pieces]
        return rows[0] if len(rows) == 1 else make(CONCATENATE, *rows, axis=axis, source=edge.node.source)

    # -- what is handed out ------------------------------------------------------------------------------------------

    def is_table(self, edge: Edge) -> bool:
        """Whether an output has all steps of a tensor that is defined by cases."""
        return edge.node.op is RECURRENT and edge.is_here and bool(self.span(edge.node))

    def table(self, node: Node) -> Iterator[_Instance]:
        """The instances of a recurrent node wherever it is defined."""
        for steps in itertools.product(*self.span(node).values()):
            found = _Instance(node, steps)
            if found in self.cases or next(self.applying(found), None) is not None:
                yield found

    def output(self, edge: Edge, cases: dict[Node, tuple[Case, ...]]) -> Edge:
        """An output over the dims that the user knows."""
        if not self.is_table(edge):
            return handed_out(edge, self.read(edge.substitute(self.first)))
        node = edge.node
        shape = substitute_shape(node.shape, self.bounds)
        whole = Node(RECURRENT, (), node.domain, shape, node.dtype, node.source, name=node.name)
        cases[whole] = tuple(self.row(found, case) for found in self.table(node) for case in cases[self.nodes[found]])
        return whole.here()

    def row(self, found: _Instance, case: Case) -> Case:
        """What an output is at an instance's steps, where one of its cases applies."""
        steps = dict(zip(self.span(found.node), map(constant, found.steps), strict=True))
        others = iter(case.target)
        target = tuple(steps[d] if d in steps else next(others) for d in found.node.domain)
        condition = conjunction([*(equal(d, step) for d, step in steps.items()), case.condition])
        return replace(case, target=target, condition=condition)


def _plain(value: Any) -> Any:
    """An attribute with numbers for expressions that are numbers."""
    if isinstance(value, Expr):
        return normal_size(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_plain, value))
    return value
