"""Finding repeated structure: parts of a graph that do the same, one after the other, each with operands of its own.

What is looked for is a partial map from nodes to nodes, *the next copy*. It begins with nodes that look alike, operands
and operands' operands included. If v is the next copy of u, then what v reads is the next copy of what u reads, and
what reads them alike is as well. Layers, their gradients and the updates of their weights are found by that, whoever
wrote them. Nodes that follow each other in the map are a *row*.

What is found decides how much is gained, never whether the result is right: ``rolling`` reads, at every copy, what that
copy has read.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tempo.graph.node import Edge, Graph, Node, dims_of, frozen, substitute_shape
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import edges_of
from tempo.passes.variables import attribute_in
from tempo.symbolic import Dim, Expr
from tempo.symbolic import index as indices
from tempo.symbolic.grid import Grid

# How far operands are compared where rows begin. Far, and first copies differ from the others because of what comes
# before them; near, and different nodes of a copy look alike.
DEPTHS = (8, 4, 2, 1, 0)

# A copy that has fewer of the rows than this is none: something else just begins or ends like one.
FEWEST_ROWS = 0.5

# What is rolled must be that much less afterwards, of its nodes. Two copies save half of them at most.
LEAST_GAIN = 0.25

# Rows that are tried as beginnings, for every depth.
MOST_SEEDS = 2


@dataclass(frozen=True)
class Row:
    """The same node in some copies, one after the other."""

    nodes: tuple[Node, ...]
    first: int
    """The copy of the first one."""

    @property
    def copies(self) -> range:
        return range(self.first, self.first + len(self.nodes))

    def within(self, copies: range) -> Row:
        start, stop = max(copies.start, self.first), min(copies.stop, self.copies.stop)
        return Row(self.nodes[start - self.first : max(stop - self.first, 0)], start)


Source = tuple[Any, ...]
"""What an operand is, copy by copy: a row, how many copies on, and the index; or one node, and the index."""

Parts = list[tuple[range, Source]]
"""What an operand is, for ranges of copies in which it is the same."""


@dataclass(frozen=True)
class Copies:
    """Rows of a graph, and how their nodes look in the same variables."""

    graph: Graph
    looks: Looks
    rows: tuple[Row, ...]

    @property
    def steps(self) -> range:
        return range(min(row.first for row in self.rows), max(row.copies.stop for row in self.rows))

    def places(self) -> dict[Node, tuple[int, int]]:
        """The row and the copy of every node."""
        return {node: (n, row.first + k) for n, row in enumerate(self.rows) for k, node in enumerate(row.nodes)}

    def sources(self, row: Row, places: dict[Node, tuple[int, int]]) -> list[Parts]:
        """What each operand of a row is."""
        found = []
        for slot in zip(*(self.looks.reads(node) for node in row.nodes), strict=True):
            parts: Parts = []
            for copy, edge in zip(row.copies, slot, strict=True):
                place = places.get(edge.node)
                source: Source = (edge.node, edge.index)
                if place is not None:
                    source = (place[0], place[1] - copy, edge.index)
                if parts and parts[-1][1] == source:
                    parts[-1] = (range(parts[-1][0].start, copy + 1), source)
                else:
                    parts.append((range(copy, copy + 1), source))
            found.append(parts)
        return found

    @property
    def gain(self) -> int:
        """How many nodes and cases fewer there are if the copies are one; 0 if no copy reads another one."""
        places = self.places()
        parts = [own for row in self.rows for own in self.sources(row, places)]
        if not any(isinstance(source[0], int) and source[1] for own in parts for _, source in own):
            return 0
        return len(places) - len(self.rows) - sum(len(own) for own in parts if len(own) > 1)


def find_copies(graph: Graph) -> Copies | None:
    """The copies of which most is gained, if that is enough."""
    looks = Looks(graph)
    best: Copies | None = None
    for depth in DEPTHS:
        for seed in _seeds(looks, depth):
            found = _cut(Copies(graph, looks, _aligned(looks, _rows(_Next(looks, seed).following))))
            if found is not None and found.gain > (best.gain if best else 0):
                best = found
        if best is not None and len(best.places()) > len(graph.nodes) // 2:
            break
    return _as_written(best) if best is not None and best.gain >= LEAST_GAIN * len(best.places()) else None


class Looks:
    """What nodes look like: their operation and their reads, in variables that are the same for all copies.

    Dims that count steps of another one from the same first to the same last, as adjoints have, are the same variable.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.dims: dict[Any, Dim] = {}
        self.axes: dict[Any, Dim] = {}
        self.same: dict[Node, Node] = {}
        self.renamed: dict[Node, dict[Any, Dim]] = {}
        self.own: dict[Node, tuple[Edge, ...]] = {}
        self.numbers: dict[Any, int] = {}
        self.label: dict[Node, int] = {}
        alike: dict[int, Node] = {}
        for node in graph.nodes:
            self.label[node] = self.number(self.describe(node))
            if not node.edges and node.op not in (INPUT, HOST, HOST_RESULT, RECURRENT):
                self.same[node] = alike.setdefault(self.label[node], node)
        for node in graph.nodes:
            self.own[node] = tuple(Edge(self.same.get(e.node, e.node), e.index) for e in self.own[node])
        self.readers: dict[Node, list[tuple[Node, int]]] = defaultdict(list)
        for node in graph.nodes:
            for slot, edge in enumerate(self.own[node]):
                self.readers[edge.node].append((node, slot))

    def number(self, thing: Any) -> int:
        """A number for a thing, the same for equal ones."""
        return self.numbers.setdefault(thing, len(self.numbers))

    def variables(self, node: Node) -> dict[Any, Dim]:
        """A node's dims, each with the one that stands for it in all copies."""
        if node not in self.renamed:
            dims = [self.dims.setdefault((d.origin, d.start, d.bound), d) for d in node.domain]
            proper = dims_of(frozenset(dims)) == tuple(dims)
            self.renamed[node] = dict(zip(node.domain, dims if proper else node.domain, strict=True))
        return self.renamed[node]

    def describe(self, node: Node) -> Any:
        names = self.variables(node)
        edges = edges_of(node, self.graph.cases)
        self.own[node] = reads = tuple(Edge(e.node, indices.substitute(e.index, names)) for e in edges)
        return (
            node.op,
            tuple(names.values()),
            substitute_shape(node.shape, names),
            node.dtype,
            frozen({name: self.attribute(value, names) for name, value in node.attributes.items()}),
            tuple((e.shape, e.dtype) for e in reads),
            tuple(
                (
                    indices.substitute(case.target, names),
                    tuple((e.substitute(names), names.get(d, d)) for e, d in case.guards),
                    case.condition.substitute(names),
                )
                for case in self.graph.cases.get(node, ())
            ),
        )

    def attribute(self, value: Any, names: dict[Any, Dim]) -> Any:
        value = attribute_in(value, names)
        if isinstance(value, Grid):  # whose axes are dims that nobody else has
            axes = [self.axes.setdefault((n, d.bound), d) for n, d in enumerate(value.axes)]
            return Grid(value.value.substitute(dict(zip(value.axes, axes, strict=True))), tuple(axes))
        return tuple(value) if isinstance(value, list) else value

    def reads(self, node: Node) -> tuple[Edge, ...]:
        """What a node reads, its cases' values included."""
        return self.own[node]

    def looks_back(self, node: Node, edge: Edge) -> bool:
        """Whether a read is at an earlier step of some dim: what a loop over that dim has computed already."""
        steps = {d.origin: d + d.start for d in self.variables(node).values()}
        for d, item in zip(edge.node.domain, edge.index, strict=True):
            if isinstance(item, Expr) and d.origin in steps:
                distance = item + d.start - steps[d.origin]
                if distance.is_constant and distance.constant < 0:
                    return True
        return False

    def dependents(self, nodes: Iterable[Node]) -> set[Node]:
        """What needs some nodes, at a step that is not an earlier one."""
        seen: set[Node] = set()
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                readers = self.readers[node]
                pending.extend(
                    reader for reader, slot in readers if not self.looks_back(reader, self.own[reader][slot])
                )
        return seen

    def may_repeat(self, node: Node) -> bool:
        """Whether a node can be one of a row. What has no operands is given to a copy, and a recurrent node that nobody
        reads is a result, for which there is one node in any case."""
        if not self.own[node] or (node.op is RECURRENT and not self.readers[node]):
            return False
        return node.op not in (HOST, HOST_RESULT) and not node.scatters


