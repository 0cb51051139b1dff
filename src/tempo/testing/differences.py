"""Gradients against central finite differences.

An input is moved directly. A tensor that the program computes is moved by adding to it, wherever it is defined, an
input that is otherwise zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tempo.given import Result
from tempo.reference import evaluate
from tempo.testing.choices import Choices
from tempo.testing.meaning import Meaning
from tempo.testing.recipe import Dim, Recipe, build, without_unused
from tempo.testing.rewrites import here
from tempo.testing.syntax import (
    Apply,
    Case,
    Draw,
    Expression,
    Gradients,
    Input,
    Let,
    Names,
    Next,
    Output,
    Read,
    Recurrent,
    State,
    Statement,
)
from tempo.testing.terms import Number, Point, Symbol, Term

Array = np.ndarray[Any, Any]
Place = tuple[int, ...]

STEPS = (1e-5, 1e-4, 1e-6)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Moved:
    """A recipe with an input by which a tensor is moved; ``at`` says where its points are in the input."""

    recipe: Recipe
    name: str
    at: Mapping[Place, Place]


def move(recipe: Recipe, name: str) -> Moved:
    """The recipe in which a tensor can be moved through an input."""
    declared = next(s for s in recipe.statements if isinstance(s, Input | Let | Recurrent | State) and s.name == name)
    meaning = Meaning(recipe, {}, {})
    domain = declared.type.domain
    natural = list(itertools.product(*(range(meaning.numbers[d]) for d in domain)))
    if isinstance(declared, Input):
        return Moved(recipe, name, {p: p for p in natural})
    extra = f"{name}_move"
    if isinstance(declared, Let):
        added = replace(declared, value=_plus(declared.value, here(extra, domain), declared.type.dtype))
        return _moved(recipe, (), Input(extra, declared.type, 0), {declared: added}, {p: p for p in natural})
    points = sorted(meaning.defined(name) or ())
    if isinstance(declared, State):
        return _moved_state(recipe, declared, points)
    starts = [min(steps) for steps in zip(*points, strict=True)]
    stops = [max(steps) + 1 for steps in zip(*points, strict=True)]
    dims = tuple(Dim(f"{d}_move", stop - start) for d, start, stop in zip(domain, starts, stops, strict=True))
    over = tuple(d.name for d in dims)
    changes: dict[Statement, Statement] = {}
    for case in recipe.statements:
        if isinstance(case, Case) and case.name == name:
            target: tuple[Term, ...] = case.key if isinstance(case.key, tuple) else tuple(Symbol(d) for d in domain)
            items = tuple(Point(term - start) for term, start in zip(target, starts, strict=True))
            added_case = replace(case, value=_plus(case.value, Read(extra, over, items), declared.type.dtype))
            changes[case] = added_case
    at = {p: tuple(s - start for s, start in zip(p, starts, strict=True)) for p in points}
    return _moved(recipe, dims, Input(extra, replace(declared.type, domain=over), 0), changes, at)


def _moved_state(recipe: Recipe, state: State, points: list[Place]) -> Moved:
    """A state's points in lexicographic order are the steps of one new dim."""
    numbers = {d.name: d.bound for d in recipe.dims}
    domain, extra = state.type.domain, f"{state.name}_move"
    beside = tuple(d for d in domain if d not in state.over)
    sizes = {d: int(np.prod([numbers[e] for e in state.over[n + 1 :]])) for n, d in enumerate(state.over)}
    steps = Dim(extra + "s", int(np.prod([numbers[d] for d in state.over])) + 1)
    over: Names = (*beside, steps.name)
    position: Term = Number(1)
    for d in state.over:
        position = position + Symbol(d) * sizes[d]
    beside_items = tuple(Point(Symbol(d), "here") for d in beside)
    changes: dict[Statement, Statement] = {
        state: replace(
            state,
            init=_plus(state.init, Read(extra, over, (*beside_items, Point(Number(0)))), state.type.dtype),
        )
    }
    for s in recipe.statements:
        if isinstance(s, Next) and s.name == state.name:
            read = Read(extra, over, (*beside_items, Point(position)))
            changes[s] = replace(s, value=_plus(s.value, read, state.type.dtype))
    at = {}
    for p in points:
        by_dim = dict(zip(domain, p, strict=True))
        at[p] = (*(by_dim[d] for d in beside), sum(by_dim[d] * sizes[d] for d in state.over))
    return _moved(recipe, (steps,), Input(extra, replace(state.type, domain=over), 0), changes, at)


