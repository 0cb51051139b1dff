"""Batched models: from a recursive function of one instance to a function of many."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import tempo as tp
from tempo.batching.cell import Cell
from tempo.batching.fibers import Fibers
from tempo.batching.hoisting import Hoisting
from tempo.batching.kernels import Arenas, Kernels, Launch, Store, row_of
from tempo.batching.parameters import Parametrised
from tempo.batching.recording import Groups, Reading, Recorder, Value, launches, replaced, use
from tempo.errors import GradientError, InputError, ProgramError

Array = Any


@dataclass(frozen=True)
class Statistics:
    """How one mini-batch was computed."""

    instances: int
    calls: int
    """How many calls of cells the instances made."""
    launches: int
    """How many kernels they became: also those that put data into arenas, or compute what was taken out of a recursive
    cell; backward passes not."""
    lanes: int
    """The kernels' widths, added up: calls and padding."""
    compiled: int
    """How many kernels had to be compiled for it."""

    @property
    def width(self) -> float:
        """How many calls a kernel makes on average."""
        return self.calls / self.launches if self.launches else 0.0

    @property
    def padding(self) -> float:
        """The part of the work that was for nothing."""
        return 1 - self.calls / self.lanes if self.lanes else 0.0

    def __str__(self) -> str:
        return (
            f"{self.instances} instances, {self.calls} calls: {self.launches} launches of {self.width:.1f} calls, "
            f"{self.padding:.0%} padding, {self.compiled} compiled"
        )


class Batched(Parametrised):
    """``batched(instances)``: the results of a model for each of them, computed together.

    ``parameters`` are the values of the model's parameters by name, to be read and replaced; at first they are what
    their initialisers make of ``seed``. ``statistics`` are those of the latest mini-batch, ``programs`` is how many
    kernels were compiled since the beginning.
    """

    def __init__(self, model: Callable[[Any], Any], cells: Mapping[str, Cell], seed: int = 0) -> None:
        super().__init__(cells, seed)
        self.model = model
        self.statistics = Statistics(0, 0, 0, 0, 0)
        self._kernels = Kernels()
        self._groups = Groups()
        self._hoisting = Hoisting()
        self._capacities: dict[Any, int] = {}
        self._reads = False

    @property
    def programs(self) -> int:
        return len(self._kernels.programs)

    def __call__(self, instances: Iterable[Any], parameters: Mapping[str, Array] | None = None) -> list[Any]:
        """The model's result for each instance, with arrays for the results of cells."""
        run = self._run(instances, parameters)
        values: list[Value] = []
        replaced(run.results, values.append)
        arrays = iter(run.store.rows(values))
        results: list[Any] = replaced(run.results, lambda value: next(arrays))
        return results

    def value_and_grad(
        self, instances: Iterable[Any], parameters: Mapping[str, Array] | None = None
    ) -> tuple[float, dict[str, Array]]:
        """The mean of the model's results, which are one number for each instance, and its gradient with respect to
        the parameters, by name."""
        run = self._run(instances, parameters)
        if not run.results:
            raise InputError("value_and_grad of no instances: their mean is not defined")
        for n, loss in enumerate(run.results):
            if not isinstance(loss, Value) or loss.shape != () or not loss.kind.is_float:
                raise GradientError(
                    f"the model's result for instance {n} is {loss!r}, not one number from a cell",
                    hint="let the model return the instance's loss: a float of shape ()",
                )
        flows: Arenas = {
            kind: jnp.zeros(arena.shape, arena.dtype) for kind, arena in run.store.arenas.items() if kind.is_float
        }
        for kind in {loss.kind for loss in run.results}:
            seeds = np.zeros(flows[kind].shape, kind.dtype)
            np.add.at(seeds, [row_of(loss) for loss in run.results if loss.kind is kind], 1 / len(run.results))
            flows[kind] = jnp.asarray(seeds)
        gradients = {name: jnp.zeros_like(value) for name, value in run.parameters.items()}
        for launch in reversed(run.launches):
            names = self.own(launch.group.trace)
            before = [gradients[name] for name in names]
            own = tuple(run.parameters[name] for name in names)
            after = self._kernels.backward(launch, own, run.store.arenas, flows, tuple(before))
            gradients.update(zip(names, after, strict=True))
        self._count(run)
        value = np.mean(run.store.rows(run.results), dtype=np.float64)
        return float(value), gradients

    def _run(self, instances: Iterable[Any], parameters: Mapping[str, Array] | None) -> _Run:
        given = self.given(parameters)
        with _no_collections():
            return self._computed(list(instances), given)

    def _computed(self, instances: Sequence[Any], given: Mapping[str, Array]) -> _Run:
        run = _Run(self, given, len(instances), self.programs)
        if not self._reads:
            try:
                run.record(instances)
            except Reading:
                # From now on every instance is one that can wait. What was recorded so far is of no use.
                self._reads = True
                run = _Run(self, given, len(instances), self.programs)
        if self._reads:
            run.results = Fibers(run.recorder, run.flush, run.store).run(self.model, instances)
        run.flush()
        self._count(run)
        return run

    def _count(self, run: _Run) -> None:
        of_cells = [launch for launch in run.launches if not launch.group.trace.auxiliary]
        self.statistics = Statistics(
            run.instances,
            sum(launch.calls for launch in of_cells),
            len(run.launches),
            sum(launch.width for launch in of_cells),
            self.programs - run.programs,
        )


