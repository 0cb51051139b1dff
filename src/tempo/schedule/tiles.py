"""Computing all steps of a dim in blocks: which nodes can share the blocks, and how late each must be.

Block by block, a node is computed for some steps of a dim at once, after everything it reads. What looks ahead by a
bounded number of steps is computed that much later than its own steps say, so that n-step returns are learned from
while the program acts. A reduction over all steps becomes a fold: each block adds its share. What a loop computes
backwards is computed in blocks from the last to the first, and so is what only waits for such a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from tempo.graph.node import Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT
from tempo.ops.scan import LINEAR_RECURRENCE
from tempo.schedule.dependences import Dependence, allowed, by_consumer, by_producer
from tempo.schedule.folds import Fold, fold
from tempo.schedule.groups import Group, follow_readers, same_kind
from tempo.symbolic import Dim

# Inputs are there, and a scan over all steps is one.
WHOLE = (INPUT, LINEAR_RECURRENCE)


class Tiling:
    """Units, each after what it needs, in groups, with as much as possible in blocks of one dim.

    ``delays`` says by how many steps nodes are late: by ``most`` at most, and by whole blocks. For some nodes it is
    ``fixed`` by how many steps of a loop they are behind it (less than none in a loop that runs backwards), which may
    contradict what they read.
    """

    def __init__(
        self,
        units: Sequence[Group],
        dependences: Sequence[Dependence],
        family: Dim,
        block: int,
        most: int,
        numbers: Mapping[Any, int],
        fixed: Mapping[Node, int],
    ) -> None:
        self.fixed = fixed
        self.contradicts = False
        self.family = family
        self.block = block
        self.most = most
        self.numbers = numbers
        self.groups: list[Group] = []
        self.delays: dict[Node, int] = {}
        self.folds: dict[Node, Fold] = {}
        self.place: dict[Node, int] = {}
        self.movable: set[Node] = set()
        self.reads = by_consumer(dependences)
        self.readers = by_producer(dependences)
        for unit in units:
            self.add(unit)
        follow_readers(units, self.groups, self.place, dependences)

    def add(self, unit: Group) -> None:
        members = set(unit.nodes)
        outside = [d for node in unit.nodes for d in self.reads.get(node, ()) if d.producer not in members]
        found = self.fold(unit, outside)
        tiled = found is not None or self.is_tiled(unit)
        kinds = [replace(unit, nodes=[])]
        if tiled:
            directions = (False, True) if unit.family is None else (unit.backwards,)
            kinds = [Group(self.family, backwards, [], block=self.block) for backwards in directions]
        at, kind = min(((self.first_fit(unit, outside, kind), kind) for kind in kinds), key=lambda fit: fit[0])
        if at == len(self.groups):
            self.groups.append(kind)
        self.groups[at].nodes.extend(unit.nodes)
        self.place.update(dict.fromkeys(unit.nodes, at))
        if found is not None:
            self.folds[unit.nodes[0]] = replace(found, backwards=kind.backwards)
        if tiled:
            together = (d for d in outside if self.place[d.producer] == at)
            late = max((self.late(d, kind.backwards) or 0 for d in together), default=0)
            late = -(-max(late, 0) // self.block) * self.block
            given = {self.behind(node, kind.backwards) for node in unit.nodes if node in self.fixed}
            self.contradicts = self.contradicts or any(other < late for other in given) or len(given) > 1
            self.delays.update(dict.fromkeys(unit.nodes, max(given, default=late)))

    def first_fit(self, unit: Group, outside: Sequence[Dependence], kind: Group) -> int:
        """The first group of a kind that a unit can be in, given what it reads; the number of groups if none is."""
        earliest = max((self.place[d.producer] + (not self.together(unit, d, kind)) for d in outside), default=0)
        fitting = (n for n in range(earliest, len(self.groups)) if same_kind(self.groups[n], kind))
        return next(fitting, len(self.groups))

    def put_off(self, units: Sequence[Group], size: Callable[[Node], int], results: Container[Node]) -> None:
        """Compute nodes in the later blocks in which they are read, if less is to be kept for them then: what
        back-propagation makes of a few values of the forward pass. What only they read goes with them."""
        alone = [unit.nodes[0] for unit in units if unit.family is None and len(unit.nodes) == 1]
        self.movable = {
            node for node in alone if node not in results and node not in self.folds and not self.delays.get(node, 1)
        }
        for node in reversed(alone):
            (at, *others) = {self.place[d.consumer] for d in self.readers.get(node, ())} or {self.place[node]}
            if others or at == self.place[node] or not self.follows(node, at, set()):
                continue
            for moved in (self.with_operands(node, at), [node]):
                operands = {d.producer for other in moved for d in self.reads.get(other, ())} - {*moved}
                if sum(size(p) for p in operands if p not in results and not self.is_kept(p)) <= size(node):
                    self.move(moved, at)
                    break
        self.groups = [group for group in self.groups if group.nodes]
        self.place = {node: at for at, group in enumerate(self.groups) for node in group.nodes}

    def with_operands(self, node: Node, at: int) -> list[Node]:
        """A node that is put off to the blocks of a group, and what of its operands is only needed there then."""
        moved = [node]
        for other in moved:
            for p in dict.fromkeys(d.producer for d in self.reads.get(other, ())):
                if p not in moved and self.place[p] != at and self.follows(p, at, {*moved}):
                    moved.append(p)
        return moved

    def follows(self, node: Node, at: int, moved: Set[Node]) -> bool:
        """Whether a node can be computed in the blocks of a group, given that those are that read it, or are moved."""
        group, readers = self.groups[at], self.readers.get(node, ())
        if node not in self.movable or not group.block or not self.groups[self.place[node]].block:
            return False
        if any(self.place[d.consumer] != at and d.consumer not in moved for d in readers):
            return False
        lates = [(self.late(d, group.backwards), self.delays[d.consumer]) for d in readers]
        return all(late is not None and late <= most for late, most in lates)

    def move(self, nodes: Sequence[Node], at: int) -> None:
        for node in nodes:
            self.groups[self.place[node]].nodes.remove(node)
            self.groups[at].nodes.insert(0, node)
            self.place[node] = at

    def is_kept(self, node: Node) -> bool:
        """Whether a node is kept for all steps, because it is not computed in blocks or is read in others."""
        home = self.place[node]
        return not self.groups[home].block or any(self.place[d.consumer] != home for d in self.readers[node])

    def is_tiled(self, unit: Group) -> bool:
        """Whether a unit can be computed block by block: a node without a loop, or a loop over the dim."""
        if unit.tangled or not all(self.varies(node) and node.op not in WHOLE for node in unit.nodes):
            return False
        calls = [node.edges[0].node if node.op is HOST_RESULT else node for node in unit.nodes]
        if any(call.op is HOST and self.family in call.attributes["batch"] for call in calls):
            return False
        return unit.family is None or unit.family is self.family

    def fold(self, unit: Group, outside: Sequence[Dependence]) -> Fold | None:
        """How a unit can be folded over what blocks compute, if it can."""
        if unit.family is not None or not any(self.groups[self.place[d.producer]].block for d in outside):
            return None
        return fold(unit.nodes[0], self.family, self.numbers)

    def together(self, unit: Group, d: Dependence, kind: Group) -> bool:
        """Whether a unit can be in the same group, of a kind, as something that it reads."""
        if not same_kind(self.groups[self.place[d.producer]], kind):
            return False
        if kind.block:
            late = self.late(d, kind.backwards)
            return late is not None and late <= self.most
        return unit.family is None or allowed(d.distance(unit.family), unit.backwards)

    def late(self, d: Dependence, backwards: bool) -> int | None:
        """By how many steps a consumer in the same blocks must be late; None if it cannot be in the same blocks."""
        if d.producer in self.folds:  # known when the last block is
            return None
        steps = d.distance(self.family) if self.varies(d.consumer) else (0, 0)
        if steps is None:
            return 0
        back = steps[1] if backwards else steps[0]
        if back is None:
            return None
        # Where nodes are behind already, reads look back by that much more or less.
        already = self.behind(d.consumer, backwards) - self.behind(d.producer, backwards)
        return self.delays.get(d.producer, 0) + already - (-back if backwards else back)

    def behind(self, node: Node, backwards: bool) -> int:
        """By how many steps it was fixed that a node is late."""
        return -self.fixed.get(node, 0) if backwards else self.fixed.get(node, 0)

    def varies(self, node: Node) -> bool:
        return any(d.origin is self.family for d in node.domain)
