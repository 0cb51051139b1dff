"""Cells: functions of tensors for one instance, traced once per kind of arguments."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import tree_util

import tempo as tp
from tempo.batching.over_time import OverTime
from tempo.batching.trace import KEY, Kind, Trace, can_be_data, kind, narrowed
from tempo.errors import DtypeError, ProgramError, user_line
from tempo.graph.node import Node, shape_symbols
from tempo.graph.structural import INPUT
from tempo.runtime.executable import Executable


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
        # Most calls look like the one before, others like one of a few.
        streams = recorder.fast.get(self, ())
        for n, stream in enumerate(streams):
            found = stream.record(args, kwargs)
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
    if isinstance(body, Executable):
        raise ProgramError(
            f"a cell is made of {body!r}, which is compiled for certain bounds",
            places=[("here", user_line())],
            hint="give the program itself: tp.cell(program); the lengths of its arguments are its bounds",
        )
    if isinstance(body, tp.Program):
        return Cell(OverTime(body, parameters, bounds or {}), name or body.name)
    for what, there in (("parameters", parameters), ("bounds", bounds)):
        if there is not None:
            raise ProgramError(
                f"{what} are given for a cell that is no program",
                hint="a module's own parameters are its cell's; only programs have bounds",
            )
    if not callable(body):
        raise ProgramError(
            f"a cell is made of {body!r}",
            places=[("here", user_line())],
            hint="tp.cell takes a function of tensors, an nn.Module with a __call__, or a tp.Program",
        )
    if name is None:
        given = getattr(body, "__name__", None) or type(body).__name__
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", given).lower().strip("<>")
    return Cell(body, name)


def check_is_known(cell: Cell, cells: Container[Cell]) -> None:
    """Whether a cell with parameters is one of a model's, which has their values."""
    if cell.module is not None and cell not in cells:
        raise ProgramError(
            f"cell {cell.name} has parameters, and is not among the cells of this model",
            places=[("here", user_line())],
            hint=f'name it: tp.batch(model, cells={{"{cell.name}": ...}})',
        )


def leaves_of(cell: Cell, what: Any) -> tuple[list[Any], Any]:
    """The tensors in arguments or results of a cell, and their structure."""
    try:
        leaves, structure = tree_util.tree_flatten(what)
    except ValueError:  # that the keys of a dict cannot be sorted
        raise ProgramError(
            f"cell {cell.name}: there is a dict whose keys have no order among them",
            places=[("here", user_line())],
            hint="let all keys of a dict be strings, or all be numbers",
        ) from None
    return leaves, structure


def kind_of(leaf: Any, name: str) -> Kind:
    """The kind of an argument that is data."""
    if isinstance(leaf, tp.RecurrentTensor):
        raise ProgramError(
            f"cell {name} is called inside of another cell",
            places=[("here", user_line())],
            hint="cells are called by the model; inside of a cell call the function, or the module, itself",
        )
    if type(leaf) is int:
        # However large: whether it fits is found out with those of the other calls.
        return kind((), np.dtype(np.int32))
    array = np.asarray(leaf)
    if not can_be_data(array.dtype):
        raise DtypeError(
            f"cell {name}: an argument is {leaf!r}, which is no tensor",
            places=[("here", user_line())],
            hint="arguments are arrays, numbers, results of cells, or tuples, lists and dicts of these; "
            "what is the same for all calls belongs into the cell",
        )
    return kind(array.shape, narrowed(array.dtype))


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
        leaves, results = leaves_of(cell, body(*args, **kwargs))
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
    draws = "seed" in inputs
    if draws:
        nodes.append(inputs["seed"])
    return Trace(
        cell,
        results,
        read,
        (*kinds, KEY) if draws else kinds,
        tuple(kind(tuple(map(int, edge.shape)), np.dtype(edge.dtype)) for edge in graph.outputs.values()),
        tuple(nodes),
        tuple(edge.node for edge in graph.outputs.values()),
        draws=draws,
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
    if node.op is not INPUT and node.op.jax is None:
        raise ProgramError(
            f"cell {cell.name} uses {node.op.name}, which is for programs over time only",
            places=places,
            hint="a cell is a function of its arguments: no host calls, no definitions by cases, no tp.grad",
        )
    if node.dtype.itemsize == 8:
        raise DtypeError(f"cell {cell.name} computes in {node.dtype.name}: 32 bits at most", places=places)
