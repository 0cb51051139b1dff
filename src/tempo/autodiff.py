"""Gradients: reverse accumulation over the graph, as more graph.

``tp.grad(loss, wrt)`` only notes the request and gives a recurrent node; the definitions are written out when the
graph is built, because what a tensor depends on may still be added after the request.

For every node n between ``wrt`` and ``loss`` there is an adjoint A(n), defined at n's points: the sum, over all
consumers, of the consumer's contribution at the points that read it. An edge ``x[e(t)]`` becomes a ``Scatter`` into
``e(t)``, which is right for every e, injective or not. Adjoints of recurrent nodes are recurrent nodes again, so
that back-propagation through time is just what the definitions say.

Dims that loss and wrt share are *held* at the same point. Where the only ways from wrt to loss that return to the same
point of a held dim never leave it, its edges to other points are left out (a weight's effect on later iterations);
otherwise the adjoints get one dim more, the point of the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tempo import dtypes
from tempo.errors import DtypeError, GradientError, IndexExpressionError, ShapeError
from tempo.graph.node import Case, Domain, Edge, Node, Scatter, show_shape, union
from tempo.graph.regions import hull
from tempo.graph.structural import ACCUMULATE, RECURRENT
from tempo.graph.traversal import reachable
from tempo.ops.creation import FULL
from tempo.ops.elementwise import COPY
from tempo.source import SourceLine, attributed_to, user_line
from tempo.symbolic import (
    TRUE,
    Condition,
    Dim,
    Expr,
    Index,
    Slice,
    Symbol,
    as_expr,
    conjunction,
    constant,
    disjunction,
    equal,
    maximum,
    minimum,
)
from tempo.symbolic import index as indices
from tempo.symbolic.condition import And, AtLeastZero, EqualsZero
from tempo.symbolic.intervals import at_least, extremes
from tempo.symbolic.regions import inverse, within
from tempo.temporal import recurrent_node
from tempo.tensor import RecurrentTensor, apply, describe, foreign

if TYPE_CHECKING:
    from tempo.program import Program

Cases = dict[Node, list[Case]]


@dataclass(frozen=True, eq=False)
class Request:
    """One call of ``tp.grad``: the nodes that stand for the gradients, until they are defined."""

    loss: Edge
    wrt: tuple[Node, ...]
    results: tuple[Node, ...]
    source: SourceLine


# -- asking -------------------------------------------------------------------------------------------------


def grad(loss: RecurrentTensor, wrt: Any) -> Any:
    """The gradient of ``loss`` with respect to ``wrt``, a tensor or a list, tuple or dict of tensors.

    ``loss`` is a scalar at each point of its domain. The result has the domain, shape and dtype of ``wrt``: dims
    that both have are held at the same point, dims that only ``loss`` has are summed over, and everything else
    flows, through all cases and recurrences.
    """
    structure, tensors = _flatten(wrt)
    here = user_line()
    _check_loss(loss, here)
    for tensor in tensors:
        _check_wrt(loss, tensor, here)
    program = loss.program
    nodes = tuple(tensor.edge.node for tensor in tensors)
    over = loss.edge.node.label
    results = tuple(recurrent_node(f"d({over})/d({n.label})", n.domain, n.shape, n.dtype, here) for n in nodes)
    program.gradients.append(Request(loss.edge, nodes, results, here))
    program.changed()
    return _unflatten(structure, [RecurrentTensor(program, node.here()) for node in results])


def value_and_grad(loss: RecurrentTensor, wrt: Any) -> tuple[RecurrentTensor, Any]:
    """``loss`` and its gradient."""
    return loss, grad(loss, wrt)


def _flatten(wrt: Any) -> tuple[Any, list[Any]]:
    if isinstance(wrt, Mapping):
        return list(wrt), list(wrt.values())
    if isinstance(wrt, list | tuple):
        return type(wrt), list(wrt)
    return None, [wrt]


def _unflatten(structure: Any, results: list[RecurrentTensor]) -> Any:
    if structure is None:
        return results[0]
    if isinstance(structure, list):
        return dict(zip(structure, results, strict=True))
    return structure(results)


def _check_loss(loss: RecurrentTensor, here: SourceLine) -> None:
    if not isinstance(loss, RecurrentTensor):
        raise GradientError(
            f"tp.grad: the loss must be a tensor of a program, found a {type(loss).__name__}",
            places=[("here", here)],
            hint="tp.grad(loss, wrt) takes the loss itself, not a function that computes it",
        )
    if loss.shape != ():
        raise ShapeError(
            f"tp.grad: the loss must be a scalar at each point, {loss} has shape {show_shape(loss.shape)}",
            places=[("here", here), (loss.name, loss.edge.node.source)],
            hint="sum or average it first, e.g. tp.sum(loss)",
        )
    if not dtypes.is_float(loss.dtype):
        raise DtypeError(
            f"tp.grad: {loss} is {loss.dtype.name}, which has no gradient",
            places=[("here", here), (loss.name, loss.edge.node.source)],
            hint="only floating-point tensors can be differentiated",
        )


def _check_wrt(loss: RecurrentTensor, wrt: Any, here: SourceLine) -> None:
    if not isinstance(wrt, RecurrentTensor):
        raise GradientError(
            f"tp.grad: cannot differentiate with respect to a {type(wrt).__name__}, only to tensors of a program",
            places=[("here", here)],
            hint="wrt is a tensor, or one list, tuple or dict of tensors",
        )
    places = [("here", here), (wrt.name, wrt.edge.node.source)]
    if wrt.program is not loss.program:
        raise foreign(wrt, loss.program)
    if not dtypes.is_float(wrt.dtype):
        raise DtypeError(
            f"tp.grad: cannot differentiate with respect to {wrt}, which is {wrt.dtype.name}",
            places=places,
            hint="only floating-point tensors can be differentiated",
        )
    if not wrt.edge.is_here:
        raise GradientError(
            f"tp.grad: differentiate with respect to the tensor {wrt.name}, not to its part {wrt}",
            places=places,
            hint=f"take the gradient with respect to {wrt.name} and index that: "
            f"tp.grad(loss, {wrt.name})[{indices.show(wrt.edge.index)}]",
        )


# -- writing out --------------------------------------------------------------------------------------------


def expand(program: Program) -> Cases:
    """All definitions of a program, those of its requested gradients included."""
    cases: Cases = {node: list(listed) for node, listed in program.cases.items()}
    pending = list(program.gradients)
    with program:
        while pending:
            ready = [r for r in pending if not _waits_for(program, r, pending, cases)]
            if not ready:
                raise GradientError(
                    f"the gradient of {describe(pending[0].loss)} depends on itself",
                    places=[("here", r.source) for r in pending],
                    hint="a loss cannot depend, at the same point, on its own gradient",
                )
            # All are looked at before any is written out: what is written makes the others harder to see through.
            expansions = [_Expansion(program, r, group, cases, pending) for r in ready for group in _groups(r)]
            for expansion in expansions:
                with attributed_to(expansion.request.source):
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


def _waits_for(program: Program, request: Request, pending: Sequence[Request], cases: Cases) -> bool:
    unknown = {node for r in pending for node in r.results}
    return any(
        node in unknown for group in _groups(request) for node in _Relevant(request, group, cases, pending).nodes
    )


@dataclass(frozen=True, eq=False)
class _Flow:
    """A consumer that differentiably reads a producer. ``index`` gives the producer's points over the
    consumer's domain; ``slot`` says which operand, case or scatter it is. Along the dims of ``only`` (of the producer)
    nothing but the consumer's own step counts."""

    consumer: Node
    producer: Node
    index: Index
    slot: int
    only: tuple[Dim, ...] = ()


