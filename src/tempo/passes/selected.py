"""Only what is selected is computed.

    back[t] = argmax(scores[t - 1] + A, axis=0)
    path[t] = back[t + 1].take(path[t + 1])

Of all the elements of ``back`` one is read at each step. So the selection moves to the operands: at each step a maximum
is searched among the scores plus one column of A.

A selection moves as long as that leaves less to compute and to keep, by a rough estimate in elements. It stays where it
is if it reads most of what there is, or reads it again and again: at the steps of a dim over which what it reads does
not vary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from tempo.analysis.causality import node_circles
from tempo.graph.node import Domain, Edge, Graph, Node, Shape, Size, dims_of
from tempo.graph.structural import INPUT
from tempo.graph.traversal import dependents, edges_of, reachable
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.indexing import SLICE
from tempo.ops.reduction import ARGMAX, ARGMIN
from tempo.ops.scan import CUMMAX, CUMMIN, CUMPROD, CUMSUM
from tempo.ops.sorting import ARGSORT
from tempo.passes.axes import REDUCTIONS
from tempo.passes.rewrite import rebuild
from tempo.passes.selections import VIEWS, Moved, Place, Selection, inside, operands, selection
from tempo.symbolic import Dim

COSTLY = {*REDUCTIONS, ARGMAX, ARGMIN, CUMMAX, CUMMIN, CUMPROD, CUMSUM, EINSUM, ARGSORT}
"""What XLA computes in kernels of their own. All else it computes where it is read, and only what is read."""

KEEP = 4
"""What keeping an element until another loop reads it costs, in elements that are computed."""

PRODUCTS = 16
"""How many products of a contraction take as long as one element of anything else."""

GAIN = 2
"""How many times less there must be to compute: it is done in smaller pieces."""

MORE_MEMORY = 2
"""How many times more bytes may be kept, where operands are kept in place of a result."""

DEEPEST = 64
"""How many operations one after the other a selection moves through: Python's stack is finite."""

GUESS = 64
"""A bound whose number is not known."""


def compute_selected(graph: Graph, numbers: Mapping[Any, int] | None = None, unrolled: Set[Dim] = frozenset()) -> Graph:
    """The graph with selections moved in front of the operations from whose results they select."""
    found: dict[Node, list[Selection]] = {}
    for node in graph.nodes:
        one = selection(node)
        if one is not None and operands(one.read, one.place) is not None:
            found.setdefault(one.read.node, []).append(one)
    if not found:
        return graph
    costs = _Costs(graph, numbers or {})
    moves = {move.one.node: move for node, ones in found.items() for move in costs.moves(node, ones)}
    if not moves:
        return graph
    return rebuild(
        graph,
        lambda node, done: Moved(moves[node].one, moves[node].moves_on, done).result() if node in moves else None,
    )


class _Costs:
    """What a graph's nodes cost, and who reads them."""

    def __init__(self, graph: Graph, numbers: Mapping[Any, int]) -> None:
        self.graph = graph
        self.numbers = numbers
        self.needed: dict[Node, set[int]] = {}
        self.circle_of = {node: n for n, circle in enumerate(node_circles(graph)) for node in circle}
        self.in_loops = dependents(self.circle_of, graph)
        self.readers: dict[Node, list[tuple[Node | None, Edge]]] = {}
        for node in graph.nodes:
            for edge in edges_of(node, graph.cases):
                self.readers.setdefault(edge.node, []).append((node, edge))
        for edge in (*graph.outputs.values(), *graph.emits.values(), *graph.stops.values()):
            self.readers.setdefault(edge.node, []).append((None, edge))

    def moves(self, node: Node, selections: Sequence[Selection]) -> Sequence[_Move]:
        """How the selections from a node move: all of them or none."""
        dead = self.dead(node, {one.node for one in selections})
        found = [_Move(self, one, dead) for one in selections]
        if not any(move.is_apart for move in found) and not any(one.op in COSTLY for one in dead):
            return ()
        before = max(move.left(move.one.read) for move in found) + sum(move.taken(move.one.read) for move in found)
        after = sum(move.moved(move.one.read, move.one.place) for move in found)
        return found if GAIN * after <= before and all(move.is_allowed() for move in found) else ()

    def dead(self, node: Node, selecting: Set[Node]) -> set[Node]:
        """What nobody needs any more once some nodes do not read this one."""
        found: set[Node] = set()
        pending = [node]
        while pending:
            one = pending.pop()
            if one not in found and all(reader in found or reader in selecting for reader, _ in self.readers[one]):
                found.add(one)
                pending.extend(edge.node for edge in one.edges)
        return found

    def is_apart(self, one: Selection) -> bool:
        """Whether a selection reads another step, or in another loop. What is in no loop is done where what it reads
        is, unless its indices come later."""
        own, read = self.circle_of.get(one.node), one.read.node
        if not one.read.is_here or own not in (None, self.circle_of.get(read)):
            return True
        return any(self.circles(edge.node) - self.circles(read) for edge in one.node.edges[1:])

    def circles(self, node: Node) -> set[int]:
        """The circles that a node needs."""
        if node not in self.needed:
            found = reachable([node], self.graph.cases)
            self.needed[node] = {self.circle_of[n] for n in found if n in self.circle_of}
        return self.needed[node]

    def is_kept(self, node: Node, besides: Set[Node]) -> bool:
        """Whether all steps of a node are kept, whatever becomes of some of its readers: for a result, or for what is
        computed outside of its loop."""
        return any(
            reader is None
            or (self.circle_of.get(reader) != self.circle_of.get(node) and len(edge.domain) >= len(node.domain))
            for reader, edge in self.readers[node]
            if reader not in besides
        )

    def points(self, domain: Domain) -> int:
        return math.prod(self.number(d.bound) for d in domain)

    def elements(self, shape: Shape) -> int:
        return math.prod(map(self.number, shape))

    def number(self, size: Size) -> int:
        """A size, about where it is largest."""
        if isinstance(size, int):
            return size
        while dims := dims_of(size.symbols()):
            size = size.substitute({d: d.bound - 1 for d in dims})
        return max(1, size.evaluate({symbol: self.numbers.get(symbol, GUESS) for symbol in size.symbols()}))

    def work(self, node: Node) -> float:
        """What is computed at one point."""
        if node.op in VIEWS or not node.edges:
            return 0
        if node.op is EINSUM:
            sizes: dict[str, int] = {}
            terms = subscript_terms(node.attributes["subscripts"])
            for term, shape in zip(terms, (*(edge.shape for edge in node.edges), node.shape), strict=True):
                sizes |= {
                    letter: max(sizes.get(letter, 1), self.number(n)) for letter, n in zip(term, shape, strict=True)
                }
            return math.prod(sizes.values()) / PRODUCTS
        return max(self.elements(shape) for shape in (node.shape, *(edge.shape for edge in node.edges)))


