"""What a run is given and what it gives back: bounds, inputs and host results, checked; outputs and emitted values."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.errors import BoundError, HostError, InputError, TempoError
from tempo.graph.node import Domain, Graph, Node, shape_symbols, show_shape
from tempo.graph.structural import INPUT
from tempo.mistakes import Point, show_point
from tempo.ops.creation import in_native_order, misfit
from tempo.symbolic import Bound, Condition, Dim, Expr, Symbol
from tempo.symbolic.grid import Grid

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Record:
    """One emitted value and the point at which it was emitted."""

    point: Mapping[str, int]
    value: Array


class Result:
    """The results of a run: outputs as attributes or items, emitted records in ``emits``."""

    def __init__(self, outputs: Mapping[str, Array], emits: Mapping[str, list[Record]]) -> None:
        self.outputs = dict(outputs)
        self.emits = dict(emits)

    def __getattr__(self, name: str) -> Array:
        if "outputs" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        if name in self.outputs:
            return self.outputs[name]
        raise AttributeError(f"no output named '{name}'; the outputs are: {', '.join(self.outputs)}")

    def __getitem__(self, name: str) -> Array:
        if name not in self.outputs:
            raise KeyError(f"no output named '{name}'; the outputs are: {', '.join(self.outputs)}")
        return self.outputs[name]

    def __contains__(self, name: object) -> bool:
        return name in self.outputs

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __repr__(self) -> str:
        listed = ", ".join(f"{n}: {a.dtype.name}{list(a.shape)}" for n, a in self.outputs.items())
        return f"<Result {listed}>"


def check_bounds(graph: Graph, bounds: Mapping[Any, Any]) -> dict[Bound, int]:
    """A positive integer for every bound of the program."""
    wanted = {b.name: b for d in graph.dims for b in d.bound.symbols() if isinstance(b, Bound)}
    listed = f"{{{', '.join(f'{n}: ...' for n in wanted)}}}"
    if not isinstance(bounds, Mapping):
        raise BoundError(f"bounds = {bounds!r}: expected a number for each bound", hint=f"give {listed}")
    given: dict[Any, Any] = {}
    for key, value in bounds.items():
        name = getattr(key, "name", key)
        if name in given and given[name] != value:
            raise BoundError(f"{key} = {value}: it is {given[name]} as well", hint="give one of them")
        given[name] = value
        symbol = wanted.get(name)
        if symbol is None or (isinstance(key, Symbol) and key is not symbol):
            own = f" of its own named {key}" if str(key) in wanted else ""
            hint = f"{key} is a dim; its bound is {key.bound}" if isinstance(key, Dim) else f"give {listed}"
            raise BoundError(
                f"{key} = {value}: program '{graph.name}' has "
                + (f"a bound{own}, this is another one" if own else "no such bound"),
                hint=hint,
            )
    for name in wanted:
        if name not in given:
            raise BoundError(
                f"program '{graph.name}' needs a number for the bound {name}",
                hint=f"give {listed}",
            )
    return {symbol: bound_number(name, given[name]) for name, symbol in wanted.items()}


LARGEST = 2**31 - 2
"""The largest bound: there may be a step behind it, and steps have 32 bits."""


def bound_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise BoundError(
            f"bound {name} = {value!r}: a bound is a positive integer",
            hint="the number of steps of its dim, at least 1",
        )
    if value > LARGEST:
        raise BoundError(
            f"bound {name} = {value}: a bound is {LARGEST:,} at most",
            hint="steps are counted with 32 bits; where a dim stops on data, a bound that is not reached costs nothing",
        )
    return int(value)


class Inputs:
    """The inputs of a program with given bounds, against which what a run is given is checked.

    What no result needs may be left out; ``partial`` lets everything be left out until it is asked for. ``adopt`` gives
    a backend's own array for what is on a device already, and None for the rest, which become NumPy arrays. Inputs that
    are kept ``apart`` may be a list or tuple with an array for each step of their first dim, and then become a tuple.
    """

    def __init__(
        self,
        graph: Graph,
        bounds: Mapping[Any, int],
        partial: bool = False,
        adopt: Callable[[Any], Any] | None = None,
        apart: Container[str] = (),
    ) -> None:
        self.graph = graph
        self.bounds = bounds
        self.adopt = adopt
        self.apart = apart
        needed = {n.attributes["input"]: n for n in graph.nodes if n.op is INPUT and not partial}
        self.needed = {name: node for name, node in needed.items() if name != "seed"}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Of those that were given before: what a shape is takes longer to find than to compare."""

    def checked(self, given: Mapping[str, Any], seed: int, copy: bool = True) -> dict[str, Any]:
        """The arrays of a run, in the shapes and dtypes that the program declares. They are copies, so that the user
        may write to what was given while the run goes on; without ``copy``, they may be what was given."""
        check_seed(seed)
        graph = self.graph
        if not given.keys() <= graph.inputs.keys():
            raise self._unknown(next(name for name in given if name not in graph.inputs))
        if not self.needed.keys() <= given.keys():
            raise self._missing(next(node for name, node in self.needed.items() if name not in given))
        data = {"seed": seed_words(seed), **given} if "seed" in graph.inputs else given
        arrays = {}
        for name, node in graph.inputs.items():
            if name not in data:
                continue
            value = data[name]
            if name in self.apart and isinstance(value, list | tuple):
                arrays[name] = _check_steps(node, self.bounds, value, self.adopt)
                continue
            if name not in self.shapes:
                self.shapes[name] = _input_shape(node, self.bounds)
            adopted = None if self.adopt is None else self.adopt(value)
            arrays[name] = _check_input(node, self.bounds, self.shapes[name], value, adopted, copy)
        return arrays

    def _unknown(self, name: str) -> InputError:
        known = ", ".join(n for n in self.graph.inputs if n != "seed") or "none"
        bound = any(b.name == name for b in self.bounds)
        return InputError(
            f"program '{self.graph.name}' has no input '{name}'",
            hint=f"{name} is a bound: give it as {{{name}: ...}}" if bound else f"its inputs are: {known}",
        )

    def _missing(self, node: Node) -> InputError:
        return InputError(
            f"input '{node.attributes['input']}' was not given",
            places=[(node.attributes["input"], node.source)],
            hint=f"give an array of {_wanted(node, self.bounds)}",
        )


