"""What a recipe means, computed straight from the data: an independent reading of the language in plain NumPy.

It shares nothing with the oracle but NumPy: no graph, no index expressions, no primitives. Random draws and
gradients are not computed here; their values are taken from a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.testing.functions import meaning
from tempo.testing.hosts import mixed
from tempo.testing.recipe import Assignment, Recipe, assignment, places
from tempo.testing.syntax import (
    Apply,
    Case,
    Draw,
    Expression,
    Gradients,
    Holds,
    Host,
    Input,
    Let,
    Literal,
    Next,
    Output,
    Read,
    Recurrent,
    State,
    Steps,
    Type,
    symbols,
)
from tempo.testing.terms import Point, Span, Term

Array = np.ndarray[Any, Any]
Place = tuple[int, ...]


class Meaning:
    """Values of a recipe on demand, each computed once. ``known`` has what is taken from a run, by name."""

    def __init__(self, recipe: Recipe, inputs: Mapping[str, Array], known: Mapping[str, Array]) -> None:
        self.recipe = recipe
        self.inputs = inputs
        self.known = known
        self.types = recipe.types()
        self.numbers = {d.name: d.bound for d in recipe.dims}
        self.values: dict[tuple[str, Place], Array] = {}
        self.declared = {s.name: s for s in recipe.statements if isinstance(s, Input | Let | Recurrent | State)}
        self.next = {s.name: s.value for s in recipe.statements if isinstance(s, Next)}
        self.like = {
            g: w for s in recipe.statements if isinstance(s, Gradients) for g, w in zip(s.names, s.wrt, strict=True)
        }
        self.cases: dict[str, list[Case]] = {}
        for s in recipe.statements:
            if isinstance(s, Case):
                self.cases.setdefault(s.name, []).append(s)
        self.assignments: dict[str, Assignment] = {
            name: assignment(recipe.dims, self.types[name].domain, [c.key for c in cases])
            for name, cases in self.cases.items()
        }

    # -- results ------------------------------------------------------------------------------------------

    def output(self, statement: Output) -> Array:
        """The array of an output: over all points where it is defined, if they are a box, else all steps."""
        read = statement.value
        assert isinstance(read, Read)
        domain = [d.name for d in self.recipe.dims if d.name in symbols(read)]
        if self.is_here(read):
            box = self.box(read.name)
        else:
            box = [range(self.numbers[d]) for d in domain]
        limits = self.recipe.values
        rows = [self.evaluate(read, {**limits, **dict(zip(domain, p, strict=True))}) for p in itertools.product(*box)]
        return np.stack(rows).reshape((*(len(r) for r in box), *rows[0].shape))

    def records(self, statement: Output) -> list[tuple[Place, Array]]:
        """What is emitted, at every step of its dims."""
        found = symbols(statement.value)
        domain = tuple(d.name for d in self.recipe.dims if d.name in found)
        return [
            (tuple(p[d] for d in domain), np.asarray(self.evaluate(statement.value, p)))
            for p in places(self.recipe.dims, domain)
        ]

    def is_here(self, read: Read) -> bool:
        return str(read) == read.name

    def box(self, name: str) -> list[range]:
        """The points over which a whole tensor is handed out."""
        name = self.original(self.like.get(name, name))
        natural = [range(self.numbers[d]) for d in self.types[name].domain]
        defined = self.defined(name)
        if defined is None:
            return natural
        around = [range(min(steps), max(steps) + 1) for steps in zip(*defined, strict=True)]
        return around if all(p in defined for p in itertools.product(*around)) else natural

    def original(self, name: str) -> str:
        """The tensor that another name stands for."""
        declared = self.declared.get(name)
        if isinstance(declared, Let) and isinstance(declared.value, Read) and self.is_here(declared.value):
            return self.original(declared.value.name)
        return name

    def defined(self, name: str) -> set[Place] | None:
        """The points of a tensor defined by cases; None for one that has its values at all steps."""
        declared = self.declared[name]
        if isinstance(declared, Recurrent):
            return set(self.assignments[name])
        if isinstance(declared, State):
            domain = declared.type.domain
            points = {tuple(p[d] for d in domain) for p in places(self.recipe.dims, domain)}
            first, *inner = declared.over
            end = {first: self.numbers[first], **{d: 0 for d in inner}}
            ends = {tuple(end.get(d, s) for d, s in zip(domain, p, strict=True)) for p in points}
            return points | ends
        return None

    # -- values -------------------------------------------------------------------------------------------

    def value(self, name: str, point: Place) -> Array:
        """A named tensor at a point."""
        if (name, point) not in self.values:
            self.values[name, point] = self.compute(name, point)
        return self.values[name, point]

    def compute(self, name: str, point: Place) -> Array:
        if name in self.known:
            starts = [r.start for r in self.box(name)]
            at = tuple(p - start for p, start in zip(point, starts, strict=True))
            assert all(p >= 0 for p in at)
            return np.asarray(self.known[name][at])
        if self.original(name) != name:
            return self.value(self.original(name), point)
        assert name in self.declared, f"{name} is not among the results, so its values are not known"
        declared = self.declared[name]
        here = {**self.recipe.values, **dict(zip(declared.type.domain, point, strict=True))}
        if isinstance(declared, Recurrent):
            case, place = self.assignments[name][point]
            return self.shaped(self.evaluate(self.cases[name][case].value, place), declared.type, here)
        natural = all(0 <= p < self.numbers[d] for d, p in zip(declared.type.domain, point, strict=True))
        if isinstance(declared, State):
            assert point in (self.defined(name) or ()), f"{name}{point} is not defined"
            before = self.before(declared, here)
            value = declared.init if before is None else self.next[name]
            return self.shaped(self.evaluate(value, before or here), declared.type, here)
        assert natural, f"{name}{point} is out of range"
        if isinstance(declared, Input):
            return np.asarray(self.inputs[name][point])
        return self.shaped(self.evaluate(declared.value, here), declared.type, here)

    def before(self, state: State, here: dict[str, int]) -> dict[str, int] | None:
        """The point that comes before in lexicographic order, None for the first."""
        for n in reversed(range(len(state.over))):
            d = state.over[n]
            if here[d] > 0:
                last = {e: self.numbers[e] - 1 for e in state.over[n + 1 :]}
                return {**here, d: here[d] - 1, **last}
        return None

    def shaped(self, value: Any, type: Type, here: Mapping[str, int]) -> Array:
        shape = tuple(resolve(type.shape, here))
        array = np.broadcast_to(np.asarray(value), shape)
        assert array.dtype == dtypes.as_dtype(type.dtype), f"{array.dtype} is not {type.dtype}"
        return array

    # -- expressions --------------------------------------------------------------------------------------

    def evaluate(self, expression: Expression, here: dict[str, int]) -> Any:
        match expression:
            case Literal():
                return expression.value
            case Steps():
                return np.asarray(expression.term.evaluate(here), np.int32)
            case Holds():
                return np.asarray(expression.condition.evaluate(here))
            case Read():
                return self.read(expression, here)
            case Apply():
                arguments = [self.evaluate(a, here) for a in expression.arguments]
                attributes = {key: resolve(value, here) for key, value in expression.attributes}
                return meaning(expression, arguments, attributes)
            case Host():
                return self.host(expression, here)
            case Draw():
                raise AssertionError("the values of a random draw are taken from a run")
        raise AssertionError(f"{type(expression).__name__} is not an expression")

    def host(self, call: Host, here: dict[str, int]) -> Array:
        """One of the results of a call, which is made for all points of its batch."""
        spans = [range(self.numbers[d]) for d in call.batch]
        arguments = []
        for argument in call.arguments:
            # What does not vary over a batch dim comes without that axis.
            varies = [s if d in symbols(argument) else s[:1] for d, s in zip(call.batch, spans, strict=True)]
            points = [dict(zip(call.batch, p, strict=True)) for p in itertools.product(*varies)]
            rows = [np.asarray(self.evaluate(argument, {**here, **p})) for p in points]
            sizes = [len(s) for d, s in zip(call.batch, spans, strict=True) if d in symbols(argument)]
            arguments.append(np.stack(rows).reshape((*sizes, *rows[0].shape)))
        point, *others = arguments
        return np.asarray(mixed(point, tuple(others), call.shape, call.dtype)[tuple(here[d] for d in call.batch)])

    def calls(self, call: Host) -> list[list[int]]:
        """What a host function is given as its point, call by call, for all points of its batch."""
        number = call.arguments[0]
        found = []
        for p in places(self.recipe.dims, call.sequence):
            together = places(self.recipe.dims, call.batch)
            found.append([int(self.evaluate(number, {**p, **{d: q[d] for d in call.batch}})) for q in together])
        return found

    def read(self, read: Read, here: dict[str, int]) -> Array:
        steps = [item.steps(here) for item in read.items]
        assert all(s.start <= s.stop for s in steps), f"{read} has a negative length"
        lengths = [len(s) for item, s in zip(read.items, steps, strict=True) if isinstance(item, Span)]
        points = {d: i.term for d, i in zip(read.over, read.items, strict=True) if isinstance(i, Point)}
        type = self.types[read.name]
        sizes = (s if isinstance(s, int) else s.substitute(points).evaluate(here) for s in type.shape)
        shape = (*lengths, *sizes)
        rows = [self.value(read.name, p) for p in itertools.product(*steps)]
        if not rows:
            return np.zeros(shape, dtypes.as_dtype(type.dtype))
        return np.stack(rows).reshape(shape)


def opaque(recipe: Recipe) -> set[str]:
    """The tensors whose values only a run can tell: random draws and gradients."""
    names: set[str] = set()
    for s in recipe.statements:
        if isinstance(s, Gradients):
            names.update(s.names)
        elif isinstance(s, Let) and isinstance(s.value, Draw):
            names.add(s.name)
    return names


def resolve(value: Any, here: Mapping[str, int]) -> Any:
    """An attribute with its terms replaced by their numbers."""
    if isinstance(value, Term):
        return value.evaluate(here)
    if isinstance(value, tuple):
        return tuple(resolve(v, here) for v in value)
    return value
