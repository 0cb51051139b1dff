"""What is read at the last step of a dim that stops on data is computed there alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph
from tempo.graph.validate import validate
from tempo.ops.elementwise import TANH
from tempo.passes.last_steps import compute_last_steps

BOUND = 30


def program(read: str) -> tuple[tp.Program, Any]:
    """A recurrence that stops, and something of it that is handed out."""
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.recurrent("x", 2, t)
        x[0] = 1.0
        x[t] = 1.1 * x[t - 1] + 0.1
        prog.stop(t, when=tp.sum(x) > 9)
        y = tp.tanh(x * 0.1 + x[tp.max(t - 2, 0)]) * tp.random.normal(2, domain=(b, t)) + tp.index_value(t)
        if read == "last":
            prog.output("y", y[b, T - 1] + y[b, T - 1].sum())
        elif read == "last two":
            prog.output("y", y[b, T - 1] - y[b, T - 2])
        elif read == "all":
            prog.output("y", y[b, T - 1] - y)
        elif read == "in a recurrence":
            z = prog.recurrent("z", 2, (b, t))
            z[b, 0] = y[b, T - 1]
            z[b, t] = 0.5 * z[b, t - 1] + y[b, T - 1]
            prog.output("y", z[b, T - 1])
        elif read == "growing":
            prog.output("y", tp.sum(tp.tanh(x[0 : t + 1]), 0)[T - 1] + tp.full((B,), 0.0).sum())
        prog.emit("norm", tp.sum(x))
    return prog, {B: 2, T: BOUND}


def dims_of_tanh(graph: Graph) -> set[str]:
    (node,) = (node for node in graph.nodes if node.op is TANH)
    return {d.name for d in node.domain}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize(
    "read, over",
    [
        ("last", set()),
        ("last two", {"t"}),
        ("all", {"t"}),
        ("in a recurrence", set()),
        ("growing", set()),
    ],
)
def test_it_is_computed_at_one_step_if_it_is_read_at_one(read: str, over: set[str], backend: str) -> None:
    prog, bounds = program(read)
    changed = compute_last_steps(prog.graph)
    validate(changed)
    assert dims_of_tanh(changed) == over
    found, expected = prog.compile(bounds, backend)(seed=3), prog.evaluate(bounds, seed=3)
    np.testing.assert_allclose(found.y, expected.y, rtol=1e-5, atol=1e-6)


def test_nothing_changes_where_no_dim_stops() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        prog.output("y", tp.tanh(prog.input("x", domain=t))[T - 1])
    assert compute_last_steps(prog.graph) is prog.graph


def test_what_is_needed_at_the_end_alone_is_not_kept_for_all_steps() -> None:
    """A loss of the last parameters, of which there may be many, over much data."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.state("w", tp.zeros(100), over=i)
        w.next = w + 0.1 * (1 - w)
        prog.stop(i, when=tp.sum(w) > 50)
        data = prog.input("data", (500, 100))
        prog.output("loss", tp.mean((data @ w) ** 2)[I - 1])
    run = prog.compile({I: 1000})
    data = np.linspace(-1, 1, 50_000).reshape(500, 100)
    np.testing.assert_allclose(run(data=data).loss, prog.evaluate({I: 1000}, data=data).loss, rtol=1e-4)
    # The data and little else; not one matrix of all parameters, nor their products with all data.
    assert run.storage.peak < 1.1 * data.size * 4
