"""What is easily got wrong around programs: bounds, inputs, results and plans of odd kinds."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo.errors import BoundError, BudgetError, InputError, ProgramError

WRITTEN_AGAIN = "where another one is needed, write it there: put 'with tp.Program(...)' into a function, and call that"


def double() -> tuple[tp.Program, Any]:
    with tp.Program("double") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("y", 2 * x)
    return prog, T


@pytest.fixture(params=["evaluate", "numpy", "jax"])
def run(request: pytest.FixtureRequest) -> Any:
    """A program run in one of three ways."""

    def found(prog: tp.Program, bounds: Any, **inputs: Any) -> tp.Result:
        if request.param == "evaluate":
            return prog.evaluate(bounds, **inputs)
        return prog.compile(bounds, backend=request.param)(**inputs)

    found.name = request.param  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2"])
def test_the_order_of_bytes(run: Any, dtype: str) -> None:
    prog, T = double()
    np.testing.assert_array_equal(run(prog, {T: 3}, x=np.array([1, 2, 3], dtype)).y, [2, 4, 6])
    with tp.Program() as prog:
        prog.output("c", tp.constant(np.array([1, 2], dtype)))
    np.testing.assert_array_equal(run(prog, {}).c, [1, 2])


def test_truth_values_where_integers_of_64_bits_are_wanted(run: Any) -> None:
    with tp.Program() as prog:
        prog.output("y", prog.input("x", 2, dtype="uint64") + tp.constant(True, dtype="uint64"))
    assert run(prog, {}, x=[True, False]).y.tolist() == [2, 1]


def test_an_input_named_self(run: Any) -> None:
    with tp.Program() as prog:
        prog.output("y", 2 * prog.input("self"))
    assert run(prog, {}, **{"self": 3.0}).y == 6


@pytest.mark.parametrize("name", ["2d", "t-1", " ", "a b", "t'1", "t\0", "min", "mod", "and", "exists", "floor", "\n"])
def test_names_are_any_text(run: Any, name: str) -> None:
    with tp.Program(name) as prog:
        t, T = prog.dim(name, bound=f"{name} {name}")
        x = prog.input(name, domain=t)
        y = prog.recurrent(f"{name}.", domain=t)
        y[0] = x[0]
        y[t] = y[t - 1] + x[t]
        prog.stop(t, when=y >= 3)
        prog.output(name, y + x[0 : t + 1].sum())
        prog.output("gradient", tp.grad(y[T - 1], x))
    prog.check({T: 4})
    found = run(prog, {T: 4}, **{name: [1, 1, 1, 1]})
    assert found[name].tolist() == [2, 4, 6]
    assert found.gradient.tolist() == [1, 1, 1]


@pytest.mark.parametrize("along", [False, True])
def test_indices_that_are_out_of_range(run: Any, along: bool) -> None:
    """Those of a compiled program read no later step than others could."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        i = prog.input("i", domain=t, dtype="int32")
        so_far = x[0 : t + 1]
        taken = tp.take_along_axis(so_far, tp.reshape(i, (1,)), axis=0).space[0] if along else so_far.take(i)
        prog.output("y", taken)
    inputs = {"x": [10.0, 20.0, 30.0], "i": [2, 1, 0]}
    if run.name == "jax":
        assert run(prog, {T: 3}, **inputs).y.tolist() == [10, 20, 10]
    else:
        with pytest.raises(InputError, match="index 2 is out of range for axis 0 of size 1"):
            run(prog, {T: 3}, **inputs)


@pytest.mark.parametrize("run", ["evaluate", "numpy"])
def test_indices_that_are_out_of_range_in_a_program_without_dims(run: str) -> None:
    with tp.Program() as prog:
        prog.output("y", prog.input("x", shape=(3,)).take(prog.input("i", dtype="int32")))
    with pytest.raises(InputError, match="index 9 is out of range for axis 0 of size 3"):
        if run == "evaluate":
            prog.evaluate({}, x=[1, 2, 3], i=9)
        else:
            prog.compile({}, backend="numpy")(x=[1, 2, 3], i=9)


