"""Levels of a recursion, packed: as many calls in each as a launch has lanes.

By height, a forest has most of its calls on the lowest levels and few on the highest: 374, 231, 137, ..., 6, 3 for 64
trees of 19 words. Of a level that is no multiple of a launch's width a part is padding, and narrow launches take long
for what they compute. But only a root's path has no choice: a call can be made at any time before its result is
needed. So levels are filled from the last one down, each with calls whose results nothing but later levels needs, the
highest calls first. That makes the fewest levels that there can be (Hu 1961): for 64 MV-RNNs 33 launches of 32 calls,
one loop, in place of 39 of eight widths, 16 kernels.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Any

import numpy as np

Ints = np.ndarray[Any, Any]


def packed(
    heights: Ints,
    children: Sequence[Ints],
    widths: Sequence[int],
    beside: float,
    most: float,
    known: Container[int] = (),
) -> tuple[Ints, int] | None:
    """Other levels for calls, counted from zero, and the width of their launches: None if these are no forest, or if
    nothing is gained.

    ``heights`` are their levels, counted from zero, too; every one of ``children`` has for each call another one whose
    result it needs, or -1. Launches have one of some ``widths``, and cost as much as so many lanes ``beside`` their
    own; all together they are to cost less than ``most``. A width that is ``known``, since something was compiled for
    it, is preferred where it costs up to a tenth more.
    """
    below: list[Ints] = []
    for column in children:
        # What a call gives several results of is often one argument, in two columns.
        if not any(np.array_equal(column, other) for other in below):
            below.append(column)
    count = len(heights)
    is_below = np.zeros(count + 1, bool)  # the last for no child
    for column in below:
        is_below[column] = True
    inner = int(np.count_nonzero(is_below[:-1]))
    if inner < sum(np.count_nonzero(column >= 0) for column in below):
        return None
    highest = int(heights.max())

    def cost(width: int) -> float:
        # Nothing but roots is on the last level.
        fewest = max(highest + 1, -(-count // width), 1 - (-inner // width))
        return fewest * (width + beside)

    least = min(map(cost, widths))
    width = min(widths, key=lambda width: (cost(width) > 1.1 * least, width not in known, cost(width)))
    if width in known:
        most *= 1.1
    if cost(width) >= most:
        return None
    steps = _filled((highest - heights).tolist(), [column.tolist() for column in below], is_below[:-1], width)
    if len(steps) * (width + beside) >= most:
        return None
    found = np.empty(count, np.int64)
    found[list(chain(*steps))] = np.repeat(np.arange(len(steps))[::-1], list(map(len, steps)))
    return found, width


def _filled(ranks: list[int], below: list[list[int]], is_below: Ints, width: int) -> list[list[int]]:
    """The calls of every level, the last level first; ``ranks`` are zero for the highest calls."""
    ready: list[list[int]] = [[] for _ in range(max(ranks) + 1)]
    """Per rank the calls that could be made."""
    for call in np.flatnonzero(~is_below).tolist():
        ready[ranks[call]].append(call)
    first = [rank for rank, some in enumerate(ready) if some]
    """The ranks of which there are any, as a heap."""
    steps = []
    while first:
        step: list[int] = []
        free = width
        while first and free:
            some = ready[first[0]]
            # Of one rank those that came last, whose results are read soonest after they are written.
            step += some[-free:]
            del some[-free:]
            free = width - len(step)
            if not some:
                heappop(first)
        for column in below:
            for call in step:
                child = column[call]
                if child >= 0:
                    some = ready[ranks[child]]
                    if not some:
                        heappush(first, ranks[child])
                    some.append(child)
        steps.append(step)
    return steps
