"""Kernels: a cell for many instances at once, reading from arenas and writing into them.

An arena is one array with all values of one kind; a kernel gathers its arguments' rows inside, and writes each of its
results as consecutive rows. Arenas are donated, so that nothing is copied. Parameters come without a batch axis.

Which rows, a kernel finds on the device: the launches of a cell are a table, the rows of their arguments another, and
every kernel tells the next how many launches are done. So a launch costs one call of a compiled function and no
transfer; launches of one cell and width that follow each other are a loop inside one kernel. Where instances wait and a
cell has a few launches only, each is told its rows, and looks nothing up: that saves 8 us of the 40 of a small kernel.
On a GPU, a few of these are one kernel, and what instances wait for is written to where the host has it at once.

Lanes of padding make the last call once more, rather than compute with some row that may hold anything: in a backward
pass, zero times infinity is not zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax.compiling import GRAPHS, LIBRARY_ONLY, has_graphs
from tempo.backends.jax.machine import use_disk_cache
from tempo.backends.jax.near import handed_over
from tempo.batching.cell import Kind, Trace
from tempo.batching.planning import FEW, Group, Lanes, Run
from tempo.batching.store import Arenas

Array = Any

UNROLLED = 4
"""How many launches are one turn of a loop on a GPU, where a turn costs 20 us (5 in a graph), and a small kernel 2."""
APART = 64
"""Results of so few bytes, that instances may wait for, a GPU also gives apart from the arena: to find them there would
be one more kernel and a transfer for every wait."""


MOST_AT_ONCE, JOINTS = 4, 16
"""Where instances wait on a GPU, so many launches are one kernel: to call one takes 60 us, and 60 more to hand it its
rows. Which launches come together, and how wide, differs from wait to wait: there are no more such kernels."""


@cache
def _start() -> Array:
    return jax.device_put(np.zeros(2, np.int32))


NARROW = 2
"""So many lanes are products of a matrix and a vector each, for which rows are summed over."""


def _turned(trace: Trace, width: int) -> tuple[bool, ...]:
    """Per parameter of a cell whether kernels of this width read it turned."""
    if jax.default_backend() != "cpu" or width <= NARROW:
        return (False,) * len(trace.parameters)
    return trace.turned


@jax.jit
def _turn(matrix: Array) -> Array:
    return matrix.T


@dataclass(eq=False)
class Kernels:
    """The kernels of a model's cells, and for what they were compiled."""

    forwards: dict[Any, Any] = field(default_factory=dict)
    backwards: dict[Any, Any] = field(default_factory=dict)
    programs: set[Any] = field(default_factory=set)
    joint: dict[Any, Any] = field(default_factory=dict)
    """Kernels of several launches."""
    joints: set[Any] = field(default_factory=set)
    """Which launches, of which widths, there are such kernels for."""
    matrices: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    """By name parameters that kernels read turned, as they are and as they are read: for as long as they stay."""

    def turned(self, run: Run, names: Sequence[str], parameters: Mapping[str, Array]) -> tuple[Array, ...]:
        """The parameters with these names as a run's forward kernel reads them."""
        found = []
        for name, is_turned in zip(names, _turned(run.lanes.group.trace, run.width), strict=True):
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
            arenas.update(zip(_kinds(run.lanes.group)[0], after, strict=True))
        return times

    def _call(self, step: Sequence[Run], own: Callable[[Run], Sequence[Array]], arenas: Arenas) -> _Call:
        if len(step) == 1:
            return self._forward(step[0], own(step[0]), arenas)
        form = tuple([run.lanes.group.form for run in step])
        kernel = self.joint.get(form)
        if kernel is None:
            groups = [run.lanes.group for run in step]
            kernel = self.joint[form] = jit(partial(_several, groups), donate_argnums=3, static_argnums=0)
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
        kernel = self.forwards.get(group.form)
        if kernel is None:
            kernel = jit(partial(_forward, group), donate_argnums=5, static_argnums=(0, 1, 2))
            self.forwards[group.form] = kernel
        written, read = _kinds(group)
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
            flows.update(zip(_moved(run.lanes.group), after, strict=True))
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
        kernel = self.backwards.get(group.form)
        if kernel is None:
            kernel = jit(partial(_backward, group), donate_argnums=(5, 6), static_argnums=(0, 1, 2))
            self.backwards[group.form] = kernel
        read, moved = _read(group), _moved(group)
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


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """``jax.jit`` as kernels need it."""
    use_disk_cache()
    return jax.jit(function, **options, compiler_options=_options(jax.devices()[0]))


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
    written, read = _kinds(run.lanes.group)
    return run.lanes.group.form, run.width, _times(run)[0], _sizes(run.lanes, arenas, (*written, *read))


