"""Loops: ``fori_loop``s and ``while_loop``s that carry the stores which their iterations write, or kernels."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax import apart, rows
from tempo.backends.jax.padded import jx
from tempo.backends.jax.reading import Value
from tempo.backends.jax.small_loops import Found, as_function
from tempo.backends.jax.state import UNSTORED, Computed, Elsewhere, Fresh, Previous, State
from tempo.backends.jax.writing import has_room
from tempo.graph.node import Node, dim_of, dims_of
from tempo.graph.traversal import producers
from tempo.schedule.looptree import BlockSteps, Loop, block_of, computes
from tempo.schedule.skips import shares
from tempo.schedule.storage import Latest, Window
from tempo.symbolic import Dim
from tempo.symbolic.grid import evaluate

if TYPE_CHECKING:
    from tempo.backends.jax.lowering import Lowering

Array = Any
Carry = tuple[list[Any], list[list[Array]]]
"""What an iteration hands on: what is carried of the state, and the values that are remembered beside it."""


class Repetition:
    """Iterations of a loop inside of others that are ``at`` some steps. They begin at the step ``first``, which may be
    known only at run time."""

    def __init__(self, lowering: Lowering, tree: Loop, state: State, at: Mapping[Dim, Any], first: Any) -> None:
        self.lowering = lowering
        self.tree = tree
        self.state = state
        self.at = at
        self.first = first
        self.back = -1 if tree.backwards else 1
        self.stride = self.back * (tree.block or 1)
        self.inside = list(dict.fromkeys(c.node for c in computes(tree.body)))
        stores, iterated = lowering.storage.stores, lowering.iterated
        nodes = [node for node in self.inside if lowering.is_carried(node)]
        # On a GPU, a read ahead of its time would be a kernel of its own.
        found = (iterated.registers(node, tree, self.back, stores, not lowering.parallel) for node in nodes)
        self.remembered = [registers for registers in found if registers is not None]
        self.unstored = {r.node for r in self.remembered if not r.stored}
        # A CPU gains nothing from it.
        self.unroll = iterated.unrolled(tree, stores) if lowering.parallel else 1
        several = [n for n in nodes if self.unroll > 1 and n not in self.unstored]
        self.late = [n for n in several if iterated.is_written_late(n, tree, self.back, stores)]
        """What no iteration reads in a store is put there for several of them at once."""
        self.bounds = [lowering.stopping[node].bound for node in self.inside if node in lowering.stopping]
        self.nodes = nodes
        self.carried = [*(node for node in nodes if node not in self.unstored), *self.bounds]
        # Of stores with an array per step of an unrolled dim, those that this loop changes.
        self.changed: dict[Any, list[int] | None] = {node: self.arrays_changed(node) for node in nodes}

    def run(self, count: Any) -> None:
        """So many iterations; that, too, may be known only at run time."""
        lowering, state = self.lowering, self.state
        count = self.without_the_rest(count)
        make_room(lowering, self.tree, state)
        for node in self.inside:  # what another piece of this loop has folded is not the latest any more
            state.pop(Fresh(node), None)
        for node in self.nodes:
            store = lowering.storage.stores[node]
            if node not in state or not (apart.unrolled(store) or has_room(store, state[node])):
                state[node] = apart.zeros(store)
        for bound in self.bounds:
            state.setdefault(bound, jnp.int32(lowering.limits[bound]))
        steps = [[self.earlier(self.first, n) for n in r.distances] for r in self.remembered]
        before = [
            [lowering.at_step(r.node, state, at) for at in several]
            for r, several in zip(self.remembered, steps, strict=True)
        ]
        others = {Elsewhere(node): self.elsewhere(node) for node in self.nodes if node not in self.unstored}
        around = {key: state.get(key, {}) for key in others}
        state.update({key: {**around[key], **found} for key, found in others.items()})
        made, (arrays, values) = self.iterated(count, (self.taken(state), before))
        state.update(around)
        self.put(state, arrays)
        for registers, kept in zip(self.remembered, values, strict=True):
            if not registers.stored:
                if not self.at:  # what the store had before the loop is read no more
                    del state[registers.node]
                for n, array in reversed(list(enumerate(kept))):
                    at = self.earlier(self.first + self.stride * (made - 1), n)
                    block = lowering.block(registers.node, state, at)
                    lowering.write(registers.node, Value(array, block.dims), state, block)

    def elsewhere(self, node: Node) -> dict[tuple[Dim, int], Array]:
        """What the loop reads of a node's store at other steps of the loops around than it writes, cut out before it
        begins. XLA would copy all of the store in each iteration, where it is written after it was read: of iLQR, whose
        steps read those of the iteration before, 4 KB fifty times."""
        schedule, state, found = self.lowering.schedule, self.state, {}
        stores = self.lowering.storage.stores
        for (d, back), kept in self.lowering.iterated.elsewhere(node, self.tree, self.at, stores).items():
            step = schedule.own_step(node, d, self.at[d.origin]) - back
            slot = step % kept.size if isinstance(kept, Window) else step - kept.start
            axis = [e for e, of in stores[node].dims.items() if not isinstance(of, Latest)].index(d)
            found[d, back] = lax.dynamic_index_in_dim(
                state[node], slot, axis, keepdims=False, allow_negative_indices=False
            )
        return found

    def without_the_rest(self, count: Any) -> Any:
        """How many iterations are left where the dim has stopped before the loop: those behind it are the last ones or,
        backwards, the first."""
        tree = self.tree
        if tree.until is None or tree.until in self.inside:
            return count
        made: Any = self.state.get(tree.dim.bound, self.lowering.limits[tree.dim.bound])
        end = made + self.lowering.schedule.beyond[tree.number]
        if not tree.backwards:
            return jnp.clip(end - self.first, 0, count)
        skipped = jnp.clip(self.first - end + 1, 0, count)
        self.first = self.first - skipped
        return count - skipped

    def iterated(self, count: Any, start: Carry) -> tuple[Any, Carry]:
        """How many iterations were made, and what they hand on."""
        if self.tree.until not in self.inside:
            return count, self.as_kernel(start, count) or self.unrolled(start, count)
        position = self.carried.index(self.tree.dim.bound)
        beyond = self.lowering.schedule.beyond[self.tree.number]

        def goes_on(carry: tuple[Array, Carry]) -> Array:
            k, (arrays, _) = carry
            return (k < count) & (self.first + k < arrays[position] + beyond)

        def iterate(start: Carry) -> tuple[Any, Carry]:
            found: tuple[Any, Carry] = lax.while_loop(
                goes_on, lambda c: (c[0] + 1, self.several(*c, 1)), (jnp.int32(0), start)
            )
            return found

        return self.called(iterate, start)

    def called(self, loop: Callable[[Carry], Found], start: Carry) -> Found:
        """What a loop makes of ``start``. On a CPU it may become one kernel."""
        return loop(start) if self.lowering.parallel else as_function(loop)(start)

    def unrolled(self, start: Carry, count: Any) -> Carry:
        """``count`` iterations, ``unroll`` of them as one."""
        unroll = self.unroll
        rounds = count // unroll
        carry: Carry = self.called(
            lambda start: lax.fori_loop(0, rounds, lambda k, carry: self.several(k * unroll, carry, unroll), start),
            start,
        )
        rest = count - rounds * unroll
        if isinstance(rest, int):
            return self.several(rounds * unroll, carry, rest) if rest else carry
        if unroll > 1:
            carry = lax.fori_loop(rounds * unroll, count, lambda k, carry: self.several(k, carry, 1), carry)
        return carry

    def several(self, k: Any, carry: Carry, number: int) -> Carry:
        """As many iterations as one, from the ``k``-th on."""
        lowering, tree, at = self.lowering, self.tree, self.at
        arrays, before = carry
        written: dict[Node, list[Array]] = {node: [] for node in self.late if number > 1}
        inner: State = {**self.state, UNSTORED: self.unstored.union(written)}
        self.put(inner, arrays)
        for n in range(number):
            here = {**at, tree.dim: tree.at(self.first + self.stride * (k + n), at.get(tree.dim))}
            for registers, values in zip(self.remembered, before, strict=True):
                steps = {d: here[d.origin] for d in registers.node.domain if d.origin in here}
                inner[Previous(registers.node)] = [
                    Computed(array, steps, tree.dim, n * self.back)
                    for n, array in zip(registers.distances, values, strict=True)
                ]
            for t in tree.body:
                lowering.execute(t, inner, here)
            following = self.first + self.stride * (k + n + 1)
            before = [
                [inner[Fresh(r.node)].array, *values][: r.depth]
                + [lowering.at_step(r.node, inner, self.earlier(following, far)) for far in r.far]
                for r, values in zip(self.remembered, before, strict=True)
            ]
            for node, values in written.items():
                values.append(inner[Fresh(node)].array)
        inner[UNSTORED] = self.unstored
        lowest = tree.at(self.first + k if self.back > 0 else self.first - k - (number - 1), at.get(tree.dim))
        for node, values in written.items():
            block = lowering.block(node, inner, {**at, tree.dim: BlockSteps(lowest, number)})
            axis = next(n for n, d in enumerate(block.dims) if d.origin is tree.dim)
            lowering.write(node, Value(jnp.stack(values[:: self.back], axis), block.dims), inner, block)
        return self.taken(inner), before

    def taken(self, held: State) -> list[Any]:
        """What is carried of a state."""
        own = ((held[key], self.changed.get(key)) for key in self.carried)
        return [value if numbers is None else [value[n] for n in numbers] for value, numbers in own]

    def put(self, held: State, values: Sequence[Any]) -> None:
        for key, value in zip(self.carried, values, strict=True):
            numbers = self.changed.get(key)
            held[key] = value if numbers is None else apart.replaced(held[key], numbers, value)

    def earlier(self, step: Any, n: int) -> Mapping[Dim, Any]:
        """Where loops are ``n`` iterations before the one at a step."""
        return {**self.at, self.tree.dim: self.tree.at(step - n * self.stride, self.at.get(self.tree.dim))}

    def arrays_changed(self, node: Node) -> list[int] | None:
        """Which arrays of a node's store the loop may change; None for a store that is one array."""
        store = self.lowering.storage.stores[node]
        if not apart.unrolled(store):
            return None
        own_step, at = self.lowering.schedule.own_step, self.at
        steps = {d: own_step(node, d, at[d.origin]) for d in apart.unrolled(store) if d.origin in at}
        return apart.positions(store, steps)

    def as_kernel(self, start: Carry, count: Any) -> Carry | None:
        """What the loop makes of ``start`` as one kernel; None if it is not for one."""
        lowering, tree = self.lowering, self.tree
        if lowering.kernels is None or any(isinstance(inner, Loop) for inner in tree.body):
            return None
        try:
            self.check_values()
            found: Carry = rows.iterate(lambda k, carry: self.several(k, carry, 1), start, count, lowering.kernels)
        except rows.NotRowsError as reason:
            lowering.notes[id(tree)] = tree, f"of several kernels: {reason}"
            return None
        lowering.notes[id(tree)] = tree, "one kernel"
        return found

    def check_values(self) -> None:
        """Raise if the loop is for no kernel because of what is read in it: to trace a large one for nothing takes
        seconds."""
        lowering, stores = self.lowering, self.lowering.storage.stores
        read = [p for node in self.inside for p in producers(node, lowering.graph.cases) if p in stores]
        if any(math.prod(stores[node].value) > rows.MOST_MATRIX for node in (*self.inside, *read)):
            raise rows.NotRowsError("there is more than fits into registers")
        if any(None in lowering.iterated.distances(node, self.tree, self.back) for node in self.nodes):
            raise rows.NotRowsError("what was written is read again")


