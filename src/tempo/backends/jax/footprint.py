"""What a run in parts takes on the device at its worst moment, by XLA's own account of every part.

The script is gone through without computing anything: a state has shapes in place of arrays. Every part is compiled on
the way, and not compiled again when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tempo.backends.jax.padded import outline
from tempo.backends.jax.state import State
from tempo.backends.jax.worker import Parts, keyed, shapes, sliced
from tempo.schedule.offload import Span
from tempo.schedule.script import Chunks, Each, Item, Part

if TYPE_CHECKING:
    from tempo.backends.jax.machine import JaxMachine

Array = Any


class Footprint:
    """The bytes of ``inputs`` and ``outputs`` on the device, and the ``most`` that is there at the same time."""

    def __init__(self, machine: JaxMachine) -> None:
        self.parts: Parts = machine.parts
        inputs = {name: given for name, given in machine.inputs.items() if name not in machine.offloaded}
        self.state: State = self.parts.by_key(jax.eval_shape(self.parts.load, inputs))
        self.inputs = self.most = held(self.state.values())
        self.fetched = 0
        """What the part before has computed for stores in host memory, which is on its way there."""
        self.traced: dict[Any, Any] = {}
        self.follow(self.parts.script.items)
        shown = {node: outline(store.shape, node.dtype) for node, store in self.parts.shown.items()}
        values = {**self.parts.finally_read(self.state, dict), **shown}
        analysis: Any = self.parts.finish.lower(keyed(values)).compile().memory_analysis()
        self.outputs: int = analysis.output_size_in_bytes
        there = held([*self.state.values(), *shown.values()])
        self.most = max(self.most, there + self.outputs + analysis.temp_size_in_bytes)

    def follow(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Each):
                # The second time, what the first iteration has left is there.
                for _ in range(min(len(item.loop.steps), 2)):
                    self.follow(item.body)
            else:
                assert isinstance(item, Part | Chunks), "what host functions return is not known"
                self.run(item)

    def run(self, item: Part | Chunks) -> None:
        part = self.parts[item]
        kept, changed = self.parts.given(part, self.state, dict, self.grown)
        firsts = {node: {d: np.int32(0) for d in cut} for node, cut in part.slices.items()}
        slices = {
            node: outline(sliced(self.parts.stores[node], cut, keyed(firsts[node])).shape, node.dtype)
            for node, cut in part.slices.items()
        }
        steps = {loop.dim: np.int32(0) for loop in item.outer}
        chunk = (np.int32(0), np.int32(1)) if isinstance(item, Chunks) else None
        starts = keyed({node: keyed(own) for node, own in firsts.items()})
        given = keyed({**kept, **slices}), keyed(changed), keyed(steps), chunk, starts
        key = item, shapes(given)
        if key not in self.traced:
            lowered = part.function.lower(*given)
            part.programs[key[1]] = lowered.compile()
            self.traced[key] = lowered.out_info
        written, _, values, _ = self.traced[key]
        analysis = part.programs[key[1]].memory_analysis()
        new = analysis.output_size_in_bytes - analysis.alias_size_in_bytes + analysis.temp_size_in_bytes
        # The slices of the next block are sent while this one is computed.
        following = (slices[n] for n, cut in part.slices.items() if any(isinstance(s, Span) for s in cut.values()))
        there = [*self.state.values(), *changed.values(), *slices.values(), *following]
        self.most = max(self.most, held(there) + self.fetched + new)
        self.fetched = held(values.values())
        self.state.update(self.parts.by_key(written))
        for name in self.parts.over[item]:
            self.state.pop(name, None)

    def grown(self, old: Array, shape: tuple[int, ...]) -> Array:
        new = outline(shape, old.dtype)
        self.most = max(self.most, held([*self.state.values(), new]))
        return new


def held(arrays: Iterable[Any]) -> int:
    """The bytes of arrays."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in jax.tree.leaves(list(arrays)))
