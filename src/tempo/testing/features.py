"""What a recipe uses: the rows of the coverage table."""

from __future__ import annotations

from collections.abc import Iterator

from tempo.testing.longer import LONG
from tempo.testing.recipe import Recipe, depends
from tempo.testing.stops import depends_on_gradients
from tempo.testing.syntax import (
    Apply,
    Case,
    Draw,
    Gradients,
    Holds,
    Host,
    Input,
    Let,
    Next,
    Output,
    Read,
    Recurrent,
    State,
    Steps,
    Stop,
    expressions,
    parts,
    used,
)
from tempo.testing.terms import Condition, Span, Symbol, Term


def features(recipe: Recipe) -> frozenset[str]:
    """Everything that a recipe uses, by name."""
    found = {f"dims {len(recipe.dims)}"}
    found |= {f"bound {'of many steps' if d.bound >= LONG else d.bound}" for d in recipe.dims}
    found.add("smooth" if recipe.smooth else "not smooth")
    types = recipe.types()
    for s in recipe.statements:
        found.update(_of_statement(s, recipe))
        for e in expressions(s):
            for part in parts(e):
                found.update(_of_expression(part))
    for type in types.values():
        symbolic = any(isinstance(size, Term) for size in type.shape)
        found.add(f"dtype {type.dtype}")
        found.add("shape symbolic" if symbolic else f"shape {type.shape}")
        found.add(f"domain of {len(type.domain)}")
    found.update(_recurrences(recipe))
    if "stop" in found:
        # What makes stops hard: values that the number of steps decides about, and Python while steps are made.
        kinds = {name.split()[0] for name in found}
        found |= {f"stop with {kind}" for kind in ("gradient", "random", "host") if kind in kinds}
        if any(depends_on_gradients(recipe, s.when) for s in recipe.statements if isinstance(s, Stop)):
            found.add("stop on a gradient")
    return frozenset(found)


def _of_statement(s: object, recipe: Recipe) -> Iterator[str]:
    types = recipe.types()
    match s:
        case Input() | Recurrent():
            yield type(s).__name__.lower()
        case Let():
            yield "let of a view" if isinstance(s.value, Read) else "let"
        case State():
            yield f"state over {len(s.over)}"
            if len(s.type.domain) > len(s.over):
                yield "state with parallel copies"
        case Case():
            domain = types[s.name].domain
            if isinstance(s.key, Condition):
                yield "case condition"
            else:
                for d, term in zip(domain, s.key, strict=True):
                    if term != Symbol(d):
                        yield "case shifted" if d in term.symbols() else f"case pinned {_place(term)}"
        case Output():
            yield "emit" if s.emit else "output"
            if str(s.value) not in types:
                yield "output of an index"
        case Stop():
            yield "stop"
        case Gradients():
            yield from _of_gradients(s, recipe)


def _place(term: Term) -> str:
    return "first" if not term.symbols() else "last"


def _of_gradients(s: Gradients, recipe: Recipe) -> Iterator[str]:
    types = recipe.types()
    declared = {
        d.name: type(d).__name__.lower() for d in recipe.statements if isinstance(d, Input | Let | Recurrent | State)
    }
    yield "gradient"
    if len(s.wrt) > 1:
        yield "gradient of several"
    order = _order(s, recipe)
    if order > 1:
        yield f"gradient of {'second' if order == 2 else 'third'} order"
    for name in s.wrt:
        yield f"gradient of {declared.get(name, 'gradient')}"
        if set(types[name].domain) & set(types[s.loss].domain):
            yield "gradient with held dims"
        if set(types[s.loss].domain) - set(types[name].domain):
            yield "gradient with summed dims"
    trained = (t for t in recipe.statements if isinstance(t, Next) and used(t) & set(s.names))
    if any(t.name in s.wrt for t in trained):
        yield "training"


def _order(gradients: Gradients, recipe: Recipe, around: tuple[Gradients, ...] = ()) -> int:
    """One more than the order of the gradients that the loss depends on; ``around`` are those that depend on it."""
    needed, around = depends(recipe.statements, [gradients.loss]), (*around, gradients)
    # A loss may depend on its own gradient: that of a state which is trained at the step before.
    within = [s for s in recipe.statements if isinstance(s, Gradients) and s not in around and needed & set(s.names)]
    return 1 + max((_order(s, recipe, around) for s in within), default=0)


def _of_expression(part: object) -> Iterator[str]:
    match part:
        case Apply():
            yield f"function {part.function}"
            if part.function in ("max", "min") and "initial" in dict(part.attributes):
                yield f"function {part.function} with initial"
        case Draw():
            yield f"random {part.kind}"
        case Host():
            yield "host call"
            if part.batch:
                yield "host call for a batch"
        case Holds():
            yield "condition as a tensor"
        case Steps():
            yield "step as a tensor"
        case Read():
            for item in part.items:
                yield f"{'slice' if isinstance(item, Span) else 'index'} {item.kind}"
            if sum(isinstance(item, Span) for item in part.items) > 1:
                yield "slice over several dims"


def _recurrences(recipe: Recipe) -> Iterator[str]:
    needs = {
        s.name: depends(recipe.statements, [s.name]) for s in recipe.statements if isinstance(s, Recurrent | State)
    }
    circles = {name for name, reads in needs.items() if name in reads}
    for s in recipe.statements:
        if isinstance(s, Let) and isinstance(s.value, Host) and s.name in depends(recipe.statements, [s.name]):
            yield "host call in a recurrence"
    for name in circles:
        if any(name in needs[other] and other in needs[name] for other in circles - {name}):
            yield "recurrence of several tensors"
    for s in recipe.statements:
        if not isinstance(s, Case) or s.name not in circles:
            continue
        yield "recurrence"
        for part in parts(s.value):
            if isinstance(part, Read) and part.name == s.name:
                for d, item in zip(part.over, part.items, strict=True):
                    text = str(item)
                    if text.startswith(f"{d} - "):
                        yield "recurrence forward"
                    elif text.startswith(f"{d} + "):
                        yield "recurrence backward"
                    if isinstance(item, Span):
                        yield "recurrence over a slice"
