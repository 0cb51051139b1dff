"""Drawing temporal indices that are in range, in order, and of every kind.

What is in range is decided by looking at every point: the bounds of a recipe are small numbers. A tensor that is
being defined has *heights*: the value at a point may be read only where something higher is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from tempo.testing.choices import Choices
from tempo.testing.recipe import Dim
from tempo.testing.syntax import Expression, Names, Read, Shape, Type
from tempo.testing.terms import Item, Number, Point, Span, Symbol, Term, least, most

Place = tuple[int, ...]
Height = tuple[int, ...]

# Below every other height: the height of what depends on nothing that is being defined.
LOWEST: Height = ()


@dataclass(frozen=True)
class Tensor:
    """A named tensor that expressions may read: where it is defined, and how large its values are at most."""

    name: str
    type: Type
    defined: frozenset[Place]
    bound: float
    kind: str
    heights: Mapping[Place, Height] | None = None


@dataclass(frozen=True)
class Value:
    """A drawn expression."""

    expression: Expression
    shape: Shape
    dtype: str
    bound: float


@dataclass
class Scope:
    """Where an expression is evaluated: at ``places``, in terms of ``dims``.

    An expression in a ``partial`` scope may be undefined at some places; they are then dropped. ``limits`` is what
    the heights of everything read must stay below, place by place; ``heights`` collects what they were.
    """

    dims: Names
    places: list[dict[str, int]]
    partial: bool = False
    limits: list[Height] | None = None
    heights: list[Height] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heights = self.heights or [LOWEST] * len(self.places)

    def keep(self, mask: list[bool]) -> None:
        self.places = list(itertools.compress(self.places, mask))
        self.heights = list(itertools.compress(self.heights, mask))
        if self.limits is not None:
            self.limits = list(itertools.compress(self.limits, mask))


class Reader:
    """Draws reads of tensors."""

    def __init__(self, choices: Choices, dims: tuple[Dim, ...]) -> None:
        self.choices = choices
        self.dims = {d.name: d for d in dims}
        # Of the tensors being defined: the dims that carry the recurrence, 1 for forward, -1 for backward.
        self.directions: dict[str, int] = {}

    # -- reads ------------------------------------------------------------------------------------------

    def read(self, scope: Scope, tensor: Tensor, sliced: int = 0) -> Value | None:
        """The tensor through a random index with ``sliced`` slices; None if none was found."""
        domain = tensor.type.domain
        varying = {s for size in tensor.type.shape if isinstance(size, Term) for s in size.symbols()}
        may_slice = [d for d in domain if d not in varying]
        if len(may_slice) < sliced:
            return None
        for _ in range(4):
            chosen = self._subset(may_slice, sliced)
            items = tuple(self.span(scope, tensor, d) if d in chosen else self.point(scope, tensor, d) for d in domain)
            if self.accept(scope, tensor, items):
                return self.through(tensor, items)
        if not sliced:
            for last in (False, True):
                items = tuple(self._plain(scope, d, last) for d in domain)
                if self.accept(scope, tensor, items):
                    return self.through(tensor, items)
        return None

    def _subset(self, options: list[str], count: int) -> set[str]:
        left = list(options)
        return {left.pop(self.choices.integer(0, len(left) - 1)) for _ in range(count)}

    def _plain(self, scope: Scope, dim: str, last: bool) -> Point:
        if dim in scope.dims:
            return Point(Symbol(dim), "here")
        return Point(self.limit(dim) - 1, "last") if last else Point(Number(0), "first")

    def through(self, tensor: Tensor, items: tuple[Item, ...]) -> Value:
        points = {d: item.term for d, item in zip(tensor.type.domain, items, strict=True) if isinstance(item, Point)}
        shape = tuple(size if isinstance(size, int) else size.substitute(points) for size in tensor.type.shape)
        lengths = tuple(item.length for item in items if isinstance(item, Span))
        expression = Read(tensor.name, tensor.type.domain, items)
        return Value(expression, (*lengths, *shape), tensor.type.dtype, tensor.bound)

    def accept(self, scope: Scope, tensor: Tensor, items: tuple[Item, ...]) -> bool:
        """Whether the index may be read in the scope, which is narrowed if that is allowed and needed."""
        heights: list[Height] = []
        mask: list[bool] = []
        for n, values in enumerate(scope.places):
            height = self._height(tensor, items, values)
            fine = height is not None and (scope.limits is None or height < scope.limits[n])
            mask.append(fine)
            heights.append(max(scope.heights[n], height) if height is not None else LOWEST)
        if not all(mask):
            if not (scope.partial and any(mask) and self.choices.boolean(0.5)):
                return False
        scope.heights = heights
        scope.keep(mask)
        return True

    def _height(self, tensor: Tensor, items: tuple[Item, ...], values: Mapping[str, int]) -> Height | None:
        """The greatest height that is read at a place, None where the read is out of range."""
        steps = [item.steps(values) for item in items]
        if any(s.start > s.stop for s in steps):
            return None
        result = LOWEST
        for point in itertools.product(*steps):
            if point not in tensor.defined:
                return None
            if tensor.heights is not None:
                result = max(result, tensor.heights[point])
        return result

    # -- items ------------------------------------------------------------------------------------------

    def limit(self, dim: str) -> Term:
        return Symbol(self.dims[dim].limit)

    def number(self, dim: str) -> int:
        return self.dims[dim].bound

    def point(self, scope: Scope, tensor: Tensor, dim: str) -> Point:
        """One step of a dim, by a kind of term."""
        here, limit, choices = Symbol(dim), self.limit(dim), self.choices
        others = [d for d in scope.dims if d != dim]
        kinds: list[str] = []
        if dim in scope.dims:
            kinds = ["here"] * 5 + ["shift"] * 3 + ["clamped"] * 3 + ["reversed", "half", "mod", "extremum", "scaled"]
            if tensor.heights is not None and dim in self.directions:
                kinds = ["back"] * 6 + ["here"] * 3 + ["back clamped", "half", "shift", "scaled"]
        elif others:
            kinds = ["other"]
        kinds += ["first", "last", "constant"]
        if others and dim in scope.dims:
            kinds.append("joined")
        kind = choices.choice(kinds)
        match kind:
            case "here":
                return Point(here, kind)
            case "shift":
                k = choices.integer(1, 2)
                return Point(here - k if choices.boolean() else here + k, kind)
            case "back" | "back clamped":
                k = choices.integer(1, 2)
                forward = self.directions[dim] > 0
                term = here - k if forward else here + k
                if kind == "back":
                    return Point(term, "shift")
                return Point(most(term, 0) if forward else least(term, limit - 1), "clamped")
            case "clamped":
                k = choices.integer(1, 3)
                return Point(most(here - k, 0) if choices.boolean() else least(here + k, limit - 1), kind)
            case "reversed":
                return Point(limit - 1 - here, kind)
            case "half":
                return Point((here + 1 if choices.boolean() else here) // 2, "//")
            case "mod":
                return Point((here + 1 if choices.boolean() else here) % choices.integer(2, 3), "%")
            case "extremum":
                c = choices.integer(0, 2)
                return Point(least(here, c) if choices.boolean() else least(most(here, c), limit - 1), kind)
            case "scaled":
                return Point(least(here * 2, limit - 1), kind)
            case "other":
                other = Symbol(choices.choice(others))
                return Point(other if choices.boolean() else least(other, limit - 1), kind)
            case "joined":
                other = Symbol(choices.choice(others))
                options = (least(here, other), least(here + other, limit - 1), most(here - other, 0))
                return Point(choices.choice(options), kind)
            case "first":
                return Point(Number(0), kind)
            case "last":
                # One more step back than the last, or one further, where the tensor reaches there.
                return Point(limit if choices.boolean(0.2) else limit - 1, kind)
            case _:
                return Point(Number(choices.integer(0, self.number(dim) - 1)), "constant")

    def span(self, scope: Scope, tensor: Tensor, dim: str) -> Span:
        """A run of steps of a dim, by a kind of slice."""
        here, limit, choices = Symbol(dim), self.limit(dim), self.choices
        others = [Symbol(d) for d in scope.dims if d != dim]
        zero = Number(0)
        kinds = ["all", "all", "constant"]
        if dim in scope.dims:
            kinds += (
                ["prefix"] * 3 + ["suffix"] * 2 + ["window"] * 2 + ["window ahead", "window around", "single", "block"]
            )
            if tensor.heights is not None and dim in self.directions:
                kinds = ["before", "before window"]
        elif others:
            kinds.append("other prefix")
        kind = choices.choice(kinds)
        width = choices.integer(1, 3) if "window" in kind else 0
        match kind:
            case "all":
                return Span(zero, limit, kind)
            case "constant":
                start = choices.integer(0, self.number(dim) - 1)
                stop = choices.integer(start, self.number(dim))
                return Span(Number(start), Number(stop), kind)
            case "prefix":
                return Span(zero, here if choices.boolean(0.3) else here + 1, kind)
            case "suffix":
                return Span(here + 1 if choices.boolean(0.3) else here, limit, kind)
            case "window":
                return Span(most(here - width, 0), here + 1, kind)
            case "window ahead":
                return Span(here, least(here + width, limit), "window")
            case "window around":
                return Span(most(here - width, 0), least(here + width + 1, limit), kind)
            case "single":
                return Span(here, here + 1, kind)
            case "block":
                start_ = here // 2 * 2
                return Span(start_, least(start_ + 2, limit), kind)
            case "other prefix":
                return Span(zero, least(choices.choice(others) + 1, limit), kind)
            case "before":
                return Span(zero, here, "prefix") if self.directions[dim] > 0 else Span(here + 1, limit, "suffix")
            case _:
                if self.directions[dim] > 0:
                    return Span(most(here - width, 0), here, "window")
                return Span(here + 1, least(here + 1 + width, limit), "window")
