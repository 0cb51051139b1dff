"""The XLA program of a fold: leaves, then chunk after chunk of the nodes above, and all of it backwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from tempo.backends.jax.near import handed_over
from tempo.batching.launches import added, held, is_read_late, pulled, taken
from tempo.batching.trace import Kind, Trace
from tempo.random import threefry

Array = Any
Inputs = dict[str, Any]

WORD = 4
"""Bytes of a number of the array in which most of what a program is given is one transfer."""
SLOTS = 4
"""Up to so many children are gathered one by one: what a cell does with its first child is then done with what was
gathered, not with a copy of a part of it (MV-RNN: 22 ms instead of 37)."""


class Shape(NamedTuple):
    """How large the arrays of a program are."""

    data: tuple[tuple[str, Kind], ...]
    """The forest's arrays that the program reads: their names, and what there is of each for a node."""
    nodes: int
    wanted: int
    leaves: int
    chunks: tuple[tuple[int, int, int], ...]
    """Per width how many chunks, the width, and the forest's arity."""
    all_turns: bool
    """Whether so many are computed, the last of them several times, and not only as many as there are."""
    rows: int
    """Of the arenas."""
    draws: bool
    """Whether cells draw random numbers, so that there is a seed."""
    pulled: tuple[str, ...] = ()
    """The arrays that gradients are wanted for."""

    def unpacked(self, arrays: Sequence[Array]) -> Inputs:
        """What the program is given, by name."""
        numbers, *others = arrays
        seed = others.pop() if self.draws else None
        ends = 0

        def next_one(*sizes: int) -> Array:
            nonlocal ends
            start, ends = ends, ends + math.prod(sizes)
            return numbers[start:ends].reshape(sizes)

        count, *counts = next_one(1 + len(self.chunks))
        wanted, rows, leaves = next_one(self.wanted), next_one(self.wanted), next_one(self.leaves)
        segments = [
            {"count": own, "nodes": next_one(most, width), "rows": next_one(most, width, arity)}
            for own, (most, width, arity) in zip(counts, self.chunks, strict=True)
        ]
        data, rest = {}, iter(others)
        for name, one in self.data:
            if one.dtype.itemsize == WORD:
                data[name] = lax.bitcast_convert_type(next_one(self.nodes, *one.shape), one.dtype)
            else:
                data[name] = next(rest)
        weights = jnp.where(jnp.arange(self.wanted) < count, 1 / count, 0).astype(np.float32)
        found = {"data": data, "wanted": wanted, "rows": rows, "leaves": leaves, "weights": weights}
        return found | {"segments": segments, "all_turns": self.all_turns, "seed": seed}


@dataclass(frozen=True, eq=False)
class Part:
    """A cell of the model."""

    trace: Trace
    asked: tuple[str, ...]
    """The names of its arguments."""
    names: tuple[str, ...]
    """The names of its parameters, in the model."""
    states: tuple[int, ...]
    """Which of its arguments, flattened, are states of nodes."""
    data: Mapping[str, int]
    """Which are the forest's arrays."""
    number: int
    """Which of the model's cells it is."""

    def own(self, values: Mapping[str, Array]) -> list[Array]:
        return [values[name] for name in self.names]

    def arguments(self, inputs: Inputs, nodes: Array, **others: Any) -> list[Array]:
        """Its arguments for some nodes, flattened."""
        data = inputs["data"]
        known = {name: others[name] if name in others else taken(data[name], nodes) for name in self.asked}
        leaves: list[Array] = tree_util.tree_leaves(known)
        return [*leaves, self.keys(inputs["seed"], nodes)] if self.trace.draws else leaves

    def keys(self, seed: Array, nodes: Array) -> Array:
        """The keys of what it draws for some nodes."""
        here = nodes.astype(np.uint32), jnp.full(nodes.shape, self.number, np.uint32)
        return jnp.stack(lax.optimization_barrier(threefry((seed[0], seed[1]), here)), 1)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class Parts:
    leaf: Part
    inner: Part
    loss: Part | None

    @property
    def draws(self) -> bool:
        return any(part is not None and part.trace.draws for part in (self.leaf, self.inner, self.loss))


