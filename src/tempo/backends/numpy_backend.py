"""The loop tree run by Python and NumPy, one point at a time.

It uses the same schedule and the same stores as the compiled backends and the primitives' own reference meaning, so
that what it gets wrong is wrong in the schedule or in the storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from tempo.analysis.walk import walk
from tempo.given import Record, call_host, resolve
from tempo.graph.node import Case, Edge, Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop, Tree
from tempo.schedule.storage import Latest, Storage
from tempo.symbolic import Slice

Array = np.ndarray[Any, Any]


class NumpyMachine:
    """Stores, and the loops' present steps."""

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        storage: Storage,
        numbers: Mapping[Any, int],
        inputs: Mapping[str, Array],
    ) -> None:
        self.graph = graph
        self.schedule = schedule
        self.storage = storage
        self.numbers = numbers
        self.inputs = inputs
        self.calls: dict[Node, tuple[Array, ...]] = {}
        self.stores = {node: np.zeros(s.shape, node.dtype) for node, s in storage.stores.items()}

    @cached_property
    def needed(self) -> set[tuple[Node, tuple[int, ...]]]:
        """Every value that some result really needs."""
        return set(walk(self.graph, self.numbers))

    def run(self) -> tuple[dict[str, Array], dict[str, list[Record]]]:
        """Outputs and everything emitted."""
        emitted: dict[str, list[Record]] = {name: [] for name in self.graph.emits}
        outputs: dict[str, Array] = {}
        for name, record in self.stream(outputs):
            emitted[name].append(record)
        return outputs, emitted

    def stream(self, outputs: dict[str, Array]) -> Iterator[tuple[str, Record]]:
        """What the program emits, as it does; its outputs are in ``outputs`` when all is done."""
        for tree in self.schedule.trees:
            yield from self.execute(tree, {})
        outputs.update({name: self.output(name, edge) for name, edge in self.graph.outputs.items()})

    def execute(self, tree: Tree, at: dict[Any, int]) -> Iterator[tuple[str, Record]]:
        if isinstance(tree, Loop):
            for step in tree.steps:
                for inner in tree.body:
                    yield from self.execute(inner, {**at, tree.dim: step})
        else:
            self.compute(tree, at)
            yield from self.emit(tree.node, at)

    def emit(self, node: Node, at: Mapping[Any, int]) -> Iterator[tuple[str, Record]]:
        names = [name for name, edge in self.graph.emits.items() if edge.node is node]
        own = {d: self.schedule.own_step(node, d, at[d.origin]) for d in node.domain if d.origin in at}
        spans = [range(own[d], own[d] + 1) if d in own else range(*self.schedule.steps(node, d)) for d in node.domain]
        for name in names:
            for point in itertools.product(*spans):
                here = {**self.numbers, **dict(zip(node.domain, point, strict=True))}
                # A piece of a loop may reach past the steps of a node.
                if any(not 0 <= here[d] < d.bound.evaluate(self.numbers) for d in node.domain):
                    continue
                value = self.read(self.graph.emits[name], here)
                yield name, Record({d.name: p for d, p in zip(node.domain, point, strict=True)}, value)

    def call(self, node: Node, at: Mapping[Any, int]) -> None:
        """A host call, for all points of its batch."""
        batch, sequence = node.attributes["batch"], node.attributes["sequence"]
        sizes = tuple(d.bound.evaluate(self.numbers) for d in batch)
        steps = {d: self.schedule.own_step(node, d, at[d.origin]) for d in sequence}
        arguments = []
        for edge in node.edges:
            rows = [
                self.read(edge, {**self.numbers, **steps, **dict(zip(batch, p, strict=True))})
                for p in np.ndindex(*sizes)
            ]
            stacked = np.stack(rows).reshape((*sizes, *rows[0].shape))
            arguments.append(np.asarray(stacked[tuple(slice(None) if d in edge.domain else 0 for d in batch)]))
        point = tuple(steps[d] for d in sequence)
        self.calls[node] = call_host(node, arguments, sizes, point, self.numbers)

    def compute(self, statement: Compute, at: Mapping[Any, int]) -> None:
        """One node at the loops' steps and at all steps of its other dims where it is needed."""
        node = statement.node
        if node.op is HOST:
            self.call(node, at)
            return
        spans = self.schedule.spans[node]
        choices = []
        for d in node.domain:
            low, high = spans[d]
            step = self.schedule.own_step(node, d, at[d.origin]) if d.origin in at else None
            # A piece of a loop may reach past the steps at which one of its nodes is needed.
            choices.append(range(low, high + 1) if step is None else range(step, step + (low <= step <= high)))
        for point in itertools.product(*choices):
            here = {**self.numbers, **dict(zip(node.domain, point, strict=True))}
            try:
                value = self.value(statement, node, here)
            except (IndexError, ValueError):
                # Points between those at which a node is needed are computed with them, from whatever is there.
                if (node, point) in self.needed:
                    raise
                continue
            if value is not None:
                index = self.slots(node, point)
                place: Any = (*index, *(slice(0, n) for n in value.shape))
                self.stores[node][place] = value

    def value(self, statement: Compute, node: Node, here: Mapping[Any, int]) -> Array | None:
        if node.op is INPUT:
            return np.asarray(self.inputs[node.attributes["input"]][tuple(here[d] for d in node.domain)])
        if node.op is HOST_RESULT:
            call = node.edges[0].node
            results = self.calls[call][node.attributes["position"]]
            return np.asarray(results[tuple(here[d] for d in call.attributes["batch"])])
        if node.op is RECURRENT:
            cases = self.graph.cases[node]
            applies: Case | None = next((cases[n] for n in statement.cases if cases[n].region.evaluate(here)), None)
            return None if applies is None else self.read(applies.value, here)
        operands = [self.read(edge, here) for edge in node.edges]
        attributes = {k: resolve(v, here) for k, v in node.attributes.items()}
        assert node.op.reference is not None
        return np.asarray(node.op.reference(*operands, **attributes))

    def slots(self, node: Node, point: tuple[int, ...]) -> tuple[int, ...]:
        kept = self.storage.stores[node].dims
        return tuple(
            min(max(k.slot(p), 0), k.size - 1)
            for p, k in zip(point, kept.values(), strict=True)
            if not isinstance(k, Latest)
        )

    def read(self, edge: Edge, here: Mapping[Any, int]) -> Array:
        spans = []
        for item in edge.index:
            spans.append(item.evaluate(here) if isinstance(item, Slice) else [item.evaluate(here)])
        shape = resolve(edge.shape, here)
        axes = [len(s) for s, item in zip(spans, edge.index, strict=True) if isinstance(item, Slice)]
        result = np.zeros(shape, edge.dtype)
        if edge.node not in self.stores:  # needed nowhere: only slices of no length read it
            return result
        inner = tuple(slice(0, n) for n in shape[len(axes) :])
        for position, point in zip(np.ndindex(*axes), itertools.product(*spans), strict=True):
            place: Any = (*self.slots(edge.node, point), *inner)
            result[position] = self.stores[edge.node][place]
        return result

    def output(self, name: str, edge: Edge) -> Array:
        spans = self.schedule.results[name]
        sizes = [len(s) for s in spans]
        result = np.empty((*sizes, *resolve(edge.shape, self.numbers)), edge.dtype)
        for position, point in zip(np.ndindex(*sizes), itertools.product(*spans), strict=True):
            result[position] = self.read(edge, {**self.numbers, **dict(zip(edge.domain, point, strict=True))})
        return result
