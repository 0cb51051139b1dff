"""Cells: functions of tensors for one instance, traced once per kind of arguments."""

from __future__ import annotations

import inspect
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util
from jax.custom_batching import custom_vmap

import tempo as tp
from tempo.backends.jax.padded import Padded, jx
from tempo.batching.over_time import OverTime
from tempo.errors import DtypeError, ProgramError, user_line
from tempo.graph.node import Node, shape_symbols
from tempo.graph.structural import INPUT
from tempo.ops.contraction import EINSUM
from tempo.ops.indexing import SLICE
from tempo.symbolic import Expr

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
    early: Trace | None = None
    """What was taken out of it: its results are the last arguments, lane by lane."""

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
        return _one_of((*form, tuple([number[node] for node in self.outputs])))

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

    def __call__(self, parameters: Sequence[Array], arguments: Sequence[Array]) -> tuple[Array, ...]:
        """The results for one instance."""
        return self._evaluated(parameters, arguments)[0]

    def batched(self, width: int, parameters: Sequence[Array], arguments: Sequence[Array]) -> tuple[Array, ...]:
        """The results for ``width`` instances at once, all with the same parameters."""
        return self.checked(width, parameters, arguments)[0]

    def checked(
        self, width: int, parameters: Sequence[Array], arguments: Sequence[Array]
    ) -> tuple[tuple[Array, ...], Array | None]:
        """The results, and which instances have an index that is out of range (None if there are no indices)."""
        batch = jax.vmap(self._evaluated, in_axes=(None, 0), axis_size=width)
        results, bad = batch(tuple(parameters), tuple(arguments))
        return results, bad

    def _evaluated(
        self, parameters: Sequence[Array], arguments: Sequence[Array]
    ) -> tuple[tuple[Array, ...], Array | None]:
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


@cache
def _one_of(form: Any) -> object:
    """The same object for equal forms, which is found faster than they are."""
    return object()


def _operations(node: Node) -> int:
    if node.op is INPUT:
        return 0
    if node.op.name != "einsum":
        return math.prod(map(int, node.shape))  # type: ignore[arg-type]
    sizes: dict[str, int] = {}
    for letters, edge in zip(node.attributes["subscripts"].split("->")[0].split(","), node.edges, strict=True):
        sizes.update(zip(letters, map(int, edge.shape), strict=True))  # type: ignore[arg-type]
    return 2 * math.prod(sizes.values())


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
            parts = _Parts(tuple([node for _, _, node in some]), axis, bounds, int(source.shape[axis]))  # type: ignore[arg-type]
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


class _Local(threading.local):
    recorder: Any = None


local = _Local()
"""Where this thread's calls of cells are recorded."""


