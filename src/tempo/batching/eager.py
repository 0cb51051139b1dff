"""Cells computed one call at a time, as soon as they are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import tree_util

from tempo.batching.cell import Cell, check_is_known, kind_of, leaves_of
from tempo.batching.columns import stacked
from tempo.batching.draws import Draws, of_instance
from tempo.batching.trace import Trace, index_error
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
    instance: int = 0
    fast: dict[Cell, list[Any]] = field(default_factory=dict)

    def begin(self, instance: int) -> None:
        self.instance = instance
        self.draws = of_instance(self.seed, instance)

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_is_known(cell, self.parameters)
        leaves, structure = leaves_of(cell, (args, kwargs))
        leaves = [leaf.array if isinstance(leaf, Computed) else leaf for leaf in leaves]
        kinds = [kind_of(leaf, cell.name) for leaf in leaves]
        trace = cell.trace(structure, tuple(kinds))
        if trace not in self.eager.compiled:
            self.eager.compiled[trace] = jax.jit(trace.evaluated)
        arrays = [
            leaf if isinstance(leaf, jax.Array) else stacked([leaf], k, cell.name)[0]
            for leaf, k in zip(leaves, kinds, strict=True)
        ]
        if trace.draws:
            arrays.append(np.array(self.draws.next(), np.uint32))
        own = self.parameters.get(cell, {})
        results, bad = self.eager.compiled[trace]([own[name] for name in trace.parameters], arrays)
        if bad is not None and bad:
            raise index_error(cell.name, self.instance)
        return tree_util.tree_unflatten(trace.structure, [Computed(result, self) for result in results])
