"""A primitive at all points of a block: one function of arrays.

It is the primitive's own, for one point, ``vmap``ped over the dims that are computed at once, with operands that do not
vary over a dim left unbatched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tempo.backends.jax.circles import Turned
from tempo.backends.jax.padded import Extent, Padded, Size, jx
from tempo.backends.jax.padding import Padding
from tempo.backends.jax.reading import Block, Value
from tempo.backends.jax.settled import Settled
from tempo.graph.node import Edge, Node, Shape, attribute_symbols, dims_of, frozen, normal_size, shape_symbols
from tempo.symbolic import Condition, Dim, Expr
from tempo.symbolic.grid import Grid, evaluate
from tempo.symbolic.intervals import extent

Array = Any


class Primitives:
    """What computes the primitives of a graph."""

    def __init__(self, numbers: Mapping[Any, int], settled: Settled, padding: Padding) -> None:
        self.numbers = numbers
        self.settled = settled
        self.padding = padding
        self._functions: dict[Any, Callable[..., Array]] = {}

    def __call__(
        self, node: Node, edges: Sequence[Edge], operands: Sequence[Value], turned: Turned | None, block: Block
    ) -> Value:
        """A primitive's value, given what its edges read."""
        needed: frozenset[Any] = frozenset() if turned is None else turned.symbols
        matter = _symbols(node, edges) | needed
        varying = self._varying(node, operands, block) | (set(dims_of(needed)) & set(block.dims))
        coordinates = [
            # Without a detour over JAX, which takes far longer than making numbers that nobody looks at.
            (block.ranges[d].traced if d in matter else block.ranges[d].steps)
            if d in varying
            else _int32(block.ranges[d].start)
            for d in block.dims
        ]
        function, traced = self._function(node, edges, operands, varying, turned, block)
        first = None if turned is None else turned.first
        array = function(coordinates, [o.array for o in operands], traced, first)
        dims = tuple(d for d in block.dims if d in varying)
        sizes = (extent(size, block.spans(), self.numbers) for size in node.shape)
        return Value(jx.fit(array, (*array.shape[: len(dims)], *sizes), self.padding(node.here())), dims)

    def _function(
        self,
        node: Node,
        edges: Sequence[Edge],
        operands: Sequence[Value],
        varying: set[Dim],
        turned: Turned | None,
        block: Block,
    ) -> tuple[Callable[..., Array], dict[str, Array]]:
        """What computes a primitive from coordinates and operands, and the traced numbers that it needs besides.

        JAX takes far longer to trace a primitive than we do to see that it is one that it has traced before, as most
        of them are in a model of many layers.
        """
        compute = node.op.jax
        assert compute is not None, f"{node.op.name} has no JAX form"
        fill = self.padding.filled.get(node)
        symbols = _symbols(node, edges) | (frozenset() if fill is None else shape_symbols(node.shape))
        symbols |= frozenset() if turned is None else turned.symbols
        known = {s: value for s, value in {**block.bounds.values, **block.at}.items() if s in symbols}
        names = {s: f"{s.name}_{n}" for n, s in enumerate(known) if not isinstance(known[s], int)}
        numbers = {s: value for s, value in known.items() if s not in names}
        shapes = tuple((edge.shape, self.settled(edge), self.padding(edge)) for edge in edges)
        axes = [[0 if d in o.dims else None for o in operands] for d in block.dims]
        still = None if turned is None else replace(turned, first=None)
        traced = {name: known[s] for s, name in names.items()}
        spans = {s: span for s, span in block.spans().items() if s in symbols or s in block.dims}
        key: Any = None  # for what has no operands: it may be large, and is there once
        if edges:
            key = (
                node.op,
                frozen(node.attributes),
                shapes,
                tuple(map(tuple, axes)),
                tuple(d in varying for d in block.dims),
                block.dims,
                tuple(spans.items()),
                tuple(numbers.items()),
                tuple(names.items()),
                still,
                None if fill is None else (node.shape, fill),
            )
        if key in self._functions:
            return self._functions[key], traced

        def at_point(coordinates: list[Array], arrays: list[Array], traced: dict[str, Array], first: Any) -> Array:
            here = {**numbers, **{s: traced[name] for s, name in names.items()}}
            here |= dict(zip(block.dims, coordinates, strict=True))

            def sizes(shape: Shape) -> tuple[Size, ...]:
                return tuple(self._size(size, here, block) for size in shape)

            padded = [
                Padded(array, sizes(shape), settled, padding)
                for array, (shape, settled, padding) in zip(arrays, shapes, strict=True)
            ]
            attributes = {k: self._attribute(v, here, block) for k, v in node.attributes.items()}
            if still is None:
                result = compute(jx, *padded, **attributes)
            else:
                circle = replace(still, first=first)

                def value(expr: Expr) -> Any:
                    return jx.true(self._size(expr, here, block))

                result = circle.ordered(compute(jx, *circle.turned(padded, value), **attributes))
            return result if fill is None else jx.masked(Padded(result, sizes(node.shape)), range(result.ndim), fill)

        function: Callable[..., Array] = at_point
        for n, d in reversed(list(enumerate(block.dims))):
            if d in varying:
                marks = [0 if m == n else None for m in range(len(block.dims))]
                function = jax.vmap(function, in_axes=(marks, axes[n], None, None))
        if edges:
            self._functions[key] = function = jax.jit(function, inline=True)
        return function, traced

    def _varying(self, node: Node, operands: Sequence[Value], block: Block) -> set[Dim]:
        """The dims of a block over which a node's values really differ."""
        found = {d for o in operands for d in o.dims}
        symbols = _symbols(node, node.edges) | shape_symbols(node.shape)
        return found | (set(dims_of(symbols)) & set(block.dims))

    def _size(self, size: int | Expr, here: Mapping[Any, Any], block: Block) -> Size:
        if isinstance(size, int):
            return size
        numeric = size.substitute(self.numbers)
        if numeric.is_constant:
            return numeric.constant
        return Extent(partial(evaluate, numeric, here, jnp), extent(numeric, block.spans(), self.numbers))

    def _attribute(self, value: Any, here: Mapping[Any, Any], block: Block) -> Any:
        if isinstance(value, Expr):
            return self._size(value, here, block)
        if isinstance(value, Condition):
            return evaluate(value, here, jnp)
        if isinstance(value, Grid):
            sizes = [jx.most(self._size(normal_size(d.bound), here, block)) for d in value.axes]
            points = dict(zip(value.axes, np.indices(sizes, dtype=np.int32), strict=True))
            return jnp.broadcast_to(evaluate(value.value, {**here, **points}, jnp), sizes)
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self._attribute(v, here, block) for v in value)
        return value


def _symbols(node: Node, edges: Sequence[Edge]) -> frozenset[Any]:
    """What sizes and attributes of a primitive depend on."""
    return attribute_symbols(tuple(node.attributes.values())).union(*(shape_symbols(edge.shape) for edge in edges))


def _int32(step: Any) -> Any:
    return np.int32(step) if isinstance(step, int) else jnp.asarray(step, jnp.int32)
