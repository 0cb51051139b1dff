"""Putting nodes into as few loops as their reads allow."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from tempo.graph.node import Node
from tempo.graph.structural import HOST
from tempo.ops.contraction import EINSUM, is_outer
from tempo.passes.skew import HOISTED
from tempo.schedule.dependences import Dependence, allowed, by_consumer, by_producer
from tempo.symbolic import Dim

# Operations that gain from being done for all steps of a loop at once, beside it: matrix products become larger ones,
# random numbers are drawn in one go. Everything else is as fast inside the loop, where its results need no store.
WORTH_HOISTING = {*HOISTED, "linear_recurrence"}


def is_worth_hoisting(node: Node) -> bool:
    """Whether a node gains from being computed for all steps at once. Products that are summed over nothing do not,
    they only take more memory than their operands."""
    return node.op.name in WORTH_HOISTING and not (node.op is EINSUM and is_outer(node.attributes["subscripts"]))


@dataclass
class Group:
    """Nodes that share a loop, or that stand in no further loop (``family`` None). In a ``tangled`` circle the order of
    steps is not that of any dim; a ``sunk`` node is only in a loop because its readers are."""

    family: Dim | None
    backwards: bool
    nodes: list[Node]
    tangled: bool = False
    sunk: bool = False
    block: int = 0
    """Steps of the dim that are computed at once where its steps are made in blocks, 0 where they are not."""


def merged(
    pieces: list[tuple[int, int, list[Node]]], folded: Container[Node] = ()
) -> list[tuple[int, int, list[Node]]]:
    """Join neighbouring ranges unless one has much less to do: a copy of a large loop body is not worth it. What is
    ``folded`` is computed at its own steps only."""
    result: list[tuple[int, int, list[Node]]] = []
    for start, stop, active in pieces:
        if result and result[-1][1] == start:
            before = result[-1][2]
            small, large = sorted((len(before), len(active)))
            if _only_there(before, folded) != _only_there(active, folded):
                result.append((start, stop, active))
                continue
            if set(before) == set(active) or small > max(8, large // 4):
                union = sorted({*before, *active}, key=lambda n: n.number)
                result[-1] = (result[-1][0], stop, union)
                continue
        result.append((start, stop, active))
    return result


def _only_there(nodes: Sequence[Node], folded: Container[Node]) -> set[Node]:
    """Those of some nodes that are computed at their own steps and at no others: calls, what is folded, and costly
    operations that have only one step of a loop's dim."""

    def is_costly(node: Node) -> bool:
        return is_worth_hoisting(node) and _has_one_step(node)

    return {node for node in nodes if node.op is HOST or node in folded or is_costly(node)}


def _has_one_step(node: Node) -> bool:
    return any(d.origin is not d and d.bound == 1 for d in node.domain)


def join(units: Sequence[Group], dependences: Sequence[Dependence]) -> list[Group]:
    """Put units, each after what it needs, into as few groups as their kinds and reads allow."""
    groups: list[Group] = []
    place: dict[Node, int] = {}
    reads = by_consumer(dependences)
    for unit in units:
        earliest = 0
        members = set(unit.nodes)
        for d in (d for node in unit.nodes for d in reads.get(node, ())):
            if d.producer in members:
                continue
            at = place[d.producer]
            together = same_kind(groups[at], unit) and (
                unit.family is None or allowed(d.distance(unit.family), unit.backwards)
            )
            earliest = max(earliest, at if together else at + 1)
        fitting = (n for n in range(earliest, len(groups)) if same_kind(groups[n], unit))
        at = next(fitting, len(groups))
        if at == len(groups):
            groups.append(Group(unit.family, unit.backwards, []))
        groups[at].nodes.extend(unit.nodes)
        groups[at].tangled = unit.tangled
        place.update(dict.fromkeys(unit.nodes, at))
    follow_readers(units, groups, place, dependences)
    return [group for group in groups if group.nodes]


def follow_readers(
    units: Sequence[Group], groups: Sequence[Group], place: dict[Node, int], dependences: Sequence[Dependence]
) -> None:
    """Move what was sunk into a loop to where its readers went, which may be later than it could be."""
    readers = by_producer(dependences)
    for unit in reversed(units):
        if unit.sunk:
            (node,) = unit.nodes
            at = min((place[d.consumer] for d in readers.get(node, ())), default=place[node])
            if at != place[node] and same_kind(groups[at], unit):
                groups[place[node]].nodes.remove(node)
                groups[at].nodes.insert(0, node)
                place[node] = at


def same_kind(a: Group, b: Group) -> bool:
    return a.family is b.family and a.backwards == b.backwards and a.block == b.block and not (a.tangled or b.tangled)
