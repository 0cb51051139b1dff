"""Programs within ``jax.disable_jit()``: they are compiled all the same, and host functions see what the user set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp


@pytest.fixture(params=["context", "setting"])
def disabled(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "context":
        with jax.disable_jit():
            yield
    else:
        jax.config.update("jax_disable_jit", True)
        yield
        jax.config.update("jax_disable_jit", False)


def sums(dtype: str) -> tuple[tp.Program, Any]:
    with tp.Program("sums") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype=dtype)
        y = prog.recurrent("y", domain=t, dtype=dtype)
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + x[t]
        prog.output("y", y)
        prog.output("so_far", x[0 : t + 1].sum())
        prog.emit("e", y)
    return prog, T


@pytest.mark.usefixtures("disabled")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_programs(dtype: str) -> None:
    prog, T = sums(dtype)
    run = prog.compile({T: 3})
    for given in (np.array([8, 4, 2], dtype), jax.numpy.array([8, 4, 2], "float32")):
        result = run(x=given)
        assert result.y.tolist() == [8, 8, 6]
        assert result.so_far.tolist() == [8, 12, 14]
    assert [record.value.item() for record in run.stream(x=[8, 4, 2])] == [8, 8, 6]


def test_a_program_that_was_compiled_before() -> None:
    prog, T = sums("float32")
    run = prog.compile({T: 3})
    with jax.disable_jit():
        assert run(x=[8, 4, 2]).y.tolist() == [8, 8, 6]


@pytest.mark.usefixtures("disabled")
def test_host_functions_and_functions_in_jax() -> None:
    seen = []

    def double(value: Any) -> Any:
        seen.append(jax.config.jax_disable_jit)  # type: ignore[attr-defined]
        return 2 * value

    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=t)
        y[0] = 1.0
        y[t + 1] = tp.host(double, y, out=tp.spec(()), sequence=t)
        prog.output("y", tp.jax_function(jax.jit(lambda a: a + 1), y, out=tp.spec(())))
    assert prog.compile({T: 2})().y.tolist() == [2, 3]
    assert seen == [True, True]


@pytest.mark.usefixtures("disabled")
def test_recursive_models() -> None:
    @tp.cell
    def join(left: Any, right: Any) -> Any:
        return left + 2 * right

    def total(tree: Any) -> Any:
        return join(total(tree[0]), total(tree[1])) if isinstance(tree, tuple) else float(tree)

    batched = tp.batch(total)
    trees = [(1, (2, 3)), ((1, 2), 3)]
    assert [float(x) for x in batched(trees)] == [17, 11]
    assert [float(x) for x in batched.one_by_one(trees)] == [17, 11]
    assert float(batched.value_and_grad(trees)[0]) == 14