class _Relevant:
    """The nodes and flows between ``wrt`` and ``loss``, for one group of a request."""

    def __init__(self, request: Request, group: Sequence[int], cases: Cases, pending: Sequence[Request]) -> None:
        self.loss = request.loss
        self.wrt = [request.wrt[n] for n in group]
        self.held: Domain = tuple(d for d in self.wrt[0].domain if d in self.loss.domain)
        unknown = {node: (r, n) for r in pending for n, node in enumerate(r.results)}
        everything = reachable([self.loss.node], _with_pending(cases, unknown))
        self.flows = [f for node in everything for f in _flows(node, cases, unknown)]
        self.free: tuple[Dim, ...] = ()
        self._narrow()
        undecided = list(self.held)
        while undecided:
            decided = [d for d in undecided if self._hold(d)]
            if not decided:
                break
            undecided = [d for d in undecided if d not in decided]
        # Held dims along which values may leave the point of the loss and come back.
        self.free = tuple(undecided)

    def _narrow(self) -> None:
        """Keep what lies on a way from wrt to loss."""
        backward = _closure([self.loss.node], ((f.consumer, f.producer) for f in self.flows))
        forward = _closure(self.wrt, ((f.producer, f.consumer) for f in self.flows))
        kept = backward & forward
        self.flows = [f for f in self.flows if f.consumer in kept and f.producer in kept]
        self.nodes = kept

    def _hold(self, dim: Dim) -> bool:
        """Leave out the flows that cannot return to the same point of ``dim``, if that can be seen."""
        steps = {f: _step(f, dim) for f in self.flows}
        if dict(zip(self.loss.node.domain, self.loss.index, strict=True)).get(dim) != dim:
            return False
        for away in ("past", "future"):
            maybe = f"{away} or same"
            if all(step in ("same", away, maybe) for step in steps.values()):
                self.flows = [_restricted(f, dim) if steps[f] == maybe else f for f in self.flows if steps[f] != away]
                self._narrow()
                return True
        return False


