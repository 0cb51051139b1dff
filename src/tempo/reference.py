"""The oracle: what a program means, evaluated point by point in NumPy, on demand, memoised.

Short, slow, obviously right. It knows nothing of schedules, blocks or polyhedra: the value of a node at a
point is found by evaluating whatever it reads there. Everything that the compiler does is compared with this.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.errors import BoundError, CausalityError, HostError, InputError, TempoError
from tempo.graph.node import Case, Domain, Edge, Graph, Node, Scatter, show_domain, show_shape
from tempo.graph.regions import hull
from tempo.graph.structural import ACCUMULATE, HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.mistakes import Asked, Key, Point, cycle, negative_slice, show_point, undefined
from tempo.ops.creation import misfit
from tempo.source import SourceLine, user_line
from tempo.symbolic import Bound, Condition, Dim, Expr, Index, Slice, Symbol
from tempo.symbolic.grid import Grid
from tempo.tensor import RecurrentTensor

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
        if name in self.__dict__.get("outputs", {}):
            return self.outputs[name]
        raise AttributeError(f"no output named '{name}'; the outputs are: {', '.join(self.outputs)}")

    def __getitem__(self, name: str) -> Array:
        if name not in self.outputs:
            raise KeyError(f"no output named '{name}'; the outputs are: {', '.join(self.outputs)}")
        return self.outputs[name]

    def __repr__(self) -> str:
        listed = ", ".join(f"{n}: {a.dtype.name}{list(a.shape)}" for n, a in self.outputs.items())
        return f"<Result {listed}>"


def evaluate(graph: Graph, bounds: Mapping[Bound, int], inputs: Mapping[str, Any], seed: int = 0) -> Result:
    """Run a whole program."""
    numbers = check_bounds(graph, bounds)
    machine = Interpreter(graph.cases, graph.stops, numbers, check_inputs(graph, numbers, inputs, seed))
    for node in graph.nodes:
        if node.op is HOST:
            sequence = machine.box(node.attributes["sequence"])
            for point in itertools.product(*sequence):
                machine.value(node, machine.host_point(node, point))
    outputs = {name: machine.output(name, edge) for name, edge in graph.outputs.items()}
    emits = {name: list(machine.records(name, edge)) for name, edge in graph.emits.items()}
    return Result(outputs, emits)


def evaluate_at(
    tensor: RecurrentTensor,
    bounds: Mapping[Bound, int],
    inputs: Mapping[str, Any],
    seed: int,
    point: Mapping[str, int],
) -> Array:
    """One value of one tensor, for debugging."""
    names = [d.name for d in tensor.domain]
    if sorted(names) != sorted(point):
        raise InputError(
            f"{tensor} varies over {show_domain(tensor.domain)}; "
            f"the point given is ({', '.join(f'{n}={v}' for n, v in point.items())})",
            places=[("here", user_line()), (tensor.name, tensor.edge.node.source)],
            hint=f"give each of its dims a step: .at({', '.join(f'{n}=0' for n in names)})",
        )
    for name, step in point.items():
        if isinstance(step, bool) or not isinstance(step, int | np.integer):
            raise InputError(f"{name}={step!r}: a step is an integer", places=[("here", user_line())])
    graph = tensor.program.graph_of(tensor)
    given = {b: _bound_number(b.name, n) for b, n in bounds.items()}
    arrays = check_inputs(graph, given, inputs, seed, partial=True)
    machine = Interpreter(graph.cases, graph.stops, given, arrays)
    shown = ", ".join(f"{n}={point[n]}" for n in names)
    return machine.read(tensor.edge, {d: int(point[d.name]) for d in tensor.domain}, f".at({shown})")


class Interpreter:
    """Values on demand, each computed once."""

    def __init__(
        self,
        cases: Mapping[Node, Sequence[Case]],
        stops: Mapping[Dim, Edge],
        bounds: Mapping[Bound, int],
        inputs: Mapping[str, Array],
    ) -> None:
        self.cases = cases
        self.inputs = inputs
        self.bounds = Bounds(self, bounds, stops)
        self.values: dict[Key, Any] = {}

    # -- evaluation on demand -----------------------------------------------------------------------

    def value(self, node: Node, point: Point, asked: Asked | None = None) -> Any:
        """The value of a node at a point. A loop with its own stack: recurrences are deeper than Python's."""
        stack: list[tuple[Key, list[Key]]] = [((node, point), self.reads(node, point, asked=asked))]
        under_way: dict[Key, None] = {(node, point): None}
        while stack:
            key, reads = stack[-1]
            missing = next((read for read in reads if read not in self.values), None)
            if missing is None:
                if key not in self.values:
                    self.values[key] = self.compute(*key)
                del under_way[key]
                stack.pop()
            elif missing in under_way:
                raise cycle(self, list(under_way)[list(under_way).index(missing) :])
            else:
                stack.append((missing, self.reads(*missing, readers=under_way)))
                under_way[missing] = None
        return self.values[node, point]

    def reads(self, node: Node, point: Point, readers: Iterable[Key] = (), asked: Asked | None = None) -> list[Key]:
        """What must be known before a node can be computed at a point. ``readers``, each needed by the one
        before, and who ``asked`` for the first of them, are for the error if the node is not defined there."""
        if node.op is RECURRENT:
            case = self.case_at(node, point)
            if case is None:
                raise undefined(self, (node, point), list(readers), asked)
            return list(self.points(case.value, self.at(node.domain, point), case.source))
        if any(not 0 <= p < self.bounds.limit(d) for d, p in zip(node.domain, point, strict=True)):
            raise undefined(self, (node, point), list(readers), asked)
        if node.op is HOST:
            return list(self.host_reads(node, point))
        if node.op is HOST_RESULT:
            call = node.edges[0].node
            return [(call, self.host_point(call, self.sequence_point(call, point)))]
        if node.op is ACCUMULATE:
            return [(s.node, p) for s in node.scatters for p in self.sources(s, node, point)]
        here = self.at(node.domain, point)
        return [read for edge in node.edges for read in self.points(edge, here, node.source)]

    def compute(self, node: Node, point: Point) -> Any:
        """The value at a point, once everything it reads is known."""
        here = self.at(node.domain, point)
        if node.op is RECURRENT:
            case = self.case_at(node, point)
            assert case is not None
            return self.gather(case.value, here)
        if node.op is INPUT:
            return self.input(node)[point]
        if node.op is HOST:
            return self.call_host(node, point)
        if node.op is HOST_RESULT:
            call = node.edges[0].node
            results = self.values[call, self.host_point(call, self.sequence_point(call, point))]
            batch = tuple(here[d] for d in call.attributes["batch"])
            return results[node.attributes["position"]][batch]
        if node.op is ACCUMULATE:
            return self.accumulate(node, point)
        operands = [self.gather(edge, here) for edge in node.edges]
        attributes = {k: resolve(v, here) for k, v in node.attributes.items()}
        assert node.op.reference is not None
        expected = resolve(node.shape, here)
        try:
            result = np.asarray(node.op.reference(*operands, **attributes))
        except TempoError:
            raise
        except Exception as error:
            sizes = f"a negative size in its shape {show_shape(node.shape)} = {show_shape(expected)}"
            raise InputError(
                f"{node.op.name} failed at {show_point(node.domain, point)}: "
                + (sizes if any(size < 0 for size in expected) and not isinstance(error, IndexError) else str(error)),
                places=[("here", node.source)],
            ) from error
        assert result.shape == expected and result.dtype == node.dtype, (
            f"{node.label}: got {result.dtype}{result.shape}, expected {node.dtype}{expected}"
        )
        return result

    # -- points ---------------------------------------------------------------------------------------

    def at(self, domain: Domain, point: Point) -> Mapping[Any, int]:
        return Here(self.bounds, dict(zip(domain, point, strict=True)))

    def box(self, domain: Domain) -> list[range]:
        return [range(d.bound.evaluate(self.bounds)) for d in domain]

    def case_at(self, node: Node, point: Point) -> Case | None:
        """The first case that matches a point."""
        here = self.at(node.domain, point)
        for case in self.cases.get(node, ()):
            if all(0 <= e.evaluate(here) < self.bounds.limit(d) for e, d in case.guards) and case.condition.evaluate(
                here
            ):
                return case
        return None

    def points(self, edge: Edge, here: Mapping[Any, int], source: SourceLine | None = None) -> Iterator[Key]:
        """The producer's points that an edge reads."""
        spans = []
        for d, item in zip(edge.node.domain, edge.index, strict=True):
            if isinstance(item, Slice):
                span = item.evaluate(here)
                if span.start > span.stop:
                    raise negative_slice(edge, d, span, here, source)
                spans.append(span)
            else:
                spans.append(range(p := item.evaluate(here), p + 1))
        return ((edge.node, p) for p in itertools.product(*spans))

    def gather(self, edge: Edge, here: Mapping[Any, int]) -> Array:
        """What an edge reads, as one array with an axis in front for every slice."""
        keys = list(self.points(edge, here))
        if not any(isinstance(item, Slice) for item in edge.index):
            return np.asarray(self.values[keys[0]])
        result = np.empty(resolve(edge.shape, here), edge.dtype)
        axes = [len(item.evaluate(here)) for item in edge.index if isinstance(item, Slice)]
        for position, key in zip(np.ndindex(*axes), keys, strict=True):
            result[position] = self.values[key]
        return result

    def visit(self, edge: Edge, point: Mapping[Any, int], wanted: str) -> None:
        """Compute what an edge reads; ``wanted`` says who asks."""
        for key in self.points(edge, Here(self.bounds, point)):
            if key not in self.values:
                self.value(*key, asked=(wanted, edge))

    def read(self, edge: Edge, point: Mapping[Any, int], wanted: str) -> Array:
        """``gather``, computing what is not known yet."""
        self.visit(edge, point, wanted)
        return self.gather(edge, Here(self.bounds, point))

    # -- accumulation -----------------------------------------------------------------------------------

    def sources(self, scatter: Scatter, target: Node, point: Point) -> Iterator[Point]:
        """The producer's points whose values are added into the consumer at a point."""
        producer = scatter.node
        spans = self.producer_spans(producer)
        # A dim that stands alone in the index (t, t - 1, T - 1 - t) has one candidate; try no others.
        for item, p in zip(scatter.index, point, strict=True):
            if isinstance(item, Expr):
                own = [(d, c) for d, c in item.terms if isinstance(d, Dim) and c in (1, -1)]
                for d, c in own:
                    rest = item - c * d
                    if not any(isinstance(s, Dim) for s in rest.symbols()):
                        only = c * (p - rest.evaluate(self.bounds))
                        n = producer.domain.index(d)
                        spans[n] = range(only, only + (only in spans[n]))
        for candidate in itertools.product(*spans):
            here = self.at(producer.domain, candidate)
            if _hits(scatter.index, here, point) and scatter.condition.evaluate(here):
                yield candidate

    def producer_spans(self, node: Node) -> list[range]:
        if node.op is not RECURRENT:
            return self.box(node.domain)
        spans = hull(node.domain, self.cases[node])
        return [range(a.evaluate(self.bounds), b.evaluate(self.bounds)) for a, b in spans]

    def accumulate(self, node: Node, point: Point) -> Array:
        shape = resolve(node.shape, self.at(node.domain, point))
        total = np.zeros(shape, dtypes.accumulator_of(node.dtype))
        for scatter in node.scatters:
            for source in self.sources(scatter, node, point):
                here = self.at(scatter.node.domain, source)
                position = tuple(
                    p - item.start.evaluate(here)
                    for item, p in zip(scatter.index, point, strict=True)
                    if isinstance(item, Slice)
                )
                total = total + self.values[scatter.node, source][position]
        return np.asarray(total, node.dtype)

    # -- inputs and host calls ----------------------------------------------------------------------------

    def input(self, node: Node) -> Array:
        name = node.attributes["input"]
        if name not in self.inputs:
            raise InputError(
                f"input '{name}' is needed and was not given",
                places=[(name, node.source)],
                hint=f'.at(..., inputs={{"{name}": array}}) gives it',
            )
        return self.inputs[name]

    def sequence_point(self, call: Node, point: Point) -> Point:
        """The part of a point that orders calls."""
        by_dim = dict(zip(call.domain, point, strict=True))
        return tuple(by_dim[d] for d in call.attributes["sequence"])

    def host_point(self, call: Node, sequence: Point) -> Point:
        """The point that stands for a whole batch: zero in every batch dim."""
        by_dim = dict(zip(call.attributes["sequence"], sequence, strict=True))
        return tuple(by_dim.get(d, 0) for d in call.domain)

    def host_reads(self, call: Node, point: Point) -> Iterator[Key]:
        sequence = self.sequence_point(call, point)
        before = self.call_before(call, sequence)
        if before is not None:
            yield call, self.host_point(call, before)
        for here in self.batch_points(call, sequence):
            for edge in call.edges:
                yield from self.points(edge, here, call.source)

    def call_before(self, call: Node, sequence: Point) -> Point | None:
        """The call that comes just before in lexicographic order."""
        dims: Domain = call.attributes["sequence"]
        for n in reversed(range(len(dims))):
            if sequence[n] > 0:
                last = [d.bound.evaluate(self.bounds) - 1 for d in dims[n + 1 :]]
                return (*sequence[:n], sequence[n] - 1, *last)
        return None

    def batch_points(self, call: Node, sequence: Point) -> Iterator[Mapping[Any, int]]:
        ordered = dict(zip(call.attributes["sequence"], sequence, strict=True))
        batch: Domain = call.attributes["batch"]
        for point in itertools.product(*self.box(batch)):
            yield Here(self.bounds, {**ordered, **dict(zip(batch, point, strict=True))})

    def call_host(self, call: Node, point: Point) -> tuple[Array, ...]:
        sequence = self.sequence_point(call, point)
        batch: Domain = call.attributes["batch"]
        sizes = tuple(len(r) for r in self.box(batch))
        arguments = []
        for edge in call.edges:
            rows = [self.gather(edge, here) for here in self.batch_points(call, sequence)]
            stacked = np.stack(rows).reshape((*sizes, *rows[0].shape))
            # An argument that does not vary over a batch dim comes without that axis.
            varies = tuple(slice(None) if d in edge.domain else 0 for d in batch)
            arguments.append(np.asarray(stacked[varies]))
        return call_host(call, arguments, sizes, sequence, self.bounds)

    # -- results --------------------------------------------------------------------------------------------

    def output_spans(self, name: str, edge: Edge) -> list[range]:
        """The box over which an output is handed out: all points where it is defined, if they are a box."""
        natural = self.box(edge.domain)
        if edge.node.op is not RECURRENT or not edge.is_here:
            return natural
        around = itertools.product(*self.producer_spans(edge.node))
        points = {p for p in around if self.case_at(edge.node, p) is not None}
        box = [range(min(steps), max(steps) + 1) for steps in zip(*points, strict=True)]
        for spans in (box, natural):
            if points.issuperset(itertools.product(*spans)):
                return spans
        gap = next(p for p in itertools.product(*natural) if self.case_at(edge.node, p) is None)
        raise undefined(self, (edge.node, gap), (), (f"output '{name}'", edge))

    def output(self, name: str, edge: Edge) -> Array:
        spans = self.output_spans(name, edge)
        shape = resolve(edge.shape, self.bounds)
        result = np.empty((*(len(s) for s in spans), *shape), edge.dtype)
        for position, point in zip(np.ndindex(*(len(s) for s in spans)), itertools.product(*spans), strict=True):
            result[position] = self.read(edge, dict(zip(edge.domain, point, strict=True)), f"output '{name}'")
        return result

    def records(self, name: str, edge: Edge) -> Iterator[Record]:
        for point in itertools.product(*self.box(edge.domain)):
            value = self.read(edge, dict(zip(edge.domain, point, strict=True)), f"emit '{name}'")
            yield Record({d.name: p for d, p in zip(edge.domain, point, strict=True)}, value)


