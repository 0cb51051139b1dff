"""What iterations of a loop hand on to each other, and how many of them are made one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempo.backends.jax import apart
from tempo.graph.node import Edge, Node, find_dim
from tempo.graph.structural import RECURRENT
from tempo.random import RANDOM_BITS
from tempo.schedule.dependences import Dependence, by_producer
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import BlockSteps, Compute, Loop, computes
from tempo.schedule.peak import CHEAP, COSTLY
from tempo.schedule.storage import Latest, Steps, Store, Window
from tempo.symbolic import Dim, Expr, Slice
from tempo.symbolic.intervals import interval

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
    copy where it is read at one step and written at another, or, if nothing is ``stored``, in place of it. What is read
    from further back, ``far``, each iteration reads for the next one, after it has written: in the order of
    an update in place (Holt-Winters, a season of 12 steps, with its gradient, on a CPU: 1.5 ms, not 12.9)."""

    node: Node
    depth: int
    stored: bool
    far: tuple[int, ...] = ()

    @property
    def distances(self) -> tuple[int, ...]:
        """By how many iterations the values are back."""
        return *range(1, self.depth + 1), *self.far


class Iterated:
    """Knows what the iterations of loops read."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.readers = by_producer(schedule.dependences)
        self.latest: tuple[Loop, dict[Node, Compute], set[Node]] | None = None
        """A loop, and what is ``inside`` of it."""

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

    def distances(self, node: Node, tree: Loop, back: int, most: float = MOST_REGISTERS) -> list[int | None]:
        """By how many iterations reads within a loop look back for a node that is computed in it; None for those that
        are not known to be at one of the last few, or at one step."""
        directly, everywhere = self.inside(tree)
        found: list[int | None] = []
        for d in self.readers.get(node, ()):
            if d.consumer not in everywhere or d.distance(tree.dim) is None:  # nothing is read
                continue
            steps = self.looks_back(d, directly[d.consumer], tree.dim) if d.consumer in directly else None
            found.append(steps * back if steps is not None and 0 <= steps * back <= most else None)
        return found

    def is_written_late(self, node: Node, tree: Loop, back: int, stores: Stores) -> bool:
        """Whether what a loop computes of a node may be put into its store for several iterations at once."""
        store = stores[node]
        own = find_dim(node, tree.dim)
        if own is None or tree.block or node in self.schedule.folds or apart.unrolled(store):
            return False
        return isinstance(store.dims[own], Steps) and None not in self.distances(node, tree, back)

    def registers(self, node: Node, tree: Loop, back: int, stores: Stores, far: bool) -> Registers | None:
        """What a loop hands from iteration to iteration of a node, if anything; from ``far`` back as well."""
        directly, everywhere = self.inside(tree)
        own = find_dim(node, tree.dim)
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
        depth = min(depth, MOST_REGISTERS)
        every = self.distances(node, tree, back, math.inf) if far and stored and not store.host else [None]
        # A store that is read at other steps as well is copied all the same.
        beyond = () if None in every else tuple(sorted({n for n in every if n is not None and n > depth}))
        return Registers(node, depth, stored, beyond) if depth or beyond else None

    def elsewhere(
        self, node: Node, tree: Loop, at: Mapping[Dim, Any], stores: Stores
    ) -> Mapping[tuple[Dim, int], Window | Steps]:
        """The dims of a node, and by how many steps back, of which a loop reads another step than it writes where loops
        around are ``at`` some steps; and what is kept of the dim."""
        store = stores[node]
        if store.host or apart.unrolled(store):
            return {}
        _, everywhere = self.inside(tree)
        found = {}
        for d, kept in store.dims.items():
            if not isinstance(kept, Steps | Window) or isinstance(at.get(d.origin), BlockSteps | None):
                continue
            for reader in self.readers.get(node, ()):
                distance = reader.distance(d.origin) if reader.consumer in everywhere else None
                if distance is not None and distance[0] and distance[0] == distance[1]:
                    found[d, distance[0]] = kept
        return found

    def looks_back(self, d: Dependence, statement: Compute, family: Dim) -> int | None:
        """By how many steps of a loop a read looks back in a statement of its body, if that is one number and the read
        is at the own steps of the other loops around."""
        if d.read.index is None:
            return None
        edge = Edge(d.producer, d.read.index)
        looped = [e for e in d.producer.domain if self.is_looped(d.producer, e)]
        spans = self.spans(statement)
        steps = {e.origin: self.steps_back(edge, e, d.consumer, spans) for e in looped}
        return steps.get(family) if not any(steps[other] != 0 for other in steps if other is not family) else None

    def steps_back(self, edge: Edge, d: Dim, reader: Node, spans: Mapping[Any, tuple[int, int]]) -> int | None:
        """How many steps of a dim before that at which the reader's loop is an edge reads, if that is the same wherever
        the reader's dims are within some spans: ``x[max(t - 1, 0)]`` looks one step back from step 1 on."""
        item = edge.index[edge.node.domain.index(d)]
        own = find_dim(reader, d.origin)
        if own is None or isinstance(item, Slice):
            return None
        # own_step of nothing is how far a node's steps are behind the loop's.
        theirs: Expr = item - self.schedule.own_step(edge.node, d, 0)
        back: Expr = own - self.schedule.own_step(reader, own, 0) - theirs
        if back.is_constant:
            return back.constant
        low, high = interval(back, spans, self.schedule.numbers)
        return low if low == high else None

    def spans(self, statement: Compute) -> dict[Any, tuple[int, int]]:
        """The first and the last steps of its dims at which a node is computed by a statement."""
        node, own_step = statement.node, self.schedule.own_step
        found: dict[Any, tuple[int, int]] = {**self.schedule.open, **self.schedule.spans[node]}
        for d in node.domain:
            if d.origin in statement.within:
                first, last = statement.within[d.origin]
                found[d] = own_step(node, d, first), own_step(node, d, last)
        return found

    def inside(self, tree: Loop) -> tuple[dict[Node, Compute], set[Node]]:
        """What a loop computes: the statements of its body by their nodes, and the nodes of loops within as well."""
        found = self.latest
        if found is None or found[0] is not tree:  # all nodes of a loop are asked about in a row
            directly = {c.node: c for c in tree.body if isinstance(c, Compute)}
            self.latest = found = tree, directly, {c.node for c in computes(tree.body)}
        return found[1:]

    def is_looped(self, node: Node, d: Dim) -> bool:
        return any(family is d.origin for place in self.schedule.places[node] for family, _ in place)