def _with_pending(cases: Cases, unknown: Mapping[Node, tuple[Request, int]]) -> Cases:
    """The cases, with a gradient that is not written out yet reading its loss and its variable."""
    extra = {
        node: [Case((), (), TRUE, edge) for edge in (request.loss, request.wrt[position].here())]
        for node, (request, position) in unknown.items()
    }
    return {**cases, **extra}


def _flows(node: Node, cases: Cases, unknown: Mapping[Node, tuple[Request, int]]) -> Iterable[_Flow]:
    """How gradients flow from a node to what it reads."""
    if not dtypes.is_float(node.dtype):
        return
    reads: list[tuple[Node, Index]]
    if node in unknown:
        request, position = unknown[node]
        spread = {d: Slice(constant(0), d.bound) for d in request.loss.domain if d not in node.domain}
        loss_index = tuple(spread.get(item, item) if isinstance(item, Dim) else item for item in request.loss.index)
        wrt = request.wrt[position]
        wrt_index = tuple(d if d in request.loss.domain else Slice(constant(0), d.bound) for d in wrt.domain)
        reads = [(request.loss.node, loss_index), (wrt, wrt_index)]
    elif node.op is RECURRENT:
        reads = [(case.value.node, case.value.index) for case in cases.get(node, ())]
    elif node.op is ACCUMULATE:
        reads = [(s.node, _points_of(s, node)) for s in node.scatters]
    elif node.op.gradient is None:
        return
    else:
        reads = [(edge.node, edge.index) for edge in node.edges]
    for slot, (producer, index) in enumerate(reads):
        if dtypes.is_float(producer.dtype):
            yield _Flow(node, producer, index, slot)


def _points_of(scatter: Scatter, consumer: Node) -> Index:
    """The producer's points that a scatter reads, as far as they are an index of the consumer's dims: exact for dims
    that one item alone determines, all steps otherwise."""
    points: dict[Dim, Expr] = {}
    for q, item in zip(consumer.domain, scatter.index, strict=True):
        found = inverse(item, q, set(scatter.node.domain)) if isinstance(item, Expr) else None
        if found is not None:
            points[found[0]] = found[1]
    return tuple(points[d] if d in points else Slice(constant(0), d.bound) for d in scatter.node.domain)


def _step(flow: _Flow, dim: Dim) -> str:
    """Where a flow's producer lies from its consumer along ``dim``: same, past, future or unknown."""
    own = next((d for d in flow.consumer.domain if d.origin is dim.origin), None)
    theirs = next((d for d in flow.producer.domain if d.origin is dim.origin), None)
    if own is None or theirs is None:
        return "unknown"
    item = flow.index[flow.producer.domain.index(theirs)]
    first, last = (item.start, item.stop - 1) if isinstance(item, Slice) else (item, item)
    here = own + own.start
    ranges = {d: (constant(0), d.bound - 1) for d in flow.consumer.domain}
    if first == last and here == first + theirs.start:
        return "same"
    try:
        back = extremes(here - last - theirs.start, ranges)[0]
        ahead = extremes(first + theirs.start - here, ranges)[0]
    except IndexExpressionError:
        return "unknown"
    if at_least(back, 1):
        return "past"
    if at_least(ahead, 1):
        return "future"
    # What a scatter reads is known too roughly to be cut down to one step.
    if flow.consumer.op is not ACCUMULATE:
        if at_least(back, 0):
            return "past or same"
        if at_least(ahead, 0):
            return "future or same"
    return "unknown"


def _restricted(flow: _Flow, dim: Dim) -> _Flow:
    theirs = next(d for d in flow.producer.domain if d.origin is dim.origin)
    return replace(flow, only=(*flow.only, theirs))


def _closure(start: Iterable[Node], pairs: Iterable[tuple[Node, Node]]) -> set[Node]:
    following: dict[Node, list[Node]] = {}
    for a, b in pairs:
        following.setdefault(a, []).append(b)
    seen, pending = set(start), list(start)
    while pending:
        for node in following.get(pending.pop(), ()):
            if node not in seen:
                seen.add(node)
                pending.append(node)
    return seen


