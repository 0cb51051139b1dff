"""What runs: a tree of loops.

Tree  ::= Loop | Compute
Loop  ::= for dim in start .. stop (forwards or backwards): Tree*
Compute ::= a node, at the point that the loops around it are at, for all steps of its other dims at once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tempo.graph.node import Node
from tempo.symbolic import Dim


@dataclass(frozen=True)
class Compute:
    """One node at the loops' point. ``cases`` are those of a recurrent node that may apply here."""

    node: Node
    cases: tuple[int, ...] = ()


@dataclass(frozen=True)
class Loop:
    """The body for each step of a dim from ``start`` up to, not including, ``stop``; or down, if ``backwards``."""

    dim: Dim
    start: int
    stop: int
    backwards: bool
    body: tuple[Tree, ...]

    @property
    def steps(self) -> range:
        steps = range(self.start, self.stop)
        return steps[::-1] if self.backwards else steps


Tree = Loop | Compute


def computes(trees: Sequence[Tree]) -> Iterator[Compute]:
    for tree in trees:
        if isinstance(tree, Loop):
            yield from computes(tree.body)
        else:
            yield tree


def show(trees: Sequence[Tree], indent: str = "") -> str:
    """The tree as text."""
    lines = []
    for tree in trees:
        if isinstance(tree, Loop):
            steps = f"{tree.start} .. {tree.stop - 1}"
            if tree.backwards:
                steps = f"{tree.stop - 1} .. {tree.start}, backwards"
            once = tree.stop - tree.start == 1
            head = f"at {tree.dim.name} = {tree.start}:" if once else f"for {tree.dim.name} in {steps}:"
            lines += [indent + head, show(tree.body, indent + "    ")]
        else:
            reads = ", ".join(map(str, tree.node.edges))
            cases = f" (case {', '.join(str(c + 1) for c in tree.cases)})" if tree.cases else ""
            lines.append(f"{indent}{tree.node.label} = {tree.node.op.name}({reads}){cases}")
    return "\n".join(lines)
