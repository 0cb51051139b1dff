"""Arenas: one array with all values of one kind, for a mini-batch, and then for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.batching.cell import Kind
from tempo.batching.planning import Rows
from tempo.batching.recording import Value
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

    def fetch(self, values: Sequence[Value], arenas: Arenas | None = None) -> list[np.ndarray[Any, Any]]:
        """Computed values as NumPy's arrays, fetched together."""
        by_kind: dict[Kind, list[int]] = {}
        for n, value in enumerate(values):
            by_kind.setdefault(value.kind, []).append(n)
        found: list[Any] = [None] * len(values)
        for kind, positions in by_kind.items():
            rows = self.rows.of[[values[n].number for n in positions]]
            fetched = rows_of((self.arenas if arenas is None else arenas)[kind], rows)
            for n, array in zip(positions, fetched, strict=True):
                found[n] = array
        return found


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


def rows_of(arena: Array, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if jax.default_backend() == "cpu" and arena.dtype.kind in "biuf":
        # Where it is. No other view of an arena may stay: kernels would copy it, rather than write into it.
        found: np.ndarray[Any, Any] = np.from_dlpack(arena.block_until_ready())[rows]
        return found
    width = 16
    while width < len(rows):
        width *= 4
    padding = np.full(width - len(rows), rows[-1], np.int32)
    return np.asarray(_rows_of(arena, np.concatenate([rows, padding])))[: len(rows)]


@jax.jit
def _rows_of(arena: Array, rows: Array) -> Array:
    return arena.at[rows].get(mode="promise_in_bounds")
