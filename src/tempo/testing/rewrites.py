"""Recipes rewritten into others of the same meaning.

A rewrite is a function of a recipe and choices that gives a recipe, the same one where it does not apply. Apart from
rounding (sums may be taken in another order), the results stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from tempo.testing.choices import Choices
from tempo.testing.recipe import Dim, Recipe, assignment
from tempo.testing.syntax import (
    Apply,
    Case,
    Draw,
    Expression,
    Gradients,
    Input,
    Key,
    Let,
    Names,
    Next,
    Output,
    Read,
    Recurrent,
    State,
    Statement,
    Type,
    changed,
    defines,
    used,
)
from tempo.testing.terms import (
    Combination,
    Comparison,
    Condition,
    Item,
    Negation,
    Number,
    Point,
    Span,
    Symbol,
    Term,
    least,
    most,
)

Rewrite = Callable[[Recipe, Choices], Recipe]


def here(name: str, domain: Names) -> Read:
    """A tensor read at the same point."""
    return Read(name, domain, tuple(Point(Symbol(d), "here") for d in domain))


def change_reads(recipe: Recipe, change: Callable[[Read], Expression]) -> Recipe:
    """The recipe with every read changed."""

    def apply(expression: Expression) -> Expression:
        return change(expression) if isinstance(expression, Read) else expression

    # An output of a whole tensor covers all points where it is defined: it stays as it is.
    statements = (s if isinstance(s, Output) else changed(s, apply) for s in recipe.statements)
    return replace(recipe, statements=tuple(statements))


def cases_of(recipe: Recipe, name: str) -> list[Case]:
    return [s for s in recipe.statements if isinstance(s, Case) and s.name == name]


def within_steps(recipe: Recipe) -> dict[str, Type]:
    """The tensors that are defined nowhere but at the steps of their dims."""
    numbers = {d.name: d.bound for d in recipe.dims}
    found: dict[str, Type] = {}
    for s in recipe.statements:
        if isinstance(s, Input | Let):
            found[s.name] = s.type
        elif isinstance(s, Recurrent):
            domain = s.type.domain
            points = assignment(recipe.dims, domain, [c.key for c in cases_of(recipe, s.name)])
            if all(0 <= step < numbers[d] for p in points for d, step in zip(domain, p, strict=True)):
                found[s.name] = s.type
    return found


def depends_on(type: Type, dim: str) -> bool:
    """Whether a shape differs from step to step of a dim."""
    return any(isinstance(size, Term) and dim in size.symbols() for size in type.shape)


def insert_after(recipe: Recipe, name: str, statement: Statement) -> Recipe:
    """A statement just behind the one that declares a tensor."""
    at = next(n for n, s in enumerate(recipe.statements) if name in defines(s)) + 1
    return replace(recipe, statements=(*recipe.statements[:at], statement, *recipe.statements[at:]))


# -- reads ------------------------------------------------------------------------------------------------


def copy_reads(recipe: Recipe, choices: Choices) -> Recipe:
    """``x[t - 1]`` as ``tp.copy(x[t - 1])``, here and there."""
    types = recipe.types()

    def change(read: Read) -> Expression:
        return Apply("copy", (read,), types[read.name].dtype) if choices.boolean() else read

    return change_reads(recipe, change)


def read_copies(recipe: Recipe, choices: Choices) -> Recipe:
    """``c = tp.copy(x)``, and ``c`` read instead of ``x``."""
    possible = within_steps(recipe)
    if not possible:
        return recipe
    name = choices.choice(sorted(possible))
    type, copied = possible[name], f"{name}_copy"
    if copied in recipe.types():
        return recipe
    change = _renamed(name, copied, choices)
    value = Apply("copy", (here(name, type.domain),), type.dtype)
    return insert_after(change_reads(recipe, change), name, Let(copied, type, value))


def _renamed(name: str, other: str, choices: Choices) -> Callable[[Read], Expression]:
    def change(read: Read) -> Expression:
        return replace(read, name=other) if read.name == name and choices.boolean(0.7) else read

    return change


def trains_itself(recipe: Recipe) -> bool:
    """Whether a gradient decides what a state becomes. The way from the state to its loss must then be seen to stay at
    one point, which it is not through indices such as ``T - 1 - (T - 1 - t)`` of different tensors."""
    gradients = {name for s in recipe.statements if isinstance(s, Gradients) for name in s.names}
    return any(isinstance(s, Next) and used(s) & gradients for s in recipe.statements)


def reverse_twice(recipe: Recipe, choices: Choices) -> Recipe:
    """``r = x[T - 1 - t]``, and ``r`` read at reversed points instead of ``x``."""
    if trains_itself(recipe):
        return recipe
    possible = [
        (name, d) for name, type in within_steps(recipe).items() for d in type.domain if not depends_on(type, d)
    ]
    if not possible:
        return recipe
    name, dim = choices.choice(sorted(possible))
    type, turned = recipe.types()[name], f"{name}_reversed"
    if turned in recipe.types():
        return recipe
    limit: Term = Symbol(dim.upper())
    position = type.domain.index(dim)

    def change(read: Read) -> Expression:
        if read.name != name or choices.boolean(0.3):
            return read
        item = read.items[position]
        if isinstance(item, Point):
            return Read(turned, read.over, _with(read.items, position, Point(limit - 1 - item.term, "reversed")))
        span = Span(limit - item.stop, limit - item.start, item.kind)
        axis = sum(isinstance(i, Span) for i in read.items[:position])
        backwards = Read(turned, read.over, _with(read.items, position, span))
        return Apply("flip", (backwards,), type.dtype, (("axis", axis),))

    mirrored = here(name, type.domain)
    mirrored = replace(mirrored, items=_with(mirrored.items, position, Point(limit - 1 - Symbol(dim), "reversed")))
    return insert_after(change_reads(recipe, change), name, Let(turned, type, mirrored))


def _with(items: tuple[Item, ...], position: int, item: Item) -> tuple[Item, ...]:
    return (*items[:position], item, *items[position + 1 :])


def equal_indices(recipe: Recipe, choices: Choices) -> Recipe:
    """Index terms written in another way."""
    if trains_itself(recipe):
        return recipe
    types, inside = recipe.types(), within_steps(recipe)

    def other(term: Term, dim: str, clamp: bool) -> Term:
        ways = [(term * 2) // 2, term // 2 * 2 + term % 2, (term * 3 + 1) // 3, most(term, least(term, term - 1))]
        if clamp:
            limit: Term = Symbol(dim.upper())
            ways += [most(least(term, limit - 1), 0), least(most(term, 0), limit - 1), limit - 1 - (limit - 1 - term)]
        return choices.choice(ways)

    def change(read: Read) -> Expression:
        items = []
        for dim, item in zip(read.over, read.items, strict=True):
            hidden = isinstance(item, Point) and item.symbols() and item.term != Symbol(dim)
            if hidden and not depends_on(types[read.name], dim) and choices.boolean(0.7):
                assert isinstance(item, Point)
                item = Point(other(item.term, dim, read.name in inside), item.kind)
            items.append(item)
        return replace(read, items=tuple(items))

    return change_reads(recipe, change)


def points_as_slices(recipe: Recipe, choices: Choices) -> Recipe:
    """``x[e]`` as ``x[e:e + 1]`` without its axis of length one."""
    types = recipe.types()

    def change(read: Read) -> Expression:
        type = types[read.name]
        items = read.items
        single: list[int] = []
        for position, (dim, item) in enumerate(zip(read.over, read.items, strict=True)):
            if isinstance(item, Point) and not depends_on(type, dim) and choices.boolean():
                items = _with(items, position, Span(item.term, item.term + 1, "single"))
                single.append(position)
        if not single:
            return read
        spans = [n for n, item in enumerate(items) if isinstance(item, Span)]
        axes = tuple(spans.index(n) for n in single)
        return Apply("squeeze", (replace(read, items=items),), type.dtype, (("axis", axes),))

    return change_reads(recipe, change)


# -- definitions ------------------------------------------------------------------------------------------


def reorder_cases(recipe: Recipe, choices: Choices) -> Recipe:
    """Neighbouring cases that define different points, exchanged."""
    statements = list(recipe.statements)
    types = recipe.types()
    for name in {s.name for s in statements if isinstance(s, Case)}:
        places = [n for n, s in enumerate(statements) if isinstance(s, Case) and s.name == name]
        # From the end, so that the places in front stay what they are.
        for at, following in reversed(list(pairwise(places))):
            a, b = statements[at], statements[following]
            assert isinstance(a, Case) and isinstance(b, Case)
            domain = types[name].domain
            # For larger bounds too, for a case that no bounds make apply is an error.
            larger = tuple(replace(d, bound=6) for d in recipe.dims)
            regions = [[set(assignment(dims, domain, [c.key])) for c in (a, b)] for dims in (recipe.dims, larger)]
            if all(first and second and first.isdisjoint(second) for first, second in regions):
                # The first moves behind the second, not the second to the front: it may use names from between.
                statements[at : following + 1] = [*statements[at + 1 : following + 1], a]
    return replace(recipe, statements=tuple(statements))


def explicit_last_case(recipe: Recipe, choices: Choices) -> Recipe:
    """The last, general case written with the condition that no other holds."""
    types = recipe.types()
    statements = list(recipe.statements)
    for name in {s.name for s in statements if isinstance(s, Case)}:
        domain = types[name].domain
        *earlier, last = cases_of(recipe, name)
        general = tuple(Symbol(d) for d in domain)
        conditions = [_as_condition(domain, case.key) for case in earlier]
        if last.key != general or not earlier or None in conditions:
            continue
        rest: Condition | None = None
        for condition in conditions:
            assert condition is not None
            rest = Negation(condition) if rest is None else Combination("&", rest, Negation(condition))
        assert rest is not None
        statements[statements.index(last)] = replace(last, key=rest)
    return replace(recipe, statements=tuple(statements))


def _as_condition(domain: Names, key: Key) -> Condition | None:
    """The points of a case as a condition, None where a target moves them."""
    if not isinstance(key, tuple):
        return key
    result: Condition | None = None
    for d, term in zip(domain, key, strict=True):
        if term == Symbol(d):
            continue
        if d in term.symbols():
            return None
        pinned = Comparison("==", Symbol(d), term)
        result = pinned if result is None else Combination("&", result, pinned)
    return result


def let_as_recurrent(recipe: Recipe, choices: Choices) -> Recipe:
    """``a = ...`` as a recurrent tensor of one case."""
    possible = [s for s in recipe.statements if isinstance(s, Let) and s.type.domain and not isinstance(s.value, Draw)]
    if not possible:
        return recipe
    chosen = choices.choice(possible)
    at = recipe.statements.index(chosen)
    key = tuple(Symbol(d) for d in chosen.type.domain)
    pair = (Recurrent(chosen.name, chosen.type), Case(chosen.name, key, chosen.value))
    return replace(recipe, statements=(*recipe.statements[:at], *pair, *recipe.statements[at + 1 :]))


def state_as_recurrent(recipe: Recipe, choices: Choices) -> Recipe:
    """A state over one dim as a recurrent tensor: ``w[0] = init``, ``w[t + 1] = next``."""
    names = {s.name: s.over[0] for s in recipe.statements if isinstance(s, State) and len(s.over) == 1}
    statements: list[Statement] = []
    for s in recipe.statements:
        if isinstance(s, State) and s.name in names:
            first = tuple(Number(0) if d == names[s.name] else Symbol(d) for d in s.type.domain)
            statements += [Recurrent(s.name, s.type), Case(s.name, first, s.init)]
        elif isinstance(s, Next) and s.name in names:
            domain = recipe.types()[s.name].domain
            following = tuple(Symbol(d) + 1 if d == names[s.name] else Symbol(d) for d in domain)
            statements.append(Case(s.name, following, s.value))
        else:
            statements.append(s)
    return replace(recipe, statements=tuple(statements))


# -- declarations -----------------------------------------------------------------------------------------


def rename_dims(recipe: Recipe, choices: Choices) -> Recipe:
    """Dims known to Tempo by other names, and an unused one in front."""
    labels = ("x0", "out", "i0", "p", "n")
    if any(d.label for d in recipe.dims):
        return recipe
    renamed = (replace(d, label=labels[n]) for n, d in enumerate(recipe.dims))
    return replace(recipe, dims=(Dim("unused", 3), *renamed))


REWRITES: tuple[Rewrite, ...] = (
    copy_reads,
    read_copies,
    reverse_twice,
    equal_indices,
    points_as_slices,
    reorder_cases,
    explicit_last_case,
    let_as_recurrent,
    state_as_recurrent,
    rename_dims,
)
