"""What lies between a tensor and a loss, and which of it counts where dims are held at the same point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from tempo import dtypes
from tempo.autodiff.requests import Request
from tempo.errors import IndexExpressionError
from tempo.graph.node import Case, Domain, Node, Scatter, dim_of, find_dim, frozen
from tempo.graph.structural import ACCUMULATE, HOST, HOST_RESULT, INPUT, RECURRENT
from tempo.graph.traversal import components, reachable
from tempo.symbolic import (
    TRUE,
    Dim,
    Expr,
    Index,
    Slice,
    constant,
)
from tempo.symbolic.intervals import at_least, extremes
from tempo.symbolic.regions import inverse, pinned

Cases = dict[Node, list[Case]]


@dataclass(frozen=True, eq=False)
class Flow:
    """A consumer that differentiably reads a producer. ``index`` gives the producer's points over the
    consumer's domain; ``slot`` says which operand, case or scatter it is. ``at`` has the steps of those dims of which a
    case is for one step. Along the dims of ``only`` (of the producer) nothing but one step counts: so many steps after
    the consumer's own."""

    consumer: Node
    producer: Node
    index: Index
    slot: int
    at: tuple[tuple[Dim, Expr], ...] = ()
    only: tuple[tuple[Dim, int], ...] = ()


class Relevant:
    """The nodes and flows between ``wrt`` and ``loss``, for one group of a request."""

    def __init__(self, request: Request, group: Sequence[int], cases: Cases, pending: Sequence[Request]) -> None:
        self.loss = request.loss
        self.wrt = [request.wrt[n] for n in group]
        self.held: Domain = tuple(d for d in self.wrt[0].domain if d in self.loss.domain)
        unknown = {node: (r, n) for r in pending for n, node in enumerate(r.results)}
        everything = reachable([self.loss.node], _with_pending(cases, unknown))
        first = _first_of_equals(everything, {self.loss.node, *self.wrt})
        merged = {node for node in everything if first[node] is not node}
        distinct = (node for node in everything if node not in merged)
        flows = (f for node in distinct for f in _flows(node, cases, unknown))
        self.flows = [replace(f, producer=first[f.producer]) if f.producer in merged else f for f in flows]
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
        if dict(zip(self.loss.node.domain, self.loss.index, strict=True)).get(dim) != dim:
            return False
        single = _single_steps(self.flows, dim)
        reaches = {f: _reach(f, dim, single) for f in self.flows}
        for sign in (1, -1):  # nothing goes to the future, or nothing to the past
            ahead: dict[Flow, int] = {}
            for flow, reach in reaches.items():
                most = None if reach is None else _whole(reach[1] if sign == 1 else -reach[0])
                if most is not None:
                    ahead[flow] = most
            moved = self._moved(ahead) if len(ahead) == len(reaches) else None
            if moved is None:
                continue
            stays = {f: sign * (moved[f.consumer] - moved[f.producer]) for f in ahead}
            kept = [f for f in self.flows if ahead[f] == sign * stays[f]]
            rough = {f for f in kept if reaches[f] != (constant(stays[f]), constant(stays[f]))}
            # What a scatter reads is known too roughly to be cut down to one step.
            if any(f.consumer.op is ACCUMULATE for f in rough):
                continue
            self.flows = [_restricted(f, dim, stays[f]) if f in rough else f for f in kept]
            self._narrow()
            return True
        return False

    def _moved(self, ahead: Mapping[Flow, int]) -> dict[Node, int] | None:
        """How many steps later to count the points of each node, so that no flow goes ahead any more; ``ahead`` is how
        far each does at most. The loss and what it is differentiated by stay where they are.

        In ``w[t + 1] = w[t] - m[t + 1]`` the right side, at t, reads what is at t + 1. It is used at t + 1 alone: if it
        counts as being there, it reads nothing ahead. These are shortest distances from the loss (Bellman and Ford);
        there are none if a circle can be gone around and left ahead of where it was entered.
        """
        if all(most <= 0 for most in ahead.values()):
            return dict.fromkeys(self.nodes, 0)
        loss = self.loss.node
        steps = [(f.consumer, f.producer, -most) for f, most in ahead.items()]
        steps += [pair for wrt in self.wrt if wrt in self.nodes for pair in ((loss, wrt, 0), (wrt, loss, 0))]
        least = -sum(most for most in ahead.values() if most > 0)
        moved = {loss: 0}
        changed = True
        while changed:
            changed = False
            for start, end, distance in steps:
                if start in moved and (end not in moved or moved[start] + distance < moved[end]):
                    moved[end] = moved[start] + distance
                    changed = True
                    if moved[end] < least:
                        return None
        return moved


def _first_of_equals(nodes: Iterable[Node], themselves: set[Node]) -> dict[Node, Node]:
    """For every node, the first one that is the same operation on the same operands. What flows back into any of them
    is added up there and goes on once: a product that is written three times has one gradient by its weights."""
    first: dict[Node, Node] = {}
    known: dict[Any, Node] = {}
    for node in nodes:
        if node in themselves or node.op in (ACCUMULATE, HOST, HOST_RESULT, INPUT, RECURRENT):
            first[node] = node
            continue
        reads = tuple((first.get(edge.node, edge.node), edge.index) for edge in node.edges)
        key = node.op, node.domain, node.shape, node.dtype, frozen(node.attributes), reads
        first[node] = known.setdefault(key, node)
    return first