@dataclass(frozen=True)
class _Chunks:
    """The chunks of one width: ``first`` is the row of the first one's first node."""

    count: Array
    first: Array
    nodes: Array
    rows: Array
    all_turns: bool

    @property
    def width(self) -> int:
        return int(self.nodes.shape[1])

    @property
    def turns(self) -> Array | int:
        return len(self.nodes) if self.all_turns else self.count

    def row(self, n: Array) -> Array:
        """Where the nth chunk's states are: of what fills up, the last one's, which it is."""
        return self.first + (jnp.minimum(n, self.count - 1) if self.all_turns else n) * self.width

    def arguments(self, parts: Parts, inputs: Inputs, arenas: Sequence[Array], n: Array) -> list[Array]:
        """Those of the nth chunk's nodes."""
        rows = self.rows[n]
        if 0 < rows.shape[1] <= SLOTS:
            states = [jnp.stack([taken(arena, slot) for slot in rows.T], 1) for arena in arenas]
        else:
            states = [taken(arena, rows) for arena in arenas]
        children = tree_util.tree_unflatten(parts.leaf.trace.structure, states)
        return parts.inner.arguments(inputs, self.nodes[n], children=children, present=rows > 0)


def _chunks(inputs: Inputs) -> list[_Chunks]:
    first = jnp.int32(1 + len(inputs["leaves"]))
    found = []
    for segment in inputs["segments"]:
        if len(segment["nodes"]):
            found.append(_Chunks(segment["count"], first, segment["nodes"], segment["rows"], inputs["all_turns"]))
            first = first + segment["count"] * found[-1].width
    return found


def _first(bad: Array | None, nodes: Array) -> Array:
    """The first node with an index that is out of range, counted from one; zero if there is none."""
    if bad is None:
        return jnp.int32(0)
    return jnp.where(jnp.any(bad), nodes[jnp.argmax(bad)] + 1, 0).astype(np.int32)


def _states(
    parts: Parts, values: Mapping[str, Array], inputs: Inputs, arenas: list[Array]
) -> tuple[list[Array], list[Array]]:
    """The arenas with all states, and where indices of leaves and of other nodes are out of range."""
    leaves = inputs["leaves"]
    of_leaves, bad = parts.leaf.trace.checked(len(leaves), parts.leaf.own(values), parts.leaf.arguments(inputs, leaves))
    faults = [_first(bad, leaves), jnp.int32(0)]
    arenas = [
        lax.dynamic_update_slice_in_dim(arena, states, 1, 0) for arena, states in zip(arenas, of_leaves, strict=True)
    ]

    def chunk(chunks: _Chunks, n: Array, carry: tuple[list[Array], Array]) -> tuple[list[Array], Array]:
        arenas, fault = carry
        arguments = chunks.arguments(parts, inputs, arenas, n)
        which = [one for k, one in enumerate(parts.inner.states) if is_read_late(parts.inner.trace, one, {k})]
        for one, array in zip(which, held([arguments[one] for one in which], n), strict=True):
            arguments[one] = array
        states, bad = parts.inner.trace.checked(chunks.width, parts.inner.own(values), arguments)
        row = chunks.row(n)
        new = [lax.dynamic_update_slice_in_dim(a, new, row, 0) for a, new in zip(arenas, states, strict=True)]
        # Where no index can be wrong there is nothing to find out, which would be one more kernel for every chunk.
        return new, fault if bad is None else jnp.where(fault > 0, fault, _first(bad, chunks.nodes[n]))

    for chunks in _chunks(inputs):
        arenas, faults[1] = lax.fori_loop(0, chunks.turns, partial(chunk, chunks), (arenas, faults[1]))
    return arenas, faults


