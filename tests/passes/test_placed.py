"""What lacks a dim is computed at a step of it, where the circle that it is in has no other order."""

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.validate import validate
from tempo.passes import apply_passes, with_own_emits
from tempo.passes.placed import place_at_steps
from tempo.runtime.executable import Executable
from tests.schedule.common import outline


def check(prog: tp.Program, bounds: dict[str, int], **inputs: Any) -> Executable:
    """The program compiled for NumPy; both backends compute in loops what the oracle does."""
    numbers = {d.bound: bounds[d.name.upper()] for d in prog.graph.dims if d.origin is d}
    validate(place_at_steps(with_own_emits(apply_passes(prog.graph, numbers=numbers)), numbers))
    expected = prog.evaluate(bounds, **inputs)
    for backend in ("jax", "numpy"):
        run = prog.compile(bounds, backend)
        assert not run.schedule.tangled
        found = run(**inputs)
        for name, array in expected.outputs.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=f"{backend} {name}")
    return run


def lines(run: Executable) -> int:
    return len(str(run.loop_tree()).splitlines())


def first_case(stops: bool = False) -> tp.Program:
    """A first value that needs, at its own step, what needs the recurrence at others."""
    with tp.Program("first") as prog:
        s, _ = prog.dim("s")
        x = prog.recurrent("x", (), s)
        d = prog.recurrent("d", (), s)
        d[0] = 0.0
        f = tp.sin(d + 1)
        x[0] = tp.exp(f[0])
        x[s] = tp.exp(tp.where(d > 1, f, tp.cos(x[s - 1])))
        d[s + 1] = tp.where(x > 2.2, 0, d + 1)
        prog.output("x", x)
        if stops:
            prog.stop(s, when=x > 2.435)
    return prog


def first_case_by_hand(steps: int) -> np.ndarray[Any, Any]:
    x, d = np.zeros(steps), 0.0
    for s in range(steps):
        f = np.sin(d + 1)
        x[s] = np.exp(f if s == 0 or d > 1 else np.cos(x[s - 1]))
        d = 0.0 if x[s] > 2.2 else d + 1
    return x


def test_a_first_case_is_a_first_step_before_the_loop() -> None:
    run = check(first_case(), {"S": 6})
    assert outline(run.schedule.trees, "x", "d").splitlines() == [
        "at s = 0:",
        "    d = recurrent() (case 1)",
        "    x = recurrent() (case 1)",
        "for s in 1 .. 5:",
        "    d = recurrent() (case 2)",
        "    x = recurrent() (case 2)",
        "at s = 6:",
        "    d = recurrent() (case 2)",
    ]
    check(first_case(), {"S": 1})


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_first_case_of_many_steps(backend: str) -> None:
    run = first_case().compile({"S": 5000}, backend)
    assert lines(run) < 30
    np.testing.assert_allclose(run().x, first_case_by_hand(5000), rtol=1e-4)


def test_second_cases() -> None:
    with tp.Program("second") as prog:
        s, _ = prog.dim("s")
        h = prog.recurrent("h", (), s)
        a = tp.cos(h[tp.max(s - 1, 0)]) + s
        h[0] = 0.5
        h[1] = tp.sin(a[1])
        h[2] = tp.sin(a[2] - a[1])
        h[s] = tp.sin(h[s - 2] + a)
        prog.output("h", h)
    check(prog, {"S": 7})
    run = prog.compile({"S": 5000}, "numpy")
    assert lines(run) < 35
    assert outline(run.schedule.trees, "h").splitlines()[-2:] == [
        "for s in 3 .. 4999:",
        "    h = recurrent() (case 4)",
    ]
    expected = np.zeros(5000)
    for n in range(5000):
        a_ = [np.cos(expected[max(m - 1, 0)]) + m for m in range(n - 1, n + 1)]
        expected[n] = [0.5, np.sin(a_[1]), np.sin(a_[1] - a_[0])][n] if n < 3 else np.sin(expected[n - 2] + a_[1])
    np.testing.assert_allclose(run().h[:50], expected[:50], atol=1e-3)


def test_a_last_case_of_a_loop_that_goes_backwards() -> None:
    with tp.Program("back") as prog:
        s, S = prog.dim("s")
        x = prog.recurrent("x", (), s)
        d = prog.recurrent("d", (), s)
        d[S - 1] = 0.0
        f = tp.sin(d + 1)
        x[S - 1] = tp.exp(f[S - 1])
        x[s] = tp.exp(tp.where(d > 1, f, tp.cos(x[s + 1])))
        d[s] = tp.where(x[s + 1] > 2.2, 0, d[s + 1] + 1)
        prog.output("x", x)
    run = check(prog, {"S": 6})
    assert outline(run.schedule.trees, "x", "d").splitlines() == [
        "at s = 5:",
        "    d = recurrent() (case 1)",
        "    x = recurrent() (case 1)",
        "for s in 4 .. 0, backwards:",
        "    d = recurrent() (case 2)",
        "    x = recurrent() (case 2)",
    ]
    run = prog.compile({"S": 5000}, "numpy")
    assert lines(run) < 30
    np.testing.assert_allclose(run().x[::-1], first_case_by_hand(5000), rtol=1e-3)


