"""What a cell computes for arguments of certain kinds: a function of arrays, for one instance or for many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

import tempo as tp
from tempo.backends.jax.padded import Padded, jx
from tempo.errors import InputError
from tempo.graph.node import Node
from tempo.graph.structural import INPUT
from tempo.ops.contraction import EINSUM
from tempo.ops.indexing import SLICE
from tempo.symbolic import Expr

if TYPE_CHECKING:
    from tempo.batching.cell import Cell

Array = Any


@dataclass(frozen=True, eq=False)
class Kind:
    """What one value of an arena is: a shape and a dtype. Made by ``kind``, so that equal ones are one object."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        return bool(tp.dtypes.is_float(self.dtype))

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


@cache
def kind(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Kind:
    return Kind(shape, dtype)


_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}
_NARROW[np.dtype(np.uint64)] = np.dtype(np.uint32)


def narrowed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of data inside of cells: what NumPy makes 64 bits wide by itself is made 32 bits wide; and bytes are in
    the machine's own order."""
    dtype = dtype.newbyteorder("=")
    return _NARROW.get(dtype, dtype)


def can_be_data(dtype: np.dtype[Any]) -> bool:
    """Whether cells can be given such numbers."""
    return dtype.kind in "biuf" or tp.dtypes.is_float(dtype)


