"""A selection of what an operation computes is the operation on selections of its operands: each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph
from tempo.graph.structural import INPUT
from tempo.graph.validate import validate
from tempo.passes.selected import compute_selected
from tempo.passes.selections import VIEWS
from tempo.runtime.executable import Executable

N = 8
"""The size of the axis that is selected from; no other axis has it."""

Function = Callable[..., Any]

MOVED: dict[str, tuple[Function, int]] = {
    "elementwise": (lambda x, v, w: tp.tanh(x) * x + 1, 1),
    "broadcast by the other operand": (lambda x, v, w: tp.expand_dims(tp.sum(x, 1), 1) * v, 1),
    "of fewer axes": (lambda x, v, w: x + v, 1),
    "where": (lambda x, v, w: tp.where(x > 0, x, tp.expand_dims(tp.sum(x, 1), 1)), 1),
    "cast": (lambda x, v, w: (x * 3).astype("int32"), 1),
    "copy": (lambda x, v, w: tp.copy(x * 2), 1),
    "sum": (lambda x, v, w: tp.sum(x, 0), 0),
    "max, kept": (lambda x, v, w: tp.max(x * x, 0, keepdims=True), 1),
    "argmax": (lambda x, v, w: tp.argmax(x + v, axis=0), 0),
    "argmin behind": (lambda x, v, w: tp.argmin(tp.transpose(x), axis=1), 0),
    "any": (lambda x, v, w: tp.any(x > 0, 0), 0),
    "cumsum": (lambda x, v, w: tp.cumsum(x, 0), 1),
    "argsort": (lambda x, v, w: tp.argsort(x, 0), 1),
    "sort": (lambda x, v, w: tp.sort(x, 0), 1),
    "flip": (lambda x, v, w: tp.flip(x, 0), 1),
    "concatenate": (lambda x, v, w: tp.concatenate([x, tp.expand_dims(v, 0)], 0), 1),
    "pad": (lambda x, v, w: tp.pad(x, ((1, 2), (0, 0))), 1),
    "slice": (lambda x, v, w: (x + 1).space[1:3], 1),
    "transpose": (lambda x, v, w: tp.transpose(x * 2), 0),
    "reshape": (lambda x, v, w: (x + v).reshape((3, 1, N)), 2),
    "broadcast_to": (lambda x, v, w: tp.broadcast_to(tp.sum(x, 0), (2, 3, N)), 2),
    "a number everywhere": (lambda x, v, w: tp.full((3, N), 2.0) * tp.expand_dims(tp.sum(x, 1), 1), 1),
    "contraction": (lambda x, v, w: w @ x, 1),
    "batched contraction": (lambda x, v, w: tp.einsum("ij,ij->j", x, x + v), 0),
    "take": (lambda x, v, w: tp.take(x, np.array([2, 0]), 0), 1),
    "take of indices": (lambda x, v, w: tp.take(w, tp.argmax(x, 0), 1), 1),
    "take_along_axis": (lambda x, v, w: tp.take_along_axis(x, tp.argsort(x * v, 0), 0), 1),
}


def program(function: Function, axis: int, select: Function) -> tuple[tp.Program, Any]:
    """Elements that are selected from what another step computed."""
    with tp.Program("selecting") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (3, N), t)
        v = prog.input("v", N)
        w = prog.input("w", (4, 3), t)
        i = prog.input("i", (), t, dtype="int32")
        found = function(x, v, w)
        prog.output("y", select(found[tp.min(t + 1, T - 1)] if "t" in str(found.domain) else found, i, axis))
    return prog, T


def inputs(steps: int) -> dict[str, Any]:
    draw = np.random.default_rng(3)
    return {
        "x": draw.normal(size=(steps, 3, N)).astype(np.float32),
        "v": draw.normal(size=N).astype(np.float32),
        "w": draw.normal(size=(steps, 4, 3)).astype(np.float32),
        "i": np.array([0, N - 1, -1, 3, -N][:steps], np.int32),
    }


def is_moved(graph: Graph) -> bool:
    """Whether nothing that is computed has the whole axis. (Views are not computed.)"""
    return not any(N in node.shape for node in graph.nodes if node.op is not INPUT and node.op not in VIEWS)


def check(prog: tp.Program, T: Any, moved: bool = True) -> None:
    """The selection moves (or not), and the results are the oracle's with both backends."""
    graph = compute_selected(prog.graph, {T: 5})
    validate(graph)
    assert is_moved(graph) == moved, graph
    needed = {node.attributes["input"] for node in prog.graph.nodes if node.op is INPUT}
    arrays = {name: array for name, array in inputs(5).items() if name in needed}
    expected = prog.evaluate({T: 5}, **arrays)
    for backend in ("numpy", "jax"):
        found = Executable(prog.graph, {T: 5}, backend)(**arrays)
        for name, array in expected.outputs.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("shape", [(), (2,), (2, 1)])
