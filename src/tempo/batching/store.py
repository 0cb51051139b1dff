"""Arenas: one array with all values of one kind, for a mini-batch, and then for the next one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax.near import handed_over, is_handed_over
from tempo.batching.planning import Rows
from tempo.batching.trace import Kind
from tempo.batching.widths import room

Array = Any
Arenas = dict[Kind, Array]


@dataclass
class Store:
    """The arenas of one mini-batch."""

    capacities: dict[Any, int]
    idle: Arenas
    """Those of an earlier mini-batch: what they hold does not matter, and new ones would have to be cleared."""
    rows: Rows = field(default_factory=Rows)
    arenas: Arenas = field(default_factory=dict)

    def make_room(self) -> None:
        """Let the arenas have all rows that are needed. They have as many as the largest mini-batch before, if those
        are enough, and a few megabytes at least, so that kernels are compiled for few sizes."""
        for kind, rows in self.rows.needed.items():
            least = min(max((4 << 20) // max(kind.bytes, 1), 64), 4096)
            wanted = self.capacities[kind] = room(rows, self.capacities.get(kind, 0), least)
            arena = self.arenas.get(kind)
            if arena is None:
                arena = self.idle.pop(kind, None)
                if arena is not None and len(arena) == wanted:
                    self.arenas[kind] = arena
                    continue
                self.arenas[kind] = jnp.zeros((wanted, *kind.shape), kind.dtype)
            elif len(arena) < wanted:
                self.arenas[kind] = jnp.pad(arena, [(0, wanted - len(arena))] + [(0, 0)] * len(kind.shape))

    def give_back(self) -> None:
        """Let a later mini-batch have the arenas."""
        self.idle.update(self.arenas)
        self.arenas = {}


def cleared(arenas: Arenas, idle: Arenas) -> Arenas:
    """Zeros for every arena of floats, where possible in arrays that are there: the memory of new ones is mapped page
    by page, which takes a CPU 16 ms for MV-RNN's 32 MB, where to clear them takes 3."""
    found: Arenas = {}
    for kind, arena in arenas.items():
        if kind.is_float:
            before = idle.pop(kind, None)
            fits = before is not None and before.shape == arena.shape
            found[kind] = _cleared(before) if fits else jnp.zeros(arena.shape, arena.dtype)
    return found


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _cleared(array: Array) -> Array:
    return jnp.zeros_like(array)


SMALL = 256
"""Bytes of a row: NumPy's own record of an array is half as large."""
Piece = tuple[Kind, int, int, Array]
"""A kind, the first row in its arena, how many there are, and an array with these rows."""


def fetched(
    arenas: Arenas,
    kinds: Sequence[Kind],
    rows: np.ndarray[Any, Any],
    others: Sequence[Array] = (),
    pieces: Sequence[Piece] = (),
) -> tuple[list[np.ndarray[Any, Any]], Sequence[np.ndarray[Any, Any]]]:
    """Rows of the arenas of these kinds as NumPy's arrays, and other arrays: all are waited for at once, which on a GPU
    costs as much as some kernels. What is among ``pieces`` is read there, without a kernel.

    All rows may be written to, and one that is kept does not keep those of other instances, unless they are small.
    """
    by_kind: dict[Kind, list[int]] = {}
    for n, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(n)
    arrays: dict[Kind, Any] = {}
    away: dict[Kind, np.ndarray[Any, Any]] = {}
    for kind, positions in by_kind.items():
        own = rows[positions]
        if jax.default_backend() == "cpu" and kind.dtype.kind in "biuf":
            # Where it is. No view of an arena may stay: kernels would copy it, rather than write into it.
            arena = np.from_dlpack(arenas[kind].block_until_ready())
            arrays[kind] = arena[own] if kind.bytes <= SMALL else [arena[row].copy() for row in own]
        else:
            away[kind] = own
    near = {kind: found for kind, own in away.items() if (found := _near(kind, own, pieces)) is not None}
    far = {kind: own for kind, own in away.items() if kind not in near}
    there = [n for n, other in enumerate(others) if not is_handed_over(other)]
    if far or there:
        widths = tuple([_width(len(own)) for own in far.values()])
        index = [_fit(own, width) for own, width in zip(far.values(), widths, strict=True)]
        asked = [arenas[kind] for kind in far], np.concatenate([np.zeros(0, np.int32), *index]), widths
        copies, brought = _rows_of(*asked, [others[n] for n in there])
        now = dict(zip(there, brought, strict=True))
        others = [now.get(n, other) for n, other in enumerate(others)]
        for (kind, own), copy in zip(far.items(), copies, strict=True):
            some = np.asarray(copy)[: len(own)]
            arrays[kind] = some.copy() if kind.bytes <= SMALL else [row.copy() for row in some]
    for kind, (parts, lanes) in near.items():
        arrays[kind] = np.concatenate([np.asarray(part) for part in parts])[lanes]
    others = [np.asarray(other) for other in others]
    if len(arrays) == 1:
        return list(*arrays.values()), others
    result: list[Any] = [None] * len(kinds)
    for kind, positions in by_kind.items():
        for n, array in zip(positions, arrays[kind], strict=True):
            result[n] = array
    return result, others


def _near(
    kind: Kind, rows: np.ndarray[Any, Any], pieces: Sequence[Piece]
) -> tuple[list[Array], np.ndarray[Any, Any]] | None:
    """The pieces of a kind, and where rows are in all of them behind each other; None if some are not there."""
    own = sorted([piece[1:] for piece in pieces if piece[0] is kind], key=lambda piece: piece[0])
    if not own:
        return None
    firsts, counts = np.array([piece[:2] for piece in own]).T
    which = np.searchsorted(firsts, rows, "right") - 1
    lanes = rows - firsts[which]
    if which.min() < 0 or np.any(lanes >= counts[which]):
        return None
    before = np.cumsum([0, *(len(array) for *_, array in own)])
    return [array for *_, array in own], before[which] + lanes


def _width(count: int) -> int:
    width = 16
    while width < count:
        width *= 4
    return width


def _fit(rows: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    return np.concatenate([rows, np.full(width - len(rows), rows[-1], rows.dtype)])


@partial(jax.jit, static_argnums=2)
def _rows_of(
    arenas: Sequence[Array], rows: Array, widths: Sequence[int], others: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """So many rows of each arena, and other arrays."""
    ends = itertools.accumulate(widths)
    own = [rows[end - width : end] for end, width in zip(ends, widths, strict=True)]
    found = [arena.at[some].get(mode="promise_in_bounds") for arena, some in zip(arenas, own, strict=True)]
    return [handed_over(array) for array in found], [handed_over(array) for array in others]
