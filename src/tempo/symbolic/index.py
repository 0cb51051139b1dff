"""A temporal index: for every dim of the tensor that is read, a point or a slice of points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tempo.symbolic.expr import Expr, ExprLike, Symbol


@dataclass(frozen=True, slots=True)
class Slice:
    """The points ``start, start + 1, ..., stop - 1`` of a dim."""

    start: Expr
    stop: Expr

    @property
    def length(self) -> Expr:
        return self.stop - self.start

    def symbols(self) -> frozenset[Symbol]:
        return self.start.symbols() | self.stop.symbols()

    def substitute(self, replacement: Mapping[Any, ExprLike]) -> Slice:
        return Slice(self.start.substitute(replacement), self.stop.substitute(replacement))

    def evaluate(self, values: Mapping[Any, int]) -> range:
        return range(self.start.evaluate(values), self.stop.evaluate(values))

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


Item = Expr | Slice
Index = tuple[Item, ...]


def substitute(index: Index, replacement: Mapping[Any, ExprLike]) -> Index:
    return tuple(item.substitute(replacement) for item in index)


def symbols(index: Index) -> frozenset[Symbol]:
    return frozenset().union(*(item.symbols() for item in index))


def slices(index: Index) -> Iterator[Slice]:
    """The items that add an axis, in order."""
    return (item for item in index if isinstance(item, Slice))


def show(index: Index) -> str:
    return ", ".join(map(str, index))
