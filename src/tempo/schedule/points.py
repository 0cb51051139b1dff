"""The order of a circle's points where it is not that of any dim: each point after all that it needs.

Where a dim stops on data, what a point needs may depend on the number of steps, ``x[T - 1 - t]``, which is only known
when the program runs. Then an order is looked for that is right whatever the number is. If there is none, the points
are computed in the order for one step, then in that for two, and so on: what is computed too early is computed again,
and what is right stays so when it is computed again from what is right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from tempo.analysis.walk import TooManyError, needs
from tempo.errors import CausalityError, DefinitionError
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT

Value = tuple[Node, tuple[int, ...]]
"""A node at a point."""

# All reads of a program are followed for every number of steps that its dims may make, if these are not more values.
MOST_WALKED = 50_000


def point_order(
    graph: Graph,
    numbers: Mapping[Any, int],
    limits: Mapping[Any, tuple[int, int]],
    members: Collection[Node],
    most: int,
) -> list[Value] | None:
    """The points of some nodes, each after those of them that it needs; None if there is no such order, or more than
    ``most`` points are in it. ``limits`` are the fewest and the most steps that dims may make that stop on data."""
    if math.prod(last + 1 - first for first, last in limits.values()) > MOST_WALKED:
        return None
    choices = list(itertools.product(*(range(last, first - 1, -1) for first, last in limits.values())))
    every: TopologicalSorter[Value] = TopologicalSorter()
    orders: list[list[Value]] = []
    for made in choices:
        try:
            walked = needs(graph, {**numbers, **dict(zip(limits, made, strict=True))}, members, most)
        except (CausalityError, TooManyError):
            return None
        except DefinitionError:  # the program is wrong for this number of steps, and says so when it is made
            continue
        if len(choices) > 1 and len(walked) * len(choices) > MOST_WALKED:
            return None
        orders.append([value for value in walked if value[0] in members])
        for value in orders[-1]:
            every.add(value, *(v for v in walked[value] if v[0] in members))
    try:
        order = list(_results_after_calls(list(every.static_order())))
    except CycleError:
        if any(node.op is HOST for node in members):  # a call is made once
            return None
        order = [value for one in orders for value in one]
    return order if len(order) <= most else None


def _results_after_calls(order: Sequence[Value]) -> Iterator[Value]:
    """Points in the same order, but the results of a host call next to it: they are there until the next one."""

    def call_of(node: Node, point: Any) -> Any:
        call = node.edges[0].node if node.op is HOST_RESULT else node
        steps = dict(zip(node.domain, point, strict=True))
        return call, tuple(steps[d] for d in call.attributes["sequence"])

    results: dict[Any, list[Value]] = {call_of(*value): [] for value in order if value[0].op is HOST}
    for value in order:
        if value[0].op is HOST_RESULT and call_of(*value) in results:
            results[call_of(*value)].append(value)
    moved = {value for values in results.values() for value in values}
    for value in order:
        if value not in moved:
            yield value
        if value[0].op is HOST:
            yield from results[call_of(*value)]
