"""Kernels: a cell for many instances at once, reading from arenas and writing into them.

An arena is one array with all values of one kind; a kernel gathers its arguments' rows inside, and writes each of its
results as consecutive rows. Arenas are donated, so that nothing is copied. Parameters come without a batch axis.

Widths are padded to 1, 2, 3, 4, 6, 8, 12, 16, ...: a third at most is waste, and there are few of them. Lanes
of padding repeat the last call, rather than compute with some row that may hold anything: in a backward pass, zero
times infinity is not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.batching.cell import Kind, Trace
from tempo.batching.recording import Call, Group, Value

Array = Any
Arenas = dict[Kind, Array]

SMALLEST_ARENA = 64


def padded_width(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least ``count``."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


@dataclass(eq=False)
class Launch:
    """One call of a kernel, with what its backward pass needs again."""

    group: Group
    width: int
    calls: int
    numbers: np.ndarray[Any, Any]
    """The first rows of the results, then the rows of every gathered argument."""
    data: tuple[Array, ...]
    """The other arguments, stacked."""


@dataclass
class Store:
    """The arenas of one mini-batch, and how many rows of them are taken."""

    capacities: dict[Kind, int]
    arenas: Arenas = field(default_factory=dict)
    taken: dict[Kind, int] = field(default_factory=dict)

    def place(self, group: Group, calls: Sequence[Call]) -> Launch:
        """Give the results of some calls their rows, the arguments' being known."""
        width = padded_width(len(calls))
        starts = []
        for kind in group.trace.results:
            starts.append(self.taken.get(kind, 0))
            self.taken[kind] = starts[-1] + width
        for n, call in enumerate(calls):
            call.rows = tuple([start + n for start in starts])
        repeated = [*calls, *[calls[-1]] * (width - len(calls))]
        rows: list[int] = []
        data = []
        for n, gathered in enumerate(group.gathered):
            if gathered:
                rows.extend([call.arguments[n].call.rows[call.arguments[n].position] for call in repeated])
            else:
                data.append(np.stack([call.arguments[n] for call in repeated]))
        return Launch(group, width, len(calls), np.array(starts + rows, np.int32), tuple(data))

    def make_room(self) -> None:
        """Let the arenas have all rows that are taken. They have as many as the largest mini-batch before, if those
        are enough, so that kernels are compiled for few sizes."""
        for kind, rows in self.taken.items():
            wanted = max(SMALLEST_ARENA, self.capacities.get(kind, 0), 1 << (rows - 1).bit_length())
            self.capacities[kind] = wanted
            arena = self.arenas.get(kind)
            if arena is None:
                self.arenas[kind] = jnp.zeros((wanted, *kind.shape), kind.dtype)
            elif len(arena) < wanted:
                self.arenas[kind] = jnp.pad(arena, [(0, wanted - len(arena))] + [(0, 0)] * len(kind.shape))

    def rows(self, values: Sequence[Value]) -> list[np.ndarray[Any, Any]]:
        """Computed values as NumPy's arrays, fetched together."""
        by_kind: dict[Kind, list[int]] = {}
        for n, value in enumerate(values):
            by_kind.setdefault(value.kind, []).append(n)
        found: list[Any] = [None] * len(values)
        for kind, positions in by_kind.items():
            wanted = [row_of(values[n]) for n in positions]
            wanted += [wanted[-1]] * (padded_width(len(wanted)) - len(wanted))
            fetched = np.asarray(_fetch(self.arenas[kind], np.array(wanted, np.int32)))
            for n, array in zip(positions, fetched, strict=False):
                found[n] = array.copy()
        return found


def row_of(value: Value) -> int:
    assert value.call.rows is not None, "nothing has been computed yet"
    return value.call.rows[value.position]


@jax.jit
def _fetch(arena: Array, rows: Array) -> Array:
    return arena[rows]


