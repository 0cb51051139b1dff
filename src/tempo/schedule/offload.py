"""Stores in host memory: which can be there, and what of them a loop needs on the device.

A store that is kept for all steps of a dim can be in host memory if a loop in blocks of that dim writes it, or if it is
an input. While the loop that writes it runs, the device has as many of the last steps as the loop itself reads: a
*local* store. What a block has computed is copied to the host. Other loops are given slices: the steps around their
present step or block that they read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tempo.graph.node import Edge, Graph, Node
from tempo.graph.structural import HOST, INPUT
from tempo.graph.traversal import producers
from tempo.schedule.dependences import Dependence
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Loop, Tree, computes
from tempo.schedule.storage import (
    Apart,
    Keeping,
    Latest,
    Present,
    Steps,
    Storage,
    Store,
    keeping,
    single_step,
    steps_back,
)
from tempo.symbolic import Dim


@dataclass(frozen=True)
class Span:
    """Which steps of a dim a loop reads: ``size`` of them, from ``before`` steps before its own on."""

    before: int
    size: int


@dataclass(frozen=True)
class Hosted:
    """The key under which a checkpoint has a store in host memory, beside what the device has of it."""

    node: Node


Home = tuple[Dim, int]
"""A loop, as in the places of a schedule."""

Slices = Mapping[Dim, Span | Steps]
"""Of the dims of a store that are cut, the steps that are read; of all others everything is."""


def offload(graph: Graph, schedule: Schedule, storage: Storage, wanted: Mapping[Node, str]) -> Storage:
    """The same stores, with those of some nodes in host memory, under their names, as far as they can be there."""
    local: dict[Node, Store] = {}
    homes: dict[Node, Home] = {}
    inputs: set[Node] = set()
    in_blocks = _in_blocks(schedule.trees, graph)
    # Host functions, and whoever is handed values while the program runs, read from the device.
    needed = {p for node in graph.nodes if node.op is HOST for p in producers(node, graph.cases)}
    needed |= {edge.node for edge in (*graph.emits.values(), *graph.stops.values())}
    for node in (n for n in storage.stores if n in wanted and n not in needed):
        if any(isinstance(kept, Apart) for kept in storage.stores[node].dims.values()):
            continue
        if node.op is INPUT:
            inputs |= {node} & in_blocks
            continue
        for home in _homes(node, storage.stores[node], schedule):
            found = _local(node, storage.stores[node], home, schedule)
            if found is not None:
                local[node], homes[node] = replace(found, host=wanted[node]), home
                break
    if not (local or inputs):
        return storage
    host = inputs | set(local)
    stores = {
        node: replace(store, host=wanted[node]) if node in host else store for node, store in storage.stores.items()
    }
    outputs = {name: size for name, size in storage.outputs.items() if graph.outputs[name].node not in host}
    result = Storage(stores, local=local, homes=homes, lifetimes=storage.lifetimes, outputs=outputs)
    assert storage.lifetimes is not None, "these are the stores of a whole program"
    peak, library = storage.lifetimes.peak(result.on_device, outputs)
    return replace(result, peak=peak + traffic(graph, schedule, result).most, library=library)


def _homes(node: Node, store: Store, schedule: Schedule) -> list[Home]:
    """The loops in blocks, from the inside out, that all of a node is computed in, of dims of which it keeps all steps.
    The further inside, the less the device has of it."""
    families = {d.origin for d, kept in store.dims.items() if isinstance(kept, Steps)}
    place, *others = schedule.places[node]
    found = [(f, n) for f, n in place if f in families and n in schedule.tiled]
    return [loop for loop in reversed(found) if all(loop in other for other in others)]


def _local(node: Node, store: Store, home: Home, schedule: Schedule) -> Store | None:
    """What the device has of a node's store while a loop that writes it runs; None if it must have all of it."""
    loops = {loop for place in schedule.places[node] for loop in place[: place.index(home)]}
    around = {family: max(schedule.blocks.get(n, 0) for f, n in loops if f is family) for family, _ in loops}
    readers = [d for d in schedule.dependences if d.producer is node and is_within(d.consumer, home, schedule)]
    # A reader that is inside of the loop and also outside of it would read of both.
    if any(home not in place for d in readers for place in schedule.places[d.consumer]):
        return None
    # What was computed in another iteration of a loop around is on the host only, where what is inside does not read.
    own = around.keys() & {d.origin for d in store.dims}
    if any(steps_back(d, family, schedule) not in (None, (0, 0)) for d in readers for family in own):
        return None
    # What a loop around folds in is needed again in its next iteration.
    if around.keys() & schedule.folds.get(node, {}).keys():
        return None
    dims: dict[Dim, Keeping] = {}
    for d, kept in store.dims.items():
        if d.origin in around:
            dims[d] = Present(around[d.origin]) if around[d.origin] else Latest()
        elif not isinstance(kept, Steps):
            return None
        elif d.origin is home[0]:
            found = keeping(d, node, readers, schedule, by_block=True)
            if found is None:
                return None
            dims[d] = found
        else:
            dims[d] = kept
    return replace(store, dims=dims)


