"""Mini-batches in several threads, which find out about cells and sizes at the same time."""

from __future__ import annotations

import gc
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import greenlet
import numpy as np
import pytest

import tempo as tp
from tempo.batching import planning

fold = importlib.import_module("tempo.batching.fold")  # whose name in the package is the function's


def beside(function: Callable[[], Any]) -> Callable[[], None]:
    """Let another thread begin something, and have time for it; the first time that it is asked to."""
    started: list[threading.Thread] = []

    def begin() -> None:
        if not started:
            started.append(threading.Thread(target=function))
            started[0].start()
            time.sleep(0.1)

    return begin


def test_a_forest_that_is_planned_beside_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much room there is for leaves is the same in the whole of a plan."""
    tree = tp.forest(children=[[1, 2], [], [3, 4], [], []], value=[0.0, 1.0, 0.0, 2.0, 3.0])
    flat = tp.forest(children=[[]] * 100, arity=2, value=np.ones(100))
    total = tp.fold(leaf=lambda value: value, inner=lambda children: tp.sum(children, axis=0))
    layout, begin = fold.layout, beside(lambda: total(flat))

    def slow(*args: Any) -> Any:
        found = layout(*args)
        begin()
        return found

    monkeypatch.setattr(fold, "layout", slow)
    for _ in range(2):  # what is planned is kept
        np.testing.assert_array_equal(total(tree), [6, 1, 5, 2, 3])


def test_a_cell_whose_arguments_become_rows_beside_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that was data in all calls so far is a result in those of another thread."""
    add = tp.cell(lambda a, b: a + b, name="add")

    def model(pair: tuple[float, bool]) -> Any:
        x, other = pair
        return add(1.0, add(x, 1.0)) if other else add(add(x, 1.0), 1.0)

    batched = tp.batch(model)
    apply, begin = planning.Put.apply, beside(lambda: batched([(5.0, True)] * 3))

    def slow(*args: Any) -> Any:
        found = apply(*args)
        begin()
        return found

    batched([(0.0, False)])
    monkeypatch.setattr(planning.Put, "apply", slow)
    assert batched([(float(n), False) for n in range(50)]) == [n + 2 for n in range(50)]


def test_threads_leave_no_stacks_behind() -> None:
    half = tp.cell(lambda x: x / 2, name="half")
    batched = tp.batch(lambda x: 1 if half(x) > 1 else 0)

    def stacks() -> int:
        gc.collect()
        return sum(issubclass(type(one), greenlet.greenlet) for one in gc.get_objects())

    batched([1.0, 3.0])
    before = stacks()
    for _ in range(3):
        thread = threading.Thread(target=lambda: batched([float(x) for x in range(64)]))
        thread.start()
        thread.join()
    assert stacks() <= before + 3  # a thread has one of its own
