"""What stops and emits read of later steps is read where it is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph
from tempo.graph.validate import validate
from tempo.passes.ahead import read_next_values

Build = Callable[[tp.Program, Any, Any], Any]


def doubling(prog: tp.Program, s: Any) -> Any:
    x = prog.recurrent("x", (), s)
    x[0] = 1.0
    x[s + 1] = x * 2 + 1
    return x


def next_value(prog: tp.Program, s: Any, S: Any) -> Any:
    x = doubling(prog, s)
    return x, x[s + 1] > 100


def difference(prog: tp.Program, s: Any, S: Any) -> Any:
    x = doubling(prog, s)
    return x, x[s + 1] - x[s] > 50


def last_of_several(prog: tp.Program, s: Any, S: Any) -> Any:
    """A range that is one step."""
    x = doubling(prog, s)
    return x, tp.sum(x[s + 1 : s + 2]) > 100


def clipped(prog: tp.Program, s: Any, S: Any) -> Any:
    """The next step, but of the first five only."""
    x = doubling(prog, s)
    return x, x[tp.min(s + 1, 5)] > 50


def written_before(prog: tp.Program, s: Any, S: Any) -> Any:
    """What reads the next value comes before what computes it."""
    x = prog.recurrent("x", (), s)
    done = x[s + 1] - 1 > 100
    x[0] = 1.0
    x[s + 1] = x * 2 + 1
    return x, done


def running(prog: tp.Program, s: Any, S: Any) -> Any:
    """A recurrence that reads next values of another one."""
    x = doubling(prog, s)
    mean = prog.recurrent("mean", (), s)
    mean[0] = x[1]
    mean[s] = 0.5 * mean[s - 1] + x[s + 1]
    return x, mean > 100


def through_a_case(prog: tp.Program, s: Any, S: Any) -> Any:
    x = doubling(prog, s)
    y = prog.recurrent("y", (), s)
    y[s] = x[s + 1]
    return x, y > 100


def is_done(prog: tp.Program, s: Any, S: Any) -> Any:
    """The condition itself is a recurrence."""
    x = doubling(prog, s)
    done = prog.recurrent("done", (), s, dtype=tp.bool_)
    done[0] = False
    done[s + 1] = x > 100
    return x, done[s + 1]


def renamed(prog: tp.Program, s: Any, S: Any) -> Any:
    """A next value that is a next value."""
    x = doubling(prog, s)
    y = prog.recurrent("y", (), s)
    y[0] = 0.0
    y[s + 1] = x[s + 1]
    return x, y[s + 1] > 100


def over_a_dim(prog: tp.Program, s: Any, S: Any) -> Any:
    """A batch, of which all steps are read; and some, next to them."""
    w, W = prog.dim("w")
    x = prog.recurrent("x", (), (s, w))
    x[0, w] = tp.index_value(w).astype(tp.float32)
    x[s + 1, w] = 0.5 * (x[s, w] + x[s, tp.max(w - 1, 0)])
    change = tp.max(tp.abs(x[s + 1, 0:W] - x[s, 0:W]))
    return x, (change < 0.1) & (tp.sum(x[s + 1, 1:W]) >= 0)


def of_a_shifted_dim(prog: tp.Program, s: Any, S: Any) -> Any:
    """The steps of the batch move, too: the first of them comes from another case."""
    w, W = prog.dim("w")
    x = prog.recurrent("x", (), (s, w))
    x[0, w] = 0.0
    x[s + 1, 0] = tp.index_value(s).astype(tp.float32)
    x[s + 1, w + 1] = 1 + x[s, w] + 0.5 * x[s, tp.min(w + 1, W - 1)]
    return x, tp.sum(x[s + 1, 1 : W + 1]) > 20


def state(prog: tp.Program, s: Any, S: Any) -> Any:
    x = prog.state("x", 1.0, over=s)
    x.next = 2 * x + 1
    return x, x[s + 1] > 100


def state_over_two(prog: tp.Program, s: Any, S: Any) -> Any:
    """The value after the last step of the inner dim."""
    w, _ = prog.dim("w")
    x = prog.state("x", 1.0, over=(s, w))
    x.next = 2 * x + 1
    return x, x[s + 1, 0] > 1000


BUILDS: tuple[Build, ...] = (
    next_value,
    difference,
    last_of_several,
    clipped,
    written_before,
    running,
    through_a_case,
    is_done,
    renamed,
    over_a_dim,
    of_a_shifted_dim,
    state,
    state_over_two,
)


def program(build: Build) -> tuple[tp.Program, dict[Any, int]]:
    with tp.Program(build.__name__) as prog:
        s, S = prog.dim("s")
        x, when = build(prog, s, S)
        prog.stop(s, when=when)
        prog.output("x", x)
        prog.output("steps", S)
    return prog, {d.bound: 30 if d is s else 4 for d in prog.graph.dims}


def test_the_value_of_the_case_is_read() -> None:
    graph = read_next_values(program(next_value)[0].graph)
    (less,) = (node for node in graph.nodes if node.op.name == "less")
    assert [edge.node.op.name for edge in less.edges] == ["constant", "add"]
    assert less.edges[1].is_here


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("build", BUILDS)
def test_the_loop_ends_early(build: Build, backend: str) -> None:
    prog, bounds = program(build)
    changed = read_next_values(prog.graph)
    assert changed is not prog.graph
    validate(changed)
    expected = prog.evaluate(bounds)
    assert 2 < expected.steps < 30
    run = prog.compile(bounds, backend)
    loops = [line for line in run.loop_tree().splitlines() if line.startswith("for s")]
    assert loops and all(", until " in line for line in loops)
    found = run()
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def unchanged(build: Build) -> None:
    prog, bounds = program(build)
    assert read_next_values(prog.graph) is prog.graph
    found, expected = prog.compile(bounds)(), prog.evaluate(bounds)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-6)


def test_present_and_earlier_values_are_steps_of_the_tensor() -> None:
    unchanged(lambda prog, s, S: (x := doubling(prog, s), x - x[tp.max(s - 1, 0)] > 50))


def test_what_is_not_known_yet_stays() -> None:
    unchanged(lambda prog, s, S: (x := doubling(prog, s), x[tp.min(s + 2, 30)] > 100))


def test_what_more_than_one_case_may_define_stays() -> None:
    def build(prog: tp.Program, s: Any, S: Any) -> Any:
        x = prog.recurrent("x", (), s)
        x[0] = 1.0
        x[3] = 7.0
        x[s + 1] = x * 2 + 1
        return x, x[s + 1] > 100

    unchanged(build)


def test_axes_in_another_order_stay() -> None:
    """``x[v, w]`` over ranges of both: the transpose."""

    def build(prog: tp.Program, s: Any, S: Any) -> Any:
        (v, V), (w, W) = prog.dim("v"), prog.dim("w")
        y = prog.recurrent("y", (), (s, v, w))
        y[0, v, w] = tp.index_value(v).astype(tp.float32)
        y[s + 1, v, w] = 2 * y
        x = prog.recurrent("x", (), (s, v, w))
        x[0, v, w] = 0.0
        x[s + 1, v, w] = y[s, w, v]
        return x, tp.sum(x[s + 1, 0:V, 0:W].space[0, 1:2]) > 100

    unchanged(build)


def test_what_neither_stops_nor_is_emitted_stays() -> None:
    with tp.Program() as prog:
        s, _ = prog.dim("s")
        prog.output("y", doubling(prog, s)[s + 1] * 2)
    assert read_next_values(prog.graph) is prog.graph


def test_only_the_dims_of_a_stop_count() -> None:
    """Next steps of another dim are read as they are."""

    def build(prog: tp.Program, s: Any, S: Any) -> Any:
        w, W = prog.dim("w")
        x = prog.recurrent("x", (), (s, w))
        x[0, w] = 1.0
        x[s, w + 1] = x[s, w] + 1
        x[s + 1, 0] = x[s, W]
        return x, tp.sum((x[s, w + 1] - x[s, w])[s, 0:W]) > 100

    prog, _ = program(build)
    assert read_next_values(prog.graph) is prog.graph


def test_circles_are_not_made_of_operations_alone() -> None:
    """A case that reads all earlier steps of what reads its value."""
    with tp.Program() as prog:
        s, S = prog.dim("s")
        x = prog.recurrent("x", (), s)
        double = 2 * x[s + 1]
        x[0] = 1.0
        x[s + 1] = 1 + x + tp.sum(double[0:s])
        prog.stop(s, when=double > 100)
        prog.output("x", x)
    assert read_next_values(prog.graph) is prog.graph
    expected = prog.evaluate({S: 20})
    for backend in ("numpy", "jax"):
        np.testing.assert_allclose(prog.compile({S: 20}, backend)().x, expected.x, rtol=1e-6)


def read_in(graph: Graph) -> list[str]:
    return [str(edge) for node in graph.nodes for edge in node.edges if not edge.is_here]


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_next_values_are_emitted_by_the_step_that_computes_them(backend: str) -> None:
    with tp.Program() as prog:
        s, S = prog.dim("s")
        x = doubling(prog, s)
        prog.emit("next", x[s + 1])
        prog.emit("change", x[s + 1] - x)
    assert read_in(read_next_values(prog.graph)) == []
    run = prog.compile({S: 6}, backend)
    expected = prog.evaluate({S: 6})
    found = run()
    for name, records in expected.emits.items():
        assert [(r.point, r.value) for r in found.emits[name]] == [(r.point, r.value) for r in records]
    assert run.loop_tree().count("\n    copy_") == 2
