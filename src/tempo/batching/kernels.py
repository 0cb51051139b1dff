"""Kernels: a cell for many instances at once, reading from arenas and writing into them.

An arena is one array with all values of one kind; a kernel gathers its arguments' rows inside, and writes each of its
results as consecutive rows. Arenas are donated, so that nothing is copied. Parameters come without a batch axis.

Which rows, a kernel finds on the device: the numbers of all launches of a cell are one array, and a cursor, which every
kernel hands to the next, says where its own begin. So a launch costs one call of a compiled function and no transfer;
launches of one cell and width that follow each other are a loop inside one kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.batching.cell import Kind, Trace
from tempo.batching.planning import SMALLEST, Group, Lanes, Rows, Run, padded_width
from tempo.batching.recording import Value

Array = Any
Arenas = dict[Kind, Array]

FEW = 3
"""So many launches are one kernel each, more are a loop: its body is compiled apart, and starting a loop costs time."""


@dataclass
class Store:
    """The arenas of one mini-batch."""

    capacities: dict[Any, int]
    idle: Arenas
    """Those of an earlier mini-batch: what they hold does not matter, and new ones would have to be cleared."""
    rows: Rows = field(default_factory=Rows)
    arenas: Arenas = field(default_factory=dict)

    def make_room(self) -> None:
        """Let the arenas have all rows that are taken. They have as many as the largest mini-batch before, if those
        are enough, so that kernels are compiled for few sizes."""
        for kind, rows in self.rows.taken.items():
            wanted = max(SMALLEST, self.capacities.get(kind, 0), 1 << (rows - 1).bit_length())
            self.capacities[kind] = wanted
            arena = self.arenas.get(kind)
            if arena is None:
                arena = self.idle.pop(kind, None)
                if arena is not None and len(arena) == wanted:
                    self.arenas[kind] = arena
                    continue
                self.arenas[kind] = jnp.zeros((wanted, *kind.shape), kind.dtype)
            elif len(arena) < wanted:
                # More will follow, and every size is compiled for.
                wanted = self.capacities[kind] = 2 * wanted
                self.arenas[kind] = jnp.pad(arena, [(0, wanted - len(arena))] + [(0, 0)] * len(kind.shape))

    def give_back(self) -> None:
        """Let a later mini-batch have the arenas."""
        self.idle.update(self.arenas)
        self.arenas = {}

    def fetch(self, values: Sequence[Value], arenas: Arenas | None = None) -> list[np.ndarray[Any, Any]]:
        """Computed values as NumPy's arrays, fetched together."""
        by_kind: dict[Kind, list[int]] = {}
        for n, value in enumerate(values):
            by_kind.setdefault(value.kind, []).append(n)
        found: list[Any] = [None] * len(values)
        for kind, positions in by_kind.items():
            rows = self.rows.of[[values[n].number for n in positions]]
            fetched = rows_of((self.arenas if arenas is None else arenas)[kind], rows)
            for n, array in zip(positions, fetched, strict=True):
                found[n] = array.copy()
        return found


