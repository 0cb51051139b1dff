"""Running a lowered program on a device.

A program without host calls is one XLA program. Otherwise Python runs the loops that hold host calls, or values to hand
out while the program runs, and every part of the tree between those is an XLA program of its own, given the stores it
reads and giving back the stores it writes, in place.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax.lowering import Lowering, State
from tempo.errors import ProgramError
from tempo.given import Record, call_host
from tempo.graph.node import Edge, Graph, Node
from tempo.graph.structural import HOST, INPUT
from tempo.graph.traversal import producers
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Loop, Tree, computes
from tempo.schedule.storage import Storage
from tempo.symbolic import Dim

Array = Any
At = Mapping[Dim, int]


class JaxMachine:
    """A compiled program and the device it runs on."""

    def __init__(
        self, graph: Graph, schedule: Schedule, storage: Storage, numbers: Mapping[Any, int], device: str | None
    ) -> None:
        _use_disk_cache()
        self.graph = graph
        self.device = _device(device)
        self.wide = any(node.dtype.itemsize == 8 for node in graph.nodes)
        self.inputs = {
            node.attributes["input"]: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
                (*(d.bound.evaluate(numbers) for d in node.domain), *_sizes(node.shape, numbers)), node.dtype
            )
            for node in schedule.places
            if "input" in node.attributes
        }
        self.lowering = Lowering(graph, schedule, storage, numbers, on_gpu=self.device.platform == "gpu")
        self.whole = not graph.emits and not any(node.op is HOST for node in graph.nodes)
        with self.settings():
            if self.whole:
                self.compiled = jax.jit(self.lowering).lower(self.inputs).compile()
            else:
                self.parts = _Parts(self.lowering)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """JAX with 64-bit types where the program has any, on the program's device."""
        with jax.enable_x64(self.wide), jax.default_device(self.device):
            yield

    def put(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {name: self.on_device(inputs[name]) for name in self.inputs}

    def on_device(self, array: Array) -> Array:
        if isinstance(array, jax.Array) and array.devices() == {self.device}:
            return array
        return jax.device_put(array, self.device)

    def run(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, list[Record]]]:
        """Outputs and everything emitted."""
        if self.whole:
            with self.settings():
                return dict(self.compiled(self.put(inputs))), {}
        emitted: dict[str, list[Record]] = {name: [] for name in self.graph.emits}
        outputs: dict[str, Array] = {}
        for name, record in self.stream(inputs, outputs):
            emitted[name].append(record)
        return outputs, emitted

    def stream(self, inputs: Mapping[str, Array], outputs: dict[str, Array]) -> Iterator[tuple[str, Record]]:
        """What the program emits, as it does; its outputs are in ``outputs`` when all is done."""
        with self.settings():
            state = self.parts.load(self.put(inputs))
        steps = self.parts.execute(state)
        while True:
            # The settings hold while the program works, not while the caller does.
            with self.settings():
                item = next(steps, None)
            if item is None:
                break
            yield item
        with self.settings():
            outputs.update(self.parts.finish(state))

    def describe(self) -> str:
        """The XLA programs and what they take."""
        if not self.whole:
            return "one for every part between host calls and emits, compiled when it first runs"
        return "1 program, bytes: " + ", ".join(f"{name} {size:,}" for name, size in self.memory().items())

    def memory(self) -> dict[str, int]:
        """What XLA says a program without host calls and emits takes, in bytes."""
        found: Any = self.compiled.memory_analysis()
        return {
            "inputs": found.argument_size_in_bytes,
            "outputs": found.output_size_in_bytes,
            "temporaries": found.temp_size_in_bytes,
        }


@dataclass(frozen=True)
class _Part:
    """Trees that one XLA program runs: what it reads and writes, and the compiled function."""

    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    function: Callable[..., Any]


