"""Programs with a dim that stops on data.

The bound then stands for the number of steps that were made, whatever it turns out to be: a recipe gets a stop only
if it is well-formed for every number of steps up to the one given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.errors import DefinitionError
from tempo.testing.choices import Choices
from tempo.testing.meaning import Meaning, opaque
from tempo.testing.recipe import Dim, Recipe, build, data, depends, places
from tempo.testing.syntax import (
    Apply,
    Case,
    Draw,
    Expression,
    Gradients,
    Holds,
    Host,
    Input,
    Key,
    Let,
    Literal,
    Output,
    Read,
    Recurrent,
    State,
    Statement,
    Stop,
    Type,
    defines,
    expressions,
    parts,
    symbols,
)
from tempo.testing.terms import Comparison, Condition, Number, Point, Span, Symbol

Array = np.ndarray[Any, Any]

# What is well-formed for any number of steps up to this one, and for the last two, is for those between: the numbers in
# indices are smaller.
MOST_NUMBERS = 8


def with_stop(recipe: Recipe, choices: Choices) -> Recipe:
    """The recipe with a stop condition for one of its dims, where it may have one."""
    dim = choices.choice([d for d in recipe.dims if d.bound > 1] or recipe.dims)
    late = Holds(Comparison(">=", Symbol(dim.name), Number(choices.integer(0, dim.bound))))
    conditions: list[Expression] = [late]
    conditions += [
        about(recipe, name, dim)
        for name, type in recipe.types().items()
        if dim.name in type.domain and not waits_for(recipe, name, dim)
    ]
    extra: tuple[Statement, ...] = ()
    trained = [c for c in conditions if depends_on_gradients(recipe, c)]
    following = [about(recipe, name, dim, 1) for name in with_next_values(recipe, dim)]
    conditions += following
    preferred = trained if trained and choices.boolean(0.7) else following if choices.boolean(0.5) else conditions
    condition = choices.choice(preferred or conditions)
    if isinstance(condition, Holds) and choices.boolean():
        extra = (Input("done", Type((dim.name,), (), "bool"), choices.integer(0, 99)),)
        condition = Read("done", (dim.name,), (Point(Symbol(dim.name), "here"),))
    if dim.bound > MOST_NUMBERS and not isinstance(condition, Holds):
        # Of many steps more than a few are made.
        condition = Apply("&", (late, condition), "bool")
    stopping = replace(recipe, statements=(*extra, *recipe.statements, Stop(dim.name, condition)))
    numbers = {*range(1, min(dim.bound, MOST_NUMBERS) + 1), dim.bound - 1 or 1, dim.bound}
    made = [with_bound(stopping, dim.name, n) for n in sorted(numbers)]
    return stopping if all(is_well_formed(r) and has_gradients(r) for r in made) else recipe


def with_next_values(recipe: Recipe, dim: Dim) -> list[str]:
    """The tensors that every step of a dim knows for the next one, too."""
    names = [s.name for s in recipe.statements if isinstance(s, Recurrent | State) and dim.name in s.type.domain]
    meaning = Meaning(recipe, inputs_of(recipe), {})
    ends = {name: meaning.box(name)[recipe.types()[name].domain.index(dim.name)].stop for name in names}
    return [name for name in names if ends[name] > dim.bound and not waits_for(recipe, name, dim)]


def about(recipe: Recipe, name: str, dim: Dim, later: int = 0) -> Expression:
    """A condition on a tensor at this step of a dim, or a ``later`` one, at all steps of its others."""
    type = recipe.types()[name]
    limits = {d.name: Symbol(d.limit) for d in recipe.dims}
    here = Point(Symbol(dim.name) + later, "shift") if later else Point(Symbol(dim.name), "here")
    found: Expression = Read(
        name, type.domain, tuple(here if d == dim.name else Span(Number(0), limits[d], "all") for d in type.domain)
    )
    is_scalar = (type.domain, type.shape) == ((dim.name,), ())
    if type.dtype == "bool":
        return found if is_scalar else Apply("any", (found,), "bool")
    # Numbers that cancel are above zero or not by rounding.
    least = Literal(0.01 if recipe.smooth else 0)
    return Apply(">", (found if is_scalar else Apply("sum", (found,), type.dtype), least), "bool")


def depends_on_gradients(recipe: Recipe, expression: Expression) -> bool:
    """Whether a gradient decides about the value of an expression."""
    read = {p.name for p in parts(expression) if isinstance(p, Read)}
    needed = read | depends(recipe.statements, read)
    return any(needed & set(s.names) for s in recipe.statements if isinstance(s, Gradients))


def waits_for(recipe: Recipe, name: str, dim: Dim) -> bool:
    """Whether a tensor may depend on the number of steps of a dim, or on anything at a later step."""
    types = recipe.types()
    needed = {name} | depends(recipe.statements, [name])
    concerned = [s for s in recipe.statements if needed & set(defines(s))]
    found = [p for s in concerned for e in expressions(s) for p in parts(e)]
    gradients = [s for s in concerned if isinstance(s, Gradients)]
    return (
        # What is held at the step of a loss does not look beyond it, unless other steps are all looked through for
        # those that read this one.
        any(dim.name not in types[x].domain for s in gradients for x in (s.loss, *s.wrt))
        or (bool(gradients) and not all(is_so_far(p, dim) for p in found if isinstance(p, Read)))
        # The first step of the next round comes after the last of this one.
        or any(dim.name in s.over[1:] for s in concerned if isinstance(s, State))
        or any(isinstance(p, Host) and dim.name in (*p.sequence[1:], *p.batch) for p in found)
        or any(dim.limit in symbols(p) for p in found)
        or any(dim.limit in key_symbols(s.key) for s in concerned if isinstance(s, Case))
    )


def is_so_far(read: Read, dim: Dim) -> bool:
    """Whether a read is of a step that is so far from this one, whichever that is; or of what has no steps of a dim."""
    items = [item for d, item in zip(read.over, read.items, strict=True) if d == dim.name]
    return all(isinstance(i, Point) and i.term.linear()[0] == {Symbol(dim.name): 1} for i in items)


def key_symbols(key: Key) -> frozenset[str]:
    return key.symbols() if isinstance(key, Condition) else frozenset().union(*(term.symbols() for term in key))


def with_bound(recipe: Recipe, dim: str, number: int) -> Recipe:
    """The recipe with another number for a bound."""
    dims: tuple[Dim, ...] = tuple(replace(d, bound=number) if d.name == dim else d for d in recipe.dims)
    return replace(recipe, dims=dims)


def is_well_formed(recipe: Recipe) -> bool:
    """Whether every result, every stop condition, and every case wherever it applies, can be computed from what is
    defined."""
    meaning = Meaning(recipe, inputs_of(recipe), {})
    try:
        # Of what only a run can tell any values will do.
        meaning.known = {name: unknown(meaning, name) for name in opaque(recipe)}
        for s in recipe.statements:
            if isinstance(s, Recurrent | State):
                # The language looks at all that is defined, whether anybody needs it or not.
                for point in meaning.defined(s.name) or ():
                    meaning.value(s.name, point)
            if isinstance(s, Let) and isinstance(s.value, Draw | Host):
                for place in places(recipe.dims, s.type.domain):
                    for argument in s.value.arguments:
                        if isinstance(argument, Expression):
                            meaning.evaluate(argument, place)
            if isinstance(s, Stop):
                for place in places(recipe.dims, (s.dim,)):
                    meaning.evaluate(s.when, place)
            if isinstance(s, Gradients):
                for place in places(recipe.dims, meaning.types[s.loss].domain):
                    meaning.value(s.loss, tuple(place[d] for d in meaning.types[s.loss].domain))
            if isinstance(s, Output) and s.emit:
                meaning.records(s)
            elif isinstance(s, Output):
                meaning.output(s)
    except Exception:  # whatever goes wrong where something is not defined
        return False
    return True


def has_gradients(recipe: Recipe) -> bool:
    """Whether everything that gradients need is defined for these bounds, which only Tempo can say: they are also
    computed of values that have no effect, and so of what no result reads."""
    if not any(isinstance(s, Gradients) for s in recipe.statements):
        return True
    plain = replace(recipe, statements=tuple(s for s in recipe.statements if not isinstance(s, Stop)))
    built = build(plain)
    try:
        built.program.check(built.bounds)
    except DefinitionError:
        return False
    return True


def unknown(meaning: Meaning, name: str) -> Array:
    """Ones, at all points of a tensor."""
    type = meaning.types[name]
    sizes = (n if isinstance(n, int) else n.evaluate(meaning.recipe.values) for n in type.shape)
    return np.ones((*(len(r) for r in meaning.box(name)), *sizes), dtypes.as_dtype(type.dtype))


def inputs_of(recipe: Recipe) -> dict[str, Array]:
    """The arrays that a recipe is given."""
    return {s.name: data(recipe.shape_of(s), s.type.dtype, s.seed) for s in recipe.inputs}


def stopped(recipe: Recipe, inputs: Mapping[str, Array], known: Mapping[str, Array]) -> Recipe:
    """The recipe with the number of steps that are made of each dim that stops. ``known`` is what a run has told."""
    result = recipe
    for s in recipe.statements:
        if isinstance(s, Stop):
            number = next(d.bound for d in recipe.dims if d.name == s.dim)
            meaning = Meaning(recipe, inputs, known)
            values = recipe.values
            holds = (t for t in range(number) if bool(meaning.evaluate(s.when, {**values, s.dim: t})))
            result = with_bound(result, s.dim, next(holds, number - 1) + 1)
    return result
