"""Wavefronts: recurrences over two dims along their diagonals.

    D[i, j] = min(D[i - 1, j - 1] + cost, D[i, j - 1] + 1, D[i - 1, j] + 1)

Neither a loop over i nor one over j carries every read, so that it would be a loop in a loop, one point at a time. But
all points with the same ``i + j`` are independent of each other. In the variables ``s = i + j`` and ``i`` every read
looks back along s: one loop over s, all steps of i at once.

In general ``s = a*i + b*j`` with b = 1 or -1, and the smallest a for which the sum of steps around every circle of
reads is positive. ``i`` and ``s`` give ``j`` back, whatever a is. Nodes are delayed along s so that no single read
looks ahead, by where their dims start. Both new dims are families of their own: nobody else has loops over them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from tempo.analysis.causality import node_circles, retimed
from tempo.graph.node import Case, Domain, Edge, Graph, Node, dim_of, dims_of, find_dim, shape_symbols
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import circles
from tempo.passes.rewrite import Rebuilt, assemble
from tempo.passes.variables import case_in, in_variables
from tempo.symbolic import Dim, Expr, Index, Slice, Symbol, constant
from tempo.symbolic.regions import pinned

MOST_CHANGES = 256
"""How many diagonals a graph may get, one after the other."""

MOST_SLANT = 4
"""The largest a that is tried."""

MOST_WASTE = 6
"""How many times more points a loop along diagonals may compute than there are. Measured for an edit distance on a CPU:
5.7 ns for a point one by one, 1 ns along diagonals; a GPU gains far more."""

LARGE_VALUE = 2**16
"""A value with this many elements keeps a machine busy by itself."""

HOISTED = ("einsum", "convolution", "argsort", "random_bits", "cumsum", "cumprod", "linear_scan")
"""Operations that gain from being done for all points at once stay outside of the loop."""


def skew(graph: Graph, numbers: Mapping[Any, int] | None = None, unrolled: Set[Dim] = frozenset()) -> Graph:
    """The graph with its two-dimensional recurrences along their diagonals.

    The bounds' numbers say which dim is the shorter one, and is done at once. Dims that are ``unrolled`` stay as they
    are: along a diagonal all their steps would be needed in one array.
    """
    if graph.stops:
        return graph
    # A change leaves one loop less, or puts the one that carries everything first: a cube becomes one loop over
    # i + j + k in a few changes. (Any number of them is right: nothing is lost should some program need more.)
    for _ in range(MOST_CHANGES):
        skewing = next(_all_wavefronts(graph, numbers, unrolled), None)
        if skewing is None:
            break
        graph = _Skewed(graph, skewing).result()
    return graph


def _all_wavefronts(graph: Graph, numbers: Mapping[Any, int] | None, unrolled: Set[Dim]) -> Iterator[_Skewing]:
    for circle in node_circles(graph):
        reads = [r for node in circle for r in _reads(graph, node) if r.producer in circle]
        yield from _wavefronts(graph, circle, reads, numbers, unrolled)


@dataclass(frozen=True)
class _Read:
    """A read within a circle."""

    consumer: Node
    producer: Node
    edge: Edge

    def distance(self, family: Dim) -> int | None:
        """How many steps of a dim it looks back; None if that is not one number."""
        own, theirs = find_dim(self.consumer, family), find_dim(self.producer, family)
        if own is None or theirs is None:
            return None
        item = self.edge.index[self.producer.domain.index(theirs)]
        if isinstance(item, Slice):
            return None
        back = (own + own.start) - (item + theirs.start)
        return back.constant if back.is_constant else None


def _reads(graph: Graph, node: Node) -> Iterator[_Read]:
    for edge in (*node.edges, *(_relative(node, case) for case in graph.cases.get(node, ()))):
        yield _Read(node, edge.node, edge)


def _relative(node: Node, case: Case) -> Edge:
    """What a case reads, at a distance from its own point where its condition says that it is one: ``x[i, 0]`` where
    j is 0 is ``x[i, j]``."""
    fixed = {d.origin: (d, step + d.start) for d, step in pinned(case.condition, node.domain)}
    index = list(case.value.index)
    for n, (theirs, item) in enumerate(zip(case.value.node.domain, index, strict=True)):
        if theirs.origin in fixed and isinstance(item, Expr):
            own, step = fixed[theirs.origin]
            further = item + theirs.start - step
            if further.is_constant:
                index[n] = own + own.start + further - theirs.start
    return Edge(case.value.node, tuple(index))


def _circles(nodes: set[Node], reads: Sequence[_Read]) -> list[set[Node]]:
    following: dict[Node, list[Node]] = {node: [] for node in sorted(nodes, key=lambda n: n.number)}
    for r in reads:
        following[r.consumer].append(r.producer)
    return circles(following)


# -- which circles, and along which diagonals -----------------------------------------------------------------------


@dataclass
class _Skewing:
    """Nodes in the variables ``s = a*i + b*j`` and ``i``, and by how much each is delayed along s."""

    i: Dim
    j: Dim
    a: int
    b: int
    delays: dict[Node, int]
    s: Dim = field(init=False)
    p: Dim = field(init=False)

    def __post_init__(self) -> None:
        first, second = f"{self.a}*{self.i.name}" if self.a > 1 else self.i.name, self.j.name
        if (self.a, self.b) == (1, 1) and self.i.number > self.j.number:
            first, second = second, first
        name = f"({first}{'+' if self.b == 1 else '-'}{second})" if self.a else self.j.name
        # A dim that carries everything by itself only has to come first, before any other that carries a part of it.
        self.s = Dim(name, self.a * (self.i.bound - 1) + self.j.bound, outermost=self.a == 0)
        self.p = Dim(self.i.name, self.i.bound)


def _wavefronts(
    graph: Graph,
    circle: set[Node],
    reads: Sequence[_Read],
    numbers: Mapping[Any, int] | None,
    unrolled: Set[Dim],
) -> Iterator[_Skewing]:
    """The circles that would get two loops, one in the other, of which one along diagonals would do."""
    shared = set.intersection(*({d.origin for d in node.domain} for node in circle))
    families = sorted(shared, key=lambda d: d.number)
    for outer in families:
        steps = [r.distance(outer) for r in reads]
        for direction in (1, -1):
            delays = _delays(reads, steps, direction)
            if delays is None:
                continue
            late = [delays[r.consumer] - delays[r.producer] for r in reads]
            rest = [r for r, n, step in zip(reads, late, steps, strict=True) if n + direction * (step or 0) == 0]
            if len(rest) == len(reads):
                continue
            inner = _circles(circle, rest)
            if not inner:
                return
            found = _choose(graph, circle, reads, [d for d in families if d not in unrolled], numbers)
            if found is not None:
                yield found
                return
            for c in inner:
                inside = [r for r in rest if r.consumer in c and r.producer in c]
                yield from _wavefronts(graph, c, inside, numbers, unrolled)
            return


def _choose(
    graph: Graph, circle: set[Node], reads: Sequence[_Read], families: Sequence[Dim], numbers: Mapping[Any, int] | None
) -> _Skewing | None:
    """The diagonals along which one loop carries a whole circle: those with the fewest points outside of it."""
    emitted = {d.origin for edge in graph.emits.values() for d in edge.domain}
    best: tuple[float, int, dict[Node, int], Dim, Dim, int] | None = None
    for i, j in itertools.permutations(families, 2):
        if {i, j} & emitted or not all(_is_suited(node, i, j) for node in circle):
            continue
        distances = [(r.distance(i), r.distance(j)) for r in reads]
        for a, b, direction in itertools.product(range(MOST_SLANT + 1), (1, -1), (1, -1)):
            steps = [None if di is None or dj is None else a * di + b * dj for di, dj in distances]
            delays = _delays(reads, steps, direction) if _is_strict(reads, steps, direction) else None
            if delays is None:
                continue
            # Without numbers, as if both dims were as long.
            ratio = 1.0 if numbers is None else i.bound.evaluate(numbers) / j.bound.evaluate(numbers)
            if a * ratio + 1 <= MOST_WASTE and (best is None or a * ratio + 1 < best[0]):
                kept = max(delay for node, delay in delays.items() if node.op is RECURRENT)
                signed = {node: direction * (delay - kept) for node, delay in delays.items()}
                best = (a * ratio + 1, a, signed, i, j, b)
            break
    if best is None:
        return None
    _, a, delays, i, j, b = best
    return _Skewing(i, j, a, b, _with_operands(graph, delays, i, j))


def _is_suited(node: Node, i: Dim, j: Dim) -> bool:
    """Whether a node's values at several points can be computed at once, and it is worth it."""
    dims = {d for d in node.domain if d.origin in (i, j)}
    size = math.prod(n if isinstance(n, int) else 1 for n in node.shape)
    plain = node.op not in (INPUT, HOST, HOST_RESULT)
    return len(dims) == 2 and plain and size < LARGE_VALUE and not dims & shape_symbols(node.shape)


