"""Walking a graph: what a node reads, and what a set of nodes needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tempo.graph.node import Case, Node


def producers(node: Node, cases: Mapping[Node, Sequence[Case]]) -> Iterator[Node]:
    """The nodes whose values a node reads, through edges, scatters and cases."""
    for edge in node.edges:
        yield edge.node
    for scatter in node.scatters:
        yield scatter.node
    for case in cases.get(node, ()):
        yield case.value.node


def reachable(roots: Iterable[Node], cases: Mapping[Node, Sequence[Case]]) -> tuple[Node, ...]:
    """The roots and everything they need, in order of creation (operands before their operations)."""
    seen: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(producers(node, cases))
    return tuple(sorted(seen, key=lambda n: n.number))
