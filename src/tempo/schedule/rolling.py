"""When repeated structure is rolled without being asked for: where compiling it takes longer than copying operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tempo.graph.node import Graph
from tempo.passes.rolling import Rolled
from tempo.schedule.buckets import CPU_SPEED, RUNS

# What XLA takes to compile one node on a CPU: 32 s for the 5200 nodes of 64 LSTM layers and their training.
COMPILE_SECONDS = 0.006

# Fewer nodes are compiled in a few seconds.
LEAST_NODES = 1000


def worth_rolling(graph: Graph, rolled: Graph, found: Sequence[Rolled], numbers: Mapping[Any, int]) -> bool:
    """Whether XLA needs more time for the nodes that rolling saves than all runs need to copy what is stacked, into an
    array and out of it. (On a GPU, where a copy costs more than what is computed from it, nobody asks.)"""
    saved = len(graph.nodes) - len(rolled.nodes)
    copied = stacked_bytes(found, numbers)
    return saved >= LEAST_NODES and COMPILE_SECONDS * saved > RUNS * 2 * copied / CPU_SPEED


def stacked_bytes(found: Sequence[Rolled], numbers: Mapping[Any, int]) -> float:
    """The bytes that copies' operands take a second time; infinite if they have no size of their own."""
    total = 0.0
    for node in (node for rolled in found for node in rolled.stacked):
        sizes = [size if isinstance(size, int) else math.inf for size in node.shape]
        steps = [d.bound.evaluate(numbers) for d in node.domain]
        total += node.dtype.itemsize * math.prod([*sizes, *steps])
    return total
