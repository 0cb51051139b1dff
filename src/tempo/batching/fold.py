"""Models over forests, from the leaves to the roots: one XLA program for a whole mini-batch."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from tempo.backends.jax.near import handed_over
from tempo.batching.cell import Cell, cell
from tempo.batching.forest import Forest, Layout, layout
from tempo.batching.kernels import jit
from tempo.batching.launches import added, held, pulled, taken
from tempo.batching.over_time import OverTime
from tempo.batching.parameters import Parametrised
from tempo.batching.repeats import first_calls
from tempo.batching.trace import Kind, Trace, kind
from tempo.batching.widths import chunk_widths, is_worth_a_search, padded_width
from tempo.errors import DtypeError, GradientError, InputError, ProgramError, ShapeError

Array = Any
Inputs = dict[str, Any]

WORD = 4
"""Bytes of a number of the array in which most of what a program is given is one transfer."""
SLOTS = 4
"""Up to so many children are gathered one by one: what a cell does with its first child is then done with what was
gathered, not with a copy of a part of it (MV-RNN: 22 ms instead of 37)."""
TURNS = 8
"""For so many numbers of chunks, at most, there are programs in which they are constants."""


def turns_should_be_known() -> bool:
    """A GPU's host reads after every turn of a loop whether there is another one, if it does not know, which takes 20
    to 30 us: as long as a chunk. On a CPU a turn costs nothing."""
    return jax.default_backend() != "cpu"


class Fold(Parametrised):
    """``folded(forest)``: a state for every node, arrays with one row per node; ``programs`` is how often it was
    compiled. Made by ``tp.fold``."""

    def __init__(self, leaf: Cell, inner: Cell, loss: Cell | None, seed: int) -> None:
        cells = {"leaf": leaf, "inner": inner}
        super().__init__(cells if loss is None else {**cells, "loss": loss}, seed)
        self._capacities: dict[Any, int] = {}
        self._turns: set[tuple[int, ...]] = set()
        """For which numbers of chunks, per width, there are programs in which they are constants."""
        self._forward = jit(_forward, static_argnums=(0, 1), donate_argnums=4)
        # All that is donated is kept: what flows is not read, but its memory is used.
        self._backward = jit(_backward, static_argnums=(0, 1), donate_argnums=4, keep_unused=True)
        self._idle: dict[Any, list[Array]] = {}
        """Arenas of earlier forests, whose first row is zeros; for gradients, behind them as many for what flows."""
        self._parts: dict[Any, _Parts] = {}
        self._planned: WeakKeyDictionary[Forest, dict[Any, tuple[_Shape, tuple[Array, ...]]]] = WeakKeyDictionary()
        """What programs are given for forests that were folded before, as in every epoch but the first."""
        self._programs: set[Any] = set()

    @property
    def programs(self) -> int:
        return len(self._programs)

    def __call__(self, forest: Forest, parameters: Mapping[str, Array] | None = None, *, nodes: Any = None) -> Any:
        """The states of all nodes, in the order of the forest's arrays; or of some: ``nodes=forest.roots``."""
        chosen = np.arange(len(forest)) if nodes is None else np.asarray(nodes)
        if nodes is not None and (
            chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not _inside(chosen, len(forest))
        ):
            raise InputError(f"nodes is not a list of numbers from 0 to {len(forest) - 1}: {nodes!r}")
        prepared = self._prepared(forest, parameters, "all" if nodes is None else "some", chosen)
        parts = prepared[0]
        if not len(chosen):
            states = [np.zeros((0, *one.shape), one.dtype) for one in parts.leaf.trace.results]
        else:
            arenas = self._run(self._forward, *prepared)
            states = [
                arena[: len(chosen)].reshape(-1, *one.shape)
                for arena, one in zip(arenas, parts.leaf.trace.results, strict=True)
            ]
        return tree_util.tree_unflatten(parts.leaf.trace.structure, states)

    def value_and_grad(
        self, forest: Forest, parameters: Mapping[str, Array] | None = None
    ) -> tuple[float, dict[str, Array]]:
        """The mean loss of the trees, and its gradient with respect to the parameters, by name."""
        if "loss" not in self.cells:
            raise GradientError("there is no loss to differentiate", hint="tp.fold(..., loss=cell)")
        if not len(forest):
            raise InputError("value_and_grad of no trees: their mean is not defined")
        loss, gradients = self._run(self._backward, *self._prepared(forest, parameters, "roots", forest.roots))
        return float(loss[0]), gradients

    def _run(
        self, function: Any, parts: _Parts, shape: _Shape, values: Mapping[str, Array], inputs: tuple[Array, ...]
    ) -> Any:
        """What a program gives: what is fetched from the device, and what stays there, if something does."""
        self._programs.add((function, parts, shape))
        key = (function, parts, shape.rows)
        arenas = self._idle.pop(key, None)
        if arenas is None:
            kinds = parts.leaf.trace.results * (2 if function is self._backward else 1)
            arenas = [jnp.zeros((shape.rows, *one.shape), one.dtype) for one in kinds]
        self._idle[key], found, faults, *rest = function(parts, shape, values, inputs, arenas)
        # Arrays of the user's own, to write to and to keep: memory that host and device have in common is scarce.
        found = [np.array(array) for array in found]
        for name, fault in zip(self.cells, np.asarray(faults), strict=False):
            if fault:
                raise InputError(
                    f"an index is out of range in cell {name}, for node {int(fault) - 1}",
                    hint="indices of tp.take and nn.Embedding go from 0 to the number of rows, less one",
                )
        return (found, *rest) if rest else found

    def _prepared(
        self, forest: Forest, parameters: Mapping[str, Array] | None, which: str, wanted: np.ndarray[Any, Any]
    ) -> tuple[_Parts, _Shape, Any, tuple[Array, ...]]:
        values = self.given(parameters)
        rows = {name: kind(array.shape[1:], array.dtype) for name, array in forest.data.items()}
        arity = forest.children.shape[1]
        key = (arity, tuple(rows.items()))
        if key not in self._parts:
            self._parts[key] = self._traced(rows, arity)
        planned = self._planned.setdefault(forest, {})
        asked = which, None if which == "all" else wanted.tobytes()
        if asked not in planned:
            planned[asked] = self._inputs(forest, self._parts[key], which, wanted)
        shape, inputs = planned[asked]
        return self._parts[key], shape, values, inputs

    def _traced(self, data: Mapping[str, Kind], arity: int) -> _Parts:
        leaf = self._part("leaf", data)
        for one in leaf.trace.results:
            if not one.is_float:
                raise DtypeError(f"the state of a leaf is {_show(leaf.trace)}: states must be floats")
        states = [kind((arity, *one.shape), one.dtype) for one in leaf.trace.results]
        children = tree_util.tree_unflatten(leaf.trace.structure, states)
        present = kind((arity,), np.dtype(bool))
        inner = self._part("inner", {**data, "children": children, "present": present})
        if inner.trace.structure != leaf.trace.structure or inner.trace.results != leaf.trace.results:
            raise ShapeError(
                f"the state of an inner node is {_show(inner.trace)}, that of a leaf {_show(leaf.trace)}",
                hint="the cells leaf and inner must give the same",
            )
        if "loss" not in self.cells:
            return _Parts(leaf, inner, None)
        state = tree_util.tree_unflatten(leaf.trace.structure, leaf.trace.results)
        loss = self._part("loss", {**data, "state": state})
        if loss.trace.results != (kind((), np.dtype(np.float32)),):
            raise ShapeError(f"the loss of a tree is {_show(loss.trace)}", hint="one number: float32[]")
        return _Parts(leaf, inner, loss)

    def _part(self, name: str, known: Mapping[str, Any]) -> _Part:
        """A cell traced with the arguments that it names."""
        body = self.cells[name].body
        if isinstance(body, OverTime):
            raise ProgramError(f"cell {name} is a program", hint="cells of tp.fold are functions and modules")
        parameters = inspect.signature(body).parameters
        everything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for wanted, p in parameters.items():
            if wanted not in known and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise ProgramError(
                    f"cell {name} has an argument {wanted}, which nothing gives it",
                    hint=f"there are: {', '.join(known)}",
                )
        asked = tuple(one for one in known if everything or one in parameters)
        paths, structure = tree_util.tree_flatten_with_path(((), {one: known[one] for one in asked}))
        trace = self.cells[name].trace(structure, tuple(leaf for _, leaf in paths))
        states = tuple(n for n, (path, _) in enumerate(paths) if path[1].key in ("children", "state"))
        return _Part(trace, asked, tuple(self.own(trace)), states)

    def _inputs(
        self, forest: Forest, parts: _Parts, which: str, wanted: np.ndarray[Any, Any]
    ) -> tuple[_Shape, tuple[Array, ...]]:
        """What the program is given, in arrays that are as large as they ever were: it is compiled for few sizes.
        ``wanted`` are the nodes whose states are. What has four bytes is one array, which is one transfer."""
        plan = self._layout(forest, parts)
        counts = [len(segment.nodes) for segment in plan.segments]
        known = self._known_turns(counts) if turns_should_be_known() else None
        most = known or tuple([self._room(("chunks", s.width), len(s.nodes)) for s in plan.segments])
        asked = [part.asked for part in (parts.leaf, parts.inner, parts.loss if which == "roots" else None) if part]
        data = {name: forest.data[name] for name in dict.fromkeys(itertools.chain(*asked)) if name in forest.data}
        shape = _Shape(
            data=tuple([(name, kind(array.shape[1:], array.dtype)) for name, array in data.items()]),
            nodes=self._room("nodes", len(forest)),
            wanted=self._room(which, len(wanted)),
            leaves=self._room("leaves", len(plan.leaves)),
            chunks=tuple([(turns, *s.children.shape[1:]) for turns, s in zip(most, plan.segments, strict=True)]),
            all_turns=known is not None,
            rows=self._room("size", plan.size),
        )
        numbers = [(np.array([len(wanted), *counts]), 1 + len(counts))]
        numbers += [(wanted, shape.wanted), (plan.rows[wanted], shape.wanted), (plan.leaves, shape.leaves)]
        for turns, segment in zip(most, plan.segments, strict=True):
            numbers += [(segment.nodes, turns), (segment.children, turns)]
        numbers += [(a.view(np.int32), shape.nodes) for a in data.values() if a.dtype.itemsize == WORD]
        others = [_fit(array, shape.nodes) for array in data.values() if array.dtype.itemsize != WORD]
        return shape, (_packed(numbers), *others)

    def _layout(self, forest: Forest, parts: _Parts) -> Layout:
        leaves, leaf, inner = forest.order[: forest.sizes[0]], parts.leaf.trace, parts.inner.trace
        same = None
        if is_worth_a_search(leaf.work * len(leaves)):
            of_leaves = [forest.data[name][leaves] for name in parts.leaf.asked]
            same = first_calls(of_leaves, [False] * len(of_leaves), leaf)
        return layout(forest, same, partial(self._room, "leaves"), *chunk_widths(inner.work, inner.size))

    def _known_turns(self, counts: Sequence[int]) -> tuple[int, ...] | None:
        """Per width a number of turns that there is a program for, or may be one: as many as there are chunks or some
        more, not twice as many in all, and none where there is no chunk that could be computed once more. None if
        there are programs enough."""
        wanted = tuple([padded_width(count) if count else 0 for count in counts])
        fits = [
            known
            for known in self._turns
            if all(a >= b and (a > 0) == (b > 0) for a, b in zip(known, wanted, strict=True))
            and sum(known) <= 2 * sum(wanted)
        ]
        if not fits and len(self._turns) == TURNS:
            return None
        found = min(fits, key=sum, default=wanted)
        self._turns.add(found)
        return found

    def _room(self, what: Any, count: int) -> int:
        wanted = padded_width(count) if count else 0
        self._capacities[what] = max(self._capacities.get(what, 0), wanted)
        return self._capacities[what]


