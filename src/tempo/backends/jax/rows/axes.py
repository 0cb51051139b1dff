"""Which axis of every array has the rows: the axis that no primitive looks along, from the loop's first value to its
last.

Axes that a primitive takes over from what it is given belong together; along some it looks, as a sum does. What belongs
to no such axis, in all iterations, are rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tempo.backends.jax.rows.steps import Body, NotRowsError, Step, Var

Axis = tuple[Var, int]

_ONE_BY_ONE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp clz
    convert_element_type copy cos cosh div eq exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt
    max min mul ne neg nextafter not or population_count pow rem rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor
"""
ELEMENTWISE = frozenset(_ONE_BY_ONE.split())
REDUCTIONS = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin"])


class Axes:
    """Axes that belong together."""

    def __init__(self, body: Body) -> None:
        self.parents: dict[Axis, Axis] = {}
        self.crossed: set[Axis] = set()
        for step in body.steps:
            for one, other in _relations(step):
                if other is None:
                    self.crossed.add(one)
                else:
                    self.join(one, other)
        for var, result in zip(body.carried, body.results, strict=True):
            for axis in range(len(var.shape)):
                self.join((var, axis), (result, axis))
        self.crossed = {self.find(axis) for axis in self.crossed}

    def join(self, one: Axis, other: Axis) -> None:
        self.parents[self.find(one)] = self.find(other)

    def find(self, axis: Axis) -> Axis:
        while (parent := self.parents.get(axis, axis)) != axis:
            self.parents[axis] = self.parents.get(parent, parent)
            axis = parent
        return axis


def rows_of(body: Body) -> tuple[int, Mapping[Var, int]]:
    """The number of rows, and the axis that has them of each array that has rows."""
    if any(0 in var.shape for var in body.vars):
        raise NotRowsError("there is nothing in an array")
    axes = Axes(body)
    found: dict[Axis, dict[Var, int]] = {}
    twice: set[Axis] = set()
    for var in body.vars:
        for axis, size in enumerate(var.shape):
            family = axes.find((var, axis))
            if size > 1 and family not in axes.crossed:
                if var in found.setdefault(family, {}):
                    twice.add(family)
                found[family][var] = axis
    # Of several such axes, the one of most of what goes from iteration to iteration.
    handed_on = (*body.carried, *body.results)
    carried = {
        family: sum(math.prod(var.shape) for var in handed_on if var in own)
        for family, own in found.items()
        if family not in twice
    }
    if not any(carried.values()):
        raise NotRowsError("no axis is one of rows that do not need each other")
    best = max(carried, key=carried.__getitem__)
    var, axis = next(iter(found[best].items()))
    return var.shape[axis], found[best]


def _relations(step: Step) -> Iterator[tuple[Axis, Axis | None]]:
    """Axes that are the same in what a step is given and what it computes; with None, axes that it looks along."""
    name, out, given, params = step.name, step.output, step.inputs, step.params
    if name in ELEMENTWISE:
        for var in given:
            if len(var.shape) == len(out.shape):
                yield from _same(var, out)
    elif name in ("broadcast_in_dim", "squeeze", "transpose", "reshape"):
        pairs = _moved(step)
        yield from (((given[0], a), (out, b)) for a, b in pairs.items())
        yield from _others(given[0], pairs.keys())
        yield from () if name == "broadcast_in_dim" else _others(out, pairs.values())
    elif name in REDUCTIONS:
        kept = [axis for axis in range(len(given[0].shape)) if axis not in params["axes"]]
        yield from (((given[0], axis), (out, n)) for n, axis in enumerate(kept))
        yield from _others(given[0], kept)
    elif name == "dot_general":
        yield from _of_product(step)
    elif name in ("dynamic_slice", "slice", "pad"):
        yield from _same(given[0], out)
        yield from _parts(given[0], out)
    elif name == "dynamic_update_slice":
        yield from _same(given[0], out)
        yield from _same(given[1], out)
        yield from _parts(out, given[1])
    elif name == "concatenate":
        for var in given:
            yield from _same(var, out, but=params["dimension"])
            yield (var, params["dimension"]), None
        yield (out, params["dimension"]), None
    elif name == "stack":
        for var in given:
            yield from (((var, n), (out, n + (n >= params["axis"]))) for n in range(len(var.shape)))
        yield (out, params["axis"]), None
    elif name != "iota":
        raise NotRowsError(f"{name} is not known there")


def _same(one: Var, other: Var, but: int = -1) -> Iterator[tuple[Axis, Axis]]:
    for axis, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)):
        if a == b and axis != but:
            yield (one, axis), (other, axis)


def _parts(whole: Var, part: Var) -> Iterator[tuple[Axis, None]]:
    """Axes of which there is only a part."""
    for axis, (a, b) in enumerate(zip(whole.shape, part.shape, strict=True)):
        if a != b:
            yield (whole, axis), None
            yield (part, axis), None


def _others(var: Var, known: Any) -> Iterator[tuple[Axis, None]]:
    for axis, size in enumerate(var.shape):
        if axis not in known and size > 1:
            yield (var, axis), None


def _moved(step: Step) -> dict[int, int]:
    """Where axes of what is given are in the result of a primitive that moves them."""
    given, out, params = step.inputs[0].shape, step.output.shape, step.params
    if step.name == "broadcast_in_dim":
        places = params["broadcast_dimensions"]
        return {n: int(axis) for n, axis in enumerate(places) if given[n] == out[axis]}
    if step.name == "squeeze":
        kept = [axis for axis in range(len(given)) if axis not in params["dimensions"]]
        return {axis: n for n, axis in enumerate(kept)}
    if step.name == "transpose":
        return {int(axis): n for n, axis in enumerate(params["permutation"])}
    return {a[0]: b[0] for a, b in groups(given, out) if len(a) == len(b) == 1}


def groups(given: tuple[int, ...], out: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The axes of a reshaped array that become axes of its result, in groups that are as small as can be; without axes
    of length one."""
    found: list[tuple[list[int], list[int]]] = []
    left = [n for n, size in enumerate(given) if size != 1]
    right = [n for n, size in enumerate(out) if size != 1]
    while left or right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (sizes := (_size(given, a), _size(out, b)))[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        found.append((a, b))
    return found


def _size(shape: tuple[int, ...], axes: list[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


def _of_product(step: Step) -> Iterator[tuple[Axis, Axis | None]]:
    left, right = step.inputs
    (a, b), (c, d) = step.params["dimension_numbers"]
    for one, other in zip(c, d, strict=True):
        yield (left, one), (right, other)
    free = [(left, n) for n in range(len(left.shape)) if n not in (*a, *c)]
    free += [(right, n) for n in range(len(right.shape)) if n not in (*b, *d)]
    sources = [*((left, n) for n in c), *free]
    yield from ((axis, (step.output, n)) for n, axis in enumerate(sources))
    yield from (((left, n), None) for n in a)
    yield from (((right, n), None) for n in b)