def layers(gradient: bool) -> tp.Program:
    """A layer over (w, s) whose first step has another form."""
    with tp.Program("layers") as prog:
        w, W = prog.dim("w")
        s, S = prog.dim("s")
        v = prog.input("v", (3,), domain=w)
        K = prog.input("K", (3, 3))
        x = prog.recurrent("x", (3,), (w, s))
        d = prog.recurrent("d", (3,), (w, s))
        d[w, 0] = v
        new = tp.sin(d + 1)
        x[w, 0] = tp.tanh(K @ new[w, 0])
        x[w, s] = tp.tanh(K @ new + x[w, s - 1])
        d[w, s + 1] = tp.sin(d + x)
        prog.output("x", x)
        if gradient:
            prog.output("dK", tp.grad(tp.sum(x[0:W, S - 1]), K))
    return prog


V, K = np.random.default_rng(0).normal(size=(4, 3)), np.random.default_rng(1).normal(size=(3, 3)) / 2


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_two_dims_and_gradients(steps: int) -> None:
    check(layers(gradient=True), {"W": 4, "S": steps}, v=V, K=K)


def test_two_dims_and_many_steps() -> None:
    run = layers(gradient=False).compile({"W": 4, "S": 2000}, "numpy")
    assert lines(run) < 30
    d, x = V, np.zeros((4, 3))
    for s in range(2000):
        x = np.tanh(np.sin(d + 1) @ K.T + (x if s else 0))
        d = np.sin(d + x)
    np.testing.assert_allclose(run(v=V, K=K).x[:, -1], x, atol=1e-3)


def test_a_product_of_one_step_is_made_at_that_step_alone() -> None:
    """What else the first step of the gradient needs is as much as any other step does: the loop would go over it."""
    run = layers(gradient=True).compile({"W": 4, "S": 2000}, "numpy")
    assert lines(run) < 110
    forward, backwards = str(run.loop_tree()).split("for s in ")[1:]
    for loop in (forward, backwards):
        assert loop.split("at s = ")[0].count("= einsum(") == 1


@pytest.mark.parametrize("plan", [tp.Plan({"s": 4}), tp.Plan({"s": 4}, recompute=True), "smallest"], ids=str)
def test_blocks(plan: Any) -> None:
    prog = layers(gradient=True)
    expected = prog.evaluate({"W": 4, "S": 13}, v=V, K=K)
    found = prog.compile({"W": 4, "S": 13}, plan=plan)(v=V, K=K)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_tensor_that_lacks_the_dim_is_handed_out_where_it_is_defined() -> None:
    with tp.Program("starts") as prog:
        w, _ = prog.dim("w")
        s, _ = prog.dim("s")
        x = prog.recurrent("x", (), (w, s))
        d = prog.recurrent("d", (), (w, s))
        c = prog.recurrent("c", (), w)
        d[w, 0] = 0.3 * w.value
        f = tp.sin(d + 1)
        c[-1] = 1.0
        c[w] = tp.sin(c[w - 1] + f[w, 0])
        x[w, 0] = tp.exp(c)
        x[w, s] = tp.cos(x[w, s - 1]) * f
        d[w, s + 1] = tp.where(x > 1, 0, d + 1)
        prog.output("x", x)
        prog.output("c", c)
        prog.output("square", c * c)
    assert check(prog, {"W": 3, "S": 5})().c.shape == (4,)
    assert lines(prog.compile({"W": 3, "S": 2000}, "numpy")) < 50


def test_a_last_step_that_needs_all_before() -> None:
    with tp.Program("total") as prog:
        s, S = prog.dim("s")
        x = prog.recurrent("x", (), s)
        x[0] = 1.0
        x[S - 1] = tp.sin(x[0 : S - 1].sum())
        x[s] = tp.cos(x[s - 1]) * s
        prog.output("x", x)
    run = check(prog, {"S": 6})
    assert outline(run.schedule.trees, "sum_", "x").splitlines()[-2:] == [
        "at s = 5:",
        "    x = recurrent() (case 2)",
    ]
    assert lines(prog.compile({"S": 5000}, "numpy")) < 20


def test_a_dim_that_stops_on_data() -> None:
    run = check(first_case(stops=True), {"S": 5000})
    assert lines(run) < 30
    np.testing.assert_allclose(run().x, first_case_by_hand(7), rtol=1e-4)


def test_what_has_an_order_stays_as_it_is() -> None:
    with tp.Program("ordered") as prog:
        i, _ = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.recurrent("x", (), (i, t))
        x[0, 0] = 1.0
        x[i, 0] = tp.sin(x[i - 1, T - 1])
        x[i, t] = tp.cos(x[i, t - 1])
        prog.output("x", x)
    graph = with_own_emits(apply_passes(prog.graph))
    numbers = {d.bound: 4 for d in prog.graph.dims}
    assert place_at_steps(graph, numbers) is graph