KEY = kind((2,), np.dtype(np.uint32))
"""What keys a generator."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A cell's body for arguments of certain kinds, as a function of arrays."""

    cell: Cell
    structure: Any
    """That of the results."""
    parameters: tuple[str, ...]
    """The names, in the cell, of those that the body reads."""
    arguments: tuple[Kind, ...]
    results: tuple[Kind, ...]
    inputs: tuple[Node | None, ...]
    """The nodes that stand for parameters, then arguments; None where nothing reads one."""
    outputs: tuple[Node, ...]
    auxiliary: bool = False
    """Whether it is no cell of the user's, or only what was taken out of one."""
    function: Callable[[Sequence[Array], Sequence[Array]], tuple[Array, ...]] | None = None
    """What it is instead of nodes, if it is a program over time."""
    stops: bool = False
    """Whether that program stops on data, so that there is no gradient through it."""
    draws: bool = False
    """Whether random numbers are drawn: the last argument is their key then, which is another one for every call, and
    which nobody gives."""
    early: Trace | None = None
    """What was taken out of it: its results are the last arguments, lane by lane."""

    @property
    def name(self) -> str | None:
        """That of the user's cell, if it is one."""
        return None if self.auxiliary else self.cell.name

    @property
    def aligned(self) -> int:
        """How many of the last arguments are in consecutive rows."""
        return 0 if self.early is None else len(self.early.results)

    @cached_property
    def nodes(self) -> frozenset[Node]:
        """All that the outputs need."""
        nodes, stack = set(self.outputs), list(self.outputs)
        while stack:
            for edge in stack.pop().edges:
                if edge.node not in nodes:
                    nodes.add(edge.node)
                    stack.append(edge.node)
        return frozenset(nodes)

    @cached_property
    def parts(self) -> dict[Node, _Parts]:
        """Its slices that are parts of something."""
        return _parts(self.nodes)

    @cached_property
    def form(self) -> object:
        """What it computes, whatever its parameters' names and values: traces of one form are the same function."""
        if self.function is not None:
            return self
        number: dict[Node, Any] = {node: n for n, node in enumerate(self.inputs) if node is not None}
        form: list[Any] = [self.arguments, self.results, self.aligned, self.auxiliary]
        form += [(node.shape, node.dtype) if node is not None else None for node in self.inputs]
        for node in sorted(self.nodes - set(number), key=lambda node: node.number):
            attributes = tuple([(name, _form(value)) for name, value in sorted(node.attributes.items())])
            operands = tuple([(number[edge.node], tuple(edge.shape)) for edge in node.edges])
            form.append((node.op, attributes, operands, tuple(node.shape), node.dtype))
            number[node] = len(number)
        return _forms.setdefault((*form, tuple([number[node] for node in self.outputs])), _Form())

    @cached_property
    def turned(self) -> tuple[bool, ...]:
        """Per parameter whether it is a matrix whose columns are summed over wherever it is part of a product, as those
        of linear layers: XLA turns such a matrix for every product on a CPU. (512 x 512 numbers and 8 or 32 instances:
        97 us and 227, with the matrix turned beforehand 61 and 190.)"""
        if self.function is not None:
            return (False,) * len(self.parameters)
        sums: dict[Node, list[bool]] = {}
        for node in self.nodes:
            if node.op is EINSUM:
                terms, _, out = node.attributes["subscripts"].partition("->")
                for term, edge in zip(terms.split(","), node.edges, strict=True):
                    sums.setdefault(edge.node, []).append(len(term) == 2 and term[0] in out and term[1] not in out)
        own = self.inputs[: len(self.parameters)]
        return tuple([node is not None and node in sums and all(sums[node]) for node in own])

    @cached_property
    def fused(self) -> tuple[frozenset[int], ...]:
        """Per result the arguments that it is made of without a sum of products in between: XLA would read them where
        it writes the result. Of a program over time it is not known, and these are all."""
        if self.function is not None:
            return (frozenset(range(len(self.arguments))),) * len(self.results)
        given = self.inputs[len(self.parameters) :]
        together = [_fused(output) for output in self.outputs]
        return tuple([frozenset([n for n, node in enumerate(given) if node in nodes]) for nodes in together])

    @cached_property
    def has_indices(self) -> bool:
        """Whether something is read at indices, which could be out of range."""
        return any(node.op.name in INDEXED for node in self.nodes)

    @cached_property
    def work(self) -> float:
        """Roughly how many operations a call is: those of its products, one for every other number; of a program over
        time, as if that were a large one."""
        if self.function is not None:
            return 1e9
        return float(sum(map(_operations, self.nodes)))

    @cached_property
    def size(self) -> int:
        """The bytes of a call's arguments and results."""
        return sum(one.bytes for one in (*self.arguments, *self.results))

    def batched(self, width: int, parameters: Sequence[Array], arguments: Sequence[Array]) -> tuple[Array, ...]:
        """The results for ``width`` instances at once, all with the same parameters."""
        return self.checked(width, parameters, arguments)[0]

    def checked(
        self, width: int, parameters: Sequence[Array], arguments: Sequence[Array]
    ) -> tuple[tuple[Array, ...], Array | None]:
        """The results, and which instances have an index that is out of range (None if there are no indices)."""
        batch = jax.vmap(self.evaluated, in_axes=(None, 0), axis_size=width)
        results, bad = batch(tuple(parameters), tuple(arguments))
        return results, bad

    def evaluated(
        self, parameters: Sequence[Array], arguments: Sequence[Array]
    ) -> tuple[tuple[Array, ...], Array | None]:
        """The results for one instance, and whether an index is out of range (None if there are no indices)."""
        if self.function is not None:
            return self.function(parameters, arguments), None
        values = {
            node: array for node, array in zip(self.inputs, (*parameters, *arguments), strict=True) if node is not None
        }
        results = tuple([_value(node, values, self.parts) for node in self.outputs])
        return results, _out_of_range(values)


def _form(value: Any) -> Any:
    """An attribute as something that equals only what means the same."""
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, tuple):
        return type(value), tuple(map(_form, value))
    if isinstance(value, str | int | float | bool | np.dtype | Expr) or value is None:
        return type(value), value
    return _Same(value)


@dataclass(frozen=True, eq=False)
class _Same:
    """Equals nothing else, and keeps its value, so that no other gets its identity."""

    value: Any


class _Form:
    """Stands for all forms that are equal, and is found faster than they are."""

    __slots__ = ("__weakref__",)


