"""Linear recurrences as scans: which are found, what they become, and that the numbers stay what they were."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.given import check_bounds
from tempo.graph.node import Graph, Node
from tempo.graph.validate import validate
from tempo.passes import apply_passes
from tempo.reference import evaluate
from tempo.runtime.executable import Executable

inf = np.inf


def parallel(prog: tp.Program, bounds: Any) -> Graph:
    """The program's graph with scans. (Recurrences over two dims would rather be computed along their diagonals.)"""
    graph = apply_passes(prog.graph, ("skew",), check_bounds(prog.graph, bounds))
    validate(graph)
    return graph


def scans(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.name == "linear_recurrence"]


def outputs(prog: tp.Program, bounds: Any, backends: tuple[str, ...] = ("numpy", "jax"), **inputs: Any) -> Any:
    """The oracle's outputs, with which its own of the graph with scans agree, and those of the backends."""
    arrays = {name: np.asarray(x, prog.graph.inputs[name].dtype) for name, x in inputs.items()}
    expected = evaluate(prog.graph, bounds, arrays)
    found = [evaluate(parallel(prog, bounds), bounds, arrays)]
    found += [Executable(prog.graph, bounds, backend, skip=("skew",), parallel=True)(**arrays) for backend in backends]
    for result in found:
        for name, array in expected.outputs.items():
            assert (result[name].shape, result[name].dtype) == (array.shape, array.dtype)
            np.testing.assert_allclose(result[name], array, rtol=1e-4, atol=1e-5)
    return expected


# -- what is found, and what it becomes ----------------------------------------------------------------------------