class Bounds(Mapping[Any, int]):
    """The bounds' numbers. The number of a dim that stops on data is found when it is first asked for."""

    def __init__(self, machine: Interpreter, numbers: Mapping[Any, int], stops: Mapping[Dim, Edge]) -> None:
        self.machine = machine
        self.numbers: dict[Symbol, int] = dict(numbers)
        self.open = {dim.bound: (dim, edge) for dim, edge in stops.items()}
        self.searching: list[Dim] = []

    def __getitem__(self, symbol: Symbol) -> int:
        if symbol in self.open:
            self.find(symbol)
        if symbol not in self.numbers:
            raise BoundError(
                f"bound {symbol.name} is needed and was not given",
                hint=f"give it a number: {{{symbol.name}: 10}}",
            )
        return self.numbers[symbol]

    def find(self, symbol: Symbol) -> None:
        """Run the steps of a dim until its stop condition holds."""
        dim, edge = self.open[symbol]
        if dim in self.searching:
            raise CausalityError(
                f"the stop condition of {dim.name} depends on {symbol.name}, the number of steps it decides",
                places=[("stop condition", edge.node.source)],
                hint=f"let it depend on steps up to the present one only, not on {symbol.name}",
            )
        self.searching.append(dim)
        limit = self.numbers[symbol]
        steps = (t for t in range(limit) if bool(self.machine.read(edge, {dim: t}, f"the stop of {dim.name}")))
        self.numbers[symbol] = min(next(steps, limit - 1) + 1, limit)
        self.searching.pop()
        del self.open[symbol]

    def limit(self, dim: Dim) -> int:
        """What a step of the dim is below. Until a stop is found, the most it can be: every step that the
        stop condition looks at before it holds is one that is made."""
        if dim.bound in self.open and isinstance(dim.bound, Symbol):
            return self.numbers[dim.bound]
        return dim.bound.evaluate(self)

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


