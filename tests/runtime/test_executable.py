"""Compiled programs: calling them, what they refuse, host functions, emitted values, dtypes and seeds."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo.given import Inputs
from tempo.runtime.executable import Executable

BACKENDS = ["numpy", "jax"]
backends = pytest.mark.parametrize("backend", BACKENDS)


def same(found: tp.Result, expected: tp.Result, rtol: float = 1e-5) -> None:
    """The same outputs, of the same dtypes and shapes."""
    assert found.outputs.keys() == expected.outputs.keys()
    for name, array in expected.outputs.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(found[name].astype(np.float64), array.astype(np.float64), rtol=rtol, atol=1e-6)


def products(dtype: Any = tp.float32) -> tuple[tp.Program, Any]:
    """The running product of x, and the gradient of the last one."""
    with tp.Program("products") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=dtype)
        y = prog.recurrent("y", domain=(t,), dtype=dtype)
        y[0] = x[0]
        y[t] = y[t - 1] * x
        prog.output("y", y)
        prog.output("g", tp.grad(y[T - 1], x))
    return prog, T


# -- calls ----------------------------------------------------------------------------------------------------


@backends
def test_compile_and_call(backend: str) -> None:
    prog, T = products()
    run = prog.compile({T: 4}, backend)
    result = run(x=[1, 2, 3, 4])
    assert result.y.tolist() == [1, 2, 6, 24]
    assert result.g.tolist() == [24, 12, 8, 6]
    assert run(x=[2, 1, 1, 1]).y.tolist() == [2, 2, 2, 2]


@backends
def test_outputs_come_in_the_order_of_their_declaration(backend: str) -> None:
    prog, T = products()
    assert repr(prog.compile({T: 4}, backend)(x=[1, 2, 3, 4])) == "<Result y: float32[4], g: float32[4]>"


@backends
def test_bounds_are_compiled_in(backend: str) -> None:
    prog, T = products()
    for steps in (1, 2, 5):
        x = np.arange(2.0, steps + 2)
        same(prog.compile({T: steps}, backend)(x=x), prog.evaluate({T: steps}, x=x))


@backends
def test_a_small_network_and_its_gradients(backend: str) -> None:
    with tp.Program("rnn") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(t,))
        U, W = prog.param("U", (3, 2)), prog.param("W", (3, 3))
        h = prog.recurrent("h", 3, domain=(t,))
        h[-1] = 0
        h[t] = tp.tanh(U @ x + W @ h[t - 1])
        loss = tp.mean(h[0:T] ** 2)
        prog.output("h", h)
        prog.output("loss", loss)
        for name, gradient in tp.grad(loss, prog.params).items():
            prog.output(f"d_{name}", gradient)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(5, 2)), "U": rng.normal(size=(3, 2)), "W": rng.normal(size=(3, 3))}
    same(prog.compile({T: 5}, backend)(**inputs), prog.evaluate({T: 5}, **inputs))


@backends
def test_a_training_loop(backend: str) -> None:
    """Newton's method for the root of 2: 1, 3/2, 17/12, ... by gradient, not by hand."""
    with tp.Program("newton") as prog:
        i, I = prog.dim("i")
        w = prog.state("w", prog.input("start", dtype=tp.float64), over=i)
        error = w * w - 2
        w.next = w - error / tp.grad(error, w)
        prog.output("w", w)
    result = prog.compile({I: 4}, backend)(start=1.0)
    np.testing.assert_allclose(result.w, [1, 3 / 2, 17 / 12, 577 / 408, 665857 / 470832], rtol=1e-15)


def test_a_call_that_is_refused_leaves_the_run_before_it() -> None:
    """A call with arrays on the device takes a short way, which must not be shorter than that."""
    prog, T = products()
    run = prog.compile({T: 3}, device="cpu")
    stream = run.stream(x=[1, 2, 3])
    with pytest.raises(tp.errors.InputError):
        run(x=jnp.ones(2))
    assert run._latest is stream._run
    run(x=jnp.ones(3))
    assert run._latest is None


# -- what is refused ------------------------------------------------------------------------------------------


def test_unknown_backend() -> None:
    prog, T = products()
    with pytest.raises(tp.errors.ProgramError) as caught:
        prog.compile({T: 3}, backend="torch")
    assert str(caught.value) == "there is no backend 'torch'\n  hint: backends are 'jax', 'numpy'"


