"""How much memory a plan takes at its worst moment.

Inputs and outputs are there all the time. Between them, a store takes room from the tree that writes it first to the
tree that reads it last; a loop counts as one tree, in which an iteration takes room for what it does not keep. What is
computed element by element is mostly not stored at all, but computed where it is read; where it is stored, it is
written over an operand of its size that nobody reads any more. And some operations take room beside their operands and
results.

This is a model of what XLA does. ``JaxMachine.memory`` is what it did.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tempo import dtypes
from tempo.graph.node import Edge, Graph, Node, Primitive, Shape, dims_of, shape_symbols
from tempo.graph.structural import HOST, INPUT, RECURRENT
from tempo.graph.traversal import producers
from tempo.ops import creation, elementwise, shaping
from tempo.ops.attention import ATTENTION, LEAST_AT_ONCE, MOST_WINDOWS, OUT, STEPS
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.ops.scan import LINEAR_RECURRENCE
from tempo.ops.shaping import RESHAPE
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop, Tree, computes
from tempo.symbolic import Dim, Expr, Slice, as_expr
from tempo.symbolic.intervals import extent, interval

if TYPE_CHECKING:
    from tempo.schedule.storage import Store

# Computed by their reader, if there is one only.
COSTLY = {"cos", "divide", "erf", "exp", "expm1", "log", "log1p", "logaddexp", "power", "rsqrt", "sigmoid", "sin"}
COSTLY |= {"sqrt", "tanh"}
# Computed by every reader anew: the other operations on elements, views, and values that come from nothing.
CHEAP = {p.name for m in (creation, elementwise, shaping) for p in vars(m).values() if isinstance(p, Primitive)}
CHEAP = (CHEAP | {"slice"}) - COSTLY - {"concatenate", "constant"}
REDUCTIONS = {"all", "any", "argmax", "argmin", "max", "min", "prod", "sum"}
# Those that put a neutral element in place of padding. (The others look at positions.)
MASKED = REDUCTIONS - {"argmax", "argmin"}
# What computes its operands where it reads them. Matrix products and the like read from memory.
FUSING = CHEAP | COSTLY | REDUCTIONS | {"linear_recurrence", "place", "recurrent"}
# What may be written over an operand.
ELEMENTWISE = {p.name for p in vars(elementwise).values() if isinstance(p, Primitive)} | {RESHAPE.name}


@dataclass(frozen=True)
class Habits:
    """What XLA does with memory on a kind of device, beyond what the program asks for."""

    workspace: int
    """The bytes that the library for matrix products has to itself while it computes one."""
    zeros_first: bool
    """Whether the stores that a loop fills are made before anything else, and not right before the loop."""
    fuses_choices: bool
    """Whether what is chosen, from several cases or by a mask, is computed by its reader, like anything else that is
    computed element by element."""
    attends_in_tiles: bool
    """Whether there are kernels for attention that keep no scores."""
    reads_blocks_beside: bool = True
    """Whether what is computed at once is read as it is, and not out of a circle that it is written into. (Without XLA,
    everything is read out of stores, point by point.)"""
    grows_stores: bool = True
    """Whether stores have room for the steps of a loop's pieces so far. (Without XLA, for all of them.)"""


HABITS = {
    # 32 MiB is what XLA gives cuBLAS on GPUs since Hopper.
    "gpu": Habits(workspace=32 * 2**20, zeros_first=False, fuses_choices=True, attends_in_tiles=True),
    "cpu": Habits(workspace=0, zeros_first=True, fuses_choices=False, attends_in_tiles=False),
}


def _given_bytes(node: Node, schedule: Schedule) -> int:
    sizes = (extent(size, schedule.open, schedule.numbers) for size in (*(d.bound for d in node.domain), *node.shape))
    return math.prod(sizes) * node.dtype.itemsize


def _is_whole(edge: Edge, stores: Mapping[Node, Store], size: int) -> bool:
    """Whether an output is a store as it is."""
    return edge.is_here and edge.node in stores and stores[edge.node].bytes == size


