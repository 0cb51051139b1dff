"""A run on a device: the stores, and the parts that change them, one after the other.

The last part of a loop's body and the first one of the next iteration are one XLA program, if nothing is handed out in
between: with an environment in Python, every step starts one program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tempo.backends.jax import apart
from tempo.backends.jax.host_stores import HostStores
from tempo.backends.jax.joints import Joint
from tempo.backends.jax.padded import jx
from tempo.backends.jax.parts import CompiledPart, keyed
from tempo.backends.jax.prepared import grown, zeros
from tempo.backends.jax.state import State
from tempo.given import Record, call_host, resolve
from tempo.graph.node import Node
from tempo.graph.structural import HOST, INPUT
from tempo.schedule.looptree import BlockSteps, Compute, Loop, Tree
from tempo.schedule.offload import Hosted
from tempo.schedule.script import Chunks, Item, Part
from tempo.schedule.storage import Latest, Present, Store
from tempo.symbolic import Bound, Dim

if TYPE_CHECKING:
    from tempo.backends.jax.machine import JaxMachine

Array = Any
At = Mapping[Dim, int | BlockSteps]


class JaxWorker:
    """The stores of one run."""

    def __init__(self, machine: JaxMachine, inputs: Mapping[str, Array], kept: Mapping[Any, Any] | None) -> None:
        self.machine = machine
        self.parts = machine.parts
        self.lowering = machine.lowering
        hosted = {key.node: value for key, value in (kept or {}).items() if isinstance(key, Hosted)}
        self.host = HostStores(machine, inputs, hosted)
        self.arguments: tuple[Node, tuple[Array, ...]] | None = None
        """What the part right before a host call has computed for it."""
        self.deferred: tuple[Joint, At] | None = None
        """The last part of an iteration, if it is still to be computed, together with the first one of the next."""
        with machine.settings():
            self.state: State = self.parts.by_key(self.parts.load(machine.put(inputs)))
            counts = {bound: self.parts.initial(bound, None) for bound in self.lowering.schedule.open}
            for key, value in {**counts, **(kept or {})}.items():
                if not isinstance(key, Hosted):
                    self.state[key] = jax.device_put(value, machine.device)

    def part(self, item: Part, at: At) -> list[tuple[str, Record]]:
        with self.machine.settings():
            if self.deferred is not None:  # the last part of the iteration before, and this one is the first
                self.run_both(*self.deferred, at)
                return []
            joint = self.parts.joint(item)
            if joint is not None and not joint.is_last(at):
                self.deferred = joint, at
                return []
            compiled = self.parts[item]
            return list(self.records(compiled, compiled.emits, self.run(item, compiled, at, None), at))

    def catch_up(self) -> None:
        """Compute what is still to be computed, without what comes next."""
        if self.deferred is not None:
            joint, at = self.deferred
            self.deferred = None
            with self.machine.settings():
                self.run(joint.last, self.parts[joint.last], at, None)

    def run_both(self, joint: Joint, there: At, at: At) -> None:
        """Run the last part of a loop's body, and the first one of the next iteration."""
        self.deferred = None
        kept, changed = self.parts.given(joint, self.state, zeros, grown)
        values = [kept[key] for key in joint.kept], [changed[key] for key in joint.changed]
        steps = np.array([_numbers(there), _numbers(at)], np.int32)
        written, arguments = joint.function(*values, steps)
        self.state.update(zip(joint.writes, written, strict=True))
        for key in joint.over:
            self.state.pop(key, None)
        self.hand_on(joint.first, arguments)

    def hand_on(self, item: Item, arguments: tuple[Array, ...]) -> None:
        """Note what a part has computed for the call after it."""
        call = self.parts.calls.after.get(item)
        self.arguments = None if call is None else (call.node, arguments)

    def chunk(self, item: Chunks, at: At, steps: range) -> list[tuple[str, Record]]:
        compiled = self.parts[item]
        with self.machine.settings():
            emitted = self.run(item, compiled, at, (np.int32(steps[0]), np.int32(len(steps))))
            # How long a chunk takes decides about the next one.
            written = [self.state[key] for key in compiled.writes if key in self.state]
            jax.block_until_ready(written)  # type: ignore[no-untyped-call]
            made = [tree.cut(steps) for tree in compiled.emits if isinstance(tree, Loop)]
            return list(self.records(compiled, made, emitted, at))

    def run(self, item: Part | Chunks, compiled: CompiledPart, at: At, chunk: Any) -> State:
        """Run an XLA program; what it emits."""
        state = self.state
        kept, changed = self.parts.given(compiled, state, zeros, grown)
        steps = dict(zip(at, map(np.int32, _numbers(at)), strict=True))
        cuts = [self.host.cut(node, cut, at) for node, cut in compiled.slices.items()]
        kept |= {cut.node: self.host.on_device(cut) for cut in cuts}
        firsts = keyed({cut.node: keyed(cut.firsts) for cut in cuts})
        written, emitted, blocks, arguments = compiled.function(
            keyed(kept), keyed(changed), keyed(steps), chunk, firsts
        )
        state.update(self.parts.by_key(written))
        self.hand_on(item, arguments)
        for key in self.parts.over[item]:
            state.pop(key, None)
        # While the device computes, it is sent what it needs next, and what it has computed before is fetched.
        self.host.prefetch(compiled.slices, _following(item, at))
        self.host.fetch()
        for node in compiled.offloaded:
            self.host.write(node, at, blocks[node.number])
        return self.parts.by_key(emitted)

    def records(
        self, compiled: CompiledPart, trees: Sequence[Tree], emitted: State, at: At
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

    def last_step(self, loop: Loop) -> int:
        self.catch_up()
        return self.numbers()[loop.dim.bound] + self.lowering.schedule.beyond[loop.number]

    def call(self, node: Node, at: At) -> None:
        """A host call, for all points of its batch."""
        call = self.parts.calls[node]
        own = {d: self.lowering.schedule.own_step(node, d, at[d.origin]) for d in node.domain if d.origin in at}
        sequence = node.attributes["sequence"]
        point = tuple([int(own[d]) for d in sequence])
        numbers = self.lowering.numbers if call.sizes is not None else self.numbers()
        if any(p >= d.bound.evaluate(numbers) for d, p in zip(sequence, point, strict=True)):
            return  # a loop goes on after its dim has stopped
        given, self.arguments = self.arguments, None
        if given is not None and given[0] is node:
            arrays = given[1]
        else:
            with self.machine.settings():
                arrays = call.computed(self.state, at)
        if call.sizes is not None:
            results = call_host(node, [np.asarray(array) for array in arrays], call.sizes, point, numbers)
        else:
            arguments = call.cut(arrays, {**numbers, **own})
            results = call_host(node, arguments, call.sizes_of(numbers), point, numbers)
        self.state[node] = results if self.parts.calls.is_passed_on[node] else self.put(results)

    def put(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        with self.machine.settings():
            found: tuple[Array, ...] = jax.device_put(arrays, self.machine.device)
            return found

    def outputs(self) -> dict[str, Array]:
        with self.machine.settings():
            edges, direct = self.lowering.graph.outputs, self.parts.direct
            values = self.parts.finally_read(self.state, zeros)
            values |= {node: self.host.on_device(self.host.part(store)) for node, store in self.parts.shown.items()}
            outputs, made = self.parts.finish(keyed(values))
            outputs |= {
                name: self.host.output(edges[name].node, self.lowering.schedule.results[name]) for name in direct
            }
            return self.machine.cut({name: outputs[name] for name in edges}, made)

    def kept(self, needed: set[Node]) -> dict[Any, Any]:
        self.catch_up()
        with self.machine.settings():  # without them, what is made here has 32 bits
            on_device = {
                key: value if isinstance(key, Bound) or key.op is HOST else self.whole(key, value)
                for key, value in self.state.items()
                if isinstance(key, Bound) or (key in needed and key.op is not INPUT)
            }
            # What is read at no point at all has no store.
            literals = self.lowering.literals & needed & self.parts.stores.keys()
            on_device |= {node: self.lowering.literal(node) for node in literals}
        return {**on_device, **{Hosted(node): array for node, array in self.host.kept(needed).items()}}

    def whole(self, node: Node, array: Array) -> Array:
        """A store as long as it gets, as all backends know it."""
        store = self.parts.local.get(node) or self.parts.stores[node]
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


def _numbers(at: At) -> list[int]:
    """The steps, or first steps of blocks, that loops are at."""
    return [here.start if isinstance(here, BlockSteps) else here for here in at.values()]


def _handed_out(trees: Sequence[Tree], emissions: Mapping[Node, _Emission], at: At) -> Iterator[tuple[str, Record]]:
    for tree in trees:
        if isinstance(tree, Compute):
            yield from emissions[tree.node].records(at)
        else:
            for step in tree.steps:
                here = tree.at(step, at.get(tree.dim))
                yield from _handed_out(tree.body, emissions, {**at, tree.dim: here})


def _following(item: Part | Chunks, at: At) -> At | None:
    """Where the innermost loop around a part is next, if it goes on."""
    if not item.outer:
        return None
    loop, around = item.outer[-1], {l.dim: at[l.dim] for l in item.outer[:-1]}
    here = at[loop.dim]
    step = here.start if isinstance(here, BlockSteps) else here
    if loop.inner:  # whose steps are counted from where the block around it begins, which is not known here
        return None
    after = loop.steps.index(step) + 1
    if after == len(loop.steps):
        return None
    return {**around, loop.dim: loop.at(loop.steps[after])}