def test_unknown_device() -> None:
    prog, T = products()
    with pytest.raises(tp.errors.ProgramError) as caught:
        prog.compile({T: 3}, device="abacus")
    assert str(caught.value).startswith("there is no device 'abacus' here: ")
    assert "\n  hint: this machine has: " in str(caught.value)
    assert "cpu" in str(caught.value)


def test_a_device_is_a_name() -> None:
    prog, T = products()
    with pytest.raises(tp.errors.ProgramError, match=r"which is no name\n  hint: this machine has: .*cpu"):
        prog.compile({T: 3}, device=jax.devices()[0])


@backends
def test_bounds_that_are_missing_or_wrong(backend: str) -> None:
    prog, T = products()
    with pytest.raises(tp.errors.BoundError) as missing:
        prog.compile(backend=backend)
    assert str(missing.value) == "program 'products' needs a number for the bound T\n  hint: give {T: ...}"
    with pytest.raises(tp.errors.BoundError, match=r"^bound T = 0: a bound is a positive integer"):
        prog.compile({T: 0}, backend)


@backends
@pytest.mark.parametrize(
    ("inputs", "message", "hint"),
    [
        ({}, "input 'x' was not given", "give an array of shape (T,) = (3,), float32"),
        (
            {"x": [1, 2]},
            "input 'x' has shape (2,), expected (3,)",
            "give an array of shape (T,) = (3,), float32: one leading axis per dim, then the shape",
        ),
        ({"x": [1, 2, 3], "z": 1}, "program 'products' has no input 'z'", "its inputs are: x"),
        ({"x": [1, 2, 3], "T": 3}, "program 'products' has no input 'T'", "T is a bound: give it as {T: ...}"),
    ],
)
def test_wrong_inputs(backend: str, inputs: dict[str, Any], message: str, hint: str) -> None:
    prog, T = products()
    run = prog.compile({T: 3}, backend)
    for call in (run, run.stream):
        with pytest.raises(tp.errors.InputError) as caught:
            call(**inputs)
        assert str(caught.value).splitlines()[0] == message
        assert caught.value.hint == hint


def test_wrong_arrays_on_the_device_are_refused_as_any_others_are() -> None:
    prog, T = products()
    run = prog.compile({T: 3}, device="cpu")
    assert run(x=jnp.array([1.0, 2.0, 3.0])).y.tolist() == [1, 2, 6]
    with pytest.raises(tp.errors.InputError, match=r"^input 'x' has shape \(2,\), expected \(3,\)"):
        run(x=jnp.ones(2))
    with pytest.raises(tp.errors.InputError, match=r"^input 'x' was not given"):
        run()
    with pytest.raises(tp.errors.InputError, match=r"^program 'products' has no input 'z'"):
        run(x=jnp.ones(3), z=jnp.ones(3))
    with pytest.raises(tp.errors.InputError, match=r"^seed = 'a': a seed is an integer"):
        run(x=jnp.ones(3), seed="a")
    with pytest.raises(tp.errors.InputError, match=r"^seed = 'a': a seed is an integer"):
        prog.compile({T: 3}, seed="a")
    integers = prog_of_integers().compile(device="cpu")
    with pytest.raises(tp.errors.InputError, match=r"^input 'n' has dtype float32, which does not convert to int32"):
        integers(n=jnp.float32(1.0))
    assert integers(n=jnp.int8(1)).m.tolist() == 2  # what converts is converted


def prog_of_integers() -> tp.Program:
    with tp.Program("integers") as prog:
        prog.output("m", prog.input("n", dtype="int32") * 2)
    return prog


@backends
def test_wrong_programs_are_refused_before_they_run(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=(t,))
        y[t] = y[t - 1] + 1
        prog.output("y", y)
    with pytest.raises(tp.TempoError) as expected:
        prog.evaluate({T: 3})
    with pytest.raises(type(expected.value)) as found:
        prog.compile({T: 3}, backend)
    assert str(found.value) == str(expected.value)


# -- host functions ---------------------------------------------------------------------------------------------


