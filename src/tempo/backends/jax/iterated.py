"""What iterations of a loop hand on to each other, and how many of them are made one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tempo.backends.jax import apart
from tempo.graph.node import Edge, Node
from tempo.graph.structural import RECURRENT
from tempo.random import RANDOM_BITS
from tempo.schedule.dependences import Dependence
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop, computes
from tempo.schedule.peak import CHEAP, COSTLY
from tempo.schedule.storage import Latest, Steps, Store, Window
from tempo.symbolic import Dim, Expr, Slice

# A loop hands on at most this many earlier values of a node.
MOST_REGISTERS = 3

# A loop makes at most so many iterations one, and computes in one at most so many nodes, kernels, or bytes: what takes
# 100 us on a GPU needs no other iteration beside it. Random numbers are as much to compile as so many other nodes.
MOST_UNROLLED, MOST_NODES, MOST_KERNELS, MOST_BYTES = 32, 640, 72, 2**29
RANDOM_NODES = 64

Stores = Mapping[Node, Store]


@dataclass(frozen=True)
class Registers:
    """The ``depth`` values of a node that a loop hands from iteration to iteration: beside its store, which XLA would
    copy where it is read at one step and written at another, or, if nothing is ``stored``, in place of it."""

    node: Node
    depth: int
    stored: bool


class Iterated:
    """Knows what the iterations of loops read."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.readers: dict[Node, list[Dependence]] = {}
        for d in schedule.dependences:
            self.readers.setdefault(d.producer, []).append(d)
        self.latest: tuple[Loop, set[Node], set[Node]] | None = None
        """A loop, and the nodes ``inside`` of it."""

    def unrolled(self, tree: Loop, stores: Stores) -> int:
        """How many iterations are made one. A GPU spends about 9 us between iterations and less than 2 us on a further
        small kernel, and kernels of neighbouring steps fuse: measured on an H200, loops of one or two kernels gain 26
        times from 32, an LSTM step 1.7 times from 4."""
        made = [c.node for c in computes(tree.body)]
        # How many there are is not known before the last one, if it is among them that a dim stops.
        if tree.until in made or any(isinstance(inner, Loop) for inner in tree.body):
            return 1
        fused = CHEAP | COSTLY | {RECURRENT.name}
        kernels = 1 + sum(node.op.name not in fused for node in made)
        nodes = sum(RANDOM_NODES if node.op is RANDOM_BITS else 1 for node in made)
        size = sum(self.bytes(node, tree, stores) for node in made)
        limits = MOST_NODES // nodes, MOST_KERNELS // kernels, MOST_BYTES // max(size, 1)
        most = min(MOST_UNROLLED, len(tree.steps), *limits)
        # Without a remainder there is less to compile.
        return next((n for n in range(most, most // 2, -1) if len(tree.steps) % n == 0), max(most, 1))

    def bytes(self, node: Node, tree: Loop, stores: Stores) -> int:
        """What is made of a node in one iteration of a loop."""
        steps = (
            (d.origin is tree.dim and tree.block) or 1
            if self.is_looped(node, d)
            else len(range(*self.schedule.steps(node, d)))
            for d in node.domain
        )
        return math.prod((*steps, *stores[node].value)) * node.dtype.itemsize

    def distances(self, node: Node, tree: Loop, back: int) -> list[int | None]:
        """By how many iterations reads within a loop look back for a node that is computed in it; None for those that
        are not known to be at one of the last few."""
        directly, everywhere = self.inside(tree)
        found: list[int | None] = []
        for d in self.readers.get(node, ()):
            distance = d.distance(tree.dim) if d.consumer in everywhere else None
            if distance is None:  # nothing is read
                continue
            low, high = distance
            exactly = low is not None and low == high and 0 <= low * back <= MOST_REGISTERS and d.consumer in directly
            exactly = exactly and self.is_read_at(d, tree.dim, low)
            found.append(low * back if exactly and low is not None else None)
        return found

    def is_written_late(self, node: Node, tree: Loop, back: int, stores: Stores) -> bool:
        """Whether what a loop computes of a node may be put into its store for several iterations at once."""
        store = stores[node]
        own = next((d for d in node.domain if d.origin is tree.dim), None)
        if own is None or tree.block or node in self.schedule.folds or apart.unrolled(store):
            return False
        return isinstance(store.dims[own], Steps) and None not in self.distances(node, tree, back)

    def registers(self, node: Node, tree: Loop, back: int, stores: Stores) -> Registers | None:
        """What a loop hands from iteration to iteration of a node, if anything."""
        directly, everywhere = self.inside(tree)
        own = next((d for d in node.domain if d.origin is tree.dim), None)
        if tree.block or node not in directly or own is None:
            return None
        store = stores[node]
        kept = store.dims[own]
        if isinstance(kept, Latest):
            return None
        distances = self.distances(node, tree, back)
        depth = max((n for n in distances if n is not None), default=0)
        # A window that is only looked into at known distances needs no store while the loop runs; but a copy in host
        # memory gets all of it, and the rest of a block reads all its steps.
        beside = tree.inner and any(d.consumer not in everywhere for d in self.readers.get(node, ()))
        stored = not isinstance(kept, Window) or None in distances or bool(store.host) or beside
        # Other pieces of the loop may look further back than this one does. If only they do, this one puts what it
        # computes into the store.
        if isinstance(kept, Window) and not stored and (depth or kept.size == kept.final):
            depth = max(kept.size - 1, kept.final)
            stored = depth > MOST_REGISTERS
        return Registers(node, min(depth, MOST_REGISTERS), stored) if depth else None

    def is_read_at(self, d: Dependence, family: Dim, back: int | None) -> bool:
        """Whether a read is, step for step of the loops around, at their own steps, or so many back of one of them."""
        if d.read.index is None:
            return False
        edge = Edge(d.producer, d.read.index)
        looped = [e for e in d.producer.domain if self.is_looped(d.producer, e)]
        return all(self.is_own_step(edge, e, d.consumer, (back or 0) if e.origin is family else 0) for e in looped)

    def is_own_step(self, edge: Edge, d: Dim, reader: Node, back: int = 0) -> bool:
        """Whether an edge reads, of a dim, the step that the reader's loop is at, or so many steps before."""
        item = edge.index[edge.node.domain.index(d)]
        own = next((e for e in reader.domain if e.origin is d.origin), None)
        if own is None or isinstance(item, Slice):
            return False
        # own_step of nothing is how far a node's steps are behind the loop's.
        theirs: Expr = item - self.schedule.own_step(edge.node, d, 0)
        return bool(theirs + back == own - self.schedule.own_step(reader, own, 0))

    def inside(self, tree: Loop) -> tuple[set[Node], set[Node]]:
        """The nodes that a loop computes: in its body, and in loops within that as well."""
        found = self.latest
        if found is None or found[0] is not tree:  # all nodes of a loop are asked about in a row
            directly = {c.node for c in tree.body if isinstance(c, Compute)}
            self.latest = found = tree, directly, {c.node for c in computes(tree.body)}
        return found[1:]

    def is_looped(self, node: Node, d: Dim) -> bool:
        return any(family is d.origin for place in self.schedule.places[node] for family, _ in place)
