"""A whole program as several XLA programs, one after the other: a loop that is cut has one for each of its pieces.

They are compiled in parallel threads, and a run can begin with the first of them while the others are compiled.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax

from tempo.backends.jax.footprint import held
from tempo.backends.jax.lowering import State
from tempo.backends.jax.padded import jx, outline
from tempo.backends.jax.worker import Parts, keyed, zeros
from tempo.schedule.looptree import Loop, Tree
from tempo.schedule.script import Part

Array = Any

FIRST = 2
"""So many programs are compiled before the others: mostly a prompt, and the first piece of the loop behind it."""


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
        self.rooms: dict[Any, tuple[int, ...]] = {}
        """How long stores are in the end."""
        for part in self.parts:
            self.rooms |= part.rooms
        self.load = parts.load
        self.inputs = held(inputs.values())
        self.held: list[int] = []
        """The bytes that lie there during each part without being a part of it."""
        self.growing = 0
        """The most bytes that are there while a store is made longer."""
        self.programs = self.compile(parts, inputs)

    def end(self, trees: Sequence[Tree]) -> _End | None:
        """What makes a part superfluous, if anything can: it is a loop over steps that a dim may not come to."""
        (loop,) = trees if len(trees) == 1 else (None,)
        if not isinstance(loop, Loop) or loop.until is None:
            return None
        lowering = self.all.lowering
        (bound,) = lowering.stopping[loop.until].bound.symbols()
        return _End(bound, loop.start, lowering.schedule.beyond[loop.until])

    def compile(self, parts: Parts, inputs: Mapping[str, Array]) -> list[Future[Any]]:
        """All programs; the last of them gives outputs. What a run begins with, and what it ends with, which it may
        do soon, do not wait for the others, which are traced and compiled in the background."""
        steps = self.lowered(parts, inputs)
        pool = ThreadPoolExecutor(min(len(self.parts) + 1, os.cpu_count() or 1))
        first = [pool.submit(self.compiled, next(steps)) for _ in self.parts[:FIRST]]
        results = {key: parts.initial(key, self.rooms.get(key)) for key in self.results}
        last = pool.submit(self.compiled, parts.finish.lower(keyed(results)))
        pool.shutdown(wait=False)
        later: list[Future[Any]] = [Future() for _ in self.parts[FIRST:]]
        if later:
            threading.Thread(target=self.compile_later, args=(steps, [*first, last], later)).start()
        return [*first, *later, last]

    def lowered(self, parts: Parts, inputs: Mapping[str, Array]) -> Iterator[Any]:
        """The parts' programs, one after the other, each with the shapes that those before it leave."""
        state = self.by_key(jax.eval_shape(self.load, inputs))
        for part, later in zip(self.parts, self.later, strict=True):

            def grown(old: Array, shape: tuple[int, ...], state: State = state) -> Array:
                new = outline(shape, old.dtype)
                self.growing = max(self.growing, held([*state.values(), new]))
                return new

            given = map(keyed, parts.given(part, state, dict, grown))
            lowered = part.function.lower(*given, {}, None, {})
            self.held.append(held(value for key, value in state.items() if key not in part.reads))
            state |= self.by_key(lowered.out_info[0])
            state = {key: value for key, value in state.items() if key in later}
            yield lowered

    def compile_later(self, steps: Iterator[Any], first: Sequence[Future[Any]], later: Sequence[Future[Any]]) -> None:
        wait(first)
        try:
            with self.settings(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                for future, lowered in zip(later, steps, strict=True):
                    pool.submit(self.compiled, lowered).add_done_callback(functools.partial(_pass_on, future))
        except BaseException as error:
            for future in later:
                if not future.done():
                    future.set_exception(error)

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
            for key in part.reads:
                if key in state and key in rooms:  # one by one: all the old are not kept beside all the new
                    state[key] = jx.fit(state[key], rooms[key])
            given = map(keyed, self.all.given(part, state, zeros, jx.fit))
            state |= self.by_key(program.result()(*given, {}, None, {})[0])
            state = {key: value for key, value in state.items() if key in later}
        state |= zeros({key: self.all.initial(key, None) for key in self.results - state.keys()})
        for key in self.results & self.rooms.keys():
            state[key] = jx.fit(state[key], self.rooms[key])
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


def _pass_on(future: Future[Any], done: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)
