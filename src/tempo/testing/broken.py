"""Recipes broken on purpose: undefined points, indices out of range, definitions that depend on themselves.

A broken recipe may still be well-formed (not everything that is broken is needed); whether it is, the exact walk says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tempo.testing.choices import Choices
from tempo.testing.recipe import Recipe
from tempo.testing.syntax import Case, Expression, Read, Recurrent, changed, expressions, parts
from tempo.testing.terms import Item, Number, Point, Span, Symbol

Breaking = Callable[[Recipe, Choices], Recipe]


def drop_case(recipe: Recipe, choices: Choices) -> Recipe:
    """Without one case of a tensor that has several."""
    counts: dict[str, int] = {}
    for s in recipe.statements:
        if isinstance(s, Case):
            counts[s.name] = counts.get(s.name, 0) + 1
    possible = [s for s in recipe.statements if isinstance(s, Case) and counts[s.name] > 1]
    if not possible:
        return recipe
    dropped = choices.choice(possible)
    return replace(recipe, statements=tuple(s for s in recipe.statements if s is not dropped))


def change_one_read(recipe: Recipe, choices: Choices, change: Callable[[Read], Read]) -> Recipe:
    """One read, chosen at random, changed."""
    reads = [p for s in recipe.statements for e in expressions(s) for p in parts(e) if isinstance(p, Read) and p.over]
    if not reads:
        return recipe
    chosen = choices.choice(reads)

    def apply(expression: Expression) -> Expression:
        return change(chosen) if expression is chosen else expression

    return replace(recipe, statements=tuple(changed(s, apply) for s in recipe.statements))


def shift_index(recipe: Recipe, choices: Choices) -> Recipe:
    """One index moved by a step or two, one way or the other."""

    def change(read: Read) -> Read:
        position = choices.integer(0, len(read.items) - 1)
        by = choices.choice((1, -1, 2, -2))
        item = read.items[position]
        moved: Item
        if isinstance(item, Point):
            moved = Point(item.term + by, item.kind)
        elif choices.boolean():
            moved = Span(item.start + by, item.stop, item.kind)
        else:
            moved = Span(item.start, item.stop + by, item.kind)
        return replace(read, items=(*read.items[:position], moved, *read.items[position + 1 :]))

    return change_one_read(recipe, choices, change)


def read_here(recipe: Recipe, choices: Choices) -> Recipe:
    """One index replaced by the present step, or by a constant."""

    def change(read: Read) -> Read:
        position = choices.integer(0, len(read.items) - 1)
        if not isinstance(read.items[position], Point):
            return read
        dim = read.over[position]
        item = Point(Number(0), "first") if choices.boolean(0.2) else Point(Symbol(dim), "here")
        return replace(read, items=(*read.items[:position], item, *read.items[position + 1 :]))

    return change_one_read(recipe, choices, change)


def read_another(recipe: Recipe, choices: Choices) -> Recipe:
    """A recurrent tensor read instead of another tensor of its type."""
    types = recipe.types()
    recurrent = [s.name for s in recipe.statements if isinstance(s, Recurrent)]

    def change(read: Read) -> Read:
        like = [name for name in recurrent if types[name] == types[read.name] and name != read.name]
        return replace(read, name=choices.choice(like)) if like else read

    return change_one_read(recipe, choices, change)


BREAKINGS: tuple[Breaking, ...] = (drop_case, shift_index, read_here, read_another)
