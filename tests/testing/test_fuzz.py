"""Random programs through all checks, and the generator that makes them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tempo.schedule.nesting import ScheduleError
from tempo.testing import CheckError, RandomChoices, build, check, compiled, host_function, random_recipe, run
from tempo.testing.broken import BREAKINGS
from tempo.testing.checks import check_backend, evaluated
from tempo.testing.compiled import check_compiled
from tempo.testing.features import features
from tempo.testing.fuzz import Task, main, recipe_of, shrunk
from tempo.testing.hosts import recorded
from tempo.testing.longer import is_long
from tempo.testing.recipe import Dim, Recipe
from tempo.testing.rewrites import REWRITES
from tempo.testing.stops import has_gradients, is_well_formed, waits_for, with_bound
from tempo.testing.strategies import programs
from tempo.testing.syntax import (
    Apply,
    Case,
    Draw,
    Expression,
    Gradients,
    Host,
    Input,
    Let,
    Literal,
    Next,
    Output,
    Read,
    Recurrent,
    State,
    Stop,
    Type,
)
from tempo.testing.terms import Comparison, Number, Point, Span, Symbol

SLOW = settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@SLOW
@given(programs(), st.integers(0, 2**16))
def test_random_programs_pass_all_checks(recipe: Recipe, seed: int) -> None:
    check(recipe, RandomChoices(seed))


COMPILED, AT_A_TIME = 200, 25


@pytest.mark.parametrize("first", range(0, COMPILED, AT_A_TIME))
def test_random_programs_compile_to_what_they_mean(first: int) -> None:
    """With NumPy all of them, with JAX, where a program takes three times as long, every third."""
    for number in range(first, first + AT_A_TIME):
        program = evaluated(recipe_of(1, number), "evaluate")
        for backend in ("numpy",) if number % 3 else ("numpy", "jax"):
            check_backend(program, backend, RandomChoices(number))


# -- host functions ---------------------------------------------------------------------------------------


def test_calls_of_host_functions_are_written_down_while_somebody_listens() -> None:
    function = host_function("h", (2,), "float64")
    function(np.asarray(1))
    with recorded() as calls:
        first = function(np.asarray([3, 4]), np.ones(3))
        function(np.asarray(5))
    assert calls == [("h", [3, 4]), ("h", [5])]
    assert first.shape == (2, 2)
    assert first.dtype == np.float64
    assert not np.array_equal(first, function(np.asarray([3, 4]), np.zeros(3)))


def test_integers_of_host_functions_do_not_depend_on_rounding() -> None:
    function = host_function("h", (), "int32")
    assert function(np.asarray(1), np.ones(3)) == function(np.asarray(1), np.zeros(3)) == 1
    assert function(np.asarray(1), np.asarray([0, 1])) == 2


def test_calls_in_another_order_are_found() -> None:
    source = """
import tempo as tp
from tempo.testing import host_function
with tp.Program() as prog:
    t, T = prog.dim("t")
    prog.output("y", tp.host(host_function("h", (), "int32"), t.value, out=tp.spec((), "int32"), sequence=(t,)))
