"""The loop tree as Python runs it: in pieces between which it can hand out values, stop, and save.

Script ::= Item*
Item   ::= Part     trees that are computed in one go
         | Chunks   a loop without host calls: some iterations in one go
         | Each     a loop that Python runs step by step, or block by block: its body is a script
         | Call     a host call

A *position* in a script is the number of the item that is next; for a loop, followed by the number of iterations that
are over and, for ``Each``, by the position within the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST
from tempo.graph.traversal import producers
from tempo.schedule.loops import Schedule
from tempo.schedule.looptree import Compute, Loop, Tree, computes
from tempo.schedule.offload import offloads
from tempo.schedule.storage import Storage

Position = tuple[int, ...]

START: Position = (0,)
END: Position = ()

# What is emitted is gathered on the device up to this size. Gathering costs time in proportion to the room that there
# is, not to what is in it: 16 MiB are handed over in about 3 ms.
GATHERED_BYTES = 16 * 2**20

# An iteration that emits more than this, step by step of an inner loop, is not computed in one go.
MOST_BYTES = 256 * 2**20

# A chunk that emits has at most this many iterations: making records of their values takes time as well.
MOST_ITERATIONS = 10_000


@dataclass(frozen=True, eq=False)
class Part:
    """Trees, inside of the loops ``outer`` that Python runs."""

    trees: tuple[Tree, ...]
    outer: tuple[Loop, ...]


@dataclass(frozen=True, eq=False)
class Chunks:
    """A loop, at most ``most`` iterations at a time, inside of the loops ``outer`` that Python runs."""

    loop: Loop
    most: int
    outer: tuple[Loop, ...]

    @property
    def trees(self) -> tuple[Tree, ...]:
        return (self.loop,)


@dataclass(frozen=True, eq=False)
class Each:
    """A loop, one step at a time."""

    loop: Loop
    body: tuple[Item, ...]

    @property
    def trees(self) -> tuple[Tree, ...]:
        return (self.loop,)


@dataclass(frozen=True, eq=False)
class Call:
    """A host call."""

    node: Node

    @property
    def trees(self) -> tuple[Tree, ...]:
        return (Compute(self.node),)


Item = Part | Chunks | Each | Call


class Script:
    """What Python does, and what it needs from any position on."""

    def __init__(self, graph: Graph, schedule: Schedule, storage: Storage) -> None:
        self.graph = graph
        self.items = tuple(_Writer(graph, schedule, storage).sequence(schedule.trees, (), top=True))

    @property
    def iterations(self) -> int:
        """The number of iterations of all outermost loops, if nothing stops them early."""
        return sum(len(item.loop.steps) for item in self.items if isinstance(item, Chunks | Each))

    def iterations_before(self, position: Position) -> int:
        """How many of them are over at a position."""
        number, *inside = position or (len(self.items),)
        before = sum(len(item.loop.steps) for item in self.items[:number] if isinstance(item, Chunks | Each))
        return before + (inside[0] if inside else 0)

    def needed(self, position: Position) -> set[Node]:
        """The nodes whose stores still matter: of results, and of all that is read or computed from a position on."""
        rest = self.items[position[0] :] if position else ()
        computed = {c.node for item in rest for c in computes(item.trees)}
        read = {p for node in computed for p in producers(node, self.graph.cases)}
        return computed | read | {edge.node for edge in self.graph.outputs.values()}

    def leaves(self) -> Iterator[Item]:
        """All that is done in one go, loops that Python runs left out."""
        pending = [*self.items]
        for item in pending:
            if isinstance(item, Each):
                pending.extend(item.body)
            else:
                yield item

    def __str__(self) -> str:
        return "\n".join(_show(self.items, ""))


class _Writer:
    def __init__(self, graph: Graph, schedule: Schedule, storage: Storage) -> None:
        self.graph = graph
        self.schedule = schedule
        self.storage = storage
        self.emitted = {edge.node for edge in graph.emits.values()}

    def sequence(self, trees: Sequence[Tree], outer: tuple[Loop, ...], top: bool) -> Iterator[Item]:
        """The items for some trees in the loops ``outer``: at the ``top`` if none of these has several steps."""
        together: list[Tree] = []
        for tree in trees:
            if self.in_one_go(tree, outer, top):
                together.append(tree)
                continue
            if together:
                yield Part(tuple(together), outer)
                together = []
            if isinstance(tree, Compute):
                yield Call(tree.node)
            else:
                yield self.loop(tree, outer, top)
        if together:
            yield Part(tuple(together), outer)

    def loop(self, loop: Loop, outer: tuple[Loop, ...], top: bool) -> Item:
        inside = (*outer, loop)
        once = len(loop.steps) == 1
        if (once and not loop.block) or self.is_for_python(loop) or self.gathers_too_much(loop.body, inside):
            return Each(loop, tuple(self.sequence(loop.body, inside, top and once)))
        emitted = self.bytes(loop.body, inside)
        most = min(max(GATHERED_BYTES // emitted, 1), MOST_ITERATIONS) if emitted else len(loop.steps)
        return Chunks(loop, min(most, len(loop.steps)), outer)

    def in_one_go(self, tree: Tree, outer: tuple[Loop, ...], top: bool) -> bool:
        if isinstance(tree, Compute):
            return tree.node.op is not HOST
        # Outermost loops are run in chunks even if they emit nothing: they take the time that there is to stop or save.
        by_python = self.is_for_python(tree) or (top and _repeats(tree))
        return not by_python and not self.gathers_too_much((tree,), outer)

    def is_for_python(self, tree: Tree) -> bool:
        """Whether Python has something to do on the way: to call a function, or to send and fetch blocks of stores."""
        return _calls(tree) or offloads(tree, self.graph, self.storage)

    def gathers_too_much(self, trees: Sequence[Tree], outer: tuple[Loop, ...]) -> bool:
        """Whether values of all steps of some loops are too many to be handed over at once."""
        return self.bytes([t for t in trees if isinstance(t, Loop)], outer) > MOST_BYTES

    def bytes(self, trees: Sequence[Tree], outer: tuple[Loop, ...]) -> int:
        """What some trees emit in one iteration of the loops around them."""
        total = 0
        at_once = {loop.dim: loop.block or 1 for loop in outer}
        for node in {c.node for c in computes(trees)} & self.emitted:
            steps = (at_once.get(d.origin) or len(range(*self.schedule.steps(node, d))) for d in node.domain)
            values = math.prod((*steps, *self.storage.stores[node].value))
            total += values * node.dtype.itemsize
        return total


def _calls(tree: Tree) -> bool:
    return any(c.node.op is HOST for c in computes((tree,)))


def _repeats(tree: Tree) -> bool:
    """Whether there is a loop of several steps."""
    return isinstance(tree, Loop) and (len(tree.steps) > 1 or any(map(_repeats, tree.body)))


def _show(items: Sequence[Item], indent: str) -> Iterator[str]:
    for item in items:
        match item:
            case Part():
                yield f"{indent}{len(list(computes(item.trees)))} nodes in one go"
            case Call():
                yield f"{indent}a host call"
            case Chunks():
                yield f"{indent}{_steps(item.loop)}, at most {item.most} at a time"
            case Each():
                yield f"{indent}{_steps(item.loop)}, one by one:"
                yield from _show(item.body, indent + "    ")


def _steps(loop: Loop) -> str:
    return f"{loop.dim.name} = {loop.steps[0]} .. {loop.steps[-1]}"