class Lifetimes:
    """What a program computes where it is read, and when it reads what for the last time: wherever its stores are, and
    however large."""

    def __init__(self, graph: Graph, schedule: Schedule, habits: Habits) -> None:
        self.graph = graph
        self.schedule = schedule
        self.habits = habits
        self.sequences: dict[int, _Sequence] = {}

    def peak(self, stores: Mapping[Node, Store], outputs: Mapping[str, int]) -> tuple[int, int]:
        """The most bytes that are taken at the same time on a device that has these ``stores``, and ``outputs`` of so
        many bytes; and how many fewer they are if XLA does not use its library for matrix products, which nobody knows
        before it has compiled."""
        taken = self.over_time(stores, outputs, growing=False)
        most = max(total for total, _ in taken)
        return most, most - max(without for _, without in taken)

    def over_time(
        self, stores: Mapping[Node, Store], outputs: Mapping[str, int], growing: bool
    ) -> list[tuple[int, int]]:
        """The bytes that are taken while each statement of the loop tree runs, in an iteration of the loops around it,
        with and without a library for matrix products; of a tree without statements, those of inputs and outputs. If
        not ``growing``, stores are as large as they get."""
        schedule = self.schedule
        given = {node: _given_bytes(node, schedule) for node in stores if node.op is INPUT}
        handed_out = {
            edge.node
            for name, edge in self.graph.outputs.items()
            if name in outputs and _is_whole(edge, stores, outputs[name])
        }
        # An input of which not all steps are needed is copied.
        as_given = {node for node, size in given.items() if stores[node].bytes == size}
        outside = {n for n in schedule.places if n in handed_out or n in as_given or n.op is HOST or n not in stores}
        walk = _Walk(self, stores, growing and self.habits.grows_stores)
        taken = walk.taken(schedule.trees, outside, {}, handed_out) or [(0, 0)]
        always = sum(given.values()) + sum(outputs.values())
        return [(total + always, without + always) for total, without in taken]

    def sequence(self, trees: Sequence[Tree], inside: bool) -> _Sequence:
        """What there is to know of trees that run one after the other, ``inside`` of a loop or not."""
        if id(trees) not in self.sequences:
            fused = self.fused(trees, choices=self.habits.fuses_choices and not inside)
            self.sequences[id(trees)] = _Sequence(trees, fused, self.last(trees, fused))
        return self.sequences[id(trees)]

    def fused(self, trees: Sequence[Tree], choices: bool) -> set[Node]:
        """The nodes that some of the trees compute where they are read, ``choices`` from several cases among them, or
        that are views of others."""
        direct = {tree.node for tree in trees if isinstance(tree, Compute)}
        readers: dict[Node, list[Compute]] = {}
        made: dict[Node, int] = {}
        for statement in computes(trees):
            made[statement.node] = made.get(statement.node, 0) + 1
            for producer in dict.fromkeys(self.operands(statement)):
                readers.setdefault(producer, []).append(statement)
        cheap = CHEAP | {RECURRENT.name} if choices else CHEAP
        fused = {
            node
            for node in direct
            if (node.op.name in cheap or (node.op.name in COSTLY and len(readers.get(node, ())) == 1))
            and (node.op is not RECURRENT or made[node] == 1)
            and all(r.node in direct and self.fuses(r.node) for r in readers.get(node, ()))
        }
        # Another shape of a whole tensor is the same memory.
        views = {node for node in direct if node not in fused and node.op is RESHAPE and node.edges[0].is_here}
        views = {node for node in views if all(r.node in direct for r in readers.get(node, ()))}
        return (fused | views) - {node.edges[0].node for node in views}

    def fuses(self, reader: Node) -> bool:
        """Whether a node computes its operands where it reads them."""
        masks = reader.op.name in REDUCTIONS and bool(dims_of(shape_symbols(reader.edges[0].shape)))
        return reader.op.name in FUSING and (self.habits.fuses_choices or not masks)

    def last(self, trees: Sequence[Tree], fused: Set[Node]) -> dict[Node, int]:
        """For every node that is stored and read by some trees, the last one that reads it."""
        reads = [(c.node, p, at) for at, t in enumerate(trees) for c in computes((t,)) for p in self.operands(c)]
        last: dict[Node, int] = {}
        for consumer, producer, at in reversed(reads):
            # What a fused node reads is read where it is computed.
            end = last.get(consumer, at) if consumer in fused else at
            last[producer] = max(last.get(producer, -1), end)
        return {node: at for node, at in last.items() if node not in fused}

    def elements(self, statement: Compute, sequence: _Sequence) -> tuple[list[Node], set[Node]]:
        """The stores of which a statement reads, for every element, the element in the same place, and those of which
        it reads others."""
        if id(statement) not in sequence.elements:
            sequence.elements[id(statement)] = self._elements(statement, sequence.fused)
        return sequence.elements[id(statement)]

    def _elements(self, statement: Compute, fused: Set[Node]) -> tuple[list[Node], set[Node]]:
        same: dict[Node, None] = {}
        other: set[Node] = set()
        own = statement.node
        chosen = [self.graph.cases[own][n].value for n in statement.cases] if own.op is RECURRENT else own.edges
        ahead: list[tuple[Node, Sequence[Edge], bool]] = [(own, chosen, True)]
        seen = set()
        while ahead:
            node, edges, aligned = ahead.pop()
            aligned = aligned and (node.op.name in ELEMENTWISE or (node.op is RECURRENT and len(edges) == 1))
            for edge in edges:
                here = aligned and edge.is_here
                if edge.node not in fused:
                    same.update({edge.node: None} if here else {})
                    other.update(() if here else (edge.node,))
                elif (edge.node, here) not in seen:
                    seen.add((edge.node, here))
                    cases = self.graph.cases.get(edge.node, ())
                    ahead.append((edge.node, [case.value for case in cases] or edge.node.edges, here))
        return list(same), other

    def operands(self, statement: Compute) -> list[Node]:
        if statement.node.op is RECURRENT:
            cases = self.graph.cases[statement.node]
            return [cases[n].value.node for n in statement.cases]
        return list(producers(statement.node, self.graph.cases))

    def shifts(self, node: Node, item: object, loop: Loop) -> int:
        """How many steps an index goes over, if it is shifted by a loop; otherwise none."""
        dims = dims_of(item.symbols()) if isinstance(item, Expr) else ()
        if len(dims) < 2 or not any(d.origin is loop.dim for d in dims) or not isinstance(item, Expr):
            return 0
        steps = {d: self.schedule.steps(node, d) for d in node.domain}
        boxes = {**self.schedule.open, **{d: (start, stop - 1) for d, (start, stop) in steps.items()}}
        low, high = interval(item, boxes, self.schedule.numbers)
        return high - low + 1


