"""What runs: a tree of loops.

Tree  ::= Loop | Compute
Loop  ::= for dim in start .. stop (forwards or backwards; or until a stop condition holds): Tree*
        | for blocks of dim in start .. stop (forwards or backwards): Tree*
        | for the steps of dim in the block around: Tree*
Compute ::= a node, at the point and in the blocks that the loops around it are at, for all steps of its other dims at
            once; or (a fold) the share that a block has in a reduction over all of them
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tempo.graph.node import Node
from tempo.schedule.folds import Fold
from tempo.symbolic import Dim


@dataclass(frozen=True)
class Compute:
    """One node at the loops' point. ``cases`` are those of a recurrent node that may apply here."""

    node: Node
    cases: tuple[int, ...] = ()
    folds: tuple[Fold, ...] = ()
    within: Mapping[Dim, tuple[int, int]] = field(default_factory=dict)
    """The first and the last step of every loop around it: sizes that depend on a step are no larger than there."""


@dataclass(frozen=True)
class Loop:
    """The body for each step of a dim from ``start`` up to, not including, ``stop``; or down, if ``backwards``."""

    dim: Dim
    start: int
    stop: int
    backwards: bool
    body: tuple[Tree, ...]
    until: Node | None = None
    """A stop condition: the loop ends early once it has held, in its body or before; backwards, it begins there."""
    block: int = 0
    """How many steps the body computes at once, if it computes blocks."""
    inner: bool = False
    """Whether the steps are those of the block around the loop."""
    grows: bool = False
    """Whether the stores that it fills have room for the steps up to its last one only, and more in the next piece."""
    tiled: bool = False
    """Whether a plan has put its steps into blocks, which may be of one step."""
    number: int = 0
    """That of the loop that it is a piece of, as in the places of a schedule, if its steps are made one by one."""

    @property
    def steps(self) -> range:
        steps = range(self.start, self.stop, self.block or 1)
        return steps[::-1] if self.backwards else steps

    def cut(self, steps: range) -> Loop:
        """The loop with some of its steps only."""
        return replace(self, start=min(steps), stop=max(steps) + (self.block or 1))

    def at(self, step: Any, outside: Any = None) -> Any:
        """What nodes are computed at, at one of ``steps``: a step, or a block of them; ``outside`` is the block around
        an inner loop."""
        if self.block:
            return BlockSteps(step, self.block)
        return outside.start + step if self.inner else step


@dataclass(frozen=True)
class BlockSteps:
    """``length`` steps from ``start`` on, which may be traced."""

    start: Any
    length: int


def block_of(place: Any) -> tuple[Any, int]:
    """The first step of the block that a loop is at, and its length; of one without blocks, its step."""
    return (place.start, place.length) if isinstance(place, BlockSteps) else (place, 1)


Tree = Loop | Compute


def computes(trees: Sequence[Tree]) -> Iterator[Compute]:
    for tree in trees:
        if isinstance(tree, Loop):
            yield from computes(tree.body)
        else:
            yield tree


def only(nodes: Container[Node], trees: Sequence[Tree]) -> Iterator[Tree]:
    """The trees without what does not compute these nodes."""
    for tree in trees:
        if isinstance(tree, Compute):
            if tree.node in nodes:
                yield tree
        elif body := tuple(only(nodes, tree.body)):
            yield replace(tree, body=body)


def heading(loop: Loop) -> str:
    """The steps that a loop goes through, as text."""
    name, steps = loop.dim.name, f"{loop.start} .. {loop.stop - 1}"
    if loop.backwards:
        steps = f"{loop.stop - 1} .. {loop.start}, backwards"
    if loop.inner:
        return f"for {name} in the block:"
    if loop.block:
        return f"for {name} in {steps}, {'all' if len(loop.steps) == 1 else loop.block} at once:"
    if loop.stop - loop.start == 1:
        return f"at {name} = {loop.start}:"
    until = f", {'from where' if loop.backwards else 'until'} {loop.until.label}" if loop.until else ""
    return f"for {name} in {steps}{until}{' held' if until and loop.backwards else ''}:"


def statement(compute: Compute) -> str:
    """What is computed, and of what, as text."""
    reads = ", ".join(map(str, compute.node.edges))
    cases = f" (case {', '.join(str(c + 1) for c in compute.cases)})" if compute.cases else ""
    share = " (block by block)" if compute.folds else ""
    return f"{compute.node.label} = {compute.node.op.name}({reads}){cases}{share}"


def show(trees: Sequence[Tree], indent: str = "") -> str:
    """The tree as text."""
    lines = []
    for tree in trees:
        if isinstance(tree, Loop):
            lines += [indent + heading(tree), show(tree.body, indent + "    ")]
        else:
            lines.append(indent + statement(tree))
    return "\n".join(lines)
