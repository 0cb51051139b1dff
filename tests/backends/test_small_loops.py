"""Loops over small arrays are one kernel on a CPU: which ones, and that they compute the same."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir

from tempo.backends.jax.compiling import compile_prepared
from tempo.backends.jax.small_loops import KERNEL, MOST_NUMBERS, as_function, make_kernels, unmake_kernels

x = np.linspace(-1, 1, 6, dtype=np.float32)


def lowered(function: Any, *args: Any) -> Any:
    """A function lowered, with notes at its small loops."""
    found = jax.jit(function).lower(*args)
    make_kernels(found.compiler_ir("stablehlo"))
    return found


def repeated(step: Any, start: Any, count: int = 5) -> Any:
    return as_function(lambda start: lax.fori_loop(0, count, lambda k, c: step(c), start))(start)


def kernels(program: Any) -> int:
    return int(program.as_text().count(f"call @{KERNEL}_"))


@pytest.mark.parametrize(
    "step",
    [
        lambda c: jnp.sin(c) + c[::-1],
        lambda c: jnp.ones((6, 6)) @ c / 6,
        lambda c: jax.nn.softmax(c) - c.max(),
        lambda c: repeated(jnp.cos, c, 3),
        lambda c: lax.dynamic_update_slice(c, c[:2] + 1, (jnp.int32(c[0]),)),
    ],
    ids=["elements", "matrix", "sums", "another loop", "indices"],
)
def test_small_loops_are_kernels(step: Any) -> None:
    program = lowered(lambda x: repeated(step, x * 2), x)
    expected = x * 2
    for _ in range(5):
        expected = step(expected)
    assert kernels(program) == 1
    np.testing.assert_allclose(program.compile()(x), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("step", "size"),
    [(jnp.sin, MOST_NUMBERS + 1), (jnp.sort, 6), (lambda c: (jnp.outer(c, c) @ jnp.outer(c, c))[0], 6)],
    ids=["large", "sorted", "matrices"],
)
def test_others_are_not(step: Any, size: int) -> None:
    assert kernels(lowered(lambda x: repeated(step, x), np.zeros(size, np.float32))) == 0


def test_a_small_loop_in_a_large_one_is_a_kernel() -> None:
    def step(c: Any) -> Any:
        large = jnp.concatenate([c, jnp.zeros(MOST_NUMBERS)])
        return repeated(jnp.cos, jnp.sort(large)[-6:])

    program = lowered(lambda x: repeated(step, x), x)
    assert kernels(program) == 1
    assert program.compile()(x).shape == (6,)


@pytest.mark.parametrize("step", [lambda c, k: c + 1 + (k & 0), lambda c, k: (c & 0) + (k & 0)], ids=["one", "all"])
def test_an_argument_that_xla_finds_unused_does_not_end_the_process(step: Any) -> None:
    """It did: XLA drops what nobody reads from a loop, but not from the function that the loop is in."""

    def loop(start: Any, k: Any) -> Any:
        return as_function(lambda c, k: lax.fori_loop(0, 3, lambda _, c: step(c, k), c))(start, k)

    start, k = np.int32(5), np.int32(3)
    program = lowered(loop, start, k)
    assert kernels(program) == 1
    assert program.compile()(start, k) == step(step(step(start, k), k), k)


def test_a_loop_that_makes_nothing_is_none() -> None:
    context = lowered(jnp.sin, x).compiler_ir("stablehlo").context
    text = """
        func.func private @tempo_loop(%x: tensor<f32>) { return }
        func.func public @main(%x: tensor<f32>) -> tensor<f32> {
            func.call @tempo_loop(%x) : (tensor<f32>) -> ()
            return %x : tensor<f32>
        }
    """
    module = ir.Module.parse(text, context)
    make_kernels(module)
    assert KERNEL not in str(module)


def test_what_xla_does_not_make_a_kernel_of_is_compiled_all_the_same() -> None:
    class Refused:
        """Compiled only without notes."""

        def __init__(self, program: Any) -> None:
            self.program = program

        def compiler_ir(self, dialect: str) -> Any:
            return self.program.compiler_ir(dialect)

        def compile(self, compiler_options: Any) -> Any:
            if "xla_cpu_small_call" in self.program.as_text():
                raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")
            return self.program.compile(compiler_options)

    program = lowered(lambda x: repeated(jnp.sin, x, 1), x)
    np.testing.assert_allclose(compile_prepared(Refused(program), None)(x), np.sin(x), rtol=1e-5)
    assert not unmake_kernels(program.compiler_ir("stablehlo"))
