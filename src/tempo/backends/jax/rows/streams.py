"""Products of rows with matrices that are the same in all iterations: one part is read while the one before it is
multiplied.

Registers cannot be indexed, so that the rows go through memory as well; they are few. What is multiplied is in single
precision, without matrix units: these want more rows at a time than there are for each of a GPU's multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tempo.backends.jax.pallas import pl, triton
from tempo.backends.jax.rows.blocks import LEAST, Block, padded
from tempo.backends.jax.rows.steps import Step, Var

Array = Any

MOST_PART, LONGEST_PART = 2**13, 32
"""How many numbers of a matrix are read at a time, and how many positions that are summed over, at most."""


@dataclass(frozen=True)
class Stream:
    """``step`` multiplies rows, its input number ``given``, with a matrix."""

    step: Step
    given: int

    @property
    def rows(self) -> Var:
        return self.step.inputs[self.given]

    @property
    def matrix(self) -> Var:
        return self.step.inputs[1 - self.given]

    @property
    def along(self) -> tuple[int, int]:
        """The axes of rows and matrix that are summed over."""
        summed = [int(axis) for (axis,) in self.step.params["dimension_numbers"][0]]
        return summed[self.given], summed[1 - self.given]

    @property
    def sizes(self) -> tuple[int, int]:
        """How many positions are summed over, and how many sums there are; powers of two."""
        axis = self.along[1]
        length, width = padded((self.matrix.shape[axis], self.matrix.shape[1 - axis]))
        return length, width

    @property
    def part(self) -> int:
        """How many positions are summed over at a time."""
        length, width = self.sizes
        return min(length, LONGEST_PART, MOST_PART // width)

    def arranged(self, matrix: Array) -> Array:
        """The matrix as it is read: line after line without gaps, none of which is left out."""
        lines = matrix if self.along[1] == 0 else matrix.T
        return jnp.pad(lines, [(0, size - there) for size, there in zip(self.sizes, lines.shape, strict=True)])

    def multiply(self, rows: Block, matrix: Any, scratch: Callable[[Any, int], Any], wait: Callable[[], None]) -> Array:
        """The product with an arranged matrix, by way of positions of a program's own ``scratch``; its threads ``wait``
        for each other."""
        (length, width), part = self.sizes, self.part
        values = rows.cleaned((self.along[0],))
        values = values if self.along[0] == 1 else values.T

        def product(left: Array, start: Any) -> Array:
            right = triton.load(matrix.at[pl.ds(start, part), pl.ds(first, width)])
            return lax.dot(left, right, precision=lax.Precision.HIGHEST)

        def add(number: Array, total: Array) -> Array:
            start = number * np.int32(part)
            return total + product(triton.load(scratch(start, part)), start)

        first: Any = np.int32(0)  # of the type of all other positions, in 64 bits as well
        if length == part:  # a loop of one round would be none: Triton would read ahead in the loop around it
            total = product(values, first)
        else:
            wait()  # until nobody reads what was there before
            triton.store(scratch(first, length), values)
            wait()
            start = jnp.zeros((len(values), width), jnp.float32)
            total = lax.fori_loop(first, np.int32(length // part), add, start)
        return total if self.given == 0 else total.T


def streams(products: Iterable[Step], axes: Mapping[Var, int], constants: Collection[Var]) -> dict[Var, Stream]:
    """Which products can be made so, by their outputs; none if not one of them has several parts."""
    every = (Stream(step, given) for step in products if _is_plain(step) for given in range(2))
    found = {
        stream.step.output: stream
        for stream in every
        if stream.rows in axes and stream.matrix in constants and stream.matrix not in axes
        if min(*stream.sizes, stream.part) >= LEAST
    }
    return found if any(stream.sizes[0] > stream.part for stream in found.values()) else {}


def _is_plain(step: Step) -> bool:
    (summed, _), (together, _) = step.params["dimension_numbers"]
    plain = all(len(var.shape) == 2 for var in step.inputs) and len(summed) == 1 and not together
    return plain and all(var.dtype == np.float32 for var in (*step.inputs, step.output))