def _plus(value: Expression, move: Read, dtype: str) -> Expression:
    return Apply("+", (value, move), dtype)


def _moved(
    recipe: Recipe,
    dims: tuple[Dim, ...],
    extra: Input,
    changes: Mapping[Statement, Statement],
    at: Mapping[Place, Place],
) -> Moved:
    statements = (extra, *(changes.get(s, s) for s in recipe.statements))
    return Moved(replace(recipe, dims=(*recipe.dims, *dims), statements=statements), extra.name, at)


# -- the check --------------------------------------------------------------------------------------------


class DifferenceError(AssertionError):
    """A gradient that finite differences do not confirm."""


def check_gradients(recipe: Recipe, result: Result, choices: Choices) -> None:
    """Compare every gradient that is an output with differences of its loss, along random directions."""
    outputs = {s.name for s in recipe.statements if isinstance(s, Output) and not s.emit}
    for s in recipe.statements:
        if isinstance(s, Gradients) and s.loss in outputs:
            for name, wrt in zip(s.names, s.wrt, strict=True):
                if name in outputs:
                    _check(recipe, s.loss, wrt, result.outputs[name], choices)


def _check(recipe: Recipe, loss: str, wrt: str, gradient: Array, choices: Choices) -> None:
    types = recipe.types()
    held = [d for d in types[loss].domain if d in types[wrt].domain]
    meaning = Meaning(recipe, {}, {})
    box = meaning.box(wrt)
    starts = [r.start for r in box]
    only = tuple(s for s in recipe.statements if not isinstance(s, Output) or s.name == loss)
    moved = move(replace(recipe, statements=only), wrt)
    # Random draws are told apart by their number in the program, so all of them stay.
    draws = {s.name for s in recipe.statements if isinstance(s, Let) and isinstance(s.value, Draw)}
    built = build(without_unused(moved.recipe, draws))
    graph, arrays = built.program.graph, built.needed
    if moved.name != wrt and moved.name in arrays:
        arrays[moved.name] = np.zeros_like(arrays[moved.name])
    groups: dict[Place, list[Place]] = {}
    for p in itertools.product(*box):
        at = dict(zip(types[wrt].domain, p, strict=True))
        groups.setdefault(tuple(at[d] for d in held), []).append(p)
    random = np.random.default_rng(choices.integer(0, 2**16))
    for _ in range(min(2, len(groups))):
        point = choices.choice(sorted(groups))
        directions = {p: random.normal(size=gradient.shape[len(starts) :]) for p in groups[point]}
        found = sum(
            float(np.sum(gradient[tuple(s - start for s, start in zip(p, starts, strict=True))] * v))
            for p, v in directions.items()
        )
        errors = []
        for step in STEPS:
            ends = []
            for sign in (1, -1):
                given = dict(arrays)
                if moved.name in given:
                    array = given[moved.name].copy()
                    for p, v in directions.items():
                        array[moved.at[p]] += sign * step * v
                    given[moved.name] = array
                losses = evaluate(graph, built.bounds, given).outputs[loss]
                ends.append(_at(losses, types[loss].domain, dict(zip(held, point, strict=True))))
            wanted = (ends[0] - ends[1]) / (2 * step)
            error = abs(wanted - found) / (1 + abs(wanted) + abs(ends[0]))
            if error < TOLERANCE:
                break
            errors.append((step, wanted))
        else:
            where = f" at {dict(zip(held, point, strict=True))}" if held else ""
            raise DifferenceError(
                f"d({loss})/d({wrt}){where} along a direction is {found}, by differences "
                + ", ".join(f"{wanted} (step {step})" for step, wanted in errors)
            )


def _at(losses: Array, domain: Names, point: Mapping[str, int]) -> float:
    """The sum of the losses over the dims that are not held."""
    key = tuple(point.get(d, slice(None)) for d in domain)
    if any(isinstance(k, int) and not 0 <= k < losses.shape[n] for n, k in enumerate(key)):
        return 0.0
    return float(np.sum(losses[key]))
