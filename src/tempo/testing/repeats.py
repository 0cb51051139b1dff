"""Drawing repeated structure: one definition again and again, as layers are written with a Python loop."""

from __future__ import annotations

from dataclasses import replace

from tempo.testing.reading import Scope, Tensor, Value
from tempo.testing.recurrences import Recurrences
from tempo.testing.statements import SHAPES
from tempo.testing.syntax import Case, Expression, Input, Let, Names, Read, Recurrent, Statement, Type, changed
from tempo.testing.terms import Comparison, Number, Point, Symbol

MOST_COPIES = 4


class Repeats(Recurrences):
    """Draws copies of a definition. Each reads the one before it, and an input of its own."""

    def draw_repeated(self) -> None:
        type = Type(self.all, self.choices.choice(SHAPES), self._float())
        before, own = self._own_input(type), self._own_input(replace(type, domain=self.domain()))
        scope = Scope(self.all, self.places(self.all))
        value = self.value(scope, type.shape, type.dtype, self.choices.integer(1, 2))
        value = self.apply("*", [value, self._here(own)], type.shape, type.dtype, value.bound)
        value = self.apply("+", [self._here(before), value], type.shape, type.dtype, 1 + value.bound)
        if self.choices.boolean():
            value = self.apply("sin", [value], type.shape, type.dtype, 1.0)
        tensor = Tensor(self.name("y"), type, self.box(self.all), 1.0, "let")
        first = self._over_time(tensor, value) if self.choices.boolean() else [self._let(tensor, value)]
        self.add(first[0], tensor)
        for statement in first[1:]:
            self.add(statement)
        new = {tensor.name: tensor.name, own.name: own.name, before.name: before.name}
        for _ in range(self.choices.integer(1, MOST_COPIES - 1)):
            last = new[tensor.name]
            # One that all copies share is not copied.
            leaf = self._own_input(own.type).name if self.choices.boolean(0.8) else own.name
            new = {before.name: last, own.name: leaf, tensor.name: self.name("y")}
            for statement in first:
                self.add(_renamed(statement, new))
            self.tensors.append(replace(tensor, name=new[tensor.name]))

    def _own_input(self, type: Type) -> Tensor:
        tensor = Tensor(self.name("x"), type, self.box(type.domain), 1.0, "input")
        self.add(Input(tensor.name, type, self.choices.integer(0, 99)), tensor)
        return tensor

    def _here(self, tensor: Tensor) -> Value:
        return self.through(tensor, _points(tensor.type.domain))

    def _let(self, tensor: Tensor, value: Value) -> Statement:
        small = self.apply("tanh", [value], value.shape, value.dtype, 1.0)
        return Let(tensor.name, tensor.type, small.expression)

    def _over_time(self, tensor: Tensor, value: Value) -> list[Statement]:
        """The value with what it was one step before."""
        here, type = Symbol(self.all[0]), tensor.type
        earlier = self.through(tensor, (Point(here - 1, "shift"), *_points(self.all[1:])))
        start = self.apply("tanh", [value], type.shape, type.dtype, 1.0)
        step = self.apply(
            "tanh", [self.apply("-", [value, earlier], type.shape, type.dtype, 9.0)], type.shape, type.dtype, 1.0
        )
        return [
            Recurrent(tensor.name, type),
            Case(tensor.name, Comparison("<", here, Number(1)), start.expression),
            Case(tensor.name, tuple(Symbol(d) for d in self.all), step.expression),
        ]


def _points(dims: Names) -> tuple[Point, ...]:
    return tuple(Point(Symbol(d), "here") for d in dims)


def _renamed(statement: Statement, names: dict[str, str]) -> Statement:
    """A statement about other tensors."""

    def change(part: Expression) -> Expression:
        return replace(part, name=names[part.name]) if isinstance(part, Read) and part.name in names else part

    moved = changed(statement, change)
    assert isinstance(moved, Let | Recurrent | Case)
    return replace(moved, name=names[moved.name])