class Here(Mapping[Any, int]):
    """The values of all symbols at a point."""

    __slots__ = ("bounds", "point")

    def __init__(self, bounds: Bounds, point: Mapping[Any, int]) -> None:
        self.bounds = bounds
        self.point = point

    def __getitem__(self, symbol: Symbol) -> int:
        return self.point[symbol] if symbol in self.point else self.bounds[symbol]

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self.point)

    def __len__(self) -> int:
        return len(self.point)


# -- checks of what a user gives ------------------------------------------------------------------------------


def check_bounds(graph: Graph, bounds: Mapping[Any, Any]) -> dict[Bound, int]:
    """A positive integer for every bound of the program."""
    wanted = {b.name: b for d in graph.dims for b in d.bound.symbols() if isinstance(b, Bound)}
    listed = f"{{{', '.join(f'{n}: ...' for n in wanted)}}}"
    if not isinstance(bounds, Mapping):
        raise BoundError(f"bounds = {bounds!r}: expected a number for each bound", hint=f"give {listed}")
    given = {getattr(key, "name", key): value for key, value in bounds.items()}
    for key, value in bounds.items():
        symbol = wanted.get(getattr(key, "name", key))
        if symbol is None or (isinstance(key, Symbol) and key is not symbol):
            own = next((f" of its own named {key}" for name in wanted if name == str(key)), "")
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
    return {symbol: _bound_number(name, given[name]) for name, symbol in wanted.items()}