class WaitsForAGradient:
    """Like a tensor of PyTorch that requires one."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_what_cannot_become_an_array(run: Any) -> None:
    prog, T = double()
    with pytest.raises(InputError) as caught:
        run(prog, {T: 2}, x=WaitsForAGradient())
    assert caught.value.message == "input 'x' has type WaitsForAGradient, which does not convert to float32"
    with tp.Program(), pytest.raises(tp.errors.DtypeError, match="of type WaitsForAGradient cannot become a tensor"):
        tp.constant(WaitsForAGradient())


def test_what_is_no_array_is_told_why(run: Any) -> None:
    prog, T = double()
    deleted = jnp.ones(2)
    deleted.delete()
    for wrong, reason in ((WaitsForAGradient(), "Can't call numpy"), (deleted, "Array has been deleted")):
        with pytest.raises(InputError) as caught:
            run(prog, {T: 2}, x=wrong)
        assert f"then the shape. This is none: {reason}" in caught.value.hint


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_a_compiled_program_is_not_called_within_a_transformation(transform: Any) -> None:
    prog, T = double()
    run = prog.compile({T: 2})
    with pytest.raises(InputError) as caught:
        transform(lambda x: run(x=[x, x]).y.sum())(jnp.ones((2,) if transform is jax.vmap else ()))
    with pytest.raises(InputError) as caught:
        transform(lambda x: run(x=x).y.sum())(jnp.ones((3, 2) if transform is jax.vmap else 2))
    assert caught.value.message.startswith("a compiled program was given a traced value")
    assert run(x=[1, 2]).y.tolist() == [2, 4]


def test_a_call_without_results_gives_nothing() -> None:
    with tp.Program() as prog, pytest.raises(tp.errors.DtypeError, match="of type NoneType cannot become a tensor"):
        prog.output("y", tp.host(print, prog.input("x")))


def test_results_are_copied_and_asked() -> None:
    prog, T = double()
    result = prog.evaluate({T: 2}, x=[1, 2])
    for found in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert found.y.tolist() == [2, 4]
    assert "y" in result and "z" not in result and list(result) == ["y"]


def test_what_is_part_of_a_program_is_its_own_copy() -> None:
    prog, T = double()
    x = prog.input("data", domain=prog.dims[0])
    state = prog.state("state", 0.0, over=prog.dims[0])
    parts = {"t": prog.dims[0], "T - 1": T - 1, "t >= 1": prog.dims[0] >= 1, "data": x, "state": state}
    for found in (copy.copy(parts), copy.deepcopy(parts)):
        assert all(found[name] is part for name, part in parts.items())
    assert copy.deepcopy(prog.graph) is prog.graph
    for name, part in {**parts, "the graph of 'double'": prog.graph}.items():
        with pytest.raises(ProgramError) as caught:
            pickle.dumps(part)
        assert str(caught.value).replace(str(user_line_of(caught)), "LINE") == (
            f"{name} is part of a program, which cannot be pickled\n  here: LINE\n  hint: {WRITTEN_AGAIN}"
        )


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_programs_and_runs_are_not_copied(backend: str) -> None:
    prog, T = double()
    run = prog.compile({T: 2}, backend=backend)
    for whole, name, hint in (
        (
            prog,
            "program 'double'",
            WRITTEN_AGAIN,
        ),
        (
            run,
            "the compiled program 'double'",
            "prog.compile(...) gives another one; run.save(path) and run.load(path) hand a run over",
        ),
        (
            run.stream(x=[1, 2]),
            "the stream of a run",
            "run.save(path) and run.load(path) hand a run over; records and results can be copied",
        ),
    ):
        for done, attempt in (("copied", copy.copy), ("copied", copy.deepcopy), ("pickled", pickle.dumps)):
            with pytest.raises(ProgramError) as caught:
                attempt(whole)
            assert str(caught.value).replace(str(user_line_of(caught)), "LINE") == (
                f"{name} cannot be {done}\n  here: LINE\n  hint: {hint}"
            )
    assert run(x=[1, 2]).y.tolist() == [2, 4]


def user_line_of(caught: Any) -> Any:
    (_, line), *_ = caught.value.places
    assert line.file == __file__
    return line


def test_errors_are_handed_to_other_processes() -> None:
    error = BudgetError("too much", smallest=3, hint="take less")
    for found in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert str(found) == "too much\n  hint: take less"
        assert (found.message, found.hint, found.smallest) == ("too much", "take less", 3)


def test_bounds() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        n = prog.state("n", 0, over=t)
        n.next = n + 1
        prog.stop(t, when=n > 5)
        prog.output("n", n.final)
    assert prog.compile({T: 2**31 - 2})().n == 7
    for bound in (2**31 - 1, 2**40, 2**70):
        with pytest.raises(BoundError, match="a bound is 2,147,483,646 at most"):
            prog.compile({T: bound})
    with pytest.raises(BoundError, match="T = 4: it is 3 as well"):
        prog.compile({T: 3, "T": 4})
    assert prog.compile({T: 9, "T": 9})().n == 7


def test_a_value_without_the_bound_of_what_it_reads() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = 2 * prog.input("x", domain=t)
        prog.output("y", y)
    with pytest.raises(BoundError, match=r"input 'x' has shape \(T,\), and there is no number for T"):
        y.at(inputs={"x": [1, 2, 3]}, t=1)
    assert y.at({T: 3}, inputs={"x": [1, 2, 3]}, t=1) == 4


@pytest.mark.parametrize(
    "plan",
    [
        {"blocks": 5},
        {"blocks": ["t"]},
        {"buckets": [2]},
        {"buckets": {"t": 3}},
        {"tiles": None},
        {"unroll": None},
        {"host": 3},
        5,
        b"x",
        "",
        "/",
    ],
)
def test_what_is_no_plan(plan: Any) -> None:
    prog, T = double()
    with pytest.raises(ProgramError):
        prog.compile({T: 8}, plan=plan)


def test_numbers_of_numpy() -> None:
    prog, T = double()
    run = prog.compile({T: np.int64(4)}, plan=tp.Plan(blocks={"t": np.int64(2)}), memory=np.int64(10**9))
    assert run(x=np.arange(4)).y.tolist() == [0, 2, 4, 6]
    assert run.plan.blocks == {"t": 2}
    assert prog.compile({T: 4}, memory="1TiB")(x=np.arange(4)).y.tolist() == [0, 2, 4, 6]


MISTAKES = {
    "einsum: <x over (), shape (3,), float32> does not say what is summed": (
        lambda x, T: tp.einsum(x, x),
        'indices come first, then the tensors: tp.einsum("ij,j->i", a, b)',
    ),
    "-1 is not a size": (lambda x, T: tp.eye(-1), "sizes are non-negative integers or index expressions"),
    "2.5 is not a size": (lambda x, T: tp.eye(2.5), "sizes are non-negative integers or index expressions"),  # type: ignore[arg-type]
    "eye: the size T is not known while the program is written": (
        lambda x, T: tp.eye(T),
        "compare indices: tp.equal(tp.arange(T).reshape((T, 1)), tp.arange(T))",
    ),
    "jax_function: 3 in out does not say what the function returns": (
        lambda x, T: tp.jax_function(lambda x: x, x, out=3),  # type: ignore[arg-type]
        "declare results as out=tp.spec(shape, dtype), or a list of those",
    ),
    "jax_function: result 0 of nothing is None, which is no array": (
        lambda x, T: tp.jax_function(nothing, x, out=tp.spec(())),
        "return one array for every spec of out, of arrays of JAX or numbers",
    ),
}


def nothing(x: Any) -> None:
    return None


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_that_were_errors_of_pythons(message: str) -> None:
    mistake, hint = MISTAKES[message]
    with tp.Program() as prog:
        _, T = prog.dim("t")
        x = prog.input("x", 3)
        with pytest.raises(tp.errors.TempoError) as caught:
            mistake(x, T)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_what_the_hints_say(run: Any) -> None:
    with tp.Program() as prog:
        _, T = prog.dim("t")
        prog.output("eye", tp.equal(tp.arange(T).reshape((T, 1)), tp.arange(T)))
        prog.output("number", tp.jax_function(lambda x: 3.0, prog.input("x"), out=tp.spec(())))
    found = run(prog, {T: 2}, x=0)
    assert found.eye.tolist() == [[True, False], [False, True]]
    assert found.number == 3


def test_a_mistaken_declaration_leaves_nothing(run: Any) -> None:
    with tp.Program("notebook") as prog:
        x = prog.input("x", (3,))
        for name in ("x", "seed"):
            with pytest.raises(tp.errors.ProgramError):
                prog.input(name, (5,))
        prog.output("y", 2 * x + tp.random.uniform((3,)) * 0)
    np.testing.assert_array_equal(run(prog, {}, x=[1, 2, 3]).y, [2, 4, 6])


def test_gradients_by_a_named_tuple() -> None:
    class Weights(NamedTuple):
        w: tp.RecurrentTensor
        b: tp.RecurrentTensor

    with tp.Program("named") as prog:
        w, b = prog.input("w"), prog.input("b")
        gradients = tp.grad(w * w + b, Weights(w, b))
        prog.output("w", gradients.w)
        prog.output("b", gradients.b)
    result = prog.evaluate(w=3.0, b=1.0)
    assert (result["w"], result["b"]) == (6.0, 1.0)