@backends
def test_host_functions_are_called_in_order(backend: str) -> None:
    calls: list[float] = []

    def double(x: Any) -> Any:
        calls.append(x.item())
        return 2 * x

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        s = prog.recurrent("s", domain=(t,))
        s[-1] = 0
        s[t] = tp.host(double, s[t - 1] + x, out=tp.spec(), sequence=t)
        prog.output("s", s)
    run = prog.compile({T: 3}, backend)
    assert calls == []
    assert run(x=[1, 2, 3]).s.tolist() == [0, 2, 8, 22]
    assert calls == [1, 4, 11]
    assert run(x=[0, 0, 1]).s.tolist() == [0, 0, 0, 2]


@backends
def test_host_functions_get_arrays_even_of_single_numbers(backend: str) -> None:
    kinds: list[type] = []
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        tp.host(lambda x: kinds.append(type(x)), x, sequence=t)
    prog.compile({T: 1}, backend)(x=[1])
    assert kinds == [np.ndarray]


@backends
def test_a_batch_is_one_call(backend: str) -> None:
    shapes = []

    def both(x: Any, w: Any) -> Any:
        shapes.append((x.shape, w.shape))
        return x.sum(-1) + w, x * 10

    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", 2, domain=(i, t))
        w = prog.input("w")
        total, tenfold = tp.host(both, x, w, out=[tp.spec(), tp.spec(2)], sequence=i, batch=t)
        prog.output("total", total)
        prog.output("tenfold", tenfold)
    x_ = np.arange(12).reshape(2, 3, 2)
    result = prog.compile({I: 2, T: 3}, backend)(x=x_, w=100)
    assert shapes == [((3, 2), ()), ((3, 2), ())]
    assert result.total.tolist() == [[101, 105, 109], [113, 117, 121]]
    assert result.tenfold.tolist() == (10 * x_).tolist()


@backends
def test_a_function_without_results_is_called_for_its_effect(backend: str) -> None:
    seen: list[float] = []
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        tp.host(lambda x: seen.append(x.item()), x, sequence=t)
        prog.output("y", x + 1)
    assert prog.compile({T: 3}, backend)(x=[5, 6, 7]).y.tolist() == [6, 7, 8]
    assert seen == [5, 6, 7]


@backends
def test_exceptions_of_host_functions(backend: str) -> None:
    def picky(x: Any) -> Any:
        if x > 2:
            raise ZeroDivisionError("too large")
        return x

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("y", tp.host(picky, x, out=tp.spec(), sequence=t))
    run = prog.compile({T: 3}, backend)
    with pytest.raises(tp.errors.HostError) as caught:
        run(x=[1, 3, 2])
    assert str(caught.value).splitlines()[0] == "host function picky raised ZeroDivisionError at t=1: too large"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert run(x=[1, 2, 0]).y.tolist() == [1, 2, 0]


@backends
def test_host_results_are_checked(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        prog.output("y", tp.host(np.ones_like, x, out=tp.spec(4), sequence=t))
    with pytest.raises(tp.errors.HostError, match=r"returned shape \(\) at t=0, declared is \(4,\)"):
        prog.compile({T: 3}, backend)(x=[1, 3, 2])


# -- emitted values -----------------------------------------------------------------------------------------------


def emitting() -> tuple[tp.Program, Any]:
    with tp.Program("emitting") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        s = prog.recurrent("s", domain=(t,))
        s[-1] = 0
        s[t] = s[t - 1] + x
        prog.emit("sum", s)
        prog.emit("pair", tp.stack([s, -x]))
        prog.output("final", s[T - 1])
    return prog, T


@backends
def test_emits_come_with_their_points(backend: str) -> None:
    prog, T = emitting()
    result = prog.compile({T: 3}, backend)(x=[1, 2, 4])
    assert [(r.point, r.value.tolist()) for r in result.emits["sum"]] == [
        ({"t": 0}, 1),
        ({"t": 1}, 3),
        ({"t": 2}, 7),
    ]
    assert [r.value.tolist() for r in result.emits["pair"]] == [[1, -1], [3, -2], [7, -4]]
    assert result.final == 7


@backends
def test_emitted_values_are_arrays_even_if_single_numbers(backend: str) -> None:
    prog, T = emitting()
    result = prog.compile({T: 1}, backend)(x=[1])
    assert [type(r.value) for r in result.emits["sum"]] == [np.ndarray]


@backends
def test_a_stream_hands_out_values_while_the_program_runs(backend: str) -> None:
    asked: list[float] = []

    def record(x: Any) -> Any:
        asked.append(x.item())
        return x

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,))
        s = prog.recurrent("s", domain=(t,))
        s[-1] = 0
        s[t] = s[t - 1] + tp.host(record, x + s[t - 1], out=tp.spec(), sequence=t)
        prog.emit("s", s)
        prog.output("final", s[T - 1])
    stream = prog.compile({T: 3}, backend).stream(x=[1, 2, 4])
    assert stream.result is None
    records = iter(stream)
    first = next(records)
    assert (first.name, first.point, first.value.tolist()) == ("s", {"t": 0}, 1)
    assert asked == [1]  # the later steps have not been made
    assert [(r.name, r.point, r.value.tolist()) for r in records] == [("s", {"t": 1}, 4), ("s", {"t": 2}, 12)]
    assert stream.result is not None
    assert stream.result.final == 12


