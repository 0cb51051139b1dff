"""Kernels: a cell for many instances at once, reading from arenas and writing into them.

An arena is one array with all values of one kind; a kernel gathers its arguments' rows inside, and writes each of its
results as consecutive rows. Arenas are donated, so that nothing is copied. Parameters come without a batch axis.

Which rows, a kernel finds on the device: the launches of a cell are a table, the rows of their arguments another, and
every kernel tells the next how many launches are done. So a launch costs one call of a compiled function and no
transfer; launches of one cell and width that follow each other are a loop inside one kernel. Where instances wait and a
cell has a few launches only, each is told its rows, and looks nothing up: that saves 8 us of the 40 of a small kernel.
On a GPU, a few of these are one kernel, and what instances wait for is written to where the host has it at once.

What they compute is in ``launches.py``; here is which there are, for what they were compiled, and how they are called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from tempo.backends.jax.compiling import GRAPHS, LIBRARY_ONLY, has_graphs
from tempo.backends.jax.machine import use_disk_cache
from tempo.batching import launches
from tempo.batching.large import WithLargeProducts, has_large_products
from tempo.batching.launches import kinds_of_all, read_turned
from tempo.batching.planning import Lanes, Run
from tempo.batching.store import Arenas
from tempo.batching.trace import Kind
from tempo.batching.widths import FEW

Array = Any

MOST_AT_ONCE, JOINTS = 4, 16
"""Where instances wait on a GPU, so many launches are one kernel: to call one takes 60 us, and 60 more to hand it its
rows. Which launches come together, and how wide, differs from wait to wait: there are no more such kernels."""


@cache
def _start() -> Array:
    return jax.device_put(np.zeros(2, np.int32))


@jax.jit
def _turn(matrix: Array) -> Array:
    return matrix.T


@dataclass(eq=False)
class Kernels:
    """The kernels of a model's cells, and for what they were compiled."""

    forwards: dict[Any, Any] = field(default_factory=dict)
    backwards: dict[Any, Any] = field(default_factory=dict)
    faulty: dict[Any, Any] = field(default_factory=dict)
    programs: set[Any] = field(default_factory=set)
    together: dict[Any, Any] = field(default_factory=dict)
    """Kernels of several launches."""
    joints: set[Any] = field(default_factory=set)
    """Which launches, of which widths, there are such kernels for."""
    matrices: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    """By name parameters that kernels read turned, as they are and as they are read: for as long as they stay."""

    def turned(self, run: Run, names: Sequence[str], parameters: Mapping[str, Array]) -> tuple[Array, ...]:
        """The parameters with these names as a run's forward kernel reads them."""
        found = []
        for name, is_turned in zip(names, read_turned(run.lanes.group.trace, run.width), strict=True):
            array = parameters[name]
            if is_turned:
                before, turned = self.matrices.get(name, (None, None))
                if before is not array:
                    turned = _turn(array)
                    self.matrices[name] = array, turned
                array = turned
            found.append(array)
        return tuple(found)

    def steps(self, runs: Sequence[Run]) -> list[Sequence[Run]]:
        """Runs as they are started: one after another, or all of a few launches that instances wait for at once."""
        if 1 < len(runs) <= MOST_AT_ONCE and jax.default_backend() != "cpu" and not any(r.lanes.depth for r in runs):
            wanted = _form(runs)
            if wanted in self.joints or len(self.joints) < JOINTS:
                self.joints.add(wanted)
                return [runs]
        return [[run] for run in runs]

    def prepare(self, steps: Sequence[Sequence[Run]], own: Callable[[Run], Sequence[Array]], arenas: Arenas) -> None:
        """Compile what a mini-batch needs and no other before it did: all at the same time, in threads."""
        missing = {key: step for step in steps if (key := _step_key(step, arenas)) not in self.programs}
        self.programs.update(missing)
        self._compile([self._call(step, own, arenas) for step in missing.values()])

    def prepare_backward(
        self, runs: Sequence[Run], own: Callable[[Run], Sequence[Array]], arenas: Arenas, flows: Arenas
    ) -> None:
        missing = {key: run for run in runs if (key := _backward_key(run, arenas)) not in self.programs}
        self.programs.update(missing)
        # Gradients have the shapes of their parameters.
        self._compile([self._backward(r, 0, own(r), arenas, flows, own(r)) for r in missing.values()])

    def _compile(self, calls: Sequence[_Call]) -> None:
        if len(calls) > 1:
            with ThreadPoolExecutor(min(len(calls), os.cpu_count() or 1)) as pool:
                # JAX finds what was compiled of a function when it is called with the same shapes.
                for done in [pool.submit(call.kernel.lower(*call.arguments).compile) for call in calls]:
                    done.result()

    def forward(self, step: Sequence[Run], own: Callable[[Run], Sequence[Array]], arenas: Arenas) -> int:
        """Compute the results of a step into ``arenas``: how many calls of kernels that took."""
        if len(step) > 1:
            call = self._call(step, own, arenas)
            after, found = call.kernel(*call.arguments)
            for run, (status, apart) in zip(step, found, strict=True):
                run.lanes.status, run.lanes.apart = status, apart
            arenas.update(zip(_all_kinds(step)[0], after, strict=True))
            return 1
        (run,) = step
        _, times = _times(run)
        for _ in range(times):
            call = self._forward(run, own(run), arenas)
            after, run.lanes.status, run.lanes.apart = call.kernel(*call.arguments)
            arenas.update(zip(run.lanes.group.kinds[0], after, strict=True))
        return times

    def _call(self, step: Sequence[Run], own: Callable[[Run], Sequence[Array]], arenas: Arenas) -> _Call:
        if len(step) == 1:
            return self._forward(step[0], own(step[0]), arenas)
        large = any(map(is_large, step))
        form = tuple([run.lanes.group.form for run in step]), large
        kernel = self.together.get(form)
        if kernel is None:
            groups = [run.lanes.group for run in step]
            kernel = self.together[form] = jit(partial(launches.in_a_row, groups), 3, (0,), large)
        written, read = _all_kinds(step)
        arguments = (
            tuple([run.width for run in step]),
            [own(run) for run in step],
            [arenas[kind] for kind in read],
            [arenas[kind] for kind in written],
            np.concatenate([run.lanes.index for run in step]),
            [run.lanes.data for run in step],
        )
        return _Call(kernel, arguments)

    def _forward(self, run: Run, parameters: Sequence[Array], arenas: Arenas) -> _Call:
        lanes, group = run.lanes, run.lanes.group
        form = group.form, is_large(run)
        kernel = self.forwards.get(form)
        if kernel is None:
            kernel = jit(partial(launches.forward, group), 5, (0, 1, 2), is_large(run))
            self.forwards[form] = kernel
        written, read = group.kinds
        if lanes.status is None and lanes.depth:
            lanes.status = _start()
        looped, _ = _times(run)
        arguments = (
            run.width,
            looped,
            lanes.depth,
            parameters,
            tuple([arenas[kind] for kind in read]),
            tuple([arenas[kind] for kind in written]),
            lanes.index,
            lanes.data,
            lanes.status if lanes.depth else None,
            run.launches if looped else None,
        )
        return _Call(kernel, arguments)

    def faults(
        self, runs: Sequence[Run], own: Callable[[Run], Sequence[Array]], arenas: Arenas
    ) -> np.ndarray[Any, Any]:
        """Which lanes of a cell have an index that is out of range, after ``forward`` has found that some have."""
        lanes, group = runs[0].lanes, runs[0].lanes.group
        found = np.zeros(len(lanes.recorded), bool)
        first = 0
        for run in runs:
            form = group.form, is_large(run)
            kernel = self.faulty.get(form)
            if kernel is None:
                kernel = self.faulty[form] = jit(partial(launches.faults, group), (), (0, 1), is_large(run))
            self.programs.add(("faults", form, run.width, _sizes(lanes, arenas, group.read_kinds)))
            read = [arenas[kind] for kind in group.read_kinds]
            which = np.int32(first), np.int32(run.launches)
            bad, calls = kernel(run.width, lanes.depth, own(run), read, lanes.index, lanes.data, *which)
            found[np.asarray(calls)[np.asarray(bad)]] = True
            first += run.launches
        return found

    def backward(
        self,
        run: Run,
        left: Array,
        parameters: Sequence[Array],
        arenas: Arenas,
        flows: Arenas,
        gradients: Sequence[Array],
    ) -> tuple[Array, Sequence[Array]]:
        """Let what flows into the results of a run flow into its arguments (in ``flows``) and into ``gradients``,
        which are the parameters': what they become. ``left`` is how many of the cell's launches there are up to this
        run's last, and becomes how many there are before it."""
        _, times = _times(run)
        for _ in range(times):
            call = self._backward(run, left, parameters, arenas, flows, gradients)
            left, after, gradients = call.kernel(*call.arguments)
            flows.update(zip(run.lanes.group.moved_kinds, after, strict=True))
        return left, gradients

    def _backward(
        self,
        run: Run,
        left: Array,
        parameters: Sequence[Array],
        arenas: Arenas,
        flows: Arenas,
        gradients: Sequence[Array],
    ) -> _Call:
        lanes, group = run.lanes, run.lanes.group
        form = group.form, is_large(run)
        kernel = self.backwards.get(form)
        if kernel is None:
            kernel = jit(partial(launches.backward, group), (5, 6), (0, 1, 2), is_large(run))
            self.backwards[form] = kernel
        read, moved = group.read_kinds, group.moved_kinds
        looped, _ = _times(run)
        arguments = (
            run.width,
            looped,
            lanes.depth,
            parameters,
            tuple([arenas[kind] for kind in read]),
            tuple([flows[kind] for kind in moved]),
            gradients,
            lanes.index,
            lanes.data,
            left,
            run.launches if looped else None,
        )
        return _Call(kernel, arguments)


