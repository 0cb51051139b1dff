"""Compiled programs: what ``prog.compile`` gives."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tempo.backends.numpy_backend import NumpyMachine
from tempo.copying import OneOfAKind
from tempo.errors import CheckpointError, ProgramError
from tempo.given import Inputs, Record, Result, check_bounds, check_seed
from tempo.graph.node import Graph
from tempo.report.facts import Facts
from tempo.report.text import explain
from tempo.runtime.checkpoint import Checkpoint, Checkpoints
from tempo.runtime.compilation import Compilation, Request, Seconds
from tempo.runtime.run import Run, Worker
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import computes, only, show
from tempo.schedule.plan import Plan, wanted_plan
from tempo.schedule.planning import bytes_of
from tempo.schedule.script import Chunks, Script
from tempo.schedule.storage import Storage

if TYPE_CHECKING:
    from tempo.backends.jax.library import Library
    from tempo.backends.jax.whole import Whole
    from tempo.runtime.progress import ProgressBar

BACKENDS = ("jax", "numpy")

# The part of a machine's memory that a program on its CPU may take, unless it is told. (Of a GPU's, JAX takes as much.)
MACHINE_SHARE = 0.75

# Where Linux says what a container may take, in either version of control groups.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Executable(OneOfAKind):
    """A program compiled for given bounds. Call it with the inputs by name to get its outputs.

    One executable may be called many times and from several threads. ``save`` writes the run that was started last.
    """

    _instead = "prog.compile(...) gives another one; run.save(path) and run.load(path) hand a run over"

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
        check_seed(seed)
        self.seed = seed
        self.source = graph
        self.seconds = Seconds()
        self.numbers = check_bounds(graph, bounds)
        if parallel is None:
            parallel = on_gpu(backend, device)
        goal, wanted = wanted_plan(plan)
        # What is wrong with it is wrong with what the user wrote.
        wanted.sizes(graph)
        wanted.ranges(graph)
        budget = free_memory(backend, device) if memory is None else bytes_of(memory)
        self._request = Request(
            graph, self.numbers, backend, device, parallel, skip, goal, wanted, plan is None, budget, memory is not None
        )
        self._whole: Whole | None = None
        if backend == "jax":
            self._whole = self._kept() or self._compiled()
        else:
            _ = self._compilation
        self._latest: Run | None = None
        self._counts: dict[Chunks, int] = {}
        self._over = False
        self._loaded: Checkpoint | None = None

    def _named(self) -> str:
        return f"the compiled program '{self.source.name}'"

    def _kept(self) -> Whole | None:
        """The program as it was compiled before, if that is on disk."""
        from tempo.backends.jax.whole import kept

        with self.seconds.of("disk"):
            if self._library is None:
                return None
            request = self._request
            return kept(self._library, request.text, request.left, self.source, self.numbers, self._compiled)

    def _compiled(self) -> Whole | None:
        """The program, compiled now and kept on disk; None for one that needs Python while it runs."""
        from tempo.backends.jax.whole import keep

        start = time.perf_counter()
        peak = self._compilation.peak
        with self.seconds.of("XLA"):
            whole: Whole | None = self._machine.whole
        if self._library is not None and whole is not None:
            about = (whole, self._library, self._request.text, peak, start)
            threading.Thread(target=keep, args=about, name="tempo.keep").start()
        return whole

    @cached_property
    def _library(self) -> Library | None:
        from tempo.backends.jax.library import library_of
        from tempo.backends.jax.machine import find_device, use_disk_cache

        if self.backend != "jax":
            return None
        use_disk_cache()
        return library_of(find_device(self._request.device))

    @cached_property
    def _compilation(self) -> Compilation:
        """Loops and stores. Of a program that was on disk they are made when somebody asks for them."""
        request = self._request
        if self._whole is not None and not request.promised:  # one that is kept is the fastest, and fits
            request = replace(request, budget=None)
        return Compilation(request, self.seconds, self._library)

    @property
    def _machine(self) -> Any:
        return None if self.backend == "numpy" else self._compilation.machine

    @property
    def _script(self) -> Script:
        return self._compilation.script

    @property
    def graph(self) -> Graph:
        """The program as it was simplified."""
        return self._compilation.graph

    @property
    def schedule(self) -> Schedule:
        """Its loops."""
        return self._compilation.schedule

    @property
    def storage(self) -> Storage:
        """Its stores."""
        return self._compilation.storage

    @property
    def plan(self) -> Plan:
        """What was decided, and why."""
        return self._compilation.plan

    @property
    def where(self) -> str:
        """The kind of device that the program runs on."""
        return "numpy" if self.backend == "numpy" else str(self._place.device.device_kind)

    @property
    def _place(self) -> Any:
        """What knows the device and the inputs there."""
        return self._machine if self._whole is None else self._whole.place

    def __call__(self, /, seed: int | None = None, **inputs: Any) -> Result:
        """Run the program: an array for every input, by name; the outputs are the result's attributes."""
        whole = self._whole
        if whole is not None and self._loaded is None:
            return self.result(self._run_whole(whole, seed, inputs), ())
        run = self._start(seed, inputs, self._counts)
        with run.held_back.watched:
            while run.advance():
                pass
        if self._latest is run:  # whose stores nobody needs any more
            self._latest, self._over = None, True
        return self.result(run.worker.outputs(), run.pending)

    def _run_whole(self, whole: Whole, seed: int | None, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs, as arrays of the backend."""
        if seed is None and self._latest is None:
            outputs = whole.run_as_given(inputs)
            if outputs is not None:
                self._over = True
                return outputs
        # The outputs are waited for. (On a CPU, JAX may take NumPy's memory for an array's own.)
        copy = whole.place.device.platform == "cpu"
        arrays = self._inputs.checked(inputs, self.seed if seed is None else seed, copy)
        self._latest, self._over = None, True  # stores of a run before this one make room
        return whole.run(arrays)

    def stream(self, /, seed: int | None = None, progress: bool = False, **inputs: Any) -> Stream:
        """Run the program and iterate over what it emits, as it does: ``for record in run.stream(x=data)``.

        A record has the ``name`` of what was emitted, the ``point`` and the ``value``. When the iteration is over, the
        stream's ``result`` has the outputs. ``progress`` shows a bar.
        """
        run = self._start(seed, inputs, {})  # whoever streams wants the first records soon
        bar = None
        if progress:
            from tempo.runtime.progress import ProgressBar

            bar = ProgressBar(self.source.name, run.script.iterations)

        def give_up() -> None:
            if self._latest is run:
                self._latest, self._over = None, True

        return Stream(run, lambda: self.result(run.worker.outputs(), ()), give_up, bar)

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

    def _start(self, seed: int | None, inputs: Mapping[str, Any], counts: dict[Chunks, int]) -> Run:
        loaded = self._loaded
        if loaded is not None and seed not in (None, loaded.seed):
            raise CheckpointError(
                f"seed = {seed}: the run that was loaded has the seed {loaded.seed}", hint="leave the seed out"
            )
        used = loaded.seed if loaded is not None else self.seed if seed is None else seed
        arrays = self._inputs.checked(inputs, used)
        self._latest = None  # its stores make room for the new ones
        if loaded is None:
            run = Run(self._script, self._worker(arrays, None), int(used), counts=counts)
        else:
            worker = self._worker(arrays, loaded.kept)
            run = Run(self._script, worker, loaded.seed, loaded.position, loaded.records, counts)
        self._latest, self._loaded = run, None
        return run

    @cached_property
    def _inputs(self) -> Inputs:
        if self.backend == "numpy":
            return Inputs(self.source, self.numbers)
        place = self._place
        return Inputs(self.source, self.numbers, adopt=place.adopt, apart=place.apart)

    def _worker(self, arrays: Mapping[str, Any], kept: Mapping[Any, Any] | None) -> Worker:
        if self._machine is not None:
            with self.seconds.of("XLA"):
                self._machine.compile_parts()
            worker: Worker = self._machine.start(arrays, kept)
            return worker
        machine = NumpyMachine(self.graph, self.schedule, self.storage, self.numbers, arrays)
        if kept is not None:
            machine.restore(kept)
        return machine

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.source, self.graph, self.numbers, self.storage, self._script, self.backend)

    def result(self, outputs: Mapping[str, Any], records: Iterable[tuple[str, Record]]) -> Result:
        emitted: dict[str, list[Record]] = {name: [] for name in self.source.emits}
        for name, record in records:
            emitted[name].append(record)
        for array in outputs.values():
            if hasattr(array, "copy_to_host_async"):  # all of them at the same time
                array.copy_to_host_async()
        return Result({name: np.asarray(outputs[name]) for name in self.source.outputs}, emitted)

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
        return explain(self._facts)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write what ``explain`` tells, with pictures, into a file: a page of HTML that any browser shows, without a
        network. Gives the path."""
        from tempo.report.page import page

        file = Path(path)
        file.write_text(page(self._facts), encoding="utf-8")
        return file

    @property
    def _facts(self) -> Facts:
        programs, kernels = None, ()
        if self.backend == "jax":
            programs, kernels = (self._whole or self._machine).programs(), tuple(self._machine.loops())
        return Facts(
            self.source,
            self.graph,
            {bound.name: number for bound, number in self.numbers.items()},
            self.backend,
            self.where,
            self.plan,
            self.schedule,
            self.storage,
            programs,
            kernels,
            dict(self.seconds),
        )


class Stream(OneOfAKind):
    """What a running program emits, one record after the other; ``result`` when all is done.

    A stream that was left by an exception, Ctrl-C or that of a host function, goes on if it is iterated over again.
    Until it is closed, or the program runs again, the run is kept in memory, so that it can go on and be saved.
    """

    _instead = "run.save(path) and run.load(path) hand a run over; records and results can be copied"

    def __init__(
        self, run: Run, finish: Callable[[], Result], give_up: Callable[[], None], bar: ProgressBar | None = None
    ) -> None:
        self._run: Run | None = run
        self._finish: Callable[[], Result] | None = finish
        self._give_up = give_up
        self._bar = bar
        if bar is not None:
            # Whoever leaves a stream for good gets the terminal back.
            weakref.finalize(self, bar.stop)
        self.result: Result | None = None

    def _named(self) -> str:
        return "the stream of a run"

    def __iter__(self) -> Iterator[Emitted]:
        return self

    def __next__(self) -> Emitted:
        run = self._run
        if run is None or self._finish is None:
            raise StopIteration
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

    def close(self) -> None:
        """Give the run's memory back: it ends where it is, and can no longer be saved. A ``result`` stays."""
        self._give_up()
        self._run = self._finish = None
        if self._bar is not None:
            self._bar.stop()


class Emitted(NamedTuple):
    """One emitted value."""

    name: str
    point: Mapping[str, int]
    value: np.ndarray[Any, Any]


def on_gpu(backend: str, device: str | None) -> bool:
    """Whether a program will run where many steps at once take no longer than one."""
    if backend != "jax":
        return False
    from tempo.backends.jax.machine import find_device

    return bool(find_device(device).platform == "gpu")


def free_memory(backend: str, device: str | None) -> int | None:
    """What a device has left, or for a CPU most of what the machine has; None where that is not known."""
    if backend != "jax":
        return None
    from tempo.backends.jax.machine import find_device

    found = find_device(device)
    if found.platform == "cpu":
        return machine_memory()
    left = found.memory_stats() or {}
    return int(left["bytes_limit"] - left["bytes_in_use"]) if "bytes_limit" in left else None


def machine_memory() -> int | None:
    """What a program may take of the machine's memory, or of the part of it that a container may take."""
    sizes = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not on every system
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # without a limit, it is the word "max"
            sizes.append(int(Path(limit).read_text()))
    return int(MACHINE_SHARE * min(sizes)) if sizes else None