def _with_operands(graph: Graph, delays: Mapping[Node, int], i: Dim, j: Dim) -> dict[Node, int]:
    """The delays of a circle's nodes and of the cheap operations that are only there for them, which can then be done
    in the same loop."""
    readers: dict[Node, list[_Read]] = {}
    for node in graph.nodes:
        for r in _reads(graph, node):
            readers.setdefault(r.producer, []).append(r)
    results = {edge.node for edge in (*graph.outputs.values(), *graph.emits.values())}
    found = dict(delays)
    for node in reversed(graph.nodes):
        if node in found or node in results or node.op is RECURRENT or node.op.name in HOISTED:
            continue
        by = readers.get(node, [])
        sliced = any(isinstance(item, Slice) for r in by for item in r.edge.index)
        if by and not sliced and _is_suited(node, i, j) and all(r.consumer in found for r in by):
            found[node] = found[by[0].consumer]
    return found


def _delays(reads: Sequence[_Read], steps: Sequence[int | None], direction: int) -> dict[Node, int] | None:
    """By how many steps to delay nodes so that no read looks ahead in a loop in one direction; None if that cannot
    be."""
    known = [(r.consumer, r.producer, direction * n) for r, n in zip(reads, steps, strict=True) if n is not None]
    return retimed(known) if len(known) == len(reads) else None


