"""Making the XLA programs of a whole program: traced one after the other, compiled in parallel threads.

A run can begin with the first of them while the others are compiled.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tempo.backends.jax import apart
from tempo.backends.jax.footprint import held
from tempo.backends.jax.library import traceable
from tempo.backends.jax.padded import outline
from tempo.backends.jax.parts import CompiledPart, Parts, homes
from tempo.backends.jax.prepared import prepare_growth
from tempo.backends.jax.stages import FIRST, Arrays, End, Key, Recipe, Stage, Stages, Taken, has_loop
from tempo.schedule.looptree import Loop, Tree
from tempo.schedule.script import Part

Array = Any
Given = tuple[list[Any], list[Any]]
"""What a stage reads only, and what it changes."""
Compiler = Callable[..., Any]
"""From a lowered program, and whether what it does is done once, to one that can be called."""


class Building:
    """A recipe for the stages of a program, and what it takes to make their XLA programs."""

    def __init__(
        self,
        parts: Parts,
        items: Sequence[Part],
        inputs: Mapping[str, Array],
        settings: Callable[[], AbstractContextManager[None]],
        compiler: Compiler,
    ) -> None:
        self.all = parts
        self.inputs = inputs
        self.settings = settings
        self.compiler = compiler
        computed = homes(items)
        self.parts = [parts.compile(item, computed) for item in items]
        self.once = [not has_loop(item.trees) for item in items]
        graph, schedule = parts.graph, parts.lowering.schedule
        outputs = (edge.node for edge in graph.outputs.values())
        # A node of which only slices of no length are read has no store.
        results = dict.fromkeys([*(node for node in outputs if node in parts.stores), *schedule.open])
        # What is needed after each part: by those that follow, and for the outputs.
        later = [{*results}]
        for part in self.parts[:0:-1]:
            later.insert(0, {*later[0], *part.reads})
        self.parts = [_only(part, needed) for part, needed in zip(self.parts, later, strict=True)]
        given = {name: node for name, node in parts.lowering.given.items() if name in inputs}
        mentioned = [key for part in self.parts for key in (*part.reads, *part.writes)]
        self.keys = list(dict.fromkeys([*given.values(), *mentioned, *results]))
        """What the numbers of the recipe stand for."""
        self.numbers: dict[Any, Key] = {key: n for n, key in enumerate(self.keys)}
        # What no part before has written is zeros, which a program makes itself: one that makes those of many stores
        # takes as long to compile as a small model.
        there: set[Any] = {*given.values()}
        self.fresh: list[tuple[Any, ...]] = []
        """What each part reads before anything is written there."""
        for part in self.parts:
            self.fresh.append(tuple(key for key in part.reads if key not in there))
            there.update(part.reads, part.writes)
        as_given = {name: n for name, n in given.items() if parts.lowering.is_stored_as_given(n, inputs[name])}
        self.recipe = Recipe(
            {name: self.numbers[node] for name, node in as_given.items()},
            self.numbered([node for name, node in given.items() if name not in as_given]),
            {self.numbers[key]: parts.initial(key, None) for key in self.keys},
            tuple(map(self.stage, self.parts, items, self.fresh, later)),
            self.numbered(results),
        )
        self.left: dict[int, Sequence[Any]] = {}
        """The outlines of what stages leave that have been traced."""
        self.beside: list[int] = []
        self.growing = 0

    def numbered(self, keys: Any) -> tuple[Key, ...]:
        return tuple(self.numbers[key] for key in keys)

    def stage(self, part: CompiledPart, item: Part, fresh: Any, later: Any) -> Stage:
        rooms = {self.numbers[node]: room for node, room in part.rooms.items()}
        reads = self.numbered(key for key in part.reads if key not in fresh)
        return Stage(reads, self.numbered(part.writes), rooms, frozenset(self.numbered(later)), self.end(item.trees))

    def end(self, trees: Sequence[Tree]) -> End | None:
        """What makes a part superfluous, if anything can: it is a loop over steps that a dim may not come to."""
        (loop,) = trees if len(trees) == 1 else (None,)
        if not isinstance(loop, Loop) or loop.until is None:
            return None
        lowering = self.all.lowering
        (bound,) = lowering.stopping[loop.until].bound.symbols()
        return End(self.numbers[bound], loop.start, lowering.schedule.beyond[loop.number])

    def start(self) -> Stages:
        """All programs. What a run begins with, and what it ends with, which it may do soon, do not wait for the
        others, which are traced and compiled in the background."""
        pool = ThreadPoolExecutor(min(len(self.parts) + 1, os.cpu_count() or 1))
        loading = self.lowered_loading()
        first = [pool.submit(self.compiled, loading)] if self.recipe.loaded else []
        shapes = self.shapes(loading.out_info)
        if self.once[:FIRST] == [True, False] and self.is_known(0):
            # A loop takes longest to compile, so that it is not traced after what is before it.
            before, loop = itertools.islice(shapes, FIRST)
            compiled = pool.submit(self.compiled_stage, 1, self.lowered_stage(1, loop))
            first += [pool.submit(self.compiled_stage, 0, self.lowered_stage(0, before)), compiled]
            assert _shapes(self.left[0]) == _shapes(self.expected(0))
        else:
            stages = enumerate(itertools.islice(shapes, FIRST))
            first += [pool.submit(self.compiled_stage, n, self.lowered_stage(n, arrays)) for n, arrays in stages]
        last = pool.submit(self.compiled, self.lowered_finish())
        pool.shutdown(wait=False)
        later: list[Future[Any]] = [Future() for _ in self.parts[FIRST:]]
        if later:
            threading.Thread(target=self.compile_later, args=(shapes, [*first, last], later)).start()
        return Stages(self.recipe, [*first, *later, last], self.taken)

    def taken(self) -> Taken:
        """To be asked for when everything is compiled."""
        return Taken(held(self.inputs.values()), tuple(self.beside), self.growing)

    def shapes(self, loaded: Sequence[Any]) -> Iterator[Given]:
        """The outlines of what each stage is given: of what those before it leave, if they have been traced, else of
        their stores."""
        recipe = self.recipe
        state = recipe.load(self.inputs, lambda _: loaded)
        for n, stage in enumerate(recipe.stages):

            def grown(old: Array, shape: tuple[int, ...], state: Arrays = state) -> Array:
                new = outline(shape, old.dtype)
                prepare_growth(old, shape)
                self.growing = max(self.growing, held([*state.values(), new]))
                return new

            arrays = recipe.given(stage, state, dict, grown)
            self.beside.append(held(value for key, value in state.items() if key not in stage.reads))
            yield arrays
            state |= zip(stage.writes, self.left.get(n) or self.expected(n), strict=True)
            state = {key: value for key, value in state.items() if key in stage.later}

    def expected(self, number: int) -> list[Any]:
        """The outlines of what a stage leaves in its stores."""
        part = self.parts[number]
        initial = [self.all.initial(key, part.rooms.get(key)) for key in part.writes]
        return [jax.tree.map(lambda one: outline(one.shape, one.dtype), outlines) for outlines in initial]

    def is_known(self, number: int) -> bool:
        """Whether it is known what a stage leaves before it is traced: where every step of an unrolled dim has an array
        of its own, their sizes may differ."""
        nodes = [key for key in self.parts[number].writes if key in self.all.stores]
        apart_ = [node for node in nodes if apart.unrolled(self.all.stores[node])]
        return all(isinstance(size, int) for node in apart_ for size in node.shape)

    def lowered_loading(self) -> Any:
        nodes = [self.keys[number] for number in self.recipe.loaded]

        def tempo_load(inputs: Mapping[str, Array]) -> list[Array]:
            state = self.all.lowering.load(inputs)
            return [state[node] for node in nodes]

        others = {name: given for name, given in self.inputs.items() if name not in self.recipe.as_given}
        return traceable(tempo_load).lower(others)

    def lowered_stage(self, number: int, arrays: Given) -> Any:
        part, fresh = self.parts[number], self.fresh[number]
        given = [key for key in part.reads if key not in fresh]
        kept = [key for key in given if key not in part.writes]
        changed = [key for key in given if key in part.writes]

        def tempo_stage(kept_values: list[Array], changed_values: list[Array]) -> list[Array]:
            state = dict(zip((*kept, *changed), (*kept_values, *changed_values), strict=True))
            state |= {key: jax.tree.map(_filled, self.all.initial(key, part.rooms.get(key))) for key in fresh}
            part.execute(state, {}, None, {})
            return [state[key] for key in part.writes]

        lowered = traceable(tempo_stage, donate=(1,)).lower(*arrays)
        self.left[number] = lowered.out_info
        return lowered

    def lowered_finish(self) -> Any:
        recipe = self.recipe
        keys = [self.keys[number] for number in recipe.results]

        def tempo_finish(values: list[Array]) -> Any:
            return self.all.finished(dict(zip(keys, values, strict=True)))

        return traceable(tempo_finish).lower([recipe.initially(key, recipe.rooms.get(key)) for key in recipe.results])

    def compile_later(
        self, shapes: Iterator[Given], first: Sequence[Future[Any]], later: Sequence[Future[Any]]
    ) -> None:
        wait(first)
        try:
            with self.settings(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                for n, (future, arrays) in enumerate(zip(later, shapes, strict=True), FIRST):
                    compiled = pool.submit(self.compiled_stage, n, self.lowered_stage(n, arrays))
                    compiled.add_done_callback(partial(_pass_on, future))
        except BaseException as error:
            for future in later:
                if not future.done():
                    future.set_exception(error)

    def compiled_stage(self, number: int, lowered: Any) -> Any:
        return self.compiled(lowered, self.once[number])

    def compiled(self, lowered: Any, once: bool = False) -> Any:
        with self.settings():
            return self.compiler(lowered, once=once)


def _only(part: CompiledPart, needed: Set[Any]) -> CompiledPart:
    """A part that gives what is needed after it, and what it is given to change: other values of it need no memory when
    it is over."""
    return replace(part, writes=tuple(key for key in part.writes if key in needed or key in part.reads))


def _shapes(outlines: Any) -> Any:
    return jax.tree.map(lambda one: (one.shape, one.dtype), outlines)


def _filled(outlined: Any) -> Array:
    """Zeros of a shape; a number as it is."""
    return jnp.zeros(outlined.shape, outlined.dtype) if isinstance(outlined, jax.ShapeDtypeStruct) else outlined


def _pass_on(future: Future[Any], done: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)