def forward(
    parts: Parts, shape: Shape, values: Mapping[str, Array], arrays: Sequence[Array], arenas: list[Array]
) -> tuple[list[Array], list[Array], Array]:
    inputs = shape.unpacked(arrays)
    arenas, faults = _states(parts, values, inputs, arenas)
    # Every state as a vector, which is faster to gather.
    found = [handed_over(taken(arena.reshape(len(arena), -1), inputs["rows"])) for arena in arenas]
    return arenas, found, handed_over(jnp.stack(faults))


def backward(
    parts: Parts, shape: Shape, values: Mapping[str, Array], arrays: Sequence[Array], arenas: list[Array]
) -> tuple[list[Array], list[Array], Array, dict[str, Array], dict[str, Array]]:
    assert parts.loss is not None
    inputs = shape.unpacked(arrays)
    arenas, flows = arenas[: len(arenas) // 2], arenas[len(arenas) // 2 :]
    arenas, faults = _states(parts, values, inputs, arenas)
    carry = _Flows(
        [jnp.zeros_like(flow) for flow in flows],
        {name: jnp.zeros_like(value) for name, value in values.items()},
        {name: jnp.zeros_like(inputs["data"][name]) for name in shape.pulled if name in inputs["data"]},
    )

    wanted, weights, rows = inputs["wanted"], inputs["weights"], inputs["rows"]
    state = tree_util.tree_unflatten(parts.leaf.trace.structure, [taken(arena, rows) for arena in arenas])
    arguments = parts.loss.arguments(inputs, wanted, state=state)
    (losses,), bad = parts.loss.trace.checked(len(wanted), parts.loss.own(values), arguments)
    faults.append(_first(bad, wanted))
    carry = carry.after(parts.loss, values, arguments, [weights], wanted, rows)

    def chunk(chunks: _Chunks, k: Array, carry: _Flows) -> _Flows:
        n = chunks.turns - 1 - k
        coming = [lax.dynamic_slice_in_dim(flow, chunks.row(n), chunks.width, 0) for flow in carry.states]
        if chunks.all_turns:
            coming = [jnp.where(n < chunks.count, flow, 0) for flow in coming]
        # Read before anything is added: XLA would read it again between, and copy the arena for that.
        coming = held(coming, n)
        arguments = chunks.arguments(parts, inputs, arenas, n)
        return carry.after(parts.inner, values, arguments, coming, chunks.nodes[n], chunks.rows[n])

    for chunks in reversed(_chunks(inputs)):
        carry = lax.fori_loop(0, chunks.turns, partial(chunk, chunks), carry)

    leaves = inputs["leaves"]
    coming = [lax.slice_in_dim(flow, 1, 1 + len(leaves)) for flow in carry.states]
    carry = carry.after(parts.leaf, values, parts.leaf.arguments(inputs, leaves), coming, leaves, leaves)
    loss = handed_over(jnp.sum(losses * weights))
    return arenas + carry.states, [loss], handed_over(jnp.stack(faults)), carry.parameters, carry.data


class _Flows(NamedTuple):
    """What flows into states, into parameters, and into the forest's arrays."""

    states: list[Array]
    parameters: dict[str, Array]
    data: dict[str, Array]

    def after(
        self,
        part: Part,
        values: Mapping[str, Array],
        arguments: Sequence[Array],
        coming: Sequence[Array],
        nodes: Array,
        rows: Array,
    ) -> _Flows:
        """What it is when it has come through a cell of some nodes: into the states in these rows, and the rest."""
        into_parameters, into_arguments = pulled(part.trace, len(nodes), part.own(values), arguments, coming)
        states, parameters, data = list(self.states), dict(self.parameters), dict(self.data)
        if part.states:
            new_states = [into_arguments[n] for n in part.states]
            states = [added(flow, rows, new) for flow, new in zip(states, new_states, strict=True)]
        for name, new in zip(part.names, into_parameters, strict=True):
            parameters[name] = parameters[name] + new
        for name in data.keys() & part.data:
            data[name] = added(data[name], nodes, into_arguments[part.data[name]])
        return _Flows(states, parameters, data)