class _Parts:
    """A program as parts that XLA runs and loops and calls that Python does."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.graph = lowering.graph
        self.storage = lowering.storage
        self.parts: dict[tuple[Tree, ...], _Part] = {}
        self.emitting: dict[Node, list[tuple[str, Edge]]] = {}
        for name, edge in self.graph.emits.items():
            self.emitting.setdefault(edge.node, []).append((name, edge))
        self.nodes = {node.number: node for node in self.graph.nodes}
        self._load = jax.jit(lambda inputs: _keyed(lowering.load(inputs)))
        self._finish = jax.jit(lambda state: lowering.outputs(self.by_node(state)))
        self.readers = _readers(self.graph)
        self.results = {edge.node for edge in (*self.graph.outputs.values(), *self.graph.emits.values())}

    def by_node(self, values: Mapping[int, Array]) -> State:
        return {self.nodes[number]: value for number, value in values.items()}

    def load(self, inputs: Mapping[str, Array]) -> State:
        return self.by_node(self._load(inputs))

    def finish(self, state: State) -> dict[str, Array]:
        needed = {edge.node for edge in self.graph.outputs.values()}
        return dict(self._finish(_keyed({node: state[node] for node in needed})))

    def execute(self, state: State) -> Iterator[tuple[str, Record]]:
        yield from self.sequence(self.lowering.schedule.trees, state, {})

    def sequence(self, trees: Sequence[Tree], state: State, at: At) -> Iterator[tuple[str, Record]]:
        pure: list[Tree] = []
        for tree in trees:
            if not self.needs_python(tree):
                pure.append(tree)
                continue
            self.run(tuple(pure), state, at)
            pure = []
            if isinstance(tree, Loop):
                for step in tree.steps:
                    yield from self.sequence(tree.body, state, {**at, tree.dim: step})
            elif tree.node.op is HOST:
                self.call(tree.node, state, at)
            else:
                self.run((tree,), state, at)
                yield from self.emit(tree.node, state, at)
        self.run(tuple(pure), state, at)

    def needs_python(self, tree: Tree) -> bool:
        if isinstance(tree, Loop):
            return any(self.needs_python(inner) for inner in tree.body)
        return tree.node.op is HOST or tree.node in self.emitting

    # -- what XLA runs ------------------------------------------------------------------------------------------

    def run(self, trees: tuple[Tree, ...], state: State, at: At) -> None:
        if not trees:
            return
        if trees not in self.parts:
            self.parts[trees] = self.part(trees, at)
        part = self.parts[trees]
        for node in part.reads:
            if node not in state:
                state[node] = jnp.zeros(self.storage.stores[node].shape, node.dtype)
        kept = {n: state[n] for n in part.reads if n not in part.writes}
        changed = {n: state.pop(n) for n in part.reads if n in part.writes}
        steps = {d: jnp.int32(step) for d, step in at.items()}
        state.update(self.by_node(part.function(_keyed(kept), _keyed(changed), _keyed(steps))))

    def part(self, trees: tuple[Tree, ...], at: At) -> _Part:
        """Compile-once form of some trees, inside the loops of ``at`` that Python runs."""
        inside = list(dict.fromkeys(c.node for c in computes(trees) if c.node.op is not INPUT))
        carried = [n for n in inside if n in self.storage.stores and self.lowering.is_carried(n)]
        computed = set(inside)
        outside = [
            p for n in inside for p in producers(n, self.graph.cases) if p not in computed and p in self.storage.stores
        ]
        hosts = [p for n in inside for p in producers(n, self.graph.cases) if p.op is HOST]
        reads = tuple(dict.fromkeys([*outside, *carried]))
        writes = tuple(
            n for n in inside if n in carried or n in self.results or not self.readers.get(n, set()) <= computed
        )
        reads = (*reads, *dict.fromkeys(hosts))
        dims = {d.number: d for d in at}

        @functools.partial(jax.jit, donate_argnums=1)
        def function(kept: Any, changed: Any, steps: Any) -> Any:
            state = self.by_node({**kept, **changed})
            here = {dims[k]: v for k, v in steps.items()}
            for tree in trees:
                self.lowering.execute(tree, state, here)
            return {n.number: state[n] for n in writes}

        return _Part(reads, writes, function)

    # -- what Python does ----------------------------------------------------------------------------------------

    def call(self, node: Node, state: State, at: At) -> None:
        """A host call, for all points of its batch."""
        block = self.lowering.block(node, at)
        batch = node.attributes["batch"]
        arguments = []
        for edge in node.edges:
            value = self.lowering.read(edge, state, block)
            # The batch dims in the order in which they were declared for the call.
            order = [value.dims.index(d) for d in batch if d in value.dims]
            rest = range(len(order), value.array.ndim)
            arguments.append(np.asarray(jnp.transpose(value.array, (*order, *rest))))
        sizes = tuple(d.bound.evaluate(self.lowering.numbers) for d in batch)
        point = tuple(int(block.at[d]) for d in node.attributes["sequence"])
        state[node] = tuple(map(jnp.asarray, call_host(node, arguments, sizes, point, self.lowering.numbers)))

    def emit(self, node: Node, state: State, at: At) -> Iterator[tuple[str, Record]]:
        block = self.lowering.block(node, at)
        lengths = [len(range(*block.ranges[d])) for d in block.dims]
        for name, edge in self.emitting[node]:
            value = np.asarray(self.lowering.read(edge, state, block).array)
            for position in np.ndindex(*lengths):
                inside = {d: p + block.ranges[d][0] for d, p in zip(block.dims, position, strict=True)}
                point = {d: int(block.at[d]) if d in block.at else inside[d] for d in node.domain}
                # A piece of a loop may reach past the steps of a node.
                if all(0 <= p < d.bound.evaluate(self.lowering.numbers) for d, p in point.items()):
                    yield name, Record({d.name: p for d, p in point.items()}, np.asarray(value[position]))


def _keyed(values: Mapping[Any, Any]) -> dict[int, Any]:
    """Nodes and dims by number: JAX sorts the keys of what it is given."""
    return {key.number: value for key, value in values.items()}


def _readers(graph: Graph) -> dict[Node, set[Node]]:
    readers: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        for producer in producers(node, graph.cases):
            readers.setdefault(producer, set()).add(node)
    return readers


def _sizes(shape: Any, numbers: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple(s if isinstance(s, int) else s.evaluate(numbers) for s in shape)


def _device(name: str | None) -> Any:
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        raise ProgramError(
            f"there is no device '{name}' here: {error}",
            hint=f"this machine has: {', '.join(sorted({d.platform for d in jax.devices()}))}",
        ) from None


def _use_disk_cache() -> None:
    """Keep compiled XLA programs between processes, unless the user has set JAX's cache up otherwise."""
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is None:
        home = os.environ.get("TEMPO_CACHE_DIR") or pathlib.Path.home() / ".cache" / "tempo" / "xla"
        settings.update("jax_compilation_cache_dir", str(home))