def test_a_moving_average():
    with tp.Program("ema") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + 0.25 * x[t]
        prog.output("y", y)
    (scan,) = scans(parallel(prog, {T: 4}))
    terms, factor = scan.edges
    assert scan.attributes == {"fixed": True, "reverse": False}
    assert [str(item) for item in terms.index] == ["0:t + 1"]
    assert factor.node.attributes["value"] == 0.5
    assert outputs(prog, {T: 4}, x=[8, 4, 0, 16]).y.tolist() == [8, 5, 2.5, 5.25]
    tree = Executable(prog.graph, {T: 4}, "numpy", parallel=True).schedule.trees
    assert not any(hasattr(part, "body") for part in tree)  # no loops


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_factors_that_overflow_together(later):
    """One after the other, they leave zero as it is: nothing has grown yet. What comes after a factor of zero has
    forgotten them."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        a, b = (prog.input(name, domain=t) for name in "ab")
        y = prog.recurrent("y", domain=t)
        y[0] = b[0]
        y[t] = a * y[t - 1] + b
        prog.output("y", y)
        prog.output("scan", tp.linear_scan(a[0:T], b[0:T]))
        prog.output("back", tp.linear_scan(a[0:T], b[0:T], reverse=True))
    assert len(scans(parallel(prog, {T: 600}))) == 1
    growing = np.full(300, 2.0)
    inputs = {"a": [*growing, later, *np.full(299, 0.5)], "b": [*0 * growing, *np.ones(300)]}
    expected = prog.evaluate({T: 600}, **inputs)
    found = Executable(prog.graph, {T: 600}, skip=("skew",), parallel=True)(**inputs)
    assert np.isfinite(expected.y).all()
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4)


def test_its_gradient():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + 0.25 * x[t]
        prog.output("g", tp.grad(tp.sum(y[0:T]), x))
    # 1 + 1/2 + 1/4 at the first step; a quarter of 1 + 1/2, and of 1.
    assert outputs(prog, {T: 3}, x=[8, 4, 0]).g.tolist() == [1.75, 0.375, 0.25]
    (scan,) = scans(parallel(prog, {T: 3}))  # y itself is not needed
    assert scan.attributes == {"fixed": True, "reverse": True}


def test_returns_from_one_step_after_the_last():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        reward = prog.input("reward", domain=t)
        value = prog.recurrent("value", domain=t)
        value[T] = 8
        value[t] = reward[t] + 0.5 * value[t + 1]
        prog.output("value", value)
    (scan,) = scans(parallel(prog, {T: 3}))
    assert [(d.name, str(d.bound), d.origin.name) for d in scan.domain] == [("value.t", "T + 1", "t")]
    assert outputs(prog, {T: 3}, reward=[1, 2, 4]).value.tolist() == [4, 6, 8, 8]


def test_steps_before_the_first():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        total = prog.recurrent("total", domain=t)
        total[-1] = 0
        total[t] = total[t - 1] + x
        prog.output("total", total)
    assert len(scans(parallel(prog, {T: 3}))) == 1
    assert outputs(prog, {T: 3}, x=[1, 2, 4]).total.tolist() == [0, 1, 3, 7]


def test_what_is_defined_for_the_next_step():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        decay = prog.input("decay", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = 1
        y[t + 1] = decay * (y[t] - x) / 2
        prog.output("y", y)
        prog.output("last", y[T])
    (scan,) = scans(parallel(prog, {T: 2}))
    assert not scan.attributes["fixed"]
    result = outputs(prog, {T: 2}, x=[3, 4], decay=[4, 8])
    assert result.y.tolist() == [1, -4, -32]
    assert result.last.tolist() == -32


def test_integers_wrap_around_as_they_do_in_a_loop():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=t, dtype=tp.int32)
        y[0] = 1
        y[t] = 3 - 7 * y[t - 1]
        prog.output("y", y)
    assert len(scans(parallel(prog, {T: 40}))) == 1
    found = outputs(prog, {T: 40}).y
    assert found[:4].tolist() == [1, -4, 31, -214]
    for backend in ("numpy", "jax"):
        assert Executable(prog.graph, {T: 40}, backend, parallel=True)().y.tolist() == found.tolist()


def test_only_the_last_step():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (2,), domain=t)
        y = prog.recurrent("y", (2,), domain=t)
        y[0] = x[0]
        y[t] = 2 * y[t - 1] + x
        prog.output("y", y[T - 1])
    assert len(scans(parallel(prog, {T: 5}))) == 1
    assert outputs(prog, {T: 5}, x=np.ones((5, 2))).y.tolist() == [31, 31]


def test_several_dims():
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", domain=(b, t))
        decay = prog.input("decay", domain=b)
        y = prog.recurrent("y", domain=(b, t))
        y[b, 0] = x[b, 0]
        y[b, t] = decay[b] * y[b, t - 1] + 1
        prog.output("y", y)
    assert len(scans(parallel(prog, {B: 2, T: 3}))) == 1
    result = outputs(prog, {B: 2, T: 3}, x=[[1, 0, 0], [5, 0, 0]], decay=[2, 3])
    assert result.y.tolist() == [[1, 3, 7], [5, 16, 49]]


def test_a_scan_of_a_scan():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        z = prog.recurrent("z", domain=t)
        y[0] = x[0]
        y[t] = y[t - 1] + x
        z[T - 1] = y[T - 1]
        z[t] = y - z[t + 1]
        prog.output("z", z)
    assert len(scans(parallel(prog, {T: 3}))) == 2
    assert outputs(prog, {T: 3}, x=[1, 1, 1]).z.tolist() == [2, -1, 3]


# -- resets ----------------------------------------------------------------------------------------------------------


def test_cases_in_between_cut_off_what_came_before():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[tp.equal(t % 3, 0)] = x
        y[t] = 0.5 * y[t - 1] + x
        prog.output("y", y)
    (scan,) = scans(parallel(prog, {T: 6}))
    assert len(scan.edges) == 3
    result = outputs(prog, {T: 6}, x=[inf, 1, 2, 3, 1, 2])
    assert result.y.tolist() == [inf, inf, inf, 3, 2.5, 3.25]


@pytest.mark.parametrize("turned", [False, True])
def test_choices_cut_off_what_came_before(turned):
    with tp.Program() as prog:
        t, T = prog.dim("t")
        reward = prog.input("reward", (2,), domain=t)
        done = prog.input("done", (2,), domain=t, dtype=tp.bool_)
        value = prog.recurrent("value", (2,), domain=t)
        value[T] = 0
        later = 0.5 * value[t + 1]
        value[t] = reward + (tp.where(~done, later, 0) if turned else tp.where(done, 0, later))
        prog.output("value", value)
    (scan,) = scans(parallel(prog, {T: 3}))
    assert len(scan.edges) == 3
    done = [[False, False], [True, False], [False, False]]
    result = outputs(prog, {T: 3}, reward=[[1, 1], [2, 2], [inf, 4]], done=done)
    assert result.value.tolist() == [[2, 3], [2, 4], [inf, 4], [0, 0]]


def test_a_factor_of_zero_is_no_reset():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        keep = prog.input("keep", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = keep * y[t - 1] + x
        prog.output("y", y)
    result = outputs(prog, {T: 3}, x=[inf, 1, 2], keep=[1, 0, 1])
    assert np.isnan(result.y[1:]).all()


def test_a_factor_before_the_first_step_does_not_matter():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        factor = prog.input("factor", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = 1
        y[t] = factor * y[t - 1]
        prog.output("y", y)
    assert outputs(prog, {T: 3}, factor=[inf, 2, 3]).y.tolist() == [1, 2, 6]


# -- inside of other loops -------------------------------------------------------------------------------------------


def test_advantages_that_the_next_iteration_needs():
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", 1.0, over=i)
        value = prog.recurrent("value", domain=(i, t))
        value[i, T] = 0
        value[i, t] = w + 0.5 * value[i, t + 1]
        w.next = w + value[i, 0]
        prog.output("w", w)
    (scan,) = scans(parallel(prog, {I: 3, T: 2}))
    assert [d.origin.name for d in scan.domain] == ["i", "t"]
    assert outputs(prog, {I: 3, T: 2}).w.tolist() == [1, 2.5, 6.25, 15.625]


def test_rows_that_need_the_row_before():
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        paths = prog.recurrent("paths", domain=(i, t), dtype=tp.int32)
        paths[0, t] = 1
        paths[i, 0] = 1
        paths[i, t] = paths[i, t - 1] + paths[i - 1, t]
        prog.output("paths", paths)
    assert len(scans(parallel(prog, {I: 3, T: 4}))) == 1
    assert outputs(prog, {I: 3, T: 4}).paths.tolist() == [[1, 1, 1, 1], [1, 2, 3, 4], [1, 3, 6, 10]]


# -- what is not one ---------------------------------------------------------------------------------------------------


def square(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    return y[t - 1] * y[t - 1] + x


def quotient(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    return x / y[t - 1]


def two_steps(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    return y[t - 1] + y[tp.max(t - 2, 0)]


def function(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    return tp.tanh(y[t - 1]) + x


def neighbours(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    return tp.flip(y[t - 1], 0) + x


def chosen_by_itself(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    return tp.where(y[t - 1] > 0, y[t - 1], x)


def gated_by_itself(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    return tp.sigmoid(y[t - 1]) * y[t - 1] + x


def by_another(prog: tp.Program, x: Any, y: Any, t: Any) -> Any:
    """A circle of two, as in an LSTM."""
    h = prog.recurrent("h", (2,), domain=t)
    h[0] = x[0]
    h[t] = tp.tanh(y[t])
    return tp.sigmoid(h[t - 1]) * y[t - 1] + x


@pytest.mark.parametrize(
    "write", [square, quotient, two_steps, function, neighbours, chosen_by_itself, gated_by_itself, by_another]
)
def test_no_linear_recurrence(write: Callable[..., Any]):
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (2,), domain=t)
        y = prog.recurrent("y", (2,), domain=t)
        y[0] = x[0]
        y[t] = write(prog, x, y, t)
        prog.output("y", y)
    assert scans(parallel(prog, {T: 5})) == []
    outputs(prog, {T: 5}, ("numpy",), x=np.linspace(1, 2, 10).reshape(5, 2))


def growing(factor: float, width: int = 1) -> tuple[tp.Program, Any]:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (width,), domain=t)
        y = prog.recurrent("y", (width,), domain=t)
        y[0] = x[0]
        y[t] = factor * y[t - 1] + x
        prog.output("y", y)
    return prog, T


def test_not_where_powers_of_the_factor_are_no_numbers():
    """In a loop 2 * 0 stays 0, but 2 ** 128 is infinite."""
    prog, T = growing(2.0)
    assert len(scans(parallel(prog, {T: 100}))) == 1
    assert scans(parallel(prog, {T: 200})) == []


def test_not_where_all_steps_take_too_much_memory():
    prog, T = growing(0.5, width=2**20)
    assert len(scans(parallel(prog, {T: 64}))) == 1
    assert scans(parallel(prog, {T: 65})) == []


def test_not_where_single_steps_are_handed_out():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + x
        prog.emit("y", y)
    assert scans(parallel(prog, {T: 5})) == []


def test_not_where_a_dim_stops_on_data():
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + x
        prog.stop(t, when=y > 4)
        prog.output("y", y)
    assert scans(parallel(prog, {T: 5})) == []


def test_a_cpu_runs_loops():
    prog, T = growing(0.5)
    assert "linear_recurrence" not in Executable(prog.graph, {T: 5}, "jax", device="cpu").explain()
    assert "linear_recurrence" not in Executable(prog.graph, {T: 5}, "numpy").explain()


# -- random recurrences ------------------------------------------------------------------------------------------------


def step(choose: random.Random, before: Any, leaves: list[Any], condition: Any, depth: int) -> Any:
    """Something linear in ``before``."""
    if depth == 0:
        return before
    inner = step(choose, before, leaves, condition, depth - 1)
    leaf = choose.choice(leaves)
    kinds = [
        lambda: inner + leaf,
        lambda: leaf - inner,
        lambda: leaf * inner,
        lambda: inner / 2,
        lambda: -inner,
        lambda: tp.where(condition, inner, leaf),
        lambda: tp.where(condition, leaf, inner),
        lambda: tp.where(condition, inner, 0.5 * before),
        lambda: inner + 0.25 * before,
        lambda: 0.5 * inner,
    ]
    return choose.choice(kinds)()


def random_program(choose: random.Random) -> tuple[tp.Program, Any]:
    """A linear recurrence with random base cases, in one direction or the other, and its gradient."""
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", (2,), domain=(b, t))
        scale = prog.input("scale", domain=b)
        flag = prog.input("flag", choose.choice([(), (2,)]), domain=(b, t), dtype=tp.bool_)
        y = prog.recurrent("y", (2,), domain=(b, t))
        leaves: list[Any] = [x, scale, 0.5, x[b, T - 1 - t], 0.5 * scale]
        form = choose.choice(["first", "before", "next", "last", "after", "several", "often"])
        ahead = form in ("last", "after")
        before = y if form == "next" else y[b, t + 1] if ahead else y[b, t - 1]
        value = step(choose, before, leaves, flag, choose.randint(1, 4))
        match form:
            case "first" | "next":
                y[b, 0] = x[b, 0]
            case "before":
                y[b, -1] = scale
            case "last":
                y[b, T - 1] = x[b, T - 1]
            case "after":
                y[b, T] = 0.5
            case "several":
                y[t < 2] = x
            case "often":
                y[tp.equal((t + b) % 2, 0) | (t < 1)] = x
        if form == "next":
            y[b, t + 1] = value
        else:
            y[b, t] = value
        prog.output("y", y)
        loss = tp.sum(tp.square(y)[0:B, 0:T])
        for name, wrt in (("x", x), ("scale", scale)):
            prog.output(f"d{name}", tp.grad(loss, wrt))
    return prog, (B, T)


@pytest.mark.parametrize("seed", range(40))
def test_random_recurrences(seed):
    choose = random.Random(seed)
    prog, (B, T) = random_program(choose)
    bounds = {B: choose.randint(1, 2), T: choose.randint(1, 6)}
    draw = np.random.default_rng(seed)
    shape = (bounds[B], bounds[T])
    flag = prog.graph.inputs["flag"]
    assert scans(parallel(prog, bounds))
    outputs(
        prog,
        bounds,
        # XLA takes a second per program.
        ("numpy", "jax") if seed % 8 == 0 else ("numpy",),
        x=draw.normal(size=(*shape, 2)),
        scale=draw.normal(size=bounds[B]),
        flag=draw.random((*shape, *flag.shape)) < 0.4,
    )
