"""Host calls of a run in parts.

What a call is given is computed by the part right before it, or by a program of its own; what it returns is handed to
the part right after it as it is. (``jax.device_put`` takes 50 us for an array, an XLA program that is given the same
array of NumPy 2 us more.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax.lowering import Lowering
from tempo.backends.jax.near import handed_over
from tempo.backends.jax.state import State
from tempo.given import resolve
from tempo.graph.node import Node
from tempo.graph.structural import HOST
from tempo.graph.traversal import producers
from tempo.schedule.looptree import BlockSteps
from tempo.schedule.script import Call, Each, Item, Part, Script
from tempo.symbolic import Dim

Array = Any


class HostCall:
    """What a host call is given, for all points of its batch."""

    def __init__(self, node: Node, lowering: Lowering) -> None:
        self.node = node
        self.lowering = lowering
        stores = lowering.storage.stores
        self.reads = (*(p for p in producers(node, lowering.graph.cases) if p in stores), *lowering.schedule.open)
        self.function = jax.jit(self._compute)
        # The dims of every argument's leading axes.
        self.leading = [[d for d in node.attributes["batch"] if d in edge.domain] for edge in node.edges]
        symbolic = any(not isinstance(size, int) for edge in node.edges for size in edge.shape)
        varies = bool(lowering.schedule.open) or symbolic
        self.sizes = None if varies else self.sizes_of(lowering.numbers)

    def sizes_of(self, numbers: Mapping[Any, int]) -> tuple[int, ...]:
        """How many points the batch has of every dim."""
        return tuple(d.bound.evaluate(numbers) for d in self.node.attributes["batch"])

    def arrays(self, state: State, at: Mapping[Dim, Any]) -> tuple[Array, ...]:
        """The arguments, batch dims first in the order of the call, as long as they get; to be traced."""
        block = self.lowering.block(self.node, state, at)
        found = []
        for edge, leading in zip(self.node.edges, self.leading, strict=True):
            value = self.lowering.read(edge, state, block)
            there = [d for d in leading if d in value.dims]
            order = [value.dims.index(d) for d in there]
            array = jnp.transpose(value.array, (*order, *range(len(order), value.array.ndim)))
            # A dim of one step may have no axis: it is then the same for all of them.
            for axis, d in enumerate(leading):
                if d not in there:
                    length = d.bound.evaluate(self.lowering.limits)
                    array = jnp.repeat(jnp.expand_dims(array, axis), length, axis)
            found.append(handed_over(array))
        return tuple(found)

    def _compute(self, values: Sequence[Array], steps: Sequence[Array]) -> tuple[Array, ...]:
        state = {key: value for key, value in zip(self.reads, values, strict=True) if value is not None}
        return self.arrays(state, dict(zip(self.dims, steps, strict=True)))

    def computed(self, state: State, at: Mapping[Dim, int | BlockSteps]) -> tuple[Array, ...]:
        """The arguments, computed by an XLA program of their own."""
        self.dims = tuple(at)
        steps = tuple(np.int32(here.start if isinstance(here, BlockSteps) else here) for here in at.values())
        found: tuple[Array, ...] = self.function(tuple(state.get(key) for key in self.reads), steps)
        return found

    def cut(self, arrays: Sequence[Array], here: Mapping[Any, int]) -> list[np.ndarray[Any, Any]]:
        """The arguments on the host, with the sizes that they have at a point."""
        found = []
        for edge, leading, array in zip(self.node.edges, self.leading, arrays, strict=True):
            sizes = (*(d.bound.evaluate(here) for d in leading), *resolve(edge.shape, here))
            # What has no axes is an array, too: that is what the dots are for.
            inside: Any = (*(slice(0, size) for size in sizes), ...)
            found.append(np.asarray(array)[inside])
        return found


class HostCalls:
    """The calls of a script, and what is next to them."""

    def __init__(
        self, lowering: Lowering, script: Script, readers: Mapping[Node, set[Node]], homes: Mapping[Node, set[Item]]
    ) -> None:
        self.calls = {node: HostCall(node, lowering) for node in lowering.graph.nodes if node.op is HOST}
        self.after: dict[Item, HostCall] = {}
        """The call right after a part."""
        self.around: dict[Item, Part] = {}
        """Of the last part of a loop's body, the first one, which comes after it unless the loop ends."""
        before: dict[Node, Item] = {}
        for items in _sequences(script.items):
            for first, second in pairwise(items):
                if isinstance(first, Part) and isinstance(second, Call):
                    self.after[first] = self.calls[second.node]
                if isinstance(first, Call) and isinstance(second, Part):
                    before[first.node] = second
        self.is_passed_on = {
            node: {home for reader in readers.get(node, ()) for home in homes.get(reader, ())} == {before.get(node)}
            for node in self.calls
        }
        """Whether what a call returns is read by the part right after it only."""
        for each in _loops(script.items):
            first, last = each.body[0], each.body[-1]
            several = first is not last and len(each.loop.steps) > 1 and not each.loop.inner
            if several and isinstance(first, Part) and isinstance(last, Part):
                self.around[last] = first

    def __getitem__(self, node: Node) -> HostCall:
        return self.calls[node]


def _loops(items: Sequence[Item]) -> Iterator[Each]:
    for item in items:
        if isinstance(item, Each):
            yield item
            yield from _loops(item.body)


def _sequences(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Items that are done one after the other: of the script, and of all loops."""
    yield items
    for each in _loops(items):
        yield each.body