class _Move:
    """A selection that moves: how far, and what that costs."""

    def __init__(self, costs: _Costs, one: Selection, dead: Set[Node]) -> None:
        self.costs = costs
        self.one = one
        self.dead = dead
        """What is only computed for this selection, and others that move with it."""
        self.is_apart = costs.is_apart(one)
        """Whether what it reads is kept for it: until another step, or another loop."""
        self.times = costs.points(one.node.domain)
        self.prices: dict[tuple[Edge, Place], tuple[float, float]] = {}
        self.depth = 0

    def moves_on(self, edge: Edge, place: Place) -> bool:
        """Whether the selected elements of what an edge reads are computed alone."""
        left, moved = self.both(edge, place)
        return (edge, place) == (self.one.read, self.one.place) or moved <= left

    def both(self, edge: Edge, place: Place) -> tuple[float, float]:
        """What the selected elements cost if they are selected there, and if they are computed alone."""
        if (edge, place) not in self.prices:
            self.prices[edge, place] = self.left(edge) + self.taken(edge), self.moved(edge, place)
        return self.prices[edge, place]

    def moved(self, edge: Edge, place: Place) -> float:
        parts = operands(edge, place) if self.depth < DEEPEST else None
        if parts is None:
            return math.inf
        self.depth += 1
        price = self.costs.work(edge.node) * self.one.part * self.times
        price += sum(self.whole(read) if at is None else min(self.both(read, at)) for read, at in parts)
        self.depth -= 1
        return price

    def whole(self, edge: Edge) -> float:
        view = inside(edge)
        return self.left(edge) if view is None else self.whole(view)

    def taken(self, edge: Edge) -> float:
        """What it costs to read the selected elements."""
        return 0 if self.one.node.op is SLICE else self.costs.elements(edge.shape) * self.one.part * self.times

    def left(self, edge: Edge) -> float:
        """What it costs to compute and to keep something as it is."""
        costs, points = self.costs, self.costs.points(self.one.read.domain)
        found: set[Node] = set()
        pending = [edge.node]
        while pending:
            node = pending.pop()
            if node in self.dead and node not in found:
                found.add(node)
                pending.extend(operand.node for operand in node.edges)
        work = sum(costs.work(node) * min(points, costs.points(node.domain)) for node in found)
        return work + (KEEP * costs.elements(edge.shape) * costs.points(edge.domain) if self.keeps(edge) else 0)

    def keeps(self, edge: Edge) -> bool:
        """Whether something is kept for this selection alone."""
        node = edge.node
        if not self.is_apart or node.op is INPUT or not node.domain:
            return False
        return not self.costs.is_kept(node, {self.one.node, *self.dead})

    def is_allowed(self) -> bool:
        """Whether it keeps little more, and takes nothing into a loop that is computed for all its steps at once."""
        costs, read = self.costs, self.one.read
        way = self.way()
        in_loop = self.one.node in costs.circle_of and read.node not in costs.in_loops
        if in_loop and any(edge.node.op in COSTLY for edge, ends in way.items() if not ends):
            return False
        kept = [edge for edge, ends in way.items() if ends and self.keeps(edge)]
        return not kept or sum(map(self.bytes, kept)) <= MORE_MEMORY * self.bytes(read)

    def bytes(self, edge: Edge) -> int:
        return self.costs.elements(edge.shape) * edge.dtype.itemsize * self.costs.points(edge.domain)

    def way(self) -> dict[Edge, bool]:
        """What the selection moves through, and what is read where it ends: True."""
        found: dict[Edge, bool] = {}
        seen: set[tuple[Edge, Place | None]] = set()
        pending: list[tuple[Edge, Place | None]] = [(self.one.read, self.one.place)]
        while pending:
            edge, place = pending.pop()
            if (edge, place) in seen:
                continue
            seen.add((edge, place))
            parts: Sequence[tuple[Edge, Place | None]] | None = None
            if place is None:
                view = inside(edge)
                parts = None if view is None else [(view, None)]
            elif self.moves_on(edge, place):
                parts = operands(edge, place)
            found[edge] = parts is None or found.get(edge, False)
            pending.extend(parts or ())
        return found
