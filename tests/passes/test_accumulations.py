"""Gradients as reads: what a step is added into, seen from the point that is added into."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph, Node
from tempo.graph.validate import validate
from tempo.passes.accumulations import resolve_accumulations
from tempo.reference import evaluate

Tensor = tp.RecurrentTensor
Write = Callable[[tp.Program, Tensor, Any, Any], Tensor]


def gradient(write: Write) -> tuple[tp.Program, Any]:
    """A program whose output is the gradient of ``write(prog, x, t, T)`` with respect to x, and its bound."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("g", tp.grad(write(prog, x, t, T), x))
    return prog, T


def resolved(prog: tp.Program) -> Graph:
    """The graph without accumulations, of which the original has some."""
    assert any(node.scatters for node in prog.graph.nodes)
    graph = resolve_accumulations(prog.graph)
    validate(graph)
    assert not any(node.scatters for node in graph.nodes)
    return graph


def cases(graph: Graph) -> dict[str, list[tuple[str, str]]]:
    """What every tensor that is defined by cases reads, and under which condition, operations by their names."""
    return {
        node.label: [(f"{c.value.node.op.name}[{', '.join(map(str, c.value.index))}]", str(c.condition)) for c in found]
        for node, found in graph.cases.items()
    }


def nodes(graph: Graph, op: str) -> list[Node]:
    return [node for node in graph.nodes if node.op.name == op]


