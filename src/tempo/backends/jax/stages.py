"""A whole program as several XLA programs, one after the other: a loop that is cut has one for each of its pieces.

They are compiled in parallel threads, and a run can begin with the first of them while the others are compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tempo.backends.jax.footprint import held, shaped
from tempo.backends.jax.lowering import State
from tempo.backends.jax.padded import jx
from tempo.backends.jax.worker import Parts, keyed
from tempo.schedule.looptree import Loop, Tree
from tempo.schedule.script import Part

Array = Any


def stages(trees: Sequence[Tree]) -> list[Part]:
    """The trees in parts: every piece of a loop that lets stores grow on its own, with what comes before it."""
    parts: list[Part] = []
    together: list[Tree] = []
    for tree in trees:
        together.append(tree)
        if isinstance(tree, Loop) and tree.grows and len(tree.steps) > 1:
            parts.append(Part(tuple(together), ()))
            together = []
    return [*parts, Part(tuple(together), ())] if together else parts


@dataclass(frozen=True)
class _End:
    """A loop that begins at the step ``start`` makes none if the dim with this bound stops ``beyond`` steps before."""

    bound: Any
    start: int
    beyond: int


class Stages:
    """The XLA programs, called with inputs by name: outputs, and the steps made of dims that stop on data."""

    def __init__(
        self,
        parts: Parts,
        items: Sequence[Part],
        inputs: Mapping[str, Array],
        settings: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.all = parts
        self.by_key = parts.by_key
        self.parts = [parts.compile(item) for item in items]
        self.settings = settings
        self.ends = [self.end(item.trees) for item in items]
        graph, schedule = parts.graph, parts.lowering.schedule
        self.results = {*(edge.node for edge in graph.outputs.values()), *schedule.open}
        # What is needed after each part: by those that follow, and for the outputs.
        self.later = [self.results]
        for part in self.parts[:0:-1]:
            self.later.insert(0, {*self.later[0], *part.reads})
        self.pool = ThreadPoolExecutor(min(len(items) + 2, os.cpu_count() or 1))
        self.programs = self.compile(parts, inputs)
        self.pool.shutdown(wait=False)

    def end(self, trees: Sequence[Tree]) -> _End | None:
        """What makes a part superfluous, if anything can: it is a loop over steps that a dim may not come to."""
        (loop,) = trees if len(trees) == 1 else (None,)
        if not isinstance(loop, Loop) or loop.until is None:
            return None
        lowering = self.all.lowering
        (bound,) = lowering.stopping[loop.until].bound.symbols()
        return _End(bound, loop.start, lowering.schedule.beyond[loop.until])

    def compile(self, parts: Parts, inputs: Mapping[str, Array]) -> list[Future[Any]]:
        """All programs, traced here and compiled in threads; the last of them gives outputs."""
        self.load = parts.load
        self.inputs = held(inputs.values())
        state = self.by_key(jax.eval_shape(self.load, inputs))
        lowered = []
        self.held: list[int] = []
        """The bytes that lie there during each part without being a part of it."""
        self.growing = 0
        """The most bytes that are there while a store is made longer."""
        for part, later in zip(self.parts, self.later, strict=True):

            def grown(old: Array, shape: tuple[int, ...], state: State = state) -> Array:
                new = shaped(shape, 0, old.dtype)
                self.growing = max(self.growing, held([*state.values(), new]))
                return new

            given = map(keyed, parts.given(part, state, shaped, grown))
            lowered.append(part.function.lower(*given, {}, None, {}))
            self.held.append(held(value for key, value in state.items() if key not in part.reads))
            state |= self.by_key(lowered[-1].out_info[0])
            state = {key: value for key, value in state.items() if key in later}
        for key in self.results - state.keys():
            state[key] = parts.initial(key, None, shaped)
        lowered.append(parts.finish.lower(keyed({key: state[key] for key in self.results})))
        return [self.pool.submit(self.compiled, program) for program in lowered]

    def compiled(self, lowered: Any) -> Any:
        with self.settings():
            return lowered.compile()

    def __call__(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        *programs, finish = self.programs
        state = self.by_key(self.load(inputs))
        rooms: dict[Any, tuple[int, ...]] = {}
        for part, program, later, end in zip(self.parts, programs, self.later, self.ends, strict=True):
            rooms |= part.rooms
            if end is not None and end.start >= int(state.get(end.bound, end.start + 1)) + end.beyond:
                continue  # the dim has stopped; what this part makes longer may be needed by others
            state |= {key: jx.fit(state[key], rooms[key]) for key in part.reads if key in state and key in rooms}
            given = map(keyed, self.all.given(part, state, jnp.full, jx.fit))
            state |= self.by_key(program.result()(*given, {}, None, {})[0])
            state = {key: value for key, value in state.items() if key in later}
        for key in self.results - state.keys():
            state[key] = self.all.initial(key, None, jnp.full)
        state |= {key: jx.fit(state[key], rooms[key]) for key in self.results if key in rooms}
        outputs, made = finish.result()(keyed({key: state[key] for key in self.results}))
        return outputs, made

    def memory(self) -> dict[str, int]:
        """What XLA says the programs take, in bytes: beside inputs and outputs, at the worst moment."""
        *programs, finish = (future.result().memory_analysis() for future in self.programs)
        inputs, outputs = self.inputs, finish.output_size_in_bytes
        taken = [
            beside + p.argument_size_in_bytes + p.output_size_in_bytes - p.alias_size_in_bytes + p.temp_size_in_bytes
            for beside, p in zip(self.held, programs, strict=True)
        ]
        most = max(*taken, self.growing, inputs + outputs)
        return {"inputs": inputs, "outputs": outputs, "temporaries": most - inputs - outputs}