def fold(
    leaf: Callable[..., Any], inner: Callable[..., Any], loss: Callable[..., Any] | None = None, seed: int = 0
) -> Fold:
    """A model over forests: what the state of a leaf is, and that of a node with children.

    The cells get the forest's arrays that they name as arguments, for one node: ``leaf(word)``. ``inner`` also gets
    ``children``, the states of the node's children along a leading axis (as long as the forest's arity, zeros where
    there is none), and, if it asks for it, ``present``, bools that say which there are. ``loss(state, ...)`` is a
    number for the root of every tree.
    """
    made = [cell(leaf, "leaf"), cell(inner, "inner")]
    return Fold(made[0], made[1], None if loss is None else cell(loss, "loss"), seed)


class _Shape(NamedTuple):
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

    def unpacked(self, arrays: Sequence[Array]) -> Inputs:
        """What the program is given, by name."""
        numbers, *others = arrays
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
        return found | {"segments": segments, "all_turns": self.all_turns}


@dataclass(frozen=True, eq=False)
class _Part:
    """A cell of the model."""

    trace: Trace
    asked: tuple[str, ...]
    """The names of its arguments."""
    names: tuple[str, ...]
    """The names of its parameters, in the model."""
    states: tuple[int, ...]
    """Which of its arguments, flattened, are states of nodes."""

    def own(self, values: Mapping[str, Array]) -> list[Array]:
        return [values[name] for name in self.names]

    def arguments(self, inputs: Inputs, nodes: Array, **others: Any) -> list[Array]:
        """Its arguments for some nodes, flattened."""
        data = inputs["data"]
        known = {name: others[name] if name in others else taken(data[name], nodes) for name in self.asked}
        leaves: list[Array] = tree_util.tree_leaves(known)
        return leaves


