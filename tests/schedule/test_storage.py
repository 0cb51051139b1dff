"""How much of a value is kept: nothing but the present step, the last few, or all of them."""

from typing import Any

import pytest

import tempo as tp
from tests.schedule.common import renumbered


def storage(prog: tp.Program, bounds: dict[Any, int]) -> dict[str, str]:
    """What ``str(storage)`` says, by node."""
    rows = renumbered(str(prog.compile(bounds, backend="numpy").storage)).splitlines()
    return dict(row.split(": ", 1) for row in rows)


def test_one_value_where_only_its_own_step_uses_it() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", domain=(t,))
        y[0] = x[0]
        y[t] = y[t - 1] + x
        prog.output("y", y)
    assert storage(prog, {T: 100}) == {
        "x": "float32[100], 400 bytes (t: 100 steps)",
        "add_1": "float32[], 4 bytes (t: one value)",
        "y": "float32[100], 400 bytes (t: 100 steps)",
        "total": "804 bytes",
        "peak": "800 bytes",
    }


def lagged(steps: int) -> tuple[tp.Program, Any]:
    """A state y of which z reads the value some steps back; only z is handed out."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (2, 3), domain=(t,))
        y = prog.recurrent("y", (2, 3), domain=(t,))
        y[t < steps] = x
        y[t] = y[t - steps] + x
        z = prog.recurrent("z", (2, 3), domain=(t,))
        z[0] = x[0]
        z[t] = z[t - 1] + y
        prog.output("z", z)
    return prog, T


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, "float32[2, 2, 3], 48 bytes (t: window of 2)"),
        (2, "float32[3, 2, 3], 72 bytes (t: window of 3)"),
        (5, "float32[6, 2, 3], 144 bytes (t: window of 6)"),
    ],
)
def test_a_window_where_later_steps_of_the_same_loop_use_it(steps: int, expected: str) -> None:
    prog, T = lagged(steps)
    assert storage(prog, {T: 50})["y"] == expected


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_values_come_back_out_of_a_window(backend: str) -> None:
    prog, T = lagged(2)
    x = [[[n] * 3] * 2 for n in (1, 2, 3, 4, 5)]
    # y = 1, 2, 4, 6, 9
    assert prog.compile({T: 5}, backend)(x=x).z[:, 1, 2].tolist() == [1, 3, 7, 13, 22]


def test_all_steps_where_something_outside_the_loop_uses_it() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", domain=(t,))
        y[0] = x[0]
        y[t] = y[t - 1] + x
        prog.output("total", tp.sum(y[0:T]))
    assert storage(prog, {T: 10}) == {
        "x": "float32[10], 40 bytes (t: 10 steps)",
        "add_1": "float32[], 4 bytes (t: one value)",
        "y": "float32[10], 40 bytes (t: 10 steps)",
        "sum_1": "float32[], 4 bytes (no dims)",
        "total": "88 bytes",
        "peak": "84 bytes",
    }


def test_all_steps_where_the_same_loop_reads_everything_so_far() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        y = prog.recurrent("y", domain=(t,))
        y[0] = x[0]
        y[t] = tp.sum(y[0:t]) + x
        z = prog.recurrent("z", domain=(t,))
        z[0] = y[0]
        z[t] = z[t - 1] + y
        prog.output("z", z)
    assert storage(prog, {T: 10})["y"].startswith("float32[10], 40 bytes")


def test_dims_are_kept_one_by_one() -> None:
    """Of a state over i and t the present iteration keeps all of t, the next one nothing."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", prog.input("w0", dtype=tp.float64), over=i)
        h = prog.recurrent("h", domain=(i, t), dtype=tp.float64)
        h[i, 0] = w
        h[i, t] = h[i, t - 1] / 2
        w.next = tp.sum(h[i, 0:T])
        prog.output("w", w)
    stores = storage(prog, {I: 1000, T: 20})
    assert stores["h"] == "float64[20], 160 bytes (i: one value, t: 20 steps)"
    assert stores["w"] == "float64[1001], 8,008 bytes (i: 1001 steps)"


def test_steps_that_nothing_needs_are_not_kept() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("y", tp.sum(tp.exp(x)[2:5]))
    assert storage(prog, {T: 100})["exp_1"] == "float32[3], 12 bytes (t: 3 steps)"
