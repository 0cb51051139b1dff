"""Models over forests, from the leaves to the roots: one XLA program for a whole mini-batch."""

from __future__ import annotations

import inspect
import itertools
import math
import reprlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from tempo import dtypes
from tempo.backends.jax.jitted import jitted
from tempo.batching import folding
from tempo.batching.cell import Cell, cell
from tempo.batching.folding import WORD, Part, Parts, Shape
from tempo.batching.forest import GIVEN, Forest, Layout, layout
from tempo.batching.kernels import jit
from tempo.batching.over_time import OverTime
from tempo.batching.parameters import Parametrised
from tempo.batching.repeats import first_calls
from tempo.batching.trace import Kind, Trace, kind
from tempo.batching.widths import chunk_widths, is_worth_a_search, padded_width
from tempo.errors import DtypeError, GradientError, InputError, ProgramError, ShapeError
from tempo.given import check_seed, seed_words

Array = Any

_lock = threading.RLock()
"""Threads plan one after the other: how large arrays are must not change in the middle. One for all folds, which can be
copied."""
PLANNED = 8
"""For so many choices of nodes what is planned for a forest is kept."""
MOST_SENT = 2**20
"""Bytes of what is planned for a forest that stay on a GPU with it."""
TURNS = 8
"""For so many numbers of chunks, at most, there are programs in which they are constants."""


def turns_should_be_known() -> bool:
    """A GPU's host reads after every turn of a loop whether there is another one, if it does not know, which takes 20
    to 30 us: as long as a chunk. On a CPU a turn costs nothing."""
    return jax.default_backend() != "cpu"


class _PerParts:
    """A function of parts, a shape and arrays, the last of which are donated, compiled for each of the parts. (Of an
    argument JAX would keep them, and with them a fold's cells, for as long as the process lives.)"""

    def __init__(self, function: Callable[..., Any], keep_unused: bool = False) -> None:
        self.function = function
        self.keep_unused = keep_unused
        self.made: dict[Parts, Any] = {}

    def __call__(self, parts: Parts) -> Any:
        if parts not in self.made:
            own = partial(self.function, parts)
            self.made[parts] = jit(own, 3, (0,), keep_unused=self.keep_unused)
        return self.made[parts]


