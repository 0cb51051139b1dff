"""The parts of a script as XLA programs.

Every part that is done in one go is an XLA program, given the stores it reads and giving back the stores it writes, in
place. It also gives back what it emits: an emitted node gets a store with room for all of its values in that part, out
of which records are made.

Of stores in host memory a part is given slices, and what it computes for them it gives back. What it computes for a
host call right after it, it gives back as well.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax import apart
from tempo.backends.jax.host_calls import HostCalls
from tempo.backends.jax.joints import Joint, join
from tempo.backends.jax.lowering import Lowering
from tempo.backends.jax.padded import outline
from tempo.backends.jax.prepared import Prepared
from tempo.backends.jax.repetition import Repetition
from tempo.backends.jax.state import State
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, INPUT
from tempo.graph.traversal import producers
from tempo.schedule.looptree import BlockSteps, Compute, Loop, Tree, computes, only
from tempo.schedule.offload import Slices, host_reads, is_within, slices
from tempo.schedule.script import Call, Chunks, Each, Item, Part, Script
from tempo.schedule.storage import Keeping, Latest, Steps, Storage, Store, Window, single_step
from tempo.symbolic import Bound, Dim

Array = Any
At = Mapping[Dim, int | BlockSteps]
Homes = Mapping[Node, set[Item]]
Fill = Callable[[State], State]
"""Makes what a state lacks out of outlines of it."""


@dataclass(frozen=True)
class CompiledPart:
    """An XLA program for a part of a script: what it reads and writes, and where it puts what it emits."""

    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    emits: tuple[Tree, ...]
    """The trees with nothing in them but emitted nodes."""
    gathered: Mapping[Node, Store]
    rooms: Mapping[Node, tuple[int, ...]]
    """The shapes of the stores that change."""
    slices: Mapping[Node, Slices]
    """What it reads of stores in host memory."""
    offloaded: tuple[Node, ...]
    """What it computes for stores in host memory."""
    execute: Callable[[State, Any, Any, Any], tuple[State, State, tuple[Array, ...]]]
    """Makes a state what it is afterwards, while tracing; what is emitted, offloaded, and given to a host call."""
    function: Prepared


class Parts:
    """The XLA programs of a script, each compiled when it first runs."""

    def __init__(self, lowering: Lowering, script: Script) -> None:
        self.lowering = lowering
        self.graph = lowering.graph
        self.stores = lowering.storage.stores
        self.local = lowering.storage.local
        self.emitted = {edge.node: name for name, edge in self.graph.emits.items()}
        self.keys = {_key(key): key for key in (*self.graph.nodes, *lowering.schedule.open)}
        self.compiled: dict[Part | Chunks, CompiledPart] = {}
        self.put_in_stores = jax.jit(lambda inputs: keyed(lowering.load(inputs)))
        self.finish = Prepared(jax.jit(lambda values: self.finished(self.by_key(values))))
        self.readers = _readers(self.graph)
        for node, home in lowering.storage.homes.items():
            # Others are given what is in host memory.
            self.readers[node] = {r for r in self.readers.get(node, ()) if is_within(r, home, lowering.schedule)}
        self.script = script
        self.joints: dict[Part | Chunks, Joint | None] = {}
        self.homes = homes(script.leaves())
        self.calls = HostCalls(lowering, script, self.readers, self.homes)
        self.results = {edge.node for edge in self.graph.outputs.values()}
        # Outputs that are handed out of host memory as they are.
        self.direct = {
            name
            for name, edge in self.graph.outputs.items()
            if edge.is_here and self.stores[edge.node].host and all(isinstance(size, int) for size in edge.shape)
        }
        self.shown = self._shown()

    def load(self, inputs: Mapping[str, Array]) -> dict[int, Array]:
        """The stores of the inputs. Those that are stored as they are given are not copied."""
        state = {}
        others = dict(inputs)
        for name, node in self.lowering.given.items():
            if self.lowering.is_stored_as_given(node, inputs[name]):
                state[_key(node)] = others.pop(name)
        return {**state, **self.put_in_stores(others)} if others else state

    def by_key(self, values: Mapping[int, Array]) -> State:
        return {self.keys[key]: value for key, value in values.items()}

    def _shown(self) -> dict[Node, Store]:
        """What other outputs read of stores in host memory."""
        edges = [edge for name, edge in self.graph.outputs.items() if name not in self.direct]
        found = {}
        for node in {edge.node for edge in edges if edge.node in self.stores and self.stores[edge.node].host}:
            dims = dict(self.stores[node].dims)
            for d in node.domain:
                steps = [single_step(edge, d, self.lowering.schedule) for edge in edges if edge.node is node]
                known = [step for step in steps if step is not None]
                if isinstance(dims[d], Steps) and len(known) == len(steps):
                    dims[d] = Steps(min(known), max(known) - min(known) + 1)
            found[node] = replace(self.stores[node], dims=dims)
        return found

    def finished(self, state: State) -> tuple[dict[str, Array], dict[str, Array]]:
        """The outputs, and the steps made of dims that stop on data."""
        lowering = copy.copy(self.lowering)
        lowering.storage = Storage({**self.stores, **self.shown})
        outputs = {n: lowering.output(n, e, state) for n, e in self.graph.outputs.items() if n not in self.direct}
        return outputs, lowering.made(state)

    def finally_read(self, state: State, fill: Fill) -> State:
        """What outputs read of the stores on the device."""
        read = {edge.node for name, edge in self.graph.outputs.items() if name not in self.direct}
        # A node of which only slices of no length are read has no store.
        keys = {*(read & self.stores.keys()), *self.lowering.schedule.open} - self.shown.keys()
        missing = fill({key: self.initial(key, None) for key in keys - state.keys()})
        return {key: missing[key] if key in missing else state[key] for key in keys}

    def __getitem__(self, item: Part | Chunks) -> CompiledPart:
        if item not in self.compiled:
            self.compiled[item] = self.compile(item, self.homes)
        return self.compiled[item]

    def initial(self, key: Node | Bound, shape: tuple[int, ...] | None) -> Any:
        """What a state has at first: a number, or the outlines of zeros."""
        if isinstance(key, Bound):
            return np.int32(self.lowering.limits[key])
        if key.op is HOST:  # not called yet: read for steps that are only computed with others, and used nowhere
            batch = [d.bound.evaluate(self.lowering.limits) for d in key.attributes["batch"]]
            return tuple(outline((*batch, *out.shape), out.dtype) for out in key.attributes["out"])
        store = self.local.get(key) or self.stores[key]
        if apart.unrolled(store):
            return apart.count(store) * (outline(apart.part_of(store).shape, key.dtype),)
        return outline(shape or store.shape, key.dtype)

    def given(self, part: CompiledPart | Joint, state: State, fill: Fill, fit: Any) -> tuple[State, State]:
        """What a part is given, out of a state."""
        return given(part, state, self.initial, fill, fit)

    @functools.cached_property
    def over(self) -> dict[Item, tuple[Any, ...]]:
        """What is needed no more after each part of the script: what it reads or writes, but nothing after it."""
        found: dict[Item, tuple[Any, ...]] = {}
        later = {*self.results, *self.lowering.schedule.open} - self.local.keys()
        self._over(self.script.items, later, found)
        return found

    def _over(self, items: Sequence[Item], later: set[Any], found: dict[Item, tuple[Any, ...]]) -> set[Any]:
        """Find ``over`` for some items, if what comes after them reads ``later``; all that is read from them on."""
        for item in reversed(items):
            if isinstance(item, Each):
                # The next iteration reads what this one does.
                inside = self._reads(item.body)
                self._over(item.body, later | inside, found)
                later = later | inside
            else:
                reads = self._reads((item,))
                touched = reads if isinstance(item, Call) else {*reads, *self[item].writes}
                # Of chunks there may be more.
                again = reads if isinstance(item, Chunks) else set()
                found[item] = tuple(key for key in touched if key not in later | again)
                later = later | reads
        return later

    def _reads(self, items: Sequence[Item]) -> set[Any]:
        found: set[Any] = set()
        for item in items:
            if isinstance(item, Each):
                found |= self._reads(item.body)
            else:
                found |= {*producers(item.node, self.graph.cases)} if isinstance(item, Call) else {*self[item].reads}
        return found

    def compile(self, item: Part | Chunks, homes: Homes) -> CompiledPart:
        """A part, among others that compute what ``homes`` says."""
        literals = self.lowering.literals
        inside = [n for n in dict.fromkeys(c.node for c in computes(item.trees)) if n.op is not INPUT]
        inside = [n for n in inside if n not in literals]
        emitted = [n for n in inside if n in self.emitted]
        computed = set(inside)
        others = [n for n in inside if n not in self.emitted]
        gathered = {node: self.room(node, item) for node in emitted}
        lowering = copy.copy(self.lowering)
        lowering.storage = Storage({**self.stores, **gathered, **self.local})
        carried = [n for n in others if lowering.is_carried(n) or self.is_shared(n, homes)]
        call = self.calls.after.get(item)
        readers = inside if call is None else [*inside, call.node]
        read = [p for n in readers for p in producers(n, self.graph.cases)]
        present = computed | literals
        outside = [p for p in read if p.op is HOST or (p not in present and p in self.stores)]
        stops = [self.lowering.stopping[n].bound for n in inside if n in self.lowering.stopping]
        cuts = {
            node: slices(node, found, item.outer, lowering.schedule, self.lowering.storage)
            for node, found in host_reads(computed, lowering.schedule, self.lowering.storage).items()
        }
        offloaded = tuple(n for n in inside if n in self.local)
        # Inputs on the host that are in no slice are only read where nobody needs it.
        on_device = [n for n in (*outside, *carried) if n not in cuts and not (n.op is INPUT and self.stores[n].host)]
        reads = (*dict.fromkeys(on_device), *self.lowering.schedule.open)
        # What only lives for an iteration of a loop is not there after it.
        after = set() if isinstance(item, Chunks) else set(self._after(item.trees))
        final = [n for n in others if n in carried or (n in after and not self.is_local(n, item, homes))]
        writes = (*final, *stops)
        # The innermost loop over a dim says whether that is at a step or at a block of them; which step, if it has one.
        blocks = {loop.dim: loop.block for loop in item.outer}
        known = _known({loop.dim: loop for loop in item.outer})

        def execute(state: State, at: Any, chunk: Any, firsts: Any) -> tuple[State, State, tuple[Array, ...]]:
            given = {n: sliced(self.stores[n], cut, firsts[n.number]) for n, cut in cuts.items()}
            inner = copy.copy(lowering)
            inner.storage = Storage({**lowering.storage.stores, **given})
            here = {d: BlockSteps(at[d.number], n) if n else at[d.number] for d, n in blocks.items()} | known
            if isinstance(item, Chunks):
                first, count = chunk
                Repetition(inner, item.loop, state, here, first).run(count)
            else:
                for tree in item.trees:
                    inner.execute(tree, state, here)
            values = {n: _with_axes(inner.at_step(n, state, here), self.stores[n], here) for n in offloaded}
            emits = {node: state[node] for node in emitted}
            return emits, values, call.arrays(state, here) if call is not None else ()

        @functools.partial(jax.jit, donate_argnums=1)
        def function(kept: Any, changed: Any, at: Any, chunk: Any, firsts: Any) -> Any:
            state = self.by_key({**kept, **changed})
            emits, values, arguments = execute(state, at, chunk, firsts)
            return keyed({key: state[key] for key in writes}), keyed(emits), keyed(values), arguments

        loops = [*item.outer, *(tree for tree in item.trees if isinstance(tree, Loop))]
        whole = [node for node in carried if not apart.unrolled(self.stores[node])]
        computed_in = [(loop, {c.node for c in computes(loop.body)}) for loop in loops if loop.grows]
        rooms = {node: lowering.room(node, [loop for loop, nodes in computed_in if node in nodes]) for node in whole}
        emits = tuple(only(emitted, item.trees))
        return CompiledPart(reads, writes, emits, gathered, rooms, cuts, offloaded, execute, Prepared(function))

    def _after(self, trees: Sequence[Tree]) -> Iterator[Node]:
        """The nodes that are in no loop."""
        for tree in trees:
            if isinstance(tree, Compute):
                yield tree.node
            elif self.lowering.schedule.is_inline(tree):
                yield from self._after(tree.body)

    def joint(self, last: Part) -> Joint | None:
        """The last part of a loop's body with the first one, if they can be one program."""
        if last not in self.joints:
            self.joints[last] = join(self, last)
        return self.joints[last]

    def is_shared(self, node: Node, homes: Homes) -> bool:
        """Whether several parts write arrays of a node's store, which has one for each step of an unrolled dim."""
        return bool(apart.unrolled(self.stores[node])) and len(homes[node]) > 1

    def is_local(self, node: Node, item: Item, homes: Homes) -> bool:
        """Whether a node's values are read within a part only. (A reader may be computed in several.)"""
        return (node not in self.results or node in self.local) and all(
            homes.get(reader, {item}) == {item} for reader in self.readers.get(node, ())
        )

    def room(self, node: Node, item: Part | Chunks) -> Store:
        """A place for all values of an emitted node in a part."""
        kept: dict[Dim, Keeping] = {}
        outer = {loop.dim: loop for loop in item.outer}
        for d in node.domain:
            start, stop = self.lowering.schedule.steps(node, d)
            kept[d] = Steps(start, stop - start)
            if isinstance(item, Chunks) and d.origin is item.loop.dim:
                kept[d] = Window(item.most * (item.loop.block or 1))
            elif d.origin in outer:
                kept[d] = Window(outer[d.origin].block) if outer[d.origin].block else Latest()
        return Store(node, kept, self.stores[node].value)