def _with_pending(cases: Cases, unknown: Mapping[Node, tuple[Request, int]]) -> Cases:
    """The cases, with a gradient that is not written out yet reading its loss and its variable."""
    extra = {
        node: [Case((), (), TRUE, edge) for edge in (request.loss, request.wrt[position].here())]
        for node, (request, position) in unknown.items()
    }
    return {**cases, **extra}


def _flows(node: Node, cases: Cases, unknown: Mapping[Node, tuple[Request, int]]) -> Iterable[Flow]:
    """How gradients flow from a node to what it reads."""
    if not dtypes.is_float(node.dtype):
        return
    reads: list[tuple[Node, Index]]
    at: dict[int, tuple[tuple[Dim, Expr], ...]] = {}
    if node in unknown:
        request, position = unknown[node]
        spread = {d: Slice(constant(0), d.bound) for d in request.loss.domain if d not in node.domain}
        loss_index = tuple(spread.get(item, item) if isinstance(item, Dim) else item for item in request.loss.index)
        wrt = request.wrt[position]
        wrt_index = tuple(d if d in request.loss.domain else Slice(constant(0), d.bound) for d in wrt.domain)
        reads = [(request.loss.node, loss_index), (wrt, wrt_index)]
    elif node.op is RECURRENT:
        reads = [(case.value.node, case.value.index) for case in cases.get(node, ())]
        at = {n: tuple(pinned(case.region, node.domain)) for n, case in enumerate(cases.get(node, ()))}
    elif node.op is ACCUMULATE:
        reads = [(s.node, _points_of(s, node)) for s in node.scatters]
    elif node.op.gradient is None:
        return
    else:
        reads = [(edge.node, edge.index) for edge in node.edges]
    for slot, (producer, index) in enumerate(reads):
        if dtypes.is_float(producer.dtype):
            yield Flow(node, producer, index, slot, at.get(slot, ()))


def _points_of(scatter: Scatter, consumer: Node) -> Index:
    """The producer's points that a scatter reads, as far as they are an index of the consumer's dims: exact for dims
    that one item alone determines, all steps otherwise."""
    points: dict[Dim, Expr] = {}
    for q, item in zip(consumer.domain, scatter.index, strict=True):
        found = inverse(item, q, set(scatter.node.domain)) if isinstance(item, Expr) else None
        if found is not None:
            points[found[0]] = found[1]
    return tuple(points[d] if d in points else Slice(constant(0), d.bound) for d in scatter.node.domain)


def _single_steps(flows: Sequence[Flow], dim: Dim) -> set[Node]:
    """The nodes that do not vary over ``dim``, and yet belong to one step of it: in ``p[0] = f(g[0])``, ``f(g[0])`` is
    read at step 0 alone, and reads step 0 alone."""
    around: dict[Node, list[tuple[Node, Expr | None]]] = {}
    for f in flows:
        own, theirs = (find_dim(node, dim.origin) for node in (f.consumer, f.producer))
        if own is None and theirs is None:
            around.setdefault(f.consumer, []).append((f.producer, None))
            around.setdefault(f.producer, []).append((f.consumer, None))
        elif theirs is None and own is not None:
            step = dict(f.at).get(own)
            around.setdefault(f.producer, []).append((f.consumer, None if step is None else step + own.start))
        elif own is None and theirs is not None:
            item = f.index[f.producer.domain.index(theirs)]
            if isinstance(item, Slice) or any(isinstance(symbol, Dim) for symbol in item.symbols()):
                around.setdefault(f.consumer, []).append((f.producer, None))
            else:
                around.setdefault(f.consumer, []).append((f.producer, item + theirs.start))
    found: set[Node] = set()
    for together in components({a: [b for b, _ in near if b in around] for a, near in around.items()}):
        steps = {step for a in together for b, step in around[a] if b not in around}
        if len(steps) == 1 and None not in steps:
            found |= together
    return found


def _reach(flow: Flow, dim: Dim, single: Set[Node]) -> tuple[Expr, Expr] | None:
    """How many steps along ``dim`` a flow's producer lies ahead of its consumer, at least and at most; None if that
    cannot be said. ``single`` has nodes that belong to one step though they do not vary."""
    if flow.consumer in single or flow.producer in single:
        return constant(0), constant(0)
    own, theirs = find_dim(flow.consumer, dim.origin), find_dim(flow.producer, dim.origin)
    if own is None or theirs is None:
        return None
    item = flow.index[flow.producer.domain.index(theirs)]
    first, last = (item.start, item.stop - 1) if isinstance(item, Slice) else (item, item)
    here = own + own.start - theirs.start
    ranges = {d: (constant(0), d.bound - 1) for d in flow.consumer.domain}
    try:
        return extremes(first - here, ranges)[0], extremes(last - here, ranges)[1]
    except IndexExpressionError:
        return None


def _whole(most: Expr) -> int | None:
    """A number of steps that is at least this many, whatever the bounds are."""
    if most.is_constant:
        return most.constant
    return next((steps for steps in (-1, 0) if at_least(steps, most)), None)


def _restricted(flow: Flow, dim: Dim, steps: int) -> Flow:
    return replace(flow, only=(*flow.only, (dim_of(flow.producer, dim.origin), steps)))


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
