"""Compiled programs: what ``prog.compile`` gives."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tempo.analysis import check_program
from tempo.backends.numpy_backend import NumpyMachine
from tempo.errors import BudgetError, CheckpointError, ProgramError
from tempo.given import Record, Result, check_bounds, check_inputs
from tempo.graph.node import Graph
from tempo.passes import apply_parallel_passes, apply_passes, with_own_emits
from tempo.passes.pinned import split_fixed_reads
from tempo.passes.ranges import tile_ranges
from tempo.passes.rolling import Rolled, roll
from tempo.runtime.checkpoint import Checkpoint, Checkpoints
from tempo.runtime.run import Run, Worker
from tempo.schedule.buckets import CPU_SPEED, GPU_SPEED, Buckets
from tempo.schedule.cost import RATES
from tempo.schedule.decisions import decisions, rolls
from tempo.schedule.loops import ScheduleError
from tempo.schedule.looptree import computes, only, show
from tempo.schedule.plan import Plan, wanted_plan
from tempo.schedule.planning import Planned, Planner, bytes_of, free_memory, show_bytes
from tempo.schedule.script import Script
from tempo.schedule.unrolling import worth_unrolling
from tempo.symbolic import Dim

if TYPE_CHECKING:
    from tempo.runtime.progress import ProgressBar

BACKENDS = ("jax", "numpy")

# How often a program is compiled again because XLA takes more memory than was planned.
MOST_ROUNDS = 4


class Executable:
    """A program compiled for given bounds. Call it with the inputs by name to get its outputs.

    One executable may be called many times and from several threads. ``save`` writes the run that was started last.
    """

    def __init__(
        self,
        graph: Graph,
        bounds: Mapping[Any, int],
        backend: str = "jax",
        device: str | None = None,
        seed: int = 0,
        skip: Container[str] = (),
        parallel: bool | None = None,
        plan: Plan | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        memory: int | str | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise ProgramError(
                f"there is no backend '{backend}'", hint=f"backends are {', '.join(map(repr, BACKENDS))}"
            )
        if backend == "numpy" and device not in (None, "cpu"):
            raise ProgramError(
                f"the numpy backend runs on the CPU, not on '{device}'", hint='leave device out, or use backend="jax"'
            )
        self.backend = backend
        self.seed = seed
        self.source = graph
        self.seconds: dict[str, float] = {}
        self.numbers = check_bounds(graph, bounds)
        with self.timed("analysis"):
            check_program(graph, bounds)
        if parallel is None:
            parallel = _on_gpu(backend, device)
        goal, wanted = wanted_plan(plan)
        # What is wrong with it is wrong with what the user wrote.
        wanted.sizes(graph)
        wanted.ranges(graph)
        budget = free_memory(backend, device) if memory is None else bytes_of(memory)
        self._machine: Any = None
        self._parallel = parallel
        self._rolls: tuple[Rolled, ...] | None = ()
        planner = self._plan(goal, wanted, budget, skip)
        if plan is None and parallel:
            unroll = worth_unrolling(graph, self.graph, self.schedule, self.storage)
            if unroll:
                planner = self._plan(goal, replace(wanted, unroll=unroll), budget, skip)
        if backend == "jax":
            self._compile(planner, budget, device, promised=memory is not None)
        self._latest: Run | None = None
        self._over = False
        self._loaded: Checkpoint | None = None

    def _plan(self, goal: str, wanted: Plan, budget: int | None, skip: Container[str]) -> Planner:
        """Passes, loops and stores for what is wanted."""
        unrolled = wanted.unrolled(self.source)

        def finished(graph: Graph, kept: frozenset[Dim]) -> Graph:
            if self._parallel:
                graph = apply_parallel_passes(graph, skip, self.numbers, kept)
            return with_own_emits(graph)

        with self.timed("passes"):
            passed = apply_passes(self.source, skip, None, self.numbers, unrolled)
            rolled, found = roll(passed) if wanted.roll else (passed, ())
            copies = frozenset(one.dim for one in found)
            self.graph = finished(rolled, unrolled | copies)
        with self.timed("plan"):
            planner = self._without_tangles(self.graph, wanted)
            if wanted.roll:
                self._rolls = None if found and planner is None else found
            if planner is None and found:
                self.graph = finished(passed, unrolled)
                planner = self._without_tangles(self.graph, wanted)
            planner = planner or self._untangled(wanted) or self._planner(self.graph, wanted)
            if goal == "smallest":
                self._take(planner.smallest())
            else:
                self._take(planner.fastest() if budget is None else planner.within(budget))
        return planner

    def _without_tangles(self, graph: Graph, wanted: Plan) -> Planner | None:
        """What plans a graph, if there are loops for all of it."""
        try:
            planner = self._planner(graph, wanted)
            return None if planner.fastest().schedule.tangled else planner
        except ScheduleError:
            return None

    def _planner(self, graph: Graph, wanted: Plan) -> Planner:
        speed = GPU_SPEED if self._parallel else CPU_SPEED
        buckets = Buckets(wanted.cuts(self.source), speed)
        rates = RATES["gpu" if self._parallel else "cpu"]
        # What is in host memory is named in terms of what is computed again.
        first = replace(wanted, host=(), recompute=False) if wanted.recompute else wanted
        unrolled = wanted.unrolled(self.source)
        graph, tiles = tile_ranges(graph, wanted.ranges(self.source), self.numbers)
        planner = Planner(graph, self.numbers, first, unrolled, buckets, self.source, rates, tiles)
        return planner.again(wanted) if wanted.recompute else planner

    def _untangled(self, wanted: Plan) -> Planner | None:
        """What plans the program with some rows as tensors of their own, if that is what it takes to find loops."""
        split = split_fixed_reads(self.graph)
        return None if split is self.graph else self._without_tangles(split, wanted)

    @property
    def where(self) -> str:
        """The kind of device that the program runs on."""
        return "numpy" if self._machine is None else str(self._machine.device.device_kind)

    def _take(self, planned: Planned) -> None:
        self.graph, self.schedule, self.storage = planned.graph, planned.schedule, planned.storage
        rolled = rolls(self._rolls, self.storage) if planned.plan.roll else ()
        self.plan = replace(planned.plan, decisions=(*rolled, *decisions(planned)))
        self._script = Script(self.graph, self.schedule, self.storage)

    def _compile(self, planner: Planner, budget: int | None, device: str | None, promised: bool) -> None:
        """Compile with XLA, and plan again for less where it takes more than was planned."""
        self._build(device)
        # What host functions return is not known before they do.
        if not promised or budget is None or self._machine.calls:
            return
        target, smallest = budget, sys.maxsize
        for rounds in itertools.count(1):
            with self.timed("XLA"):
                taken = sum(self._machine.memory().values())
            if taken <= budget:
                return
            smallest = min(smallest, taken)
            target = int(min(target, self.storage.peak) * budget / taken)
            with self.timed("plan"):
                try:
                    planned = planner.within(target)
                except BudgetError:
                    planned = planner.least()
            if rounds == MOST_ROUNDS or planned.storage.peak >= self.storage.peak:
                raise BudgetError(
                    f"program '{self.source.name}' does not fit into {show_bytes(budget)}: "
                    f"compiled, it takes {show_bytes(smallest)}",
                    smallest=smallest,
                    hint=f"give memory={smallest}, or smaller bounds",
                )
            self._take(planned)
            self._build(device)

    def _build(self, device: str | None) -> None:
        from tempo.backends.jax.machine import JaxMachine

        with self.timed("XLA"):
            self._machine = JaxMachine(
                self.graph, self.schedule, self.storage, self.numbers, self._script, device, self._parallel
            )

    def __call__(self, seed: int | None = None, **inputs: Any) -> Result:
        """Run the program: an array for every input, by name; the outputs are the result's attributes."""
        if self._machine is not None and self._machine.whole and self._loaded is None:
            arrays = self._arrays(self.seed if seed is None else seed, inputs)
            self._latest, self._over = None, True
            return self.result(self._machine.run(arrays), ())
        run = self._start(seed, inputs)
        with run.held_back.watched:
            while run.advance():
                pass
        if self._latest is run:  # whose stores nobody needs any more
            self._latest, self._over = None, True
        return self.result(run.worker.outputs(), run.pending)

    def stream(self, seed: int | None = None, progress: bool = False, **inputs: Any) -> Stream:
        """Run the program and iterate over what it emits, as it does: ``for record in run.stream(x=data)``.

        A record has the ``name`` of what was emitted, the ``point`` and the ``value``. When the iteration is over, the
        stream's ``result`` has the outputs. ``progress`` shows a bar.
        """
        run = self._start(seed, inputs)
        bar = None
        if progress:
            from tempo.runtime.progress import ProgressBar

            bar = ProgressBar(self.source.name, run.script.iterations)
        return Stream(run, lambda: self.result(run.worker.outputs(), ()), bar)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the latest run, as it is now, into a file, from which ``load`` lets it go on."""
        run = self._latest
        if run is None or run.broken:
            hint = "iterate over run.stream(...), which can be saved at any time"
            if run is not None:
                problem = "the run failed in the middle of an iteration"
            elif self._over:
                problem = f"the call of program '{self.source.name}' is over"
            else:
                problem = f"program '{self.source.name}' has not been run"
            raise CheckpointError(f"there is nothing to save: {problem}", hint=hint)
        self._checkpoints.save(path, run)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Let the next call or stream go on from where a run was saved. It is given the same inputs again; the seed is
        that of the run."""
        self._loaded = self._checkpoints.load(path)

    def _start(self, seed: int | None, inputs: Mapping[str, Any]) -> Run:
        loaded = self._loaded
        if loaded is not None and seed not in (None, loaded.seed):
            raise CheckpointError(
                f"seed = {seed}: the run that was loaded has the seed {loaded.seed}", hint="leave the seed out"
            )
        used = loaded.seed if loaded is not None else self.seed if seed is None else seed
        arrays = self._arrays(used, inputs)
        self._latest = None  # its stores make room for the new ones
        if loaded is None:
            run = Run(self._script, self._worker(arrays, None), int(used))
        else:
            worker = self._worker(arrays, loaded.kept)
            run = Run(self._script, worker, loaded.seed, loaded.position, loaded.records)
        self._latest, self._loaded = run, None
        return run

    def _arrays(self, seed: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if self._machine is None:
            return check_inputs(self.source, self.numbers, inputs, seed)
        machine = self._machine
        return check_inputs(self.source, self.numbers, inputs, seed, adopt=machine.adopt, apart=machine.apart)

    def _worker(self, arrays: Mapping[str, Any], kept: Mapping[Any, Any] | None) -> Worker:
        if self._machine is not None:
            worker: Worker = self._machine.start(arrays, kept)
            return worker
        machine = NumpyMachine(self.graph, self.schedule, self.storage, self.numbers, arrays)
        if kept is not None:
            machine.restore(kept)
        return machine

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.source, self.graph, self.numbers, self.storage, self._script)

    def result(self, outputs: Mapping[str, Any], records: Iterable[tuple[str, Record]]) -> Result:
        emitted: dict[str, list[Record]] = {name: [] for name in self.source.emits}
        for name, record in records:
            emitted[name].append(record)
        return Result({name: np.asarray(outputs[name]) for name in self.source.outputs}, emitted)

    def timed(self, phase: str) -> _Timer:
        return _Timer(self.seconds, phase)

    def loop_tree(self, *names: str) -> str:
        """The loops and what is computed in them, as text; with ``names``, of tensors or of operations such as
        ``"einsum"``, nothing but those."""
        trees = self.schedule.trees
        if names:
            named = {c.node for c in computes(trees) if c.node.name in names or c.node.op.name in names}
            trees = tuple(only(named, trees))
        return show(trees)

    def explain(self) -> str:
        """How the program was compiled, as text: graphs, loop tree, stores, XLA programs, time by phase."""
        sections = [
            ("program", str(self.source)),
            ("after simplification", str(self.graph)),
            ("plan", str(self.plan)),
            ("loop tree", self.loop_tree()),
            ("stores", str(self.storage)),
        ]
        if self._machine is not None:
            sections.append(("XLA programs", self._machine.describe()))
        sections.append(("seconds", ", ".join(f"{phase} {s:.3f}" for phase, s in self.seconds.items())))
        return "\n\n".join(f"-- {title} --\n{text}" for title, text in sections)


