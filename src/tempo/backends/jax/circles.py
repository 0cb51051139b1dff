"""Products with a window of steps, which lies in a circle: the window stays as it is, what is smaller is turned.

Attention over the last w steps reads a circular store of w steps that begins anywhere. To put it in order is to copy it
for every step, which takes two to three times as long as the product itself. But a product with the steps in the order
of the store gives the same results in that order, and a sum over them has no order. The store may have room for more
steps, because a prompt was put into it at once: then the product is with all of it, and the others do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from tempo.backends.jax.padded import Padded, jx
from tempo.backends.jax.reading import Block
from tempo.graph.node import Edge, Node
from tempo.ops.contraction import EINSUM, subscript_terms
from tempo.schedule.storage import Store, Window, extent
from tempo.symbolic import Slice
from tempo.symbolic.grid import evaluate

Array = Any

# Reading so many times the window costs less than to copy it.
MOST_SLOTS = 2


@dataclass(frozen=True)
class Circle:
    """One axis of one operand of a product: ``length`` steps in a circle of ``size`` slots, the first of them at the
    slot ``first``."""

    operand: int
    axis: int
    size: int
    length: int
    first: Any
    result: int | None
    """The axis of the result that has these steps; None if the product sums over them."""
    other: int | None
    """The axis of the other operand that has them, if it does."""

    def turned(self, operands: Sequence[Padded]) -> list[Padded]:
        """The operands with the steps in the order of the store."""
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


def _full(x: Padded, array: Array, axis: int, size: int) -> Padded:
    return replace(x, array=array, sizes=(*x.sizes[:axis], size, *x.sizes[axis + 1 :]))


def circle(node: Node, edges: Sequence[Edge], stores: Mapping[Node, Store], block: Block) -> Circle | None:
    """The operand of a product that is a window of steps and can stay in the order of its store."""
    if node.op is not EINSUM:
        return None
    *terms, out = subscript_terms(node.attributes["subscripts"])
    for n, edge in enumerate(edges):
        kept = stores[edge.node].dims if edge.node in stores else {}
        items = [(d, item) for d, item in zip(edge.node.domain, edge.index, strict=True) if isinstance(item, Slice)]
        circles = [axis for axis, (d, _) in enumerate(items) if isinstance(kept.get(d), Window)]
        if len(circles) != 1:
            continue
        (axis,) = circles
        d, item = items[axis]
        letter = terms[n][axis]
        size: int = kept[d].size  # type: ignore[union-attr]
        length = extent(item.length, block.spans(), block.bounds.numbers)
        fixed = not any(v in item.start.symbols() for v in block.dims)
        # Either the result has the steps, or the other operand, over which they are summed.
        once = [*terms[1 - n], *out].count(letter) == 1 and terms[n].count(letter) == 1
        if length <= size <= MOST_SLOTS * length and fixed and once:
            start = evaluate(item.start, {**block.bounds.values, **block.at}, jnp)
            result = out.index(letter) if letter in out else None
            other = None if letter in out else terms[1 - n].index(letter)
            return Circle(n, axis, size, length, start % size, result, other)
    return None
