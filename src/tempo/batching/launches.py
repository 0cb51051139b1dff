"""What runs inside of a kernel: launches, each a cell for many calls at once, forwards and backwards.

A launch reads a row of a table: its first lane, how many calls it makes, and where its results go. It gathers its
arguments from arenas, computes, and writes its results as consecutive rows.

Lanes of padding make the last call once more, rather than compute with some row that may hold anything: in a backward
pass, zero times infinity is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax.near import handed_over
from tempo.batching.planning import Group
from tempo.batching.store import Arenas
from tempo.batching.trace import Kind, Trace

Array = Any

UNROLLED = 4
"""How many launches are one turn of a loop on a GPU, where a turn costs 20 us (5 in a graph), and a small kernel 2."""
APART = 64
"""Results of so few bytes, that instances may wait for, a GPU also gives apart from the arena: to find them there would
be one more kernel and a transfer for every wait."""
NARROW = 2
"""So many lanes are products of a matrix and a vector each, for which rows are summed over."""


def read_turned(trace: Trace, width: int) -> tuple[bool, ...]:
    """Per parameter of a cell whether kernels of this width read it turned."""
    if jax.default_backend() != "cpu" or width <= NARROW:
        return (False,) * len(trace.parameters)
    return trace.turned


@cache
def kinds_of_all(
    kinds: tuple[tuple[tuple[Kind, ...], tuple[Kind, ...]], ...],
) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    """The arenas that several launches in one kernel write, and those that they only read, from those of each."""
    written = dict.fromkeys(kind for own, _ in kinds for kind in own)
    read = dict.fromkeys(kind for _, own in kinds for kind in own if kind not in written)
    return tuple(written), tuple(read)


class _Launch(NamedTuple):
    """One launch, inside of a kernel."""

    entry: Array
    """Its row of the table."""
    rows: Array
    """Per gathered argument those of all lanes."""
    data: Sequence[Array]
    """The other arguments."""
    lanes: Array
    """Per lane which call it makes."""
    real: Array
    """Which lanes are no padding."""

    def row(self, n: int) -> Array:
        """The first row of the nth result, or, behind these, of an aligned argument."""
        return self.entry[2 + n]


@dataclass(frozen=True)
class _Tables:
    """``Lanes`` inside of a kernel."""

    table: Array
    numbers: Array
    data: Sequence[Array]
    alone: bool
    """Whether there is but one launch, whose lanes they are."""

    def launch(self, n: Array, width: int) -> _Launch:
        lane = lax.iota(np.int32, width)
        if self.alone:
            entry = self.table[0]
            return _Launch(entry, self.numbers, self.data, lane, lane < entry[1])
        entry = lax.dynamic_index_in_dim(self.table, n, keepdims=False)
        lanes = entry[0] + jnp.minimum(lane, entry[1] - 1)
        return _Launch(entry, self.numbers[:, lanes], [taken(a, lanes) for a in self.data], lanes, lane < entry[1])


def _columns(group: Group) -> tuple[int, int]:
    """How many numbers the tables have for a launch, and for a lane."""
    return 2 + len(group.trace.results) + group.trace.aligned, sum(group.gathered) - group.trace.aligned


def _tables(group: Group, depth: int, index: Array, data: Sequence[Array]) -> _Tables:
    fields, gathered = _columns(group)
    launches = max(depth, 1)
    lanes = (len(index) - launches * fields) // max(gathered, 1)
    table, numbers = index[: launches * fields], index[launches * fields :]
    return _Tables(table.reshape(launches, fields), numbers.reshape(gathered, lanes), data, not depth)


def taken(array: Array, rows: Array) -> Array:
    """``array[rows]``, all of which are in range."""
    # Rows as vectors: twice as fast on a CPU.
    flat = array.reshape(len(array), -1)
    return flat.at[rows].get(mode="promise_in_bounds").reshape(*rows.shape, *array.shape[1:])


def added(array: Array, rows: Array, new: Array) -> Array:
    """An array with something added to some of its rows."""
    flat = array.reshape(len(array), -1)
    new = new.reshape(*rows.shape, -1)
    if rows.size == 1:
        # XLA would take one row out and put it back, for which it copies the array (MV-RNN: 0.2 s for each of five
        # calls); and if that is written out, it cannot always compile it. So it is two rows, one of which is zero.
        rows, new = jnp.repeat(rows, 2), jnp.pad(new.reshape(1, -1), ((0, 1), (0, 0)))
    sums = flat.at[rows].add(new, mode="promise_in_bounds")
    return sums.reshape(array.shape)


def _arguments(group: Group, arenas: Arenas, launch: _Launch) -> list[Array]:
    """The arguments of a launch."""
    rest, lines = iter(launch.data), iter(launch.rows)
    found = []
    aligned = len(group.gathered) - group.trace.aligned
    for n, (kind, gathered) in enumerate(zip(group.trace.arguments, group.gathered, strict=True)):
        if n >= aligned:
            first = launch.row(len(group.trace.results) + n - aligned)
            found.append(lax.dynamic_slice_in_dim(arenas[kind], first, len(launch.lanes), 0))
        elif gathered:
            found.append(taken(arenas[kind], next(lines)))
        else:
            found.append(next(rest))
    written = [{k for k, one in enumerate(group.trace.results) if one is kind} for kind in group.trace.arguments]
    which = {n for n, own in enumerate(group.gathered) if own and is_read_late(group.trace, n, written[n])}
    if jax.default_backend() == "cpu":
        # XLA would take a slice or a row inside of a cell's arithmetic, whose loop then is not vectorised: a step of a
        # GRU with 256 units for 64 instances takes 0.55 ms that way, and 0.36 ms with its arguments taken before.
        which |= {n for n, array in enumerate(found) if array.ndim == 2 and array.dtype == np.float32}
    for n, array in zip(sorted(which), held([found[n] for n in sorted(which)], launch.entry[0]), strict=True):
        found[n] = array
    return found


def is_read_late(trace: Trace, argument: int, written: Set[int]) -> bool:
    """Whether XLA would read a row of an arena after it has begun to write results into it, some of which are
    ``written`` there, and copy all of the arena before it for that.

    A result that is made of the row without a product in between is written where the row is read. For a CPU that is
    enough: 320 chains of 2,000 matrices of 2 x 2 took 4.8 s, and take 0.02 where rows are held. (Behind a product they
    need not be: 64 MV-RNNs would take a tenth longer.) For a GPU it must be another result that is written there; and
    what several results are made of is computed before them anyway."""
    into = {n for n, fused in enumerate(trace.fused) if argument in fused}
    if jax.default_backend() == "cpu":
        return bool(into and written)
    return len(into) == 1 and not written <= into


def held(arrays: list[Array], zero: Array) -> list[Array]:
    """The same arrays, computed before anything that is computed from them."""
    if not arrays:
        return []
    if jax.default_backend() == "cpu":
        # There a barrier is gone by the time at which operations are fused. The condition is always true.
        found = lax.cond(zero >= 0, lambda *a: a, lambda *a: tuple([a + a for a in a]), *arrays)
    else:
        found = lax.optimization_barrier(tuple(arrays))  # type: ignore[no-untyped-call]
    return list(found)


def _loop(looped: bool, launches: Array | int, turn: Callable[[Array, Array, Any], Any], carry: Any) -> Any:
    """What ``turn(n, real, carry)`` makes for n from 0 to ``launches``; where several turns are one of a loop, the last
    of these are made again, and not ``real``."""
    if not looped:
        return turn(jnp.int32(0), jnp.bool_(True), carry)
    several = 1 if jax.default_backend() == "cpu" else UNROLLED

    def some(k: Array, carry: Any) -> Any:
        for n in range(several):
            at = k * several + n
            carry = turn(jnp.minimum(at, launches - 1), at < launches, carry)
        return carry

    return lax.fori_loop(0, (launches + several - 1) // several, some, carry)


def forward(
    group: Group,
    width: int,
    looped: bool,
    depth: int,
    parameters: Sequence[Array],
    read: Sequence[Array],
    written: Sequence[Array],
    index: Array,
    data: Sequence[Array],
    status: Array | None,
    launches: Array | None,
) -> tuple[tuple[Array, ...], Array | None, dict[int, Array]]:
    trace = group.trace
    tables = _tables(group, depth, index, data)
    count = 1 if launches is None else launches
    to_write, to_read = group.kinds
    only_read = dict(zip(to_read, read, strict=True))
    apart: dict[int, Array] = {}
    done, fault = (jnp.int32(0), jnp.int32(0)) if status is None else (status[0], status[1])

    def turn(n: Array, _: Array, carry: tuple[Array, tuple[Array, ...]]) -> tuple[Array, tuple[Array, ...]]:
        fault, written = carry
        launch = tables.launch(done + n, width)
        arenas = {**only_read, **dict(zip(to_write, written, strict=True))}
        arguments = _arguments(group, arenas, launch)
        # Inside of the loop, where XLA takes both turns for none.
        own = [p.T if is_turned else p for p, is_turned in zip(parameters, read_turned(trace, width), strict=True)]
        results, bad = trace.checked(width, own, arguments)
        for k, (kind, result) in enumerate(zip(trace.results, results, strict=True)):
            arenas[kind] = lax.dynamic_update_slice_in_dim(arenas[kind], result, launch.row(k), 0)
            if not depth and kind.bytes <= APART and jax.default_backend() != "cpu":
                apart[k] = handed_over(result)
        if bad is not None:
            bad = bad & launch.real  # aligned arguments of lanes of padding may be anything
            here = jnp.where(jnp.any(bad), launch.lanes[jnp.argmax(bad)] + 1, 0)
            fault = jnp.where(fault > 0, fault, here)
        return fault, tuple([arenas[kind] for kind in to_write])

    fault, after = _loop(looped, count, turn, (fault, tuple(written)))
    if status is not None:
        return after, jnp.stack([done + count, fault]), apart
    return after, handed_over(jnp.stack([done + count, fault])) if trace.has_indices else None, apart


def faults(
    group: Group,
    width: int,
    depth: int,
    parameters: Sequence[Array],
    read: Sequence[Array],
    index: Array,
    data: Sequence[Array],
    first: Array,
    launches: Array,
) -> tuple[Array, Array]:
    """Which lanes of some launches, from the first on, have an index that is out of range: a row for each launch; and
    which calls they make."""
    tables = _tables(group, depth, index, data)
    arenas = dict(zip(group.read_kinds, read, strict=True))

    def turn(n: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        launch = tables.launch(first + n, width)
        _, bad = group.trace.checked(width, parameters, _arguments(group, arenas, launch))
        assert bad is not None
        rows = bad & launch.real, launch.lanes
        both = [lax.dynamic_update_index_in_dim(a, row, first + n, 0) for a, row in zip(found, rows, strict=True)]
        return both[0], both[1]

    none = jnp.zeros((max(depth, 1), width), bool), jnp.zeros((max(depth, 1), width), np.int32)
    found: tuple[Array, Array] = lax.fori_loop(0, launches, turn, none)
    return found


def in_a_row(
    groups: Sequence[Group],
    widths: Sequence[int],
    parameters: Sequence[Sequence[Array]],
    read: Sequence[Array],
    written: Sequence[Array],
    index: Array,
    data: Sequence[Sequence[Array]],
) -> tuple[list[Array], list[tuple[Array | None, dict[int, Array]]]]:
    """One launch after another."""
    to_write, to_read = kinds_of_all(tuple([group.kinds for group in groups]))
    arenas = dict(zip((*to_write, *to_read), (*written, *read), strict=True))
    found = []
    end = 0
    for group, width, own, some in zip(groups, widths, parameters, data, strict=True):
        of_launch, of_lane = _columns(group)
        start, end = end, end + of_launch + of_lane * width
        kinds, others = group.kinds
        now = [arenas[kind] for kind in others], [arenas[kind] for kind in kinds]
        after, status, apart = forward(group, width, False, 0, own, *now, index[start:end], some, None, None)
        arenas.update(zip(kinds, after, strict=True))
        found.append((status, apart))
    return [arenas[kind] for kind in to_write], found


def backward(
    group: Group,
    width: int,
    looped: bool,
    depth: int,
    parameters: Sequence[Array],
    read: Sequence[Array],
    flows: Sequence[Array],
    gradients: Sequence[Array],
    index: Array,
    data: Sequence[Array],
    left: Array,
    launches: Array | None,
) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
    trace = group.trace
    tables = _tables(group, depth, index, data)
    count = 1 if launches is None else launches
    arenas = dict(zip(group.read_kinds, read, strict=True))
    moved = group.moved_kinds
    floats = [n for n, kind in enumerate(trace.results) if kind.is_float]
    aligned = [n for n in range(len(group.gathered) - trace.aligned, len(group.gathered))]
    first_aligned = len(group.gathered) - trace.aligned - len(trace.results)

    def turn(n: Array, real: Array, carry: Any) -> Any:
        flows, gradients = carry
        into = dict(zip(moved, flows, strict=True))
        launch = tables.launch(left - 1 - n, width)
        arguments = _arguments(group, arenas, launch)
        for k in aligned:
            # What is behind the last call is another launch's, or nothing.
            arguments[k] = _where(launch.real, arguments[k], arguments[k][launch.entry[1] - 1])

        def there(k: int, kind: Kind) -> Array:
            return lax.dynamic_slice_in_dim(into[kind], launch.row(k), width, 0)

        # Read before anything is added: XLA would read it again between, and copy the arena for that (NestedRNN: 21 ms
        # for a launch that takes 0.2).
        counted = launch.real & real
        coming = [_where(counted, there(k, trace.results[k]), 0) for k in floats]
        before = [there(k - first_aligned, trace.arguments[k]) for k in aligned]
        coming = held(coming + before, launch.entry[0])
        flowing = dict(zip(floats, coming, strict=False))
        of_parameters, of_arguments = pulled(
            trace, width, parameters, arguments, [flowing.get(k) for k in range(len(trace.results))]
        )
        for k, flow in zip(aligned, coming[len(floats) :], strict=True):
            # Nobody else reads these rows, but behind them are another launch's.
            kind, row = trace.arguments[k], launch.row(k - first_aligned)
            into[kind] = lax.dynamic_update_slice_in_dim(into[kind], flow + of_arguments[k], row, 0)
        lines = iter(launch.rows)
        for k, (kind, gathered) in enumerate(zip(trace.arguments, group.gathered, strict=True)):
            if gathered and k not in aligned:
                line, flow = next(lines), of_arguments[k]
                if flow is not None:
                    into[kind] = added(into[kind], line, flow)
        sums = tuple([g + h for g, h in zip(gradients, of_parameters, strict=True)])
        return tuple([into[kind] for kind in moved]), sums

    after, sums = _loop(looped, count, turn, (tuple(flows), tuple(gradients)))
    return left - count, after, sums


def _where(lanes: Array, array: Array, other: Array | float) -> Array:
    """The array in some lanes, something else in the others."""
    return jnp.where(lanes.reshape(-1, *[1] * (array.ndim - 1)), array, other)


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