@dataclass(frozen=True, eq=False)
class _Parts:
    leaf: _Part
    inner: _Part
    loss: _Part | None


def _show(trace: Trace) -> str:
    return str(tree_util.tree_unflatten(trace.structure, [str(one) for one in trace.results]))


def _inside(numbers: np.ndarray[Any, Any], size: int) -> bool:
    return bool(np.all((numbers >= 0) & (numbers < size)))


def _packed(columns: Sequence[tuple[Array, int]]) -> Array:
    """Arrays with so many rows each, their last ones repeated, behind each other as integers."""
    sizes = [length * math.prod(array.shape[1:]) for array, length in columns]
    found = np.zeros(sum(sizes), np.int32)
    end = 0
    for (array, length), size in zip(columns, sizes, strict=True):
        own = found[end : end + size].reshape(length, *array.shape[1:])
        if len(array):
            own[: len(array)] = array
            own[len(array) :] = array[-1]
        end += size
    return found


def _fit(array: Array, length: int) -> Array:
    """An array with so many rows, its last one repeated."""
    if not len(array):
        return np.zeros((length, *array.shape[1:]), array.dtype)
    return np.concatenate([array, np.repeat(array[-1:], length - len(array), 0)])


# -- the program ---------------------------------------------------------------------------------------------


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

    def arguments(self, parts: _Parts, inputs: Inputs, arenas: Sequence[Array], n: Array) -> list[Array]:
        """Those of the nth chunk's nodes."""
        rows = self.rows[n]
        if rows.shape[1] <= SLOTS:
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
    parts: _Parts, values: Mapping[str, Array], inputs: Inputs, arenas: list[Array]
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
        states, bad = parts.inner.trace.checked(chunks.width, parts.inner.own(values), arguments)
        row = chunks.row(n)
        new = [lax.dynamic_update_slice_in_dim(a, new, row, 0) for a, new in zip(arenas, states, strict=True)]
        return new, jnp.where(fault > 0, fault, _first(bad, chunks.nodes[n]))

    for chunks in _chunks(inputs):
        arenas, faults[1] = lax.fori_loop(0, chunks.turns, partial(chunk, chunks), (arenas, faults[1]))
    return arenas, faults


