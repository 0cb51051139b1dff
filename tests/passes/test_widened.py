"""Half precision on a CPU: what stays the same in a loop is converted to single precision before it."""

from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.node import Graph, Node
from tempo.graph.validate import validate
from tempo.ops.contraction import EINSUM
from tempo.passes import WIDEN_WHAT_STAYS, apply_passes
from tempo.passes.widened import widen_what_stays
from tempo.runtime.executable import Executable

SIZE, STEPS = 4, 6


def states(dtype: Any, emits: bool = False) -> tp.Program:
    """A recurrence with a weight that is always the same, and one that is another one at every step."""
    with tp.Program("states") as prog:
        t, T = prog.dim("t")
        weight = prog.input("weight", (SIZE, SIZE), dtype=dtype)
        other = prog.input("other", (SIZE, SIZE), t, dtype)
        h = prog.recurrent("h", SIZE, t, dtype)
        h[0] = prog.input("first", SIZE, dtype=dtype)
        h[t] = tp.tanh(tp.matmul(other, tp.tanh(tp.matmul(weight, h[t - 1]))))
        prog.emit("h", h) if emits else prog.output("h", h[0:T])
    return prog


def operands(graph: Graph) -> list[tuple[Node, ...]]:
    """What products are made of."""
    return [tuple(edge.node for edge in node.edges) for node in graph.nodes if node.op is EINSUM]


@pytest.mark.parametrize("dtype", [tp.bfloat16, tp.float16])
def test_weights_are_converted_before_the_loop(dtype: Any) -> None:
    prog = states(dtype)
    graph = widen_what_stays(apply_passes(prog.graph))
    validate(graph)
    varying, (constant, step) = sorted(operands(graph), key=lambda nodes: "weight" in str(nodes[0].edges))
    assert {node.dtype for node in varying} == {dtype}
    assert constant.op.name == step.op.name == "cast"
    assert constant.dtype == step.dtype == tp.float32
    assert (constant.domain, len(step.domain)) == ((), 1)


def test_others_stay_as_they_are() -> None:
    with tp.Program() as once:
        weight = once.input("weight", (SIZE, SIZE), dtype=tp.bfloat16)
        once.output("y", tp.matmul(weight, once.input("x", SIZE, dtype=tp.bfloat16)))
    for prog in (states(tp.float32), once):
        graph = apply_passes(prog.graph)
        assert operands(widen_what_stays(graph)) == operands(graph)


@pytest.mark.parametrize("dtype", [tp.bfloat16, tp.float16])
def test_values_are_the_same(dtype: Any, rng: np.random.Generator) -> None:
    prog = states(dtype)
    shapes = {"weight": (SIZE, SIZE), "other": (STEPS, SIZE, SIZE), "first": (SIZE,)}
    inputs = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    expected = np.asarray(prog.evaluate({"T": STEPS}, **inputs).h, np.float32)
    for skip in ((), (WIDEN_WHAT_STAYS,)):
        found = Executable(prog.graph, {"T": STEPS}, "jax", device="cpu", skip=skip)(**inputs).h
        assert found.dtype == dtype
        np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=0.05)


def test_chunks_of_a_loop_are_given_what_was_converted() -> None:
    """Each is a call: all of them would convert all weights."""
    run = states(tp.bfloat16, emits=True).compile({"T": STEPS}, device="cpu")
    before, _, inside = run.explain().split("-- loop tree --")[1].partition("for t")
    assert "= cast(weight)" in before
    assert "= cast(weight)" not in inside