def _seeds(looks: Looks, depth: int) -> Iterator[list[Node]]:
    """Nodes that look alike, so far: from sizes of which there are most nodes."""
    colour = looks.label
    for _ in range(depth):
        colour = {
            node: looks.number((colour[node], tuple((colour[e.node], e.index) for e in looks.reads(node))))
            for node in looks.graph.nodes
        }
    groups: dict[int, list[Node]] = defaultdict(list)
    for node in looks.graph.nodes:
        if looks.may_repeat(node):
            groups[colour[node]].append(node)
    sizes = Counter(len(group) for group in groups.values() for _ in group if len(group) > 1)
    for size, _ in sizes.most_common(MOST_SEEDS):
        # The last ones depend on most of what the others are.
        yield max((g for g in groups.values() if len(g) == size), key=lambda g: g[-1].number)


class _Next:
    """The next copy of nodes, from some that are one after the other."""

    def __init__(self, looks: Looks, seed: Sequence[Node]) -> None:
        self.looks = looks
        self.following: dict[Node, Node] = {}
        self.preceding: dict[Node, Node] = {}
        pending = list(itertools.pairwise(seed))
        while pending:
            self.down(pending)
            pending = [*self.up(exactly=True)] or [*self.up(exactly=False)]

    def down(self, pairs: Iterable[tuple[Node, Node]]) -> None:
        """Join nodes, and what they read."""
        pending = deque(pairs)
        while pending:
            node, other = pending.popleft()
            if node in self.following or other in self.preceding or node is other:
                continue
            self.following[node], self.preceding[other] = other, node
            for mine, its in zip(self.looks.reads(node), self.looks.reads(other), strict=True):
                if mine.index == its.index and self.alike(mine.node, its.node):
                    pending.append((mine.node, its.node))

    def alike(self, node: Node, other: Node) -> bool:
        looks = self.looks
        return node is not other and looks.label[node] == looks.label[other] and looks.may_repeat(node)

    def up(self, exactly: bool) -> Iterator[tuple[Node, Node]]:
        """Readers of a node and of its next copy which read, apart from them, the same or next copies as well; if not
        ``exactly``, the only ones that look alike."""
        for node, other in list(self.following.items()):
            for reader, slot in self.looks.readers[node]:
                if reader in self.following:
                    continue
                possible = [
                    its
                    for its, at in self.looks.readers[other]
                    if at == slot and its not in self.preceding and self.alike(reader, its)
                ]
                if exactly:
                    possible = [its for its in possible if self.agree(reader, its)]
                if len(possible) == 1:
                    yield reader, possible[0]

    def agree(self, node: Node, other: Node) -> bool:
        looks = self.looks
        return all(
            mine.index == its.index
            and (
                mine.node is its.node
                or self.following.get(mine.node) is its.node
                or (looks.label[mine.node] == looks.label[its.node] and not looks.may_repeat(mine.node))
            )
            for mine, its in zip(looks.reads(node), looks.reads(other), strict=True)
        )


