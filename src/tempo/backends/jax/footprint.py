"""What a run in parts takes on the device at its worst moment, by XLA's own account of every part.

The script is gone through without computing anything: a state has shapes in place of arrays. Every part is traced on
the way. Then all are compiled, in parallel threads, and not compiled again when they run.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tempo.backends.jax.compiling import LIBRARY_ONLY, compile_lowered, is_cuda, options
from tempo.backends.jax.padded import outline
from tempo.backends.jax.parts import Parts, keyed, sliced
from tempo.backends.jax.prepared import Prepared, prepare_growth, shapes, zeros_maker
from tempo.backends.jax.state import State
from tempo.schedule.offload import Span
from tempo.schedule.script import Chunks, Each, Item, Part

if TYPE_CHECKING:
    from tempo.backends.jax.machine import JaxMachine

Array = Any


@dataclass(eq=False)
class _Program:
    """An XLA program, and the most bytes that are ``there`` beside what it makes, whenever it runs."""

    prepared: Prepared
    shapes: tuple[Any, ...]
    lowered: Any
    makes: int
    """The least that it makes, as far as that is known before it is compiled: not what it computes with."""
    there: int = 0
    lock: Any = field(default_factory=threading.Lock)

    @property
    def expected(self) -> int:
        return self.there + self.makes

    def compile(self, device: Any) -> int:
        """Compile it to run; the bytes that are there then."""
        with self.lock:  # a thread may be at it that was started before
            if self.lowered is not None:
                self.prepared.programs[self.shapes] = compile_lowered(self.lowered, device)
                self.lowered = None
        return self.taken(self.analysis)

    def look(self, device: Any) -> int:
        """About the same, found by compiling it without looking for the fastest products, unless there are none to
        look for: then it is done."""
        lowered = self.lowered
        if lowered is None or options(lowered, device) == LIBRARY_ONLY:
            return self.compile(device)
        return self.taken(lowered.compile(compiler_options=LIBRARY_ONLY).memory_analysis())

    @property
    def analysis(self) -> Any:
        return self.prepared.programs[self.shapes].memory_analysis()

    def taken(self, found: Any) -> int:
        made: int = found.output_size_in_bytes - found.alias_size_in_bytes + found.temp_size_in_bytes
        return self.there + made


Work = Callable[[_Program, Any], int]
"""What is done with a program for a device, and the bytes that are found to be there when it runs."""


class Footprint:
    """The programs of a run in parts, and what they take. ``inputs`` are the bytes of the inputs."""

    def __init__(self, machine: JaxMachine) -> None:
        self.settings = machine.settings
        self.device = machine.device
        self.lock = threading.Lock()
        self.parts: Parts = machine.parts
        inputs = {name: given for name, given in machine.inputs.items() if name not in machine.offloaded}
        self.state: State = self.parts.by_key(jax.eval_shape(self.parts.load, inputs))
        self.inputs = self.most = held(self.state.values())
        """The most that is there at the same time, of what was looked at so far."""
        self.fetched = 0
        """What the part before has computed for stores in host memory, which is on its way there."""
        self.programs: dict[Any, _Program] = {}
        self.follow(self.parts.script.items)
        shown = {node: outline(store.shape, node.dtype) for node, store in self.parts.shown.items()}
        values = {**self.parts.finally_read(self.state, self.filled), **shown}
        self.finish = self.program(None, self.parts.finish, (keyed(values),))
        self.finish.there = held([*self.state.values(), *shown.values()])
        # The one that is most likely to take too much comes first.
        self.left = sorted(self.programs.values(), key=lambda program: program.expected)

    @property
    def outputs(self) -> int:
        """The bytes of the outputs, when all is compiled."""
        size: int = self.finish.analysis.output_size_in_bytes
        return size

    def compile(self, limit: int | None = None) -> int:
        """Compile all programs, or as many as it takes to see that they take more than a limit; what those take."""
        with self.lock:  # runs may be started from several threads
            if limit is not None and self.most <= limit:
                self.look(limit)
            if limit is None or self.most <= limit:
                self.most = max([self.most, *self.in_threads(_Program.compile, self.left, limit)])
            return self.most

    def look(self, limit: int) -> None:
        """Find out quickly whether more is taken than a limit, if that may be, and if there is a quick way."""
        if not self.left or not is_cuda(self.device) or self.left[-1].expected <= limit // 2:
            return
        taken = max(self.in_threads(_Program.look, list(self.left), limit))
        if taken > limit:
            self.most = taken

    def in_threads(self, work: Work, programs: list[_Program], limit: int | None) -> Iterator[int]:
        """Do something with programs, from the last to the first; what each takes, up to the first that takes more
        than a limit. They are no longer in the list then."""
        if not programs:
            return
        pool = ThreadPoolExecutor(min(len(programs), os.cpu_count() or 1))
        try:
            started = {program: pool.submit(self.with_settings, work, program) for program in reversed(programs)}
            taken = 0
            # Not in the order in which they are done: it would be another one, and lead to another plan, each time.
            while programs and (limit is None or taken <= limit):
                taken = started[programs.pop()].result()
                yield taken
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def with_settings(self, work: Work, program: _Program) -> int:
        with self.settings():
            return work(program, self.device)

    def program(self, item: Any, prepared: Prepared, given: tuple[Any, ...], donated: int = 0) -> _Program:
        """What an item of the script runs with some arrays, of which it takes the memory of some bytes."""
        key = item, shapes(given)
        if key not in self.programs:
            lowered = prepared.function.lower(*given)
            makes = max(held(lowered.out_info) - donated, 0)
            self.programs[key] = _Program(prepared, key[1], lowered, makes)
        return self.programs[key]

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
        kept, changed = self.parts.given(part, self.state, self.filled, self.grown)
        firsts = {node: {d: np.int32(0) for d in cut} for node, cut in part.slices.items()}
        slices = {
            node: outline(sliced(self.parts.stores[node], cut, keyed(firsts[node])).shape, node.dtype)
            for node, cut in part.slices.items()
        }
        steps = {loop.dim: np.int32(0) for loop in item.outer}
        chunk = (np.int32(0), np.int32(1)) if isinstance(item, Chunks) else None
        starts = keyed({node: keyed(own) for node, own in firsts.items()})
        given = keyed({**kept, **slices}), keyed(changed), keyed(steps), chunk, starts
        program = self.program(item, part.function, given, held(changed.values()))
        written, _, values, _ = program.lowered.out_info
        # The slices of the next block are sent while this one is computed.
        following = (slices[n] for n, cut in part.slices.items() if any(isinstance(s, Span) for s in cut.values()))
        there = [*self.state.values(), *changed.values(), *slices.values(), *following]
        program.there = max(program.there, held(there) + self.fetched)
        self.fetched = held(values.values())
        self.state.update(self.parts.by_key(written))
        for name in self.parts.over[item]:
            self.state.pop(name, None)

    def filled(self, outlines: State) -> State:
        maker = zeros_maker(outlines)
        if maker is not None and not maker.programs:
            self.program(maker.function, maker, ())
        return dict(outlines)

    def grown(self, old: Array, shape: tuple[int, ...]) -> Array:
        new = outline(shape, old.dtype)
        prepare_growth(old, shape)
        self.most = max(self.most, held([*self.state.values(), new]))
        return new


def held(arrays: Iterable[Any]) -> int:
    """The bytes of arrays."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in jax.tree.leaves(list(arrays)))
