"""Base cases that are recurrences themselves, as tensors of their own.

    D[-1, j] = D[-1, j - 1] + 1
    D[i, j] = ...

The sum in the first case varies over j alone, but D over i and j: a circle of nodes that share no dim over which a loop
could go. The row ``D[-1, j]`` only needs itself, however. So it becomes a tensor over j, which ``D[-1, j]`` reads, and
so does everything else that reads exactly this row.

In general: at a fixed step of a dim, nodes that have the dim and nodes that lack it may read each other in circles
*within that step*. Those that have it are copied for the step, without the dim. The copies have the same values, so
that this is right whatever else happens; where nobody needs the step of the originals any more (in adjoints), their
cases for it are dropped, which is what breaks the circle there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from tempo.analysis.causality import node_circles
from tempo.graph.node import Case, Domain, Edge, Graph, Node, dims_of, find_dim
from tempo.graph.structural import HOST, HOST_RESULT, RECURRENT
from tempo.graph.traversal import components, edges_of
from tempo.passes.rewrite import Rebuilt, assemble, with_cases
from tempo.passes.variables import case_in, in_variables
from tempo.symbolic import Condition, Dim, Expr, Slice, Symbol, box_of, conjunction, equal
from tempo.symbolic.polyhedral import may_hold
from tempo.symbolic.regions import pinned

Item = TypeVar("Item", bound=Expr | Slice)


def split_pinned(graph: Graph) -> Graph:
    """The graph with rows that are recurrences of their own taken out of the tensors they are rows of."""
    if graph.stops or any(node.op is HOST for node in graph.nodes):
        return graph
    tried: set[Pin] = set()
    while (pin := next((p for p in _pins(graph) if p not in tried), None)) is not None:
        tried.add(pin)
        # Copies are read wherever the originals were at the step, so that no circle comes back.
        while circles := _circles_at(graph, pin):
            graph = _Split(graph, pin, circles[0]).result()
    return graph


def split_fixed_reads(graph: Graph) -> Graph:
    """The graph with rows taken out of the tensors they are rows of that are read, in a circle, by what lacks the dim:

        o[i, t + 1] = f(o[i, t], w[i, 0])
        w[i, e + 1] = g(w[i, e], o[i, 0:T])

    For each i, w at the first e comes before all of o, and at the others after it. But a circle of nodes has an order
    only if the row ``w[i, 0]`` is a node of its own. (Where there is an order anyway, this would cost it stores.)
    """
    # Of the rows themselves no further rows are taken, which could go on for ever.
    wanted = set(_fixed_reads(graph))
    for pin, node in sorted(wanted, key=lambda found: (found[1].number, str(found[0]))):
        if (pin, node) not in _fixed_reads(graph):
            continue
        split = _Split(graph, pin, {node})
        if not any(copied.op in (HOST, HOST_RESULT) for copied in split.copied):  # calls are made once
            graph = split.result()
    return graph


def _fixed_reads(graph: Graph) -> Iterator[tuple[Pin, Node]]:
    """The recurrent nodes that another one of their circle, which lacks one of their dims, reads at a step of it."""
    for circle in node_circles(graph):
        for reader in circle:
            families = {d.origin for d in reader.domain}
            for edge in edges_of(reader, graph.cases):
                if edge.node not in circle or edge.node.op is not RECURRENT:
                    continue
                for d, item in zip(edge.node.domain, edge.index, strict=True):
                    if d.origin not in families and isinstance(item, Expr) and not dims_of(item.symbols()):
                        yield Pin(d.origin, item + d.start), edge.node


@dataclass(frozen=True)
class Pin:
    """One step of a dim that a user declared."""

    family: Dim
    step: Expr

    def dim(self, node: Node) -> Dim | None:
        """The dim of a node that the step is one of."""
        return find_dim(node, self.family)

    def at(self, dim: Dim) -> Expr:
        """The step as a derived dim counts."""
        return self.step - dim.start

    def is_read(self, edge: Edge) -> bool:
        """Whether an edge reads its node exactly there."""
        d = self.dim(edge.node)
        return d is not None and edge.index[edge.node.domain.index(d)] == self.at(d)

    def replacement(self, node: Node) -> dict[Symbol, Expr]:
        """The step in place of the dim of a node."""
        d = self.dim(node)
        return {} if d is None else {d: self.at(d)}

    def rest(self, node: Node, items: Sequence[Item]) -> tuple[Item, ...]:
        """Those of some items, one per dim of a node, that belong to its other dims."""
        return tuple(item for d, item in zip(node.domain, items, strict=True) if d.origin is not self.family)

    def copy(self, node: Node, edges: tuple[Edge, ...]) -> Node:
        """An operation at the step alone."""
        name = f"{node.name} at {self.family.name} = {self.step}" if node.name else ""
        return in_variables(node, self.replacement(node), self.rest(node, node.domain), edges, name)


def _pins(graph: Graph) -> Iterator[Pin]:
    """The steps at which a case has a value that does not vary over the dim and needs the tensor itself."""
    circle_of = {node: n for n, circle in enumerate(node_circles(graph)) for node in circle}
    for node, cases in graph.cases.items():
        for case in cases:
            value = case.value.node
            if node not in circle_of or circle_of.get(value) != circle_of[node]:
                continue
            for d, step in pinned(case.condition, node.domain):
                if all(e.origin is not d.origin for e in value.domain):
                    yield Pin(d.origin, step + d.start)


def _circles_at(graph: Graph, pin: Pin) -> list[set[Node]]:
    """The nodes that need each other in circles at one step of a dim, where some have the dim and some lack it."""

    def leads_to(edges: Iterable[Edge], circle: set[Node]) -> list[Node]:
        return [e.node for e in edges if e.node in circle and (pin.dim(e.node) is None or pin.is_read(e))]

    def mixed(following: dict[Node, list[Node]]) -> list[set[Node]]:
        having = {node for node in following if pin.dim(node) is not None}
        return [c for c in components(following) if 0 < len(c & having) < len(c)]

    found = []
    for around in node_circles(graph):
        # Most circles are seen to be none without asking isl which cases apply at the step.
        substituted = {
            node: [e.substitute(pin.replacement(node)) for e in edges_of(node, graph.cases)] for node in around
        }
        for circle in mixed({node: leads_to(edges, around) for node, edges in substituted.items()}):
            applying = {node: [edge for edge, _ in _reads_at(graph, node, pin)] for node in circle}
            found += mixed({node: leads_to(edges, circle) for node, edges in applying.items()})
    return found


def _reads_at(graph: Graph, node: Node, pin: Pin) -> Iterator[tuple[Edge, Case | None]]:
    """What a node reads at a step of a dim, in the remaining dims: edges, or the values of the cases that apply there,
    with these."""
    step = pin.replacement(node)
    if node.op is not RECURRENT:
        yield from ((edge.substitute(step), None) for edge in node.edges)
        return
    cases = graph.cases[node]
    for n in _applying(pin, node.domain, tuple(case.region for case in cases)):
        yield cases[n].value.substitute(step), cases[n]


@lru_cache(maxsize=2**12)  # most cases stay as they are from one split to the next
def _applying(pin: Pin, domain: Domain, regions: tuple[Condition, ...]) -> tuple[int, ...]:
    """The numbers of the cases that may apply at a step, by the regions of all."""
    step = {d: pin.at(d) for d in domain if d.origin is pin.family}
    rest = tuple(d for d in domain if d not in step)
    earlier: list[Condition] = []
    found = []
    for n, region in enumerate(regions):
        there = region.substitute(step)
        if may_hold(conjunction([there, *(~e for e in earlier)]), rest):
            found.append(n)
        earlier.append(there)
    return tuple(found)


class _Split:
    """A graph with copies of a circle's nodes for one step of a dim."""

    def __init__(self, graph: Graph, pin: Pin, circle: set[Node]) -> None:
        self.graph = graph
        self.pin = pin
        self.copied = self.needed_copies(circle)
        self.done = Rebuilt()
        self.copies: dict[Node, Node] = {}

    def needed_copies(self, circle: set[Node]) -> set[Node]:
        """Those of the circle that have the dim, and all that they read at the step and that may need them at others:
        the originals are then not read there any more."""
        around = next(c for c in node_circles(self.graph) if circle <= c)
        found: set[Node] = set()
        pending = [node for node in circle if self.pin.dim(node) is not None]
        while pending:
            node = pending.pop()
            if node in found:
                continue
            found.add(node)
            reads = [edge for edge, _ in _reads_at(self.graph, node, self.pin)]
            pending += [e.node for e in reads if self.pin.is_read(e) and e.node in around]
        return found

    def result(self) -> Graph:
        graph, done = self.graph, self.done
        for node in graph.nodes:
            if node.op is RECURRENT:
                done.edges[node] = node.here()
                if node in self.copied:
                    self.copies[node] = self.pin.copy(node, ())
        for node in graph.nodes:
            if node.op is not RECURRENT:
                edges = tuple(map(self.edge, node.edges))
                same = edges == node.edges
                done.edges[node] = (node if same else in_variables(node, {}, node.domain, edges, node.name)).here()
                if node in self.copied:
                    reads = _reads_at(graph, node, self.pin)
                    self.copies[node] = self.pin.copy(node, tuple(self.edge(edge) for edge, _ in reads))
        for node, copy in self.copies.items():
            if node.op is RECURRENT:
                done.cases[copy] = tuple(
                    case_in(case, self.pin.replacement(node), self.pin.rest(node, case.target), self.edge(value))
                    for value, case in _reads_at(graph, node, self.pin)
                    if case is not None
                )
        for node, cases_ in graph.cases.items():
            done.cases[node] = tuple(self.case(node, case) for case in cases_)
        outputs = {name: self.result_edge(edge) for name, edge in graph.outputs.items()}
        emits = {name: self.result_edge(edge) for name, edge in graph.emits.items()}
        return self.without_unneeded(assemble(graph, done.cases, outputs, emits, graph.stops, done))

    def edge(self, edge: Edge) -> Edge:
        """An old edge, reading the copy where it reads exactly the step."""
        if edge.node in self.copied and self.pin.is_read(edge):
            return Edge(self.copies[edge.node], self.pin.rest(edge.node, edge.index))
        return self.done.edge(edge)

    def result_edge(self, edge: Edge) -> Edge:
        return self.done.edge(edge) if edge.is_here else self.edge(edge)

    def case(self, node: Node, case: Case) -> Case:
        """An old case; what it defines at the step comes from the copy."""
        if not self.is_pinned(node, case):
            return replace(case, value=self.edge(case.value))
        if node in self.copied:
            return replace(case, value=Edge(self.copies[node], self.pin.rest(node, node.domain)))
        # What is read at the reader's own step is read at the step.
        return replace(case, value=self.edge(case.value.substitute(self.pin.replacement(node))))

    def is_pinned(self, node: Node, case: Case) -> bool:
        return any(
            d.origin is self.pin.family and step == self.pin.at(d) for d, step in pinned(case.condition, node.domain)
        )

    # -- steps of the originals that nobody needs any more --------------------------------------------------------

    def without_unneeded(self, graph: Graph) -> Graph:
        """The graph without the originals' cases for the step, where only the copies are read there."""
        cases = dict(graph.cases)
        copied = [node for node in graph.nodes if node in self.copied and node in cases]
        needed = self.needed(graph, copied)
        for node in copied:
            kept = tuple(case for case in cases[node] if node in needed or not self.is_pinned(node, case))
            cases[node] = kept or cases[node]
        return with_cases(graph, cases)

    def needed(self, graph: Graph, wanted: Collection[Node]) -> set[Node]:
        """Those of some nodes whose values at the step somebody may read (and some others)."""
        readers: dict[Node, list[tuple[Node, int, Edge]]] = {}
        for reader in graph.nodes:
            for n, edge in enumerate(edges_of(reader, graph.cases)):
                readers.setdefault(edge.node, []).append((reader, n, edge))
        found: set[Node] = set()
        for edge in (*graph.outputs.values(), *graph.emits.values()):
            if edge.is_here or self.may_hit(edge, box_of(edge.domain), edge.domain):
                found.add(edge.node)
        # Who reads at its own step needs the step if somebody needs the reader at the step.
        by_same: dict[Node, list[Node]] = {}
        seen, unclear = set(wanted), list(wanted)
        while unclear:
            node = unclear.pop()
            for reader, n, edge in readers.get(node, ()):
                if node in found:
                    break
                if not self.may_hit(edge, self.read_where(graph, reader, n), reader.domain):
                    continue
                if not self.is_same_step(edge, reader):
                    found.add(node)
                    continue
                by_same.setdefault(reader, []).append(node)
                if reader not in seen:
                    seen.add(reader)
                    unclear.append(reader)
        pending = list(found)
        while pending:
            new = [node for node in by_same.get(pending.pop(), ()) if node not in found]
            found.update(new)
            pending.extend(new)
        return found

    def read_where(self, graph: Graph, reader: Node, number: int) -> Condition:
        """The points at which a node reads one of its edges, or the value of one of its cases."""
        if number < len(reader.edges):
            return box_of(reader.domain)
        cases = graph.cases[reader][: number - len(reader.edges) + 1]
        return conjunction([cases[-1].region, *(~case.region for case in cases[:-1])])

    def may_hit(self, edge: Edge, condition: Condition, domain: Domain) -> bool:
        """Whether an edge may read its node at the step, somewhere where a condition holds."""
        d = self.pin.dim(edge.node)
        if d is None:
            return False
        item, step = edge.index[edge.node.domain.index(d)], self.pin.at(d)
        hit = (step >= item.start) & (step < item.stop) if isinstance(item, Slice) else equal(item, step)
        return may_hold(hit & condition, domain)

    def is_same_step(self, edge: Edge, reader: Node) -> bool:
        """Whether a reader's own step is the step of the dim that it reads."""
        theirs, own = self.pin.dim(edge.node), self.pin.dim(reader)
        if theirs is None or own is None:
            return False
        item = edge.index[edge.node.domain.index(theirs)]
        return isinstance(item, Expr) and item + theirs.start == own + own.start
