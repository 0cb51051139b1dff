"""A whole program that runs without Python: from inputs to outputs, in one XLA program or several."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax

from tempo.backends.jax import jitted
from tempo.backends.jax.library import Library, least_seconds
from tempo.backends.jax.place import Place
from tempo.backends.jax.stages import NotKeptError, Recipe, Stages, Taken
from tempo.backends.programs import Programs
from tempo.graph.node import Graph
from tempo.schedule.results import Cuts

Array = Any
Steps = Mapping[str, tuple[range, ...]]

LEAST_SECONDS = 1.0
"""Programs that are compiled in less time have no record."""
MOST_FETCHED = 2**26
"""Bytes of an output that is fetched whole where a dim has stopped. To cut it on the device is an XLA program for every
number of steps, which takes longer to compile than to fetch all that there may be."""


@dataclass(frozen=True)
class Record:
    """A whole program on disk: everything but the graph that it was made of."""

    programs: Sequence[str | None]
    """The names of its XLA programs in the library; None for those that are not there."""
    recipe: Recipe | None
    """What is done with them, if there are several."""
    taken: Taken | None
    inputs: Mapping[str, Any]
    wide: bool
    steps: Steps
    peak: int
    """The bytes that there must be on the device for the plan to be the one that Tempo chooses."""


class Whole:
    """A compiled program, called with arrays by name."""

    def __init__(
        self,
        place: Place,
        compiled: Any,
        source: Graph,
        numbers: Mapping[Any, int],
        steps: Steps,
        otherwise: Callable[[], Whole | None] | None = None,
    ) -> None:
        """``compiled`` gives outputs for all ``steps`` that there may be, and how many were made of dims that stop on
        data. Where a part of it is not on disk, ``otherwise`` compiles the program."""
        self.place = place
        self.compiled = compiled
        self.source = source
        self.numbers = numbers
        self.steps = steps
        self.cuts = Cuts(source, steps)
        self.otherwise = otherwise
        self.is_plain = not (place.wide or source.stops or isinstance(compiled, Stages))
        """Whether this is one program of types that JAX has in any case, with all of its steps: it runs without
        settings, which take half as long as starting it."""

    def run_as_given(self, inputs: Mapping[str, Any]) -> dict[str, Array] | None:
        """The outputs, if the inputs are arrays on the device, in the shapes and dtypes that the program has: JAX finds
        out when it starts the program, in less time than it takes to look at them here. None if they are not."""
        place = self.place
        if not self.is_plain or place.apart or inputs.keys() != place.inputs.keys():
            return None
        for array in inputs.values():
            if not isinstance(array, jax.Array):
                return None
        try:
            outputs: dict[str, Array] = self.compiled(inputs)[0]
        except (TypeError, ValueError):  # of another shape or dtype, on another device
            return None
        except RuntimeError:
            if any(array.is_deleted() for array in inputs.values()):
                return None
            raise
        return outputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if self.is_plain and not jitted.is_disabled():
            outputs: dict[str, Array] = self.compiled(self.place.hand_over(inputs))[0]
            return outputs
        with self.place.settings():
            arrays = self.place.put(inputs)
            outputs, made = self.completed(lambda: self.compiled(arrays))
            return cut_all(self.cuts, self.numbers, outputs, made)

    def completed(self, do: Callable[[], Any]) -> Any:
        """What a function gives; done again, if something is missing on disk."""
        try:
            return do()
        except NotKeptError:
            whole = None if self.otherwise is None else self.otherwise()
            if whole is None:
                raise
            self.compiled = whole.compiled
            return do()

    def memory(self) -> dict[str, int]:
        """What XLA says the program takes, in bytes."""
        if isinstance(self.compiled, Stages):
            found: dict[str, int] = self.completed(lambda: self.compiled.memory())
            return found
        analysis: Any = self.compiled.memory_analysis()
        return {
            "inputs": analysis.argument_size_in_bytes,
            "outputs": analysis.output_size_in_bytes,
            "temporaries": analysis.temp_size_in_bytes,
        }

    def programs(self) -> Programs:
        """The XLA programs and what they take."""
        several = isinstance(self.compiled, Stages)
        return Programs(len(self.compiled.recipe.stages) if several else 1, self.memory())


def cut_all(
    cuts: Cuts, numbers: Mapping[Any, int], outputs: Mapping[str, Array], made: Mapping[str, Array]
) -> dict[str, Array]:
    """Outputs at the points that there are when dims have stopped, of those for all steps that there may be."""
    if not made:
        return dict(outputs)
    fetched = {name: array for name, array in outputs.items() if array.nbytes <= MOST_FETCHED}
    made, fetched = jax.device_get((dict(made), fetched))
    real = {**numbers, **{bound: int(made[bound.name]) for bound in numbers if bound.name in made}}
    return {name: cuts(real, name, array) for name, array in (dict(outputs) | fetched).items()}


def kept(
    library: Library,
    text: str | None,
    left: int | None,
    source: Graph,
    numbers: Mapping[Any, int],
    otherwise: Callable[[], Whole | None],
) -> Whole | None:
    """The program for what ``text`` asks for, if it is in the library, and right for what is left of the device's
    memory."""
    name = library.name_of_record(text)
    record = None if name is None else library.get(name)
    if not isinstance(record, Record) or (left is not None and record.peak > left):
        return None
    contents = [None if name is None else library.get(name) for name in record.programs]
    place = Place(library.device, record.wide, record.inputs)

    def load(content: Any) -> Any:
        if content is None:
            raise NotKeptError
        try:
            with place.settings():
                return library.load(content)
        except Exception as error:  # whatever XLA says about it: the program is compiled
            raise NotKeptError from error

    if record.recipe is None or record.taken is None:
        try:
            return Whole(place, load(contents[0]), source, numbers, record.steps)
        except NotKeptError:
            return None
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    # A run may need the last one soon.
    last = pool.submit(load, contents[-1])
    programs = [*(pool.submit(load, content) for content in contents[:-1]), last]
    pool.shutdown(wait=False)
    taken = record.taken
    return Whole(place, Stages(record.recipe, programs, lambda: taken), source, numbers, record.steps, otherwise)


def keep(whole: Whole, library: Library, text: str | None, peak: int, start: float) -> None:
    """Keep a program that is compiled since ``start``: its XLA programs and, if that takes long, a record of it for
    what ``text`` asks for."""
    compiled = whole.compiled
    if not isinstance(compiled, Stages):
        _keep([compiled], whole, library, text, peak, start)
        return
    # Once when runs can begin, for processes that end soon; once when everything is there.
    for awaited in (compiled.first, compiled.programs):
        wait(awaited)
        done = [future.result() if _succeeded(future) else None for future in compiled.programs]
        _keep(done, whole, library, text, peak, start)


def _keep(programs: Sequence[Any], whole: Whole, library: Library, text: str | None, peak: int, start: float) -> None:
    for program in programs:
        library.keep(program, least_seconds())
    name = library.name_of_record(text)
    if name is None or peak == sys.maxsize or time.perf_counter() - start < LEAST_SECONDS:
        return
    names = [library.keep(program) for program in programs]
    compiled, place = whole.compiled, whole.place
    recipe, taken = (compiled.recipe, compiled.taken()) if isinstance(compiled, Stages) else (None, None)
    record = Record(names, recipe, taken, place.inputs, place.wide, whole.steps, peak)
    library.put(name, record)


def _succeeded(future: Future[Any]) -> bool:
    return future.done() and future.exception() is None