def count_of(lowering: Lowering, tree: Loop, state: State, at: Mapping[Dim, Any]) -> Any:
    """How many iterations a loop makes: of one over the tiles of a range, up to the last that adds anything."""
    every = len(tree.steps)
    found = shares(tree, lowering.schedule, lowering.storage)
    # Where sizes do not change from iteration to iteration of a loop around, all tiles are needed.
    if not found or not any(d.origin in at for share in found for d in dims_of(share.size.symbols())):
        return every
    counts: list[Any] = [1]  # the first one makes the result something, if it is nothing
    for share in found:
        block = lowering.block(share.node, state, {**at, tree.dim: 0})
        here = {**block.bounds.values, **block.at, dim_of(share.node, tree.dim): np.arange(every, dtype=np.int32)}
        for n, d in enumerate(block.dims, 1):
            here[d] = block.ranges[d].steps.reshape([-1, *(1,) * n])
        sizes = evaluate(share.size, here, jnp)
        filled = jnp.any(sizes > 0, axis=tuple(range(sizes.ndim - 1)))
        last = every - jnp.argmax(filled[::-1])
        begins = [fold.begins(*block_of(at[fold.family])) for fold in share.folds]
        counts.append(jnp.where(reduce(operator.and_, begins), every, last) if begins else last)
    return reduce(jnp.maximum, counts).astype(jnp.int32)


def make_room(lowering: Lowering, tree: Loop, state: State) -> None:
    """Make the stores that a piece of a loop fills as long as it needs them. What is read of them is then no part of
    something larger, which costs a GPU 40 % more time than a store of its own."""
    if tree.grows:
        for node in dict.fromkeys(c.node for c in computes(tree.body)):
            if lowering.is_carried(node) and not apart.unrolled(lowering.storage.stores[node]):
                shape = lowering.room(node, (tree,))
                if node not in state:
                    state[node] = jnp.zeros(shape, node.dtype)
                elif any(size > found for size, found in zip(shape, state[node].shape, strict=True)):
                    state[node] = jx.fit(state[node], shape)