@backends
def test_a_stream_keeps_the_order_of_steps(backend: str) -> None:
    prog, T = emitting()
    stream = prog.compile({T: 2}, backend).stream(x=[1, 2])
    assert [(r.name, r.point["t"]) for r in stream] == [("sum", 0), ("pair", 0), ("sum", 1), ("pair", 1)]
    assert stream.result.final == 3


# -- several at once ------------------------------------------------------------------------------------------------


@backends
def test_two_executables_at_once(backend: str) -> None:
    prog, T = emitting()
    short, long = prog.compile({T: 2}, backend), prog.compile({T: 3}, backend)
    pairs = zip(short.stream(x=[1, 2]), long.stream(x=[5, 6, 7]), strict=False)
    found = [(a.value.tolist(), b.value.tolist()) for a, b in pairs if a.name == "sum"]
    assert found == [(1, 5), (3, 11)]


@backends
@pytest.mark.parametrize("dtype", [tp.float32, tp.float64], ids=str)
def test_calls_from_several_threads(backend: str, dtype: Any) -> None:
    prog, T = products(dtype)
    run = prog.compile({T: 3}, backend)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda n: run(x=[n, 2, 3]), range(20)))
    assert [r.y.tolist() for r in results] == [[n, 2 * n, 6 * n] for n in range(20)]
    assert {r.y.dtype for r in results} == {np.dtype(dtype)}


def test_executables_of_different_precision_in_two_threads() -> None:
    runs = [prog.compile({T: 3}) for prog, T in (products(tp.float32), products(tp.float64))]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda n: runs[n % 2](x=[0.1, 1, 1]), range(20)))
    assert [r.y[2].item() for r in results] == [np.float32(0.1).item(), 0.1] * 10


# -- dtypes and seeds -----------------------------------------------------------------------------------------------


@backends
def test_float64_is_exact(backend: str) -> None:
    prog, T = products(tp.float64)
    result = prog.compile({T: 3}, backend)(x=[1 + 2**-40, 1, 1])
    assert result.y.dtype == np.float64
    assert result.y[2] == 1 + 2**-40


@backends
@pytest.mark.parametrize(("dtype", "last"), [(tp.bfloat16, 10.5625), (tp.float16, 10.546875)], ids=str)
def test_half_precision(backend: str, dtype: Any, last: float) -> None:
    prog, T = products(dtype)
    result = prog.compile({T: 3}, backend)(x=[1.5, 2.25, 3.125])
    assert (result.y.dtype, result.g.dtype) == (dtype, dtype)
    assert result.y.tolist() == [1.5, 3.375, last]
    assert result.g.tolist() == [7.03125, 4.6875, 3.375]


@backends
def test_integers_and_bools(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=(t,), dtype=tp.int64)
        prog.output("square", x * x)
        prog.output("odd", x % 2 == 1)
    result = prog.compile({T: 3}, backend)(x=[3, 4, 2**31])
    assert result.square.tolist() == [9, 16, 2**62]
    assert (result.odd.tolist(), result.odd.dtype) == ([True, False, False], np.bool_)