def _bound_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise BoundError(
            f"bound {name} = {value!r}: a bound is a positive integer",
            hint="the number of steps of its dim, at least 1",
        )
    return int(value)


def check_inputs(
    graph: Graph, bounds: Mapping[Any, int], given: Mapping[str, Any], seed: int, partial: bool = False
) -> dict[str, Array]:
    """The arrays of a run, in the shapes and dtypes that the program declares.

    What no result needs may be left out; ``partial`` lets everything be left out until it is asked for.
    """
    data = {"seed": seed_words(seed), **given}
    for name in given:
        if name not in graph.inputs:
            known = ", ".join(n for n in graph.inputs if n != "seed") or "none"
            bound = any(b.name == name for b in bounds)
            raise InputError(
                f"program '{graph.name}' has no input '{name}'",
                hint=f"{name} is a bound: give it as {{{name}: ...}}" if bound else f"its inputs are: {known}",
            )
    for node in graph.nodes:
        if node.op is INPUT and node.attributes["input"] not in data and not partial:
            raise InputError(
                f"input '{node.attributes['input']}' was not given",
                places=[(node.attributes["input"], node.source)],
                hint=f"give an array of {_wanted(node, bounds)}",
            )
    return {name: _check_input(node, bounds, data[name]) for name, node in graph.inputs.items() if name in data}