def _is_strict(reads: Sequence[_Read], steps: Sequence[int | None], direction: int) -> bool:
    """Whether the steps around every circle of reads sum up to more than zero."""
    # No circle has more reads than there are nodes: one step is more than the ones that are taken away along it.
    most = len({r.consumer for r in reads}) + 1
    less = [None if step is None else most * step - direction for step in steps]
    return _delays(reads, less, direction) is not None


# -- the graph in the new variables ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Variables:
    """The two new dims of a node in place of two old ones."""

    i: Dim
    j: Dim
    s: Dim
    p: Dim
    a: int
    b: int
    offset: Expr
    """What is added to ``a*i + b*j`` so that the first step is 0."""

    @property
    def replacement(self) -> dict[Symbol, Expr]:
        return {self.i: self.p, self.j: self.b * (self.s - self.a * self.p - self.offset)}

    def index(self, domain: Domain, items: Mapping[Dim, Expr | Slice]) -> Index:
        """What reads the new node where ``items`` would read the old one."""
        i, j = items[self.i], items[self.j]
        assert isinstance(i, Expr) and isinstance(j, Expr)
        new = {**items, self.s: self.a * i + self.b * j + self.offset, self.p: i}
        return tuple(new[d] for d in domain)


class _Skewed:
    """A graph with some of its nodes in other variables."""

    def __init__(self, graph: Graph, skewing: _Skewing) -> None:
        self.graph = graph
        self.skewing = skewing
        self.done = Rebuilt()
        self.new: dict[Node, Node] = {}
        self.dims: dict[tuple[Dim, Expr, Expr], Dim] = {}
        self.variables = {node: self.variables_of(node) for node in graph.nodes if node in skewing.delays}

    def result(self) -> Graph:
        graph, done = self.graph, self.done
        for node in graph.nodes:
            if node.op is RECURRENT:
                done.edges[node] = node.here()
                if node in self.variables:
                    self.new[node] = self.change(node, ())
        for node in graph.nodes:
            if node.op is not RECURRENT:
                if node in self.variables:
                    self.new[node] = self.change(node, tuple(self.inner(node, edge) for edge in node.edges))
                    done.edges[node] = self.unchanged(node)
                else:
                    edges = tuple(map(self.edge, node.edges))
                    same = edges == node.edges
                    done.edges[node] = (node if same else in_variables(node, {}, node.domain, edges, node.name)).here()
        for node, cases in graph.cases.items():
            if node in self.variables:
                new, replacement = self.new[node], self.variables[node].replacement
                done.cases[new] = tuple(
                    case_in(case, replacement, new.domain, self.inner(node, _relative(node, case))) for case in cases
                )
                # The old node is what results and slices read, if there are any: the new one's values, rearranged.
                done.cases[node] = tuple(replace(case, value=self.unchanged(node)) for case in cases)
            else:
                done.cases[node] = tuple(replace(case, value=self.edge(case.value)) for case in cases)
        outputs = {name: self.result_edge(edge) for name, edge in graph.outputs.items()}
        emits = {name: self.edge(edge) for name, edge in graph.emits.items()}
        return assemble(graph, done.cases, outputs, emits, graph.stops, done)

    def variables_of(self, node: Node) -> _Variables:
        skewing = self.skewing
        i, j = dim_of(node, skewing.i), dim_of(node, skewing.j)
        a, b = skewing.a, skewing.b
        offset = constant(0) if b == 1 else j.bound - 1
        start = a * i.start + b * j.start - offset + skewing.delays[node]
        s = self.dim(skewing.s, a * (i.bound - 1) + j.bound, start)
        p = self.dim(skewing.p, i.bound, i.start)
        return _Variables(i, j, s, p, a, b, offset)

    def dim(self, family: Dim, bound: Expr, start: Expr) -> Dim:
        if start == 0 and bound == family.bound:
            return family
        if (family, bound, start) not in self.dims:
            self.dims[family, bound, start] = Dim(f"{family.name}'{len(self.dims) + 1}", bound, family, start)
        return self.dims[family, bound, start]

    def change(self, node: Node, edges: tuple[Edge, ...]) -> Node:
        """A node in the new variables, with what it reads."""
        v = self.variables[node]
        domain = dims_of(frozenset(node.domain) - {v.i, v.j} | {v.s, v.p})
        return in_variables(node, v.replacement, domain, edges, f"{node.name}'" if node.name else "")

    def inner(self, node: Node, edge: Edge) -> Edge:
        """What a node in the new variables reads through an old edge."""
        return self.edge(edge).substitute(self.variables[node].replacement)

    def unchanged(self, node: Node) -> Edge:
        """The values of a new node at the points of the old one."""
        items = {d: d for d in node.domain}
        return Edge(self.new[node], self.variables[node].index(self.new[node].domain, items))

    def edge(self, edge: Edge) -> Edge:
        """What reads the new nodes where an old edge reads the old ones, in the reader's own variables."""
        v = self.variables.get(edge.node)
        items = dict(zip(edge.node.domain, edge.index, strict=True))
        if v is None or isinstance(items[v.i], Slice) or isinstance(items[v.j], Slice):
            return self.done.edge(edge)
        new = self.new[edge.node]
        return Edge(new, v.index(new.domain, items))

    def result_edge(self, edge: Edge) -> Edge:
        """All points where a recurrent node is defined are handed out, if it is handed out as it is."""
        return edge if edge.is_here and edge.node.op is RECURRENT else self.edge(edge)