class Fold(Parametrised):
    """``folded(forest)``: a state for every node, arrays with one row per node; ``programs`` is how often it was
    compiled. Made by ``tp.fold``."""

    def __init__(self, leaf: Cell, inner: Cell, loss: Cell | None, seed: int) -> None:
        cells = {"leaf": leaf, "inner": inner}
        super().__init__(cells if loss is None else {**cells, "loss": loss}, seed)
        self._capacities: dict[Any, int] = {}
        self._turns: set[tuple[int, ...]] = set()
        """For which numbers of chunks, per width, there are programs in which they are constants."""
        self._forward = _PerParts(folding.forward)
        # All that is donated is kept: what flows is not read, but its memory is used.
        self._backward = _PerParts(folding.backward, keep_unused=True)
        self._idle: dict[Any, list[Array]] = {}
        """Arenas of earlier forests, whose first row is zeros; for gradients, behind them as many for what flows."""
        self._parts: dict[Any, Parts] = {}
        self._planned: WeakKeyDictionary[Forest, dict[Any, tuple[Shape, tuple[Array, ...]]]] = WeakKeyDictionary()
        """What programs are given for forests that were folded before, as in every epoch but the first."""
        self._programs: set[Any] = set()

    @property
    def programs(self) -> int:
        return len(self._programs)

    @jitted
    def __call__(
        self, forest: Forest, parameters: Mapping[str, Array] | None = None, *, nodes: Any = None, seed: int = 0
    ) -> Any:
        """The states of all nodes, in the order of the forest's arrays; or of some: ``nodes=forest.roots``. What cells
        draw depends on ``seed`` and on the node's number."""
        _check_is_forest(forest)
        chosen = np.arange(len(forest)) if nodes is None else _chosen(nodes, forest)
        prepared = self._prepared(forest, parameters, "all" if nodes is None else "some", chosen, seed)
        parts = prepared[0]
        if not len(chosen):
            states = [np.zeros((0, *one.shape), one.dtype) for one in parts.leaf.trace.results]
        else:
            arenas = self._run(self._forward, *prepared)
            states = [
                arena[: len(chosen)].reshape(len(chosen), *one.shape)
                for arena, one in zip(arenas, parts.leaf.trace.results, strict=True)
            ]
        return tree_util.tree_unflatten(parts.leaf.trace.structure, states)

    @jitted
    def value_and_grad(
        self,
        forest: Forest,
        parameters: Mapping[str, Array] | None = None,
        *,
        nodes: Any = None,
        inputs: str | Sequence[str] | None = None,
        seed: int = 0,
    ) -> Any:
        """The mean loss of the trees' roots, or of the ``nodes``, and its gradient with respect to the parameters, by
        name. With ``inputs``, names of the forest's arrays, there is a third result: the gradients with respect to
        these, by name."""
        if "loss" not in self.cells:
            raise GradientError("there is no loss to differentiate", hint="tp.fold(..., loss=cell)")
        _check_is_forest(forest)
        if not len(forest):
            raise InputError("value_and_grad of no trees: their mean is not defined")
        wanted = forest.roots if nodes is None else _chosen(nodes, forest)
        if not len(wanted):
            raise InputError("value_and_grad of no nodes: their mean is not defined")
        inputs = (inputs,) if isinstance(inputs, str) else inputs
        for name in inputs or ():
            if name not in forest.data or not dtypes.is_float(forest.data[name].dtype):
                floats = [name for name, array in forest.data.items() if dtypes.is_float(array.dtype)]
                raise GradientError(
                    f"inputs: there is no gradient with respect to {name!r}",
                    hint=f"the forest's arrays of floats have one: {', '.join(floats) or 'there are none'}",
                )
        prepared = self._prepared(forest, parameters, "loss", wanted, seed, tuple(inputs or ()))
        (loss,), gradients, of_data = self._run(self._backward, *prepared)
        found = float(loss), gradients
        if inputs is None:
            return found
        unread = {name: np.zeros_like(forest.data[name]) for name in inputs if name not in of_data}
        return *found, {name: np.array(array[: len(forest)]) for name, array in of_data.items()} | unread

    def _run(
        self, function: _PerParts, parts: Parts, shape: Shape, values: Mapping[str, Array], inputs: tuple[Array, ...]
    ) -> Any:
        """What a program gives: what is fetched from the device, and what stays there, if something does."""
        self._programs.add((function, parts, shape))
        key = (function, parts, shape.rows)
        arenas = self._idle.pop(key, None)
        if arenas is None:
            kinds = parts.leaf.trace.results * (2 if function is self._backward else 1)
            arenas = [jnp.zeros((shape.rows, *one.shape), one.dtype) for one in kinds]
        self._idle[key], found, faults, *rest = function(parts)(shape, values, inputs, arenas)
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
        self,
        forest: Forest,
        parameters: Mapping[str, Array] | None,
        which: str,
        wanted: np.ndarray[Any, Any],
        seed: int = 0,
        pulled: tuple[str, ...] = (),
    ) -> tuple[Parts, Shape, Any, tuple[Array, ...]]:
        """What a program is given: for the states of ``all`` nodes or of ``some``, or for the ``loss`` of some."""
        check_seed(seed)
        values = self.given(parameters)
        rows = {name: kind(array.shape[1:], array.dtype) for name, array in forest.data.items()}
        arity = forest.children.shape[1]
        key = (arity, tuple(rows.items()))
        asked = which, None if which == "all" else wanted.tobytes()
        with _lock:
            if key not in self._parts:
                self._parts[key] = self._traced(rows, arity)
            planned = self._planned.setdefault(forest, {})
            if asked in planned:
                shape, inputs = planned[asked]
                planned[asked] = shape, _sent(inputs)
            else:
                if len(planned) == PLANNED:
                    del planned[next(iter(planned))]
                planned[asked] = self._inputs(forest, self._parts[key], which, wanted)
            shape, inputs = planned[asked]
        if shape.draws:
            inputs = (*inputs, seed_words(seed))
        return self._parts[key], shape._replace(pulled=pulled), values, inputs

    def _traced(self, data: Mapping[str, Kind], arity: int) -> Parts:
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
            return Parts(leaf, inner, None)
        state = tree_util.tree_unflatten(leaf.trace.structure, leaf.trace.results)
        loss = self._part("loss", {**data, "state": state})
        if loss.trace.results != (kind((), np.dtype(np.float32)),):
            raise ShapeError(f"the loss of a tree is {_show(loss.trace)}", hint="one number: float32[]")
        return Parts(leaf, inner, loss)

    def _part(self, name: str, known: Mapping[str, Any]) -> Part:
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
        data = {path[1].key: n for n, (path, _) in enumerate(paths) if path[1].key not in GIVEN}
        return Part(trace, asked, tuple(self.own(trace)), states, data, list(self.cells).index(name))

    def _inputs(
        self, forest: Forest, parts: Parts, which: str, wanted: np.ndarray[Any, Any]
    ) -> tuple[Shape, tuple[Array, ...]]:
        """What the program is given, in arrays that are as large as they ever were: it is compiled for few sizes.
        ``wanted`` are the nodes whose states are. What has four bytes is one array, which is one transfer."""
        plan = self._layout(forest, parts)
        counts = [len(segment.nodes) for segment in plan.segments]
        known = self._known_turns(counts) if turns_should_be_known() else None
        most = known or tuple([self._room(("chunks", s.width), len(s.nodes)) for s in plan.segments])
        asked = [part.asked for part in (parts.leaf, parts.inner, parts.loss if which == "loss" else None) if part]
        data = {name: forest.data[name] for name in dict.fromkeys(itertools.chain(*asked)) if name in forest.data}
        shape = Shape(
            data=tuple([(name, kind(array.shape[1:], array.dtype)) for name, array in data.items()]),
            nodes=self._room("nodes", len(forest)),
            wanted=self._room(which, len(wanted)),
            leaves=self._room("leaves", len(plan.leaves)),
            chunks=tuple([(turns, *s.children.shape[1:]) for turns, s in zip(most, plan.segments, strict=True)]),
            all_turns=known is not None,
            rows=self._room("size", plan.size),
            draws=parts.draws,
        )
        numbers = [(np.array([len(wanted), *counts]), 1 + len(counts))]
        numbers += [(wanted, shape.wanted), (plan.rows[wanted], shape.wanted), (plan.leaves, shape.leaves)]
        for turns, segment in zip(most, plan.segments, strict=True):
            numbers += [(segment.nodes, turns), (segment.children, turns)]
        numbers += [(a.view(np.int32), shape.nodes) for a in data.values() if a.dtype.itemsize == WORD]
        others = [_fit(array, shape.nodes) for array in data.values() if array.dtype.itemsize != WORD]
        return shape, (_packed(numbers), *others)

    def _layout(self, forest: Forest, parts: Parts) -> Layout:
        leaves, leaf, inner = forest.order[: forest.sizes[0]], parts.leaf.trace, parts.inner.trace
        same = None
        if is_worth_a_search(leaf.work * len(leaves)):
            # In the order of the cell's arguments, which is not that of the forest's arrays.
            of_leaves = [forest.data[name][leaves] for name in sorted(parts.leaf.data, key=parts.leaf.data.__getitem__)]
            same = first_calls(of_leaves, [False] * len(of_leaves), leaf)
        widths, beside = chunk_widths(inner.work, inner.size)
        known = [width for width in widths if self._capacities.get(("chunks", width))]
        return layout(forest, same, partial(self._room, "leaves"), widths, beside, known)

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


