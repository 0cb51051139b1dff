"""Stores in host memory: NumPy arrays, of which the device is sent slices and which get what it has computed.

A slice is sent before it is needed, while the device computes something else, and what a part has computed is fetched
when the next part is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tempo.graph.node import Node
from tempo.graph.structural import INPUT
from tempo.schedule.looptree import BlockSteps
from tempo.schedule.offload import Slices
from tempo.schedule.storage import Latest, Steps, Store
from tempo.symbolic import Dim

if TYPE_CHECKING:
    from tempo.backends.jax.machine import JaxMachine

Array = Any
At = Mapping[Dim, int | BlockSteps]


@dataclass(frozen=True)
class _Slice:
    """Some steps of a store: of some dims ``size`` from the ``first`` on, of all others everything."""

    node: Node
    ranges: tuple[tuple[Dim, int, int], ...]

    @property
    def firsts(self) -> dict[Dim, Any]:
        return {d: np.int32(first) for d, first, _ in self.ranges}


@dataclass(frozen=True)
class _Fetching:
    """Something that is on its way from the device, and its place in a store."""

    node: Node
    place: tuple[Any, ...]
    array: Array


class HostStores:
    """The stores of one run that are in host memory."""

    def __init__(self, machine: JaxMachine, inputs: Mapping[str, Array]) -> None:
        self.device = machine.device
        self.schedule = machine.lowering.schedule
        self.stores = {node: store for node, store in machine.lowering.storage.stores.items() if store.host}
        self.arrays: dict[Node, np.ndarray[Any, Any]] = {}
        for node, store in self.stores.items():
            if node.op is INPUT:
                ranges = [self.schedule.steps(node, d) for d in node.domain]
                self.arrays[node] = _cut(np.asarray(inputs[node.attributes["input"]]), ranges)
            else:
                self.arrays[node] = np.zeros(store.shape, node.dtype)
        self.sent: dict[_Slice, Array] = {}
        self.pending: list[_Fetching] = []

    def cut(self, node: Node, cut: Slices, at: At) -> _Slice:
        """The slice of a store that is read when loops are at some steps."""
        ranges = []
        for d, span in cut.items():
            if isinstance(span, Steps):
                ranges.append((d, span.start, span.size))
                continue
            here = at[d.origin]
            step = here.start if isinstance(here, BlockSteps) else here
            first = self.schedule.own_step(node, d, step) - span.before
            ranges.append((d, first, span.size))
        return _Slice(node, tuple(ranges))

    def part(self, layout: Store) -> _Slice:
        """The slice of a store that has this layout."""
        steps = ((d, kept) for d, kept in layout.dims.items() if isinstance(kept, Steps))
        return _Slice(layout.node, tuple((d, kept.start, kept.size) for d, kept in steps))

    def on_device(self, wanted: _Slice) -> Array:
        """A slice on the device, where it may be already."""
        if any(f.node is wanted.node for f in self.pending):
            self.fetch()
        if wanted not in self.sent:
            self.sent[wanted] = self.send(wanted)
        return self.sent[wanted]

    def send(self, wanted: _Slice) -> Array:
        ranges = []
        parts = {d: (first, size) for d, first, size in wanted.ranges}
        for d, kept in self.stores[wanted.node].dims.items():
            if d in parts:
                assert isinstance(kept, Steps)
                first, size = parts[d]
                ranges.append((kept.slot(first), kept.slot(first) + size))
            elif not isinstance(kept, Latest):
                ranges.append((0, kept.size))
        view = _cut(self.arrays[wanted.node], ranges)
        # A CPU may compute with the very memory that it is given, which is written into later.
        return jax.device_put(np.array(view) if self.device.platform == "cpu" else view, self.device)

    def prefetch(self, cuts: Mapping[Node, Slices], at: At | None) -> None:
        """Send what is read of some stores when loops are at some steps, and forget what else was sent of them."""
        wanted = [] if at is None else [self.cut(node, cut, at) for node, cut in cuts.items()]
        self.sent = {key: array for key, array in self.sent.items() if key.node not in cuts or key in wanted}
        on_their_way = {f.node for f in self.pending}
        for key in wanted:
            if key not in self.sent and key.node not in on_their_way:
                self.sent[key] = self.send(key)

    def write(self, node: Node, at: At, array: Array) -> None:
        """Put what was computed at some steps of the loops into a store, as soon as it is there."""
        place: list[Any] = []
        for d, kept in self.stores[node].dims.items():
            here = at.get(d.origin)
            if isinstance(kept, Latest):
                continue
            if here is None:
                place.append(slice(None))
            elif isinstance(here, BlockSteps):
                first = kept.slot(self.schedule.own_step(node, d, here.start))
                place.append(slice(first, first + here.length))
            else:
                place.append(kept.slot(self.schedule.own_step(node, d, here)))
        array.copy_to_host_async()
        self.sent = {key: sent for key, sent in self.sent.items() if key.node is not node}
        self.pending.append(_Fetching(node, tuple(place), array))

    def fetch(self) -> None:
        """Wait for all that is on its way from the device."""
        for fetching in self.pending:
            self.arrays[fetching.node][fetching.place] = np.asarray(fetching.array)
        self.pending = []

    def output(self, node: Node, steps: Sequence[range]) -> np.ndarray[Any, Any]:
        """What a store has at some steps of all its dims."""
        self.fetch()
        ranges = []
        for span, kept in zip(steps, self.stores[node].dims.values(), strict=True):
            assert isinstance(kept, Steps)
            ranges.append((kept.slot(span.start), kept.slot(span.stop)))
        found = _cut(self.arrays[node], ranges)
        return np.array(found) if node.op is INPUT else found


def _cut(array: np.ndarray[Any, Any], ranges: Sequence[tuple[int, int]]) -> np.ndarray[Any, Any]:
    """Ranges of an array's first axes, with zeros where they lie outside."""
    inside = tuple(
        slice(min(max(start, 0), size), min(max(stop, 0), size))
        for (start, stop), size in zip(ranges, array.shape, strict=False)
    )
    view = array[inside]
    lengths = tuple(stop - start for start, stop in ranges)
    if view.shape[: len(ranges)] == lengths:
        return view
    result = np.zeros((*lengths, *view.shape[len(ranges) :]), array.dtype)
    place = tuple(
        slice(part.start - start, part.stop - start) if part.stop > part.start else slice(0, 0)
        for (start, _), part in zip(ranges, inside, strict=True)
    )
    result[place] = view
    return result