@contextmanager
def _no_collections() -> Iterator[None]:
    """No search for garbage inside. A mini-batch makes thousands of small objects, none of which is garbage before its
    end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Run:
    """One mini-batch."""

    def __init__(self, batched: Batched, parameters: Mapping[str, Array], instances: int, programs: int) -> None:
        self.batched = batched
        self.parameters = parameters
        self.instances = instances
        self.programs = programs
        self.recorder = Recorder(batched.cells.values())
        self.store = Store(batched._capacities)
        self.launches: list[Launch] = []
        self.results: list[Any] = []

    def record(self, instances: Sequence[Any]) -> None:
        use(self.recorder)
        try:
            for n, instance in enumerate(instances):
                self.results.append(run_one(self.batched.model, instance, n))
        finally:
            use(None)

    def flush(self) -> None:
        """Compute everything that is recorded."""
        groups = self.batched._groups
        calls = self.recorder.take(groups, self.batched._hoisting)
        planned = [self.store.place(groups[together[0].trace], together) for together in launches(calls)]
        self.store.make_room()
        for launch in planned:
            own = tuple(self.parameters[name] for name in self.batched.own(launch.group.trace))
            self.batched._kernels.forward(launch, own, self.store.arenas)
        self.launches += planned


def batch(model: Callable[[Any], Any], cells: Mapping[str, Cell] | None = None, seed: int = 0) -> Batched:
    """A model of one instance as one of many: ``batched = tp.batch(model)``, then ``batched(instances)``.

    ``model`` is a recursive function that calls cells; those with parameters are named in ``cells``. Or it is an
    ``nn.Module`` whose ``__call__`` is the recursion: then the modules that it holds are its cells, and parameters
    have the names that they have in ``model.parameters()``.
    """
    named = dict(cells or {})
    for name, one in named.items():
        if not isinstance(one, Cell):
            raise ProgramError(f"cells: {name} is {one!r}, not a cell", hint="make it one: tp.cell(...)")
    if isinstance(model, tp.nn.Module):
        model, found = _with_cells(model)
        named = {**found, **named}
    return Batched(model, named, seed)


def _with_cells(model: Any) -> tuple[Any, dict[str, Cell]]:
    """A model with cells in place of the modules that it holds, and these by name."""
    cells: dict[str, Cell] = {}
    made: dict[int, Cell] = {}

    def changed(value: Any, name: str) -> Any:
        if isinstance(value, tp.nn.Parameter):
            raise ProgramError(
                f"{name} is a parameter of the model itself",
                hint="parameters belong into cells: put it into a module that the model holds",
            )
        if isinstance(value, tp.nn.Module):
            if id(value) not in made:
                made[id(value)] = cells[name] = Cell(value, name)  # type: ignore[arg-type]
            return made[id(value)]
        if isinstance(value, dict):
            return {key: changed(part, f"{name}.{key}") for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(changed(part, f"{name}.{n}") for n, part in enumerate(value))
        return value

    model = copy.copy(model)
    vars(model).update({name: changed(value, name) for name, value in vars(model).items()})
    return model, cells


def run_one(model: Callable[[Any], Any], instance: Any, number: int) -> Any:
    """The model on one instance; its errors say which."""
    try:
        return model(instance)
    except RecursionError as error:
        raise ProgramError(
            f"the model's recursion on instance {number} is deeper than Python allows, {sys.getrecursionlimit()} calls",
            hint="give the trees as arrays (tp.forest), or raise the limit: sys.setrecursionlimit",
        ) from error
    except Exception as error:
        error.add_note(f"while the model ran on instance {number}")
        raise