def homes(items: Iterable[Item]) -> Homes:
    """In which parts every node is computed."""
    found: dict[Node, set[Item]] = {}
    for item in items:
        for statement in computes(item.trees):
            found.setdefault(statement.node, set()).add(item)
    return found


def given(part: Any, state: State, initial: Callable[[Any, Any], Any], fill: Fill, fit: Any) -> tuple[State, State]:
    """What a part is given, out of a state: stores that it reads, and those that it writes into, which are no longer
    there, with room for what it adds. ``initial`` has what is there before anything is computed."""
    missing = [key for key in part.reads if key not in state]
    if missing:
        state |= fill({key: initial(key, part.rooms.get(key)) for key in missing})
    for key in part.reads:
        if key in part.rooms and state[key].shape != part.rooms[key]:
            state[key] = fit(state[key], part.rooms[key])
    kept = {key: state[key] for key in part.reads if key not in part.writes}
    return kept, {key: state.pop(key) for key in part.reads if key in part.writes}


def _known(innermost: Mapping[Dim, Loop]) -> dict[Dim, int]:
    """The steps of dims whose loops have one step only, which is known while compiling."""
    return {
        d: loop.start for d, loop in innermost.items() if loop.stop - loop.start == 1 and not (loop.inner or loop.block)
    }


