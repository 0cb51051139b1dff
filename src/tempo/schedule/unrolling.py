"""Which dims a GPU gains from unrolling.

A loop over layers within a loop over time slices the weights of a layer out of those of all layers at every step, and
XLA copies what is sliced. With few layers the loop is not worth that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from tempo.graph.node import Edge, Graph, dims_of
from tempo.graph.traversal import edges_of
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Loop, Tree, computes
from tempo.schedule.storage import Latest, Steps, Storage
from tempo.symbolic import Dim, Expr

# Dims of more steps are never unrolled.
MOST_STEPS = 64

# Nor are loops that would become more nodes than this: XLA takes some seconds for a thousand.
MOST_NODES = 5000

# What is worth it: copying 1 MiB takes an H200 as long as starting one more small kernel, and a loop over 28 layers of
# 200 MB each takes 5.1 ms, with an array per layer 2.3 ms.
LEAST_BYTES = 2**20


def worth_unrolling(source: Graph, graph: Graph, schedule: Schedule, storage: Storage) -> tuple[str, ...]:
    """The names of the dims that a program has declared, ``source``, and that in its schedule have a short loop inside
    of another one, which slices large operands."""
    declared = [d for d in source.dims if d.origin is d and d not in source.stops]
    found = {loop.dim for loop in _inner_loops(schedule.trees, False) if _is_costly(loop, graph, schedule, storage)}
    return tuple(d.name for d in declared if d in found)


def _inner_loops(trees: Sequence[Tree], inside: bool) -> Iterator[Loop]:
    """The loops of several steps, one by one, inside of others."""
    for tree in trees:
        if isinstance(tree, Loop):
            repeats = len(tree.steps) > 1
            if inside and repeats and not (tree.block or tree.inner):
                yield tree
            yield from _inner_loops(tree.body, inside or repeats)


def _is_costly(loop: Loop, graph: Graph, schedule: Schedule, storage: Storage) -> bool:
    nodes = {statement.node for statement in computes(loop.body)}
    if len(loop.steps) > MOST_STEPS or len(loop.steps) * len(nodes) > MOST_NODES:
        return False
    for node in nodes:
        looped = {family for place in schedule.places[node] for family, _ in place}
        if any(_sliced(edge, loop.dim, looped, storage) >= LEAST_BYTES for edge in edges_of(node, graph.cases)):
            return True
    return False


def _sliced(edge: Edge, family: Dim, looped: Set[Dim], storage: Storage) -> int:
    """The bytes that a reader in some loops cuts out of a store with all steps of a dim, at one of them."""
    store = storage.stores.get(edge.node)
    if store is None:
        return 0
    found, sliced = store.bytes, False
    for (d, kept), item in zip(store.dims.items(), edge.index, strict=True):
        at_a_step = isinstance(item, Expr) and all(own.origin in looped for own in dims_of(item.symbols()))
        if at_a_step and not isinstance(kept, Latest):
            found //= kept.size
            sliced = sliced or (d.origin is family and isinstance(kept, Steps))
    return found if sliced else 0