def _check_steps(
    node: Node, bounds: Mapping[Any, int], values: Sequence[Any], adopt: Callable[[Any], Any] | None
) -> tuple[Any, ...]:
    """An array for each step of an input's first dim."""
    shape = _input_shape(node, bounds)
    count, expected = shape[0], shape[1:]
    one = replace(node, domain=node.domain[1:])
    adopted = [None if adopt is None else adopt(value) for value in values]
    found = [value if own is None else own for value, own in zip(values, adopted, strict=True)]
    if len(found) == count and all(getattr(array, "shape", None) == expected for array in found):
        pairs = zip(values, adopted, strict=True)
        return tuple(_check_input(one, bounds, expected, value, own) for value, own in pairs)
    # Together they are an array, or what is wrong with them is said as of one.
    return tuple(_check_input(node, bounds, shape, values, None))


def _input_shape(node: Node, bounds: Mapping[Any, int]) -> tuple[int, ...]:
    shape = (*(d.bound for d in node.domain), *node.shape)
    for bound in shape_symbols(shape):
        if isinstance(bound, Bound) and bound not in bounds:
            raise BoundError(
                f"input '{node.attributes['input']}' has shape {show_shape(shape)}, and there is no number for {bound}",
                hint=f"give it: {{{bound}: ...}}",
            )
    return tuple(resolve(shape, bounds))


def _wanted(node: Node, bounds: Mapping[Any, int]) -> str:
    symbolic = show_shape((*(d.bound for d in node.domain), *node.shape))
    numeric = show_shape(_input_shape(node, bounds))
    shape = symbolic if symbolic == numeric else f"{symbolic} = {numeric}"
    return f"shape {shape}, {node.dtype.name}"


def _check_input(
    node: Node, bounds: Mapping[Any, int], expected: tuple[int, ...], value: Any, adopted: Any, copy: bool = True
) -> Any:
    if adopted is not None and adopted.dtype == node.dtype and adopted.shape == expected:
        return adopted
    array, why = _as_array(value if adopted is None else adopted)
    if any(size < 0 for size in expected):
        problem = f"is declared with a negative size: shape {show_shape(node.shape)} = {show_shape(expected)}"
    elif array.dtype not in dtypes.ALL or not can_cast(array.dtype, node.dtype):
        found = f"dtype {array.dtype.name}" if array.dtype in dtypes.ALL else f"type {type(value).__name__}"
        problem = f"has {found}, which does not convert to {node.dtype.name}"
    elif array.shape != expected:
        problem = f"has shape {show_shape(array.shape)}, expected {show_shape(expected)}"
    elif (wrong := misfit(array, node.dtype)) is not None:
        problem = f"has the value {wrong}, which does not fit into {node.dtype.name}"
    else:
        return array.astype(node.dtype, copy=copy and not isinstance(value, list | tuple))
    name = node.attributes["input"]
    wanted = f"give an array of {_wanted(node, bounds)}: one leading axis per dim, then the shape"
    if why:
        wanted += f". This is none: {why}"
    raise InputError(
        f"input '{name}' {problem}",
        places=[(name, node.source)],
        hint=wanted if min(expected, default=0) >= 0 else "give bounds that make all sizes positive",
    )


