"""A whole program as one function of JAX arrays.

Loops are ``fori_loop``s that carry the stores they write; a node is its primitive's function, ``vmap``ped over the dims
that are computed at once, with operands that do not vary over a dim left unbatched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax.padded import Extent, Padded, Size, jx
from tempo.backends.jax.reading import Block, Value, read, shifted
from tempo.graph.node import Edge, Graph, Node, attribute_symbols, dims_of, normal_size, shape_symbols
from tempo.graph.structural import HOST_RESULT, INPUT, RECURRENT
from tempo.schedule.loops import Dependence, Schedule
from tempo.schedule.looptree import Compute, Loop, Tree, computes
from tempo.schedule.storage import Latest, Storage, extent
from tempo.symbolic import Condition, Dim, Expr, Slice
from tempo.symbolic.grid import Grid, evaluate

Array = Any

UNROLL = ((8, 32), (16, 16), (32, 8), (128, 4))
"""Per number of nodes in a loop's body, at most, how many iterations are made one."""


@dataclass(frozen=True)
class _Fresh:
    """The key under which a state has what an iteration has just put into a node's store."""

    node: Node


@dataclass(frozen=True)
class _Previous:
    """The key under which a state has what the iteration before put into a node's store."""

    node: Node


@dataclass(frozen=True)
class _Value:
    """A value without the axes of loops, and the steps at which it was computed: those given, or ``back`` steps of
    ``family`` before."""

    array: Array
    at: Mapping[Dim, Any]
    family: Dim | None = None
    back: int = 0


State = dict[Any, Any]
"""Stores by node, and the latest values beside them."""


