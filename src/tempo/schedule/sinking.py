"""Taking what needs no loop into one, where keeping its values for all steps would cost memory and gain nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from tempo.analysis.causality import Distance
from tempo.graph.node import Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT
from tempo.schedule.dependences import Dependence, allowed, by_consumer, by_producer
from tempo.schedule.groups import Group, is_worth_hoisting, same_kind
from tempo.symbolic import Dim

# Values of all steps of a loop are kept up to this size so that others can be computed from them at once.
KEEP_BYTES = 256 * 2**20


class Sinking:
    """Changes units of a single node without a loop into units of a loop that their operands or readers are in."""

    def __init__(
        self,
        units: Sequence[Group],
        dependences: Sequence[Dependence],
        bytes_of: Callable[[Node], int],
        along: Mapping[Node, Set[Dim]],
        tiled: Dim | None,
    ) -> None:
        """What is handed out while the program runs is done so ``along`` some dims, and all that it needs is needed at
        every step of these. Nothing is taken into a loop over a dim that is ``tiled``."""
        self.units = units
        self.bytes_of = bytes_of
        self.along = along
        self.tiled = tiled
        self.unit_of = {node: unit for unit in units for node in unit.nodes}
        self.reads = by_consumer(dependences)
        self.readers = by_producer(dependences)
        self.instead: dict[tuple[Node, Dim], int] = {}
        """By node and loop, what ``kept_instead`` has found. (Readers come first: nothing behind has moved.)"""

    def into_loops(self) -> Iterator[tuple[Node, Dim, str]]:
        """What was taken into a loop over which dim, and why."""
        for unit in self.units:
            group = self.loop_of_operands(unit)
            if group is not None and group.family is not None:
                unit.family, unit.backwards = group.family, group.backwards
                yield unit.nodes[0], group.family, "with what it reads"
        for unit in reversed(self.units):
            group = self.loop_of_readers(unit)
            if group is not None and group.family is not None:
                unit.family, unit.backwards, unit.sunk = group.family, group.backwards, True
                yield unit.nodes[0], group.family, "with what reads it"

    def loop_of_operands(self, unit: Group) -> Group | None:
        """The loop that a unit goes into because of what it reads."""
        (node, *others) = unit.nodes
        # A call that needs no loop is made once, for its whole batch.
        if unit.family is not None or others or unit.tangled or node.op is HOST:
            return None
        operands = [(d.producer, d) for d in self.reads.get(node, ())]
        group = self.joins(node, operands, self.along.get(node, set()))
        if group is None:
            return None
        soon = group.family in self.along.get(node, ()) or node.op is HOST_RESULT
        largest = max((self.bytes_of(p) for p, _ in operands), default=0)
        shrinks = not is_worth_hoisting(node) and any(self.spared(p, node) for p, _ in operands)
        return group if soon or shrinks or largest > KEEP_BYTES else None

    def loop_of_readers(self, unit: Group) -> Group | None:
        """The loop that a unit goes into because everybody who reads it is there."""
        if not self.may_move(unit):
            return None
        (node,) = unit.nodes
        consumers = [(d.consumer, d) for d in self.readers.get(node, ())]
        group = self.joins(node, consumers)
        if group is None or group.family is None or any(self.unit_of[c].family is None for c, _ in consumers):
            return None
        own = self.bytes_of(node)
        return group if own > KEEP_BYTES or self.kept_instead(node, group.family) <= own else None

    def joins(
        self, node: Node, neighbours: Sequence[tuple[Node, Dependence]], along: Set[Dim] = frozenset()
    ) -> Group | None:
        """The loop in which all these neighbours are read: at the same step or, where it is a loop over one of the dims
        ``along``, at earlier ones as well."""
        looped = [(self.unit_of[other], d) for other, d in neighbours if self.unit_of[other].family is not None]
        if not looped:
            return None
        group = looped[0][0]
        family = group.family
        if family is None or family is self.tiled:
            return None

        def near(distance: Distance) -> bool:
            return distance == (0, 0) or (family in along and allowed(distance, group.backwards))

        fits = (
            all(same_kind(group, loop) for loop, _ in looped)
            and any(d.origin is family for d in node.domain)
            and all(near(d.distance(family)) for _, d in looped)
        )
        return group if fits else None

    def smaller(self, node: Node, operand: Node) -> bool:
        return 2 * self.bytes_of(node) < self.bytes_of(operand)

    def spared(self, operand: Node, node: Node) -> bool:
        """Whether a node is so much smaller than an operand that it is kept in its place: not where others, which stay
        outside of the loop, have the operand kept for all steps anyway."""
        after = [d.consumer for d in self.readers[operand] if self.unit_of[d.consumer].family is None]
        return self.smaller(node, operand) and all(
            self.smaller(other, operand) and not is_worth_hoisting(other) for other in after
        )

    def may_move(self, unit: Group) -> bool:
        (node, *others) = unit.nodes
        large = self.bytes_of(node) > KEEP_BYTES
        hoist = node.op in (INPUT, HOST) or (is_worth_hoisting(node) and not large)
        return unit.family is None and not others and not hoist and not unit.tangled

    def kept_instead(self, node: Node, family: Dim) -> int:
        """The bytes of what else is kept for all steps of a loop if a node is computed in it."""
        behind = [node]
        for reader in behind:
            if (reader, family) not in self.instead:
                behind += filter(self.moves_along, self.read_for(reader, family))
        for reader in reversed(behind):
            if (reader, family) not in self.instead:
                operands = self.read_for(reader, family)
                parts = (self.instead[p, family] if self.moves_along(p) else self.bytes_of(p) for p in operands)
                self.instead[reader, family] = sum(parts)
        return self.instead[node, family]

    def moves_along(self, node: Node) -> bool:
        return self.may_move(self.unit_of[node])

    def read_for(self, node: Node, family: Dim) -> list[Node]:
        """What a node reads that is computed for it alone, at all steps of a loop at once."""
        return [
            p
            for p in dict.fromkeys(d.producer for d in self.reads.get(node, ()))
            if all(d.consumer is node for d in self.readers[p])
            and p.op is not INPUT
            and self.unit_of[p].family is None
            and any(d.origin is family for d in p.domain)
        ]