def _input_shape(node: Node, bounds: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple(resolve((*(d.bound for d in node.domain), *node.shape), bounds))


def _wanted(node: Node, bounds: Mapping[Any, int]) -> str:
    symbolic = show_shape((*(d.bound for d in node.domain), *node.shape))
    numeric = show_shape(_input_shape(node, bounds))
    shape = symbolic if symbolic == numeric else f"{symbolic} = {numeric}"
    return f"shape {shape}, {node.dtype.name}"


def _check_input(node: Node, bounds: Mapping[Any, int], value: Any) -> Array:
    name = node.attributes["input"]
    array, expected = _as_array(value), _input_shape(node, bounds)
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
        return array.astype(node.dtype)
    wanted = f"give an array of {_wanted(node, bounds)}: one leading axis per dim, then the shape"
    raise InputError(
        f"input '{name}' {problem}",
        places=[(name, node.source)],
        hint=wanted if min(expected, default=0) >= 0 else "give bounds that make all sizes positive",
    )


def _as_array(value: Any) -> Array:
    """An array of what a user gave; of dtype object, which is refused, where it is none."""
    try:
        return np.asarray(value)
    except TempoError:
        raise
    except (TypeError, ValueError):  # rows of different lengths
        return np.empty((), object)


def can_cast(source: dtypes.DType, target: dtypes.DType) -> bool:
    """Whether a conversion keeps the kind: floats never become integers, nothing becomes bool."""
    if dtypes.is_float(target):
        return True
    if dtypes.is_integer(target):
        return not dtypes.is_float(source)
    return dtypes.is_bool(source)


def seed_words(seed: int) -> Array:
    """A seed as the two words that key the random generator."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed = {seed!r}: a seed is an integer")
    return np.array([int(seed) & 0xFFFFFFFF, (int(seed) >> 32) & 0xFFFFFFFF], np.uint32)


def call_host(
    call: Node, arguments: Sequence[Array], sizes: tuple[int, ...], sequence: Point, bounds: Mapping[Any, int]
) -> tuple[Array, ...]:
    """Make a host call: results for all points of a batch of these sizes."""
    dims: Domain = call.attributes["sequence"]
    where = show_point(dims, sequence)
    function = call.attributes["function"]
    name = getattr(function, "__name__", repr(function))
    try:
        returned = function(*arguments)
    except Exception as error:
        raise HostError(
            f"host function {name} raised {type(error).__name__} at {where}: {error}",
            places=[("called by", call.source)],
        ) from error
    here = ChainMap[Any, int](dict(zip(dims, sequence, strict=True)), bounds)  # type: ignore[arg-type]
    shapes = [(*sizes, *resolve(shape, here)) for shape, _ in call.attributes["out"]]
    return check_host_results(call, name, where, returned, shapes)


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
        array = _as_array(value)
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


# -- small things --------------------------------------------------------------------------------------------


def resolve(value: Any, here: Mapping[Any, int]) -> Any:
    """An attribute with its expressions and conditions replaced by their values at a point."""
    if isinstance(value, Expr | Condition | Grid):
        return value.evaluate(here)
    if isinstance(value, tuple):
        return tuple(resolve(v, here) for v in value)
    return value


def _hits(index: Index, here: Mapping[Any, int], point: Point) -> bool:
    return all(
        p in item.evaluate(here) if isinstance(item, Slice) else p == item.evaluate(here)
        for item, p in zip(index, point, strict=True)
    )