@dataclass(eq=False)
class Cell:
    """A function of one instance's tensors, with its parameters: one kernel where it is called for many instances.

    ``body`` is a function, or an ``nn.Module``, whose parameters are then the cell's. Arguments and results are
    tensors, or tuples, lists and dicts of them.
    """

    body: Callable[..., Any] | OverTime
    name: str
    traces: dict[Any, Trace] = field(default_factory=dict, repr=False)

    def __new__(cls, *_: Any, **__: Any) -> Cell:
        # Each has a class of its own, where a recorder puts a function for its calls: one function in place of two,
        # with arguments that nobody packs and unpacks, takes 0.50 us for a call of NestedRNN in place of 0.64.
        return super().__new__(type("Cell", (Cell,), {"__module__": __name__, "__doc__": Cell.__doc__}))

    def __reduce__(self) -> Any:
        return Cell, (self.body, self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call: the results are ``Value``s."""
        recorder = local.recorder
        if recorder is None:
            raise ProgramError(
                f"cell {self.name} is called outside of a batched model",
                places=[("here", user_line())],
                hint="batched = tp.batch(model), then batched([instance, ...])",
            )
        if not kwargs:
            # Most calls look like the one before, others like one of a few.
            streams = recorder.fast.get(self, ())
            for n, stream in enumerate(streams):
                found = stream.record(args)
                if found is not None:
                    if n:
                        streams.insert(0, streams.pop(n))
                    recorder.notice(self, stream)
                    return found
        return recorder.call(self, args, kwargs)

    @property
    def module(self) -> tp.nn.Module | None:
        if isinstance(self.body, OverTime):
            return self.body.parameters
        return self.body if isinstance(self.body, tp.nn.Module) else None

    def trace(self, structure: Any, kinds: tuple[Kind, ...]) -> Trace:
        """The body for arguments of this structure and these kinds."""
        found = self.traces.get((structure, kinds))
        if found is None:
            made = self.body.trace if isinstance(self.body, OverTime) else _trace
            found = self.traces[structure, kinds] = made(self, structure, kinds)
        return found


def cell(
    body: Callable[..., Any] | tp.Program,
    name: str | None = None,
    parameters: tp.nn.Module | None = None,
    bounds: Mapping[Any, int] | None = None,
) -> Cell:
    """A cell from a function of tensors, or from an ``nn.Module``: also as a decorator.

    Its parameters are named ``name.weight`` and so on; ``name`` is by default that of the function or of the class.

    Or from a program over time: its inputs are the arguments, whose lengths are its bounds, and its output (a dict, if
    there are several) is the result. Inputs with the names of a module's ``parameters`` are that module's. ``bounds``
    are those that no argument says: how many steps there are at most of a dim that stops on data.
    """
    if isinstance(body, Cell):
        return body
    if isinstance(body, tp.Program):
        return Cell(OverTime(body, parameters, bounds or {}), name or body.name)
    for what, there in (("parameters", parameters), ("bounds", bounds)):
        if there is not None:
            raise ProgramError(
                f"{what} are given for a cell that is no program",
                hint="a module's own parameters are its cell's; only programs have bounds",
            )
    if name is None:
        given = getattr(body, "__name__", None) or type(body).__name__
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", given).lower().strip("<>")
    return Cell(body, name)


_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}
_NARROW[np.dtype(np.uint64)] = np.dtype(np.uint32)


def kind_of(leaf: Any, name: str) -> Kind:
    """The kind of an argument that is data. What NumPy makes 64 bits wide by itself is made 32 bits wide."""
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf" and not tp.dtypes.is_float(array.dtype):
        raise DtypeError(
            f"cell {name}: an argument is {leaf!r}, which is no tensor",
            places=[("here", user_line())],
            hint="arguments are arrays, numbers, results of cells, or tuples, lists and dicts of these; "
            "what is the same for all calls belongs into the cell",
        )
    return kind(array.shape, _NARROW.get(array.dtype, array.dtype))


def _trace(cell: Cell, structure: Any, kinds: tuple[Kind, ...]) -> Trace:
    with tp.Program(cell.name) as prog:
        arguments = [prog.input(f"argument {n}", shape=one.shape, dtype=one.dtype.name) for n, one in enumerate(kinds)]
        body = cell.body
        assert not isinstance(body, OverTime)
        names: tuple[str, ...] = ()
        if cell.module is not None:
            body = cell.module.declare(prog, init=False)  # type: ignore[assignment]
            names = tuple(cell.module.parameters())
        args, kwargs = tree_util.tree_unflatten(structure, arguments)
        _check_arguments(cell, body, args, kwargs)
        leaves, results = tree_util.tree_flatten(body(*args, **kwargs))
        tensors = [leaf if isinstance(leaf, tp.RecurrentTensor) else tp.constant(leaf) for leaf in leaves]
        for n, tensor in enumerate(tensors):
            prog.output(f"result {n}", tensor)
    if not tensors:
        raise ProgramError(f"cell {cell.name} has no results", hint="return tensors, or tuples, lists, dicts of them")
    graph = prog.graph
    for node in graph.nodes:
        _check(cell, node)
    inputs = {node.attributes["input"]: node for node in graph.nodes if node.op is INPUT}
    read = tuple(name for name in names if name in inputs)
    nodes = [inputs[name] for name in read] + [inputs.get(f"argument {n}") for n in range(len(kinds))]
    return Trace(
        cell,
        results,
        read,
        kinds,
        tuple(kind(tuple(map(int, edge.shape)), np.dtype(edge.dtype)) for edge in graph.outputs.values()),  # type: ignore[arg-type]
        tuple(nodes),
        tuple(edge.node for edge in graph.outputs.values()),
    )


def _check_arguments(cell: Cell, body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Whether a cell can be called with so many arguments, and with these names."""
    try:
        signature = inspect.signature(body)
    except ValueError:  # there are functions that do not say what they take
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ProgramError(
            f"cell {cell.name} cannot be called like this: {error}",
            places=[("here", user_line())],
            hint=f"it is {cell.name}({', '.join(signature.parameters)})",
        ) from None


def _check(cell: Cell, node: Node) -> None:
    places = [("here", node.source)]
    if node.domain or shape_symbols(node.shape):
        raise ProgramError(f"cell {cell.name} has dims of time", places=places, hint="a cell is for one instance")
    if node.op is INPUT and node.attributes["input"] == "seed":
        raise ProgramError(
            f"cell {cell.name} draws random numbers, which cells cannot do yet",
            places=places,
            hint="draw them outside, and hand them to the cell as an argument",
        )
    if node.op is not INPUT and node.op.jax is None:
        raise ProgramError(
            f"cell {cell.name} uses {node.op.name}, which is for programs over time only",
            places=places,
            hint="a cell is a function of its arguments: no host calls, no definitions by cases, no tp.grad",
        )
    if node.dtype.itemsize == 8:
        raise DtypeError(f"cell {cell.name} computes in {node.dtype.name}: 32 bits at most", places=places)
