"""A run on a device: the stores, and the XLA programs that change them.

Every part of a script that is done in one go is an XLA program, given the stores it reads and giving back the stores it
writes, in place. It also gives back what it emits: an emitted node gets a store with room for all of its values in that
part, out of which records are made.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax import apart
from tempo.backends.jax.lowering import Lowering, State
from tempo.backends.jax.padded import jx
from tempo.given import Record, call_host, resolve
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, INPUT
from tempo.graph.traversal import producers
from tempo.schedule.looptree import BlockSteps, Compute, Loop, Tree, computes, only
from tempo.schedule.script import Chunks, Item, Part, Script
from tempo.schedule.storage import Keeping, Latest, Present, Steps, Storage, Store, Window
from tempo.symbolic import Bound, Dim

if TYPE_CHECKING:
    from tempo.backends.jax.machine import JaxMachine

Array = Any
At = Mapping[Dim, int | BlockSteps]


@dataclass(frozen=True)
class _Compiled:
    """An XLA program for a part of a script: what it reads and writes, and where it puts what it emits."""

    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    emits: tuple[Tree, ...]
    """The trees with nothing in them but emitted nodes."""
    gathered: Mapping[Node, Store]
    rooms: Mapping[Node, tuple[int, ...]]
    """The shapes of the stores that change."""
    function: Any


class Parts:
    """The XLA programs of a script, each compiled when it first runs."""

    def __init__(self, lowering: Lowering, script: Script) -> None:
        self.lowering = lowering
        self.graph = lowering.graph
        self.stores = lowering.storage.stores
        self.emitted = {edge.node: name for name, edge in self.graph.emits.items()}
        self.keys = {_key(key): key for key in (*self.graph.nodes, *lowering.schedule.open)}
        self.compiled: dict[Part | Chunks, _Compiled] = {}
        self.load = jax.jit(lambda inputs: keyed(lowering.load(inputs)))
        self.finish = jax.jit(self._finish)
        self.readers = _readers(self.graph)
        self.homes: dict[Node, set[Item]] = {}
        for item in script.leaves():
            for statement in computes(item.trees):
                self.homes.setdefault(statement.node, set()).add(item)
        self.results = {edge.node for edge in self.graph.outputs.values()}

    def by_key(self, values: Mapping[int, Array]) -> State:
        return {self.keys[key]: value for key, value in values.items()}

    def _finish(self, values: Mapping[int, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        state = self.by_key(values)
        return self.lowering.outputs(state), self.lowering.made(state)

    def __getitem__(self, item: Part | Chunks) -> _Compiled:
        if item not in self.compiled:
            self.compiled[item] = self.compile(item)
        return self.compiled[item]

    def compile(self, item: Part | Chunks) -> _Compiled:
        inside = [n for n in dict.fromkeys(c.node for c in computes(item.trees)) if n.op is not INPUT]
        emitted = [n for n in inside if n in self.emitted]
        computed = set(inside)
        others = [n for n in inside if n not in self.emitted]
        carried = [n for n in others if self.lowering.is_carried(n) or self.is_shared(n)]
        read = [p for n in inside for p in producers(n, self.graph.cases)]
        outside = [p for p in read if p.op is HOST or (p not in computed and p in self.stores)]
        stops = [self.lowering.stopping[n].bound for n in inside if n in self.lowering.stopping]
        reads = (*dict.fromkeys([*outside, *carried]), *self.lowering.schedule.open)
        # What only lives for an iteration of a loop is not there after it.
        after = set() if isinstance(item, Chunks) else set(_after(item.trees))
        final = [n for n in others if n in carried or (n in after and not self.is_local(n, item))]
        writes = (*final, *stops)
        gathered = {node: self.room(node, item) for node in emitted}
        lowering = copy.copy(self.lowering)
        lowering.storage = Storage({**self.stores, **gathered})
        # The innermost loop over a dim says whether that is at a step or at a block of them; which step, if it has one.
        blocks = {loop.dim: loop.block for loop in item.outer}
        known = _known({loop.dim: loop for loop in item.outer})

        @functools.partial(jax.jit, donate_argnums=1)
        def function(kept: Any, changed: Any, at: Any, chunk: Any) -> Any:
            state = self.by_key({**kept, **changed})
            here = {d: BlockSteps(at[d.number], n) if n else at[d.number] for d, n in blocks.items()} | known
            if isinstance(item, Chunks):
                lowering.iterations(item.loop, state, here, *chunk)
            else:
                for tree in item.trees:
                    lowering.execute(tree, state, here)
            return keyed({key: state[key] for key in writes}), keyed({node: state[node] for node in emitted})

        loops = [*item.outer, *(tree for tree in item.trees if isinstance(tree, Loop))]
        whole = [node for node in carried if not apart.unrolled(self.stores[node])]
        rooms = {node: self.lowering.room(node, loops) for node in whole}
        return _Compiled(reads, writes, tuple(only(emitted, item.trees)), gathered, rooms, function)

    def is_shared(self, node: Node) -> bool:
        """Whether several parts write arrays of a node's store, which has one for each step of an unrolled dim."""
        return bool(apart.unrolled(self.stores[node])) and len(self.homes[node]) > 1

    def is_local(self, node: Node, item: Item) -> bool:
        """Whether a node's values are read within a part only. (A reader may be computed in several.)"""
        return node not in self.results and all(
            self.homes.get(reader, {item}) == {item} for reader in self.readers.get(node, ())
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


class JaxWorker:
    """The stores of one run."""

    def __init__(self, machine: JaxMachine, inputs: Mapping[str, Array], kept: Mapping[Any, Any] | None) -> None:
        self.machine = machine
        self.parts = machine.parts
        self.lowering = machine.lowering
        with machine.settings():
            self.state: State = self.parts.by_key(self.parts.load(machine.put(inputs)))
            for key, value in (kept or {}).items():
                self.state[key] = jax.device_put(value, machine.device)

    def part(self, item: Part, at: At) -> list[tuple[str, Record]]:
        compiled = self.parts[item]
        with self.machine.settings():
            return list(self.records(compiled, compiled.emits, self.run(compiled, at, None), at))

    def chunk(self, item: Chunks, at: At, steps: range) -> list[tuple[str, Record]]:
        compiled = self.parts[item]
        with self.machine.settings():
            emitted = self.run(compiled, at, (np.int32(steps[0]), np.int32(len(steps))))
            # How long a chunk takes decides about the next one.
            for key in compiled.writes:
                jax.block_until_ready(self.state[key])  # type: ignore[no-untyped-call]
            made = [tree.cut(steps) for tree in compiled.emits if isinstance(tree, Loop)]
            return list(self.records(compiled, made, emitted, at))

    def run(self, compiled: _Compiled, at: At, chunk: Any) -> State:
        """Run an XLA program; what it emits."""
        state = self.state
        for key in compiled.reads:
            if key not in state:
                state[key] = self.initial(key, compiled.rooms.get(key))
            elif key in compiled.rooms:
                state[key] = jx.fit(state[key], compiled.rooms[key])
        kept = {key: state[key] for key in compiled.reads if key not in compiled.writes}
        changed = {key: state[key] for key in compiled.reads if key in compiled.writes}
        steps = {d: np.int32(here.start if isinstance(here, BlockSteps) else here) for d, here in at.items()}
        written, emitted = compiled.function(keyed(kept), keyed(changed), keyed(steps), chunk)
        state.update(self.parts.by_key(written))
        return self.parts.by_key(emitted)

    def initial(self, key: Node | Bound, shape: tuple[int, ...] | None = None) -> Array:
        if isinstance(key, Bound):
            return jnp.asarray(self.lowering.limits[key], jnp.int32, device=self.machine.device)
        store = self.parts.stores[key]
        if apart.unrolled(store):
            return apart.zeros(store, device=self.machine.device)
        return jnp.zeros(shape or store.shape, key.dtype, device=self.machine.device)

    def records(
        self, compiled: _Compiled, trees: Sequence[Tree], emitted: State, at: At
    ) -> Iterator[tuple[str, Record]]:
        """What was emitted, in the order in which the program came to it."""
        if trees:
            values = {node: np.asarray(array) for node, array in emitted.items()}
            emissions = {node: _Emission(self, compiled.gathered[node], values[node]) for node in values}
            yield from _handed_out(trees, emissions, at)

    def numbers(self) -> dict[Any, int]:
        """Bounds, of dims that stop on data as far as they are known."""
        made = self.lowering.bounds(self.state).made
        return {**self.lowering.numbers, **{bound: int(number) for bound, number in made.items()}}

    def last_step(self, stop: Node) -> int:
        return self.numbers()[self.lowering.stopping[stop].bound] + self.lowering.schedule.beyond[stop]

    def call(self, node: Node, at: At) -> None:
        """A host call, for all points of its batch."""
        with self.machine.settings():
            block = self.lowering.block(node, self.state, at)
            batch = node.attributes["batch"]
            numbers = self.numbers()
            point = tuple(int(block.at[d]) for d in node.attributes["sequence"])
            if any(p >= d.bound.evaluate(numbers) for d, p in zip(node.attributes["sequence"], point, strict=True)):
                return  # a loop goes on after its dim has stopped
            sizes = tuple(d.bound.evaluate(numbers) for d in batch)
            arguments = []
            for edge in node.edges:
                value = self.lowering.read(edge, self.state, block)
                # The batch dims in the order in which they were declared for the call.
                # (A dim of one step may have no axis: it is then the same for all of them.)
                order = [value.dims.index(d) for d in batch if d in value.dims]
                rest = range(len(order), value.array.ndim)
                whole = np.asarray(jnp.transpose(value.array, (*order, *rest)))
                here = {**numbers, **{d: int(step) for d, step in block.at.items()}}
                parts = [n for d, n in zip(batch, sizes, strict=True) if d in value.dims]
                inner = tuple(slice(0, n) for n in (*parts, *resolve(edge.shape, here)))
                argument = np.asarray(whole[inner])
                for axis, d in enumerate(d for d in batch if d in edge.domain):
                    if d not in value.dims:
                        argument = np.repeat(np.expand_dims(argument, axis), d.bound.evaluate(numbers), axis)
                arguments.append(argument)
            results = call_host(node, arguments, sizes, point, numbers)
            self.state[node] = tuple(map(self.machine.on_device, results))

    def outputs(self) -> dict[str, Array]:
        with self.machine.settings():
            nodes = {edge.node for edge in self.lowering.graph.outputs.values()}
            # A node of which only slices of no length are read has no store.
            needed = {*(node for node in nodes if node in self.parts.stores), *self.lowering.schedule.open}
            for key in needed:
                if key not in self.state:
                    self.state[key] = self.initial(key)
            outputs, made = self.parts.finish(keyed({key: self.state[key] for key in needed}))
            return self.machine.cut(dict(outputs), made)

    def kept(self, needed: set[Node]) -> dict[Any, Any]:
        return {
            key: value if isinstance(key, Bound) or key.op is HOST else self.whole(key, value)
            for key, value in self.state.items()
            if isinstance(key, Bound) or (key in needed and key.op is not INPUT)
        }

    def whole(self, node: Node, array: Array) -> Array:
        """A store as long as it gets, as all backends know it."""
        store = self.parts.stores[node]
        partial = apart.unrolled(store) or any(isinstance(k, Present) for k in store.dims.values())
        return array if partial else jx.fit(array, store.shape)


class _Emission:
    """The values that a part has emitted through one node."""

    def __init__(self, worker: JaxWorker, store: Store, values: np.ndarray[Any, Any]) -> None:
        self.node = store.node
        self.name = worker.parts.emitted[self.node]
        self.values = values
        self.numbers = worker.numbers()
        schedule = worker.lowering.schedule
        # Per dim: the loops' dim, how far its steps are from the loops', how many there are.
        self.dims = [
            (d, d.origin, schedule.own_step(self.node, d, 0), d.bound.evaluate(self.numbers)) for d in self.node.domain
        ]
        self.slots = [(n, kept.slot) for n, kept in enumerate(store.dims.values()) if not isinstance(kept, Latest)]
        self.whole = all(isinstance(size, int) for size in self.node.shape)

    def records(self, at: At) -> Iterator[tuple[str, Record]]:
        """The records of the point that the loops are at: one for every step of the dims that are computed at once."""
        choices = []
        for _, origin, offset, count in self.dims:
            here = at.get(origin)
            # A piece of a loop may reach past the steps of a node.
            if here is None:
                choices.append(range(count))
            elif isinstance(here, BlockSteps):
                first = here.start + offset
                choices.append(range(max(first, 0), min(first + here.length, count)))
            else:
                choices.append(range(max(here + offset, 0), min(here + offset + 1, count)))
        for point in itertools.product(*choices):
            value = self.values[tuple([slot(point[n]) for n, slot in self.slots])]
            if not self.whole:
                known = {**self.numbers, **{d: step for (d, *_), step in zip(self.dims, point, strict=True)}}
                value = value[tuple(slice(0, size) for size in resolve(self.node.shape, known))]
            named = {d.name: step for (d, *_), step in zip(self.dims, point, strict=True)}
            yield self.name, Record(named, np.array(value))


def _handed_out(trees: Sequence[Tree], emissions: Mapping[Node, _Emission], at: At) -> Iterator[tuple[str, Record]]:
    for tree in trees:
        if isinstance(tree, Compute):
            yield from emissions[tree.node].records(at)
        else:
            for step in tree.steps:
                here = tree.at(step, at.get(tree.dim))
                yield from _handed_out(tree.body, emissions, {**at, tree.dim: here})


def _known(innermost: Mapping[Dim, Loop]) -> dict[Dim, int]:
    """The steps of dims whose loops have one step only, which is known while compiling."""
    return {
        d: loop.start for d, loop in innermost.items() if loop.stop - loop.start == 1 and not (loop.inner or loop.block)
    }


def _after(trees: Sequence[Tree]) -> Iterator[Node]:
    """The nodes that are in no loop of several steps."""
    for tree in trees:
        if isinstance(tree, Compute):
            yield tree.node
        elif len(tree.steps) == 1:
            yield from _after(tree.body)


def keyed(values: Mapping[Any, Any]) -> dict[int, Any]:
    """Nodes, dims and bounds by number: JAX sorts the keys of what it is given."""
    return {_key(key): value for key, value in values.items()}


def _key(key: Any) -> int:
    return -1 - key.number if isinstance(key, Bound) else key.number


def _readers(graph: Graph) -> dict[Node, set[Node]]:
    readers: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        for producer in producers(node, graph.cases):
            readers.setdefault(producer, set()).add(node)
    return readers
