"""What has the same values everywhere is one node: recurrences, too, which only circles tell apart or not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph
from tempo.graph.structural import HOST, RECURRENT
from tempo.graph.validate import validate
from tempo.passes import equal
from tempo.passes.accumulations import resolve_accumulations
from tempo.passes.equal import merge_equal
from tempo.passes.simplify import simplify
from tempo.reference import evaluate
from tempo.runtime.executable import Executable

NAME = "merge equal"


def merged(prog: tp.Program, bounds: dict[Any, int], **inputs: Any) -> Graph:
    """The graph after the pass. It computes what the program does, and so do both backends, with and without it."""
    graph = merge_equal(simplify(resolve_accumulations(prog.graph)))
    validate(graph)
    assert merge_equal(graph) is graph
    expected = prog.evaluate(bounds, **inputs)
    runs = [evaluate(graph, bounds, inputs)]
    runs += [Executable(prog.graph, bounds, b, skip=skip)(**inputs) for b in ("numpy", "jax") for skip in ((), (NAME,))]
    for run in runs:
        for name, array in expected.outputs.items():
            np.testing.assert_allclose(run[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    return graph


def recurrent(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if node.op is RECURRENT]


def two(first: float = 1.0, second: float = 1.0, factor: float = 0.5) -> tuple[tp.Program, Any]:
    """Two recurrences that are written down one by one."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        for name, start, slope in (("a", first, 0.5), ("b", second, factor)):
            h = prog.recurrent(name, (), t)
            h[-1] = start
            h[t] = tp.tanh(slope * h[t - 1] + x)
            prog.output(name, h)
    return prog, T


X = np.array([0.5, -1.0, 2.0])


def test_recurrences_that_are_written_twice_are_one() -> None:
    prog, T = two()
    graph = merged(prog, {T: 3}, x=X)
    assert recurrent(graph) == ["a"]
    assert Counter(node.op.name for node in graph.nodes)["tanh"] == 1
    assert graph.outputs["a"] == graph.outputs["b"]


@pytest.mark.parametrize("different", [{"second": 2.0}, {"factor": 0.25}])
def test_other_starts_and_other_steps_are_other_tensors(different: dict[str, float]) -> None:
    prog, T = two(**different)
    assert recurrent(merged(prog, {T: 3}, x=X)) == ["a", "b"]


def test_recurrences_that_need_each_other() -> None:
    """a and b swap places at every step, and are equal; c and d swap, too, but start differently."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        starts = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 2.0}
        tensors = {name: prog.recurrent(name, (), t) for name in starts}
        for name, start in starts.items():
            other = tensors[{"a": "b", "b": "a", "c": "d", "d": "c"}[name]]
            tensors[name][0] = start
            tensors[name][t] = tp.cos(other[t - 1])
            prog.output(name, tensors[name])
    assert recurrent(merged(prog, {T: 4})) == ["a", "c", "d"]


def test_a_difference_at_the_end_of_a_chain_comes_through() -> None:
    """One round tells apart what reads, through operations, what the round before told apart."""
    length = 5
    with tp.Program() as prog:
        t, T = prog.dim("t")
        for side, end in (("a", 1.0), ("b", 2.0)):
            before = tp.cos(t.value.astype("float32") * end)
            for n in range(length):
                h = prog.recurrent(f"{side}{n}", (), t)
                h[-1] = 0.0
                h[t] = tp.tanh(h[t - 1] + before)
                before = h
            prog.output(side, before)
    assert len(recurrent(merged(prog, {T: 3}))) == 2 * length


def test_chains_that_take_too_long_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    prog, _ = two()
    monkeypatch.setattr(equal, "MOST_ROUNDS", 0)
    graph = simplify(prog.graph)
    assert merge_equal(graph) is graph


def test_draws_differ_and_keys_are_keys() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        noise = tp.random.normal((), domain=t)
        for name, added in (("a", noise), ("b", noise), ("c", tp.random.normal((), domain=t))):
            h = prog.recurrent(name, (), t)
            h[-1] = 0.0
            h[t] = h[t - 1] + added
            prog.output(name, h)
    assert recurrent(merged(prog, {T: 4})) == ["a", "c"]


def test_host_calls_are_made_as_often_as_they_are_written() -> None:
    calls = []

    def count(x: Any) -> Any:
        calls.append(float(x))
        return np.float32(len(calls))

    with tp.Program() as prog:
        t, T = prog.dim("t")
        for name in ("a", "b"):
            h = prog.recurrent(name, (), t)
            h[-1] = 0.0
            h[t] = tp.host(count, h[t - 1], out=tp.spec((), "float32"), sequence=t)
            prog.output(name, h)
    graph = merge_equal(simplify(prog.graph))
    validate(graph)
    assert recurrent(graph) == ["a", "b"]
    assert sum(node.op is HOST for node in graph.nodes) == 2
    prog.compile({T: 3})()
    assert len(calls) == 6


def test_gradients_of_equal_recurrences() -> None:
    prog, T = two()
    with prog:
        a, b = (prog._tensors[name] for name in "ab")
        loss = tp.square(a[T - 1] - 1) + tp.square(b[T - 1] - 1)
        prog.output("dx", tp.grad(loss, prog._tensors["x"]))
    merged(prog, {T: 3}, x=X)