def _as_array(value: Any) -> tuple[Array, str]:
    """An array of what a user gave; of dtype object, which is refused, where it is none, with the reason."""
    try:
        return in_native_order(np.asarray(value)), ""
    except TempoError:
        raise
    # Rows of different lengths; a tensor that waits for a gradient; an array that was deleted.
    except (TypeError, ValueError, RuntimeError) as error:
        return np.empty((), object), str(error).partition("\n")[0]


def can_cast(source: dtypes.DType, target: dtypes.DType) -> bool:
    """Whether a conversion keeps the kind: floats never become integers, nothing becomes bool."""
    if dtypes.is_float(target):
        return True
    if dtypes.is_integer(target):
        return not dtypes.is_float(source)
    return dtypes.is_bool(source)


def check_seed(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed = {seed!r}: a seed is an integer")
    if not -(2**63) <= seed < 2**64:
        raise InputError(f"seed = {seed}: a seed has 64 bits at most")


def seed_words(seed: int) -> Array:
    """A seed as the two words that key the random generator."""
    return np.array([int(seed) & 0xFFFFFFFF, (int(seed) >> 32) & 0xFFFFFFFF], np.uint32)


def call_host(
    call: Node, arguments: Sequence[Array], sizes: tuple[int, ...], sequence: Point, bounds: Mapping[Any, int]
) -> tuple[Array, ...]:
    """Make a host call: results for all points of a batch of these sizes. Its arguments can only be read: backends may
    hand out what they compute with."""
    dims: Domain = call.attributes["sequence"]
    function = call.attributes["function"]
    for argument in arguments:
        argument.setflags(write=False)
    try:
        returned = function(*arguments)
    except Exception as error:
        raise HostError(
            f"host function {_name(function)} raised {type(error).__name__} at {show_point(dims, sequence)}: {error}",
            places=[("called by", call.source)],
            hint="arguments can only be read: write into copies, x = x.copy()" if "read-only" in str(error) else "",
        ) from error
    out = call.attributes["out"]
    here = ChainMap[Any, int](dict(zip(dims, sequence, strict=True)), bounds)  # type: ignore[arg-type]
    shapes = [(*sizes, *resolve(shape, here)) for shape, _ in out]
    values = returned if isinstance(returned, tuple) and len(out) != 1 else (returned,)
    if len(values) == len(out) and all(map(_is_as_declared, values, shapes, out)):
        return tuple([value.copy() for value in values])  # the function may write into its own later
    return check_host_results(call, _name(function), show_point(dims, sequence), returned, shapes)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", repr(function)))


def _is_as_declared(value: Any, shape: tuple[int, ...], out: tuple[Any, dtypes.DType]) -> bool:
    """Whether what a host function returned needs no conversion. This is asked at every step of an environment."""
    return type(value) is np.ndarray and value.dtype == out[1] and value.shape == shape


def check_host_results(
    call: Node, name: str, where: str, returned: Any, shapes: Sequence[tuple[int, ...]]
) -> tuple[Array, ...]:
    """What a host function returned, against what it declared."""
    out = call.attributes["out"]
    values = returned if isinstance(returned, tuple | list) and len(out) != 1 else (returned,)
    if not out:
        return ()
    if len(values) != len(out):
        found = f"{len(values)} values" if isinstance(returned, tuple | list) else "one value"
        raise HostError(
            f"host function {name} returned {found} at {where}, {len(out)} values were declared",
            places=[("declared", call.source)],
            hint="return a tuple with one array per entry of out=[...]",
        )
    arrays = []
    for n, (value, shape, (_, dtype)) in enumerate(zip(values, shapes, out, strict=True)):
        array, _ = _as_array(value)
        which = f" as result {n}" if len(out) > 1 else ""
        wrong = misfit(array, dtype) if array.dtype in dtypes.ALL and can_cast(array.dtype, dtype) else value
        if wrong is not None or value is None:
            kind = array.dtype.name if array.dtype in dtypes.ALL else f"a {type(value).__name__}"
            found = "None" if value is None else kind if wrong is value else f"the value {wrong}"
            raise HostError(
                f"host function {name} returned {found}{which} at {where}, declared is {dtype.name}",
                places=[("declared", call.source)],
                hint="convert it in the function, or declare its dtype",
            )
        if array.shape != shape:
            raise HostError(
                f"host function {name} returned shape {show_shape(array.shape)}{which} at {where}, "
                f"declared is {show_shape(shape)}",
                places=[("declared", call.source)],
                hint="results have one leading axis per batch dim, then the declared shape",
            )
        arrays.append(array.astype(dtype))
    return tuple(arrays)


def resolve(value: Any, here: Mapping[Any, int]) -> Any:
    """An attribute with its expressions and conditions replaced by their values at a point."""
    if isinstance(value, Expr | Condition | Grid):
        return value.evaluate(here)
    if isinstance(value, tuple):
        return tuple(resolve(v, here) for v in value)
    return value