@backends
def test_random_draws_are_those_of_the_reference(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s = prog.recurrent("s", domain=(t,))
        s[-1] = 0
        s[t] = s[t - 1] + tp.random.normal(domain=t)
        prog.output("walk", s)
        prog.output("bits", tp.random.bits(3, domain=t))
        prog.output("order", tp.random.permutation(5, domain=t))
    run = prog.compile({T: 4}, backend, seed=7)
    expected = prog.evaluate({T: 4}, seed=7)
    same(run(), expected)
    assert run().bits.tolist() == expected.bits.tolist()
    assert sorted(run().order[0].tolist()) == [0, 1, 2, 3, 4]
    # A call's own seed comes before the one the program was compiled with.
    same(run(seed=2**40 + 1), prog.evaluate({T: 4}, seed=2**40 + 1))
    assert run(seed=8).bits.tolist() != expected.bits.tolist()


@backends
def test_integers_between_expressions_and_tensors(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        n = prog.input("n", domain=t, dtype="int32")
        prog.output("step", tp.random.randint(0, T, 3, domain=t))
        prog.output("number", tp.random.randint(0, 20, 3, domain=t))
        prog.output("past", tp.random.randint(0, t + 1))
        prog.output("future", tp.random.randint(t, T, 4, dtype="int8"))
        prog.output("below", tp.random.randint(-1, n, 4))
        prog.output("numpy", tp.random.randint(np.int64(2), np.int32(3)))
    n_ = np.arange(20)[::-1] - 1
    run, expected = prog.compile({T: 20}, backend, seed=7), prog.evaluate({T: 20}, seed=7, n=n_)
    for name, array in expected.outputs.items():
        assert run(n=n_)[name].tolist() == array.tolist(), name
    steps = np.arange(20)
    for drawn in (expected.step, expected.number):
        assert drawn.min() >= 0 and drawn.max() < 20 and len(set(drawn.ravel())) > 15
    assert np.all(expected.past >= 0) and np.all(steps >= expected.past) and expected.past.max() > 10
    assert np.all(steps <= expected.future.T) and expected.future.max() < 20 and expected.future.dtype == np.int8
    # Where there is none, it is the lowest.
    assert expected.below.min() == -1 and np.all(np.maximum(n_, 0) > expected.below.T)
    assert expected.numpy == 2


@backends
def test_draws_of_other_steps(backend: str) -> None:
    """In place of a dim, an expression says which step's draw it is."""
    with tp.Program() as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        p, P = prog.dim("p")
        drawn = [
            tp.random.bits(domain=steps)
            for steps in ((b, t), (b, t - P), (b, T - 1 - t), (t // 2, b), tp.min(t, P), t - P)
        ]
        later = tp.random.categorical(tp.zeros((1000,)), domain=t + 1)
        s = prog.recurrent("s", domain=(b, t), dtype="uint32")
        s[b, -1] = 0
        s[b, t] = s[b, t - 1] * 3 + drawn[1]
        prog.output("s", s)
        for n, each in enumerate(drawn):
            prog.output(f"bits{n}", each)
        prog.output("later", later)
        prog.input("given", domain=p)
    for bounds in ({B: 2, T: 9, P: 3}, {B: 1, T: 4, P: 3}):
        found, expected = prog.compile(bounds, backend, seed=7)(given=[0] * 3), prog.evaluate(bounds, 7, given=[0] * 3)
        for name, array in expected.outputs.items():
            assert found[name].tolist() == array.tolist(), name
    # A step's draw is that of the point, whatever the dim is called there: a program of the same operations.
    with tp.Program() as plain:
        b, B = plain.dim("b")
        t, T = plain.dim("t")
        tp.random.bits(domain=(b, t))
        plain.output("bits", tp.random.bits(domain=(b, t)))
    run = prog.compile({"B": 2, "T": 9, "P": 3}, backend, seed=7)(given=[0] * 3)
    assert run.bits1[:, 3:].tolist() == plain.compile({B: 2, T: 6}, backend, seed=7)().bits.tolist()


# -- explanations ---------------------------------------------------------------------------------------------------


def sections(text: str) -> dict[str, str]:
    parts = text.split("-- ")[1:]
    return {title: body.strip() for title, body in (part.split(" --\n", 1) for part in parts)}


@backends
def test_results_of_a_call_before_a_circle_of_points(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        x = prog.input("x", domain=s)
        h = tp.host(lambda x: np.stack([2 * x, 3 * x]), x, out=tp.spec((), "float32"), sequence=(), batch=(t, s))
        y = prog.recurrent("y", domain=(t, s))  # y and z are in the order of no dim
        z = prog.recurrent("z", domain=(t, s))
        y[0, s] = 1.0
        y[t, s] = tp.maximum(z[0], h)
        z[0, s] = x * y[0]
        z[t, s] = y[..., 0:s].sum(0)
        prog.output("h", h)
        prog.output("z", z)
    bounds, x = {T: 2, S: 1}, np.full(1, 3, np.float32)
    expected = prog.evaluate(bounds, x=x)
    found = Executable(prog.graph, bounds, backend, skip=["split pinned"])(x=x)
    np.testing.assert_array_equal(found.h, expected.h)
    np.testing.assert_array_equal(found.z, expected.z)


@backends
def test_a_slice_of_no_length_of_something_nobody_needs(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.input("y", domain=t)
        prog.emit("x", x)  # so that Python runs the program in parts
        prog.output("nothing", y[tp.min(1, T) : 1])
    ones = np.ones(3, np.float32)
    assert prog.compile({T: 3}, backend)(x=ones, y=ones).nothing.shape == (0,)


def test_explain_says_how_a_program_was_compiled() -> None:
    prog, T = products()
    found = sections(prog.compile({T: 4}).explain())
    assert list(found) == ["program", "after simplification", "plan", "loop tree", "stores", "XLA programs", "seconds"]
    assert "accumulate" in found["program"]
    assert "accumulate" not in found["after simplification"]
    assert "for t in 1 .. 3:" in found["loop tree"]
    assert "y: float32[4], 16 bytes (t: 4 steps)" in found["stores"]
    assert found["XLA programs"].startswith("1 program, bytes: inputs 16, outputs ")
    assert [phase.split()[0] for phase in found["seconds"].split(", ")] == [
        "disk",
        "analysis",
        "passes",
        "plan",
        "XLA",
    ]


def test_explain_without_xla() -> None:
    prog, T = products()
    found = sections(prog.compile({T: 4}, "numpy").explain())
    assert list(found) == ["program", "after simplification", "plan", "loop tree", "stores", "seconds"]


@backends
def test_nothing_is_emitted_past_the_steps_of_a_dim(backend: str) -> None:
    """A state has a value after its last step, and its loop may go there with everything in it."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        w = prog.state("w", 1.0, over=(t, s))
        w.next = w
        prog.emit("g", tp.grad(tp.sum(w[0:T, 0:S] * w[0:T, 0:S]), w))
    assert [r.point for r in prog.compile({T: 1, S: 1}, backend=backend)().emits["g"]] == [{"t": 0, "s": 0}]


@backends
def test_host_functions_are_not_called_past_the_steps_of_a_dim(backend: str) -> None:
    seen = []

    def step(value: Any) -> Any:
        seen.append(float(value))
        return value + 1

    with tp.Program() as prog:
        t, T = prog.dim("t")
        o = prog.recurrent("o", domain=t)
        o[0] = 0.0
        o[t + 1] = tp.host(step, o, out=tp.spec(()), sequence=t)
        y = prog.recurrent("y", domain=t)
        busy = o
        for n in range(10):  # enough to do at the value after the last step, too
            busy = tp.tanh(busy + n)
        y[0] = 0.0
        y[t + 1] = y[t] + busy
        z = prog.recurrent("z", domain=t)
        z[T] = o[T]
        z[t] = o[t] + y[t]
        prog.output("z", z)
    prog.compile({T: 3}, backend=backend)()
    assert seen == [0.0, 1.0, 2.0]


def test_the_numpy_backend_has_no_other_device() -> None:
    prog, T = products()
    with pytest.raises(tp.errors.ProgramError) as error:
        prog.compile({T: 2}, backend="numpy", device="gpu")
    assert str(error.value) == (
        "the numpy backend runs on the CPU, not on 'gpu'\n  hint: leave device out, or use backend=\"jax\""
    )


def test_inputs_are_copied_unless_they_are_read_no_longer_than_a_run_takes() -> None:
    with tp.Program("given") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("x", x)
    inputs = Inputs(prog.graph, {T: 3})
    given = {"x": np.arange(3, dtype=np.float32)}
    assert inputs.checked(given, 0)["x"] is not given["x"]
    assert inputs.checked(given, 0, copy=False)["x"] is given["x"]
    assert inputs.checked({"x": [1, 2, 3]}, 0, copy=False)["x"].dtype == np.float32