def jit(
    function: Callable[..., Any],
    donated: int | tuple[int, ...],
    static: tuple[int, ...],
    is_large: bool = False,
    **options: Any,
) -> Any:
    """``jax.jit`` as kernels need it; ``is_large`` says that there may be large products."""
    use_disk_cache()
    device = jax.devices()[0]
    options |= {"donate_argnums": donated, "static_argnums": static, "compiler_options": _options(device)}
    made = jax.jit(function, **options)
    return WithLargeProducts(made, static) if is_large else made


def is_large(run: Run) -> bool:
    """Whether a launch may have large products."""
    return has_large_products(run.lanes.group.trace.work * run.width)


def _options(device: Any) -> dict[str, Any] | None:
    """What XLA is told for a device. On a GPU, to write kernels for every product, and to try them out, takes time; the
    library has them. And a loop over launches, whose number is given, is a graph: a host would wait for its turns."""
    if device.platform == "cpu":
        return None
    return LIBRARY_ONLY | GRAPHS if has_graphs(device) else LIBRARY_ONLY


class _Call(NamedTuple):
    kernel: Any
    arguments: tuple[Any, ...]


def _step_key(step: Sequence[Run], arenas: Arenas) -> Any:
    """For what a step's kernel is compiled."""
    return tuple([_forward_key(run, arenas) for run in step])


def _forward_key(run: Run, arenas: Arenas) -> Any:
    written, read = run.lanes.group.kinds
    return run.lanes.group.form, run.width, _times(run)[0], _sizes(run.lanes, arenas, (*written, *read))


def _form(runs: Sequence[Run]) -> Any:
    return tuple([(run.lanes.group.form, run.width) for run in runs])


def _all_kinds(step: Sequence[Run]) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    """The arenas that several launches write, and those that they only read."""
    return kinds_of_all(tuple([run.lanes.group.kinds for run in step]))


def _backward_key(run: Run, arenas: Arenas) -> Any:
    group = run.lanes.group
    sizes = _sizes(run.lanes, arenas, (*group.read_kinds, *group.moved_kinds))
    return "backward", group.form, run.width, _times(run)[0], sizes


def _times(run: Run) -> tuple[bool, int]:
    """Whether a run is a loop, and how many calls of a kernel it is."""
    looped = run.launches > FEW
    return looped, 1 if looped else run.launches


def _sizes(lanes: Lanes, arenas: Arenas, kinds: Sequence[Kind]) -> tuple[int, ...]:
    return (lanes.depth, len(lanes.index), *map(len, lanes.data[:1]), *(len(arenas[kind]) for kind in kinds))
