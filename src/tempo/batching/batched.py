"""Batched models: from a recursive function of one instance to a function of many."""

from __future__ import annotations

import copy
import gc
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

import tempo as tp
from tempo.backends.jax.jitted import jitted
from tempo.batching.cell import Cell
from tempo.batching.eager import Eager
from tempo.batching.fibers import Fibers
from tempo.batching.kernels import Kernels
from tempo.batching.parameters import Parametrised
from tempo.batching.phases import Phases
from tempo.batching.planning import Planner, Put, Run
from tempo.batching.recording import Recorder, current, use
from tempo.batching.store import Arenas, Piece, Store, cleared, fetched
from tempo.batching.trace import Trace, index_error, narrowed
from tempo.batching.value import StartAgainError, Value, for_each, replaced, values_in
from tempo.errors import GradientError, InputError, ProgramError
from tempo.given import check_seed

Array = Any
Errors = Literal["raise", "return"]


@dataclass(frozen=True)
class Statistics:
    """How one mini-batch was computed."""

    instances: int
    calls: int
    """How many calls of cells the instances made."""
    repeated: int
    """How many of these had the same numbers as others, and were not computed again."""
    launches: int
    """How many kernels they became: also those that put data into arenas, or compute what was taken out of a recursive
    cell; backward passes not."""
    lanes: int
    """The kernels' widths, added up: calls and padding."""
    compiled: int
    """How many kernels had to be compiled for it."""
    dispatches: int
    """How many compiled functions Python called for it: launches of one cell and width in a row are one loop, and on a
    GPU a few that instances wait for are one function."""
    seconds: Mapping[str, float]
    """What the host did: ``model`` (running it, which records calls), ``plan``, ``launch`` (calling compiled functions,
    forwards) and ``fetch`` (waiting for results, and copying them)."""

    @property
    def width(self) -> float:
        """How many calls a kernel makes on average."""
        return (self.calls - self.repeated) / self.launches if self.launches else 0.0

    @property
    def padding(self) -> float:
        """The part of the work that was for nothing."""
        return 1 - (self.calls - self.repeated) / self.lanes if self.lanes else 0.0

    def __str__(self) -> str:
        again = f" ({self.repeated} repeated)" if self.repeated else ""
        return (
            f"{self.instances} instances, {self.calls} calls{again}: {self.launches} launches "
            f"of {self.width:.1f} calls, {self.padding:.0%} padding, {self.compiled} compiled"
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


class Batched(Parametrised):
    """``batched(instances)``: the results of a model for each of them, computed together.

    ``parameters`` are the values of the model's parameters by name, to be read and replaced; at first they are what
    their initialisers make of ``seed``. ``statistics`` are those of the latest mini-batch, ``programs`` is how many
    kernels were compiled since the beginning.
    """

    def __init__(self, model: Callable[[Any], Any], cells: Mapping[str, Cell], seed: int = 0) -> None:
        super().__init__(cells, seed)
        self.model = model
        self.statistics = Statistics(0, 0, 0, 0, 0, 0, 0, {})
        self._kernels = Kernels()
        self._planner = Planner()
        self._phases = Phases()
        self._eager = Eager()
        self._idle: Arenas = {}
        self._idle_flows: Arenas = {}
        self._reads, self._draws = False, False
        """What is known of the model: whether it reads values, and whether cells draw."""

    @property
    def programs(self) -> int:
        return len(self._kernels.programs)

    @_no_collections()
    @jitted
    def __call__(
        self,
        instances: Iterable[Any],
        parameters: Mapping[str, Array] | None = None,
        *,
        errors: Errors = "raise",
        seed: int = 0,
    ) -> list[Any]:
        """The model's result for each instance, with arrays for the results of cells.

        With ``errors="return"``, what the model raised on an instance is that instance's result. What cells draw
        depends on ``seed``, on the instance's number and on what the model did for it before.
        """
        if errors not in ("raise", "return"):
            raise InputError(f"errors is {errors!r}", hint='"raise" or "return"')
        run = self._run(instances, parameters, errors, seed)
        if errors == "return":
            # Those through which nothing can go are errors, before anything is found in them.
            run.results = for_each(run.results, lambda result: replaced(result, lambda value: value), errors)
        values: list[Value] = []
        for_each(run.results, lambda result: values_in(result, values))
        arrays = iter(run.fetch(values))
        results = for_each(run.results, lambda result: replaced(result, lambda _: next(arrays)))
        run.store.give_back()
        for n in run.faults:
            if not isinstance(run.results[n], Exception):
                results[n] = run.faults[n]
        return results

    @jitted
    def one_by_one(
        self, instances: Iterable[Any], parameters: Mapping[str, Array] | None = None, *, seed: int = 0
    ) -> list[Any]:
        """The same without any batching: every call of a cell is computed when it is made, so that the model can be
        looked at while it runs (its values can be printed). Slow."""
        check_seed(seed)
        values = self.given(parameters)
        outer = current()
        recorder = self._eager.recorder({one: self.own_values(one, values) for one in self.cells.values()}, seed)
        use(recorder)
        results = []
        try:
            for n, instance in enumerate(_listed(instances)):
                recorder.begin(n)
                results.append(run_one(self.model, instance, n))
        finally:
            use(outer)
        return for_each(results, lambda result: replaced(result, lambda value: value.read()))

    @_no_collections()
    @jitted
    def value_and_grad(
        self,
        instances: Iterable[Any],
        parameters: Mapping[str, Array] | None = None,
        *,
        inputs: Callable[[Any], Any] | None = None,
        seed: int = 0,
    ) -> Any:
        """The mean loss of the instances, and its gradient with respect to the parameters, by name.

        An instance's loss is what the model returns for it: a number, or several (lists, tuples, dicts) to be summed.
        With ``inputs``, a function that gives the arrays of an instance that gradients are wanted for, in any structure
        of lists, tuples and dicts, there is a third result: a list of these structures with gradients.
        """
        instances = _listed(instances)
        if inputs is not None and not callable(inputs):
            raise GradientError(
                f"inputs is {inputs!r}, not a function",
                hint="it gives the arrays of an instance that gradients are wanted for: inputs=lambda instance: ...",
            )
        given = [tree_util.tree_flatten(inputs(instance)) for instance in instances] if inputs is not None else []
        wanted = [leaf for leaves, _ in given for leaf in leaves]
        for leaf in wanted:
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind != "f":
                raise GradientError(
                    f"inputs: there is no gradient with respect to {leaf!r}", hint="NumPy arrays of floats have one"
                )
        run = self._run(instances, parameters, "raise", seed, frozenset(map(id, wanted)))
        if not run.results:
            raise InputError("value_and_grad of no instances: their mean is not defined")
        losses: list[Value] = []
        parts: list[list[Value]] = for_each(run.results, tree_util.tree_leaves)
        for n, (result, own) in enumerate(zip(run.results, parts, strict=True)):
            if not own or any(not isinstance(v, Value) or v.shape != () or not v.kind.is_float for v in own):
                raise GradientError(
                    f"the model's result for instance {n} is {result!r}, not one number from a cell, or several",
                    hint="let the model return the instance's loss: floats of shape ()",
                )
            losses += own
        for trace in {one.lanes.group.trace for one in run.runs}:
            if trace.stops and any(kind.is_float for kind in trace.results):
                raise GradientError(
                    f"cell {trace.cell.name} is a program that stops on data: there is no gradient through it",
                    hint="let it make all of its steps, and choose the last one that counts with tp.where",
                )
        flows = cleared(run.store.arenas, self._idle_flows)
        rows = run.store.rows
        for kind in {loss.kind for loss in losses}:
            seeds = np.zeros(flows[kind].shape, kind.dtype)
            np.add.at(seeds, [rows.row(loss) for loss in losses if loss.kind is kind], 1 / len(instances))
            flows[kind] = jnp.asarray(seeds)
        gradients = run.backward(flows)
        total = float(np.sum(run.fetch(losses), dtype=np.float64)) / len(instances)
        self._count(run)
        run.store.give_back()
        found = iter(run.flowed(wanted, flows))
        self._idle_flows.update(flows)
        if inputs is None:
            return total, gradients
        return (
            total,
            gradients,
            [tree_util.tree_unflatten(tree, [next(found) for _ in leaves]) for leaves, tree in given],
        )

    def _run(
        self,
        instances: Iterable[Any],
        parameters: Mapping[str, Array] | None,
        errors: Errors,
        seed: int = 0,
        wanted: frozenset[int] = frozenset(),
    ) -> _Run:
        check_seed(seed)
        given = self.given(parameters)
        instances = _listed(instances)
        programs = self.programs
        start = time.perf_counter()
        while True:
            run = _Run(self, given, len(instances), programs, errors, seed if self._draws else None, wanted)
            try:
                if self._reads:
                    fibers = Fibers(run.recorder, run.flush, run.fetch, run.faults)
                    run.results = fibers.run(self.model, instances, errors)
                else:
                    run.record(instances)
            except (Exception, StartAgainError):
                # A model may have caught that a value could not be read, and failed without it.
                if not run.recorder.reads and not run.recorder.drew:
                    raise
            if not run.recorder.reads and not run.recorder.drew:
                break
            # What was recorded so far is of no use. From now on every instance is one that can wait, or has keys.
            self._reads |= run.recorder.reads
            self._draws |= run.recorder.drew
            run.store.give_back()
        run.seconds["model"] = time.perf_counter() - start - sum(run.seconds.values())
        run.flush()
        self._count(run)
        return run

    def _count(self, run: _Run) -> None:
        runs = run.runs
        of_cells = [one for one in runs if not one.lanes.group.trace.auxiliary]
        repeated = sum({id(one.lanes): one.lanes.repeated for one in of_cells}.values())
        self.statistics = Statistics(
            run.instances,
            sum(one.calls for one in of_cells) + repeated,
            repeated,
            sum(one.launches for one in runs),
            sum(one.width * one.launches for one in of_cells),
            self.programs - run.programs,
            run.dispatches,
            run.seconds,
        )


class _Run:
    """One mini-batch."""

    def __init__(
        self,
        batched: Batched,
        parameters: Mapping[str, Array],
        instances: int,
        programs: int,
        errors: Errors,
        seed: int | None,
        wanted: frozenset[int],
    ) -> None:
        self.batched = batched
        self.parameters = parameters
        self.instances = instances
        self.programs = programs
        self.errors = errors
        self.recorder = Recorder(batched.cells.values(), batched._phases, seed)
        self.store = Store(batched._planner.capacities, batched._idle)
        self.put = Put(wanted)
        self.own: dict[tuple[Trace, int], tuple[Array, ...]] = {}
        """The values of the parameters of cells, per width."""
        self.steps: list[Sequence[Run]] = []
        """Launches, as they were started."""
        self.dispatches = 0
        self.seconds = dict.fromkeys(("model", "plan", "launch", "fetch"), 0.0)
        self.results: list[Any] = []
        self.unchecked: dict[int, list[Run]] = {}
        """Launches whose indices nobody has looked at yet, by the identities of their lanes."""
        self.faults: dict[int, InputError] = {}
        """The errors of instances for which something could not be computed."""
        self.pieces: list[Piece] = []
        """What was computed last, as far as it is not only in arenas."""

    @property
    def runs(self) -> list[Run]:
        return [run for step in self.steps for run in step]

    def record(self, instances: Sequence[Any]) -> None:
        outer = current()
        use(self.recorder)
        try:
            for n, instance in enumerate(instances):
                self.recorder.begin(n)
                self.results.append(run_one(self.batched.model, instance, n, self.errors))
        finally:
            self.recorder.close()
            use(outer)

    def flush(self, wanted: Sequence[Value] | None = None) -> None:
        """Compute these values, and what they need; or everything that is recorded."""
        start = time.perf_counter()
        if self.errors == "return":
            for number, error in self.recorder.misfits():
                (instance,) = self.recorder.instances(np.array([number]))
                self.faults.setdefault(instance, error)
        numbers = None if wanted is None else [value.number for value in wanted]
        planned = self.batched._planner.plan(self.recorder, self.store.rows, self.put, numbers)
        self.store.make_room()
        launching = time.perf_counter()
        kernels = self.batched._kernels
        steps = kernels.steps(planned)
        kernels.prepare(steps, self._own, self.store.arenas)
        for step in steps:
            self.dispatches += kernels.forward(step, self._own, self.store.arenas)
        for run in planned:
            if run.lanes.group.trace.has_indices:
                self.unchecked.setdefault(id(run.lanes), []).append(run)
        self.steps += steps
        self.pieces = [piece for run in planned for piece in run.lanes.pieces()]
        self.seconds["plan"] += launching - start
        self.seconds["launch"] += time.perf_counter() - launching

    def fetch(self, values: Sequence[Value]) -> list[np.ndarray[Any, Any]]:
        """Computed values. Where an index was out of range, this is an error, or those of some instances mean nothing,
        which are then among the ``faults``."""
        start = time.perf_counter()
        rows = self.store.rows.of[[value.number for value in values]]
        statuses: Sequence[Any] = [runs[0].lanes.status for runs in self.unchecked.values()]
        kinds = [value.source.kind for value in values]
        found, statuses = fetched(self.store.arenas, kinds, rows, statuses, self.pieces)
        for runs, (_, fault) in zip(self.unchecked.values(), statuses, strict=True):
            if fault:
                self._blame(runs, int(fault) - 1)
        self.unchecked = {}
        self.seconds["fetch"] += time.perf_counter() - start
        return found

    def _blame(self, runs: Sequence[Run], lane: int) -> None:
        """Find out whose fault it is that an index of a cell is out of range, first of all in this lane."""
        lanes = runs[0].lanes
        name = lanes.group.trace.cell.name
        if self.errors == "raise":
            (instance,) = self.recorder.instances(lanes.recorded[[lane]])
            raise index_error(name, instance)
        bad = self.batched._kernels.faults(runs, self._plain, self.store.arenas)
        bad[lane] = True  # an index made of floats may be another one now
        for instance in self.recorder.instances(lanes.calls(bad)):
            self.faults.setdefault(instance, index_error(name, instance))

    def backward(self, flows: Arenas) -> dict[str, Array]:
        """The parameters' gradients; ``flows`` become those of all values."""
        gradients = dict(zip(self.parameters, _zeros(list(self.parameters.values())), strict=True))
        left: dict[int, Array] = {}
        runs = self.runs
        self.batched._kernels.prepare_backward(runs, self._plain, self.store.arenas, flows)
        for run in reversed(runs):
            lanes = run.lanes
            names = self.batched.own(lanes.group.trace)
            left[id(lanes)], after = self.batched._kernels.backward(
                run,
                left.get(id(lanes), lanes.launches),
                self._plain(run),
                self.store.arenas,
                flows,
                tuple([gradients[name] for name in names]),
            )
            gradients.update(zip(names, after, strict=True))
        return gradients

    def flowed(self, leaves: Sequence[Any], flows: Arenas) -> list[np.ndarray[Any, Any]]:
        """What has flowed into data: zeros where no cell was given them."""
        numbers = {key[0]: (key[1], number) for key, (number, _) in self.put.found.items()}
        if leaves and not any(id(leaf) in numbers for leaf in leaves):
            raise GradientError(
                "inputs: no cell was given any of these arrays",
                hint="gradients are of arrays that cells are given as they are: rows of them, or copies, are others",
            )
        there = [numbers[id(leaf)] for leaf in leaves if id(leaf) in numbers]
        rows = self.store.rows.of[[number for _, number in there]]
        found, _ = fetched(flows, [kind for kind, _ in there], rows)
        arrays = iter(found)
        return [next(arrays) if id(leaf) in numbers else np.zeros(leaf.shape, narrowed(leaf.dtype)) for leaf in leaves]

    def _own(self, run: Run) -> tuple[Array, ...]:
        """The parameters of a run's cell as its forward kernel reads them."""
        key = run.lanes.group.trace, run.width
        if key not in self.own:
            self.own[key] = self.batched._kernels.turned(run, self.batched.own(key[0]), self.parameters)
        return self.own[key]

    def _plain(self, run: Run) -> tuple[Array, ...]:
        return tuple([self.parameters[name] for name in self.batched.own(run.lanes.group.trace)])


@jax.jit
def _zeros(arrays: Sequence[Array]) -> list[Array]:
    """In one go: on a GPU, every array by itself would take as long as a kernel."""
    return [jnp.zeros_like(array) for array in arrays]


def batch(model: Callable[[Any], Any], cells: Mapping[str, Cell] | None = None, seed: int = 0) -> Batched:
    """A model of one instance as one of many: ``batched = tp.batch(model)``, then ``batched(instances)``.

    ``model`` is a recursive function that calls cells; those with parameters are named in ``cells``. Or it is an
    ``nn.Module`` whose ``__call__`` is the recursion: then the modules that it holds are its cells, and parameters
    have the names that they have in ``model.parameters()``.
    """
    if not callable(model):
        raise ProgramError(f"the model is {model!r}, not a function", hint="tp.batch takes a function of one instance")
    functions = model, type(model).__call__
    if any(inspect.isgeneratorfunction(one) or inspect.iscoroutinefunction(one) for one in functions):
        raise ProgramError(
            f"the model is {model!r}, which runs nothing when it is called",
            hint="let it return its result, without yield and async: where it reads a value it waits by itself",
        )
    if cells is not None and not isinstance(cells, Mapping):
        raise ProgramError(f"cells is {cells!r}, without names", hint='give them by name: cells={"leaf": leaf, ...}')
    named = dict(cells or {})
    for name, one in named.items():
        if not isinstance(one, Cell):
            raise ProgramError(f"cells: {name} is {one!r}, not a cell", hint="make it one: tp.cell(...)")
    if isinstance(model, tp.nn.Module):
        model, found = _with_cells(model)
        named = {**found, **named}
    return Batched(model, named, seed)


def _listed(instances: Iterable[Any]) -> list[Any]:
    try:
        some = iter(instances)
    except TypeError:
        raise InputError(
            f"the instances are {instances!r}", hint="give a list of them: batched([instance]) for one"
        ) from None
    return list(some)


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


def run_one(model: Callable[[Any], Any], instance: Any, number: int, errors: Errors = "raise") -> Any:
    """The model on one instance; its errors say which."""
    try:
        return model(instance)
    except RecursionError as error:
        found: Exception = ProgramError(
            f"the model's recursion on instance {number} is deeper than Python allows, {sys.getrecursionlimit()} calls",
            hint="give the trees as arrays (tp.forest), or raise the limit: sys.setrecursionlimit",
        )
        found.__cause__ = error
    except Exception as error:
        error.add_note(f"while the model ran on instance {number}")
        found = error
    if errors == "raise":
        raise found
    return found
