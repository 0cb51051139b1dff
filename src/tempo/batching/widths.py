"""How many lanes kernels have: calls of one level are cut into launches of a few widths.

A kernel is compiled for each width, and a launch is padded to one, so that there is a choice to make between time to
compile and lanes that compute nothing. On a CPU every lane takes its time, and kernels are compiled in a third of a
second: widths are fine. On a GPU a launch takes as long for one lane as for hundreds, and compiling takes seconds:
there are four widths, and if a single call is much work already, four others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby

import jax

FINE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""No wider: the temporaries of wider ones do not fit a core's cache, and products of vectors with 256 numbers that run
at 100 GFLOP/s for 128 lanes do so at 80 for 256."""
SMALL = (*FINE, 256, 512, 1024)
"""For cells that are hardly any work. No wider, so that what a kernel needs does not grow with the mini-batch."""
COARSE = (16, 64, 256, 1024)
HEAVY = (1, 4, 16, 64)
"""For cells of which one call takes a GPU longer than a launch: it is the lanes that count."""
CACHE = 2**21
"""On a CPU, what the arguments and results of a launch's calls may take: they are copied together and apart again, and
read in between. Matrices of 128 x 128 take 1.8 times as long if that is all of a level's."""
OPERATIONS = {"cpu": 2e7, "gpu": 3e8}
"""The arithmetic that could be done in the time that a launch takes beside its arithmetic."""

TURN = 4e6
"""The same for one turn of a loop over launches, on a CPU: 36 us for TreeLSTMs of 256 units, whose matrices are read
again, 5 us for MV-RNNs of 64."""
FEW = 3
"""So many launches are one kernel each, more are a loop: its body is compiled apart, and starting a loop costs time."""


def padded_width(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least ``count``."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def room(count: int, before: int, least: int) -> int:
    """For how many there should be room, where there was for ``before``: a power of two, and seldom another one,
    since kernels are compiled for it."""
    if count <= before:
        return before
    # Later mini-batches differ from the first by a few percent; one that is much larger is not the last of its size.
    wanted = 2 * count if before else count + count // 4
    return max(least, 1 << (wanted - 1).bit_length())


def launches(count: int, work: float, size: int) -> tuple[tuple[int, int], ...]:
    """Calls of one level as launches: the width of each, and how many calls it makes. ``work`` is a call's arithmetic
    operations, ``size`` the bytes of its arguments and results."""
    return _cut(count, work, "cpu" if jax.default_backend() == "cpu" else "gpu", widest(size))


def packing(counts: Sequence[int], work: float, size: int) -> tuple[tuple[int, ...], float, float]:
    """For levels with so many calls each, on a CPU: of which widths launches may be, what each costs beside its lanes
    if all are one loop, and what that loop may cost if it is not to cost more than the calls do level by level; all in
    lanes."""
    turn, beside = TURN / max(work, 1.0), OPERATIONS["cpu"] / max(work, 1.0)
    widths = [width for count in counts for width, _ in launches(count, work, size)]
    runs = [len(list(run)) for _, run in groupby(widths)]
    besides = sum(beside + run * turn if run > FEW else run * beside for run in runs)
    return _known(work, "cpu", widest(size)), turn, sum(widths) + besides - beside


def widest(size: int) -> int:
    """How many calls at most are made at once whose arguments and results have so many bytes each."""
    return max(CACHE // max(size, 1), 1) if jax.default_backend() == "cpu" else COARSE[-1]


def chunk_widths(work: float, size: int) -> tuple[tuple[int, ...], float]:
    """Of which widths a forest's levels may be computed, widest first, and what a chunk costs beside its lanes, in
    lanes. All are in one program, so that there are few, and no more on a GPU for calls that are much work."""
    is_cpu = jax.default_backend() == "cpu"
    beside = (TURN if is_cpu else OPERATIONS["gpu"]) / max(work, 1.0)
    widths = (128, 64, 32, 16, 8, 4) if is_cpu else COARSE[::-1] if beside >= 1 else HEAVY[::-1]
    most = widest(size)
    return tuple(width for width in widths if width <= most) or widths[-1:], beside


def is_worth_a_search(operations: float) -> bool:
    """Whether calls that are so much arithmetic in all should be searched for those that are the same: for a forest's
    leaves that takes as long as ten launches of a GPU."""
    return jax.default_backend() == "cpu" or operations > 10 * OPERATIONS["gpu"]


@cache
def _known(work: float, platform: str, most: int) -> tuple[int, ...]:
    """The widths that kernels may have."""
    beside = OPERATIONS[platform] / max(work, 1.0)
    known: tuple[int, ...] = COARSE if beside >= 1 else HEAVY
    if platform == "cpu":
        known = SMALL if beside > 1000 else FINE
    return tuple(width for width in known if width <= most)


@cache
def _cut(count: int, work: float, platform: str, most: int = COARSE[-1]) -> tuple[tuple[int, int], ...]:
    beside = OPERATIONS[platform] / max(work, 1.0)
    widths = _known(work, platform, most)
    whole, rest = divmod(count, widths[-1])
    found = ((widths[-1], widths[-1]),) * whole
    return found + _cheapest(rest, beside, widths) if rest else found


@cache
def _cheapest(count: int, beside: float, widths: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """As one launch with padding, or as a full one and more: whatever costs less, ``beside`` being what a launch costs
    beside its lanes."""
    one = ((next(width for width in widths if width >= count), count),)
    full = max((width for width in widths if width < count), default=0)
    if not full:
        return one
    several = ((full, full), *_cheapest(count - full, beside, widths))

    def cost(found: tuple[tuple[int, int], ...]) -> float:
        return sum(width + beside for width, _ in found)

    return min(one, several, key=cost)