def _forward(
    parts: _Parts, shape: _Shape, values: Mapping[str, Array], arrays: Sequence[Array], arenas: list[Array]
) -> tuple[list[Array], list[Array], Array]:
    inputs = shape.unpacked(arrays)
    arenas, faults = _states(parts, values, inputs, arenas)
    # Every state as a vector, which is faster to gather.
    found = [handed_over(taken(arena.reshape(len(arena), -1), inputs["rows"])) for arena in arenas]
    return arenas, found, handed_over(jnp.stack(faults))


def _backward(
    parts: _Parts, shape: _Shape, values: Mapping[str, Array], arrays: Sequence[Array], arenas: list[Array]
) -> tuple[list[Array], list[Array], Array, dict[str, Array]]:
    assert parts.loss is not None
    inputs = shape.unpacked(arrays)
    arenas, flows = arenas[: len(arenas) // 2], arenas[len(arenas) // 2 :]
    arenas, faults = _states(parts, values, inputs, arenas)
    carry: _Carry = [jnp.zeros_like(flow) for flow in flows], {n: jnp.zeros_like(v) for n, v in values.items()}

    roots, weights = inputs["wanted"], inputs["weights"]
    rows = inputs["rows"]
    state = tree_util.tree_unflatten(parts.leaf.trace.structure, [taken(arena, rows) for arena in arenas])
    arguments = parts.loss.arguments(inputs, roots, state=state)
    (losses,), bad = parts.loss.trace.checked(len(roots), parts.loss.own(values), arguments)
    faults.append(_first(bad, roots))
    carry = _flow(parts.loss, values, arguments, [weights], rows, carry)

    def chunk(chunks: _Chunks, k: Array, carry: _Carry) -> _Carry:
        n = chunks.turns - 1 - k
        coming = [lax.dynamic_slice_in_dim(flow, chunks.row(n), chunks.width, 0) for flow in carry[0]]
        if chunks.all_turns:
            coming = [jnp.where(n < chunks.count, flow, 0) for flow in coming]
        # Read before anything is added: XLA would read it again between, and copy the arena for that.
        coming = held(coming, n)
        return _flow(parts.inner, values, chunks.arguments(parts, inputs, arenas, n), coming, chunks.rows[n], carry)

    for chunks in reversed(_chunks(inputs)):
        carry = lax.fori_loop(0, chunks.turns, partial(chunk, chunks), carry)

    leaves = inputs["leaves"]
    coming = [lax.slice_in_dim(flow, 1, 1 + len(leaves)) for flow in carry[0]]
    flows, gradients = _flow(parts.leaf, values, parts.leaf.arguments(inputs, leaves), coming, leaves, carry)
    loss = handed_over(jnp.sum(losses * weights))
    return arenas + flows, [loss], handed_over(jnp.stack(faults)), gradients


_Carry = tuple[list[Array], dict[str, Array]]
"""What flows into states, and into parameters."""


def _flow(
    part: _Part,
    values: Mapping[str, Array],
    arguments: Sequence[Array],
    coming: Sequence[Array],
    rows: Array,
    carry: _Carry,
) -> _Carry:
    """Let what comes flow on: into the states in these rows, and into parameters."""
    flows, gradients = carry
    into_parameters, into_arguments = pulled(part.trace, len(rows), part.own(values), arguments, coming)
    into_states = [into_arguments[n] for n in part.states]
    if into_states:
        flows = [added(flow, rows, new) for flow, new in zip(flows, into_states, strict=True)]
    gradients = dict(gradients)
    for name, new in zip(part.names, into_parameters, strict=True):
        gradients[name] = gradients[name] + new
    return flows, gradients
