"""Computing again what a later loop reads, in place of keeping it for all steps.

What a loop computes and a later one reads, back-propagation for example, is kept for all of its steps. Or only some of
it is, from which the later loop computes the rest again. Which values to keep is a cut: of all sets of values that
separate what must be there in any case (inputs, recurrences) from what is read, the one that takes the fewest bytes.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from tempo.graph.node import Edge, Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import producers
from tempo.ops.scan import LINEAR_RECURRENCE
from tempo.passes.rewrite import Rebuilt, rebuild, with_edges
from tempo.schedule.loops import Schedule
from tempo.schedule.nesting import Place
from tempo.schedule.storage import Storage

_FIXED = (HOST, HOST_RESULT, INPUT, LINEAR_RECURRENCE, RECURRENT)
"""What is not computed again: it is there anyway, or takes the steps before it."""

Again = Mapping[Node, frozenset[Node]]
"""By reader in a later loop, the nodes that are computed again for it, those that it reads and all that they need."""


def worth_recomputing(graph: Graph, schedule: Schedule, storage: Storage) -> dict[Node, frozenset[Node]]:
    """What to compute again so that as few bytes as possible are kept from loop to loop."""
    far: dict[tuple[Place, int], dict[Node, set[Node]]] = {}
    kept = set()
    for d in schedule.dependences:
        apart = _apart(_place(d.producer, schedule), _place(d.consumer, schedule))
        if apart is None:
            continue
        if d.producer.op in _FIXED or d.consumer.op is RECURRENT:
            kept.add(d.producer)
        else:
            far.setdefault(apart, {}).setdefault(d.producer, set()).add(d.consumer)
    found: dict[Node, frozenset[Node]] = {}
    for (loop, _), readers in far.items():
        again = _recomputed(readers, kept, loop, graph, schedule, storage)
        for node in again & readers.keys():
            for reader in readers[node]:
                found[reader] = found.get(reader, frozenset()) | again
    return found


def recomputing(graph: Graph, again: Again) -> Graph:
    """The graph in which some readers have what they read computed for them anew."""
    # Readers in one loop share it: what is computed again for the same reason is computed once.
    copies: dict[tuple[Node, frozenset[Node]], Node] = {}

    def copy(node: Node, wanted: frozenset[Node], done: Rebuilt) -> Node:
        pending = [node]
        while pending:
            here = pending[-1]
            missing = [e.node for e in here.edges if e.node in wanted and (e.node, wanted) not in copies]
            if not missing:
                if (here, wanted) not in copies:
                    edges = tuple(moved(edge, wanted, done) for edge in here.edges)
                    copies[here, wanted] = with_edges(here, edges)
                pending.pop()
            pending += missing
        return copies[node, wanted]

    def moved(edge: Edge, wanted: frozenset[Node], done: Rebuilt) -> Edge:
        return Edge(copy(edge.node, wanted, done), edge.index) if edge.node in wanted else done.edge(edge)

    def change(node: Node, done: Rebuilt) -> Edge | None:
        wanted = again.get(node)
        if not wanted:
            return None
        return with_edges(node, tuple(moved(edge, wanted, done) for edge in node.edges)).here()

    return rebuild(graph, change)


def _place(node: Node, schedule: Schedule) -> Place:
    """The loops that all of a node is computed in (some nodes are needed nowhere)."""
    places = list(schedule.places.get(node, ()))
    together = itertools.takewhile(lambda loops: len(set(loops)) == 1, zip(*places, strict=False))
    return tuple(loops[0] for loops in together)


def _apart(here: Place, there: Place) -> tuple[Place, int] | None:
    """The outermost loop around one place that is not around the other, with those around both, and the number of the
    other one's."""
    for n, (one, other) in enumerate(zip(here, there, strict=False)):
        if one != other:
            return here[: n + 1], other[1]
    return None


def _recomputed(
    readers: Mapping[Node, Iterable[Node]],
    kept: Set[Node],
    loop: Place,
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
        is_there = node in kept or _place(node, schedule)[: len(loop)] != loop
        network.connect(("in", node), ("out", node), 0 if is_there else _bytes(node, loop, schedule, storage))
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


def _bytes(node: Node, loop: Place, schedule: Schedule, storage: Storage) -> float:
    """What it takes to keep a node for all steps, of one iteration of the loops around both."""
    around = {family for family, _ in loop[:-1]}
    sizes = (len(range(*schedule.steps(node, d))) for d in node.domain if d.origin not in around)
    return math.prod((*sizes, *storage.stores[node].value)) * node.dtype.itemsize


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
            pipes = [(b, a) for a, b in itertools.pairwise(path)]
            flow = min(self.capacity[a][b] for a, b in pipes)
            assert flow < math.inf, "what is read can be kept"
            for a, b in pipes:
                self.capacity[a][b] -= flow
                self.capacity[b][a] += flow