class _Expansion:
    """Writes out the adjoints of one group of a request."""

    def __init__(
        self,
        program: Program,
        request: Request,
        group: Sequence[int],
        cases: Cases,
        pending: Sequence[Request],
    ) -> None:
        self.program = program
        self.request = request
        self.group = group
        self.cases = cases
        self.relevant = _Relevant(request, group, cases, pending)
        self.free = {d: program.internal_dim(d, d.bound) for d in self.relevant.free}
        self.extra: Domain = tuple(self.free.values())
        self.adjoints: dict[Node, Node] = {}
        self.active: dict[Node, Condition] = {}
        # Of a recurrent node: the dims of its adjoint, and the point at which each of them starts.
        self.own: dict[Node, Domain] = {}
        self.offsets: dict[Node, tuple[Expr, ...]] = {}
        self.scatters: dict[Node, list[Scatter]] = {node: [] for node in self.relevant.nodes}
        self.flows: dict[Node, list[_Flow]] = {}
        for flow in self.relevant.flows:
            self.flows.setdefault(flow.consumer, []).append(flow)

    def write(self) -> None:
        nodes = sorted(self.relevant.nodes, key=lambda n: n.number, reverse=True)
        recurrent = [n for n in nodes if n.op is RECURRENT]
        for node in recurrent:
            self.declare_recurrent(node)
        if self.request.loss.node in self.relevant.nodes:
            self.seed()
        # Recurrent nodes first: their adjoints are declared, so what flows out of them is known. After that
        # every consumer comes before its operands, because operands are older.
        for node in recurrent:
            self.flow_from_cases(node)
        for node in nodes:
            if node.op is not RECURRENT:
                self.adjoints[node] = self.accumulation(node, self.domain_of(node))
                self.active[node] = self.region(node)
                self.flow_from_operation(node)
        for node in recurrent:
            self.define_recurrent(node)
        for position in self.group:
            self.define_result(self.request.wrt[position], self.request.results[position])

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
        somewhere = conjunction(part for d in self.free for part in (d >= 0, d < d.bound))
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

    def send(self, source: Node, flow: _Flow, index: Index, condition: Condition) -> None:
        """Add ``source`` into the adjoint of what a flow reads, at the one step that counts where it is restricted."""
        value = RecurrentTensor(self.program, source.here())
        conditions = [condition]
        items = list(index)
        axis = 0
        for n, (d, item) in enumerate(zip(flow.producer.domain, index, strict=True)):
            if d in flow.only:
                own = next(u for u in source.domain if u.origin is d.origin)
                point = own + own.start - d.start
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

    def flow_from_cases(self, node: Node) -> None:
        """A case hands the adjoint on to the point it reads, where no earlier case applies."""
        adjoint = self.adjoints[node]
        replacement = self.shifted(node, self.own[node])
        flows = {flow.slot: flow for flow in self.flows.get(node, ())}
        earlier: list[Condition] = []
        for slot, case in enumerate(self.cases[node]):
            region = conjunction([case.region, *(~e for e in earlier)])
            earlier.append(case.region)
            if slot in flows:
                index = indices.substitute(case.value.index, replacement)
                self.send(adjoint, flows[slot], index, region.substitute(replacement))

    def flow_from_operation(self, node: Node) -> None:
        flows = self.flows.get(node, ())
        if not flows:
            return
        adjoint = self.adjoints[node]
        condition = self.active[node]
        if node.op is ACCUMULATE:
            for flow in flows:
                self.flow_from_scatter(node, node.scatters[flow.slot])
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

    def flow_from_scatter(self, node: Node, scatter: Scatter) -> None:
        """The adjoint of adding into points is reading them."""
        producer, adjoint = scatter.node, self.adjoints[node]
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
        domain = self.domain_of(node)
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
    rest = {d: (constant(0), d.bound - 1) for d in producer if d not in solved}
    # Solved dims are named by target dims; keep the two apart while both occur in an expression.
    for q, item in zip(target, scatter.index, strict=True):
        first, last = (item.start, item.stop - 1) if isinstance(item, Slice) else (item, item)
        try:
            low, high = extremes(first, rest)[0], extremes(last, rest)[1]
        except IndexExpressionError:
            continue
        low, high = low.substitute(solved), high.substitute(solved)
        parts.append(equal(q, low) if low == high else conjunction([q >= low, q <= high]))
    conditions = scatter.condition.parts if isinstance(scatter.condition, And) else (scatter.condition,)
    parts.extend(c.substitute(solved) for c in conditions if not c.symbols() & set(rest))
    for d in rest:
        # There must be a step of the dim between all that bounds it: b >= 1 and b < B need B >= 2.
        lows, highs = [constant(0)], [d.bound - 1]
        for bound in (e for c in conditions for e in _at_least_zero(c)):
            factor = dict(bound.terms).get(d, 0)
            if factor in (1, -1) and not (bound - factor * d).symbols() & set(rest):
                (lows if factor == 1 else highs).append(-factor * (bound - factor * d).substitute(solved))
        parts.extend(high >= low for low in lows for high in highs)
    return conjunction(parts)


def _at_least_zero(condition: Condition) -> list[Expr]:
    """The expressions that a comparison says are not negative."""
    if isinstance(condition, AtLeastZero):
        return [condition.expr]
    return [condition.expr, -condition.expr] if isinstance(condition, EqualsZero) else []