class Stream:
    """What a running program emits, one record after the other; ``result`` when all is done.

    A stream that was left by an exception, Ctrl-C or that of a host function, goes on if it is iterated over again.
    """

    def __init__(self, run: Run, finish: Callable[[], Result], bar: ProgressBar | None = None) -> None:
        self._run = run
        self._finish = finish
        self._bar = bar
        if bar is not None:
            # Whoever leaves a stream for good gets the terminal back.
            weakref.finalize(self, bar.stop)
        self.result: Result | None = None

    def __iter__(self) -> Iterator[Emitted]:
        return self

    def __next__(self) -> Emitted:
        run = self._run
        if not run.pending:
            with self._bar or contextlib.nullcontext(), run.held_back.watched:
                while not run.pending and run.advance():
                    if self._bar is not None:
                        self._bar.update(run.script.iterations_before(run.position), run.pending)
        if not run.pending:
            if self.result is None:
                self.result = self._finish()
            if self._bar is not None:
                self._bar.stop()
            raise StopIteration
        name, record = run.pending.popleft()
        return Emitted(name, record.point, record.value)


class Emitted(NamedTuple):
    """One emitted value."""

    name: str
    point: Mapping[str, int]
    value: np.ndarray[Any, Any]


class _Timer:
    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self.seconds = seconds
        self.phase = phase

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + time.perf_counter() - self.start


def _on_gpu(backend: str, device: str | None) -> bool:
    """Whether a program will run where many steps at once take no longer than one."""
    if backend != "jax":
        return False
    from tempo.backends.jax.machine import _device

    return bool(_device(device).platform == "gpu")
