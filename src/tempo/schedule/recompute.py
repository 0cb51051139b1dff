"""Computing again what a later loop reads, in place of keeping it for all steps.

What a loop computes and a later one reads, back-propagation for example, is kept for all of its steps. Or only some of
it is, from which the later loop computes the rest again. Which values to keep is a cut: of all sets of values that
separate what must be there in any case (inputs, recurrences) from what is read, the one that takes the fewest bytes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import pairwise

from tempo.graph.node import Edge, Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import producers
from tempo.ops.scan import LINEAR_RECURRENCE
from tempo.passes.rewrite import Rebuilt, rebuild
from tempo.schedule.loops import Schedule
from tempo.schedule.storage import Storage

_FIXED = (HOST, HOST_RESULT, INPUT, LINEAR_RECURRENCE, RECURRENT)
"""What is not computed again: it is there anyway, or takes the steps before it."""

Again = Mapping[Node, frozenset[Node]]
"""By reader in a later loop, the nodes that are computed again for it, those that it reads and all that they need."""


def worth_recomputing(graph: Graph, schedule: Schedule, storage: Storage) -> dict[Node, frozenset[Node]]:
    """What to compute again so that as few bytes as possible are kept from loop to loop."""
    far: dict[tuple[int, int], dict[Node, set[Node]]] = {}
    kept = set()
    for d in schedule.dependences:
        here, there = _loop(d.producer, schedule), _loop(d.consumer, schedule)
        if here is None or there is None or here == there:
            continue
        if d.producer.op in _FIXED or d.consumer.op is RECURRENT:
            kept.add(d.producer)
        else:
            far.setdefault((here, there), {}).setdefault(d.producer, set()).add(d.consumer)
    found: dict[Node, frozenset[Node]] = {}
    for (here, _), readers in far.items():
        again = _recomputed(readers, kept, here, graph, schedule, storage)
        for node in again & readers.keys():
            for reader in readers[node]:
                found[reader] = found.get(reader, frozenset()) | again
    return found


def recomputing(graph: Graph, again: Again) -> Graph:
    """The graph in which some readers have what they read computed for them anew."""
    # Readers in one loop share it: what is computed again for the same reason is computed once.
    copies: dict[tuple[Node, frozenset[Node]], Node] = {}

    def copy(node: Node, wanted: frozenset[Node], done: Rebuilt) -> Node:
        key = (node, wanted)
        if key not in copies:
            edges = tuple(moved(edge, wanted, done) for edge in node.edges)
            copies[key] = _like(node, edges)
        return copies[key]

    def moved(edge: Edge, wanted: frozenset[Node], done: Rebuilt) -> Edge:
        return Edge(copy(edge.node, wanted, done), edge.index) if edge.node in wanted else done.edge(edge)

    def change(node: Node, done: Rebuilt) -> Edge | None:
        wanted = again.get(node)
        if not wanted:
            return None
        return _like(node, tuple(moved(edge, wanted, done) for edge in node.edges)).here()

    return rebuild(graph, change)


def _like(node: Node, edges: tuple[Edge, ...]) -> Node:
    return Node(
        node.op, edges, node.domain, node.shape, node.dtype, node.source, node.attributes, node.scatters, node.name
    )


def _loop(node: Node, schedule: Schedule) -> int | None:
    """The number of the outermost loop that a node is computed in, if it is one and the same (some are needed
    nowhere)."""
    found = {place[0][1] if place else None for place in schedule.places.get(node, ())}
    return found.pop() if len(found) == 1 else None


def _recomputed(
    readers: Mapping[Node, Iterable[Node]],
    kept: Set[Node],
    loop: int,
    graph: Graph,
    schedule: Schedule,
    storage: Storage,
) -> set[Node]:
    """Of what is read from a loop, and what that is computed from, the nodes that are on the readers' side of the
    cheapest cut, if some are ``kept`` in any case."""
    network = _Network()
    pending, seen = list(readers), set(readers)
    for node in readers:
        network.connect(("out", node), "readers", math.inf)
    while pending:
        node = pending.pop()
        is_there = node in kept or _loop(node, schedule) != loop
        network.connect(("in", node), ("out", node), 0 if is_there else _bytes(node, schedule, storage))
        if node.op in _FIXED or is_there:
            network.connect("given", ("in", node), math.inf)
            continue
        for producer in producers(node, graph.cases):
            network.connect(("out", producer), ("in", node), math.inf)
            if producer not in seen:
                seen.add(producer)
                pending.append(producer)
        if not node.edges:  # a constant
            network.connect("given", ("in", node), math.inf)
    kept_side = network.reached_after_flow("given", "readers")
    return {node for node in seen if node.op not in _FIXED and ("in", node) not in kept_side}


def _bytes(node: Node, schedule: Schedule, storage: Storage) -> float:
    """What it takes to keep a node for all steps."""
    store = storage.stores[node]
    sizes = (len(range(*schedule.steps(node, d))) for d in node.domain)
    return math.prod((*sizes, *store.value)) * node.dtype.itemsize


@dataclass
class _Network:
    """Pipes with capacities."""

    capacity: dict[object, dict[object, float]] = field(default_factory=dict)

    def connect(self, a: object, b: object, capacity: float) -> None:
        self.capacity.setdefault(a, {})[b] = capacity
        self.capacity.setdefault(b, {}).setdefault(a, 0)

    def reached_after_flow(self, source: object, sink: object) -> set[object]:
        """What can be reached from the source when as much flows to the sink as can."""
        while True:
            came_from: dict[object, object] = {source: source}
            pending = deque([source])
            while pending and sink not in came_from:
                a = pending.popleft()
                for b, left in self.capacity.get(a, {}).items():
                    if left > 0 and b not in came_from:
                        came_from[b] = a
                        pending.append(b)
            if sink not in came_from:
                return set(came_from)
            path = [sink]
            while path[-1] != source:
                path.append(came_from[path[-1]])
            pipes = [(b, a) for a, b in pairwise(path)]
            flow = min(self.capacity[a][b] for a, b in pipes)
            assert flow < math.inf, "what is read can be kept"
            for a, b in pipes:
                self.capacity[a][b] -= flow
                self.capacity[b][a] += flow
