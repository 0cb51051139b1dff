"""Functions of JAX within programs: values, gradients, several results, and a small environment."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp


@pytest.fixture(params=["evaluate", "numpy", "jax"])
def run(request: pytest.FixtureRequest) -> Any:
    def result(prog: tp.Program, bounds: Any, **inputs: Any) -> Any:
        if request.param == "evaluate":
            return prog.evaluate(bounds, **inputs)
        return prog.compile(bounds, backend=request.param)(**inputs)

    return result


def test_at_every_point(run: Any) -> None:
    with tp.Program("points") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (3,), t)
        scale = prog.input("scale")
        prog.output("y", tp.jax_function(lambda x, s: jnp.cumsum(x) * s, x, scale, out=tp.spec((3,))))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(run(prog, {T: 2}, x=x, scale=2.0).y, 2 * np.cumsum(x, axis=1))


def test_within_a_recurrence(run: Any) -> None:
    with tp.Program("recurrence") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", (2,), t)
        y[0] = tp.ones(2)
        y[t + 1] = tp.jax_function(lambda y: jnp.array([y[1], y[0] + y[1]]), y, out=tp.spec((2,)))
        prog.output("y", y)
    assert run(prog, {T: 4}).y[:, 0].tolist() == [1, 1, 2, 3, 5]


def test_several_results(run: Any) -> None:
    def both(x: Any) -> Any:
        return jnp.argmax(x).astype(jnp.int32), jnp.max(x)

    with tp.Program("several") as prog:
        x = prog.input("x", (4,))
        where, top = tp.jax_function(both, x, out=[tp.spec((), "int32"), tp.spec(())])
        prog.output("where", where)
        prog.output("top", top)
    result = run(prog, {}, x=[1, 5, 2, 0])
    assert (int(result.where), float(result.top)) == (1, 5.0)


def test_gradients(run: Any) -> None:
    """Of the sum over t of exp(a x[t]) k, by a and x; again by x; nothing flows through the integer."""
    with tp.Program("gradients") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (2,), t)
        a = prog.input("a")
        y = tp.jax_function(lambda x, a, k: jnp.exp(a * x) * k, x, a, tp.constant(3), out=tp.spec((2,)))
        loss = tp.sum(y[0:T])
        by_x, by_a = tp.grad(loss, (x, a))
        prog.output("by_x", by_x)
        prog.output("by_a", by_a)
        prog.output("by_x_twice", tp.grad(tp.sum(by_x[0:T]), x))
    values, factor = np.array([[0.1, -0.2], [0.5, 1.0]], np.float32), 0.7
    result = run(prog, {T: 2}, x=values, a=factor)
    powers = 3 * np.exp(factor * values)
    np.testing.assert_allclose(result.by_x, factor * powers, rtol=1e-5)
    np.testing.assert_allclose(result.by_a, (values * powers).sum(), rtol=1e-5)
    np.testing.assert_allclose(result.by_x_twice, factor**2 * powers, rtol=1e-5)


def walk_reset(bits: Any) -> Any:
    return jax.random.uniform(jax.random.wrap_key_data(bits), (2,), minval=-1.0, maxval=1.0)


def walk_step(x: Any, action: Any, bits: Any) -> Any:
    """An environment as libraries of JAX have them: with keys, and with episodes that start anew by themselves."""
    after = x + 0.3 * jnp.where(action == 1, 1.0, -1.0)
    ended = jnp.abs(after).max() > 1.5
    return jnp.where(ended, walk_reset(bits), after), -jnp.abs(after).sum(), ended


def test_an_environment(run: Any) -> None:
    with tp.Program("environment") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.recurrent("x", (2,), (b, t))
        x[b, 0] = tp.jax_function(walk_reset, tp.random.bits((2,), b), out=tp.spec((2,)))
        action = tp.random.randint(0, 2, (), (b, t))
        bits = tp.random.bits((2,), (b, t))
        out = [tp.spec((2,)), tp.spec(()), tp.spec((), "bool")]
        after, reward, ended = tp.jax_function(walk_step, x, action, bits, out=out)
        x[b, t + 1] = after
        for name, tensor in {"x": x, "action": action, "bits": bits, "reward": reward, "ended": ended}.items():
            prog.output(name, tensor)
    result = run(prog, {B: 3, T: 12})
    for n in range(3):
        for step in range(12):
            given = (jnp.asarray(result[name][n, step]) for name in ("x", "action", "bits"))
            after, reward, ended = walk_step(*given)
            np.testing.assert_allclose(result.x[n, step + 1], after, rtol=1e-6)
            np.testing.assert_allclose(result.reward[n, step], reward, rtol=1e-6)
            assert result.ended[n, step] == ended
    assert result.ended.any() and not result.ended.all()


def test_results_that_are_not_as_declared() -> None:
    with tp.Program("wrong"):
        with pytest.raises(tp.errors.ShapeError) as error:
            tp.jax_function(jnp.sum, tp.ones(3), out=tp.spec((3,)))
        assert error.value.message == "jax_function: result 0 of sum is float32(), and out declares float32(3,)"
        with pytest.raises(tp.errors.ShapeError) as error:
            tp.jax_function(jnp.sum, tp.ones(3), out=[tp.spec(()), tp.spec(())])
        assert error.value.message == "jax_function: sum returns 1 arrays, and out declares 2"
        with pytest.raises(tp.errors.ProgramError) as program_error:
            tp.jax_function(jnp.sum, tp.ones(3), out=[3])
        assert program_error.value.message == "jax_function: 3 in out does not say what the function returns"
        with pytest.raises(tp.errors.ProgramError) as program_error:
            tp.jax_function(tp.ones(3), out=tp.spec(()))
        assert "cannot be called" in program_error.value.message


def test_sizes_that_differ_from_step_to_step() -> None:
    with tp.Program("growing") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("y", tp.jax_function(jnp.sum, x[0 : t + 1], out=tp.spec(())))
    np.testing.assert_allclose(prog.evaluate({T: 3}, x=[1, 2, 3]).y, [1, 3, 6])
    with pytest.raises(tp.errors.ShapeError) as error:
        prog.compile({T: 3})(x=[1, 2, 3])
    assert error.value.message == "jax_function: the size of argument 0 of sum differs from step to step"


def test_double_precision(run: Any) -> None:
    with tp.Program("wide") as prog:
        x = prog.input("x", (2,), dtype="float64")
        y = tp.jax_function(jnp.sin, x, out=tp.spec((2,), "float64"))
        prog.output("y", y)
        prog.output("dx", tp.grad(tp.sum(y), x))
    data = np.array([0.3, 1e-9])
    result = run(prog, {}, x=data)
    np.testing.assert_allclose(result.y, np.sin(data), rtol=1e-14)
    np.testing.assert_allclose(result.dx, np.cos(data), rtol=1e-14)
