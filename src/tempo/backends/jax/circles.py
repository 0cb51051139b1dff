"""Products with a window of steps, which lies in a circle: the window stays as it is, what is smaller is turned.

Attention over the last w steps reads a circular store of w steps that begins anywhere. To put it in order is to copy it
for every step, which takes two to three times as long as the product itself. But a product with the steps in the order
of the store gives the same results in that order, and a sum over them has no order. The store may have room for more
steps, because a block of them is put into it at once: then the product is with all of it, and the others do not count.
Attention as one operation has keys and values in the order of their stores, and its mask is turned.

Where many steps are computed at once, each with a window of its own, attention has the keys and values of all of these
windows, once, and its mask says which are a step's own: to copy them for each step takes many times their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from tempo.backends.jax.padded import Padded, jx
from tempo.backends.jax.reading import Block
from tempo.graph.node import Edge, Node
from tempo.ops.attention import ATTENTION, MOST_WINDOWS, STEPS
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.schedule.storage import Steps, Store, Window
from tempo.symbolic import Expr, Slice, Symbol, constant
from tempo.symbolic.grid import evaluate
from tempo.symbolic.intervals import extent, interval

Array = Any
Evaluate = Callable[[Expr], Any]
"""Gives the value that an expression has at a point."""

# Reading so many times the window costs less than to copy it.
MOST_SLOTS = 2


@dataclass(frozen=True)
class Slots:
    """An axis of an operand that is as long as the circle which it lies in."""

    axis: int
    size: int


@dataclass(frozen=True)
class Turned:
    """How the operands of a product are read, if not as its edges say."""

    first: Any
    """The slot of a circle at which a window begins, which may be traced: None if there is none."""

    @property
    def symbols(self) -> frozenset[Symbol]:
        """What ``turned`` depends on beside the operands."""
        return frozenset()

    def slots(self, operand: int) -> Slots | None:
        """Which axis of an operand is read as it is stored."""
        return None

    def reads_more(self, operand: int) -> bool:
        """Whether there are steps among what is read that do not count."""
        return self.slots(operand) is not None

    def edges(self, edges: Sequence[Edge]) -> Sequence[Edge]:
        """What is read."""
        return edges

    def turned(self, operands: Sequence[Padded], value: Evaluate) -> list[Padded]:
        """The operands as the product gets them, at a point at which ``value`` gives the values of expressions."""
        return list(operands)

    def ordered(self, result: Array) -> Array:
        """A result as the edges say."""
        return result


@dataclass(frozen=True)
class Circle(Turned):
    """One axis of one operand of a product: ``length`` steps in a circle of ``size`` slots, the first of them at the
    slot ``first``."""

    operand: int
    axis: int
    size: int
    length: int
    result: int | None
    """The axis of the result that has these steps; None if the product sums over them."""
    other: int | None
    """The axis of the other operand that has them, if it does."""

    def slots(self, operand: int) -> Slots | None:
        return Slots(self.axis, self.size) if operand == self.operand else None

    def turned(self, operands: Sequence[Padded], value: Evaluate) -> list[Padded]:
        if self.other is None:
            return list(operands)
        turned = list(operands)
        turned[self.operand] = _full(operands[self.operand], operands[self.operand].array, self.axis, self.size)
        other = operands[1 - self.operand]
        array = jx.masked(other, [self.other], 0)
        array = jx.fit(array, (*array.shape[: self.other], self.size, *array.shape[self.other + 1 :]))
        slots = (np.arange(self.size) - self.first) % self.size
        array = jnp.take(array, slots, axis=self.other, mode="clip")
        turned[1 - self.operand] = _full(other, array, self.other, self.size)
        return turned

    def ordered(self, result: Array) -> Array:
        """A result whose steps begin with the first of the window."""
        if self.result is None:
            return result
        return jnp.take(result, (self.first + np.arange(self.length)) % self.size, axis=self.result, mode="clip")


@dataclass(frozen=True)
class Caches(Turned):
    """The keys and values of an attention: windows of the same steps in circles of ``size`` slots."""

    axes: tuple[int, int]
    size: int

    def slots(self, operand: int) -> Slots | None:
        return Slots(self.axes[operand - 1], self.size) if operand in (1, 2) else None

    def turned(self, operands: Sequence[Padded], value: Evaluate) -> list[Padded]:
        """Keys and values in the order of their stores, and for every slot whether its step is seen, or none of the
        window's (-1)."""
        q, keys, values, *seen = operands
        steps = (np.arange(self.size) - self.first) % self.size
        mask = _mask(steps, steps < jx.true(keys.sizes[self.axes[0]]), seen)
        caches = (_full(x, x.array, axis, self.size) for x, axis in zip((keys, values), self.axes, strict=True))
        return [q, *caches, Padded(mask, (self.size,))]


