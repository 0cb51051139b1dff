"""Writing adjoints out: for every node between a tensor and a loss, the sum of what flows back into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tempo.autodiff.flows import Cases, Flow, Relevant
from tempo.autodiff.requests import Request
from tempo.errors import GradientError, IndexExpressionError
from tempo.graph.node import Case, Domain, Edge, Node, Scatter, dim_of, union
from tempo.graph.regions import by_case, hull
from tempo.graph.structural import ACCUMULATE, RECURRENT
from tempo.graph.traversal import components
from tempo.ops.creation import FULL
from tempo.ops.elementwise import COPY
from tempo.source import attributed_to
from tempo.symbolic import (
    TRUE,
    Condition,
    Dim,
    Expr,
    Index,
    Slice,
    Symbol,
    as_expr,
    box_of,
    conjunction,
    constant,
    disjunction,
    equal,
    maximum,
    minimum,
)
from tempo.symbolic import index as indices
from tempo.symbolic.condition import And, AtLeastZero, EqualsZero, Or
from tempo.symbolic.intervals import extremes
from tempo.symbolic.regions import inverse, within
from tempo.temporal import recurrent_node
from tempo.tensor import RecurrentTensor, apply, describe

if TYPE_CHECKING:
    from tempo.program import Program


def expand(program: Program) -> Cases:
    """All definitions of a program, those of its requested gradients included."""
    cases: Cases = {node: list(listed) for node, listed in program.cases.items()}
    pending = list(program.gradients)
    with program:
        while pending:
            unknown = {node for r in pending for node in r.results}
            ready: dict[Request, list[_Expansion]] = {}
            # All are looked at before any is written out: what is written makes the others harder to see through.
            for request in pending:
                found = [(group, Relevant(request, group, cases, pending)) for group in _groups(request)]
                if all(unknown.isdisjoint(relevant.nodes) for _, relevant in found):
                    ready[request] = [_Expansion(program, request, *one, cases) for one in found]
            if not ready:
                raise GradientError(
                    f"the gradient of {describe(pending[0].loss)} depends on itself",
                    places=[("here", r.source) for r in pending],
                    hint="a loss cannot depend, at the same point, on its own gradient",
                )
            for request, expansions in ready.items():
                with attributed_to(request.source):
                    for expansion in expansions:
                        expansion.write()
            pending = [r for r in pending if r not in ready]
    return cases


def _groups(request: Request) -> list[list[int]]:
    """The positions of the tensors differentiated by, grouped by which dims they hold fixed: each group shares
    its adjoints."""
    loss = set(request.loss.domain)
    groups: dict[Domain, list[int]] = {}
    for position, node in enumerate(request.wrt):
        groups.setdefault(tuple(d for d in node.domain if d in loss), []).append(position)
    return list(groups.values())


class _Expansion:
    """Writes out the adjoints of one group of a request."""

    def __init__(
        self,
        program: Program,
        request: Request,
        group: Sequence[int],
        relevant: Relevant,
        cases: Cases,
    ) -> None:
        self.program = program
        self.request = request
        self.group = group
        self.cases = cases
        self.relevant = relevant
        self.free = {d: program.internal_dim(d, d.bound) for d in self.relevant.free}
        self.extra: Domain = tuple(self.free.values())
        self.adjoints: dict[Node, Node] = {}
        self.active: dict[Node, Condition] = {}
        # Of a recurrent node: the dims of its adjoint, and the point at which each of them starts.
        self.own: dict[Node, Domain] = {}
        self.offsets: dict[Node, tuple[Expr, ...]] = {}
        self.scatters: dict[Node, list[Scatter]] = {node: [] for node in self.relevant.nodes}
        self.flows: dict[Node, list[Flow]] = {}
        for flow in self.relevant.flows:
            self.flows.setdefault(flow.consumer, []).append(flow)

    def write(self) -> None:
        nodes = sorted(self.relevant.nodes, key=lambda n: n.number, reverse=True)
        recurrent = [n for n in nodes if n.op is RECURRENT]
        for node in recurrent:
            self.declare_recurrent(node)
        if self.request.loss.node in self.relevant.nodes:
            self.seed()
        consumers: dict[Node, list[Node]] = {node: [] for node in nodes}
        for flow in self.relevant.flows:
            consumers[flow.producer].append(flow.consumer)
        for component in components(consumers):
            self.flow_from(component, circle=len(component) > 1 or any(n in consumers[n] for n in component))
        for node in recurrent:
            self.define_recurrent(node)
        for position in self.group:
            self.define_result(self.request.wrt[position], self.request.results[position])

    def flow_from(self, component: set[Node], circle: bool) -> None:
        """What nodes that need each other hand on; everything that reads them has done so already."""
        nodes = sorted(component, key=lambda n: n.number, reverse=True)
        # Recurrent nodes first: their adjoints are declared, so what flows out of them is known. In a circle it may
        # flow wherever they are defined. After that consumers come before their operands, which are older.
        for node in nodes:
            if node.op is RECURRENT:
                self.flow_from_cases(node, TRUE if circle else self.region(node))
        for node in nodes:
            if node.op is not RECURRENT:
                self.adjoints[node] = self.accumulation(node, self.domain_of(node))
                self.active[node] = self.region(node)
                self.flow_from_operation(node)

    # -- adjoints -------------------------------------------------------------------------------------------

    def domain_of(self, node: Node) -> Domain:
        return union(node.domain, self.extra)

    def declare_recurrent(self, node: Node) -> None:
        """The adjoint of a recurrent tensor lives on the smallest box around the tensor's points, which may
        reach past its dims' steps (``o[t + 1] = ...`` has a value at T)."""
        own: list[Dim] = []
        offsets: list[Expr] = []
        for d, (start, stop) in zip(node.domain, hull(node.domain, self.cases[node]), strict=True):
            natural = start == 0 and stop == d.bound
            own.append(d if natural else self.program.internal_dim(d, stop - start, d, start))
            offsets.append(start)
        self.offsets[node] = tuple(offsets)
        replacement = self.shifted(node, own)
        shape = tuple(s if isinstance(s, int) else s.substitute(replacement) for s in node.shape)
        adjoint = recurrent_node(
            f"adjoint({node.label})",
            union(tuple(own), self.extra),
            shape,
            node.dtype,
            self.request.source,
        )
        self.adjoints[node] = adjoint
        self.own[node] = tuple(own)
        self.cases[adjoint] = []

    def shifted(self, node: Node, own: Sequence[Dim]) -> dict[Symbol, Expr]:
        """A recurrent node's points in terms of its adjoint's."""
        return {d: u + offset for d, u, offset in zip(node.domain, own, self.offsets[node], strict=True)}

    def accumulation(self, node: Node, domain: Domain) -> Node:
        return Node(
            ACCUMULATE,
            (),
            domain,
            self.adjoints[node].shape if node in self.adjoints else node.shape,
            node.dtype,
            self.request.source,
            scatters=tuple(self.scatters[node]),
        )

    def define_recurrent(self, node: Node) -> None:
        adjoint = self.adjoints[node]
        total = self.accumulation(node, adjoint.domain)
        guards = tuple((d, d) for d in adjoint.domain)
        self.cases[adjoint].append(Case(adjoint.domain, guards, TRUE, total.here(), self.request.source))

    def define_result(self, wrt: Node, result: Node) -> None:
        """The gradient at a point of ``wrt``: its adjoint there, for the loss at the same point."""
        zero = apply(FULL, (), program=self.program, shape=wrt.shape, value=np.zeros((), wrt.dtype)).edge
        # A recurrent tensor may have points past the steps of a dim, where no loss stands.
        somewhere = box_of(tuple(self.free))
        if wrt not in self.adjoints:  # the loss does not depend on it
            value = zero
        else:
            adjoint = self.adjoints[wrt]
            own = self.own[wrt] if wrt.op is RECURRENT else wrt.domain
            place: dict[Symbol, Expr] = {fresh: d for d, fresh in self.free.items()}
            offsets = self.offsets.get(wrt, tuple(constant(0) for _ in own))
            for d, u, offset in zip(wrt.domain, own, offsets, strict=True):
                place[u] = d - offset
            value = Edge(adjoint, tuple(as_expr(d).substitute(place) for d in adjoint.domain))
        if wrt.op is RECURRENT:
            self.cases[result] = [
                Case(case.target, case.guards, case.condition & where, at, self.request.source)
                for where, at in ([(somewhere, value), (TRUE, zero)] if self.free else [(TRUE, value)])
                for case in self.cases[wrt]
            ]
        else:
            guards = tuple((d, d) for d in result.domain)
            self.cases[result] = [Case(result.domain, guards, TRUE, value, self.request.source)]

    # -- flows ------------------------------------------------------------------------------------------------

    def seed(self) -> None:
        """The loss has derivative one with respect to itself, at its own point."""
        loss = self.request.loss
        domain = union(loss.domain, self.extra)
        one = apply(FULL, (), program=self.program, domain=domain, shape=(), value=np.ones((), loss.dtype))
        condition = conjunction(equal(d, fresh) for d, fresh in self.free.items())
        self.add(loss.node, one.edge.node, loss.index, condition)

    def add(self, target: Node, source: Node, index: Index, condition: Condition) -> None:
        """Add ``source``, over its own domain, into the adjoint of ``target``."""
        if target in self.offsets:
            index = tuple(
                Slice(i.start - o, i.stop - o) if isinstance(i, Slice) else i - o
                for i, o in zip(index, self.offsets[target], strict=True)
            )
            own = self.own[target]
            domain = self.adjoints[target].domain
        else:
            own, domain = target.domain, self.domain_of(target)
        by_dim = dict(zip(own, index, strict=True))
        full = tuple(by_dim.get(d, d) for d in domain)
        self.scatters[target].append(Scatter(source, full, within(condition, source.domain)))

    def send(self, source: Node, flow: Flow, index: Index, condition: Condition) -> None:
        """Add ``source`` into the adjoint of what a flow reads, at the one step that counts where it is restricted."""
        value = RecurrentTensor(self.program, source.here())
        conditions = [condition]
        items = list(index)
        only = dict(flow.only)
        axis = 0
        for n, (d, item) in enumerate(zip(flow.producer.domain, index, strict=True)):
            if d in only:
                own = dim_of(source, d.origin)
                point = own + own.start - d.start + only[d]
                items[n] = point
                if isinstance(item, Slice):
                    conditions += [point >= item.start, point < item.stop]
                    # Where the step is outside the slice, any element will do.
                    inside = maximum(0, minimum(point - item.start, item.length - 1))
                    value = value.space[(*(slice(None) for _ in range(axis)), inside)]
                    continue
                conditions.append(equal(item, point))
            axis += isinstance(item, Slice)
        self.add(flow.producer, self.spread(value, source.domain), tuple(items), conjunction(conditions))

    def flow_from_cases(self, node: Node, active: Condition) -> None:
        """A case hands the adjoint on to the point it reads, where no earlier case applies."""
        adjoint = self.adjoints[node]
        replacement = self.shifted(node, self.own[node])
        flows = {flow.slot: flow for flow in self.flows.get(node, ())}
        for slot, (case, region) in enumerate(by_case(self.cases[node])):
            if slot in flows:
                index = indices.substitute(case.value.index, replacement)
                self.send(adjoint, flows[slot], index, region.substitute(replacement) & active)

    def flow_from_operation(self, node: Node) -> None:
        flows = self.flows.get(node, ())
        if not flows:
            return
        adjoint = self.adjoints[node]
        condition = self.active[node]
        if node.op is ACCUMULATE:
            for flow in flows:
                self.flow_from_scatter(node, flow)
            return
        assert node.op.gradient is not None
        g = RecurrentTensor(self.program, adjoint.here())
        out = RecurrentTensor(self.program, node.here())
        operands = [RecurrentTensor(self.program, edge) for edge in node.edges]
        parts = node.op.gradient(g, out, *operands, **node.attributes)
        for flow in flows:
            part = parts[flow.slot]
            if part is not None:
                self.send(self.spread(part, adjoint.domain), flow, flow.index, condition)

    def flow_from_scatter(self, node: Node, flow: Flow) -> None:
        """The adjoint of adding into points is reading them."""
        scatter, producer, adjoint = node.scatters[flow.slot], flow.producer, self.adjoints[node]
        by_dim = dict(zip(node.domain, scatter.index, strict=True))
        full = tuple(by_dim.get(d, d) for d in adjoint.domain)
        read = RecurrentTensor(self.program, Edge(adjoint, full))
        source = self.spread(read, self.domain_of(producer))
        self.add(producer, source, producer.domain, scatter.condition)

    def spread(self, tensor: RecurrentTensor, domain: Domain) -> Node:
        """The tensor as a node over exactly these dims, so that each point contributes once."""
        if tensor.edge.is_here and tensor.edge.node.domain == domain:
            return tensor.edge.node
        return apply(COPY, (tensor,), program=self.program, domain=domain).edge.node

    # -- where adjoints are not zero -----------------------------------------------------------------------------

    def region(self, node: Node) -> Condition:
        """Where anything flows into a node's adjoint, at least. Elsewhere the node need not even be defined (a
        case may never read it there), so nothing may be computed from it."""
        domain = self.adjoints[node].domain if node.op is RECURRENT else self.domain_of(node)
        return within(disjunction(image(s, domain) for s in self.scatters[node]), domain)


