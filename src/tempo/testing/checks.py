"""What is checked of a recipe.

(a) its graph is legal, (b) it evaluates, to finite numbers, and to what an independent reading of the recipe says,
(c) rewritten into another program of the same meaning it gives the same results, (d) the analysis raises exactly where
the exact walk does, (e) its gradients are those of finite differences, (f) compiled, it gives the same results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.analysis import check_program
from tempo.analysis.walk import walk
from tempo.errors import CausalityError, DefinitionError, InputError, TempoError
from tempo.given import Result, check_bounds
from tempo.graph.validate import validate
from tempo.reference import evaluate
from tempo.symbolic import as_expr
from tempo.tensor import RecurrentTensor
from tempo.testing.broken import BREAKINGS
from tempo.testing.choices import Choices
from tempo.testing.compiled import check_compiled
from tempo.testing.differences import check_gradients
from tempo.testing.hosts import Calls, recorded
from tempo.testing.longer import is_long
from tempo.testing.meaning import Meaning, opaque
from tempo.testing.recipe import Built, Recipe, build, depends, execute, places
from tempo.testing.rewrites import REWRITES, let_as_recurrent
from tempo.testing.stops import stopped
from tempo.testing.syntax import Apply, Draw, Gradients, Host, Output, Stop, defines, expressions, parts, used

Array = np.ndarray[Any, Any]

# How far two results may be apart, relative to the largest number in them.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 1e-1}

# How much of an error is shown.
MOST_CHARACTERS = 2000


class CheckError(Exception):
    """A check that a recipe does not pass. ``recipe`` is the program that fails, which may be a rewritten one."""

    def __init__(self, check: str, recipe: Recipe, reason: BaseException | str) -> None:
        self.check = check
        self.recipe = recipe
        self.reason = reason
        kind = type(reason).__name__ if isinstance(reason, BaseException) else "wrong"
        # An error may show a node with everything that it depends on.
        super().__init__(f"{check}: {kind}: {str(reason)[:MOST_CHARACTERS]}")

    @property
    def kind(self) -> tuple[str, str]:
        """What failures are told apart by while a recipe is made smaller."""
        return self.check, type(self.reason).__name__


@dataclass(frozen=True)
class Run:
    """A recipe, the program built of it, its results and the calls of host functions that were made for them."""

    recipe: Recipe
    built: Built
    result: Result
    calls: Calls


def check(recipe: Recipe, choices: Choices, backends: Sequence[str] | None = None) -> frozenset[str]:
    """Raise ``CheckError`` for the first check that the recipe does not pass.

    It is compiled with each of the ``backends``; if none are named, every other recipe is, with one chosen at random.
    The result has "compiled" or "refused" for every backend: "jax compiled".
    """
    run = evaluated(recipe, "evaluate")
    check_meaning(run)
    if backends is None:
        # XLA takes about as long as everything else here.
        backends = (("jax" if choices.boolean(0.05) else "numpy"),) if choices.boolean(0.5) else ()
    facts = frozenset(f"{b} {'compiled' if check_backend(run, b, choices) else 'refused'}" for b in backends)
    if any(isinstance(s, Stop) for s in recipe.statements):
        check_stopped(run)
        return facts
    if is_long(recipe):
        # What is left is about the language, which is the same for few steps.
        return facts
    if recipe.smooth:
        guarded("gradients", recipe, lambda: check_gradients(recipe, run.result, choices))
    # Each costs about as much as everything above: one of them is enough for one program.
    if choices.boolean(0.6):
        check_rewrites(run, choices)
    else:
        check_broken(recipe, choices)
    return facts


def check_backend(run: Run, backend: str, choices: Choices) -> bool:
    """Whether a backend compiles the program; if so, to what the oracle says."""
    graph, bounds, inputs = run.built.program.graph, run.built.bounds, run.built.needed
    compiled: bool = guarded(
        f"compile {backend}",
        run.recipe,
        lambda: check_compiled(graph, bounds, inputs, run.result, run.calls, backend, choices),
    )
    return compiled


def guarded(check: str, recipe: Recipe, action: Any) -> Any:
    """The result of an action whose errors are failures of a check."""
    try:
        return action()
    except Exception as error:
        raise CheckError(check, recipe, error) from error


def evaluated(recipe: Recipe, check: str, analyse: bool = True) -> Run:
    """The recipe built, validated, analysed and evaluated."""
    namespace = guarded(f"{check}: build", recipe, lambda: execute(recipe.source))
    built = Built(namespace["prog"], namespace["bounds"], namespace["inputs"])
    check_types(recipe, namespace, check)
    guarded(f"{check}: graph", recipe, lambda: validate(built.program.graph))
    guarded(f"{check}: print", recipe, lambda: str(built.program.graph))
    if analyse:
        guarded(f"{check}: analyse", recipe, lambda: built.program.check(built.bounds))
    graph, inputs = built.program.graph, built.needed
    with recorded() as calls:
        result = guarded(f"{check}: run", recipe, lambda: evaluate(graph, built.bounds, inputs))
    return Run(recipe, built, result, calls)


def check_types(recipe: Recipe, namespace: Mapping[str, Any], check: str) -> None:
    """Domains, shapes and dtypes are what the recipe says."""
    for name, type in recipe.types().items():
        tensor, places_ = namespace[name], places(recipe.dims, type.domain)
        wanted = (tuple(namespace[d] for d in type.domain), len(type.shape), type.dtype)
        if not isinstance(tensor, RecurrentTensor):
            raise CheckError(f"{check}: types", recipe, f"{name} is a {tensor.__class__.__name__}")
        if (tensor.domain, tensor.ndim, tensor.dtype.name) != wanted:
            raise CheckError(f"{check}: types", recipe, f"{name} is {tensor!r}, not {type}")
        for size, found in zip(type.shape, tensor.shape, strict=True):
            if isinstance(size, int):
                same = size == found
            else:
                here = [{namespace[s]: n for s, n in place.items()} for place in places_]
                sizes = [size.evaluate(place) for place in places_]
                same = sizes == [as_expr(found).evaluate(values) for values in here]
            if not same:
                raise CheckError(f"{check}: types", recipe, f"{name} has shape {tensor.shape}, not {type.shape}")


# -- (b) against the meaning ------------------------------------------------------------------------------


def check_meaning(run: Run) -> None:
    """The results are finite, and what the recipe says they are."""
    recipe, outputs = run.recipe, run.result.outputs
    known = {name: outputs[name] for name in opaque(recipe) if name in outputs}
    made = guarded("meaning", recipe, lambda: stopped(recipe, run.built.inputs, known))
    meaning = Meaning(made, run.built.inputs, known)
    for call in host_calls(recipe):
        made_at, wanted_at = [point for name, point in run.calls if name == call.name], meaning.calls(call)
        if made_at != wanted_at:
            raise CheckError("meaning", recipe, f"{call.name} is called at {made_at}, not at {wanted_at}")
    for s in recipe.statements:
        if not isinstance(s, Output):
            continue
        if s.emit:
            records = run.result.emits[s.name]
            expected = guarded("meaning", recipe, lambda s=s: meaning.records(s))
            found = [(tuple(r.point.values()), r.value) for r in records]
            if [p for p, _ in found] != [p for p, _ in expected]:
                raise CheckError("meaning", recipe, f"emit {s.name} has records at other points")
            pairs = [(a, b) for (_, a), (_, b) in zip(found, expected, strict=True)]
        else:
            pairs = [(outputs[s.name], guarded("meaning", recipe, lambda s=s: meaning.output(s)))]
        for array, wanted in pairs:
            if not np.all(np.isfinite(array.astype(np.float64))):
                raise CheckError("finite", recipe, f"output {s.name} is not finite")
            problem = difference(array, wanted, tolerance(recipe, s))
            if problem:
                raise CheckError("meaning", recipe, f"output {s.name} {problem}")


def host_calls(recipe: Recipe) -> list[Host]:
    return [p for s in recipe.statements for e in expressions(s) for p in parts(e) if isinstance(p, Host)]


def tolerance(recipe: Recipe, statement: Output) -> float:
    """How far a result may be from another: by the coarsest dtype that it depends on."""
    names = used(statement) | depends(recipe.statements, used(statement))
    concerned = [s for s in recipe.statements if names & set(defines(s))]
    found = {type.dtype for name, type in recipe.types().items() if name in names}
    found |= {
        p.dtype for s in concerned for e in expressions(s) for p in parts(e) if isinstance(p, Apply | Draw | Host)
    }
    return max(TOLERANCES.get(dtype, 0.0) for dtype in found)


def difference(found: Array, wanted: Array, tolerance: float) -> str:
    """How two arrays differ, empty if they do not."""
    if found.shape != wanted.shape:
        return f"has shape {found.shape}, not {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"is {found.dtype}, not {wanted.dtype}"
    if not dtypes.is_float(found.dtype):
        tolerance = 0.0
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    scale = 1 + np.max(np.abs(b), initial=0.0)
    wrong = ~(np.abs(a - b) <= tolerance * scale)
    if not np.any(wrong):
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"is {a[at]} at {at}, not {b[at]}"


def check_stopped(run: Run) -> None:
    """A program that stops is the one whose bound is the number of steps that were made, gradients and all."""
    known = {name: array for name, array in run.result.outputs.items() if name in opaque(run.recipe)}
    made = stopped(run.recipe, run.built.inputs, known)
    plain = replace(made, statements=tuple(s for s in made.statements if not isinstance(s, Stop)))
    built = guarded("stopped: build", plain, lambda: build(plain))
    numbers = {d.name: d.bound for d in plain.dims}
    given = {
        s.name: run.built.inputs[s.name][tuple(slice(numbers[d]) for d in s.type.domain)] for s in run.recipe.inputs
    }
    inputs = Built(built.program, built.bounds, given).needed
    result = guarded("stopped: run", plain, lambda: evaluate(built.program.graph, built.bounds, inputs))
    for s in plain.statements:
        if isinstance(s, Output) and not s.emit:
            problem = difference(run.result.outputs[s.name], result.outputs[s.name], tolerance(plain, s))
            if problem:
                raise CheckError("stopped", run.recipe, f"output {s.name} {problem}")


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
    try:
        rewritten = evaluated(recipe, check, analyse=choices.boolean())
    except CheckError as error:
        # Gradients of recurrent tensors that need each other flow wherever these are defined; what is no such tensor
        # need not be defined where nobody reads it.
        flows = any(isinstance(s, Gradients) for s in recipe.statements)
        if flows and let_as_recurrent.__name__ in names and isinstance(error.__cause__, DefinitionError):
            return
        raise
    for s in run.recipe.statements:
        if isinstance(s, Output) and not s.emit:
            found, wanted = rewritten.result.outputs[s.name], run.result.outputs[s.name]
            problem = difference(found, wanted, tolerance(run.recipe, s))
            if problem:
                raise CheckError(check, recipe, f"output {s.name} {problem}")


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
        raise CheckError("broken: build", broken, error) from error
    exact = outcome("broken: walk", broken, lambda: walk(graph, numbers))
    analysed = outcome("broken: analyse", broken, lambda: check_program(graph, built.bounds))
    if exact != analysed:
        raise CheckError("broken", broken, f"the walk says {exact}, the analysis {analysed}")
    if exact == "fine":
        outcome("broken: run", broken, lambda: evaluate(graph, built.bounds, built.needed))
    elif runs(built):
        raise CheckError("broken", broken, f"the walk says {exact}, the oracle runs it")


def runs(built: Built) -> bool:
    """Whether the oracle gets through a program, unchecked; how it fails does not matter."""
    try:
        evaluate(built.program.graph, built.bounds, built.needed)
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
        raise CheckError(check, recipe, error) from error
    return "fine"