@dataclass(frozen=True)
class Hull(Turned):
    """The keys and values of an attention at many points, of which each sees the ``steps`` of a window: all ``size``
    steps that any of them sees, beginning with number ``low``."""

    steps: Slice
    low: int
    size: int

    @property
    def symbols(self) -> frozenset[Symbol]:
        return self.steps.symbols()

    def reads_more(self, operand: int) -> bool:
        return operand in (1, 2)

    def edges(self, edges: Sequence[Edge]) -> Sequence[Edge]:
        everything = Slice(constant(self.low), constant(self.low + self.size))
        q, *caches = edges[:3]
        new = [Edge(e.node, tuple([everything if i == self.steps else i for i in e.index])) for e in caches]
        return [q, *new, *edges[3:]]

    def turned(self, operands: Sequence[Padded], value: Evaluate) -> list[Padded]:
        return _of_windows(operands, self.low, self.size, self.steps, value)


@dataclass(frozen=True)
class Behind(Turned):
    """The keys and values of an attention at a block of which nobody knows where it begins: ``size`` steps of them,
    those of the block behind those before it, beginning with number ``first``."""

    steps: Slice
    size: int

    @property
    def symbols(self) -> frozenset[Symbol]:
        return self.steps.symbols()

    def slots(self, operand: int) -> Slots | None:
        return Slots(0, self.size) if operand in (1, 2) else None

    def turned(self, operands: Sequence[Padded], value: Evaluate) -> list[Padded]:
        q, *caches = operands[:3]
        whole = [_full(x, x.array, 0, self.size) for x in caches]
        return _of_windows([q, *whole, *operands[3:]], self.first, self.size, self.steps, value)


def _of_windows(operands: Sequence[Padded], low: Any, size: int, window: Slice, value: Evaluate) -> list[Padded]:
    """The operands of an attention with keys and values of ``size`` steps, and a mask in which those that are not in
    the window are none (-1)."""
    q, keys, values, *seen = operands
    start, stop = value(window.start), value(window.stop)
    number = low + np.arange(size, dtype=np.int32)
    mask = _mask(number - start, (number >= start) & (number < stop), seen)
    return [q, keys, values, Padded(mask, (size,))]


def _mask(steps: Array, there: Array, seen: Sequence[Padded]) -> Array:
    """For these steps of a window whether they are seen, or (-1) not even there."""
    own = jnp.take(seen[0].array.reshape(-1), steps, mode="clip").astype(jnp.int8) if seen else jnp.int8(1)
    return jnp.where(there, own, jnp.int8(-1))


def _full(x: Padded, array: Array, axis: int, size: int) -> Padded:
    return replace(x.other(array), sizes=(*x.sizes[:axis], size, *x.sizes[axis + 1 :]))


