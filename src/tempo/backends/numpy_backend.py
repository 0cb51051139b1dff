"""The loop tree run by Python and NumPy, one point at a time.

It uses the same schedule and the same stores as the compiled backends and the primitives' own reference meaning, so
that what it gets wrong is wrong in the schedule or in the storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tempo.graph.node import Case, Edge, Graph, Node
from tempo.graph.structural import INPUT, RECURRENT
from tempo.reference import resolve
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
        self.stores = {node: np.zeros(s.shape, node.dtype) for node, s in storage.stores.items()}

    def run(self) -> dict[str, Array]:
        for tree in self.schedule.trees:
            self.execute(tree, {})
        return {name: self.output(name, edge) for name, edge in self.graph.outputs.items()}

    def execute(self, tree: Tree, at: dict[Any, int]) -> None:
        if isinstance(tree, Loop):
            for step in tree.steps:
                for inner in tree.body:
                    self.execute(inner, {**at, tree.dim: step})
        else:
            self.compute(tree, at)

    def compute(self, statement: Compute, at: Mapping[Any, int]) -> None:
        """One node at the loops' steps and at all steps of its other dims where it is needed."""
        node = statement.node
        spans = self.schedule.spans[node]
        choices = []
        for d in node.domain:
            low, high = spans[d]
            here = at[d.origin] - d.start.evaluate(self.numbers) if d.origin in at else None
            # A piece of a loop may reach past the steps at which one of its nodes is needed.
            steps_ = range(low, high + 1) if here is None else range(here, here + (low <= here <= high))
            choices.append(steps_)
        for point in itertools.product(*choices):
            here = {**self.numbers, **dict(zip(node.domain, point, strict=True))}
            value = self.value(statement, node, here)
            if value is not None:
                index = self.slots(node, point)
                self.stores[node][(*index, *(slice(0, n) for n in value.shape))] = value

    def value(self, statement: Compute, node: Node, here: Mapping[Any, int]) -> Array | None:
        if node.op is INPUT:
            return self.inputs[node.attributes["input"]][tuple(here[d] for d in node.domain)]
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
        return tuple(k.slot(p) for p, k in zip(point, kept.values(), strict=True) if not isinstance(k, Latest))

    def read(self, edge: Edge, here: Mapping[Any, int]) -> Array:
        spans = []
        for item in edge.index:
            spans.append(item.evaluate(here) if isinstance(item, Slice) else [item.evaluate(here)])
        shape = resolve(edge.shape, here)
        axes = [len(s) for s, item in zip(spans, edge.index, strict=True) if isinstance(item, Slice)]
        result = np.empty(shape, edge.dtype)
        inner = tuple(slice(0, n) for n in shape[len(axes) :])
        for position, point in zip(np.ndindex(*axes), itertools.product(*spans), strict=True):
            result[position] = self.stores[edge.node][(*self.slots(edge.node, point), *inner)]
        return result

    def output(self, name: str, edge: Edge) -> Array:
        spans = self.schedule.results[name]
        sizes = [len(s) for s in spans]
        result = np.empty((*sizes, *resolve(edge.shape, self.numbers)), edge.dtype)
        for position, point in zip(np.ndindex(*sizes), itertools.product(*spans), strict=True):
            result[position] = self.read(edge, {**self.numbers, **dict(zip(edge.domain, point, strict=True))})
        return result