def _form(runs: Sequence[Run]) -> Any:
    return tuple([(run.lanes.group.form, run.width) for run in runs])


def _all_kinds(step: Sequence[Run]) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    """The arenas that several launches write, and those that they only read."""
    return _kinds_of(tuple([run.lanes.group for run in step]))


@cache
def _kinds_of(groups: tuple[Group, ...]) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    written = dict.fromkeys(kind for group in groups for kind in _kinds(group)[0])
    read = dict.fromkeys(kind for group in groups for kind in _kinds(group)[1] if kind not in written)
    return tuple(written), tuple(read)


def _backward_key(run: Run, arenas: Arenas) -> Any:
    group = run.lanes.group
    sizes = _sizes(run.lanes, arenas, (*_read(group), *_moved(group)))
    return "backward", group.form, run.width, _times(run)[0], sizes


def _times(run: Run) -> tuple[bool, int]:
    """Whether a run is a loop, and how many calls of a kernel it is."""
    looped = run.launches > FEW
    return looped, 1 if looped else run.launches


def _sizes(lanes: Lanes, arenas: Arenas, kinds: Sequence[Kind]) -> tuple[int, ...]:
    return (lanes.depth, len(lanes.index), *map(len, lanes.data[:1]), *(len(arenas[kind]) for kind in kinds))


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
    sums = flat.at[rows].add(new.reshape(*rows.shape, -1), mode="promise_in_bounds")
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
    if jax.default_backend() == "cpu":
        # XLA would take a slice or a row inside of a cell's arithmetic, whose loop then is not vectorised: a step of a
        # GRU with 256 units for 64 instances takes 0.55 ms that way, and 0.36 ms with its arguments taken before.
        vectors = [n for n, array in enumerate(found) if array.ndim == 2 and array.dtype == np.float32]
        for n, array in zip(vectors, held([found[n] for n in vectors], launch.entry[0]), strict=True):
            found[n] = array
    return found


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


def _forward(
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
    to_write, to_read = _kinds(group)
    only_read = dict(zip(to_read, read, strict=True))
    apart: dict[int, Array] = {}
    done, fault = (jnp.int32(0), jnp.int32(0)) if status is None else (status[0], status[1])

    def turn(n: Array, _: Array, carry: tuple[Array, tuple[Array, ...]]) -> tuple[Array, tuple[Array, ...]]:
        fault, written = carry
        launch = tables.launch(done + n, width)
        arenas = {**only_read, **dict(zip(to_write, written, strict=True))}
        arguments = _arguments(group, arenas, launch)
        # Inside of the loop, where XLA takes both turns for none.
        own = [p.T if is_turned else p for p, is_turned in zip(parameters, _turned(trace, width), strict=True)]
        results, bad = trace.checked(width, own, arguments)
        for k, (kind, result) in enumerate(zip(trace.results, results, strict=True)):
            arenas[kind] = lax.dynamic_update_slice_in_dim(arenas[kind], result, launch.row(k), 0)
            if not depth and kind.bytes <= APART and jax.default_backend() != "cpu":
                apart[k] = handed_over(result)
        if bad is not None:
            here = jnp.where(jnp.any(bad), launch.lanes[jnp.argmax(bad)] + 1, 0)
            fault = jnp.where(fault > 0, fault, here)
        return fault, tuple([arenas[kind] for kind in to_write])

    fault, after = _loop(looped, count, turn, (fault, tuple(written)))
    if status is not None:
        return after, jnp.stack([done + count, fault]), apart
    return after, handed_over(jnp.stack([done + count, fault])) if trace.has_indices else None, apart


def _several(
    groups: Sequence[Group],
    widths: Sequence[int],
    parameters: Sequence[Sequence[Array]],
    read: Sequence[Array],
    written: Sequence[Array],
    index: Array,
    data: Sequence[Sequence[Array]],
) -> tuple[list[Array], list[tuple[Array | None, dict[int, Array]]]]:
    """One launch after another."""
    to_write, to_read = _kinds_of(tuple(groups))
    arenas = dict(zip((*to_write, *to_read), (*written, *read), strict=True))
    found = []
    end = 0
    for group, width, own, some in zip(groups, widths, parameters, data, strict=True):
        of_launch, of_lane = _columns(group)
        start, end = end, end + of_launch + of_lane * width
        kinds, others = _kinds(group)
        now = [arenas[kind] for kind in others], [arenas[kind] for kind in kinds]
        after, status, apart = _forward(group, width, False, 0, own, *now, index[start:end], some, None, None)
        arenas.update(zip(kinds, after, strict=True))
        found.append((status, apart))
    return [arenas[kind] for kind in to_write], found


def _backward(
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
    arenas = dict(zip(_read(group), read, strict=True))
    moved = _moved(group)
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