def _as_written(copies: Copies) -> Copies:
    """Copies in the order in which their first nodes were made. (Gradients are made in the opposite one.)"""
    oldest = min(copies.rows, key=lambda row: min(node.number for node in row.nodes))
    if oldest.nodes[0].number < oldest.nodes[-1].number:
        return copies
    return replace(copies, rows=tuple(Row(row.nodes[::-1], 1 - row.copies.stop) for row in copies.rows))


def _rows(following: dict[Node, Node]) -> list[list[Node]]:
    """Nodes that are one after the other. (Those that come back to themselves are no copies.)"""
    found = []
    for node in following.keys() - set(following.values()):
        row = [node]
        while row[-1] in following:
            row.append(following[row[-1]])
        found.append(row)
    return sorted(found, key=lambda row: row[0].number)


def _aligned(looks: Looks, rows: list[list[Node]]) -> tuple[Row, ...]:
    """Rows with the numbers of their copies, so that most reads are within a copy.

    Those are put together first between which most reads agree, then what came of them. (Row by row does not do: a
    layer's input is the output of the one before it, and it takes all rows of a layer to say which is which.)
    """
    place = {node: (n, k) for n, row in enumerate(rows) for k, node in enumerate(row)}
    first = [{n: 0} for n in range(len(rows))]  # per group the first copy of each of its rows
    between: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for node, (mine, at) in place.items():
        for edge in looks.reads(node):
            its, its_at = place.get(edge.node, (mine, 0))
            if its != mine:
                between[mine][its][at - its_at] += 1
                between[its][mine][its_at - at] += 1
    best = {(a, b): _most(votes) for a, others in between.items() for b, votes in others.items() if a < b}
    while best:
        a, b = max(best, key=lambda pair: best[pair][0])
        _, shift = best[a, b]
        first[a] |= {row: start + shift for row, start in first[b].items()}
        first[b] = {}
        for c, votes in between.pop(b).items():
            del between[c][b], best[min(b, c), max(b, c)]
            if c != a:
                for distance, count in votes.items():
                    between[a][c][distance + shift] += count
                    between[c][a][-distance - shift] += count
                best[min(a, c), max(a, c)] = _most(between[min(a, c)][max(a, c)])
    largest = max(first, key=len, default={})
    return tuple(Row(tuple(rows[n]), start) for n, start in sorted(largest.items()))


