"""Computing all steps of a dim in blocks: which nodes can share the blocks, and how late each must be.

Block by block, a node is computed for some steps of a dim at once, after everything it reads. What looks ahead by a
bounded number of steps is computed that much later than its own steps say, so that n-step returns are learned from
while the program acts. A reduction over all steps becomes a fold: each block adds its share.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tempo.graph.node import Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT
from tempo.ops.scan import LINEAR_RECURRENCE
from tempo.schedule.dependences import Dependence, allowed
from tempo.schedule.folds import Fold, fold
from tempo.schedule.groups import Group, same_kind
from tempo.symbolic import Dim

# Inputs are there, and a scan over all steps is one.
WHOLE = (INPUT, LINEAR_RECURRENCE)


class Tiling:
    """Units, each after what it needs, in groups, with as much as possible in blocks of one dim.

    ``delays`` says by how many steps nodes are late: by ``most`` at most, and by whole blocks. ``folded`` are the nodes
    that blocks of another dim around these are folded into already.
    """

    def __init__(
        self,
        units: Sequence[Group],
        dependences: Sequence[Dependence],
        family: Dim,
        block: int,
        most: int,
        numbers: Mapping[Any, int],
        folded: Container[Node] = (),
    ) -> None:
        self.folded = folded
        self.family = family
        self.block = block
        self.most = most
        self.numbers = numbers
        self.groups: list[Group] = []
        self.delays: dict[Node, int] = {}
        self.folds: dict[Node, Fold] = {}
        self.place: dict[Node, int] = {}
        self.reads: dict[Node, list[Dependence]] = {}
        for d in dependences:
            self.reads.setdefault(d.consumer, []).append(d)
        for unit in units:
            self.add(unit)

    def add(self, unit: Group) -> None:
        reads = [d for node in unit.nodes for d in self.reads.get(node, ())]
        outside = [d for d in reads if d.producer not in unit.nodes]
        found = self.fold(unit, outside)
        tiled = found is not None or self.is_tiled(unit)
        earliest = max((self.place[d.producer] + (not self.together(unit, d, tiled)) for d in outside), default=0)
        kind = Group(self.family, False, [], block=self.block) if tiled else replace(unit, nodes=[])
        fitting = (n for n in range(earliest, len(self.groups)) if same_kind(self.groups[n], kind))
        at = next(fitting, len(self.groups))
        if at == len(self.groups):
            self.groups.append(kind)
        self.groups[at].nodes.extend(unit.nodes)
        self.place.update(dict.fromkeys(unit.nodes, at))
        if found is not None:
            self.folds[unit.nodes[0]] = found
        if tiled:
            late = max((self.late(d) or 0 for d in outside if self.place[d.producer] == at), default=0)
            self.delays.update(dict.fromkeys(unit.nodes, -(-max(late, 0) // self.block) * self.block))

    def is_tiled(self, unit: Group) -> bool:
        """Whether a unit can be computed block by block: a node without a loop, or a loop forwards over the dim."""
        if unit.tangled or not all(self.varies(node) and node.op not in WHOLE for node in unit.nodes):
            return False
        calls = [node.edges[0].node if node.op is HOST_RESULT else node for node in unit.nodes]
        if any(call.op is HOST and self.family in call.attributes["batch"] for call in calls):
            return False
        return unit.family is None or (unit.family is self.family and not unit.backwards)

    def fold(self, unit: Group, outside: Sequence[Dependence]) -> Fold | None:
        """How a unit can be folded over what blocks compute, if it can."""
        if unit.family is not None or not any(self.groups[self.place[d.producer]].block for d in outside):
            return None
        if unit.nodes[0] in self.folded:
            return None
        return fold(unit.nodes[0], self.family, self.numbers)

    def together(self, unit: Group, d: Dependence, tiled: bool) -> bool:
        """Whether a unit can be in the same group as something that it reads."""
        group = self.groups[self.place[d.producer]]
        if group.block:
            late = self.late(d) if tiled else None
            return late is not None and late <= self.most
        if tiled or not same_kind(group, unit):
            return False
        return unit.family is None or allowed(d.distance(unit.family), unit.backwards)

    def late(self, d: Dependence) -> int | None:
        """By how many steps a consumer in the same blocks must be late; None if it cannot be in the same blocks."""
        if d.producer in self.folds:  # known when the last block is
            return None
        steps = d.distance(self.family) if self.varies(d.consumer) else (0, 0)
        if steps is None:
            return 0
        return None if steps[0] is None else self.delays.get(d.producer, 0) - steps[0]

    def varies(self, node: Node) -> bool:
        return any(d.origin is self.family for d in node.domain)