def rows_of(arena: Array, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    padding = np.full(padded_width(len(rows)) - len(rows), rows[-1], np.int32)
    return np.asarray(_rows_of(arena, np.concatenate([rows, padding])))[: len(rows)]


@jax.jit
def _rows_of(arena: Array, rows: Array) -> Array:
    return arena.at[rows].get(mode="promise_in_bounds")


@cache
def _start() -> Array:
    return jax.device_put(np.zeros(2, np.int32))


@dataclass(eq=False)
class Kernels:
    """The kernels of a model's cells, and for what they were compiled."""

    forwards: dict[Group, Any] = field(default_factory=dict)
    backwards: dict[Group, Any] = field(default_factory=dict)
    programs: set[Any] = field(default_factory=set)

    def prepare(self, runs: Sequence[Run], own: Callable[[Run], Sequence[Array]], arenas: Arenas) -> None:
        """Compile what a mini-batch needs and no other before it did: all at the same time, in threads."""
        missing = {key: run for run in runs if (key := _forward_key(run, arenas)) not in self.programs}
        self._compile([self._forward(run, own(run), arenas) for run in missing.values()])

    def prepare_backward(
        self, runs: Sequence[Run], own: Callable[[Run], Sequence[Array]], arenas: Arenas, flows: Arenas
    ) -> None:
        missing = {key: run for run in runs if (key := _backward_key(run, arenas)) not in self.programs}
        # Gradients have the shapes of their parameters.
        self._compile([self._backward(r, np.int32(0), own(r), arenas, flows, own(r)) for r in missing.values()])

    def _compile(self, calls: Sequence[_Call]) -> None:
        if len(calls) > 1:
            with ThreadPoolExecutor(min(len(calls), os.cpu_count() or 1)) as pool:
                # JAX finds what was compiled of a function when it is called with the same shapes.
                for done in [pool.submit(call.kernel.lower(*call.arguments).compile) for call in calls]:
                    done.result()

    def forward(self, run: Run, parameters: Sequence[Array], arenas: Arenas) -> int:
        """Compute the results of a run into ``arenas``: how many kernels that took."""
        _, times = _times(run)
        self.programs.add(_forward_key(run, arenas))
        for _ in range(times):
            call = self._forward(run, parameters, arenas)
            run.lanes.status, after = call.kernel(*call.arguments)
            arenas.update(zip(_kinds(run.lanes.group)[0], after, strict=True))
        return times

    def _forward(self, run: Run, parameters: Sequence[Array], arenas: Arenas) -> _Call:
        lanes, group = run.lanes, run.lanes.group
        kernel = self.forwards.get(group)
        if kernel is None:
            kernel = jax.jit(partial(_forward, group), donate_argnums=4, static_argnums=(0, 1))
            self.forwards[group] = kernel
        written, read = _kinds(group)
        if lanes.status is None:
            lanes.status = _start()
        looped, _ = _times(run)
        arguments = (
            run.width,
            looped,
            parameters,
            tuple([arenas[kind] for kind in read]),
            tuple([arenas[kind] for kind in written]),
            lanes.numbers,
            lanes.data,
            lanes.status,
            run.launches if looped else 1,
        )
        return _Call(kernel, arguments)

    def backward(
        self,
        run: Run,
        cursor: Array,
        parameters: Sequence[Array],
        arenas: Arenas,
        flows: Arenas,
        gradients: Sequence[Array],
    ) -> tuple[Array, Sequence[Array]]:
        """Let what flows into the results of a run flow into its arguments (in ``flows``) and into ``gradients``,
        which are the parameters': what they become. ``cursor`` is where the run's lanes end; it becomes where they
        begin."""
        _, times = _times(run)
        self.programs.add(_backward_key(run, arenas))
        for _ in range(times):
            call = self._backward(run, cursor, parameters, arenas, flows, gradients)
            cursor, after, gradients = call.kernel(*call.arguments)
            flows.update(zip(_moved(run.lanes.group), after, strict=True))
        return cursor, gradients

    def _backward(
        self,
        run: Run,
        cursor: Array,
        parameters: Sequence[Array],
        arenas: Arenas,
        flows: Arenas,
        gradients: Sequence[Array],
    ) -> _Call:
        lanes, group = run.lanes, run.lanes.group
        kernel = self.backwards.get(group)
        if kernel is None:
            kernel = jax.jit(partial(_backward, group), donate_argnums=(4, 5), static_argnums=(0, 1))
            self.backwards[group] = kernel
        read, moved = _read(group), _moved(group)
        looped, _ = _times(run)
        arguments = (
            run.width,
            looped,
            parameters,
            tuple([arenas[kind] for kind in read]),
            tuple([flows[kind] for kind in moved]),
            gradients,
            lanes.numbers,
            lanes.data,
            cursor,
            run.launches if looped else 1,
        )
        return _Call(kernel, arguments)


class _Call(NamedTuple):
    kernel: Any
    arguments: tuple[Any, ...]


def _forward_key(run: Run, arenas: Arenas) -> Any:
    """For what a run's kernel is compiled."""
    written, read = _kinds(run.lanes.group)
    return run.lanes.group, run.width, _times(run)[0], _sizes(run.lanes, arenas, (*written, *read))


def _backward_key(run: Run, arenas: Arenas) -> Any:
    group = run.lanes.group
    sizes = _sizes(run.lanes, arenas, (*_read(group), *_moved(group)))
    return "backward", group, run.width, _times(run)[0], sizes


def _times(run: Run) -> tuple[bool, int]:
    """Whether a run is a loop, and how many calls of a kernel it is."""
    looped = run.launches > FEW
    return looped, 1 if looped else run.launches


def _sizes(lanes: Lanes, arenas: Arenas, kinds: Sequence[Kind]) -> tuple[int, ...]:
    return (lanes.numbers.shape[1], *(len(arenas[kind]) for kind in kinds))


@cache
def _read(group: Group) -> tuple[Kind, ...]:
    """The kinds of the gathered arguments."""
    pairs = zip(group.trace.arguments, group.gathered, strict=True)
    return tuple(dict.fromkeys(kind for kind, gathered in pairs if gathered))


@cache
def _kinds(group: Group) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    """The arenas that a kernel writes, and those that it only reads."""
    written = tuple(dict.fromkeys(group.trace.results))
    return written, tuple(kind for kind in _read(group) if kind not in written)


@cache
def _moved(group: Group) -> tuple[Kind, ...]:
    """The kinds through which gradients flow."""
    return tuple(kind for kind in dict.fromkeys([*group.trace.results, *_read(group)]) if kind.is_float)


def _arguments(
    group: Group, width: int, arenas: Arenas, rows: Array, data: Sequence[Array], cursor: Array
) -> list[Array]:
    """The arguments of the launch whose lanes begin at the cursor; ``rows`` are those of gathered ones."""
    rest = iter(data)
    line = 0
    found = []
    aligned = len(group.gathered) - group.trace.aligned
    for n, (kind, gathered) in enumerate(zip(group.trace.arguments, group.gathered, strict=True)):
        if n >= aligned:
            found.append(lax.dynamic_slice_in_dim(arenas[kind], rows[line, 0], width, 0))
            line += 1
        elif gathered:
            # Rows as vectors: twice as fast on a CPU.
            flat = arenas[kind].reshape(len(arenas[kind]), -1)
            found.append(flat.at[rows[line]].get(mode="promise_in_bounds").reshape(width, *kind.shape))
            line += 1
        else:
            found.append(lax.dynamic_slice_in_dim(next(rest), cursor, width, 0))
    if jax.default_backend() == "cpu":
        # XLA would take a slice or a row inside of a cell's arithmetic, whose loop then is not vectorised: a step of a
        # GRU with 256 units for 64 instances takes 0.55 ms that way, and 0.36 ms with its arguments taken before.
        vectors = [n for n, array in enumerate(found) if array.ndim == 2 and array.dtype == np.float32]
        for n, array in zip(vectors, held([found[n] for n in vectors], cursor), strict=True):
            found[n] = array
    return found


def held(arrays: list[Array], cursor: Array) -> list[Array]:
    """The same arrays, computed before anything that is computed from them."""
    if not arrays:
        return []
    if jax.default_backend() == "cpu":
        # There a barrier is gone by the time at which operations are fused. The condition is always true.
        found = lax.cond(cursor >= 0, lambda *a: a, lambda *a: tuple([a + a for a in a]), *arrays)
    else:
        found = lax.optimization_barrier(tuple(arrays))  # type: ignore[no-untyped-call]
    return list(found)


def _forward(
    group: Group,
    width: int,
    looped: bool,
    parameters: Sequence[Array],
    read: Sequence[Array],
    written: Sequence[Array],
    numbers: Array,
    data: Sequence[Array],
    status: Array,
    launches: Array,
) -> tuple[Array, tuple[Array, ...]]:
    trace = group.trace
    to_write, to_read = _kinds(group)
    only_read = dict(zip(to_read, read, strict=True))

    def launch(_: Any, carry: tuple[Array, tuple[Array, ...]]) -> tuple[Array, tuple[Array, ...]]:
        status, written = carry
        cursor = status[0]
        arenas = {**only_read, **dict(zip(to_write, written, strict=True))}
        own = lax.dynamic_slice_in_dim(numbers, cursor, width, 1)
        arguments = _arguments(group, width, arenas, own[len(trace.results) :], data, cursor)
        results, bad = trace.checked(width, parameters, arguments)
        for n, (kind, result) in enumerate(zip(trace.results, results, strict=True)):
            arenas[kind] = lax.dynamic_update_slice_in_dim(arenas[kind], result, own[n, 0], 0)
        fault = status[1]
        if bad is not None:
            here = jnp.where(jnp.any(bad), cursor + 1 + jnp.argmax(bad).astype(np.int32), 0)
            fault = jnp.where(fault > 0, fault, here)
        return jnp.stack([cursor + width, fault]), tuple([arenas[kind] for kind in to_write])

    if looped:
        found: tuple[Array, tuple[Array, ...]] = lax.fori_loop(0, launches, launch, (status, tuple(written)))
        return found
    return launch(0, (status, tuple(written)))


def _backward(
    group: Group,
    width: int,
    looped: bool,
    parameters: Sequence[Array],
    read: Sequence[Array],
    flows: Sequence[Array],
    gradients: Sequence[Array],
    numbers: Array,
    data: Sequence[Array],
    cursor: Array,
    launches: Array,
) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
    trace = group.trace
    arenas = dict(zip(_read(group), read, strict=True))
    moved = _moved(group)
    results = len(trace.results)

    def launch(_: Any, carry: Any) -> Any:
        cursor, flows, gradients = carry
        cursor = cursor - width
        into = dict(zip(moved, flows, strict=True))
        own = lax.dynamic_slice_in_dim(numbers, cursor, width, 1)
        arguments = _arguments(group, width, arenas, own[results:], data, cursor)
        flowing = [
            lax.dynamic_slice_in_dim(into[kind], own[n, 0], width, 0) if kind.is_float else None
            for n, kind in enumerate(trace.results)
        ]
        # Read before anything is added: XLA would read it again between, and copy the arena for that (NestedRNN: 21 ms
        # for a launch that takes 0.2).
        coming = iter(held([flow for flow in flowing if flow is not None], cursor))
        flowing = [None if flow is None else next(coming) for flow in flowing]
        of_parameters, of_arguments = pulled(trace, width, parameters, arguments, flowing)
        line = results
        aligned = len(group.gathered) - trace.aligned
        for n, (kind, gathered) in enumerate(zip(trace.arguments, group.gathered, strict=True)):
            flow = of_arguments[n]
            if gathered and flow is not None:
                if n >= aligned:
                    # Nobody else reads these rows.
                    into[kind] = lax.dynamic_update_slice_in_dim(into[kind], flow, own[line, 0], 0)
                else:
                    into[kind] = into[kind].at[own[line]].add(flow, mode="promise_in_bounds")
            line += gathered
        added = tuple([g + h for g, h in zip(gradients, of_parameters, strict=True)])
        return cursor, tuple([into[kind] for kind in moved]), added

    carry = cursor, tuple(flows), tuple(gradients)
    found: tuple[Array, tuple[Array, ...], tuple[Array, ...]]
    found = lax.fori_loop(0, launches, launch, carry) if looped else launch(0, carry)
    return found


def pulled(
    trace: Trace,
    width: int,
    parameters: Sequence[Array],
    arguments: Sequence[Array],
    flowing: Sequence[Array | None],
) -> tuple[Sequence[Array], list[Array | None]]:
    """What flows into parameters, summed over the batch, and into arguments (None if they are no floats).

    The results are computed a second time here: keeping what is inside of a cell would cost an arena for each of it.
    """
    real = [kind.is_float for kind in trace.arguments]

    def results(parameters: Sequence[Array], floats: Sequence[Array]) -> list[Array]:
        rest = iter(floats)
        whole = [next(rest) if is_real else array for is_real, array in zip(real, arguments, strict=True)]
        found = trace.batched(width, parameters, whole)
        return [result for result, kind in zip(found, trace.results, strict=True) if kind.is_float]

    floats = [array for is_real, array in zip(real, arguments, strict=True) if is_real]
    _, pull = jax.vjp(results, tuple(parameters), floats)
    of_parameters, of_floats = pull([flow for flow in flowing if flow is not None])
    rest = iter(of_floats)
    return of_parameters, [next(rest) if is_real else None for is_real in real]
