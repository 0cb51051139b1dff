"""Work that a recursive cell need not do step by step.

Of a recurrent cell's ``W @ x + U @ h`` only ``U @ h`` waits for the step before. Contractions of arguments that are no
results of the recursion, with what they need, are taken out of the cell: one launch for all steps of all instances.
What comes behind them (a bias, an activation) stays: it costs nothing in a kernel, and would cost memory outside.

Measured for bidirectional GRUs on one thread of a busy CPU, with it and without: 512 units, 8 sentences, 31 ms and 37
to 41; 64 sentences, 161 and 150 to 159; 256 units, 8 sentences, 14 and 12; 64 sentences, 67 and 62. It pays where a
step is narrow and its products are large, and elsewhere costs one more call per step. (That was with rows gathered. Now
what was taken out is computed in the order in which it is read, so that a step reads a slice.) Where it is of integers,
most of which occur again (words), it is computed once for each, and gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tempo.batching.repeats import first_calls
from tempo.batching.trace import Trace, kind
from tempo.graph.node import Node
from tempo.graph.structural import INPUT

if TYPE_CHECKING:
    from tempo.batching.planning import Calls
    from tempo.batching.recording import Recorder


@dataclass(frozen=True, eq=False)
class Split:
    """A cell in two: ``early`` computes, from some of its arguments, what ``late`` takes behind its own."""

    early: Trace
    late: Trace
    apart: Trace
    """``late``, for results of ``early`` that are anywhere."""
    early_arguments: tuple[int, ...]
    late_arguments: tuple[int, ...]


@dataclass
class Hoisting:
    """What is taken out of which cells."""

    inside: dict[Trace, tuple[bool, ...]] = field(default_factory=dict)
    """Which arguments of a recursive cell were ever results of its recursion."""
    splits: dict[tuple[Trace, tuple[bool, ...]], Split | None] = field(default_factory=dict)
    repeated: dict[Split, bool] = field(default_factory=dict)
    """Whether calls of what was taken out were often the same, in the first mini-batch: kernels are made for that."""

    def apply(self, calls: list[Calls], recorder: Recorder) -> list[Calls]:
        """The same calls, those of recursive cells in two where that is worth it."""
        recursive = [one for one in calls if recorder.phases.is_recursive(one.trace)]
        undecided = [one for one in recursive if not self._is_whole(one.trace)]
        if not undecided:
            return calls
        phase_of = np.full(recorder.count, -1, np.int32)
        for one in recursive:
            for position in range(len(one.trace.results)):
                phase_of[one.bases + position] = one.phase
        for one in undecided:
            inside = self.inside.get(one.trace, (False,) * len(one.columns))
            for n, column in enumerate(one.columns):
                if one.is_value[n] and not inside[n] and np.any(phase_of[column] == one.phase):
                    inside = (*inside[:n], True, *inside[n + 1 :])
            self.inside[one.trace] = inside
        found: list[Calls] = []
        for one in calls:
            split = self._split(one.trace) if one.trace in self.inside else None
            if split is not None and split not in self.repeated:
                self.repeated[split] = _repeated(split, [other for other in calls if other.trace is one.trace])
            if split is not None:
                found.append(self._early(one, split, recorder))
            found.append(one)
        return found

    def _is_whole(self, trace: Trace) -> bool:
        """Whether there is nothing to take out of a cell, nor ever will be: arguments only become results."""
        inside = self.inside.get(trace)
        return inside is not None and self.splits.get((trace, inside), self) is None

    def _early(self, one: Calls, split: Split, recorder: Recorder) -> Calls:
        """The part of some calls that does not wait; the calls become the rest."""
        size = len(split.early.results)
        bases = np.arange(recorder.count, recorder.count + size * len(one.bases), size, dtype=np.int32)
        recorder.count += size * len(one.bases)
        early = replace(
            one,
            trace=split.early,
            phase=one.phase - 1,
            levels=np.zeros_like(one.levels),
            bases=bases,
            columns=[one.columns[n] for n in split.early_arguments],
            is_value=tuple([one.is_value[n] for n in split.early_arguments]),
        )
        one.trace = split.apart if self.repeated[split] else split.late
        one.columns = [*(one.columns[n] for n in split.late_arguments), *(bases + n for n in range(size))]
        one.is_value = (*(one.is_value[n] for n in split.late_arguments), *(True,) * size)
        return early

    def _split(self, trace: Trace) -> Split | None:
        key = (trace, self.inside[trace])
        if key not in self.splits:
            self.splits[key] = None if trace.function is not None else _split(*key)
        return self.splits[key]


def _repeated(split: Split, calls: Sequence[Calls]) -> bool:
    """Whether what is taken out of calls is often the same."""
    which = split.early_arguments
    if any(one.is_value[n] for one in calls for n in which):
        return False
    columns = [[leaf for one in calls for leaf in one.columns[n]] for n in which]
    return first_calls(columns, [False] * len(which), split.early) is not None


def _split(trace: Trace, inside: Sequence[bool]) -> Split | None:
    parameters = len(trace.parameters)
    arguments = trace.inputs[parameters:]
    nodes = _needed(trace.outputs, ())
    waiting = {node for node, is_inside in zip(arguments, inside, strict=True) if is_inside and node is not None}
    given = {node for node, is_inside in zip(arguments, inside, strict=True) if not is_inside and node is not None}
    for node in nodes:
        if any(edge.node in waiting for edge in node.edges):
            waiting.add(node)
        elif any(edge.node in given for edge in node.edges):
            given.add(node)
    hoisted = [node for node in nodes if node in given and node.op.name == "einsum"]
    if not hoisted:
        return None
    # Of contractions behind each other the last ones are handed over; others only if something else reads them, too.
    late_nodes = _needed(trace.outputs, hoisted)
    read = {edge.node for node in late_nodes for edge in node.edges} | set(trace.outputs)
    frontier = tuple(node for node in hoisted if node in read)
    early_nodes = set(_needed(frontier, ()))
    late = set(late_nodes)
    early_arguments = tuple(n for n, node in enumerate(arguments) if node in early_nodes)
    late_arguments = tuple(n for n, node in enumerate(arguments) if node in late)

    def part(nodes: set[Node], which: Sequence[int], results: tuple[Node, ...], auxiliary: bool) -> Trace:
        own = [n for n, node in enumerate(trace.inputs[:parameters]) if node in nodes]
        return replace(
            trace,
            parameters=tuple(trace.parameters[n] for n in own),
            arguments=tuple(trace.arguments[n] for n in which),
            results=tuple(kind(tuple(map(int, node.shape)), np.dtype(node.dtype)) for node in results),
            inputs=tuple([*(trace.inputs[n] for n in own), *(arguments[n] for n in which)]),
            outputs=results,
            auxiliary=auxiliary,
        )

    first = part(early_nodes, early_arguments, frontier, auxiliary=True)
    rest = part(late, late_arguments, trace.outputs, auxiliary=False)
    rest = replace(rest, arguments=rest.arguments + first.results, inputs=rest.inputs + frontier, early=first)
    return Split(first, rest, replace(rest, early=None), early_arguments, late_arguments)


def _needed(roots: Sequence[Node], known: Sequence[Node]) -> list[Node]:
    """The nodes that some need, themselves included, each after those that it needs; nothing behind ``known`` ones."""
    found: set[Node] = set()
    stack = [root for root in roots if root not in known]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(edge.node for edge in node.edges if edge.node not in known)
    return sorted(found, key=lambda node: (node.op is not INPUT, node.number))
