"""Stores in host memory, of which the device is sent slices and which get what it has computed.

A slice is sent before it is needed, while the device computes something else, and what a part has computed is on its
way until the next part is started.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from tempo.backends.jax.host_arrays import Box, HostArray, OneArray, Pieces, cut
from tempo.backends.jax.near import PINNED, has_pinned
from tempo.graph.node import Node
from tempo.graph.structural import INPUT
from tempo.schedule.looptree import BlockSteps, block_of
from tempo.schedule.offload import Slices
from tempo.schedule.storage import Apart, Latest, Present, Steps, Store, Window
from tempo.symbolic import Dim

if TYPE_CHECKING:
    from tempo.backends.jax.machine import JaxMachine

Array = Any
At = Mapping[Dim, int | BlockSteps]

# XLA pins so many GiB of host memory, and some of them it needs to send what is not pinned.
PINNED_GIB = 64
PINNED_PART = 7 / 8


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
    box: Box
    array: Array


class HostStores:
    """The stores of one run that are in host memory; ``kept`` has what a checkpoint knows of them."""

    def __init__(self, machine: JaxMachine, inputs: Mapping[str, Array], kept: Mapping[Node, Array]) -> None:
        self.schedule = machine.lowering.schedule
        self.stores = {node: store for node, store in machine.lowering.storage.stores.items() if store.host}
        self.device = SingleDeviceSharding(machine.device, memory_kind=machine.device.default_memory().kind)
        self.arrays = self._arrays(machine.device, inputs)
        for node, array in kept.items():
            box = tuple((0, axis.size) for axis in _axes(self.stores[node]).values())
            self.arrays[node].write(box, np.asarray(array))
        self.sent: dict[_Slice, Array] = {}
        self.pending: list[_Fetching] = []

    def _arrays(self, device: Any, inputs: Mapping[str, Array]) -> dict[Node, HostArray]:
        """The memory of the stores. Inputs are where they are given."""
        found: dict[Node, HostArray] = {}
        is_cpu = device.platform == "cpu"
        kind, left = pinned(device), pinned_bytes()
        for node, store in self.stores.items():
            if node.op is INPUT:
                box = tuple(self.schedule.steps(node, d) for d in node.domain)
                found[node] = OneArray(cut(np.asarray(inputs[node.attributes["input"]]), box), copies=is_cpu)
            elif kind is not None and store.bytes <= left:
                found[node] = Pieces(store.shape, len(_axes(store)), node.dtype, kind)
                left -= store.bytes
            else:
                found[node] = OneArray(np.zeros(store.shape, node.dtype), copies=is_cpu)
        return found

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
        parts = {d: (first, size) for d, first, size in wanted.ranges}
        box = []
        for d, kept in _axes(self.stores[wanted.node]).items():
            if d in parts:
                assert isinstance(kept, Steps)
                first, size = parts[d]
                box.append((kept.slot(first), kept.slot(first) + size))
            else:
                box.append((0, kept.size))
        return jax.device_put(self.arrays[wanted.node].read(tuple(box)), self.device)

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
        box = []
        for d, kept in _axes(self.stores[node]).items():
            here = at.get(d.origin)
            if here is None:
                box.append((0, kept.size))
                continue
            start, length = block_of(here)
            first = kept.slot(self.schedule.own_step(node, d, start))
            box.append((first, first + length))
        self.sent = {key: sent for key, sent in self.sent.items() if key.node is not node}
        self.pending.append(_Fetching(node, tuple(box), self.arrays[node].fetched(array)))

    def fetch(self) -> None:
        """Wait for all that is on its way from the device."""
        for fetching in self.pending:
            self.arrays[fetching.node].write(fetching.box, fetching.array)
        self.pending = []

    def output(self, node: Node, steps: Sequence[range]) -> np.ndarray[Any, Any]:
        """What a store has at some steps of all its dims."""
        self.fetch()
        box = []
        for span, kept in zip(steps, self.stores[node].dims.values(), strict=True):
            assert isinstance(kept, Steps)
            box.append((kept.slot(span.start), kept.slot(span.stop)))
        found = self.arrays[node].numpy(tuple(box))
        return np.array(found) if node.op is INPUT else found

    def kept(self, needed: Container[Node]) -> dict[Node, np.ndarray[Any, Any]]:
        """What a checkpoint must have of the stores that are needed."""
        self.fetch()
        return {
            node: self.arrays[node].numpy(tuple((0, axis.size) for axis in _axes(store).values()))
            for node, store in self.stores.items()
            if node in needed and node.op is not INPUT
        }


def _axes(store: Store) -> dict[Dim, Steps | Window | Present | Apart]:
    """The dims of which a store has an axis."""
    return {d: kept for d, kept in store.dims.items() if not isinstance(kept, Latest)}


def pinned(device: Any) -> SingleDeviceSharding | None:
    """Host memory that a device reads and writes by itself. A CPU's own memory is host memory."""
    return SingleDeviceSharding(device, memory_kind=PINNED) if has_pinned(device) else None


def pinned_bytes() -> int:
    """How much of the host's memory may be pinned."""
    limit = os.environ.get("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "")
    return int((int(limit) if limit.isdigit() else PINNED_GIB) * PINNED_PART * 2**30)