class Lowering:
    """Turns a scheduled graph into a function from inputs to outputs."""

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        storage: Storage,
        numbers: Mapping[Any, int],
        on_gpu: bool = False,
    ) -> None:
        self.graph = graph
        self.schedule = schedule
        self.storage = storage
        self.numbers = dict(numbers)
        self.on_gpu = on_gpu
        self.readers: dict[Node, list[Dependence]] = {}
        for d in schedule.dependences:
            self.readers.setdefault(d.producer, []).append(d)

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """A whole program without host calls: outputs from inputs."""
        state = self.load(inputs)
        for tree in self.schedule.trees:
            self.execute(tree, state, {})
        return self.outputs(state)

    def load(self, inputs: Mapping[str, Array]) -> State:
        """The stores of the inputs."""
        state: State = {}
        for node in self.schedule.places:
            if node.op is INPUT:
                array = jnp.asarray(inputs[node.attributes["input"]])
                for axis, d in enumerate(node.domain):
                    start, stop = self.schedule.steps(node, d)
                    array = shifted(array, axis, start, stop - start)
                state[node] = array
        return state

    def outputs(self, state: State) -> dict[str, Array]:
        return {name: self.output(name, edge, state) for name, edge in self.graph.outputs.items()}

    # -- control ---------------------------------------------------------------------------------------------

    def execute(self, tree: Tree, state: State, at: Mapping[Dim, Any]) -> None:
        """Run a tree, writing what it computes into ``state``."""
        if isinstance(tree, Compute):
            self.compute(tree, state, at)
        elif tree.stop - tree.start == 1:
            for inner in tree.body:
                self.execute(inner, state, {**at, tree.dim: tree.start})
        else:
            self.loop(tree, state, at)

    def loop(self, tree: Loop, state: State, at: Mapping[Dim, Any]) -> None:
        carried = list(dict.fromkeys(c.node for c in computes(tree.body) if self.is_carried(c.node)))
        for node in carried:
            if node not in state:
                state[node] = jnp.zeros(self.storage.stores[node].shape, node.dtype)

        back = -1 if tree.backwards else 1
        remembered = [node for node in carried if self.is_remembered(node, tree, back)]

        def body(k: Array, carry: tuple[list[Array], list[Array]]) -> tuple[list[Array], list[Array]]:
            arrays, before = carry
            inner = {**state, **dict(zip(carried, arrays, strict=True))}
            step = tree.stop - 1 - k if tree.backwards else tree.start + k
            here = {**at, tree.dim: step}
            for node, array in zip(remembered, before, strict=True):
                steps = {d: here[d.origin] for d in node.domain if d.origin in here}
                inner[_Previous(node)] = _Value(array, steps, tree.dim, back)
            for t in tree.body:
                self.execute(t, inner, here)
            return [inner[node] for node in carried], [inner[_Fresh(node)].array for node in remembered]

        first = tree.stop - 1 if tree.backwards else tree.start
        before = [self.at_step(node, state, {**at, tree.dim: first - back}) for node in remembered]
        start = ([state[node] for node in carried], before)
        arrays, _ = lax.fori_loop(0, tree.stop - tree.start, body, start, unroll=self.unrolled(tree))
        state.update(zip(carried, arrays, strict=True))

    def unrolled(self, tree: Loop) -> int:
        """How many iterations are made one. A GPU spends about 9 us between iterations and less than 2 us on a further
        small kernel, and kernels of neighbouring steps fuse: measured on an H200, loops of one or two kernels gain 26
        times from 32, an LSTM step 1.7 times from 4. A CPU gains nothing."""
        if not self.on_gpu or any(isinstance(inner, Loop) for inner in tree.body):
            return 1
        size = len(tree.body)
        most = next((factor for limit, factor in UNROLL if size <= limit), 1)
        return min(most, tree.stop - tree.start)

    def is_remembered(self, node: Node, tree: Loop, back: int) -> bool:
        """Whether a loop hands a node's value from one iteration to the next, beside its store: XLA would copy a store
        that is read at one step and written at another."""
        inside = [c.node for c in tree.body if isinstance(c, Compute)]
        own = next((d for d in node.domain if d.origin is tree.dim), None)
        if node not in inside or own is None or isinstance(self.storage.stores[node].dims[own], Latest):
            return False
        return any(
            d.producer is node and d.consumer in inside and d.distance(tree.dim) == (back, back)
            for d in self.readers.get(node, ())
        )

    def at_step(self, node: Node, state: State, at: Mapping[Dim, Any]) -> Array:
        """What a store has at the loops' steps, zeros where that is outside."""
        block = self.block(node, at)
        value = read(node.here(), state[node], self.storage.stores[node], block)
        lengths = (block.ranges[d][1] - block.ranges[d][0] for d in block.dims)
        return jnp.broadcast_to(_spread(value, block.dims, 0), (*lengths, *self.storage.stores[node].value))

    def is_carried(self, node: Node) -> bool:
        """Whether a node's store outlives an iteration of the loop that computes it."""
        kept = self.storage.stores[node].dims
        return any(not isinstance(kept[d], Latest) and self.is_looped(node, d) for d in node.domain)

    def is_looped(self, node: Node, d: Dim) -> bool:
        return any(family is d.origin for place in self.schedule.places[node] for family, _ in place)

    # -- nodes ------------------------------------------------------------------------------------------------

    def block(self, node: Node, at: Mapping[Dim, Any]) -> Block:
        ranges = {d: self.schedule.steps(node, d) for d in node.domain}
        here = {d: self.schedule.own_step(node, d, at[d.origin]) for d in node.domain if d.origin in at}
        return Block(here, ranges, self.numbers, at, node)

    def compute(self, statement: Compute, state: State, at: Mapping[Dim, Any]) -> None:
        node = statement.node
        block = self.block(node, at)
        if node.op is INPUT:
            return
        if node.op is RECURRENT:
            value = self.choose(statement, state, block)
        elif node.op is HOST_RESULT:
            value = Value(state[node.edges[0].node][node.attributes["position"]], block.dims)
        else:
            value = self.apply(node, state, block)
        self.write(node, value, state, block)

    def read(self, edge: Edge, state: State, block: Block) -> Value:
        """What a block reads, with its padded axes as long as they get in this block."""
        lengths = tuple(extent(size, block.spans(), self.numbers) for size in edge.shape)
        if edge.node not in self.storage.stores:  # needed nowhere: only slices of no length read it
            return Value(jnp.zeros(lengths, edge.dtype), ())
        store = self.storage.stores[edge.node]
        for key in (_Fresh(edge.node), _Previous(edge.node)):
            fresh = state.get(key)
            if fresh is None or not self.is_at(edge, block, fresh):
                continue
            # Not from the store, of which XLA would then make a copy.
            here = {d: Latest() if d in fresh.at else kept for d, kept in store.dims.items()}
            value = read(edge, fresh.array, replace(store, dims=here), block)
            return Value(jx.fit(value.array, (*value.array.shape[: len(value.dims)], *lengths)), value.dims)
        # Before anything is written into a store, only slices of no length and discarded cases read it.
        held = state[edge.node] if edge.node in state else jnp.zeros(store.shape, edge.dtype)
        value = read(edge, held, store, block)
        return Value(jx.fit(value.array, (*value.array.shape[: len(value.dims)], *lengths)), value.dims)

    def is_at(self, edge: Edge, block: Block, value: _Value) -> bool:
        """Whether an edge reads what was computed at the steps of a value."""
        for d, item in zip(edge.node.domain, edge.index, strict=True):
            if d in value.at:
                own = next((e for e in block.at if e.origin is d.origin), None)
                back = value.back if d.origin is value.family else 0
                if own is None or isinstance(item, Slice):
                    return False
                # own_step of nothing is how far a node's steps are behind the loop's.
                theirs = item - self.schedule.own_step(edge.node, d, 0)
                if theirs + back != own - self.schedule.own_step(block.node, own, 0):
                    return False
                # The steps of a loop are told apart by the very objects that stand for them.
                if block.loops[d.origin] is not value.at[d]:
                    return False
        return True

    def apply(self, node: Node, state: State, block: Block) -> Value:
        """A primitive at all points of a block."""
        operands = [self.read(edge, state, block) for edge in node.edges]
        assert node.op.jax is not None, f"{node.op.name} has no JAX form"

        def at_point(coordinates: list[Array], arrays: list[Array]) -> Array:
            here = {**self.numbers, **block.at, **dict(zip(block.dims, coordinates, strict=True))}
            padded = [
                Padded(array, tuple(self.size(s, here, block) for s in edge.shape), _is_settled(edge))
                for array, edge in zip(arrays, node.edges, strict=True)
            ]
            attributes = {k: self.attribute(v, here, block) for k, v in node.attributes.items()}
            return node.op.jax(jx, *padded, **attributes)  # type: ignore[misc]

        function = at_point
        varying = self.varying(node, operands, block)
        for n, d in reversed(list(enumerate(block.dims))):
            if d in varying:
                marks = [0 if m == n else None for m in range(len(block.dims))]
                function = jax.vmap(function, in_axes=(marks, [0 if d in o.dims else None for o in operands]))
        coordinates = [
            jnp.arange(*block.ranges[d], dtype=jnp.int32) if d in varying else jnp.int32(block.ranges[d][0])
            for d in block.dims
        ]
        array = function(coordinates, [o.array for o in operands])
        dims = tuple(d for d in block.dims if d in varying)
        return Value(jx.fit(array, (*array.shape[: len(dims)], *self.storage.stores[node].value)), dims)

    def varying(self, node: Node, operands: list[Value], block: Block) -> set[Dim]:
        """The dims of a block over which a node's values really differ."""
        found = {d for o in operands for d in o.dims}
        symbols = attribute_symbols(tuple(node.attributes.values())) | shape_symbols(node.shape)
        for edge in node.edges:
            symbols |= shape_symbols(edge.shape)
        return found | (set(dims_of(symbols)) & set(block.dims))

    def size(self, size: int | Expr, here: Mapping[Any, Any], block: Block) -> Size:
        if isinstance(size, int):
            return size
        numeric = size.substitute(self.numbers)
        if numeric.is_constant:
            return numeric.constant
        return Extent(evaluate(numeric, here, jnp), extent(numeric, block.spans(), self.numbers))

    def attribute(self, value: Any, here: Mapping[Any, Any], block: Block) -> Any:
        if isinstance(value, Expr):
            return self.size(value, here, block)
        if isinstance(value, Condition):
            return evaluate(value, here, jnp)
        if isinstance(value, Grid):
            sizes = [jx.most(self.size(normal_size(d.bound), here, block)) for d in value.axes]
            points = dict(zip(value.axes, np.indices(sizes, dtype=np.int32), strict=True))
            return jnp.broadcast_to(evaluate(value.value, {**here, **points}, jnp), sizes)
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self.attribute(v, here, block) for v in value)
        return value

    def choose(self, statement: Compute, state: State, block: Block) -> Value:
        """The first case that applies, at every point of a block."""
        node = statement.node
        cases = [self.graph.cases[node][n] for n in statement.cases]
        values = [self.read(case.value, state, block) for case in cases]
        result = values[-1]
        for case, value in list(zip(cases, values, strict=True))[-2::-1]:
            where = self.mask(case.region, block)
            result = self.select(where, value, result, block)
        return result

    def mask(self, condition: Condition, block: Block) -> Value:
        dims = tuple(d for d in block.dims if d in condition.symbols())
        here: dict[Any, Any] = {**self.numbers, **block.at}
        for n, d in enumerate(dims):
            steps_ = np.arange(*block.ranges[d], dtype=np.int32)
            here[d] = steps_.reshape([-1 if m == n else 1 for m in range(len(dims))])
        sizes = [block.ranges[d][1] - block.ranges[d][0] for d in dims]
        return Value(jnp.broadcast_to(jnp.asarray(evaluate(condition, here, jnp)), sizes), dims)

    def select(self, where: Value, a: Value, b: Value, block: Block) -> Value:
        dims = tuple(d for d in block.dims if d in {*where.dims, *a.dims, *b.dims})
        rank = a.array.ndim - len(a.dims)
        chosen = jnp.where(_spread(where, dims, rank), _spread(a, dims, 0), _spread(b, dims, 0))
        return Value(chosen, dims)

    def write(self, node: Node, value: Value, state: State, block: Block) -> None:
        """Put a block's value into the node's store."""
        store = self.storage.stores[node]
        array = value.array
        if value.dims != block.dims:
            array = _spread(value, block.dims, 0)
            lengths = [block.ranges[d][1] - block.ranges[d][0] for d in block.dims]
            array = jnp.broadcast_to(array, (*lengths, *array.shape[len(lengths) :]))
        looped = [d for d in node.domain if d in block.at and not isinstance(store.dims[d], Latest)]
        array = array.astype(node.dtype)
        if not looped:
            state[node] = array
            return
        if node not in state:
            state[node] = jnp.zeros(store.shape, node.dtype)
        state[_Fresh(node)] = _Value(array, {d: block.loops[d.origin] for d in node.domain if d in block.at})
        starts: list[Any] = []
        axis = 0
        for d in node.domain:
            kept = store.dims[d]
            if isinstance(kept, Latest):
                continue
            if d in looped:
                starts.append(kept.slot(block.at[d]))
                array = jnp.expand_dims(array, axis)
            else:
                starts.append(0)
            axis += 1
        starts += [0] * len(store.value)
        state[node] = lax.dynamic_update_slice(state[node], array, [jnp.asarray(s, jnp.int32) for s in starts])

    def output(self, name: str, edge: Edge, state: State) -> Array:
        ranges = {d: (s.start, s.stop) for d, s in zip(edge.domain, self.schedule.results[name], strict=True)}
        block = Block({}, ranges, self.numbers, {}, edge.node)
        value = self.read(edge, state, block)
        sizes = [len(s) for s in self.schedule.results[name]]
        array = _spread(value, block.dims, 0)
        return jnp.broadcast_to(array, (*sizes, *array.shape[len(sizes) :]))


def _is_settled(edge: Edge) -> bool:
    """Whether all padding of what an edge reads comes from slicing a store."""
    return not any(isinstance(size, Expr) and dims_of(size.symbols()) for size in edge.node.shape)


def _spread(value: Value, dims: tuple[Dim, ...], extra: int) -> Array:
    """The array with an axis (of length one) for each of ``dims`` that it lacks, and ``extra`` axes behind."""
    array = value.array
    for n, d in enumerate(dims):
        if d not in value.dims:
            array = jnp.expand_dims(array, n)
    return array.reshape((*array.shape, *(1,) * extra)) if extra else array
