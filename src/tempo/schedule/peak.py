"""How much memory a plan takes at its worst moment.

Inputs and outputs are there all the time. Between them, a store takes room from the tree that writes it first to the
tree that reads it last; a loop counts as one tree, in which an iteration takes room for what it does not keep. The
stores that a loop fills are there from the beginning: XLA makes the zeros in them before it does anything else. And
what is computed element by element is mostly not stored at all, but computed where it is read.

This is a model of what XLA does. ``JaxMachine.memory`` is what it did.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from tempo.graph.node import Edge, Graph, Node, Primitive
from tempo.graph.structural import HOST, INPUT, RECURRENT
from tempo.graph.traversal import producers
from tempo.ops import creation, elementwise, shaping
from tempo.ops.shaping import RESHAPE
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop, Tree, computes

if TYPE_CHECKING:
    from tempo.schedule.storage import Store

# Computed by their reader, if there is one only.
COSTLY = {"cos", "divide", "erf", "exp", "expm1", "log", "log1p", "logaddexp", "power", "rsqrt", "sigmoid", "sin"}
COSTLY |= {"sqrt", "tanh"}
# Computed by every reader anew: the other operations on elements, views, and values that come from nothing.
CHEAP = {p.name for m in (creation, elementwise, shaping) for p in vars(m).values() if isinstance(p, Primitive)}
CHEAP = (CHEAP | {"slice"}) - COSTLY - {"concatenate", "constant"}
# What computes its operands where it reads them. Matrix products and the like read from memory.
FUSING = CHEAP | COSTLY | {"all", "any", "argmax", "argmin", "max", "min", "place", "prod", "recurrent", "sum"}


def peak_bytes(graph: Graph, schedule: Schedule, stores: Mapping[Node, Store], outputs: Mapping[str, int]) -> int:
    """The most bytes that are taken at the same time; ``outputs`` are those of what is handed out."""
    inputs = sum(store.bytes for node, store in stores.items() if node.op is INPUT)
    handed_out = {edge.node for name, edge in graph.outputs.items() if _is_whole(edge, stores, outputs[name])}
    outside = {node for node in schedule.places if node in handed_out or node.op in (INPUT, HOST)}
    return inputs + sum(outputs.values()) + _Walk(graph, stores).most(schedule.trees, outside)


def _is_whole(edge: Edge, stores: Mapping[Node, Store], size: int) -> bool:
    """Whether an output is a store as it is."""
    return edge.is_here and edge.node in stores and stores[edge.node].bytes == size


class _Walk:
    def __init__(self, graph: Graph, stores: Mapping[Node, Store]) -> None:
        self.graph = graph
        self.stores = stores

    def most(self, trees: Sequence[Tree], outside: Set[Node]) -> int:
        """What trees that run one after the other take at most, apart from stores that are there anyway."""
        first: dict[Node, int] = {}
        within = [0] * len(trees)
        for at, tree in enumerate(trees):
            if isinstance(tree, Loop):
                inside = {c.node for c in computes(tree.body)} - outside
                kept = {node for node in inside if self.stores[node].outlives(tree.dim)}
                first.update(dict.fromkeys(kept, 0))
                within[at] = self.most(tree.body, outside | kept)
            else:
                if tree.node not in outside:
                    first.setdefault(tree.node, at)
                within[at] = self.padding(tree)
        last = self.last(trees)
        change = [0] * (len(trees) + 1)
        for node, start in first.items():
            if start <= last.get(node, -1):
                change[start] += self.stores[node].bytes
                change[last[node] + 1] -= self.stores[node].bytes
        held = itertools.accumulate(change[:-1])
        return max((inside + stored for inside, stored in zip(within, held, strict=True)), default=0)

    def last(self, trees: Sequence[Tree]) -> dict[Node, int]:
        """For every node that is stored and read by some trees, the last one that reads it."""
        direct = {tree.node: at for at, tree in enumerate(trees) if isinstance(tree, Compute)}
        reads = [(c.node, p, at) for at, t in enumerate(trees) for c in computes((t,)) for p in self.operands(c)]
        readers: dict[Node, set[Node]] = {}
        for consumer, producer, _ in reads:
            readers.setdefault(producer, set()).add(consumer)
        fused = {
            node
            for node in direct
            if (node.op.name in CHEAP or (node.op.name in COSTLY and len(readers.get(node, ())) == 1))
            and all(r in direct and r.op.name in FUSING for r in readers.get(node, ()))
        }
        # Another shape of a whole tensor is the same memory.
        views = {node for node in direct if node not in fused and node.op is RESHAPE and node.edges[0].is_here}
        views = {node for node in views if all(r in direct for r in readers.get(node, ()))}
        fused = (fused | views) - {node.edges[0].node for node in views}
        last: dict[Node, int] = {}
        for consumer, producer, at in reversed(reads):
            # What a fused node reads is read where it is computed.
            end = last.get(consumer, at) if consumer in fused else at
            last[producer] = max(last.get(producer, -1), end)
        return {node: at for node, at in last.items() if node not in fused}

    def operands(self, statement: Compute) -> list[Node]:
        if statement.node.op is RECURRENT:
            cases = self.graph.cases[statement.node]
            return [cases[n].value.node for n in statement.cases]
        return list(producers(statement.node, self.graph.cases))

    def padding(self, statement: Compute) -> int:
        """A tensor defined by several cases is chosen from all of them, those with fewer steps padded."""
        node = statement.node
        if node.op is not RECURRENT or len(statement.cases) < 2:
            return 0
        own = self.stores[node].shape
        found = (self.stores[p].shape for p in self.operands(statement) if p in self.stores)
        partial = any(len(shape) == len(own) and math.prod(shape) < math.prod(own) for shape in found)
        return self.stores[node].bytes if partial else 0