def is_within(node: Node, loop: Home, schedule: Schedule) -> bool:
    return any(loop in place for place in schedule.places.get(node, ()))


def slices(
    node: Node, readers: Sequence[Dependence], outer: Sequence[Loop], schedule: Schedule, storage: Storage
) -> Slices:
    """What trees inside of some loops read of a store: ``readers`` are their reads of it."""
    found: dict[Dim, Span | Steps] = {}
    loops = {loop.dim: loop.block or 1 for loop in outer}
    for d, kept in storage.stores[node].dims.items():
        if not isinstance(kept, Steps):
            continue
        indices = [r.read.index for r in readers]
        steps = [None if index is None else single_step(Edge(node, index), d, schedule) for index in indices]
        known = [step for step in steps if step is not None]
        if len(known) == len(steps):
            found[d] = Steps(min(known), max(known) - min(known) + 1)
            continue
        if d.origin not in loops:
            continue
        distances = [back for r in readers if (back := steps_back(r, d.origin, schedule)) is not None]
        lows = [low for low, _ in distances]
        highs = [high for _, high in distances]
        if not distances or None in lows or None in highs:
            continue
        low, high = min(s for s in lows if s is not None), max(s for s in highs if s is not None)
        size = loops[d.origin] + high - low
        if size < kept.size:
            found[d] = Span(high, size)
    return found


def offloads(tree: Tree, graph: Graph, storage: Storage) -> bool:
    """Whether there is a loop whose blocks are read from stores in host memory or copied to them."""
    return any(node in storage.stores and storage.stores[node].host for node in _in_blocks((tree,), graph))


def _in_blocks(trees: Sequence[Tree], graph: Graph) -> set[Node]:
    """What loops in blocks of one of its dims read or compute."""
    found: set[Node] = set()
    for loop in (tree for tree in trees if isinstance(tree, Loop)):
        found |= _in_blocks(loop.body, graph)
        if loop.tiled:
            touched = {p for c in computes(loop.body) for p in (c.node, *producers(c.node, graph.cases))}
            found |= {node for node in touched if any(d.origin is loop.dim for d in node.domain)}
    return found


@dataclass(frozen=True)
class Traffic:
    """Between host and device: how often Python starts a part of the program, the bytes that are sent and fetched, and
    the most of them that the device has at the same time."""

    parts: int = 0
    moved: int = 0
    most: int = 0


def traffic(graph: Graph, schedule: Schedule, storage: Storage) -> Traffic:
    """What Python does for stores in host memory."""
    found = Traffic()
    for inside, outer in _parts(schedule.trees, (), graph, storage):
        times = math.prod(len(loop.steps) for loop in outer)
        sent = most = 0
        for node, readers in host_reads(inside, schedule, storage).items():
            cut = slices(node, readers, outer, schedule, storage)
            kept = {d: Steps(0, cut[d].size) if d in cut else kept for d, kept in storage.stores[node].dims.items()}
            size = replace(storage.stores[node], dims=kept).bytes
            moves = any(isinstance(span, Span) for span in cut.values())
            sent += size if moves else 0
            # The slice of a block is there with that of the next one.
            most += (2 if moves else 1) * size
        # What a block has computed is there with what is being fetched of the last one.
        fetched = sum(_block_bytes(storage.stores[node], outer) for node in inside & storage.local.keys())
        parts = times if outer else 0
        found = Traffic(
            found.parts + parts, found.moved + times * (sent + fetched), max(found.most, most + 2 * fetched)
        )
    return found


def _parts(
    trees: Sequence[Tree], outer: tuple[Loop, ...], graph: Graph, storage: Storage
) -> Iterator[tuple[set[Node], tuple[Loop, ...]]]:
    """What is computed in one go inside of the loops that Python runs because of stores in host memory."""
    inside: set[Node] = set()
    for tree in trees:
        if isinstance(tree, Loop) and offloads(tree, graph, storage):
            yield from _parts(tree.body, (*outer, tree), graph, storage)
        else:
            inside |= {c.node for c in computes((tree,))}
    if inside:
        yield inside, outer


def _block_bytes(store: Store, outer: Sequence[Loop]) -> int:
    """What a store gets of a block that some loops are at."""
    at_once = {loop.dim: loop.block or 1 for loop in outer}
    kept = {d: Steps(0, at_once[d.origin]) if d.origin in at_once else kept for d, kept in store.dims.items()}
    return replace(store, dims=kept).bytes


def host_reads(inside: Set[Node], schedule: Schedule, storage: Storage) -> dict[Node, list[Dependence]]:
    """The stores in host memory that some nodes read slices of, with these reads."""
    found: dict[Node, list[Dependence]] = {}
    for d in schedule.dependences:
        node = d.producer
        if d.consumer not in inside or node not in storage.stores or not storage.stores[node].host:
            continue
        if node not in storage.homes or not is_within(d.consumer, storage.homes[node], schedule):
            found.setdefault(node, []).append(d)
    return found