@dataclass(frozen=True)
class _Sequence:
    """Trees that run one after the other: what is computed where it is read, and for what is stored the last tree that
    reads it."""

    trees: Sequence[Tree]
    fused: Set[Node]
    last: Mapping[Node, int]
    elements: dict[int, tuple[list[Node], set[Node]]] = field(default_factory=dict)


class _Walk:
    def __init__(self, lifetimes: Lifetimes, stores: Mapping[Node, Store], growing: bool) -> None:
        self.lifetimes = lifetimes
        self.schedule = lifetimes.schedule
        self.habits = lifetimes.habits
        self.stores = stores
        self.growing = growing

    def taken(
        self, trees: Sequence[Tree], outside: Set[Node], around: Mapping[Dim, int], handed_out: Set[Node] = frozenset()
    ) -> list[tuple[int, int]]:
        """What the statements of trees that run one after the other take, with and without a library for matrix
        products, apart from stores that are there anyway, in loops ``around`` them that compute so many steps of dims
        at once."""
        first: dict[Node, int] = {}
        within = [[(0, 0)] for _ in trees]
        sequence = self.lifetimes.sequence(trees, bool(around))
        for at, tree in enumerate(trees):
            if isinstance(tree, Loop):
                inside = {c.node for c in computes(tree.body)} - outside
                kept = {node for node in inside if self.stores[node].outlives(tree.dim)}
                for node in kept:
                    first.setdefault(node, 0 if self.habits.zeros_first else at)
                found = self.taken(tree.body, outside | kept, {**around, tree.dim: tree.block or 1})
                shifted = self.shifted(tree, outside)
                within[at] = [(total + shifted, without + shifted) for total, without in found]
            elif tree.node not in sequence.fused:
                if tree.node not in outside:
                    first.setdefault(tree.node, at)
                beside, multiplies = self.beside(tree, around)
                within[at] = [(beside + (self.habits.workspace if multiplies else 0), beside)]
        last = sequence.last
        begun = {node: start for node, start in first.items() if start <= last.get(node, -1)}
        over, inside_outputs = self.written_over(sequence, begun, handed_out)
        change = [0] * (len(trees) + 1)
        grown = self.grown(trees)
        for node, start in begun.items():
            if node not in inside_outputs:
                size = 0
                for at, more in (grown.get(node) or {start: self.stores[node].bytes}).items():
                    change[at] += more - size
                    size = more
                change[last[node] + (node not in over)] -= size
        for at, tree in enumerate(trees):
            if isinstance(tree, Compute) and tree.node in self.stores:
                beside = self.stores[tree.node].beside(around)
                change[at] += beside
                change[max(last.get(tree.node, at), at) + 1] -= beside
        held = itertools.accumulate(change[:-1])
        return [
            (total + stored, without + stored)
            for each, stored in zip(within, held, strict=True)
            for total, without in each
        ]

    def grown(self, trees: Sequence[Tree]) -> dict[Node, dict[int, int]]:
        """Of stores that grow from piece to piece of a loop, the bytes from each of these trees on."""
        found: dict[Node, dict[int, int]] = {}
        for at, tree in enumerate(trees if self.growing else ()):
            if isinstance(tree, Loop) and tree.grows:
                for node in {c.node for c in computes(tree.body)} & self.stores.keys():
                    room = math.prod(self.stores[node].room((tree,), self.schedule))
                    found.setdefault(node, {})[at] = room * node.dtype.itemsize
        return found

    def written_over(
        self, sequence: _Sequence, first: Mapping[Node, int], handed_out: Set[Node]
    ) -> tuple[set[Node], set[Node]]:
        """The stores that make room when they are read last, for what is written over them; and those that are in the
        memory of outputs, which are written over them."""
        over: set[Node] = set()
        inside_outputs: set[Node] = set()
        last = sequence.last
        for at, tree in reversed([*enumerate(sequence.trees)]):
            if isinstance(tree, Loop):
                continue
            node = tree.node
            if node not in handed_out and (node in sequence.fused or first.get(node) != at):
                continue
            same, other = self.lifetimes.elements(tree, sequence)
            candidates = (n for n in same if n not in other and last.get(n) == at and n in first and n not in over)
            found = next((n for n in candidates if self.stores[n].bytes == self.stores[node].bytes), None)
            if found is not None:
                (inside_outputs if node in handed_out or node in inside_outputs else over).add(found)
        return over, inside_outputs

    def beside(self, statement: Compute, around: Mapping[Dim, int]) -> tuple[int, bool]:
        """What a statement takes beside its operands and its result, and whether the library for matrix products may
        take more."""
        node = statement.node
        if node.op is LINEAR_RECURRENCE:
            # Every round of a scan leaves half of what it was given. The first one is computed where it is read.
            return self.stores[node].bytes * max(node.dtype.itemsize, 4) // (2 * node.dtype.itemsize), False
        if node.op is ATTENTION:
            scores = self.scores(node, around)
            return scores, scores > 0
        return self.padding(statement) + self.masked(node, around), node.op is EINSUM and _is_product(node)

    def masked(self, node: Node, around: Mapping[Dim, int]) -> int:
        """A range of steps that differs in size from point to point is masked before it is reduced: where that is not
        computed by its reader, the ranges of all points at once are there beside what they are read of."""
        if self.habits.fuses_choices or not self.habits.reads_blocks_beside or node.op.name not in MASKED:
            return 0
        (edge,) = node.edges
        if not dims_of(shape_symbols(edge.shape)) or not any(isinstance(item, Slice) for item in edge.index):
            return 0
        steps = {d: self.schedule.steps(node, d) for d in node.domain}
        boxes = {**self.schedule.open, **{d: (start, stop - 1) for d, (start, stop) in steps.items()}}
        points = math.prod(around.get(d.origin, stop - start) for d, (start, stop) in steps.items())
        sizes = (extent(size, boxes, self.schedule.numbers) for size in edge.shape)
        return points * math.prod(sizes) * dtypes.accumulator_of(edge.dtype).itemsize

    def scores(self, node: Node, around: Mapping[Dim, int]) -> int:
        """What attention takes at all points at once: all scores; or, where a kernel goes over them in tiles, whether
        each is seen. Nothing, if every point has other keys and values; or copies of these, if they are windows, and
        too many to read all of them at once."""
        steps = {d: self.schedule.steps(node, d) for d in node.domain}
        counts = {d: around.get(d.origin, stop - start) for d, (start, stop) in steps.items()}
        at_once = [d for d in node.domain if d.origin not in around or counts[d] > 1]
        _, keys, values, *_ = node.edges
        starts = [item.start for item in keys.index if isinstance(item, Slice)]
        moving = [d for d in at_once if any(d in start.symbols() for start in starts)]
        if not moving and all(_varies(edge, d) for d in at_once for edge in node.edges[:3]):
            return 0
        boxes = {**self.schedule.open, **{d: (start, stop - 1) for d, (start, stop) in steps.items()}}
        numbers = self.schedule.numbers
        points = math.prod(counts.values())
        *_, of_keys, _, out = subscript_terms(node.attributes["terms"])
        seen = extent(keys.shape[of_keys.index(STEPS)], boxes, numbers)
        if moving:
            (item,) = (item for item in keys.index if isinstance(item, Slice))
            window, seen = seen, interval(item.stop, boxes, numbers)[1] - interval(item.start, boxes, numbers)[0]
            seen = min(seen, window + sum(counts[d] - 1 for d in moving))
            if seen > MOST_WINDOWS * window:
                return (
                    points * window * sum(math.prod(_numbers(e.node.shape)) * e.dtype.itemsize for e in (keys, values))
                )
        queries = [size for letter, size in zip(out, node.shape, strict=True) if letter != OUT]
        times = math.prod(counts[d] for d in at_once if d in moving or not _varies(keys, d))
        is_long = min(times, seen) >= LEAST_AT_ONCE
        if self.habits.attends_in_tiles and is_long and node.dtype.itemsize < 4:
            return points * seen
        sizes = [extent(size, boxes, numbers) for size in queries]
        return math.prod((*sizes, seen, points)) * max(node.dtype.itemsize, 4)

    def padding(self, statement: Compute) -> int:
        """A tensor defined by several cases is chosen from all of them, those with fewer steps padded."""
        node = statement.node
        if node.op is not RECURRENT or len(statement.cases) < 2:
            return 0
        own = self.stores[node].shape
        found = (self.stores[p].shape for p in self.lifetimes.operands(statement) if p in self.stores)
        partial = any(len(shape) == len(own) and math.prod(shape) < math.prod(own) for shape in found)
        return self.stores[node].bytes if partial else 0

    def shifted(self, loop: Loop, outside: Set[Node]) -> int:
        """What a loop reads of stores at steps that are shifted from iteration to iteration, as along a diagonal, it
        reads out of copies with room for what lies beside the steps that there are. (Those of inputs take the place of
        other copies.)"""
        made = {c.node for c in computes(loop.body)}
        found: dict[Node, int] = {}
        for node in made:
            for edge in node.edges:
                if edge.node in made or edge.node not in self.stores:
                    continue
                for d, item in zip(edge.node.domain, edge.index, strict=True):
                    read = self.lifetimes.shifts(node, item, loop)
                    size = len(range(*self.schedule.steps(edge.node, d)))
                    if read > size:
                        more = read - size if edge.node.op is INPUT and edge.node not in outside else read
                        found[edge.node] = self.stores[edge.node].bytes // size * more
        return sum(found.values())


def _numbers(shape: Shape) -> list[int]:
    return [size for size in shape if isinstance(size, int)]


def _varies(edge: Edge, dim: Dim) -> bool:
    """Whether an edge reads other values at every step of a dim, and not more and more of the same."""
    starts = (item.start if isinstance(item, Slice) else item for item in edge.index)
    return any(dim in as_expr(start).symbols() for start in starts)


def _is_product(node: Node) -> bool:
    """Whether an einsum is a product of two matrices, and not of vectors, which is computed like a reduction."""
    *terms, out = subscript_terms(node.attributes["subscripts"])
    if len(terms) != 2 or set("".join(terms)) <= set(out):
        return False
    (a, b), (first, second) = terms, node.edges
    return all(
        set(own) & set(out) - set(others) or any(_varies(edge, d) and not _varies(beside, d) for d in node.domain)
        for own, others, edge, beside in ((a, b, first, second), (b, a, second, first))
    )
