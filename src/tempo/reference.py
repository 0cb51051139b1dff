"""The oracle: what a program means, evaluated point by point in NumPy, on demand, memoised.

Short, slow, obviously right. It knows nothing of schedules, blocks or polyhedra: the value of a node at a
point is found by evaluating whatever it reads there. Everything that the compiler does is compared with this.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.errors import BoundError, CausalityError, InputError, TempoError
from tempo.given import Inputs, Record, Result, bound_number, call_host, check_bounds, resolve
from tempo.graph.node import Case, Domain, Edge, Graph, Node, Scatter, show_domain, show_shape
from tempo.graph.regions import ends
from tempo.graph.structural import ACCUMULATE, HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.mistakes import Asked, Key, Point, cycle, negative_slice, show_point, undefined
from tempo.source import SourceLine, user_line
from tempo.symbolic import Bound, Condition, Dim, Expr, Index, Slice, Symbol, conjunction, constant
from tempo.symbolic.intervals import decide
from tempo.symbolic.regions import pinned
from tempo.tensor import RecurrentTensor

Array = np.ndarray[Any, Any]


def evaluate(graph: Graph, bounds: Mapping[Bound, int], inputs: Mapping[str, Any], seed: int = 0) -> Result:
    """Run a whole program."""
    numbers = check_bounds(graph, bounds)
    machine = Interpreter(graph.cases, graph.stops, numbers, Inputs(graph, numbers).checked(inputs, seed))
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
    given = {b: bound_number(b.name, n) for b, n in bounds.items()}
    arrays = Inputs(graph, given, partial=True).checked(inputs, seed)
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
            return [(s.node, p) for s in node.scatters for p in self.sources(s, point)]
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
            inside = all(0 <= e.evaluate(here) < self.bounds.limit(d) for e, d in case.guards)
            if inside and self.holds(case.condition, here):
                return case
        return None

    def holds(self, condition: Condition, here: Mapping[Any, int]) -> bool:
        """Whether a condition holds at a point. One about a dim that may still go on does so if it holds for any number
        of steps that it may make."""
        under_way = self.bounds.under_way
        if under_way and under_way.keys() & condition.symbols():
            known = {symbol: here[symbol] for symbol in condition.symbols() - under_way.keys()}
            truth = decide(condition, under_way, known)
            if truth is not None:
                return truth
        return condition.evaluate(here)

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

    def sources(self, scatter: Scatter, point: Point) -> Iterator[Point]:
        """The producer's points whose values are added into the consumer at a point."""
        producer = scatter.node
        single: dict[Dim, int] = {}
        # A dim that stands alone in the index (t, t - 1, T - 1 - t) has one candidate; try no others.
        for item, p in zip(scatter.index, point, strict=True):
            if isinstance(item, Expr):
                own = [(d, c) for d, c in item.terms if isinstance(d, Dim) and c in (1, -1)]
                for d, c in own:
                    rest = item - c * d
                    if not any(isinstance(s, Dim) for s in rest.symbols()):
                        single[d] = c * (p - rest.evaluate(self.bounds))
        # Nor where the condition says which step it is then (t == t').
        for d, step in pinned(scatter.condition, producer.domain, {d: constant(step) for d, step in single.items()}):
            if step.is_constant:
                single[d] = step.constant
        both = zip(producer.domain, ends(producer, self.cases), strict=True)
        spans = [self.candidates(single.get(d), *steps) for d, steps in both]
        for candidate in itertools.product(*spans):
            here = self.at(producer.domain, candidate)
            if _hits(scatter.index, here, point) and self.holds(scatter.condition, here):
                yield candidate

    def candidates(self, only: int | None, start: Expr, stop: Expr) -> range:
        """The steps from ``start`` up to ``stop``; or the ``only`` one that comes into question, if it is one of
        them."""
        if only is not None and self.bounds.under_way:
            return range(only, only + self.holds(conjunction([start <= only, stop > only]), self.bounds))
        steps = range(start.evaluate(self.bounds), stop.evaluate(self.bounds))
        return steps if only is None else range(only, only + (only in steps))

    def accumulate(self, node: Node, point: Point) -> Array:
        shape = resolve(node.shape, self.at(node.domain, point))
        total = np.zeros(shape, dtypes.accumulator_of(node.dtype))
        for scatter in node.scatters:
            for source in self.sources(scatter, point):
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
        around = itertools.product(*(self.candidates(None, *steps) for steps in ends(edge.node, self.cases)))
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
        self.under_way: dict[Any, tuple[int, int]] = {}
        """Of dims whose stop is being looked for the fewest and the most steps that they may make."""

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
        if symbol in self.under_way:
            raise CausalityError(
                f"the stop condition of {dim.name} depends on {symbol.name}, the number of steps it decides",
                places=[("stop condition", edge.node.source)],
                hint=f"let it depend on steps up to the present one only, not on {symbol.name}",
            )
        made, limit = 0, self.numbers[symbol]
        stopped = False
        while made < limit and not stopped:
            made += 1
            self.under_way[symbol] = made, limit
            stopped = bool(self.machine.read(edge, {dim: made - 1}, f"the stop of {dim.name}"))
        self.numbers[symbol] = made
        del self.under_way[symbol], self.open[symbol]

    def limit(self, dim: Dim) -> int:
        """What a step of the dim is below. While its stop is looked for, the most it can be: every step that the
        stop condition looks at before it holds is one that is made."""
        return dim.bound.evaluate(self.numbers if self.under_way.keys() & dim.bound.symbols() else self)

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


def _hits(index: Index, here: Mapping[Any, int], point: Point) -> bool:
    return all(
        p in item.evaluate(here) if isinstance(item, Slice) else p == item.evaluate(here)
        for item, p in zip(index, point, strict=True)
    )