def _most(votes: Counter[int]) -> tuple[int, int]:
    """How many agree, and on what."""
    ((value, count),) = votes.most_common(1)
    return count, value


def _cut(copies: Copies) -> Copies | None:
    """The longest series of copies that follow each other: what happens in between happens to all of them."""
    if not copies.rows:
        return None
    occupied = Counter(copy for row in copies.rows for copy in row.copies)
    fewest = FEWEST_ROWS * max(occupied.values())
    steps = max(_runs([k for k in sorted(occupied) if occupied[k] >= fewest]), key=len)
    while len(steps) > 1:
        copies = replace(copies, rows=tuple(r for row in copies.rows if len((r := row.within(steps)).nodes) > 1))
        odd, changes = _changes(copies)
        if odd:
            copies = replace(copies, rows=tuple(row for n, row in enumerate(copies.rows) if n not in odd))
        elif changes:
            steps = _between(steps, changes)
        else:
            return copies if copies.rows else None
    return None


def _between(steps: range, changes: Iterable[Sequence[int]]) -> range:
    """The longest part of some copies in which operands change once at most, and only for the first or the last."""
    distinct = {tuple(own) for own in changes}
    for size in range(len(steps) - 1, 1, -1):
        for start in range(steps.start, steps.stop - size + 1):
            ends = (start + 1, start + size - 1)
            inside = [[at for at in own if start < at < start + size] for own in distinct]
            if all(not own or (len(own) == 1 and own[0] in ends) for own in inside):
                return range(start, start + size)
    return range(0)


def _runs(numbers: Sequence[int]) -> list[range]:
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def _changes(copies: Copies) -> tuple[set[int], list[list[int]]]:
    """What stands in the way, of operands that depend on copies: rows for which none of them is a copy's node; and the
    copies from which on others are something else, unless that is so for the first or the last copy only.

    (What does not depend on copies can be there for all of them before the first.)
    """
    places = copies.places()
    later = copies.looks.dependents(places)

    def depends(row: Row, source: Source) -> bool:
        return source[0] in later and not copies.looks.looks_back(row.nodes[0], Edge(*source))

    odd: set[int] = set()
    found: list[list[int]] = []
    for n, row in enumerate(copies.rows):
        for parts in copies.sources(row, places):
            changes = [part.start for part, _ in parts[1:]]
            if not changes or not any(depends(row, source) for _, source in parts):
                continue
            if all(isinstance(source[0], Node) for _, source in parts):
                odd.add(n)
            elif len(changes) > 1 or changes[0] not in (row.first + 1, row.copies.stop - 1):
                found.append(changes)
    return odd, found