def sliced(store: Store, cut: Slices, firsts: Mapping[int, Any]) -> Store:
    """What a part has of a store in host memory, from steps on that are known while it runs."""
    kept = {d: Steps(firsts[d.number], cut[d].size) if d in cut else kept for d, kept in store.dims.items()}
    return replace(store, dims=kept)


def _with_axes(block: Array, store: Store, at: At) -> Array:
    """What loops have computed for a store, with an axis for each of the store's, also where it is one step."""
    dims = [d for d, kept in store.dims.items() if not isinstance(kept, Latest)]
    single = [n for n, d in enumerate(dims) if d.origin in at and not isinstance(at[d.origin], BlockSteps)]
    return jnp.expand_dims(block, single)


class Keyed(dict[int, Any]):
    """Values by number. JAX would write the keys of a dict into the program that it compiles, and they are others each
    time the same program is made: it would never be found in the disk cache."""


def _flatten(values: Keyed) -> tuple[list[Any], tuple[int, ...]]:
    keys = tuple(sorted(values))
    return [values[key] for key in keys], keys


jax.tree_util.register_pytree_node(Keyed, _flatten, lambda keys, values: Keyed(zip(keys, values, strict=True)))


def keyed(values: Mapping[Any, Any]) -> Keyed:
    """What belongs to nodes, dims and bounds, by their numbers."""
    return Keyed({_key(key): value for key, value in values.items()})


def _key(key: Any) -> int:
    return -1 - key.number if isinstance(key, Bound) else key.number


def _readers(graph: Graph) -> dict[Node, set[Node]]:
    readers: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        for producer in producers(node, graph.cases):
            readers.setdefault(producer, set()).add(node)
    return readers
