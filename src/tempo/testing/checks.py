"""What is checked of a recipe.

(a) its graph is legal, (b) it evaluates, to finite numbers, and to what an independent reading of the recipe says,
(c) rewritten into another program of the same meaning it gives the same results, (d) the analysis raises exactly where
the exact walk does, (e) its gradients are those of finite differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tempo.analysis import check_program
from tempo.analysis.walk import walk
from tempo.errors import CausalityError, DefinitionError, InputError, TempoError
from tempo.graph.validate import validate
from tempo.reference import Result, check_bounds, evaluate
from tempo.testing.broken import BREAKINGS
from tempo.testing.choices import Choices
from tempo.testing.differences import check_gradients
from tempo.testing.meaning import Meaning
from tempo.testing.recipe import Built, Draw, Gradients, Let, Output, Recipe, build, defines, used
from tempo.testing.rewrites import REWRITES

Array = np.ndarray[Any, Any]

# How far two results may be apart, relative to the largest number in them.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 1e-1}


class Failure(Exception):
    """A check that a recipe does not pass. ``recipe`` is the program that fails, which may be a rewritten one."""

    def __init__(self, check: str, recipe: Recipe, reason: BaseException | str) -> None:
        self.check = check
        self.recipe = recipe
        self.reason = reason
        kind = type(reason).__name__ if isinstance(reason, BaseException) else "wrong"
        super().__init__(f"{check}: {kind}: {reason}")

    @property
    def kind(self) -> tuple[str, str]:
        """What failures are told apart by while a recipe is made smaller."""
        return self.check, type(self.reason).__name__


@dataclass(frozen=True)
class Run:
    """A recipe, the program built of it, and its results."""

    recipe: Recipe
    built: Built
    result: Result


def check(recipe: Recipe, choices: Choices) -> None:
    """Raise ``Failure`` for the first check that the recipe does not pass."""
    run = evaluated(recipe, "evaluate")
    check_meaning(run)
    if recipe.smooth:
        guarded("gradients", recipe, lambda: check_gradients(recipe, run.result, choices))
    # Each costs about as much as everything above: one of them is enough for one program.
    if choices.boolean(0.6):
        check_rewrites(run, choices)
    else:
        check_broken(recipe, choices)


def guarded(check: str, recipe: Recipe, action: Any) -> Any:
    """The result of an action whose errors are failures of a check."""
    try:
        return action()
    except Exception as error:
        raise Failure(check, recipe, error) from error


def inputs_of(built: Built) -> dict[str, Array]:
    """The arrays of the inputs that the program needs."""
    needed = {n.attributes["input"] for n in built.program.graph.nodes if n.op.name == "input"}
    return {name: array for name, array in built.inputs.items() if name in needed}


def evaluated(recipe: Recipe, check: str) -> Run:
    """The recipe built, validated, analysed and evaluated."""
    built = guarded(f"{check}: build", recipe, lambda: build(recipe))
    guarded(f"{check}: graph", recipe, lambda: validate(built.program.graph))
    guarded(f"{check}: print", recipe, lambda: str(built.program.graph))
    guarded(f"{check}: analyse", recipe, lambda: built.program.check(built.bounds))
    graph, inputs = built.program.graph, inputs_of(built)
    result = guarded(f"{check}: run", recipe, lambda: evaluate(graph, built.bounds, inputs))
    return Run(recipe, built, result)


# -- (b) against the meaning ------------------------------------------------------------------------------


def check_meaning(run: Run) -> None:
    """The results are finite, and what the recipe says they are."""
    recipe, outputs = run.recipe, run.result.outputs
    known = {name: outputs[name] for name in opaque(recipe) if name in outputs}
    meaning = Meaning(recipe, run.built.inputs, known)
    for s in recipe.statements:
        if not isinstance(s, Output):
            continue
        if s.emit:
            records = run.result.emits[s.name]
            expected = guarded("meaning", recipe, lambda s=s: meaning.records(s))
            found = [(tuple(r.point.values()), r.value) for r in records]
            if [p for p, _ in found] != [p for p, _ in expected]:
                raise Failure("meaning", recipe, f"emit {s.name} has records at other points")
            pairs = [(a, b) for (_, a), (_, b) in zip(found, expected, strict=True)]
        else:
            pairs = [(outputs[s.name], guarded("meaning", recipe, lambda s=s: meaning.output(s)))]
        for array, wanted in pairs:
            if not np.all(np.isfinite(array.astype(np.float64))):
                raise Failure("finite", recipe, f"output {s.name} is not finite")
            problem = difference(array, wanted)
            if problem:
                raise Failure("meaning", recipe, f"output {s.name} {problem}")


def opaque(recipe: Recipe) -> set[str]:
    """The tensors whose values only a run can tell: random draws and gradients."""
    names: set[str] = set()
    for s in recipe.statements:
        if isinstance(s, Gradients):
            names.update(s.names)
        elif isinstance(s, Let) and isinstance(s.value, Draw):
            names.add(s.name)
    return names


def difference(found: Array, wanted: Array, exact: bool = False) -> str:
    """How two arrays differ, empty if they do not."""
    if found.shape != wanted.shape:
        return f"has shape {found.shape}, not {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"is {found.dtype}, not {wanted.dtype}"
    tolerance = 0.0 if exact else TOLERANCES.get(found.dtype.name, 0.0)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    scale = 1 + np.max(np.abs(b), initial=0.0)
    wrong = ~(np.abs(a - b) <= tolerance * scale)
    if not np.any(wrong):
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"is {a[at]} at {at}, not {b[at]}"


# -- (c) rewritten ----------------------------------------------------------------------------------------


def check_rewrites(run: Run, choices: Choices) -> None:
    """A few rewrites, one after the other, leave the results as they are."""
    recipe, names = run.recipe, []
    for _ in range(choices.integer(1, 3)):
        rewrite = choices.choice(REWRITES)
        recipe = rewrite(recipe, choices)
        names.append(rewrite.__name__)
    if recipe == run.recipe:
        return
    check = f"rewrite {' '.join(names)}"
    rewritten = evaluated(recipe, check)
    inexact = rounded(run.recipe)
    for s in run.recipe.statements:
        if isinstance(s, Output) and not s.emit:
            found, wanted = rewritten.result.outputs[s.name], run.result.outputs[s.name]
            problem = difference(found, wanted, exact=not used(s) & inexact)
            if problem:
                raise Failure(check, recipe, f"output {s.name} {problem}")


def rounded(recipe: Recipe) -> set[str]:
    """The tensors that depend on gradients, whose sums may be taken in another order."""
    names: set[str] = set()
    size = -1
    while size < len(names):
        size = len(names)
        for s in recipe.statements:
            if isinstance(s, Gradients) or used(s) & names:
                names.update(defines(s))
    return names


# -- (d) broken -------------------------------------------------------------------------------------------


def check_broken(recipe: Recipe, choices: Choices) -> None:
    """Of a program broken on purpose the analysis says what the exact walk says."""
    broken = choices.choice(BREAKINGS)(recipe, choices)
    try:
        built = build(broken)
        graph = built.program.graph
        numbers = check_bounds(graph, built.bounds)
    except (TempoError, NameError):
        return
    except Exception as error:
        raise Failure("broken: build", broken, error) from error
    exact = outcome("broken: walk", broken, lambda: walk(graph, numbers))
    analysed = outcome("broken: analyse", broken, lambda: check_program(graph, built.bounds))
    if exact != analysed:
        raise Failure("broken", broken, f"the walk says {exact}, the analysis {analysed}")
    if exact == "fine":
        outcome("broken: run", broken, lambda: evaluate(graph, built.bounds, inputs_of(built)))
    elif runs(built):
        raise Failure("broken", broken, f"the walk says {exact}, the oracle runs it")


def runs(built: Built) -> bool:
    """Whether the oracle gets through a program, unchecked; how it fails does not matter."""
    try:
        evaluate(built.program.graph, built.bounds, inputs_of(built))
    except Exception:
        return False
    return True


def outcome(check: str, recipe: Recipe, action: Any) -> str:
    """The name of the error of an action that a broken program may raise; anything else is a failure."""
    try:
        action()
    except (DefinitionError, CausalityError, InputError) as error:
        return type(error).__name__
    except Exception as error:
        raise Failure(check, recipe, error) from error
    return "fine"