_forms: WeakValueDictionary[Any, _Form] = WeakValueDictionary()
"""Those of cells that are still there: constants are part of a form, and may be large."""


def _fused(output: Node) -> set[Node]:
    """What is computed together with an output."""
    nodes, stack = {output}, [output]
    while stack:
        node = stack.pop()
        new = set() if _is_sum_of_products(node) else {edge.node for edge in node.edges} - nodes
        nodes |= new
        stack.extend(new)
    return nodes


def _is_sum_of_products(node: Node) -> bool:
    if node.op is not EINSUM:
        return False
    terms, _, out = node.attributes["subscripts"].partition("->")
    return not set(terms) <= {*out, ","}


def _operations(node: Node) -> int:
    if node.op is INPUT:
        return 0
    if node.op.name != "einsum":
        return math.prod(map(int, node.shape))
    sizes: dict[str, int] = {}
    for letters, edge in zip(node.attributes["subscripts"].split("->")[0].split(","), node.edges, strict=True):
        sizes.update(zip(letters, map(int, edge.shape), strict=True))
    return 2 * math.prod(sizes.values())


def index_error(name: str, instance: int) -> InputError:
    """That a cell has read something at an index that is out of range."""
    return InputError(
        f"an index is out of range in cell {name}, called for instance {instance}",
        hint="indices of tp.take and nn.Embedding go from 0 to the number of rows, less one",
    )


INDEXED = ("take", "take_along_axis", "scatter_add", "scatter_add_along_axis")
"""Primitives whose second operand are indices."""


def _out_of_range(values: dict[Node, Array]) -> Array | None:
    """Whether some index among computed nodes is out of range."""
    bad = None
    for node in values:
        if node.op.name in INDEXED:
            source, indices = node.edges[0], values[node.edges[1].node]
            size = int(source.shape[node.attributes["axis"]])
            # In unsigned numbers, negative indices would be large ones.
            signed = indices.astype(np.int32)
            here = jnp.any((signed < -size) | (signed >= size))
            bad = here if bad is None else bad | here
    return bad


def _value(node: Node, values: dict[Node, Array], parts: Mapping[Node, _Parts]) -> Array:
    """A node's value from those of the nodes before it: in the order of their making, which follows their edges."""
    needed: dict[Node, None] = {}
    stack = [node]
    while stack:
        one = stack.pop()
        if one not in values and one not in needed:
            needed[one] = None
            stack.extend(edge.node for edge in one.edges)
    for one in sorted(needed, key=lambda n: n.number):
        if one in parts:
            values.update(zip(parts[one].nodes, parts[one](values[one.edges[0].node]), strict=True))
            continue
        assert one.op.jax is not None, f"{one.op.name} has no JAX form"
        operands = [Padded(values[edge.node], tuple(edge.shape)) for edge in one.edges]  # type: ignore[arg-type]
        attributes = {name: _attribute(value) for name, value in one.attributes.items()}
        make = _einsum if one.op is EINSUM else one.op.jax
        array = jnp.asarray(make(jx, *operands, **attributes)).astype(one.dtype)
        # Primitives without a gradient have derivative zero, whatever JAX makes of their form.
        values[one] = array if one.op.gradient is not None else lax.stop_gradient(array)
    return values[node]


@dataclass(frozen=True)
class _Parts:
    """Slices of one node that do not overlap, along one axis, in their order."""

    nodes: tuple[Node, ...]
    axis: int
    bounds: tuple[tuple[int, int], ...]
    size: int

    def __call__(self, array: Array) -> tuple[Array, ...]:
        found: tuple[Array, ...] = _cut(self.axis, self.bounds, self.size)(array)
        return found


