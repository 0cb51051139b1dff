"""The nodes of a circle in terms of one of them: ``factor * y[...] + term``.

A base case is a *reset*: a step at which a term is all there is, whatever came before. It is not a factor of zero, for
zero times infinity is not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tempo.graph.build import make, scalar
from tempo.graph.node import Case, Edge, Graph, Node, Primitive, Shape
from tempo.graph.structural import RECURRENT
from tempo.graph.traversal import edges_of
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
from tempo.ops.shaping import BROADCAST_TO
from tempo.passes.simplify import number
from tempo.symbolic import FALSE, TRUE, Condition, Expr, Index, Slice, conjunction, disjunction
from tempo.symbolic.condition import And, Not, Or
from tempo.temporal import recurrent_node

# Where resets are is put together from the regions of several nodes: with more comparisons than this, that would take
# too long.
MOST_CUT_PARTS = 96


class NotLinearError(Exception):
    """A circle is no linear recurrence, or none that should be a scan."""


@dataclass(frozen=True)
class Form:
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

    def at(self, node: Node, index: Index, offsets: Sequence[int]) -> Form:
        """The form of a node where another one reads it."""
        points = {d: item for d, item in zip(node.domain, index, strict=True) if isinstance(item, Expr)}

        def moved(edge: Edge | None) -> Edge | None:
            return None if edge is None else edge.substitute(points)

        total = tuple(a + b for a, b in zip(self.offsets, offsets, strict=True))
        cut = self.cut.substitute(points)
        return Form(total, moved(self.factor), moved(self.term), moved(self.reset), cut, self.chosen)


class Forms:
    """The nodes of a circle in terms of one of them."""

    def __init__(self, graph: Graph, y: Node, circle: set[Node], is_carried: Callable[[Node, Edge], bool]) -> None:
        """``is_carried`` says which reads are of earlier iterations of the loops around."""
        self.graph = graph
        self.y = y
        self.circle = circle
        self.is_carried = is_carried
        self.forms: dict[Node, Form | None] = {}
        self.cases: dict[Node, tuple[Case, ...]] = {}
        self.one = self.constant(1)

    def constant(self, value: float) -> Edge:
        return make(CONSTANT, source=self.y.source, value=scalar(value, self.y.dtype))

    def needs_y(self, node: Node, edge: Edge) -> bool:
        """Whether what a node of the circle reads needs y (in the same iteration of the loops around)."""
        return edge.node in self.circle and not self.is_carried(node, edge)

    def read(self, node: Node, edge: Edge) -> Form | None:
        """What a node of the circle reads; None if it does not need y."""
        producer = edge.node
        if not self.needs_y(node, edge):
            return None
        points = [item for item in edge.index if isinstance(item, Expr)]  # all are, see ``may_be_linear``
        offsets = [(item - own).constant for own, item in zip(node.domain, points, strict=True)]
        if producer is self.y:
            return Form(tuple(offsets))
        return self.form(producer).at(producer, edge.index, offsets)

    def form(self, node: Node) -> Form:
        """The form of a node, after those of all that it reads. (Circles are longer than Python's stack is deep.)"""
        pending = [node]
        while pending:
            here = pending[-1]
            if self.forms.get(here) is not None:
                pending.pop()
                continue
            edges = (edge for edge in edges_of(here, self.graph.cases) if self.needs_y(here, edge))
            missing = [e.node for e in edges if e.node is not self.y and self.forms.get(e.node) is None]
            if not missing:
                self.forms[here] = self.by_cases(here) if here.op is RECURRENT else self.operation(here)
            elif here in self.forms:  # it needs itself without y
                raise NotLinearError
            else:
                self.forms[here] = None
                pending += missing
        found = self.forms[node]
        assert found is not None
        return found

    def operation(self, node: Node) -> Form:
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
        raise NotLinearError

    def scaled(self, node: Node, form: Form, op: Primitive, by: Edge) -> Form:
        """A form times something, or divided by it."""
        factor = self.folded(op, self.one if form.factor is None else form.factor, by)
        term = None if form.term is None else self.fitted(make(op, form.term, by, source=node.source), node.shape)
        return replace(form, factor=factor, term=term)

    def sum(self, node: Node, first: Form | None, second: Form | None) -> Form:
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
            return Form(first.offsets, factor, term, reset, first.cut & second.cut, chosen=reset is not None)
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

    def choice(self, node: Node, first: Form | None, second: Form | None) -> Form:
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
            return Form(first.offsets, factor, term, reset, first.cut & second.cut, chosen=True)
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

    def is_reset_with(self, first: Form, second: Form) -> bool:
        """Whether two forms, which must be of the same step of y, are reset at the same points."""
        if first.offsets != second.offsets:
            raise NotLinearError
        return first.cut == second.cut and not first.chosen and not second.chosen

    def settled(self, form: Form) -> Edge:
        """The factor of a form, zero at its resets."""
        factor = form.factor or self.one
        return factor if form.reset is None else self.scalar_or_whole(self.where(form.reset, self.constant(0), factor))

    def folded(self, op: Primitive, a: Edge, b: Edge) -> Edge:
        """An operation on two factors, a number if both are."""
        x, y = known_number(a), known_number(b)
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

    def by_cases(self, node: Node) -> Form:
        """A recurrent node. Cases that do not need y are resets."""
        cases = self.graph.cases[node]
        forms = [self.read(node, case.value) for case in cases]
        needing = [form for form in forms if form is not None]
        if not needing or any(form.offsets != needing[0].offsets for form in needing):
            raise NotLinearError
        cut: list[Condition] = []
        before: list[Condition] = []
        for case, form in zip(cases, forms, strict=True):
            here = conjunction([case.region, *(~earlier for earlier in before)])
            cut.append(conjunction([here, TRUE if form is None else form.cut]))
            before.append(case.region)
        resets = disjunction(cut)
        if comparisons(resets) > MOST_CUT_PARTS:
            raise NotLinearError
        terms = [case.value if form is None else form.term for case, form in zip(cases, forms, strict=True)]
        return Form(
            needing[0].offsets,
            self.factor_by_cases(node, forms),
            self.term_by_cases(node, terms),
            self.reset_by_cases(node, forms),
            resets,
            any(form.chosen for form in needing),
        )

    def term_by_cases(self, node: Node, terms: Sequence[Edge | None]) -> Edge | None:
        if node is not self.y and all(term is None or known_number(term) == 0 for term in terms):
            return None
        zero = make(FULL, source=node.source, shape=node.shape, value=scalar(0, node.dtype))
        return self.cases_of(node, [zero if term is None else term for term in terms])

    def factor_by_cases(self, node: Node, forms: Sequence[Form | None]) -> Edge | None:
        """The factors, which at resets do not matter: where all are the same everywhere, no cases are needed."""
        factors = [form.factor or self.one for form in forms if form is not None]
        numbers = {known_number(factor) for factor in factors}
        if len(numbers) == 1 and None not in numbers:
            return factors[0]
        if not factors[0].domain and all(factor == factors[0] for factor in factors):
            return factors[0]
        values = [self.one if form is None else form.factor or self.one for form in forms]
        return self.cases_of(node, self.alike(values))

    def reset_by_cases(self, node: Node, forms: Sequence[Form | None]) -> Edge | None:
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
                    raise NotLinearError
                wide = make(
                    BROADCAST_TO,
                    edge.node.here(),
                    domain=edge.node.domain,
                    source=edge.node.source,
                    shape=self.y.shape,
                )
                if wide.node.domain != edge.node.domain:  # the size of y's values depends on the step
                    raise NotLinearError
                edge = Edge(wide.node, edge.index)
            result.append(edge)
        return result


def comparisons(condition: Condition) -> int:
    """The number of comparisons in a condition."""
    if isinstance(condition, And | Or):
        return sum(map(comparisons, condition.parts))
    return comparisons(condition.condition) if isinstance(condition, Not) else 1


def known_number(edge: Edge) -> float | None:
    """The one number that an edge reads everywhere, if it is known."""
    while edge.node.op is BROADCAST_TO:
        edge = edge.node.edges[0]
    return number(edge)
