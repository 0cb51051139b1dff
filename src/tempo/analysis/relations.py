"""The reads of a graph as isl relations, for given bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tempo.graph.node import Domain, Edge, Graph, Node, Scatter
from tempo.graph.regions import by_case, defined, ends
from tempo.graph.structural import ACCUMULATE, HOST, RECURRENT
from tempo.symbolic import (
    TRUE,
    Condition,
    Index,
    Slice,
    Symbol,
    box_of,
    conjunction,
    constant,
    equal,
)
from tempo.symbolic import index as indices
from tempo.symbolic.polyhedral import access, to_set

# isl's objects come without types; a set of points and a relation between points.
Points = Any
Relation = Any


@dataclass(frozen=True, eq=False)
class Read:
    """A consumer that reads a producer: the relation from its points to the points it reads."""

    consumer: Node
    producer: Node
    relation: Relation
    index: Index | None = None
    """The index that the relation comes from, where it comes from one."""


class Relations:
    """Where nodes are defined and what they read, as isl objects.

    Bounds are numbers, except those of dims that stop on data: they are parameters between 1 and their number.
    """

    def __init__(self, graph: Graph, numbers: Mapping[Any, int]) -> None:
        self.graph = graph
        stopped = {dim.bound for dim in graph.stops}
        self.numbers: dict[Symbol, Any] = {b: n for b, n in numbers.items() if b not in stopped}
        self._reads: dict[Node, list[Read]] = {}
        self._accesses: dict[Any, Relation] = {}
        self.limits = conjunction(part for b, n in numbers.items() if b in stopped for part in (b >= 1, b <= n))

    def points(self, condition: Condition, domain: Domain) -> Points:
        return to_set((condition & self.limits).substitute(self.numbers), domain)

    def box(self, domain: Domain) -> Points:
        return self.points(box_of(domain), domain)

    @cached_property
    def defined(self) -> dict[Node, Points]:
        """Where each node has a value."""
        boxes: dict[Domain, Points] = {}
        result = {}
        for node in self.graph.nodes:
            if node.op is RECURRENT:
                result[node] = self.defined_by_cases(node)
            else:
                if node.domain not in boxes:
                    boxes[node.domain] = self.box(node.domain)
                result[node] = boxes[node.domain]
        return result

    def defined_by_cases(self, node: Node) -> Points:
        """Where a recurrent tensor has a value."""
        return self.points(defined(self.graph.cases[node]), node.domain).coalesce()

    def reads(self, node: Node) -> list[Read]:
        """Everything that a node reads, at all the points where it is defined."""
        if node not in self._reads:
            self._reads[node] = list(self._reads_of(node))
        return self._reads[node]

    def _reads_of(self, node: Node) -> Iterator[Read]:
        if node.op is RECURRENT:
            for case, region in by_case(self.graph.cases[node]):
                yield self.through(node, case.value, region)
        elif node.op is ACCUMULATE:
            for scatter in node.scatters:
                yield self.scattered(node, scatter)
        elif node.op is HOST:
            yield from self.host_reads(node)
        else:
            for edge in node.edges:
                yield self.through(node, edge, TRUE)

    def through(self, consumer: Node, edge: Edge, condition: Condition) -> Read:
        relation = self.access(edge.index, consumer.domain, edge.node.domain, condition)
        return Read(consumer, edge.node, relation, edge.index)

    def access(self, index: Index, domain: Domain, producer: Domain, condition: Condition) -> Relation:
        # Most nodes of a model with many layers read in one of a few ways.
        key = (index, domain, producer, condition)
        if key not in self._accesses:
            self._accesses[key] = access(
                indices.substitute(index, self.numbers),
                domain,
                producer,
                (condition & self.limits).substitute(self.numbers),
            )
        return self._accesses[key]

    def scattered(self, consumer: Node, scatter: Scatter) -> Read:
        """A scatter goes from producer to consumer; a read goes the other way."""
        producer = scatter.node
        inside = conjunction(
            part
            for d, (start, stop) in zip(producer.domain, ends(producer, self.graph.cases), strict=True)
            for part in (d >= start, d < stop)
        )
        forward = self.access(scatter.index, producer.domain, consumer.domain, scatter.condition & inside)
        return Read(consumer, producer, forward.reverse())

    def host_reads(self, node: Node) -> Iterator[Read]:
        """A call is made once for all points of its batch, and after the call before it."""
        batch = set(node.attributes["batch"])
        everything = {d: Slice(constant(0), d.bound) for d in batch}
        for edge in node.edges:
            whole = tuple(_widened(item, everything) for item in edge.index)
            yield self.through(node, Edge(edge.node, whole), TRUE)
        sequence: Domain = node.attributes["sequence"]
        for n, d in enumerate(sequence):
            inner = {e: Slice(e.bound - 1, e.bound) for e in sequence[n + 1 :]}
            index = tuple(d - 1 if e is d else inner.get(e, everything.get(e, e)) for e in node.domain)
            first = conjunction([d >= 1, *(equal(e, 0) for e in inner)])
            yield self.through(node, Edge(node, index), first)


def _widened(item: Any, everything: Mapping[Any, Slice]) -> Any:
    """An index item for all steps of the batch dims in it."""
    from tempo.symbolic.intervals import extremes

    ranges = {d: (s.start, s.stop - 1) for d, s in everything.items()}
    if not item.symbols() & set(ranges):
        return item
    first, last = (item.start, item.stop - 1) if isinstance(item, Slice) else (item, item)
    return Slice(extremes(first, ranges)[0], extremes(last, ranges)[1] + 1)
