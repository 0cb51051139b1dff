"""Cells computed one call at a time, as soon as they are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import tree_util

from tempo.batching.cell import Cell, kind_of
from tempo.batching.columns import stacked
from tempo.batching.draws import Draws, of_instance
from tempo.batching.trace import Trace
from tempo.batching.value import Computed

Array = Any


@dataclass
class Eager:
    """The compiled bodies of cells."""

    compiled: dict[Trace, Any] = field(default_factory=dict)

    def recorder(self, parameters: Mapping[Cell, Mapping[str, Array]], seed: int) -> _Calls:
        return _Calls(self, parameters, seed, of_instance(seed, 0))


@dataclass
class _Calls:
    """Takes the place of a recorder."""

    eager: Eager
    parameters: Mapping[Cell, Mapping[str, Array]]
    seed: int
    draws: Draws
    fast: dict[Cell, list[Any]] = field(default_factory=dict)

    def begin(self, instance: int) -> None:
        self.draws = of_instance(self.seed, instance)

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = tree_util.tree_flatten((args, kwargs))
        leaves = [leaf.array if isinstance(leaf, Computed) else leaf for leaf in leaves]
        kinds = [kind_of(leaf, cell.name) for leaf in leaves]
        trace = cell.trace(structure, tuple(kinds))
        if trace not in self.eager.compiled:
            self.eager.compiled[trace] = jax.jit(trace)
        arrays = [
            leaf if isinstance(leaf, jax.Array) else stacked([leaf], k)[0]
            for leaf, k in zip(leaves, kinds, strict=True)
        ]
        if trace.draws:
            arrays.append(np.array(self.draws.next(), np.uint32))
        own = self.parameters.get(cell, {})
        results = self.eager.compiled[trace]([own[name] for name in trace.parameters], arrays)
        return tree_util.tree_unflatten(trace.structure, [Computed(result, self) for result in results])