def test_taken_elements_are_computed_alone(name: str, shape: tuple[int, ...]) -> None:
    def select(found: Any, i: Any, axis: int) -> Any:
        return tp.take(found, tp.broadcast_to(i, shape) if shape else i, axis)

    function, axis = MOVED[name]
    check(*program(function, axis, select))


@pytest.mark.parametrize("name", MOVED)
def test_sliced_elements_are_computed_alone(name: str) -> None:
    function, axis = MOVED[name]
    check(*program(function, axis, lambda found, i, axis: found.space[(slice(None),) * axis + (slice(1, 6, 2),)]))


@pytest.mark.parametrize("name", MOVED)
def test_elements_taken_along_an_axis_are_computed_alone(name: str) -> None:
    """At every place of the other axes another one."""

    def select(found: Any, i: Any, axis: int) -> Any:
        others = (*found.shape[:axis], 2, *found.shape[axis + 1 :])
        places = np.arange(np.prod(others)).reshape(others) * 3 % N
        return tp.take_along_axis(found, (tp.abs(i) + places) % N, axis)

    function, axis = MOVED[name]
    # Along these axes other elements are selected, and then mixed, or an operand lacks them.
    stays = name in ("cumsum", "argsort", "sort", "flip", "concatenate", "pad", "slice", "take", "take of indices")
    stays |= name in ("contraction", "take_along_axis", "broadcast_to")
    check(*program(function, axis, select), moved=not stays)


def test_an_operand_that_lacks_some_of_the_axes_along_which_others_are_taken() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (3, N), t)
        w = prog.input("w", (4, 3), t)
        i = prog.input("i", (), t, dtype="int32")
        table = tp.sum(tp.expand_dims(w, 2) * x, 1)  # (4, 3, N), summed to (4, N)
        wide = tp.expand_dims(w, 2) * x * 2 + tp.expand_dims(tp.expand_dims(tp.sum(w, 0), 1), 0)
        places = (tp.abs(i) + np.arange(12).reshape((4, 3, 1))) % N
        prog.output("y", tp.take_along_axis(wide[tp.max(t - 1, 0)], places, 2))
        prog.output("z", tp.take_along_axis(table[tp.max(t - 1, 0)], places.space[:, 0], 1))
    check(prog, T)


def test_a_slice_that_starts_where_a_step_says() -> None:
    check(*program(lambda x, v, w: w @ x, 1, lambda found, i, axis: found.space[:, 2:4]))
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, w = prog.input("x", (3, N), t), prog.input("w", (4, 3), t)
        prog.output("y", (w @ x)[tp.max(t - 1, 0)].space[:, t : t + 2])
    check(prog, T)


def test_ranges_of_steps_end_a_move_and_may_be_selected_from() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, v = prog.input("x", (3, N), t), prog.input("v", N)
        i = prog.input("i", (), t, dtype="int32")
        total = tp.sum(x[0 : t + 1] * v, (0, 1))  # (t + 1, 3, N), summed to (N,)
        prog.output("y", tp.take(total, i))
    check(prog, T)


STAY: dict[str, tuple[Function, int]] = {
    "along the axis itself": (lambda x, v, w: tp.cumsum(x, 1), 1),
    "flipped itself": (lambda x, v, w: tp.flip(x * 2, 1), 1),
    "sorted itself": (lambda x, v, w: tp.sort(x, 1), 1),
    "put together of parts": (lambda x, v, w: tp.concatenate([x.space[:, :3], x.space[:, 3:]], 1), 1),
    "a part of a larger axis": (lambda x, v, w: tp.concatenate([x, x], 1).space[:, 4 : 4 + N] * 2, 1),
    "with a margin": (lambda x, v, w: tp.pad(x.space[:, :5], ((0, 0), (1, 2))), 1),
    "an axis made of two": (lambda x, v, w: tp.transpose(x * 2).reshape((2, 4, 3)).reshape((N, 3)), 0),
}


@pytest.mark.parametrize("name", STAY)
def test_what_mixes_the_elements_of_the_axis_is_computed_whole(name: str) -> None:
    function, axis = STAY[name]
    check(*program(function, axis, lambda found, i, axis: tp.take(found, i, axis)), moved=False)