def circle(
    node: Node, edges: Sequence[Edge], stores: Mapping[Node, Store], block: Block, level: Set[Node]
) -> Turned | None:
    """The operands of a product that are windows of steps and can stay in the order of their stores. Those nodes are
    ``level`` of which the steps of a block have the same numbers as the loop's."""
    if node.op is ATTENTION:
        return _caches(node, edges, stores, block) or _hull(edges, stores, block, level)
    if node.op is not EINSUM:
        return None
    *terms, out = subscript_terms(node.attributes["subscripts"])
    for n, edge in enumerate(edges):
        window = _window(edge, stores, block)
        if window is None:
            continue
        letter = terms[n][window.axis]
        # Either the result has the steps, or the other operand, over which they are summed.
        if [*terms[1 - n], *out].count(letter) == 1 and terms[n].count(letter) == 1:
            result = out.index(letter) if letter in out else None
            other = None if letter in out else terms[1 - n].index(letter)
            return Circle(window.first(block), n, window.axis, window.size, window.length, result, other)
    return None


def _caches(node: Node, edges: Sequence[Edge], stores: Mapping[Node, Store], block: Block) -> Caches | None:
    terms = subscript_terms(node.attributes["terms"])
    found = [_window(edge, stores, block) for edge in edges[1:3]]
    keys, values = found
    if keys is None or values is None or (keys.size, keys.steps) != (values.size, values.steps):
        return None
    axes = (terms[1].index(STEPS), terms[2].index(STEPS))
    return Caches(keys.first(block), axes, keys.size) if axes == (keys.axis, values.axis) else None


def _hull(edges: Sequence[Edge], stores: Mapping[Node, Store], block: Block, level: Set[Node]) -> Hull | Behind | None:
    """Windows of the same steps that begin at another one for every point of a block."""
    found = [
        [(d, item) for d, item in zip(e.node.domain, e.index, strict=True) if isinstance(item, Slice)]
        for e in edges[1:3]
    ]
    if any(len(items) != 1 or e.node not in stores for e, items in zip(edges[1:3], found, strict=True)):
        return None
    (d, steps), (other, same) = (items[0] for items in found)
    moving = [v for v in block.dims if v in steps.start.symbols()]
    known = all(isinstance(block.ranges[v].start, int) for v in block.dims if v in steps.symbols())
    kept = [stores[e.node].dims[of] for e, of in zip(edges[1:3], (d, other), strict=True)]
    if steps != same or not moving or not all(isinstance(k, Steps | Window) for k in kept):
        return None
    spans, numbers = block.spans(), block.bounds.numbers
    most = MOST_WINDOWS * extent(steps.length, spans, numbers)
    if known:
        low, high = interval(steps.start, spans, numbers)[0], interval(steps.stop, spans, numbers)[1]
        return Hull(None, steps, low, high - low) if 0 < high - low <= most else None
    behind = [k for k in kept if isinstance(k, Steps) and not isinstance(k.start, int)]
    if len(behind) < 2 or behind[0].size != behind[1].size or not {e.node for e in edges[1:3]} <= level:
        return None
    return Behind(behind[0].start, steps, behind[0].size) if behind[0].size <= most else None


@dataclass(frozen=True)
class _Window:
    """An axis of what an edge reads: ``length`` steps at most in a circle of ``size`` slots."""

    axis: int
    size: int
    length: int
    steps: Slice

    def first(self, block: Block) -> Any:
        """The slot of the first step."""
        return evaluate(self.steps.start, {**block.bounds.values, **block.at}, jnp) % self.size


def _window(edge: Edge, stores: Mapping[Node, Store], block: Block) -> _Window | None:
    """The window of steps that an edge reads, if it lies in a circle that is not much longer."""
    kept = stores[edge.node].dims if edge.node in stores else {}
    items = [(d, item) for d, item in zip(edge.node.domain, edge.index, strict=True) if isinstance(item, Slice)]
    circles = [axis for axis, (d, _) in enumerate(items) if isinstance(kept.get(d), Window)]
    if len(circles) != 1:
        return None
    (axis,) = circles
    d, item = items[axis]
    size: int = kept[d].size  # type: ignore[union-attr]
    length = extent(item.length, block.spans(), block.bounds.numbers)
    fixed = not any(v in item.start.symbols() for v in block.dims)
    return _Window(axis, size, length, item) if length <= size <= MOST_SLOTS * length and fixed else None