bounds, inputs = {T: 3}, {}
"""
    built = run(source)
    with recorded() as calls:
        expected = built.program.evaluate(built.bounds)
    assert calls == [("h", [0]), ("h", [1]), ("h", [2])]
    graph, bounds = built.program.graph, built.bounds
    assert check_compiled(graph, bounds, {}, expected, calls, "numpy", RandomChoices(0))
    with pytest.raises(AssertionError, match="h is called at"):
        check_compiled(graph, bounds, {}, expected, calls[::-1], "numpy", RandomChoices(0))


# -- the generator ----------------------------------------------------------------------------------------

DRAWN = 1500

# What the programs of 1500 seeds must use at least this often.
WANTED = {
    **{f"dims {n}": 100 for n in (1, 2, 3)},
    **{f"bound {n}": 100 for n in (1, 2, 3, 4, 5)},
    **{f"dtype {d}": 100 for d in ("float32", "float64", "bfloat16", "int32", "bool")},
    **{f"shape {s}": 200 for s in ("()", "(2,)", "(3, 2)")},
    **{f"index {kind}": 50 for kind in ("shift", "clamped", "reversed", "extremum", "//", "%", "constant")},
    **{f"index {kind}": 50 for kind in ("here", "first", "last", "scaled", "other", "joined")},
    **{f"slice {kind}": 30 for kind in ("all", "constant", "prefix", "suffix", "window", "window around")},
    **{f"slice {kind}": 10 for kind in ("single", "block", "other prefix", "over several dims")},
    **{f"case {kind}": 50 for kind in ("condition", "pinned first", "pinned last", "shifted")},
    **{f"recurrence {kind}": 50 for kind in ("forward", "backward", "over a slice", "of several tensors")},
    **{f"random {kind}": 5 for kind in ("normal", "uniform", "randint", "bernoulli", "categorical", "permutation")},
    **{f"gradient {kind}": 50 for kind in ("of input", "of recurrent", "of state", "of let", "of several")},
    **{f"gradient {kind}": 50 for kind in ("of second order", "with held dims", "with summed dims")},
    **{f"function {name}": 30 for name in ("sum", "softmax", "@", "cumsum", "take", "where", "astype", "space")},
    **{f"function {name}": 5 for name in ("sort", "argmax", "argmin", "argsort", "max", "min", "prod", "mean")},
    **{f"function {name}": 5 for name in ("cummax", "linear_scan", "one_hot", "scatter_add", "einsum")},
    **{f"host call{kind}": 5 for kind in ("", " for a batch", " in a recurrence")},
    **{f"stop with {kind}": 10 for kind in ("gradient", "random", "host")},
    "stop": 100,
    "stop on a gradient": 5,
    "bound of many steps": 25,
    "function top_k": 3,
    "function conv1d": 50,
    "function conv2d": 10,
    "gradient of third order": 10,
    "state over 1": 50,
    "state over 2": 50,
    "state with parallel copies": 10,
    "training": 50,
    "shape symbolic": 50,
    "let of a view": 20,
    "emit": 50,
    "output of an index": 50,
    "step as a tensor": 50,
    "condition as a tensor": 50,
}


def test_the_generator_covers_all_features() -> None:
    counts: Counter[str] = Counter()
    for number in range(DRAWN):
        counts.update(features(recipe_of(0, number)))
    missing = {name: counts[name] for name, least in WANTED.items() if counts[name] < least}
    assert not missing


def test_a_seed_gives_the_same_program_every_time() -> None:
    for seed in range(50):
        assert random_recipe(seed) == random_recipe(seed)
    assert len({random_recipe(seed).source for seed in range(50)}) > 45


def test_most_programs_may_have_many_steps() -> None:
    longer = [recipe_of(0, number, longer=True) for number in range(50)]
    assert longer == [recipe_of(0, number, longer=True) for number in range(50)]
    assert sum(is_long(recipe) for recipe in longer) > 40
    assert all(is_well_formed(recipe) for recipe in longer)


def test_the_source_of_a_recipe_is_a_program_of_its_own() -> None:
    """Pasted somewhere else, it gives the same results."""
    for seed in range(20):
        recipe = random_recipe(seed)
        ast.parse(recipe.source)
        built = build(recipe)
        again = run(recipe.source, "pasted")
        assert {str(b): n for b, n in built.bounds.items()} == {str(b): n for b, n in again.bounds.items()}
        for name, array in built.inputs.items():
            np.testing.assert_array_equal(array, again.inputs[name])


def test_programs_are_drawn_without_hypothesis() -> None:
    """It is a dependency of development only."""
    code = "import sys, tempo.testing.fuzz; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


# -- the checks find what they should ---------------------------------------------------------------------


def test_every_rewrite_applies_somewhere() -> None:
    unused = {rewrite.__name__ for rewrite in REWRITES}
    for number in range(60):
        recipe = recipe_of(0, number)
        for rewrite in REWRITES:
            if rewrite(recipe, RandomChoices(number)) != recipe:
                unused.discard(rewrite.__name__)
    assert not unused


def test_every_way_of_breaking_breaks_something() -> None:
    unused = {breaking.__name__ for breaking in BREAKINGS}
    for number in range(60):
        recipe = recipe_of(0, number)
        for breaking in BREAKINGS:
            if breaking(recipe, RandomChoices(number)) != recipe:
                unused.discard(breaking.__name__)
    assert not unused


def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Tempo in which tanh is something else."""
    from tempo.ops import elementwise

    monkeypatch.setattr(elementwise, "TANH", elementwise.SIN)


