"""Arenas are written in place: a copy for every launch would take time that grows with the mini-batch, and with its
depth by the square."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import tempo as tp
from tempo.batching.kernels import Kernels

ONES = np.ones((2, 3), np.float32)


def copies(text: str, rows: int) -> list[str]:
    """The copies of arrays with so many rows inside of a loop, in a compiled program."""
    found, inside = [], False
    for line in text.splitlines():
        if line[:1] not in (" ", "}", ""):
            inside = not line.startswith("ENTRY")
        if inside and re.search(rf"= \w+\[{rows}\b.* copy\(", line):
            found.append(line.strip())
    return found


@pytest.mark.parametrize(
    ("step", "start"),
    (
        (lambda x: x * 0.5 + 1, (1.0,)),
        (lambda x: tp.tanh(x), (ONES,)),
        (lambda x: x * 0.5, (ONES[0].astype(ml_dtypes.bfloat16),)),
        (lambda a, b: (b * 2, a), (ONES, 2 * ONES)),
        (lambda a, b: (tp.sum(b) * a, b * a), (1.0, ONES)),
    ),
)
def test_what_a_cell_reads_where_it_writes(step: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[tuple[str, int]] = []
    forward: Callable[..., Any] = Kernels._forward

    def seen(self: Any, run: Any, own: Any, arenas: Any) -> Any:
        call = forward(self, run, own, arenas)
        text = call.kernel.lower(*call.arguments).compile().as_text()
        programs.extend((text, len(arenas[kind])) for kind in run.lanes.group.kinds[0] if run.launches > 3)
        return call

    monkeypatch.setattr(Kernels, "_forward", seen)
    cell = tp.cell(step, name="step")

    def model(steps: int) -> Any:
        state = start
        for _ in range(steps):
            found = cell(*state)
            state = found if isinstance(found, tuple) else (found,)
        return state

    tp.batch(model)([20, 10, 15])
    assert programs
    assert [copies(*one) for one in programs] == [[]] * len(programs)


@pytest.mark.parametrize(
    ("leaf", "inner", "row"),
    (
        (lambda v: v, lambda children: tp.sum(children, axis=0), ONES[0, 0]),
        (lambda v: v, lambda children: tp.tanh(tp.sum(children, axis=0)), ONES),
        (lambda v: (v, 2 * v), lambda children: tuple(tp.sum(x, axis=0) for x in children[::-1]), ONES[0]),
    ),
)
@pytest.mark.parametrize("arity", (1, 2))
def test_what_a_node_reads_where_it_is_written(leaf: Any, inner: Any, row: Any, arity: int) -> None:
    fold = tp.fold(leaf, inner, loss=lambda state: sum(map(tp.sum, state if isinstance(state, tuple) else (state,))))
    children = [[c for c in range(arity * n + 1, arity * (n + 1) + 1) if c < 40] for n in range(40)]
    forest = tp.forest(children=children, v=np.broadcast_to(row, (40, *row.shape)))
    for function, which in ((fold._forward, "all"), (fold._backward, "loss")):
        parts, shape, values, inputs = fold._prepared(forest, None, which, np.arange(40))
        kinds = parts.leaf.trace.results * (1 if which == "all" else 2)
        arenas = [jax.ShapeDtypeStruct((shape.rows, *kind.shape), kind.dtype) for kind in kinds]
        text = function(parts).lower(shape, values, inputs, arenas).compile().as_text()
        assert not copies(text, shape.rows)


SWAPPED: list[tuple[Any, bool]] = [
    (lambda a, b: (b * 2, a), True),
    (lambda a, b: (tp.tanh(b), tp.exp(a)), True),
    (lambda a, b: (a * 0.5 - b, a + b * 0.5), False),
    (lambda a, b: (tp.sum(b) * a, b * a), False),
]
"""Cells with two states, and whether each result is made of the other state alone: then it would be written where a row
is read that the other result has been written to."""


@pytest.mark.parametrize(("step", "swaps"), SWAPPED)
def test_what_a_gpu_reads_late_is_read_before(step: Any, swaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it copies no arenas then was seen in programs that were compiled for one. Nothing else is held: that would
    be a kernel more."""
    texts: list[str] = []
    forward: Callable[..., Any] = Kernels._forward

    def seen(self: Any, run: Any, own: Any, arenas: Any) -> Any:
        call = forward(self, run, own, arenas)
        if run.lanes.group.trace.name == "step":
            texts.append(call.kernel.lower(*call.arguments).as_text())
        return call

    monkeypatch.setattr(Kernels, "_forward", seen)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cell = tp.cell(step, name="step")

    def model(steps: int) -> Any:
        state = ONES, 2 * ONES
        for _ in range(steps):
            state = cell(*state)
        return state

    tp.batch(model)([20, 10])
    fold = tp.fold(lambda v: (v, 2 * v), lambda children: step(*(tp.sum(x, axis=0) for x in children)))
    forest = tp.forest(children=[[1], [2], [3], []], v=np.ones((4, 3), np.float32))
    parts, shape, values, inputs = fold._prepared(forest, None, "all", np.arange(4))
    arenas = [jax.ShapeDtypeStruct((shape.rows, *kind.shape), kind.dtype) for kind in parts.leaf.trace.results]
    texts.append(fold._forward(parts).lower(shape, values, inputs, arenas).as_text())
    assert len(texts) > 1
    assert ["stablehlo.optimization_barrier" in text for text in texts] == [swaps] * len(texts)