def _check_is_forest(forest: Any) -> None:
    if not isinstance(forest, Forest):
        raise InputError(f"{reprlib.repr(forest)} is folded, which is no forest", hint="make it one: tp.forest(...)")


def _show(trace: Trace) -> str:
    return str(tree_util.tree_unflatten(trace.structure, [str(one) for one in trace.results]))


def _chosen(nodes: Any, forest: Forest) -> np.ndarray[Any, Any]:
    """The numbers of some nodes."""
    found = np.asarray(nodes, None if np.size(nodes) else np.int32)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not np.all((found >= 0) & (found < len(forest))):
        raise InputError(f"nodes is not a list of numbers from 0 to {len(forest) - 1}: {nodes!r}")
    # Of one type: what is planned is found by their bytes.
    return found.astype(np.int64)


def _sent(arrays: Sequence[Array]) -> tuple[Array, ...]:
    """What a program is given again; small arrays where it runs, for as long as they are kept. A GPU's program that is
    given 40 KB of NumPy's takes 0.15 to 0.25 ms longer to call, and to send them first takes as long again."""
    if jax.default_backend() == "cpu":
        return tuple(arrays)
    here_still = [isinstance(array, np.ndarray) and array.nbytes <= MOST_SENT for array in arrays]
    return tuple([jax.device_put(array) if here else array for array, here in zip(arrays, here_still, strict=True)])


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