def test_a_wrong_operation_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch)
    number, recipe, failure = next(
        (number, recipe, failure)
        for number in range(100)
        if "function tanh" in features(recipe := recipe_of(0, number))
        and (failure := Task(0, number).failure(recipe)) is not None
        and failure.check == "meaning"
    )
    small = shrunk(recipe, failure, Task(0, number))
    assert len(small.source) < len(recipe.source)
    assert len(small.statements) <= 6
    assert "tanh" in small.source
    assert any(isinstance(s, Output) for s in small.statements)
    with pytest.raises(CheckError, match="meaning"):
        check(small, RandomChoices(0))


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tempo.ops import elementwise

    zero = replace(elementwise.TANH, gradient=lambda g, out, x: (0 * g,))
    monkeypatch.setattr(elementwise, "TANH", zero)
    found = [Task(0, number).failure(recipe_of(0, number)) for number in range(60)]
    assert any(failure is not None and failure.check == "gradients" for failure in found)


def test_a_rewritten_program_may_need_more_than_the_one_before() -> None:
    """Program 205 of seed 92003: of tensors that need each other, gradients are computed wherever these are defined,
    and so is what one of them reads out of range, once it is a tensor with a case of its own."""
    task = Task(92003, 205, ("numpy",))
    assert "numpy compiled" in task.check(task.recipe)


def test_the_command_reports_a_failure_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong(monkeypatch)
    assert main(["--count", "30", "--jobs", "0", "--most-failures", "1", "--no-shrink"]) == 1
    printed = capsys.readouterr().out
    assert "(again: --seed 0 --only " in printed
    assert "import tempo as tp" in printed


def test_the_command_counts_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "3", "--jobs", "1", "--backends", "numpy"]) == 0
    printed = capsys.readouterr().out
    assert "programs that used each feature:" in printed
    assert "3 programs in " in printed
    assert "compiled with jax 0, numpy 3; with stops " in printed
    assert "; 0 refused, 0 failed" in printed


def test_a_program_that_no_loops_are_found_for_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ScheduleError("no loops")

    monkeypatch.setattr(compiled, "Executable", refuse)
    assert main(["--only", "33", "--jobs", "0", "--backends", "numpy"]) == 0
    assert "refused: 33" in capsys.readouterr().out


def test_a_program_that_compiles_for_too_long_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ends(*_: object, **__: object) -> None:
        while True:
            pass

    monkeypatch.setattr(compiled, "Executable", never_ends)
    monkeypatch.setattr(compiled, "COMPILING_SECONDS", 0.1)
    arguments = ["--only", "33", "--jobs", "0", "--longer", "--backends", "numpy", "--no-shrink"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "== program 33 fails (again: --seed 0 --only 33 --backends numpy --longer)" in printed
    assert "compile numpy: TooSlowError: compiling takes more than 0.1 seconds" in printed


def test_a_backend_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--backends", "numpy,torch"])
    assert "there is no backend 'torch': backends are jax, numpy" in capsys.readouterr().err


def test_only_runs_one_program_and_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "2", "--jobs", "0"]) == 0
    assert capsys.readouterr().out.startswith(recipe_of(0, 2).source)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: Draw("categorical", (x,), (), "int32"),
        lambda x: Host("r", (Literal(0), x), (), (), (), "int32"),
    ],
)
def test_a_dim_does_not_stop_before_a_step_that_is_given_to_something(use: Callable[[Read], Expression]) -> None:
    first, second = (Read("x", ("t",), (Point(Number(n)),)) for n in (0, 1))
    made = Let("r", Type((), (), "int32"), use(second))
    statements = Input("x", Type(("t",), (3,), "float32"), 0), made, Output("x0", first)
    recipe = Recipe((Dim("t", 2),), statements)
    assert is_well_formed(recipe)
    assert not is_well_formed(with_bound(recipe, "t", 1))


