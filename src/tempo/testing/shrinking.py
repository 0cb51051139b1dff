"""Making a failing recipe smaller: greedily, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tempo.testing.recipe import Recipe, without_unused
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
    Shape,
    State,
    Statement,
    Stop,
    Type,
    defines,
    expressions,
    operands,
    parts,
    symbols,
    used,
)
from tempo.testing.syntax import changed as with_changed_parts
from tempo.testing.terms import Number, Point, Symbol

Fails = Callable[[Recipe], bool]


def shrink(recipe: Recipe, fails: Fails, attempts: int = 2000) -> Recipe:
    """The smallest recipe found that still fails."""
    left = attempts
    improved = True
    while improved and left > 0:
        improved = False
        for candidate in candidates(recipe):
            left -= 1
            if left <= 0:
                break
            if is_smaller(candidate, recipe) and fails(candidate):
                recipe, improved = candidate, True
                break
    return recipe


def is_smaller(candidate: Recipe, recipe: Recipe) -> bool:
    try:
        return is_complete(candidate) and size(candidate) < size(recipe)
    except (KeyError, ValueError):  # what was taken away was needed to print the rest
        return False


def is_complete(recipe: Recipe) -> bool:
    """Whether every dim and tensor that is mentioned is declared."""
    dims = {n for d in recipe.dims for n in (d.name, d.limit)}
    names = {n for s in recipe.statements for n in defines(s)}
    declared = set(recipe.types())
    return all(mentioned(s) <= dims and used(s) <= declared for s in recipe.statements) and names <= declared


def mentioned(statement: Statement) -> set[str]:
    """The dims and bounds in a statement."""
    found = {name for e in expressions(statement) for name in symbols(e)}
    if isinstance(statement, Input | Recurrent | State | Let):
        found.update(statement.type.domain)
    if isinstance(statement, State):
        found.update(statement.over)
    if isinstance(statement, Stop):
        found.add(statement.dim)
    if isinstance(statement, Case):
        keys = statement.key if isinstance(statement.key, tuple) else (statement.key,)
        found.update(*(key.symbols() for key in keys))
    return found


def without_gradients(recipe: Recipe) -> Recipe | None:
    """The recipe with its losses as results in the place of their gradients; None if it cannot do without these."""
    gone: set[str] = set()
    kept: list[Statement] = []
    types = recipe.types()
    for s in recipe.statements:
        if isinstance(s, Gradients):
            gone.update(s.names)
            domain = types[s.loss].domain
            here = Read(s.loss, domain, tuple(Point(Symbol(d), "here") for d in domain))
            kept.append(Output(f"loss{len(kept)}", here))
        elif not used(s) & gone:
            kept.append(s)
        elif isinstance(s, Let | Output):
            gone.update(defines(s))
        else:
            return None
    return without_unused(replace(recipe, statements=tuple(kept)))


def size(recipe: Recipe) -> tuple[int, int, int]:
    """What shrinking makes smaller: statements, then the text, then the bounds."""
    return len(recipe.statements), len(recipe.source), sum(d.bound for d in recipe.dims)


def candidates(recipe: Recipe) -> Iterator[Recipe]:
    """Smaller recipes, the much smaller ones first."""
    for n, s in enumerate(recipe.statements):
        if isinstance(s, Output) or not defines(s):
            yield without(recipe, {n})
    for name in reversed(sorted(recipe.types())):
        yield without_tensor(recipe, name)
    for n, s in enumerate(recipe.statements):
        if isinstance(s, Case):
            yield without(recipe, {n})
        if isinstance(s, Gradients) and len(s.names) > 1:
            for k in range(len(s.names)):
                kept = replace(s, names=s.names[k : k + 1], wrt=s.wrt[k : k + 1])
                yield with_statement(recipe, n, kept)
    for n, d in enumerate(recipe.dims):
        yield replace(recipe, dims=(*recipe.dims[:n], *recipe.dims[n + 1 :]))
        if d.bound > 1:
            smaller = replace(d, bound=d.bound - 1)
            yield replace(recipe, dims=(*recipe.dims[:n], smaller, *recipe.dims[n + 1 :]))
    for n, s in enumerate(recipe.statements):
        for smaller_statement in smaller_statements(s, recipe):
            yield with_statement(recipe, n, smaller_statement)


def without(recipe: Recipe, dropped: set[int]) -> Recipe:
    kept = tuple(s for n, s in enumerate(recipe.statements) if n not in dropped)
    return without_unused(replace(recipe, statements=kept))


def without_tensor(recipe: Recipe, name: str) -> Recipe:
    """Without a tensor and all statements that mention it."""
    kept = (s for s in recipe.statements if name not in defines(s) and name not in used(s))
    return without_unused(replace(recipe, statements=tuple(kept)))


def with_statement(recipe: Recipe, n: int, statement: Statement) -> Recipe:
    changed = (*recipe.statements[:n], statement, *recipe.statements[n + 1 :])
    return without_unused(retyped(replace(recipe, statements=changed)))


def retyped(recipe: Recipe) -> Recipe:
    """The recipe with the domains of named values, and the reads of these, fitted to what they now are."""
    domains: dict[str, Names] = {name: type.domain for name, type in recipe.types().items()}
    statements: list[Statement] = []

    def fit(part: Expression) -> Expression:
        if not isinstance(part, Read) or domains.get(part.name, part.over) == part.over:
            return part
        kept = domains[part.name]
        if not set(kept) <= set(part.over):
            return part
        items = tuple(item for d, item in zip(part.over, part.items, strict=True) if d in kept)
        return Read(part.name, kept, items)

    for s in recipe.statements:
        s = with_changed_parts(s, fit)
        if isinstance(s, Let):
            found = symbols(s.value)
            domains[s.name] = tuple(d.name for d in recipe.dims if d.name in found)
            s = replace(s, type=replace(s.type, domain=domains[s.name]))
        elif isinstance(s, Gradients):
            domains.update({g: domains[w] for g, w in zip(s.names, s.wrt, strict=True) if w in domains})
        statements.append(s)
    return replace(recipe, statements=tuple(statements))


def smaller_statements(statement: Statement, recipe: Recipe) -> Iterator[Statement]:
    types = recipe.types()
    for expression in expressions(statement):
        if isinstance(statement, Let) and not isinstance(expression, Draw):
            shape, dtype = statement.type.shape, statement.type.dtype
            yield replace(statement, value=constant(dtype, shape))
        for part in parts(expression):
            for smaller in smaller_expressions(part, types):
                yield _replace(statement, _substituted(expression, part, smaller))


def constant(dtype: str, shape: Shape = ()) -> Expression:
    """The simplest expression of a dtype."""
    return Apply("full", (), dtype, (("shape", shape), ("value", True if dtype == "bool" else 1)))


def smaller_expressions(part: Expression, types: dict[str, Type]) -> Iterator[Expression]:
    """Simpler expressions that may stand in the place of one."""
    if isinstance(part, Apply):
        yield from operands(part)
        if part.function != "full":
            yield constant(part.dtype)
    elif isinstance(part, Read):
        yield constant(types[part.name].dtype)
        for n, (d, item) in enumerate(zip(part.over, part.items, strict=True)):
            if isinstance(item, Point) and item.term not in (Symbol(d), Number(0)):
                for simple in (Point(Symbol(d), "here"), Point(Number(0), "first")):
                    yield replace(part, items=(*part.items[:n], simple, *part.items[n + 1 :]))


def _substituted(expression: Expression, part: Expression, smaller: Expression) -> Expression:
    """The expression with one of its parts replaced, that one only."""
    if expression is part:
        return smaller
    if isinstance(expression, Apply):
        arguments = tuple(_substituted(a, part, smaller) for a in expression.arguments)
        return replace(expression, arguments=arguments)
    return expression


def _replace(statement: Statement, new: Expression) -> Statement:
    match statement:
        case State():
            return replace(statement, init=new)
        case Let() | Case() | Next() | Output():
            return replace(statement, value=new)
    return statement
