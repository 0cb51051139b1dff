"""The loop tree run by Python and NumPy, one point at a time.

It uses the same schedule and the same stores as the compiled backends and the primitives' own reference meaning, so
that what it gets wrong is wrong in the schedule or in the storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tempo.analysis.walk import walk
from tempo.errors import InputError, TempoError
from tempo.given import Record, call_host, resolve
from tempo.graph.node import Case, Edge, Graph, Node
from tempo.graph.structural import HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.mistakes import show_point
from tempo.schedule.folds import COMBINE
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import BlockSteps, Compute, Loop, Tree
from tempo.schedule.results import made
from tempo.schedule.script import Chunks, Part
from tempo.schedule.storage import Latest, Storage
from tempo.symbolic import Bound, Dim, Slice

Array = np.ndarray[Any, Any]
At = Mapping[Any, Any]
"""The steps, or blocks of steps, that loops are at, by dim."""


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
        # Of dims that stop on data the most steps they may make, until it is known how many they do.
        self.numbers = dict(numbers)
        self.stopping = {edge.node: dim for dim, edge in graph.stops.items()}
        self.inputs = inputs
        self.calls: dict[Node, tuple[Array, ...]] = {}
        self.stores = {node: np.zeros(s.shape, node.dtype) for node, s in storage.stores.items()}
        self.needed: set[tuple[Node, tuple[int, ...]]] = set()
        self.needed_for: dict[Any, int] | None = None  # the numbers that ``needed`` is for

    def is_needed(self, node: Node, point: tuple[int, ...]) -> bool:
        """Whether some result really needs a value, by the numbers of steps that are known so far."""
        if self.needed_for != self.numbers:
            self.needed, self.needed_for = set(walk(self.graph, self.numbers)), dict(self.numbers)
        return (node, point) in self.needed

    def part(self, item: Part, at: At) -> Iterator[tuple[str, Record]]:
        for tree in item.trees:
            yield from self.execute(tree, dict(at))

    def chunk(self, item: Chunks, at: At, steps: range) -> Iterator[tuple[str, Record]]:
        yield from self.execute(item.loop.cut(steps), dict(at))

    def outputs(self) -> dict[str, Array]:
        return {name: self.output(name, edge) for name, edge in self.graph.outputs.items()}

    def kept(self, needed: set[Node]) -> dict[Any, Any]:
        """What a checkpoint must have."""
        emitted = {edge.node for edge in self.graph.emits.values()}
        return {
            **{n: store for n, store in self.stores.items() if n in needed and n not in emitted and n.op is not INPUT},
            **{n: results for n, results in self.calls.items() if n in needed},
            **{bound: np.asarray(self.numbers[bound], np.int32) for bound in self.schedule.open},
        }

    def restore(self, kept: Mapping[Any, Any]) -> None:
        """Go on with what a checkpoint has."""
        for key, value in kept.items():
            if isinstance(key, Bound):
                self.numbers[key] = int(value)
            elif key.op is HOST:
                self.calls[key] = value
            else:
                self.stores[key] = np.array(value)
        for node in self.stores:
            if node.op is INPUT:
                self.compute(Compute(node), {})

    def execute(self, tree: Tree, at: At) -> Iterator[tuple[str, Record]]:
        if isinstance(tree, Loop):
            for step in tree.steps:
                if tree.until is not None and step >= self.last_step(tree):
                    if tree.backwards:
                        continue
                    break
                here = tree.at(step, at.get(tree.dim))
                for inner in tree.body:
                    yield from self.execute(inner, {**at, tree.dim: here})
        else:
            self.compute(tree, at)
            yield from self.emit(tree.node, at)

    def last_step(self, loop: Loop) -> int:
        """The step of a loop over a dim that stops from which on there is nothing to do."""
        made: int = self.numbers[loop.dim.bound]
        return made + self.schedule.beyond[loop.number]

    def emit(self, node: Node, at: At) -> Iterator[tuple[str, Record]]:
        names = [name for name, edge in self.graph.emits.items() if edge.node is node]
        spans = [self.steps(node, d, at) for d in node.domain]
        for name in names:
            for point in itertools.product(*spans):
                here = {**self.numbers, **dict(zip(node.domain, point, strict=True))}
                # A piece of a loop may reach past the steps of a node.
                if any(not 0 <= here[d] < d.bound.evaluate(self.numbers) for d in node.domain):
                    continue
                value = self.read(self.graph.emits[name], here)
                yield name, Record({d.name: p for d, p in zip(node.domain, point, strict=True)}, value)

    def call(self, node: Node, at: At) -> None:
        """A host call, for all points of its batch."""
        batch, sequence = node.attributes["batch"], node.attributes["sequence"]
        sizes = tuple(d.bound.evaluate(self.numbers) for d in batch)
        steps = {d: self.schedule.own_step(node, d, at[d.origin]) for d in sequence}
        if any(step >= d.bound.evaluate(self.numbers) for d, step in steps.items()):
            return  # a loop goes on after its dim has stopped
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

    def compute(self, statement: Compute, at: At) -> None:
        """One node at the loops' steps and at all steps of its other dims where it is needed."""
        node = statement.node
        if node.op is HOST:
            self.call(node, at)
            return
        for point in itertools.product(*(self.steps(node, d, at) for d in node.domain)):
            here = {**self.numbers, **dict(zip(node.domain, point, strict=True))}
            try:
                value = self.fold(statement, here, at) if statement.folds else self.value(statement, node, here)
            except (IndexError, ValueError) as error:
                # Points between those at which a node is needed are computed with them, from whatever is there.
                if not self.is_needed(node, point):
                    continue
                if isinstance(error, TempoError):
                    raise
                raise InputError(
                    f"{node.op.name} failed at {show_point(node.domain, point)}: {error}",
                    places=[("here", node.source)],
                ) from error
            if value is not None:
                index = self.slots(node, point)
                place: Any = (*index, *(slice(0, n) for n in value.shape))
                self.stores[node][place] = value
                if node in self.stopping and value:
                    bound = self.stopping[node].bound
                    self.numbers[bound] = min(self.numbers[bound], point[0] + 1 if point else 1)

    def steps(self, node: Node, dim: Dim, at: At) -> range:
        """The steps of a node's dim that are computed where the loops are."""
        first, stop = self.schedule.steps(node, dim)
        here = at.get(dim.origin)
        if here is None:
            return range(first, stop)
        block = here if isinstance(here, BlockSteps) else BlockSteps(here, 1)
        # A piece of a loop may reach past the steps at which one of its nodes is needed.
        own = self.schedule.own_step(node, dim, block.start)
        return range(max(own, first), min(own + block.length, stop))

    def fold(self, statement: Compute, here: Mapping[Any, int], at: At) -> Array:
        """A reduction of all blocks up to the present one."""
        node = statement.node
        assert node.op.reference is not None
        known = dict(here)
        edges = node.edges
        begins = True
        for fold in statement.folds:
            place = at[fold.family]
            block = place if isinstance(place, BlockSteps) else BlockSteps(place, 1)
            known[fold.family] = block.start
            edges = fold.at_block(edges, block.length)
            begins = begins and fold.begins(block.start, block.length)
        operands = [self.read(edge, known) for edge in edges]
        share = np.asarray(node.op.reference(*operands, **{k: resolve(v, here) for k, v in node.attributes.items()}))
        if begins:
            return share
        before = self.read(node.here(), here)
        return np.asarray(getattr(np, COMBINE[node.op])(before, share), node.dtype)

    def value(self, statement: Compute, node: Node, here: Mapping[Any, int]) -> Array | None:
        if node.op is INPUT:
            return np.asarray(self.inputs[node.attributes["input"]][tuple(here[d] for d in node.domain)])
        if node.op is HOST_RESULT:
            call = node.edges[0].node
            if call not in self.calls:  # at a step that is only computed with others, before the first that is called
                return None
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
        spans = made(self.graph, self.numbers, name) if self.graph.stops else self.schedule.results[name]
        sizes = [len(s) for s in spans]
        result = np.empty((*sizes, *resolve(edge.shape, self.numbers)), edge.dtype)
        for position, point in zip(np.ndindex(*sizes), itertools.product(*spans), strict=True):
            result[position] = self.read(edge, {**self.numbers, **dict(zip(edge.domain, point, strict=True))})
        return result