def image(scatter: Scatter, target: Domain) -> Condition:
    """A condition on the target's points that holds at least wherever the scatter adds something."""
    producer = scatter.node.domain
    solved: dict[Symbol, Expr] = {}
    parts: list[Condition] = []
    for q, item in zip(target, scatter.index, strict=True):
        if isinstance(item, Expr):
            found = inverse(item, q, set(producer) - set(solved))
            if found is not None:
                d, expr, divisible = found
                solved[d] = expr
                parts.extend([expr >= 0, expr < d.bound, divisible])
    free = [d for d in producer if d not in solved]
    conditions = scatter.condition.parts if isinstance(scatter.condition, And) else (scatter.condition,)
    parts.append(_without(scatter.condition, set(free)).substitute(solved))
    rest: dict[Dim, tuple[Expr, Expr]] = {}
    for d in free:
        # There must be a step of the dim between all that bounds it: b >= 1 and b < B need B >= 2.
        lows, highs = [constant(0)], [d.bound - 1]
        for bound in (e for c in conditions for e in _at_least_zero(c)):
            factor = dict(bound.terms).get(d, 0)
            if factor in (1, -1) and not (bound - factor * d).symbols() & set(free):
                (lows if factor == 1 else highs).append(-factor * (bound - factor * d).substitute(solved))
        parts.extend(high >= low for low in lows for high in highs)
        rest[d] = (maximum(*filter(_is_fixed, lows)), minimum(*filter(_is_fixed, highs)))
    # Solved dims are named by target dims; keep the two apart while both occur in an expression.
    for q, item in zip(target, scatter.index, strict=True):
        first, last = (item.start, item.stop - 1) if isinstance(item, Slice) else (item, item)
        try:
            low, high = extremes(first, rest)[0], extremes(last, rest)[1]
        except IndexExpressionError:
            continue
        low, high = low.substitute(solved), high.substitute(solved)
        parts.append(equal(q, low) if low == high else conjunction([q >= low, q <= high]))
    return conjunction(parts)


def _without(condition: Condition, dims: set[Dim]) -> Condition:
    """What a condition says about the rest of a point, whatever the steps of these dims are."""
    if not condition.symbols() & dims:
        return condition
    if isinstance(condition, And):
        return conjunction(_without(part, dims) for part in condition.parts)
    return disjunction(_without(part, dims) for part in condition.parts) if isinstance(condition, Or) else TRUE


def _is_fixed(expr: Expr) -> bool:
    """Whether an expression is the same at every point."""
    return not any(isinstance(symbol, Dim) for symbol in expr.symbols())


def _at_least_zero(condition: Condition) -> list[Expr]:
    """The expressions that a comparison says are not negative."""
    if isinstance(condition, AtLeastZero):
        return [condition.expr]
    return [condition.expr, -condition.expr] if isinstance(condition, EqualsZero) else []