def _parts(nodes: Iterable[Node]) -> dict[Node, _Parts]:
    """Which slices are parts of something."""
    slices: dict[tuple[Node, int], list[tuple[int, int, Node]]] = {}
    for node in nodes:
        if node.op is SLICE:
            (edge,) = node.edges
            starts, sizes, steps = (_attribute(node.attributes[name]) for name in ("starts", "sizes", "steps"))
            cut = [n for n, size in enumerate(edge.shape) if size != sizes[n]]
            if len(cut) == 1 and set(steps) == {1}:
                slices.setdefault((edge.node, cut[0]), []).append((starts[cut[0]], sizes[cut[0]], node))
    found = {}
    for (source, axis), some in slices.items():
        some.sort(key=lambda part: part[:2])
        if len(some) > 1 and all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(some)):
            bounds = tuple([(start, start + size) for start, size, _ in some])
            parts = _Parts(tuple([node for _, _, node in some]), axis, bounds, int(source.shape[axis]))
            found.update(dict.fromkeys(parts.nodes, parts))
    return found


@cache
def _cut(axis: int, bounds: tuple[tuple[int, int], ...], size: int) -> Any:
    """An array cut into parts, such that its gradient is put together of theirs.

    JAX would add up arrays as large as the whole, and XLA compute all that leads to them for every number: for the
    gates of 128 LSTMs with 256 units 1.9 ms instead of 0.1.
    """

    def parts(array: Array) -> tuple[Array, ...]:
        return tuple([lax.slice_in_dim(array, start, stop, axis=axis) for start, stop in bounds])

    def gradient(_: None, flows: Sequence[Array]) -> tuple[Array]:
        pieces, end = [], 0
        for (start, stop), flow in zip(bounds, flows, strict=True):
            pieces += [_between(flow, axis, start - end), flow]
            end = stop
        pieces.append(_between(flows[-1], axis, size - end))
        return (jnp.concatenate(pieces, axis),)

    function = jax.custom_vjp(parts)
    function.defvjp(lambda array: (parts(array), None), gradient)
    return function


def _between(like: Array, axis: int, size: int) -> Array:
    return jnp.zeros((*like.shape[:axis], size, *like.shape[axis + 1 :]), like.dtype)


def _einsum(jx: Any, *operands: Padded, subscripts: str) -> Array:
    """An einsum whose rows, where one operand is different for every instance, are those of all instances.

    For many instances JAX would have ``A @ W`` with two axes of rows, over both of which the gradient of ``W`` is
    summed. XLA copies an operand for that on a CPU: 2.7 ms for 128 matrices of 64 x 64, and 1 ms with one axis.
    """
    letters, _, out = subscripts.partition("->")
    # Whose first axis is the first of the result, and no other operand's.
    in_front = [term[:1] == out[:1] != "" and letters.count(term[0]) == 1 for term in letters.split(",")]

    def plain(*arrays: Array) -> Array:
        assert EINSUM.jax is not None
        return EINSUM.jax(jx, *(Padded(array, array.shape) for array in arrays), subscripts=subscripts)

    @custom_vmap
    def product(*arrays: Array) -> Array:
        return plain(*arrays)

    @product.def_vmap
    def batched(size: int, is_batched: Sequence[bool], *arrays: Array) -> tuple[Array, bool]:
        which = [n for n, one in enumerate(is_batched) if one]
        if len(which) > 1 or not in_front[which[0]]:
            return jax.vmap(plain, [0 if one else None for one in is_batched], axis_size=size)(*arrays), True
        rows = [array.reshape(-1, *array.shape[2:]) if n in which else array for n, array in enumerate(arrays)]
        found = plain(*rows)
        return found.reshape(size, -1, *found.shape[1:]), True

    arrays = [operand.array for operand in operands]
    return product(*arrays) if any(in_front) else plain(*arrays)


def _attribute(value: Any) -> Any:
    """An attribute as primitives take it; a cell has no dims, so its expressions are numbers."""
    if isinstance(value, Expr):
        return value.constant
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_attribute, value))
    return value
