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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.analysis.relations import Points, Relations
from tempo.errors import IndexExpressionError
from tempo.graph.build import make
from tempo.graph.node import Case, Edge, Graph, Node, find_dim, shape_symbols
from tempo.graph.regions import defined, ends
from tempo.graph.structural import HOST, RECURRENT
from tempo.graph.traversal import circles, edges_of
from tempo.ops.elementwise import (
    ADD,
    COPY,
    DIVIDE,
    MULTIPLY,
    NEGATIVE,
    STOP_GRADIENT,
    SUBTRACT,
    WHERE,
)
from tempo.ops.scan import LINEAR_RECURRENCE
from tempo.passes.linear_forms import Form, Forms, NotLinearError, comparisons, known_number
from tempo.passes.rewrite import with_cases
from tempo.symbolic import TRUE, Condition, Dim, Expr, Index, Slice, as_expr, conjunction, equal
from tempo.symbolic.intervals import interval

TRANSPARENT = (ADD, SUBTRACT, MULTIPLY, DIVIDE, NEGATIVE, WHERE, COPY, STOP_GRADIENT, RECURRENT)
"""What a circle may consist of."""

# All steps of a recurrence that a scan computes may take this much.
MOST_BYTES = 256 * 2**20

# Regions of cases are combined and negated: with more comparisons than this, that would take too long.
MOST_PARTS = 24

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
    reads = [(node, edge) for node in graph.nodes for edge in edges_of(node, graph.cases)]
    for circle in _circles(graph.nodes, reads):
        found.search(circle, reads, ())
    return with_cases(graph, found.cases)


def _circles(nodes: Iterable[Node], reads: Sequence[Read]) -> list[set[Node]]:
    """The sets of nodes that read each other in circles."""
    following: dict[Node, list[Node]] = {node: [] for node in nodes}
    for consumer, edge in reads:
        if consumer in following and edge.node in following:
            following[consumer].append(edge.node)
    return circles(following)


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
        own, theirs = find_dim(node, family), find_dim(edge.node, family)
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
        return {
            d: (start.evaluate(self.numbers), stop.evaluate(self.numbers))
            for d, (start, stop) in zip(node.domain, ends(node, self.graph.cases), strict=True)
        }

    # -- one circle -----------------------------------------------------------------------------------------------

    def rewrite(self, circle: set[Node], outer: Loops) -> bool:
        """Make a circle a scan, if it is a linear recurrence that should be one."""
        if not self.may_be_linear(circle, outer):
            return False
        for node in sorted((n for n in circle if n.op is RECURRENT), key=lambda n: n.number):
            forms = Forms(self.graph, node, circle, partial(self.is_carried, loops=outer))
            try:
                cases = self.scan(node, forms.by_cases(node), forms, outer)
            except (NotLinearError, IndexExpressionError):
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
            if sum(comparisons(case.region) for case in self.graph.cases.get(node, ())) > MOST_PARTS:
                return False
            edges = edges_of(node, self.graph.cases)
            needing = [e.node in circle and not self.is_carried(node, e, outer) for e in edges]
            if (node.op in (MULTIPLY, DIVIDE) and all(needing)) or (node.op is DIVIDE and needing[1]):
                return False
            if node.op is WHERE and needing[0]:
                return False
            for needs, edge in zip(needing, edges, strict=True):
                if needs and not _is_shift(node, edge):
                    return False
        return True

    def scan(self, y: Node, form: Form, forms: Forms, outer: Loops) -> tuple[Case, ...]:
        """The cases of a recurrent node, read from a scan over all of its steps."""
        cases = self.graph.cases[y]
        steps = [(d, offset) for d, offset in zip(y.domain, form.offsets, strict=True) if offset]
        if len(steps) != 1 or steps[0][1] not in (1, -1) or shape_symbols(y.shape) & set(y.domain):
            raise NotLinearError
        dim, reverse = steps[0][0], steps[0][1] == 1
        spans = dict(zip(y.domain, ends(y, self.graph.cases), strict=True))
        start, stop = spans[dim]
        box = conjunction(part for d, (low, high) in spans.items() for part in (d >= low, d < high))
        first = equal(dim, stop - 1 if reverse else start)
        everywhere = self.points(box, y).is_subset(self.points(defined(cases), y))
        begins = self.points(conjunction([box, first, ~form.cut]), y).is_empty()
        if not (everywhere and begins and self.is_worth_it(y, form, dim, outer)):
            raise NotLinearError
        resets = form.chosen or not self.points(conjunction([box, ~first, form.cut]), y).is_empty()

        # An operation has values from step 0 on, a tensor that is defined by cases may have some before, or after.
        axes = {d: _axis(y, d, low, high) for d, (low, high) in spans.items()}
        there = {d: axes[d] + low for d, (low, _) in spans.items()}
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
        value = Edge(scan, tuple(d - low for d, (low, _) in spans.items()))
        if value.is_here:
            return (Case(y.domain, tuple((d, d) for d in y.domain), TRUE, value, y.source),)
        return tuple(replace(case, value=value) for case in cases)

    def points(self, condition: Condition, node: Node) -> Points:
        return self.relations.points(condition, node.domain)

    def is_worth_it(self, y: Node, form: Form, dim: Dim, outer: Loops) -> bool:
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
        factor = None if form.factor is None else known_number(form.factor)
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
            new = {
                edge.node for edge in edges_of(node, self.graph.cases) if not self.is_carried(node, edge, outer)
            } - seen
            seen |= new
            pending.extend(new)
        return seen


def _is_shift(node: Node, edge: Edge) -> bool:
    """Whether a node reads one step that is equally far away wherever it is."""
    return all(
        isinstance(item, Expr) and (item - own).is_constant for own, item in zip(node.domain, edge.index, strict=True)
    )


def _axis(node: Node, dim: Dim, start: Expr, stop: Expr) -> Dim:
    """A dim that counts the steps from where a node starts to be defined."""
    if start == 0 and stop == dim.bound:
        return dim
    return Dim(f"{node.label}.{dim.name}", stop - start, dim.origin, dim.start + start)