def shifted(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    y = prog.recurrent("y", domain=(t,))
    y[0] = 0
    y[t] = 3 * x[t - 1]
    return tp.sum(y[0:T])


def prefixes(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    return tp.sum(tp.sum(x[0 : t + 1])[0:T])


def ahead(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    return tp.sum((x * x[tp.min(t + 2, T - 1)])[0:T])


def backwards(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    return tp.sum((x * x[T - 1 - t])[0:T])


def halves(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    return tp.sum((t.value.astype("float32") * x[t // 2])[0:T])


def windows(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    return tp.sum((tp.sum(x[tp.max(t - 1, 0) : t + 1]) ** 2)[0:T])


def recurrence(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    y = prog.recurrent("y", domain=(t,))
    y[0] = x[0]
    y[t] = y[t - 1] * x
    return y[T - 1]


def attention(prog: tp.Program, x: Tensor, t: Any, T: Any) -> Tensor:
    """Every step reads all the states before it."""
    y = prog.recurrent("y", domain=(t,))
    y[0] = x[0]
    y[t] = tp.sum(y[0:t]) * x
    return y[T - 1]


EXPECTED: dict[Write, list[float]] = {
    shifted: [3, 3, 3, 0],
    prefixes: [4, 3, 2, 1],
    ahead: [3, 4, 1 + 4, 3 + 2 + 8],
    backwards: [8, 6, 4, 2],
    halves: [1, 5, 0, 0],
    # The sums are 1, 3, 5, 7, and x[t] is in those of t and t + 1.
    windows: [2 + 6, 6 + 10, 10 + 14, 14],
    recurrence: [24, 12, 8, 6],
    # y = 1, 2, 3 (1 + 2), 4 (1 + 2 + 9)
    attention: [48, (1 + 3) * 4, 3 * 4, 12],
}


@pytest.mark.parametrize("write", EXPECTED, ids=lambda write: write.__name__)
def test_the_resolved_gradient_is_the_same(write: Write) -> None:
    prog, T = gradient(write)
    inputs = {"x": [1, 2, 3, 4]}
    assert prog.evaluate({T: 4}, **inputs).g.tolist() == EXPECTED[write]
    assert evaluate(resolved(prog), {T: 4}, inputs).g.tolist() == EXPECTED[write]


@pytest.mark.parametrize("write", EXPECTED, ids=lambda write: write.__name__)
def test_programs_of_one_step(write: Write) -> None:
    prog, T = gradient(write)
    expected = prog.evaluate({T: 1}, x=[5]).g.tolist()
    assert evaluate(resolved(prog), {T: 1}, {"x": [5]}).g.tolist() == expected


def test_a_shift_is_the_value_of_one_step_later_where_there_is_one() -> None:
    prog, _ = gradient(shifted)
    assert [("multiply[t + 1]", "T >= t + 2"), ("full[]", "true")] in cases(resolved(prog)).values()


def test_prefixes_are_a_sum_over_the_steps() -> None:
    prog, _ = gradient(prefixes)
    (total,) = nodes(resolved(prog), "sum")
    # The steps' values differ in length: each is padded with zeros before they are summed.
    assert [str(edge).split("[")[1] for edge in total.edges] == ["0:T]"]
    assert [edge.node.op.name for edge in total.edges] == ["place"]


def test_a_state_that_later_states_read_sums_over_those_alone() -> None:
    prog, T = gradient(attention)
    graph = resolved(prog)
    # The adjoint of y[t] needs those of the steps after it, and must not read others.
    (item,) = [item for node in nodes(graph, "slice") for edge in node.edges for item in edge.index]
    (t,) = graph.dims
    assert item.evaluate({t: 2, T: 6}) == 3
    assert item.evaluate({t: 5, T: 6}) == 6
    # What is added up from there on: nothing at T.
    (total,) = {edge.node for node in nodes(graph, "slice") for edge in node.edges}
    nothing, more = graph.cases[total]
    assert (nothing.value.node.op.name, str(nothing.condition), more.value.node.op.name) == ("full", "T == t", "add")
    assert (more.value.node.edges[0].node, more.value.node.edges[0].index) == (total, (t + 1,))


def rnn() -> tuple[tp.Program, Any]:
    with tp.Program("rnn") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(t,))
        W = prog.param("W", (2, 2))
        h = prog.recurrent("h", 2, domain=(t,))
        h[0] = x[0]
        h[t] = tp.tanh(W @ h[t - 1] + x)
        prog.output("dW", tp.grad(tp.sum(h[T - 1]), W))
    return prog, T


def test_a_weights_gradient_is_one_matrix_product() -> None:
    prog, T = rnn()
    graph = resolved(prog)
    (product,) = [node for node in nodes(graph, "einsum") if not node.domain]
    assert product.attributes["subscripts"] == "aY,aX->YX"
    assert [f"[{', '.join(map(str, edge.index))}]" for edge in product.edges] == ["[1:T]", "[0:T - 1]"]
    assert product.edges[1].node.label == "h"
    # No outer product per step is left, and no sum over them.
    assert [node.attributes["subscripts"] for node in nodes(graph, "einsum")] == ["YX,X->Y", "YX,Y->X", "aY,aX->YX"]
    assert nodes(graph, "sum") == []

    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(4, 2)), "W": rng.normal(size=(2, 2))}
    expected = prog.evaluate({T: 4}, **inputs).dW
    np.testing.assert_allclose(evaluate(graph, {T: 4}, inputs).dW, expected, rtol=1e-5)


@pytest.mark.parametrize("backwards", [False, True])
def test_where_one_step_is_a_case_of_its_own_a_weights_gradient_is_one_product(backwards: bool) -> None:
    """``t >= 1 or t == 0`` was not seen to be all steps: there was an outer product for each of them, and in a network
    of 64 units these took 128 MiB and seven times as long as a scan by hand."""
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", shape=2, domain=(b, t))
        W = prog.input("W", shape=(2, 2))
        h = prog.recurrent("h", shape=2, domain=(b, t))
        c = x @ W
        if backwards:
            h[b, T - 1] = c[b, T - 1]
            h[b, t] = tp.tanh(h[b, t + 1] + c)
        else:
            h[b, 0] = c[b, 0]
            h[b, t] = tp.tanh(h[b, t - 1] + c)
        prog.output("dW", tp.grad(tp.sum(h)[0:B, 0:T].sum(), W))
    graph = resolved(prog)
    (product,) = [node for node in nodes(graph, "einsum") if len(node.shape) == 2]
    assert not product.domain
    inputs = {"x": np.random.default_rng(0).normal(size=(2, 4, 2)), "W": np.eye(2)}
    expected = prog.evaluate({B: 2, T: 4}, **inputs).dW
    np.testing.assert_allclose(evaluate(graph, {B: 2, T: 4}, inputs).dW, expected, rtol=1e-5)


def test_of_a_grid_with_borders_the_weights_gradient_is_one_product() -> None:
    """The corner, two edges and the rest are all points."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        j, J = prog.dim("j")
        x = prog.input("x", shape=2, domain=(i, j))
        W = prog.input("W", shape=(2, 2))
        c = x @ W
        h = prog.recurrent("h", shape=2, domain=(i, j))
        h[0, 0] = c[0, 0]
        h[0, j] = h[0, j - 1] + c[0, j]
        h[i, 0] = h[i - 1, 0] + c[i, 0]
        h[i, j] = tp.tanh(h[i - 1, j] + h[i, j - 1] + c)
        prog.output("dW", tp.grad(h[I - 1, J - 1].sum(), W))
    graph = resolved(prog)
    (product,) = [node for node in nodes(graph, "einsum") if len(node.shape) == 2]
    assert not product.domain
    inputs = {"x": np.random.default_rng(0).normal(size=(3, 4, 2)), "W": np.eye(2)}
    expected = prog.evaluate({I: 3, J: 4}, **inputs).dW
    np.testing.assert_allclose(evaluate(graph, {I: 3, J: 4}, inputs).dW, expected, rtol=1e-5)


@pytest.mark.parametrize("used", ["weights", "table"])
def test_what_is_used_at_some_steps_gets_one_product_of_these(used: str) -> None:
    """There was a product, or a table, for every step, zero for most. Factors are finite at these steps only."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=3, domain=t)
        W = prog.input("W", shape=(3, 3))
        h = prog.recurrent("h", shape=3, domain=t)
        h[-1] = 0.0
        before = h[t - 1]
        h[tp.equal(t % 3, 0)] = tp.tanh(W @ before + x) if used == "weights" else before * W.take(t.value % 2) + x
        h[t] = before
        prog.output("dW", tp.grad(tp.sum(h)[0:T].sum(), W))
    graph = resolved(prog)
    assert not any(
        node.domain for node in nodes(graph, "einsum" if used == "weights" else "scatter_add") if len(node.shape) == 2
    )
    x = np.random.default_rng(0).normal(size=(8, 3))
    x[1] = np.inf
    inputs = {"x": x, "W": np.eye(3)}
    expected = prog.evaluate({T: 8}, **inputs).dW
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(evaluate(graph, {T: 8}, inputs).dW, expected, rtol=1e-5)


def attention_in_training(window: int | None = None) -> tuple[tp.Program, Any, Any]:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=3, domain=t)
        w = prog.state("w", np.eye(3), over=i)
        h = x @ w
        seen = slice(0 if window is None else tp.max(0, t - window + 1), t + 1)
        weights = tp.softmax(tp.einsum("d,kd->k", h, h[i, seen]))
        y = tp.einsum("k,kd->d", weights, h[i, seen])
        w.next = w - 0.1 * tp.grad(tp.square(y - x).sum()[i, 0:T].mean(), w)
        prog.output("w", w[I])
    return prog, I, T


@pytest.mark.parametrize("window", [None, 1, 3, 7])
def test_the_gradient_of_a_range_is_one_contraction_also_in_training(window: int | None) -> None:
    """An iteration needs the one before, and all steps of it are there: what attention adds to keys and values is a
    product over all steps, not one for every step of what it adds to all others; also where ranges begin later and
    later."""
    prog, I, T = attention_in_training(window)
    graph = resolved(prog)
    assert nodes(graph, "take_along_axis") == []
    products = [node.attributes["subscripts"] for node in nodes(graph, "einsum")]
    assert {"ak,ad->kd", "ad,ak->kd"} <= set(products)
    assert not any(
        out == "kd" for subscripts in products for out in [subscripts.split("->")[1]] if "a" not in subscripts
    )
    inputs = {"x": np.random.default_rng(0).normal(size=(5, 3))}
    expected = prog.evaluate({I: 2, T: 5}, **inputs).w
    np.testing.assert_allclose(evaluate(graph, {I: 2, T: 5}, inputs).w, expected, rtol=1e-4, atol=1e-5)


Taken = Callable[[Tensor, Tensor, Any], Tensor]
TAKEN: dict[str, Taken] = {
    "a row for each": lambda table, chosen, t: table.take(chosen),
    "rows for each": lambda table, chosen, t: table.take(tp.stack([chosen, chosen // 2])),
    "by the step": lambda table, chosen, t: table.take(t.value) * chosen,
    "from the end": lambda table, chosen, t: table.take(-1 - chosen),
    "at the step before": lambda table, chosen, t: table.take(chosen)[..., tp.max(t - 1, 0)] * chosen,
    "of all steps so far": lambda table, chosen, t: table.take(chosen[..., 0 : t + 1]).sum(),
    "columns": lambda table, chosen, t: table.take(chosen, axis=1),
}


@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("stop", [False, True])
def test_the_gradient_of_a_table(taken: Taken, stop: bool) -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        chosen = prog.input("chosen", domain=(b, t), dtype="int32")
        table = prog.state("table", prog.input("first", (6, 6), dtype=tp.float64), over=i)
        loss = tp.mean(tp.sum(tp.sin(taken(table, chosen, t)))[i, 0:B, 0:T])
        table.next = table - tp.grad(loss, table)
        if stop:
            prog.stop(t, when=tp.any((chosen == 0)[0:B]))
        prog.output("table", table.final)
    given = {
        "first": np.random.default_rng(0).normal(size=(6, 6)),
        "chosen": [[1, 3, 1, 0, 5], [3, 2, 2, 2, 4]],
    }
    bounds = {I: 3, B: 2, T: 5}
    expected = prog.evaluate(bounds, **given).table
    np.testing.assert_allclose(evaluate(resolved(prog), bounds, given).table, expected, rtol=1e-9)
    np.testing.assert_allclose(prog.compile(bounds)(**given).table, expected, rtol=1e-9)


def test_an_embeddings_gradient_is_one_table() -> None:
    """And not one for every token of a batch; of positions, what all sequences add is summed first."""
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        token = prog.input("token", domain=(b, t), dtype="int32")
        table, position = prog.input("table", (9, 4)), prog.input("position", (9, 4))
        x = tp.square(table.take(token) + position.take(t.value))
        for name, g in tp.grad(tp.sum(tp.sum(x)[0:B, 0:T]), {"table": table, "position": position}).items():
            prog.output(name, g)
    tables = [node for node in nodes(resolved(prog), "scatter_add") if not node.domain]
    # Ranks of the table, the indices and what is added: over b and t, or over t.
    assert sorted([len(edge.shape) for edge in node.edges] for node in tables) == [[2, 1, 2], [2, 2, 3]]


@pytest.mark.parametrize(
    ("start", "stop", "read"),
    [
        (lambda t: tp.max(0, t - 3), lambda t, X: tp.min(X, t + 1), "max(x, 0):max(x, 0, min(T, x + 4))"),
        (lambda t: tp.min(t, 5), lambda t, X: tp.min(X, t + 3), "0:T"),
        (lambda t: 2 * t, lambda t, X: 2 * t + 4, "max(0, x//2 - 1):max(0, min(T, x//2 + 1), x//2 - 1)"),
        (lambda t: 2 * t, lambda t, X: 2 * t + 3, "max(0, x//2 - 1):max(0, min(T, x//2 + 1), x//2 - 1)"),
    ],
)
def test_of_windows_only_the_steps_that_hit_a_point_are_read(start: Any, stop: Any, read: str) -> None:
    """What is no product was summed over all steps, for every point: attention with sinks took thirty times as long as
    with a mask over all keys. A window that stays where it is hits its points from any number of steps."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x, X = prog.dim("x")
        signal = prog.input("signal", shape=2, domain=x)
        frame = tp.concatenate([tp.zeros((1, 2)), signal[start(t) : stop(t, X)]])
        prog.output("g", tp.grad(tp.sum(tp.sin(frame) * tp.cos(frame.sum()))[0:T].sum(), signal))
    graph = resolved(prog)
    assert {str(node.edges[0].index[0]) for node in nodes(graph, "take_along_axis")} == {read}
    inputs = {"signal": np.random.default_rng(0).normal(size=(12, 2))}
    expected = prog.evaluate({T: 4, X: 12}, **inputs).g
    np.testing.assert_allclose(evaluate(graph, {T: 4, X: 12}, inputs).g, expected, rtol=1e-5, atol=1e-6)
    for backend in ("numpy", "jax"):
        np.testing.assert_allclose(prog.compile({T: 4, X: 12}, backend)(**inputs).g, expected, rtol=1e-4, atol=1e-5)


def dilated(prog: tp.Program, h: Tensor, t: Any, j: Any, J: Any) -> Tensor:
    return (j.value + 1.0) * h[tp.max(t - 3 * j, 0)]


def by_cases(prog: tp.Program, h: Tensor, t: Any, j: Any, J: Any) -> Tensor:
    near = prog.recurrent("near", shape=3, domain=(t, j), dtype=tp.float64)
    near[(t >= 2 * j) & (t > 2)] = h[t - 2 * j]
    near[t, j] = 1.0
    return tp.sin(near)


def taken_of_all_so_far(prog: tp.Program, h: Tensor, t: Any, j: Any, J: Any) -> Tensor:
    places = tp.maximum(t.value - 3 * tp.arange(4), 0)
    return tp.sin(h[0 : t + 1].take(places)).sum(0) * j.value


def taken_along(prog: tp.Program, h: Tensor, t: Any, j: Any, J: Any) -> Tensor:
    places = tp.maximum(t.value - 3 * tp.arange(3), -1)
    return tp.sin(tp.take_along_axis(h[0 : t + 1], tp.expand_dims(places, 0), axis=0)).sum(0) * j.value


def strided(prog: tp.Program, h: Tensor, t: Any, j: Any, J: Any) -> Tensor:
    seen = h[0 : t + 1].space[::8]
    return tp.einsum("k,kd->d", tp.softmax(seen @ h), seen) * j.value


FEW = [dilated, by_cases, taken_of_all_so_far, taken_along, strided]


@pytest.mark.parametrize("write", FEW, ids=lambda write: write.__name__)
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_what_few_steps_add_takes_no_pairs_of_steps(write: Any, in_a_loop: bool) -> None:
    """Dilated attention with its gradient took 700 times as long as by hand: every step was given a part of what each
    of all steps adds, and in a loop it read the tables of all later steps for that."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        j, J = prog.dim("j")
        x = prog.input("x", shape=3, domain=t, dtype=tp.float64)
        h = prog.recurrent("h", shape=3, domain=t, dtype=tp.float64)
        if in_a_loop:
            out = prog.recurrent("out", shape=3, domain=t, dtype=tp.float64)
            out[-1] = 0.5
            h[t] = tp.sin(x + out[t - 1])
            out[t] = write(prog, h, t, j, J).astype("float64")[t, 0:J].sum(0)
        else:
            h[t] = tp.sin(x)
            out = write(prog, h, t, j, J).astype("float64")[t, 0:J].sum(0)
        prog.output("g", tp.grad(tp.sum(tp.square(out))[0:T].sum(), x))
    graph = resolved(prog)
    inputs: Any = {"x": np.random.default_rng(0).normal(size=(8, 3))}
    expected = prog.evaluate({T: 8, J: 3}, **inputs).g
    np.testing.assert_allclose(evaluate(graph, {T: 8, J: 3}, inputs).g, expected, rtol=1e-9)
    for backend in ("numpy", "jax"):
        run = prog.compile({T: 8, J: 3}, backend)
        np.testing.assert_allclose(run(**inputs).g, expected, rtol=1e-9)
    stores = prog.compile({T: 1024, J: 3}, backend="numpy").storage.stores.values()
    # No vectors for pairs of steps: what is largest is a number for each that are so many apart.
    assert max(store.bytes for store in stores) <= 8 * 1024 * 1024


@pytest.mark.parametrize(
    "where",
    [
        lambda t, s, T, S: (tp.max(t - s, 0), tp.min(s + t, S - 1)),
        lambda t, s, T, S: (tp.min(t + s, T - 1), tp.max(s - t, 0)),
        lambda t, s, T, S: (tp.max(t - s, 0), tp.min(t // 2, S - 1)),
        lambda t, s, T, S: (tp.max(t - 2 * s, 0), tp.max(tp.min(s - t, S - 1), 0)),
        lambda t, s, T, S: (t, tp.max(tp.min(s - 2 * t, S - 1), 0)),
    ],
)
def test_a_read_whose_places_share_dims_is_seen_from_the_point(where: Any) -> None:
    """Each place undid what the one before had been made, without end."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=(t, s), dtype=tp.float64)
        prog.output("g", tp.grad(x[where(t, s, T, S)], x))
    graph = resolved(prog)
    inputs: Any = {"x": np.random.default_rng(0).normal(size=(5, 4))}
    expected = prog.evaluate({T: 5, S: 4}, **inputs).g
    np.testing.assert_allclose(evaluate(graph, {T: 5, S: 4}, inputs).g, expected, rtol=1e-9)
    np.testing.assert_allclose(prog.compile({T: 5, S: 4})(**inputs).g, expected, rtol=1e-9)


def test_what_is_made_of_a_product_by_linear_operations_is_made_of_the_sum() -> None:
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", shape=6, domain=(b, t), dtype=tp.float64)
        scale = prog.input("scale", domain=b, dtype=tp.float64)
        seen = scale * tp.transpose(tp.reshape(x[b, 0 : t + 1] / 2, (t + 1, 2, 3)), (1, 0, 2)) - 0.5
        mixed = tp.einsum("hkd,hd->hk", seen, tp.reshape(tp.sin(x), (2, 3)))
        mixed = tp.einsum("hk,hkd->hd", tp.softmax(mixed), seen)
        prog.output("g", tp.grad(tp.sum(tp.square(mixed))[0:B, 0:T].sum(), x))
    graph = resolved(prog)
    assert [node.domain for node in nodes(graph, "einsum") if len(node.shape) == 3] == [graph.dims[:1]] * 2
    assert not any(node.attributes["axes"] == (0,) and len(node.shape) == 2 for node in nodes(graph, "sum"))
    inputs: Any = {"x": np.random.default_rng(0).normal(size=(2, 5, 6)), "scale": [1, 3]}
    expected = prog.evaluate({B: 2, T: 5}, **inputs).g
    np.testing.assert_allclose(evaluate(graph, {B: 2, T: 5}, inputs).g, expected, rtol=1e-9)
    np.testing.assert_allclose(prog.compile({B: 2, T: 5})(**inputs).g, expected, rtol=1e-9)


def test_the_first_half_of_the_steps() -> None:
    """A condition on twice a step is a span of steps, exactly."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        w = prog.input("w")
        y = prog.recurrent("y", domain=t)
        y[2 * t < T] = tp.sin(w * t.value)
        y[t] = 0.0
        prog.output("g", tp.grad(y[0:T].sum(), w))
    graph = resolved(prog)
    for steps in (1, 2, 5, 6):
        half = np.arange((steps + 1) // 2)
        np.testing.assert_allclose(evaluate(graph, {T: steps}, {"w": 0.3}).g, np.sum(half * np.cos(0.3 * half)), 1e-5)


def test_what_later_steps_need_is_not_read_with_them() -> None:
    """Within an iteration a step's adjoint needs those of the steps behind it, which a contraction over all steps would
    read with it."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", np.ones(2), over=i)
        x = prog.recurrent("x", shape=2, domain=(i, t))
        x[i, 0] = w
        x[i, t + 1] = tp.tanh(tp.einsum("k,kd->d", tp.softmax(x[i, 0 : t + 1].sum(1)), x[i, 0 : t + 1]))
        w.next = w - 0.1 * tp.grad(x[i, T].sum(), w)
        prog.output("w", w[I])
    expected = prog.evaluate({I: 2, T: 4}).w
    np.testing.assert_allclose(evaluate(resolved(prog), {I: 2, T: 4}, {}).w, expected, rtol=1e-5)
    for backend in ("numpy", "jax"):
        np.testing.assert_allclose(prog.compile({I: 2, T: 4}, backend)().w, expected, rtol=1e-4)


def test_a_graph_without_gradients_stays_as_it_is() -> None:
    with tp.Program() as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("y", tp.exp(x))
    assert resolve_accumulations(prog.graph).nodes == prog.graph.nodes


def test_what_nothing_depends_on_has_gradient_zero() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("g", tp.grad(tp.sum(tp.stop_gradient(x)[0:T]), x))
    graph = resolve_accumulations(prog.graph)
    validate(graph)
    assert evaluate(graph, {T: 3}, {"x": [1, 2, 3]}).g.tolist() == [0, 0, 0]
