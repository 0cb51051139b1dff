"""Compiled programs: what ``prog.compile`` gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tempo.analysis import check_program
from tempo.backends.numpy_backend import NumpyMachine
from tempo.errors import ProgramError
from tempo.given import Record, Result, check_bounds, check_inputs
from tempo.graph.node import Graph
from tempo.passes import apply_passes, with_own_emits
from tempo.schedule.loops import schedule
from tempo.schedule.looptree import show
from tempo.schedule.storage import plan_storage

BACKENDS = ("jax", "numpy")


class Executable:
    """A program compiled for given bounds. Call it with the inputs by name to get its outputs.

    One executable may be called many times and from several threads.
    """

    def __init__(
        self,
        graph: Graph,
        bounds: Mapping[Any, int],
        backend: str = "jax",
        device: str | None = None,
        seed: int = 0,
        skip: Container[str] = (),
    ) -> None:
        if backend not in BACKENDS:
            raise ProgramError(
                f"there is no backend '{backend}'", hint=f"backends are {', '.join(map(repr, BACKENDS))}"
            )
        if backend == "numpy" and device not in (None, "cpu"):
            raise ProgramError(
                f"the numpy backend runs on the CPU, not on '{device}'", hint='leave device out, or use backend="jax"'
            )
        _check_supported(graph)
        self.backend = backend
        self.seed = seed
        self.source = graph
        self.seconds: dict[str, float] = {}
        self.numbers = check_bounds(graph, bounds)
        with self.timed("analysis"):
            check_program(graph, bounds)
        with self.timed("passes"):
            self.graph = with_own_emits(apply_passes(graph, skip))
        with self.timed("schedule"):
            self.schedule = schedule(self.graph, self.numbers)
        with self.timed("storage"):
            self.storage = plan_storage(self.graph, self.schedule, self.numbers)
        self._machine: Any = None
        if backend == "jax":
            from tempo.backends.jax.machine import JaxMachine

            with self.timed("XLA"):
                self._machine = JaxMachine(self.graph, self.schedule, self.storage, self.numbers, device)

    def __call__(self, seed: int | None = None, **inputs: Any) -> Result:
        """Run the program: an array for every input, by name; the outputs are the result's attributes."""
        seed = self.seed if seed is None else seed
        # Arrays that live on a device stay there; everything else is checked and converted as NumPy arrays.
        arrays = check_inputs(self.source, self.numbers, inputs, seed)
        outputs, emitted = self.machine(arrays).run() if self._machine is None else self._machine.run(arrays)
        return self.result(outputs, emitted)

    def stream(self, seed: int | None = None, **inputs: Any) -> Stream:
        """Run the program and iterate over what it emits, as it does: ``for record in run.stream(x=data)``.

        A record has the ``name`` of what was emitted, the ``point`` and the ``value``. When the iteration is over, the
        stream's ``result`` has the outputs.
        """
        seed = self.seed if seed is None else seed
        arrays = check_inputs(self.source, self.numbers, inputs, seed)
        outputs: dict[str, Any] = {}
        if self._machine is None:
            records = self.machine(arrays).stream(outputs)
        else:
            records = self._machine.stream(arrays, outputs)
        return Stream(records, lambda: self.result(outputs, {}))

    def result(self, outputs: Mapping[str, Any], emitted: Mapping[str, list[Record]]) -> Result:
        return Result({name: np.asarray(outputs[name]) for name in self.source.outputs}, emitted)

    def machine(self, arrays: Mapping[str, Any]) -> NumpyMachine:
        return NumpyMachine(self.graph, self.schedule, self.storage, self.numbers, arrays)

    def timed(self, phase: str) -> _Timer:
        return _Timer(self.seconds, phase)

    def explain(self) -> str:
        """How the program was compiled, as text: graphs, loop tree, stores, XLA programs, time by phase."""
        sections = [
            ("program", str(self.source)),
            ("after simplification", str(self.graph)),
            ("loop tree", show(self.schedule.trees)),
            ("stores", str(self.storage)),
        ]
        if self._machine is not None:
            sections.append(("XLA programs", self._machine.describe()))
        sections.append(("seconds", ", ".join(f"{phase} {s:.3f}" for phase, s in self.seconds.items())))
        return "\n\n".join(f"-- {title} --\n{text}" for title, text in sections)


class Stream:
    """What a running program emits."""

    def __init__(self, records: Iterator[tuple[str, Record]], finish: Callable[[], Result]) -> None:
        self._records = records
        self._finish = finish
        self.result: Result | None = None

    def __iter__(self) -> Iterator[Emitted]:
        for name, record in self._records:
            yield Emitted(name, record.point, record.value)
        self.result = self._finish()


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
        self.seconds[self.phase] = time.perf_counter() - self.start


def _check_supported(graph: Graph) -> None:
    """What only the reference interpreter runs so far."""
    if graph.stops:
        raise ProgramError(
            f"program '{graph.name}' has a stop condition, which compiled programs cannot have yet",
            hint="prog.evaluate(...) runs it on the reference interpreter",
        )
