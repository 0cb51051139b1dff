"""Passes: functions from graph to graph, applied in this order."""

from collections.abc import Callable, Container, Mapping, Set
from dataclasses import replace
from typing import Any

from tempo.graph.build import make
from tempo.graph.node import Graph
from tempo.ops.elementwise import COPY
from tempo.passes.accumulations import resolve_accumulations
from tempo.passes.ahead import read_next_values
from tempo.passes.attention import fuse_attention
from tempo.passes.attention_to_past import fuse_attention_to_past
from tempo.passes.choices import choose_where_read
from tempo.passes.equal import merge_equal
from tempo.passes.last_steps import compute_last_steps
from tempo.passes.linear import linear_recurrences
from tempo.passes.pinned import split_pinned
from tempo.passes.rows import hand_rows_on
from tempo.passes.selected import compute_selected
from tempo.passes.simplify import simplify
from tempo.passes.single_steps import drop_single_steps
from tempo.passes.skew import skew
from tempo.passes.views import split_views
from tempo.passes.widened import widen_what_stays
from tempo.symbolic import Dim

PASSES: tuple[tuple[str, Callable[..., Graph]], ...] = (
    ("resolve accumulations", resolve_accumulations),
    ("drop single steps", drop_single_steps),
    ("read next values", read_next_values),
    ("simplify", simplify),
    ("merge equal", merge_equal),
    ("compute last steps", compute_last_steps),
    ("choose where read", choose_where_read),
    ("compute selected", compute_selected),
    ("split pinned", split_pinned),
    ("hand rows on", hand_rows_on),
    ("skew", skew),
    ("split views", split_views),
)

# These ask for the bounds' numbers, and for the dims that are unrolled.
FOR_NUMBERS = (drop_single_steps, compute_selected, skew)

FUSE_ATTENTION_TO_PAST = "fuse attention to past"
FUSE_ATTENTION = "fuse attention"
WIDEN_WHAT_STAYS = "widen what stays"

# Backends know no accumulations, so that this one cannot be left out.
NEEDED = ("resolve accumulations",)


def apply_passes(
    graph: Graph,
    skip: Container[str] = (),
    parallel: Mapping[Any, int] | None = None,
    numbers: Mapping[Any, int] | None = None,
    unrolled: Set[Dim] = frozenset(),
) -> Graph:
    """The graph that is scheduled. Tests leave passes out to see that the results do not depend on them.

    ``numbers`` are the bounds' numbers, where they are known. ``parallel`` is for devices on which many steps at once
    take no longer than one, and which have kernels for attention: the bounds' numbers. Recurrences over ``unrolled``
    dims stay as they are.
    """
    for name, change in PASSES:
        if name in NEEDED or name not in skip:
            graph = change(graph, numbers, unrolled) if change in FOR_NUMBERS else change(graph)
    return graph if parallel is None else apply_parallel_passes(graph, skip, parallel, unrolled)


def apply_parallel_passes(
    graph: Graph, skip: Container[str], parallel: Mapping[Any, int], unrolled: Set[Dim] = frozenset()
) -> Graph:
    """The last of the passes. What they make of a graph reads its operands in one way only, so that nothing is rolled
    after them."""
    if FUSE_ATTENTION_TO_PAST not in skip:
        graph = fuse_attention_to_past(graph, parallel)
    if FUSE_ATTENTION not in skip:
        graph = fuse_attention(graph)
    return linear_recurrences(graph, parallel, unrolled)


def apply_sequential_passes(graph: Graph, skip: Container[str]) -> Graph:
    """The last of the passes for devices that take twice as long for two steps, and have no products in half
    precision."""
    if FUSE_ATTENTION not in skip:
        graph = fuse_attention(graph, of_windows=True)
    return graph if WIDEN_WHAT_STAYS in skip else widen_what_stays(graph)


def with_own_emits(graph: Graph) -> Graph:
    """The graph with a node of its own for everything that is emitted or stops a dim, computed where it is used."""
    emits = {name: make(COPY, edge, domain=edge.domain) for name, edge in graph.emits.items()}
    stops = {dim: make(COPY, edge, domain=edge.domain) for dim, edge in graph.stops.items()}
    nodes = (*graph.nodes, *(edge.node for edge in (*emits.values(), *stops.values())))
    return replace(graph, nodes=nodes, emits=emits, stops=stops)
