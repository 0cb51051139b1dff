"""A whole program as one function of JAX arrays.

``Primitives`` compute nodes at the points of a block, ``Repetition`` runs loops; here is what they read and write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import lax

from tempo.backends.jax import apart, rows, writing
from tempo.backends.jax.circles import Slots, Turned, circle
from tempo.backends.jax.iterated import Iterated
from tempo.backends.jax.padded import jx
from tempo.backends.jax.padding import Padding
from tempo.backends.jax.pointwise import Primitives
from tempo.backends.jax.reading import Block, Bounds, Range, Value, read, shifted
from tempo.backends.jax.repetition import Repetition, count_of, make_room
from tempo.backends.jax.settled import Settled
from tempo.backends.jax.state import UNSTORED, Beside, Computed, Elsewhere, Fresh, Previous, Recent, State
from tempo.graph.node import Edge, Graph, Node, dims_of
from tempo.graph.structural import HOST_RESULT, INPUT, RECURRENT
from tempo.ops.creation import CONSTANT, FULL, INDEX_VALUE
from tempo.ops.scan import LINEAR_RECURRENCE, all_steps
from tempo.schedule.folds import COMBINE, Fold
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import BlockSteps, Compute, Loop, Tree, block_of
from tempo.schedule.storage import Apart, Latest, Present, Storage, Store, is_short
from tempo.symbolic import Condition, Dim, Expr, Slice, conjunction
from tempo.symbolic import index as indices
from tempo.symbolic.condition import And
from tempo.symbolic.grid import evaluate
from tempo.symbolic.intervals import decide, extent

Array = Any


class Lowering:
    """Turns a scheduled graph into a function from inputs to outputs."""

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        storage: Storage,
        numbers: Mapping[Any, int],
        parallel: bool = False,
        kernels: rows.Kernels | None = None,
    ) -> None:
        self.graph = graph
        self.schedule = schedule
        self.storage = storage
        self.numbers = schedule.numbers
        self.limits = dict(numbers)
        self.stopping = {edge.node: dim for dim, edge in graph.stops.items()}
        self.parallel = parallel
        self.kernels = kernels
        self.notes: dict[int, tuple[Loop, str]] = {}
        """Which loops were made kernels, and why others were not: by the loops' identity."""
        self.literals = {node for node in graph.nodes if _is_literal(node)}
        self.settled = Settled(graph, schedule, self.stopping)
        self.padding = Padding(graph, schedule)
        self.primitives = Primitives(schedule.numbers, self.settled, self.padding)
        self.iterated = Iterated(schedule)

    def __call__(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """A whole program without host calls: from inputs to outputs, and ``made``."""
        state = self.load(inputs)
        for tree in self.schedule.trees:
            self.execute(tree, state, {})
        return self.outputs(state), self.made(state)

    def made(self, state: State) -> dict[str, Array]:
        """How many steps were made of dims that stop on data, by the names of their bounds."""
        return {bound.name: jnp.asarray(value) for bound, value in self.bounds(state).made.items()}

    def load(self, inputs: Mapping[str, Array]) -> State:
        """The stores of inputs on the device."""
        return {node: self.input(node, inputs[name]) for name, node in self.given.items() if name in inputs}

    @property
    def given(self) -> dict[str, Node]:
        """The inputs that the device is given, by name."""
        nodes = (node for node in self.schedule.places if node.op is INPUT)
        return {node.attributes["input"]: node for node in nodes if not self.storage.stores[node].host}

    def is_stored_as_given(self, node: Node, given: Any) -> bool:
        """Whether an input is its own store."""
        unrolled = tuple(apart.unrolled(self.storage.stores[node]))
        sizes = (len(given), *given[0].shape) if isinstance(given, tuple) else given.shape
        whole = [self.schedule.steps(node, d) == (0, size) for d, size in zip(node.domain, sizes, strict=False)]
        return all(whole) and unrolled == (node.domain[:1] if isinstance(given, tuple) else ())

    def input(self, node: Node, given: Any) -> Any:
        """The store of an input, of which a tuple has the steps of its first dim."""
        store = self.storage.stores[node]
        if isinstance(given, tuple):
            start, stop = self.schedule.steps(node, node.domain[0])
            rest = node.domain[1:]
            return tuple(part for one in given[start:stop] for part in self.parts(one, store, rest))
        parts = self.parts(given, store, node.domain)
        return parts if apart.unrolled(store) else parts[0]

    def parts(self, given: Array, store: Store, axes: tuple[Dim, ...]) -> tuple[Array, ...]:
        """The arrays of a store, out of an array with these dims in front."""
        array = jnp.asarray(given)
        for axis, d in enumerate(axes):
            start, stop = self.schedule.steps(store.node, d)
            array = shifted(array, axis, start, stop - start)
        return apart.cut(array, store, axes)

    def outputs(self, state: State) -> dict[str, Array]:
        return {name: self.output(name, edge, state) for name, edge in self.graph.outputs.items()}

    # -- control ---------------------------------------------------------------------------------------------

    def execute(self, tree: Tree, state: State, at: Mapping[Dim, Any]) -> None:
        """Run a tree, writing what it computes into ``state``."""
        if isinstance(tree, Compute):
            self.compute(tree, state, at)
        elif self.schedule.is_inline(tree):
            here = tree.at(tree.steps[0], at.get(tree.dim))
            make_room(self, tree, state)
            for inner in tree.body:
                self.execute(inner, state, {**at, tree.dim: here})
        else:
            Repetition(self, tree, state, at, tree.steps[0]).run(count_of(self, tree, state, at))

    def room(self, node: Node, loops: Sequence[Loop]) -> tuple[int, ...]:
        """The shape of a node's store inside of some loops that compute it."""
        return self.storage.stores[node].room(loops, self.schedule)

    def at_step(self, node: Node, state: State, at: Mapping[Dim, Any]) -> Array:
        """What a store has at the loops' steps, zeros where that is outside."""
        block = self.block(node, state, at)
        value = self.read(node.here(), state, block)
        return jnp.broadcast_to(_spread(value, block.dims, 0), (*block.lengths, *self.storage.stores[node].value))

    def is_carried(self, node: Node) -> bool:
        """Whether a node's store outlives an iteration of the loop that computes it."""
        kept = self.storage.stores[node].dims
        if node in self.schedule.folds:
            return True
        return any(
            not isinstance(kept[d], Latest | Present | Apart) and self.iterated.is_looped(node, d) for d in node.domain
        )

    # -- nodes ------------------------------------------------------------------------------------------------

    def block(
        self,
        node: Node,
        state: State,
        at: Mapping[Dim, Any],
        within: Mapping[Dim, tuple[int, int]] = MappingProxyType({}),
    ) -> Block:
        """Where a node is computed; ``within`` has the first and the last steps of loops around it."""
        ranges = {}
        here = {}
        for d in node.domain:
            ranges[d] = whole = Range.of(*self.schedule.steps(node, d))
            step = at.get(d.origin)
            if d.origin in within:
                first, last = (self.schedule.own_step(node, d, end) for end in within[d.origin])
                ranges[d] = whole = replace(whole, first=first, last=last)
            if isinstance(step, BlockSteps):
                start = self.schedule.own_step(node, d, step.start)
                ranges[d] = replace(whole, start=start, length=step.length)
            elif step is not None:
                here[d] = self.schedule.own_step(node, d, step)
        return Block(here, ranges, self.bounds(state), at, node)

    def bounds(self, state: State) -> Bounds:
        # A dim that has not stopped yet makes the steps that are being made.
        made = {bound: state.get(bound, most) for bound, (_, most) in self.schedule.open.items()}
        return Bounds(self.numbers, self.schedule.open, made)

    def compute(self, statement: Compute, state: State, at: Mapping[Dim, Any]) -> None:
        node = statement.node
        if node.op is INPUT or node in self.literals:
            return
        block = self.block(node, state, at, statement.within)
        if node.op is RECURRENT:
            value = self.choose(statement, state, block)
        elif node.op is HOST_RESULT:
            value = self.result(node, state, block)
        elif node.op is LINEAR_RECURRENCE and (steps := _steps_dim(node)) in block.dims:
            value = self.scan(node, steps, state, block)
        elif statement.folds:
            value = self.fold(node, statement.folds, state, block)
        else:
            value = self.apply(node, node.edges, state, block)
        self.write(node, value, state, block)
        if node in self.stopping:
            self.stop(node, value, state, block)

    def result(self, node: Node, state: State, block: Block) -> Value:
        """What a host call returned, for the steps of its batch at which it is needed."""
        call = node.edges[0].node
        array = state[call][node.attributes["position"]]
        batch: tuple[Dim, ...] = call.attributes["batch"]
        dims = tuple(d for d in block.dims if d in batch)
        points = [d for d in batch if d in block.at]
        array = jnp.moveaxis(array, [batch.index(d) for d in (*points, *dims)], range(len(batch)))
        for d in points:
            array = lax.dynamic_index_in_dim(array, block.at[d], 0, keepdims=False, allow_negative_indices=False)
        for axis, d in enumerate(dims):
            array = shifted(array, axis, block.ranges[d].start, block.ranges[d].length)
        return Value(array, dims)

    def stop(self, node: Node, holds: Value, state: State, block: Block) -> None:
        """Note how many steps a dim makes when its stop condition is computed, at one step or at all of them."""
        bound = self.stopping[node].bound
        most = self.limits[bound]
        if not node.domain:
            step: Any = 0
        elif holds.dims:
            step = jnp.argmax(holds.array) + block.ranges[node.domain[0]].start
        else:
            step = block.at.get(node.domain[0], 0)
        ended = jnp.where(jnp.any(holds.array), step + 1, most)
        so_far: Any = state.get(bound, most)
        state[bound] = jnp.minimum(so_far, ended).astype(jnp.int32)

    def read(self, edge: Edge, state: State, block: Block, whole: Slots | None = None) -> Value:
        """What a block reads, with its padded axes as long as they get in this block; an axis that is
        ``whole`` with all slots of its circle."""
        if edge.node in self.literals:
            return Value(self.literal(edge.node), ())
        if edge.node.op is INDEX_VALUE and not edge.is_here and not any(isinstance(i, Slice) for i in edge.index):
            # What is a number of a step is computed where it is read, and not read in another order than it is kept in.
            steps = dict(zip(edge.node.domain, edge.index, strict=True))
            return self.steps(edge.node.attributes["expr"].substitute(steps), block)
        lengths = tuple(extent(size, block.spans(), self.numbers) for size in edge.shape)
        if whole is not None:
            lengths = (*lengths[: whole.axis], whole.size, *lengths[whole.axis + 1 :])
        if edge.node not in self.storage.stores:  # needed nowhere: only slices of no length read it
            return Value(jnp.zeros(lengths, edge.dtype), ())
        store = self.storage.stores[edge.node]
        for fresh in (state.get(Fresh(edge.node)), *state.get(Previous(edge.node), ())):
            if fresh is None or not self.is_at(edge, block, fresh):
                continue
            # Not from the store, of which XLA would then make a copy.
            points = {d for d, step in fresh.at.items() if not isinstance(step, BlockSteps)}
            here = {d: Latest() if d in points else kept for d, kept in store.dims.items()}
            present = self.present(edge.node, [d for d in fresh.at if d not in points], block)
            return self.fitted(edge, read(edge, fresh.array, replace(store, dims=here), block, present), lengths)
        beside = self.beside(edge.node, state, block)
        if beside is not None:
            value = read(edge, beside.array, beside.store, block, {}, whole is not None)
            return self.fitted(edge, value, lengths)
        for (d, back), array in state.get(Elsewhere(edge.node), {}).items():
            if whole is None and self.iterated.steps_back(edge, d, block.node, block.spans()) == back:
                here = {**store.dims, d: Latest()}
                return self.fitted(edge, read(edge, array, replace(store, dims=here), block, {}), lengths)
        held, store = self.held(edge, state, block)
        local = [d for d, kept in store.dims.items() if isinstance(kept, Present)]
        blocks = [d for d in local if isinstance(block.loops.get(d.origin), BlockSteps)]
        here = {d: Latest() if d in local and d not in blocks else kept for d, kept in store.dims.items()}
        if local:
            axes = [d for d, kept in store.dims.items() if not isinstance(kept, Latest)]
            if held.ndim == len(axes) + len(store.value):
                # Of a store that is kept beyond the loop, a part that is no block uses one step.
                for axis in reversed([n for n, d in enumerate(axes) if d in local and d not in blocks]):
                    held = lax.index_in_dim(held, 0, axis, keepdims=False)
            sizes = [
                block.loops[d.origin].length if d in blocks else kept.size
                for d, kept in here.items()
                if not isinstance(kept, Latest)
            ]
            too_short = any(found < size for found, size in zip(held.shape, sizes, strict=False))
            if too_short or held.ndim != len(sizes) + len(store.value):
                # What another part of a loop left there is only read by discarded cases.
                held = jnp.zeros((*sizes, *store.value), edge.dtype)
        value = read(
            edge, held, replace(store, dims=here), block, self.present(edge.node, blocks, block), whole is not None
        )
        return self.fitted(edge, value, lengths)

    def fitted(self, edge: Edge, value: Value, lengths: tuple[int, ...]) -> Value:
        """What an edge reads, with axes of these lengths behind those of the block."""
        shape = (*value.array.shape[: len(value.dims)], *lengths)
        return Value(jx.fit(value.array, shape, self.padding(edge)), value.dims)

    def literal(self, node: Node) -> Array:
        """A number where it is read: XLA knows more ways to compute with numbers that it knows."""
        value = node.attributes["value"]
        return value if node.op is CONSTANT else jnp.full(self.storage.stores[node].value, value, node.dtype)

    def held(self, edge: Edge, state: State, block: Block) -> tuple[Array, Store]:
        """The array that a block reads through an edge, and its layout."""
        store = self.storage.stores[edge.node]
        # Before anything is written into a store, only slices of no length and discarded cases read it.
        held = state[edge.node] if edge.node in state else apart.zeros(store)
        return apart.gathered(edge, held, store, block) if apart.unrolled(store) else (held, store)

    def beside(self, node: Node, state: State, block: Block) -> Beside | None:
        """What is there of a node beside a short circle, where a block is computed that reads it."""
        found: Beside | None = state.get(Recent(node))
        # As above, the blocks of a loop are told apart by the objects that stand for them.
        return found if found is not None and block.loops.get(found.family) is found.at else None

    def turned(self, node: Node, edges: Sequence[Edge], state: State, block: Block) -> Turned | None:
        """How the operands of a product are read, if not as its edges say."""
        found = [one for edge in edges if (one := self.beside(edge.node, state, block)) is not None]
        stores = {**self.storage.stores, **{one.store.node: one.store for one in found}}
        return circle(node, edges, stores, block, {one.store.node for one in found if one.level})

    def present(self, node: Node, dims: Sequence[Dim], block: Block) -> dict[Dim, Any]:
        """The first steps of a node's dims in the block that a loop is at."""
        return {d: self.schedule.own_step(node, d, block.loops[d.origin].start) for d in dims}

    def is_at(self, edge: Edge, block: Block, value: Computed) -> bool:
        """Whether an edge reads what was computed at the steps of a value."""
        for d in edge.node.domain:
            if d in value.at:
                # The steps of a loop are told apart by the very objects that stand for them.
                if block.loops.get(d.origin) is not value.at[d]:
                    return False
                back = value.back if d.origin is value.family else 0
                if self.iterated.steps_back(edge, d, block.node, block.spans()) != back:
                    return False
        return True

    def fold(self, node: Node, folds: Sequence[Fold], state: State, block: Block) -> Value:
        """A reduction of all blocks up to the present one."""
        at, ranges, edges = dict(block.at), dict(block.ranges), node.edges
        begins: Any = True
        for fold in folds:
            start, length = block_of(block.loops[fold.family])
            at[fold.family] = start
            ranges[fold.family] = Range(start, 1, fold.base, fold.base + fold.count - 1)
            edges = fold.at_block(edges, length)
            begins = begins & fold.begins(start, length)
        share = self.apply(node, edges, state, replace(block, at=at, ranges=ranges))
        before = self.read(node.here(), state, block)
        dims = tuple(d for d in block.dims if d in {*share.dims, *before.dims})
        parts = _spread(before, dims, 0), _spread(share, dims, 0)
        both = getattr(jnp, COMBINE[node.op])(*parts)
        if isinstance(begins, bool):
            return Value(parts[1] if begins else both, dims)
        return Value(jnp.where(begins, parts[1], both), dims)

    def apply(self, node: Node, edges: Sequence[Edge], state: State, block: Block) -> Value:
        """A primitive at all points of a block."""
        turned = self.turned(node, edges, state, block)
        if turned is not None:
            read = turned.edges(edges)
            if all(self.settled(edge) for n, edge in enumerate(read) if turned.reads_more(n)):
                edges = read
            else:
                turned = None  # what lies beside the window would be multiplied by zero
        operands = [
            self.read(edge, state, block, None if turned is None else turned.slots(n)) for n, edge in enumerate(edges)
        ]
        return self.primitives(node, edges, operands, turned, block)

    def scan(self, node: Node, steps: Dim, state: State, block: Block) -> Value:
        """A linear recurrence at all steps of a dim: from its own step each, not from slices of all before it."""
        reverse = node.attributes["reverse"]
        start, stop = self.schedule.steps(node, steps)
        # Steps that nobody reads are needed on the way to those that somebody does.
        first, last = (start, steps.bound.evaluate(self.numbers)) if reverse else (0, stop)
        whole = replace(block, ranges={**block.ranges, steps: Range.of(first, last)})
        values = [self.read(_own_step(edge, reverse), state, whole) for edge in node.edges]
        dims = tuple(d for d in block.dims if d is steps or any(d in v.dims for v in values))
        axis = dims.index(steps)

        def aligned(value: Value) -> Array:
            array = _spread(value, dims, 0)
            ones = (1,) * (len(dims) + len(node.shape) - array.ndim)
            return array.reshape((*array.shape[: len(dims)], *ones, *array.shape[len(dims) :]))

        terms, factors, *resets = map(aligned, values)
        lengths = [whole.ranges[d].length for d in dims]
        terms = jnp.broadcast_to(terms, (*lengths, *terms.shape[len(dims) :]))
        array = all_steps(jx, terms, factors, resets[0] if resets else None, axis, reverse)
        return Value(lax.slice_in_dim(array, start - first, stop - first, axis=axis), dims)

    def choose(self, statement: Compute, state: State, block: Block) -> Value:
        """The first case that applies, at every point of a block."""
        node = statement.node
        cases = [self.graph.cases[node][n] for n in statement.cases]
        # A case for one step, x[0] = ..., may be shorter than others are in this block.
        sizes = tuple(extent(size, block.spans(), self.numbers) for size in node.shape)
        values = [_fitted(self.read(case.value, state, block), sizes) for case in cases]
        if not values:  # at steps that are only computed with others
            return Value(jnp.zeros(self.storage.stores[node].value, node.dtype), ())
        result = values[-1]
        for case, value in list(zip(cases, values, strict=True))[-2::-1]:
            where = self.mask(case.region, block)
            result = self.select(where, value, result, block)
        return result

    def mask(self, condition: Condition, block: Block) -> Value:
        """Where a condition holds in a block, without those of its parts that hold at all steps."""
        parts = condition.parts if isinstance(condition, And) else (condition,)
        spans = block.spans()
        left = conjunction(part for part in parts if decide(part, spans, self.numbers) is not True)
        return self.steps(left, block)

    def steps(self, value: Expr | Condition, block: Block) -> Value:
        """A number of the steps, or whether a condition on them holds, at all points of a block."""
        dims = tuple(d for d in block.dims if d in value.symbols())
        sizes = [block.ranges[d].length for d in dims]
        here: dict[Any, Any] = {**block.bounds.values, **block.at}
        for n, d in enumerate(dims):
            here[d] = block.ranges[d].traced.reshape([-1 if m == n else 1 for m in range(len(dims))])
        return Value(jnp.broadcast_to(jnp.asarray(evaluate(value, here, jnp)), sizes), dims)

    def select(self, where: Value, a: Value, b: Value, block: Block) -> Value:
        dims = tuple(d for d in block.dims if d in {*where.dims, *a.dims, *b.dims})
        rank = a.array.ndim - len(a.dims)
        chosen = jnp.where(_spread(where, dims, rank), _spread(a, dims, 0), _spread(b, dims, 0))
        return Value(chosen, dims)

    def write(self, node: Node, value: Value, state: State, block: Block) -> None:
        """Put a block's value into the node's store."""
        store = self.storage.stores[node]
        if not apart.unrolled(store):
            state[node] = self.written(store, state.get(node), value, state, block)
        else:
            held = state[node] if node in state else apart.zeros(store)
            (number,) = apart.positions(store, block.at)
            part = self.written(apart.part_of(store), held[number], value, state, block)
            state[node] = apart.replaced(held, [number], [part])

    def written(self, store: Store, held: Array | None, value: Value, state: State, block: Block) -> Array:
        """What an array of a store becomes when a block's value is put into it."""
        node = store.node
        array = value.array
        if value.dims != block.dims:
            array = _spread(value, block.dims, 0)
            array = jnp.broadcast_to(array, (*block.lengths, *array.shape[len(block.dims) :]))
        if array.dtype != node.dtype:
            array = array.astype(node.dtype)
        inside = {d: block.loops[d.origin] for d in node.domain if d.origin in block.loops}
        kept_here = [store.dims[d] for d in inside]
        # A loop hands on what it folds: in a store for whole blocks, though that of the loop around may be shorter.
        handed_on = node in self.schedule.folds and any(isinstance(kept, Present) for kept in kept_here)
        if not handed_on and all(isinstance(kept, Latest | Present) for kept in kept_here):
            # What loops hand on has the same size in all of their parts and iterations.
            fits = (*block.lengths, *store.value)
            return jx.fit(array, fits, self.padding(node.here())) if self.is_carried(node) else array
        if held is None or not writing.has_room(store, held):
            # What is put into known zeros, XLA would make anew as a padded array, element by element.
            held = jx.lax.optimization_barrier(jnp.zeros(store.shape, node.dtype))
        array = jx.fit(array, (*block.lengths, *store.value), self.padding(node.here()))
        state[Fresh(node)] = Computed(array, inside)
        if node in state.get(UNSTORED, ()):
            return held
        for axis, (d, kept) in enumerate(writing.stored_dims(store)):
            if is_short(kept) and d in inside and d not in block.at:
                first, is_level = self.schedule.steps(node, d)[0], self.schedule.own_step(node, d, 0) == 0
                held, state[Recent(node)] = writing.put_beside(store, held, array, d, axis, block, first, is_level)
                return held
        return writing.put(store, held, array, block)

    def output(self, name: str, edge: Edge, state: State) -> Array:
        ranges = {d: Range.of(s.start, s.stop) for d, s in zip(edge.domain, self.schedule.results[name], strict=True)}
        block = Block({}, ranges, self.bounds(state), {}, edge.node)
        value = self.read(edge, state, block)
        sizes = [len(s) for s in self.schedule.results[name]]
        array = _spread(value, block.dims, 0)
        return jnp.broadcast_to(array, (*sizes, *array.shape[len(sizes) :]))


def _fitted(value: Value, sizes: tuple[int, ...]) -> Value:
    """A value whose own axes have these sizes."""
    return Value(jx.fit(value.array, (*value.array.shape[: len(value.dims)], *sizes)), value.dims)


def _is_literal(node: Node) -> bool:
    """Whether a node is one number, and needs no store."""
    return not node.domain and (node.op is FULL or (node.op is CONSTANT and node.attributes["value"].ndim == 0))


def _steps_dim(node: Node) -> Dim:
    """The dim over which a linear recurrence goes."""
    (steps,) = indices.slices(node.edges[0].index)
    (dim,) = dims_of((steps.start if node.attributes["reverse"] else steps.stop).symbols())
    return dim


def _own_step(edge: Edge, reverse: bool) -> Edge:
    """An operand of a linear recurrence at the step that a value is for, which is an end of the slice up to there."""

    def end(item: Expr | Slice) -> Expr:
        return item if isinstance(item, Expr) else item.start if reverse else item.stop - 1

    return Edge(edge.node, tuple(map(end, edge.index)))


def _spread(value: Value, dims: tuple[Dim, ...], extra: int) -> Array:
    """The array with an axis (of length one) for each of ``dims`` that it lacks, and ``extra`` axes behind."""
    array = value.array
    for n, d in enumerate(dims):
        if d not in value.dims:
            array = jnp.expand_dims(array, n)
    return array.reshape((*array.shape, *(1,) * extra)) if extra else array
