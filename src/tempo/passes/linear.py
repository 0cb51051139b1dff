"""Linear recurrences as scans.

    y[t] = a[t] * y[t - 1] + b[t]

Where ``a`` and ``b`` do not need ``y``, no loop is needed either: stretches of steps are joined in a tree, in a
logarithmic number of passes over all steps. A GPU takes longer for an iteration of a loop than for thousands of small
sums, so that there this decides the speed of moving averages, returns, advantages, and the adjoints of all of them.

How they are found: nodes that need each other in a circle, all sums, products, choices and definitions by cases, are
written as ``factor * y[...] + term``, one after the other, from the node ``y`` back to itself. If it finds itself
one step before (or after) in one dim, it is such a recurrence; whatever does not need ``y`` within the circle has gone
into factors and terms. Loops that larger circles around this one need do not matter: advantages are a scan although
the policy of the next iteration needs them.

A base case is a *reset*: a step at which a term is all there is, whatever came before. It is not a factor of zero, for
zero times infinity is not a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.analysis.relations import Points, Relations
from tempo.errors import IndexExpressionError
from tempo.graph.build import make, scalar
from tempo.graph.node import Case, Edge, Graph, Node, Primitive, Shape, shape_symbols
from tempo.graph.regions import defined, hull
from tempo.graph.structural import HOST, RECURRENT
from tempo.graph.traversal import components
from tempo.ops.creation import CONSTANT, FULL
from tempo.ops.elementwise import (
    ADD,
    COPY,
    DIVIDE,
    LOGICAL_AND,
    LOGICAL_NOT,
    LOGICAL_OR,
    MULTIPLY,
    NEGATIVE,
    STOP_GRADIENT,
    SUBTRACT,
    WHERE,
)
from tempo.ops.scan import LINEAR_RECURRENCE
from tempo.ops.shaping import BROADCAST_TO
from tempo.passes.rewrite import Rebuilt, assemble
from tempo.symbolic import FALSE, TRUE, Condition, Dim, Expr, Index, Slice, as_expr, conjunction, disjunction, equal
from tempo.symbolic.condition import And, Not, Or
from tempo.symbolic.intervals import interval
from tempo.temporal import recurrent_node

TRANSPARENT = (ADD, SUBTRACT, MULTIPLY, DIVIDE, NEGATIVE, WHERE, COPY, STOP_GRADIENT, RECURRENT)
"""What a circle may consist of."""

# All steps of a recurrence that a scan computes may take this much.
MOST_BYTES = 256 * 2**20

# Regions of cases are combined and negated: with more comparisons than this, that would take too long.
MOST_PARTS = 24

# The same of where resets are, which is put together from the regions of several nodes.
MOST_CUT_PARTS = 96

Read = tuple[Node, Edge]
"""A node and something that it reads."""

Loops = tuple[tuple[Dim, bool], ...]
"""Dims of loops and whether they go backwards."""


def linear_recurrences(graph: Graph, numbers: Mapping[Any, int], unrolled: Set[Dim] = frozenset()) -> Graph:
    """The graph with every linear recurrence that is worth it as a scan, given the bounds' numbers. Over dims that are
    ``unrolled`` none is: a scan needs all their steps in one array."""
    if graph.stops:
        return graph
    found = _Search(graph, numbers, unrolled)
    reads = [(node, edge) for node in graph.nodes for edge in _edges(graph, node)]
    for circle in _circles(graph.nodes, reads):
        found.search(circle, reads, ())
    unchanged = Rebuilt()
    unchanged.edges = {node: node.here() for node in graph.nodes}
    return assemble(graph, found.cases, graph.outputs, graph.emits, graph.stops, unchanged)


def _edges(graph: Graph, node: Node) -> Iterable[Edge]:
    return (*node.edges, *(case.value for case in graph.cases.get(node, ())))


def _circles(nodes: Iterable[Node], reads: Sequence[Read]) -> list[set[Node]]:
    """The sets of nodes that read each other in circles."""
    following: dict[Node, list[Node]] = {node: [] for node in nodes}
    for consumer, edge in reads:
        if consumer in following and edge.node in following:
            following[consumer].append(edge.node)
    return [c for c in components(following) if len(c) > 1 or any(n in following[n] for n in c)]


class _Search:
    """Looks for linear recurrences in circles, and in the circles that are left inside of the loops they need."""

    def __init__(self, graph: Graph, numbers: Mapping[Any, int], unrolled: Set[Dim]) -> None:
        self.graph = graph
        self.unrolled = unrolled
        self.numbers = numbers
        self.relations = Relations(graph, numbers)
        self.cases = dict(graph.cases)

    def search(self, circle: set[Node], reads: Sequence[Read], outer: Loops) -> None:
        """Rewrite a circle, or else look inside of the loop that the schedule will make for it."""
        reads = [(node, edge) for node, edge in reads if node in circle and edge.node in circle]
        if self.rewrite(circle, outer):
            return
        shared = set.intersection(*({d.origin for d in node.domain} for node in circle))
        for family in sorted(shared, key=lambda d: d.number):
            for backwards in (False, True):
                if self.is_loop(reads, family, backwards):
                    loops = (*outer, (family, backwards))
                    rest = [(node, edge) for node, edge in reads if not self.is_carried(node, edge, loops)]
                    for inner in _circles(circle, rest):
                        self.search(inner, rest, loops)
                    return

    def is_loop(self, reads: Sequence[Read], family: Dim, backwards: bool) -> bool:
        """Whether a loop over a dim has all that is read in time, and something of it before."""
        distances = [self.distance(node, edge, family) for node, edge in reads]
        known = [(-high, -low) if backwards else (low, high) for low, high in filter(None, distances)]
        lows = [low for low, _ in known]
        return len(known) == len(distances) and min(lows) >= 0 and max(lows) > 0

    def is_carried(self, node: Node, edge: Edge, loops: Loops) -> bool:
        """Whether some of the loops have what a node reads from an earlier iteration."""
        for family, backwards in loops:
            distance = self.distance(node, edge, family)
            if distance is not None and (distance[1] < 0 if backwards else distance[0] > 0):
                return True
        return False

    def distance(self, node: Node, edge: Edge, family: Dim) -> tuple[int, int] | None:
        """By how many steps of a dim a read looks back, at least and at most; None if that is not known."""
        own = next((d for d in node.domain if d.origin is family), None)
        theirs = next((d for d in edge.node.domain if d.origin is family), None)
        if own is None or theirs is None:
            return None
        # A call reads for its whole batch, and waits for the call before it.
        if node.op is HOST and own not in node.attributes["sequence"][:1]:
            return None
        item = edge.index[edge.node.domain.index(theirs)]
        first, last = (item.start, item.stop - 1) if isinstance(item, Slice) else (item, item)
        here = own + own.start - theirs.start
        ranges = {d: (start, stop - 1) for d, (start, stop) in self.steps(node).items()}
        try:
            low = interval(here - last, ranges, self.numbers)[0]
            return low, interval(here - first, ranges, self.numbers)[1]
        except IndexExpressionError:
            return None

    def steps(self, node: Node) -> dict[Dim, tuple[int, int]]:
        """Per dim of a node, the first step and the one after the last at which it may be defined."""
        if node.op is not RECURRENT:
            return {d: (0, d.bound.evaluate(self.numbers)) for d in node.domain}
        ends = hull(node.domain, self.graph.cases[node])
        return {
            d: (start.evaluate(self.numbers), stop.evaluate(self.numbers))
            for d, (start, stop) in zip(node.domain, ends, strict=True)
        }

    # -- one circle -----------------------------------------------------------------------------------------------

    def rewrite(self, circle: set[Node], outer: Loops) -> bool:
        """Make a circle a scan, if it is a linear recurrence that should be one."""
        if not self.may_be_linear(circle, outer):
            return False
        for node in sorted((n for n in circle if n.op is RECURRENT), key=lambda n: n.number):
            forms = _Forms(self, node, circle, outer)
            try:
                cases = self.scan(node, forms.by_cases(node), forms, outer)
            except (_NotLinearError, IndexExpressionError):
                continue
            self.cases.update({**forms.cases, node: cases})
            return True
        return False

    def may_be_linear(self, circle: set[Node], outer: Loops) -> bool:
        """What can be seen of a circle without writing its nodes in terms of one of them: most are none, for a reason
        that does not depend on which one that is."""
        if not all(node.op in TRANSPARENT for node in circle):
            return False
        kinds = {(node.shape, node.dtype, tuple(d.origin for d in node.domain)) for node in circle}
        if len(kinds) > 1:
            return False
        for node in circle:
            if sum(_parts(case.region) for case in self.graph.cases.get(node, ())) > MOST_PARTS:
                return False
            edges = tuple(_edges(self.graph, node))
            needing = [e.node in circle and not self.is_carried(node, e, outer) for e in edges]
            if (node.op in (MULTIPLY, DIVIDE) and all(needing)) or (node.op is DIVIDE and needing[1]):
                return False
            if node.op is WHERE and needing[0]:
                return False
            for needs, edge in zip(needing, edges, strict=True):
                if needs and not _is_shift(node, edge):
                    return False
        return True

    def scan(self, y: Node, form: _Form, forms: _Forms, outer: Loops) -> tuple[Case, ...]:
        """The cases of a recurrent node, read from a scan over all of its steps."""
        cases = self.graph.cases[y]
        steps = [(d, offset) for d, offset in zip(y.domain, form.offsets, strict=True) if offset]
        if len(steps) != 1 or steps[0][1] not in (1, -1) or shape_symbols(y.shape) & set(y.domain):
            raise _NotLinearError
        dim, reverse = steps[0][0], steps[0][1] == 1
        ends = dict(zip(y.domain, hull(y.domain, cases), strict=True))
        start, stop = ends[dim]
        box = conjunction(part for d, (low, high) in ends.items() for part in (d >= low, d < high))
        first = equal(dim, stop - 1 if reverse else start)
        everywhere = self.points(box, y).is_subset(self.points(defined(cases), y))
        begins = self.points(conjunction([box, first, ~form.cut]), y).is_empty()
        if not (everywhere and begins and self.is_worth_it(y, form, dim, outer)):
            raise _NotLinearError
        resets = form.chosen or not self.points(conjunction([box, ~first, form.cut]), y).is_empty()

        # An operation has values from step 0 on, a tensor that is defined by cases may have some before, or after.
        axes = {d: _axis(y, d, low, high) for d, (low, high) in ends.items()}
        there = {d: axes[d] + low for d, (low, _) in ends.items()}
        slices = {dim: Slice(there[dim], stop) if reverse else Slice(start, there[dim] + 1)}
        index: Index = tuple(slices[d] if d in slices else there[d] for d in y.domain)
        assert form.term is not None and form.term.is_here
        factor = forms.one if form.factor is None else form.factor
        fixed = not factor.domain
        operands = [Edge(form.term.node, index), factor if fixed else Edge(factor.node, index)]
        if resets:
            assert form.reset is not None
            operands.append(Edge(form.reset.node, index))
        scan = make(
            LINEAR_RECURRENCE,
            *operands,
            domain=tuple(axes.values()),
            source=y.source,
            fixed=fixed,
            reverse=reverse,
        ).node
        value = Edge(scan, tuple(d - low for d, (low, _) in ends.items()))
        if value.is_here:
            return (Case(y.domain, tuple((d, d) for d in y.domain), TRUE, value, y.source),)
        return tuple(replace(case, value=value) for case in cases)

    def points(self, condition: Condition, node: Node) -> Points:
        return self.relations.points(condition, node.domain)

    def is_worth_it(self, y: Node, form: _Form, dim: Dim, outer: Loops) -> bool:
        """Whether there is room for the values of all steps, nobody waits for those of single steps, and products of
        factors stay numbers."""
        if dim.origin in self.unrolled:
            return False
        looped = [family for family, _ in outer]
        lengths = {d: stop - start for d, (start, stop) in self.steps(y).items()}
        sizes = [as_expr(size).evaluate(self.numbers) for size in y.shape]
        values = math.prod(length for d, length in lengths.items() if d.origin not in looped)
        if values * math.prod(sizes) * y.dtype.itemsize > MOST_BYTES:
            return False
        factor = None if form.factor is None else _number(form.factor)
        if factor is not None and dtypes.is_float(y.dtype) and abs(factor) > 1:
            largest = float(np.finfo(dtypes.accumulator_of(y.dtype)).max)
            if lengths[dim] * math.log(abs(factor)) > math.log(largest):
                return False
        return y not in self.needed_during(dim.origin, outer)

    def needed_during(self, family: Dim, outer: Loops) -> set[Node]:
        """What is needed for values handed out, or for host calls made, at single steps of a dim."""
        roots = [edge.node for edge in self.graph.emits.values()]
        roots += [node for node in self.graph.nodes if node.op is HOST]
        pending = [node for node in roots if any(d.origin is family for d in node.domain)]
        seen = set(pending)
        while pending:
            node = pending.pop()
            new = {edge.node for edge in _edges(self.graph, node) if not self.is_carried(node, edge, outer)} - seen
            seen |= new
            pending.extend(new)
        return seen


def _is_shift(node: Node, edge: Edge) -> bool:
    """Whether a node reads one step that is equally far away wherever it is."""
    return all(
        isinstance(item, Expr) and (item - own).is_constant for own, item in zip(node.domain, edge.index, strict=True)
    )


def _parts(condition: Condition) -> int:
    """The number of comparisons in a condition."""
    if isinstance(condition, And | Or):
        return sum(map(_parts, condition.parts))
    return _parts(condition.condition) if isinstance(condition, Not) else 1


class _NotLinearError(Exception):
    """A circle is no linear recurrence, or none that should be a scan."""


@dataclass(frozen=True)
class _Form:
    """What a node is at a point: ``factor * y[point + offsets] + term``, or at a reset the term alone.

    A factor of None is one, a term of None is zero, a reset of None is never. What the factor is at a reset does not
    matter. ``cut`` is where cases make resets; ``chosen`` says that data makes some, too.
    """

    offsets: tuple[int, ...]
    factor: Edge | None = None
    term: Edge | None = None
    reset: Edge | None = None
    cut: Condition = FALSE
    chosen: bool = False

    def at(self, node: Node, index: Index, offsets: Sequence[int]) -> _Form:
        """The form of a node where another one reads it."""
        points = {d: item for d, item in zip(node.domain, index, strict=True) if isinstance(item, Expr)}

        def moved(edge: Edge | None) -> Edge | None:
            return None if edge is None else edge.substitute(points)

        total = tuple(a + b for a, b in zip(self.offsets, offsets, strict=True))
        cut = self.cut.substitute(points)
        return _Form(total, moved(self.factor), moved(self.term), moved(self.reset), cut, self.chosen)


class _Forms:
    """The nodes of a circle in terms of one of them."""

    def __init__(self, search: _Search, y: Node, circle: set[Node], outer: Loops) -> None:
        self.search = search
        self.graph = search.graph
        self.y = y
        self.circle = circle
        self.outer = outer
        self.forms: dict[Node, _Form | None] = {}
        self.cases: dict[Node, tuple[Case, ...]] = {}
        self.one = self.constant(1)

    def constant(self, value: float) -> Edge:
        return make(CONSTANT, source=self.y.source, value=scalar(value, self.y.dtype))

    def needs_y(self, node: Node, edge: Edge) -> bool:
        """Whether what a node of the circle reads needs y (in the same iteration of the loops around)."""
        return edge.node in self.circle and not self.search.is_carried(node, edge, self.outer)

    def read(self, node: Node, edge: Edge) -> _Form | None:
        """What a node of the circle reads; None if it does not need y."""
        producer = edge.node
        if not self.needs_y(node, edge):
            return None
        points = [item for item in edge.index if isinstance(item, Expr)]  # all are, see ``may_be_linear``
        offsets = [(item - own).constant for own, item in zip(node.domain, points, strict=True)]
        if producer is self.y:
            return _Form(tuple(offsets))
        return self.form(producer).at(producer, edge.index, offsets)

    def form(self, node: Node) -> _Form:
        """The form of a node, after those of all that it reads. (Circles are longer than Python's stack is deep.)"""
        pending = [node]
        while pending:
            here = pending[-1]
            if self.forms.get(here) is not None:
                pending.pop()
                continue
            edges = (edge for edge in _edges(self.graph, here) if self.needs_y(here, edge))
            missing = [e.node for e in edges if e.node is not self.y and self.forms.get(e.node) is None]
            if not missing:
                self.forms[here] = self.by_cases(here) if here.op is RECURRENT else self.operation(here)
            elif here in self.forms:  # it needs itself without y
                raise _NotLinearError
            else:
                self.forms[here] = None
                pending += missing
        found = self.forms[node]
        assert found is not None
        return found

    def operation(self, node: Node) -> _Form:
        """An operation, from the forms of its operands."""
        operands = [self.read(node, edge) for edge in node.edges]
        match node.op, operands:
            case (_, [form]) if node.op in (COPY, STOP_GRADIENT) and form is not None:
                return form
            case (_, [form]) if node.op is NEGATIVE and form is not None:
                return self.scaled(node, form, MULTIPLY, self.constant(-1))
            case (_, [form, None]) if node.op in (MULTIPLY, DIVIDE) and form is not None:
                return self.scaled(node, form, node.op, node.edges[1])
            case (_, [None, form]) if node.op is MULTIPLY and form is not None:
                return self.scaled(node, form, MULTIPLY, node.edges[0])
            case (_, [first, second]) if node.op in (ADD, SUBTRACT):
                return self.sum(node, first, second)
            case (_, [None, first, second]) if node.op is WHERE:
                return self.choice(node, first, second)
        raise _NotLinearError

    def scaled(self, node: Node, form: _Form, op: Primitive, by: Edge) -> _Form:
        """A form times something, or divided by it."""
        factor = self.folded(op, self.one if form.factor is None else form.factor, by)
        term = None if form.term is None else self.fitted(make(op, form.term, by, source=node.source), node.shape)
        return replace(form, factor=factor, term=term)

    def sum(self, node: Node, first: _Form | None, second: _Form | None) -> _Form:
        a, b = node.edges
        if first is not None and second is not None:
            zero = make(FULL, source=node.source, shape=node.shape, value=scalar(0, node.dtype))
            term = None
            if first.term is not None or second.term is not None:
                term = make(node.op, first.term or zero, second.term or zero, source=node.source)
            if self.is_reset_with(first, second):
                factor = self.folded(node.op, first.factor or self.one, second.factor or self.one)
                return replace(first, factor=factor, term=term)
            factor = self.folded(node.op, self.settled(first), self.settled(second))
            reset = None
            if first.reset is not None and second.reset is not None:
                reset = self.logic(LOGICAL_AND, first.reset, second.reset)
            return _Form(first.offsets, factor, term, reset, first.cut & second.cut, chosen=reset is not None)
        if first is not None:
            if first.term is None and node.op is ADD:
                return replace(first, term=self.fitted(b, node.shape))
            term = make(node.op, first.term or self.constant(0), b, source=node.source)
            return replace(first, term=self.fitted(term, node.shape))
        assert second is not None
        if node.op is SUBTRACT:
            second = self.scaled(node, second, MULTIPLY, self.constant(-1))
        term = a if second.term is None else make(ADD, a, second.term, source=node.source)
        return replace(second, term=self.fitted(term, node.shape))

    def choice(self, node: Node, first: _Form | None, second: _Form | None) -> _Form:
        """One of two by a condition. What does not need y is a reset where it is chosen."""
        condition, a, b = node.edges
        zero = self.constant(0)
        if first is not None and second is not None:
            together = self.is_reset_with(first, second)
            factor = self.scalar_or_whole(self.where(condition, first.factor or self.one, second.factor or self.one))
            term = self.fitted(self.where(condition, first.term or zero, second.term or zero), node.shape)
            if together:
                return replace(first, factor=factor, term=term)
            never = make(CONSTANT, source=node.source, value=np.asarray(False))
            reset = self.logic(WHERE, condition, first.reset or never, second.reset or never)
            return _Form(first.offsets, factor, term, reset, first.cut & second.cut, chosen=True)
        if first is not None:
            term = self.where(condition, first.term or zero, b)
            reset, form = self.logic(LOGICAL_NOT, condition), first
        else:
            assert second is not None
            term = self.where(condition, a, second.term or zero)
            reset, form = self.scalar_or_whole(condition), second
        if form.reset is not None:
            reset = self.logic(LOGICAL_OR, reset, form.reset)
        return replace(form, term=self.fitted(term, node.shape), reset=reset, chosen=True)

    def where(self, condition: Edge, a: Edge, b: Edge) -> Edge:
        return make(WHERE, condition, a, b, source=self.y.source)

    def logic(self, op: Primitive, *edges: Edge) -> Edge:
        return self.scalar_or_whole(make(op, *edges, source=self.y.source))

    def is_reset_with(self, first: _Form, second: _Form) -> bool:
        """Whether two forms, which must be of the same step of y, are reset at the same points."""
        if first.offsets != second.offsets:
            raise _NotLinearError
        return first.cut == second.cut and not first.chosen and not second.chosen

    def settled(self, form: _Form) -> Edge:
        """The factor of a form, zero at its resets."""
        factor = form.factor or self.one
        return factor if form.reset is None else self.scalar_or_whole(self.where(form.reset, self.constant(0), factor))

    def folded(self, op: Primitive, a: Edge, b: Edge) -> Edge:
        """An operation on two factors, a number if both are."""
        x, y = _number(a), _number(b)
        if x is not None and y is not None:
            assert op.reference is not None
            return self.constant(op.reference(scalar(x, a.dtype), scalar(y, b.dtype)))
        if op is MULTIPLY and x == 1:
            edge = b
        elif op in (MULTIPLY, DIVIDE) and y == 1:
            edge = a
        else:
            edge = make(op, a, b, source=self.y.source)
        return self.scalar_or_whole(edge)

    def scalar_or_whole(self, edge: Edge) -> Edge:
        """The edge with one value for all elements, or one for each, so that only these two have to be told apart."""
        return self.fitted(edge, self.y.shape) if edge.shape else edge

    def fitted(self, edge: Edge, shape: Shape) -> Edge:
        return edge if edge.shape == shape else make(BROADCAST_TO, edge, source=self.y.source, shape=shape)

    # -- definitions by cases -------------------------------------------------------------------------------------

    def by_cases(self, node: Node) -> _Form:
        """A recurrent node. Cases that do not need y are resets."""
        cases = self.graph.cases[node]
        forms = [self.read(node, case.value) for case in cases]
        needing = [form for form in forms if form is not None]
        if not needing or any(form.offsets != needing[0].offsets for form in needing):
            raise _NotLinearError
        cut: list[Condition] = []
        before: list[Condition] = []
        for case, form in zip(cases, forms, strict=True):
            here = conjunction([case.region, *(~earlier for earlier in before)])
            cut.append(conjunction([here, TRUE if form is None else form.cut]))
            before.append(case.region)
        resets = disjunction(cut)
        if _parts(resets) > MOST_CUT_PARTS:
            raise _NotLinearError
        terms = [case.value if form is None else form.term for case, form in zip(cases, forms, strict=True)]
        return _Form(
            needing[0].offsets,
            self.factor_by_cases(node, forms),
            self.term_by_cases(node, terms),
            self.reset_by_cases(node, forms),
            resets,
            any(form.chosen for form in needing),
        )

    def term_by_cases(self, node: Node, terms: Sequence[Edge | None]) -> Edge | None:
        if node is not self.y and all(term is None or _number(term) == 0 for term in terms):
            return None
        zero = make(FULL, source=node.source, shape=node.shape, value=scalar(0, node.dtype))
        return self.cases_of(node, [zero if term is None else term for term in terms])

    def factor_by_cases(self, node: Node, forms: Sequence[_Form | None]) -> Edge | None:
        """The factors, which at resets do not matter: where all are the same everywhere, no cases are needed."""
        factors = [form.factor or self.one for form in forms if form is not None]
        numbers = {_number(factor) for factor in factors}
        if len(numbers) == 1 and None not in numbers:
            return factors[0]
        if not factors[0].domain and all(factor == factors[0] for factor in factors):
            return factors[0]
        values = [self.one if form is None else form.factor or self.one for form in forms]
        return self.cases_of(node, self.alike(values))

    def reset_by_cases(self, node: Node, forms: Sequence[_Form | None]) -> Edge | None:
        if all(form is not None and form.reset is None for form in forms):
            return None
        yes, no = (make(CONSTANT, source=node.source, value=np.asarray(value)) for value in (True, False))
        return self.cases_of(node, self.alike([yes if form is None else form.reset or no for form in forms]))

    def cases_of(self, node: Node, values: Sequence[Edge]) -> Edge:
        """A tensor with the cases of a node but with other values."""
        made = recurrent_node("", node.domain, values[0].shape, values[0].dtype, node.source)
        cases = self.graph.cases[node]
        self.cases[made] = tuple(replace(case, value=value) for case, value in zip(cases, values, strict=True))
        return made.here()

    def alike(self, edges: Sequence[Edge]) -> list[Edge]:
        """The edges with values of one shape."""
        if len({edge.shape for edge in edges}) == 1:
            return list(edges)
        result = []
        for edge in edges:
            if edge.shape != self.y.shape:
                # Where the edge reads it, the node may have values that an operation on the edge would not have.
                if edge.node.op is RECURRENT or any(isinstance(item, Slice) for item in edge.index):
                    raise _NotLinearError
                wide = make(
                    BROADCAST_TO,
                    edge.node.here(),
                    domain=edge.node.domain,
                    source=edge.node.source,
                    shape=self.y.shape,
                )
                if wide.node.domain != edge.node.domain:  # the size of y's values depends on the step
                    raise _NotLinearError
                edge = Edge(wide.node, edge.index)
            result.append(edge)
        return result


def _axis(node: Node, dim: Dim, start: Expr, stop: Expr) -> Dim:
    """A dim that counts the steps from where a node starts to be defined."""
    if start == 0 and stop == dim.bound:
        return dim
    return Dim(f"{node.label}.{dim.name}", stop - start, dim.origin, dim.start + start)


def _number(edge: Edge) -> float | None:
    """The one number that an edge reads everywhere, if it is known."""
    node = edge.node
    while node.op is BROADCAST_TO:
        node = node.edges[0].node
    if node.op in (CONSTANT, FULL) and node.attributes["value"].size == 1:
        value: float = node.attributes["value"].item()
        return value
    return None
