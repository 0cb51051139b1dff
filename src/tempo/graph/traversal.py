"""Walking a graph: what a node reads, and what a set of nodes needs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tempo.graph.node import Case, Edge, Graph, Node

Item = TypeVar("Item", bound=Hashable)


def producers(node: Node, cases: Mapping[Node, Sequence[Case]]) -> Iterator[Node]:
    """The nodes whose values a node reads, through edges, scatters and cases."""
    for edge in node.edges:
        yield edge.node
    for scatter in node.scatters:
        yield scatter.node
    for case in cases.get(node, ()):
        yield case.value.node


def edges_of(node: Node, cases: Mapping[Node, Sequence[Case]]) -> tuple[Edge, ...]:
    """What a node reads through its edges, or as the values of its cases."""
    return (*node.edges, *(case.value for case in cases.get(node, ())))


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


def dependents(roots: Iterable[Node], graph: Graph) -> set[Node]:
    """The roots and everything that needs them."""
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for producer in producers(node, graph.cases):
            readers.setdefault(producer, []).append(node)
    seen: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(readers.get(node, ()))
    return seen


def circles(following: Mapping[Item, Sequence[Item]]) -> list[set[Item]]:
    """The components whose items lead to each other, or that are one item which leads to itself."""
    return [c for c in components(following) if len(c) > 1 or any(item in following[item] for item in c)]


def components(following: Mapping[Item, Sequence[Item]]) -> list[set[Item]]:
    """Strongly connected components, each after those it leads to (Tarjan's algorithm, without recursion)."""
    order: dict[Item, int] = {}
    low: dict[Item, int] = {}
    stack: list[Item] = []
    on_stack: set[Item] = set()
    found: list[set[Item]] = []
    for root in following:
        if root in order:
            continue
        work = [(root, iter(following[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for successor in rest:
                if successor not in order:
                    order[successor] = low[successor] = len(order)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(following[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], order[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member is node:
                            break
                    found.append(component)
    return found