def test_a_dim_does_not_stop_before_a_step_that_a_case_nobody_needs_reads() -> None:
    first, second = (Read("x", ("t",), (Point(Number(n)),)) for n in (0, 1))
    statements = (
        Input("x", Type(("t",), (), "float32"), 0),
        Recurrent("a", Type(("s",), (), "float32")),
        Case("a", (Number(0),), second),
        Case("a", (Symbol("s"),), first),
        Output("a1", Read("a", ("s",), (Point(Number(1)),))),
    )
    recipe = Recipe((Dim("s", 2), Dim("t", 2)), statements)
    assert is_well_formed(recipe)
    assert not is_well_formed(with_bound(recipe, "t", 1))


def test_a_dim_does_not_stop_on_what_is_not_there_at_its_last_step() -> None:
    following = Read("x", ("t",), (Point(Symbol("t") + 1),))
    whole = Output("x", Read("x", ("t",), (Point(Symbol("t"), "here"),)))
    statements = Input("x", Type(("t",), (), "bool"), 0), whole, Stop("t", following)
    assert not is_well_formed(Recipe((Dim("t", 2),), statements))


def trained(over: tuple[str, ...], held: tuple[str, ...]) -> Recipe:
    """A state that follows the gradient of a loss which varies over ``held``."""
    weights = Read("w", over, tuple(Point(Symbol(d), "here") for d in over))
    others = Read("x", held, tuple(Point(Symbol(d), "here") for d in held))
    slope = Read("g", over, weights.items)
    statements = (
        Input("x", Type(held, (), "float32"), 0),
        State("w", Type(over, (), "float32"), Literal(1.0), over),
        Let("l", Type(held, (), "float32"), Apply("*", (weights, others), "float32")),
        Gradients(("g",), "l", ("w",)),
        Next("w", Apply("-", (weights, slope), "float32")),
        Output("l", Read("l", held, others.items)),
    )
    return Recipe((Dim("t", 2), Dim("s", 2)), statements)


def test_a_dim_stops_on_gradients_at_its_own_step_only() -> None:
    t, s = trained(("t",), ("t", "s")).dims
    assert not waits_for(trained(("t",), ("t", "s")), "l", t)
    # Summed over all of its steps, or of another round.
    assert waits_for(trained(("t",), ("t", "s")), "l", s)
    assert waits_for(trained(("t", "s"), ("t", "s")), "l", s)


def test_a_dim_does_not_stop_on_calls_of_another_round() -> None:
    """A round's first call is made after the last one of the round before."""
    call = Host("h", (Literal(0),), ("t", "s"), (), (), "float32")
    recipe = Recipe((Dim("t", 2), Dim("s", 2)), (Let("h", Type(("t", "s"), (), "float32"), call),))
    t, s = recipe.dims
    assert not waits_for(recipe, "h", t)
    assert waits_for(recipe, "h", s)


def test_a_dim_does_not_stop_before_a_step_that_a_gradient_needs() -> None:
    """y has no step where the case applies that reads x[1]; what the case computes is differentiated all the same."""
    first, second = (Read("x", ("t",), (Point(Number(n)),)) for n in (0, 1))
    product = Apply("*", (first, second), "float32")
    whole = Read("y", ("s",), (Span(Number(0), Symbol("S")),))
    statements = (
        Input("x", Type(("t",), (), "float32"), 0),
        Recurrent("y", Type(("s",), (), "float32")),
        Case("y", Comparison("==", Symbol("s") % 2, Number(1)), Apply("tanh", (product,), "float32")),
        Case("y", (Symbol("s"),), first),
        Let("l", Type((), (), "float32"), Apply("sum", (whole,), "float32")),
        Gradients(("g",), "l", ("x",)),
        Output("g", Read("g", ("t",), (Point(Number(0)),))),
    )
    recipe = Recipe((Dim("t", 2), Dim("s", 1)), statements)
    assert has_gradients(recipe)
    assert not has_gradients(with_bound(recipe, "t", 1))