@dataclass(eq=False)
class Kernels:
    """The kernels of a model's cells, and for what they were compiled."""

    forwards: dict[Group, Any] = field(default_factory=dict)
    backwards: dict[Group, Any] = field(default_factory=dict)
    programs: set[Any] = field(default_factory=set)

    def forward(self, launch: Launch, parameters: Sequence[Array], arenas: Arenas) -> None:
        """Compute the results of a launch into ``arenas``."""
        group = launch.group
        kernel = self.forwards.get(group)
        if kernel is None:
            kernel = self.forwards[group] = jax.jit(partial(_forward, group), donate_argnums=3, static_argnums=0)
        written, read = _kinds(group)
        self.programs.add((group, launch.width, tuple(len(arenas[kind]) for kind in (*written, *read))))
        after = kernel(
            launch.width,
            parameters,
            tuple([arenas[kind] for kind in read]),
            tuple([arenas[kind] for kind in written]),
            launch.numbers,
            launch.data,
        )
        arenas.update(zip(written, after, strict=True))

    def backward(
        self, launch: Launch, parameters: Sequence[Array], arenas: Arenas, flows: Arenas, gradients: Sequence[Array]
    ) -> Sequence[Array]:
        """Let what flows into the results of a launch flow into its arguments (in ``flows``) and into ``gradients``,
        which are the parameters': what they become."""
        group = launch.group
        kernel = self.backwards.get(group)
        if kernel is None:
            kernel = jax.jit(partial(_backward, group), donate_argnums=(3, 4), static_argnums=0)
            self.backwards[group] = kernel
        read = _read(group)
        moved = _moved(group)
        self.programs.add(("backward", group, launch.width, tuple(len(arenas[kind]) for kind in (*read, *moved))))
        after, gradients = kernel(
            launch.width,
            parameters,
            tuple([arenas[kind] for kind in read]),
            tuple([flows[kind] for kind in moved]),
            gradients,
            launch.numbers,
            launch.data,
        )
        flows.update(zip(moved, after, strict=True))
        return tuple(gradients)


def _read(group: Group) -> list[Kind]:
    """The kinds of the gathered arguments."""
    pairs = zip(group.trace.arguments, group.gathered, strict=True)
    return list(dict.fromkeys(kind for kind, gathered in pairs if gathered))


def _kinds(group: Group) -> tuple[list[Kind], list[Kind]]:
    """The arenas that a kernel writes, and those that it only reads."""
    written = list(dict.fromkeys(group.trace.results))
    return written, [kind for kind in _read(group) if kind not in written]


def _moved(group: Group) -> list[Kind]:
    """The kinds through which gradients flow."""
    return [kind for kind in dict.fromkeys([*group.trace.results, *_read(group)]) if kind.is_float]


def _arguments(group: Group, width: int, arenas: Arenas, numbers: Array, data: Sequence[Array]) -> list[Array]:
    rest = iter(data)
    position = len(group.trace.results)
    found = []
    for kind, gathered in zip(group.trace.arguments, group.gathered, strict=True):
        if gathered:
            found.append(arenas[kind][lax.slice_in_dim(numbers, position, position + width)])
            position += width
        else:
            found.append(next(rest))
    return found


def _forward(
    group: Group,
    width: int,
    parameters: Sequence[Array],
    read: Sequence[Array],
    written: Sequence[Array],
    numbers: Array,
    data: Sequence[Array],
) -> tuple[Array, ...]:
    trace = group.trace
    to_write, to_read = _kinds(group)
    arenas = dict(zip([*to_write, *to_read], [*written, *read], strict=True))
    results = trace.batched(width, parameters, _arguments(group, width, arenas, numbers, data))
    for n, (kind, result) in enumerate(zip(trace.results, results, strict=True)):
        arenas[kind] = lax.dynamic_update_slice_in_dim(arenas[kind], result, numbers[n], 0)
    return tuple(arenas[kind] for kind in to_write)


def _backward(
    group: Group,
    width: int,
    parameters: Sequence[Array],
    read: Sequence[Array],
    flows: Sequence[Array],
    gradients: Sequence[Array],
    numbers: Array,
    data: Sequence[Array],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    trace = group.trace
    arguments = _arguments(group, width, dict(zip(_read(group), read, strict=True)), numbers, data)
    into = dict(zip(_moved(group), flows, strict=True))
    flowing = [
        lax.dynamic_slice_in_dim(into[kind], numbers[n], width, 0) if kind.is_float else None
        for n, kind in enumerate(trace.results)
    ]
    of_parameters, of_arguments = pulled(trace, width, parameters, arguments, flowing)
    position = len(trace.results)
    for kind, gathered, flow in zip(trace.arguments, group.gathered, of_arguments, strict=True):
        if gathered:
            if flow is not None:
                into[kind] = into[kind].at[lax.slice_in_dim(numbers, position, position + width)].add(flow)
            position += width
    added = tuple(g + h for g, h in zip(gradients, of_parameters, strict=True))
    return tuple(into[kind] for kind in _moved(group)), added


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
