"""Turning accumulations into reads.

Gradients add values into other points (``Scatter``). For the point that is added into, this is a sum over what
reads it: ``x[t - 1]`` becomes the value of one step later, ``x[0:t + 1]`` a sum over ``t:T``, a parameter used at
every step a sum over all of them. What hits a point only under a condition is zero elsewhere, by cases or by a mask.

The rule that decides training speed is here too: a sum over time of a contraction *is* a contraction. A weight's
gradient, an outer product per step, becomes one matrix product over the stacked operands. Likewise the gradient of an
embedding: the rows of all steps are added into one table, and not those of each step into a table of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce

from tempo.analysis.causality import node_circles, remaining_circles
from tempo.graph.build import make, reshaped, scalar, with_domain
from tempo.graph.node import (
    Case,
    Domain,
    Edge,
    Graph,
    Node,
    Scatter,
    Shape,
    attribute_symbols,
    dims_of,
    normal_size,
    shape_symbols,
    substitute_shape,
)
from tempo.graph.structural import ACCUMULATE
from tempo.ops.contraction import EINSUM, spare_letters
from tempo.ops.creation import FULL, GRID, INDEX_VALUE
from tempo.ops.elementwise import (
    ADD,
    CAST,
    COPY,
    DIVIDE,
    LESS,
    LESS_EQUAL,
    LOGICAL_AND,
    MULTIPLY,
    NEGATIVE,
    SUBTRACT,
    WHERE,
)
from tempo.ops.gathering import SCATTER_ADD, SCATTER_ADD_ALONG_AXIS, TAKE_ALONG_AXIS
from tempo.ops.indexing import PLACE, SLICE
from tempo.ops.reduction import SUM
from tempo.ops.shaping import BROADCAST_TO, RESHAPE, TRANSPOSE
from tempo.passes.rewrite import Rebuilt, rebuild
from tempo.passes.scatters import added_into_zeros, by_cases, in_zeros, pieces, seen_from
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
    equal,
    maximum,
    minimum,
)
from tempo.symbolic.condition import And, AtLeastZero
from tempo.symbolic.expr import Min
from tempo.symbolic.grid import Grid
from tempo.symbolic.implied import first_step, not_negative_where
from tempo.symbolic.intervals import at_least, extremes
from tempo.symbolic.regions import inverse, pinned, within
from tempo.temporal import recurrent_node


def resolve_accumulations(graph: Graph) -> Graph:
    """The graph without accumulations."""
    circle_of = {node: n for n, circle in enumerate(node_circles(graph)) for node in circle}
    within_step = {node: n for n, circle in enumerate(remaining_circles(graph)) for node in circle}

    def part(node: Node, scatter: Scatter, done: Rebuilt) -> Edge:
        together, inside = (
            numbers.get(node, -1) == numbers.get(scatter.node, -2) for numbers in (circle_of, within_step)
        )
        scatter = seen_from(node, scatter, done, together)
        if together and not inside:
            # A training's iterations need those before. Within one, all steps are there when a contraction reads them.
            whole = _Part(node, scatter, done, together=False)
            if (value := whole.at_once()) is not None:
                return whole.finished(value)
        return _Part(node, scatter, done, together).value()

    def change(node: Node, done: Rebuilt) -> Edge | None:
        if node.op is not ACCUMULATE:
            return None
        parts = [part(node, scatter, done) for whole in node.scatters for scatter in pieces(whole)]
        if not parts:
            return make(FULL, domain=node.domain, source=node.source, shape=node.shape, value=scalar(0, node.dtype))
        return reduce(lambda a, b: make(ADD, a, b, domain=node.domain, source=node.source), parts)

    return rebuild(graph, change)


class _Part:
    """What one scatter adds, seen from the points it is added into.

    ``together`` says that the producer and the target need each other's earlier values, so that only the steps
    that hit a point may be read for it.
    """

    def __init__(self, target: Node, scatter: Scatter, done: Rebuilt, together: bool) -> None:
        self.target = target
        self.done = done
        self.together = together
        self.source = target.source
        old = scatter.node
        self.domain = old.domain
        self.producer = with_domain(done.edges.get(old, old.here()), COPY, old.domain)
        self.index = scatter.index
        # The producer's dims by other names: a dim of the target may be the same dim at another step.
        self.renamed = {d: Dim(f"{d.name}~", d.bound, d) for d in old.domain}
        self.solve(within(scatter.condition, old.domain))

    def solve(self, condition: Condition) -> None:
        """Which of the producer's dims a target point determines, and what is left to be checked."""
        self.solved: dict[Symbol, Expr] = {}
        hits: list[Condition] = []
        self.spread: list[tuple[Dim, Slice]] = []
        left: list[tuple[Dim, Expr]] = []
        for q, item in zip(self.target.domain, self.index, strict=True):
            if isinstance(item, Slice):
                self.spread.append((q, item))
                continue
            found = inverse(item, q, {d for d in self.domain if d not in self.solved})
            if found is None:
                left.append((q, item))
            else:
                d, expr, divisible = found
                self.solved[d] = expr
                hits += [expr >= 0, expr < d.bound, divisible]
        # What contributes at one step only is read at that step: D[0, j] = f(D[0, j - 1]) has no sum over rows. So is
        # what does at a step that the point determines, as in a gradient for the loss at the same step.
        while found_steps := dict(pinned(condition, self.domain, self.solved)):
            for d, step in found_steps.items():
                self.solved[d] = step
                hits += [step >= 0, step < d.bound]
        self.free: Domain = tuple(d for d in self.domain if d not in self.solved)
        self.axes: Domain = tuple(self.renamed[d] for d in self.free)
        self.place: dict[Symbol, Expr] = {**self.solved, **dict(zip(self.free, self.axes, strict=True))}
        hits += [equal(q, item.substitute(self.place)) for q, item in left]
        # What is added into one step of the target, whichever step it comes from.
        self.pinned = [(q, item) for q, item in left if not item.symbols() & set(self.domain)]
        self.inside = [
            part
            for q, s in self.spread
            for part in (q >= s.start.substitute(self.place), q < s.stop.substitute(self.place))
        ]
        self.starts = [s.start.substitute(self.place) for _, s in self.spread]
        self.fixed = not any(start.symbols() & set(self.axes) for start in self.starts)
        # Where the producer contributes at all. A range of a free dim is read as that range; what concerns only
        # the point is a case; the rest makes the producer zero before it is read, since it need not be defined.
        self.spans = {d: Slice(constant(0), d.bound) for d in self.free}
        rest: list[Condition] = []
        for part in condition.parts if isinstance(condition, And) else (condition,):
            if not part.symbols() & set(self.free):
                hits.append(part.substitute(self.solved))
            elif not self.narrow(part):
                rest.append(part)
        self.only_where = conjunction(rest)
        self.outer = [p for p in hits if not p.symbols() & set(self.axes)]
        self.mask = [p for p in hits if p.symbols() & set(self.axes)]
        if self.together:
            self.read_only_hits()
        self.found = self.spans
        self.spans = {d: _ordered(span) for d, span in self.spans.items()}

    def narrow(self, part: Condition) -> bool:
        """Take a condition such as ``t >= 1`` into the span of the one free dim that it is about."""
        if not isinstance(part, AtLeastZero) or len(dims := dims_of(part.symbols())) != 1:
            return False
        return self.restrict(dims[0], dims[0], part.expr)

    def restrict(self, d: Dim, name: Dim, expr: Expr, roughly: bool = False) -> bool:
        """Take ``expr >= 0`` into the span of free dim ``d``, which is called ``name`` in it. A span that is only to be
        ``roughly`` those steps may have a few more."""
        factor = dict(expr.terms).get(name, 0)
        offset = expr - factor * name
        if name in offset.symbols() or factor == 0:
            return False
        span, size = self.spans[d], abs(factor)
        # From the first step that is not before, up to the last one.
        first, last = size - 1 - offset, offset
        if roughly:
            # Ends that are rounded alike differ by a number that can be seen: windows of 400 samples, every 160.
            first, last = first - first.constant % size, last + -last.constant % size
        if factor > 0:
            self.spans[d] = Slice(maximum(span.start, first // size), span.stop)
        else:
            self.spans[d] = Slice(span.start, minimum(span.stop, last // size + 1))
        return True

    def read_only_hits(self) -> None:
        """Where the producer's other steps may need this very point, read no steps but those that can hit it."""
        conditions = [*self.mask, *self.inside]
        first = dict(filter(None, map(first_step, conditions)))
        for part in conditions:
            for d, u in zip(self.free, self.axes, strict=True):
                if u not in part.symbols():
                    continue
                # Of the other axes in it, those steps count that leave the most to this one.
                others = {a: (constant(0), a.bound - 1) for a in self.axes if a is not u}
                for expr in not_negative_where(part, first):
                    self.restrict(d, u, extremes(expr, others)[1], roughly=not self.together)
        # Counted from that step, so that what is read varies over the dim that a loop over both goes over.
        for q, step in self.pinned:
            for d, span in self.spans.items():
                if d.origin is q.origin and q not in span.symbols():
                    self.spans[d] = Slice(span.start + (q - step), span.stop + (q - step))

    def read_few(self) -> None:
        """Where no more than a few steps can hit a point, such as those of a window, read no others."""
        every = self.spans
        self.spans = dict(every)
        self.read_only_hits()
        points = {q: (constant(0), q.bound - 1) for q in self.target.domain}
        for d, span in self.spans.items():
            few = _is_few(extremes(span.length, points)[1])
            self.spans[d] = _ordered(span) if few else every[d]

    def value(self) -> Edge:
        """The part as an edge over the target's domain."""
        if any(normal_size(self.extent(s)) == 0 for _, s in self.spread):  # x[t:t] has nothing to take an element from
            zero = scalar(0, self.target.dtype)
            shape = self.target.shape
            return make(FULL, domain=self.target.domain, source=self.source, shape=shape, value=zero)
        value = self.at_once()
        if value is None and self.together and self.spread and self.fixed and not self.mask:
            value = self.running()
        return self.finished(self.summed() if value is None else value)

    def finished(self, value: Edge) -> Edge:
        """What was read and summed, at the points that are hit."""
        return self.conditional(self.fitted(value))

    def fitted(self, value: Edge) -> Edge:
        """The value without the padding that it was summed with, and with zeros where the point's own value is larger
        than any that was added."""
        shape = self.target.shape
        if value.shape == shape:
            return value
        wide = tuple(normal_size(maximum(a, b)) for a, b in zip(value.shape, shape, strict=True))
        value = in_zeros(value, wide, self.source)
        nothing, steps = (0,) * len(shape), (1,) * len(shape)
        return make(SLICE, value, source=self.source, starts=nothing, sizes=shape, steps=steps)

    # -- the general form: read, mask, pick, sum ----------------------------------------------------------------

    def summed(self) -> Edge:
        rank = len(self.axes)
        if not self.fixed and not self.together:
            self.read_few()
        value = self.read(self.padded(self.zeroed()))
        if self.fixed and not self.together:
            # Padding is zero, so what lies outside a slice adds nothing: sum first, then look at the point.
            return self.elements(self.total(self.masked(value, self.mask), rank))
        for (q, s), start in zip(self.spread, self.starts, strict=True):
            value = self.pick(value, rank, q - start, normal_size(self.extent(s)))
        return self.total(self.masked(value, [*self.mask, *self.inside]), rank)

    def elements(self, value: Edge) -> Edge:
        """The elements of the leading axes that a point is in the slices of."""
        for (q, _), start in zip(self.spread, self.starts, strict=True):
            value = self.element(value, 0, q - start)
        return value

    def zeroed(self) -> Edge:
        """The producer where it contributes, zero elsewhere."""
        if self.only_where is TRUE:
            return self.producer
        return self.by_cases(self.only_where, self.producer, self.domain)

    def padded(self, edge: Edge) -> Edge:
        """The producer with axes of one size at all the steps that are read together."""
        return in_zeros(edge, tuple(normal_size(self.widest(size)) for size in edge.shape), self.source)

    def widest(self, size: Expr | int) -> Expr | int:
        if isinstance(size, int) or not size.symbols() & set(self.free):
            return size
        return extremes(size, {d: (constant(0), d.bound - 1) for d in self.free})[1]

    def extent(self, s: Slice) -> Expr:
        return as_expr(self.widest(s.length)).substitute(self.solved)

    def read(self, producer: Edge) -> Edge:
        index: Index = tuple(self.solved[d] if d in self.solved else self.spans[d] for d in producer.node.domain)
        return Edge(producer.node, index)

    def masked(self, value: Edge, conditions: Iterable[Condition]) -> Edge:
        mask = conjunction(conditions)
        if mask is TRUE:
            return value
        hit = make(GRID, source=self.source, grid=self.grid(mask))
        hit = reshaped(RESHAPE, hit, hit.shape + (1,) * (len(value.shape) - len(hit.shape)))
        zero = make(FULL, source=self.source, shape=(), value=scalar(0, value.dtype))
        return make(WHERE, hit, value, zero, source=self.source)

    def total(self, value: Edge, rank: int) -> Edge:
        return make(SUM, value, source=self.source, axes=tuple(range(rank))) if rank else value

    def element(self, value: Edge, axis: int, at: Expr) -> Edge:
        """One element along an axis, without the axis."""
        shape = value.shape
        starts = tuple(at if n == axis else 0 for n in range(len(shape)))
        sizes = tuple(1 if n == axis else size for n, size in enumerate(shape))
        one = make(SLICE, value, source=self.source, starts=starts, sizes=sizes, steps=(1,) * len(shape))
        return reshaped(RESHAPE, one, shape[:axis] + shape[axis + 1 :])

    def grid(self, value: Expr | Condition) -> Grid:
        """Something over the steps that are read: axes count from where the spans start."""
        starts = {u: u + self.spans[d].start for d, u in zip(self.free, self.axes, strict=True)}
        axes = tuple(Dim(u.name, self.spans[d].length, u) for d, u in zip(self.free, self.axes, strict=True))
        fresh = dict(zip(self.axes, axes, strict=True))
        return Grid(value.substitute(starts).substitute(fresh), axes)

    def pick(self, value: Edge, axis: int, at: Expr, extent: Expr | int) -> Edge:
        """The element along ``axis`` whose position may differ along the leading axes."""
        safe = maximum(0, minimum(at, as_expr(extent) - 1))
        if not safe.symbols() & set(self.axes):
            return self.element(value, axis, safe)
        shape = value.shape
        indices = make(GRID, source=self.source, grid=self.grid(safe))
        indices = reshaped(RESHAPE, indices, indices.shape + (1,) * (len(shape) - len(self.axes)))
        wanted: Shape = (*shape[:axis], 1, *shape[axis + 1 :])
        indices = make(BROADCAST_TO, indices, source=self.source, shape=wanted)
        one = make(TAKE_ALONG_AXIS, value, indices, source=self.source, axis=axis)
        return reshaped(RESHAPE, one, shape[:axis] + shape[axis + 1 :])

    def conditional(self, value: Edge) -> Edge:
        """The value where the point is hit at all, zero elsewhere."""
        hit = [
            part
            for (q, _), (low, high) in zip(self.spread, self.hull, strict=True)
            for part in (q >= low.substitute(self.solved), q < high.substitute(self.solved))
        ]
        condition = within(conjunction([*self.outer, *hit]), self.target.domain)
        return value if condition is TRUE else self.by_cases(condition, value, self.target.domain)

    def by_cases(self, condition: Condition, value: Edge, domain: Domain) -> Edge:
        """The value where a condition holds, zero elsewhere."""
        guards = tuple((as_expr(d), d) for d in domain)
        return by_cases(self.done, domain, Case(domain, guards, condition, value, self.source)).here()

    def ranges(self) -> dict[Dim, tuple[Expr, Expr]]:
        return {d: (constant(0), d.bound - 1) for d in self.free}

    # -- a loop adds up ----------------------------------------------------------------------------------------------

    def running(self) -> Edge | None:
        """The elements of what is added up from step to step, where a loop needs it so far at every step.

        Step s is given a part of what each step from s on adds, as the keys of step s are by all queries after them.
        To read it from each of them takes as much at every step as all steps have added.
        """
        moving = [d for d in self.free if self.found[d].symbols() & set(self.target.domain)]
        if len(moving) != 1 or moving[0].origin not in {q.origin for q in self.target.domain}:
            return None
        d, span = moving[0], self.found[moving[0]]
        if span.stop == d.bound:
            ahead, end, at = 1, d.bound, minimum(span.start, d.bound)
        elif span.start == 0:
            ahead, end, at = -1, constant(-1), maximum(span.stop - 1, -1)
        else:
            return None
        domain = tuple(e for e in self.domain if e is d or e not in self.free)
        each, where = self.producer, self.only_where
        if domain != self.domain:
            # What steps of other dims add at a step is a sum of its own.
            whole = Node(COPY, (), domain, each.shape, each.dtype, self.source)
            if dims_of(shape_symbols(each.shape)) and not set(dims_of(shape_symbols(each.shape))) <= set(domain):
                return None
            scatter = Scatter(each.node, tuple(map(as_expr, domain)), where)
            each, where = with_domain(_Part(whole, scatter, self.done, together=True).value(), COPY, domain), TRUE
        shape = tuple(normal_size(extremes(size, {d: (constant(0), d.bound - 1)})[1]) for size in each.shape)
        node = recurrent_node("", domain, shape, each.dtype, self.source)
        so_far = Edge(node, tuple(e + ahead if e is d else e for e in domain))
        zero = make(FULL, source=self.source, shape=shape, value=scalar(0, each.dtype))
        guards = tuple((as_expr(e), e) for e in domain)
        cases = [
            Case(domain, tuple((e, of) for e, of in guards if of is not d), equal(d, end), zero, self.source),
            Case(domain, guards, where, self.added(so_far, each), self.source),
            Case(domain, guards, TRUE, so_far, self.source),
        ]
        self.done.cases[node] = tuple(cases if where is not TRUE else cases[:2])
        return self.elements(Edge(node, tuple(at if e is d else self.solved[e] for e in domain)))

    def added(self, so_far: Edge, each: Edge) -> Edge:
        """What a step adds to something as large as what any step adds."""
        into = added_into_zeros(each.node) if each.is_here else None
        if into is None:
            return make(ADD, so_far, in_zeros(each, so_far.shape, self.source), source=self.source)
        indices, updates, axis = into
        indices = self.in_range(indices, each.shape[axis], so_far.shape[axis])
        return make(each.node.op, so_far, indices, updates, source=self.source, axis=axis)

    def in_range(self, indices: Edge, size: Expr | int, wide: Expr | int) -> Edge:
        """Indices of an axis of a size as those of a wider axis: one that is out of range is so in both."""
        if size == wide:
            return indices
        limit, most = (make(INDEX_VALUE, source=self.source, expr=as_expr(n)) for n in (size, wide))
        indices = make(CAST, indices, source=self.source, dtype=limit.dtype)
        zero = make(FULL, source=self.source, shape=(), value=scalar(0, limit.dtype))
        within = (make(LESS_EQUAL, zero, indices, source=self.source), make(LESS, indices, limit, source=self.source))
        return make(WHERE, make(LOGICAL_AND, *within, source=self.source), indices, most, source=self.source)

    # -- a sum over time of a contraction is a contraction --------------------------------------------------------

    def at_once(self) -> Edge | None:
        """The sum over free dims as one operation on the stacked operands of the producer, where it is such a one."""
        if not self.free or self.mask or (self.spread and self.together):
            return None
        if self.fixed:
            value = self.sum_of(self.producer.node)
            return None if value is None else self.elements(value)
        value = self.contraction(self.producer.node)
        if value is not None:
            for (q, _), (low, _) in zip(self.spread, self.hull, strict=True):
                value = self.element(value, 0, q - low.substitute(self.solved))
        return value

    def sum_of(self, node: Node) -> Edge | None:
        """The sum over free dims of what a node has, padded: of an operation that is linear, that operation on sums."""
        if node.op is EINSUM:
            return self.contraction(node)
        if node.op in (SCATTER_ADD, SCATTER_ADD_ALONG_AXIS):
            return self.rows(node)
        if node.op in (ADD, SUBTRACT, NEGATIVE):
            parts = [self.sum_of_operand(edge, node) if edge.shape == node.shape else None for edge in node.edges]
            return None if None in parts else make(node.op, *filter(None, parts), source=self.source)
        if node.op in (MULTIPLY, DIVIDE):
            return self.multiple(node) if self.only_where is TRUE else None
        if node.op not in (PLACE, RESHAPE, TRANSPOSE) or node.attributes.get("value", 0) != 0:
            return None
        (edge,) = node.edges
        if attribute_symbols(node.attributes.get("starts", ())) & set(self.free):
            return None
        # Where other axes than the first vary in size, padding would get between elements.
        others = (node.shape[1:], edge.shape[1:]) if node.shape[:1] == edge.shape[:1] else (node.shape, edge.shape)
        if node.op is RESHAPE and any(shape_symbols(shape) & set(self.free) for shape in others):
            return None
        value = self.sum_of_operand(edge, node)
        if value is None or node.op is TRANSPOSE:
            return value and make(TRANSPOSE, value, source=self.source, **node.attributes)
        shape = substitute_shape(tuple(normal_size(self.widest(size)) for size in node.shape), self.solved)
        if node.op is RESHAPE:
            return make(RESHAPE, value, source=self.source, shape=shape)
        starts = substitute_shape(node.attributes["starts"], self.solved)
        return make(PLACE, value, source=self.source, **{**node.attributes, "shape": shape, "starts": starts})

    def sum_of_operand(self, edge: Edge, node: Node) -> Edge | None:
        return self.sum_of(edge.node) if edge.is_here and edge.node.domain == node.domain else None

    def multiple(self, node: Node) -> Edge | None:
        """The sum of products with what is the same at all steps that are summed over."""
        for n, edge in enumerate(node.edges[: 2 if node.op is MULTIPLY else 1]):
            other = node.edges[1 - n]
            varies = {*other.domain, *shape_symbols(other.shape)} & set(self.free)
            if edge.shape == node.shape and not varies and (value := self.sum_of_operand(edge, node)) is not None:
                factor = other.substitute(self.solved)
                return make(node.op, *((value, factor) if n == 0 else (factor, value)), source=self.source)
        return None

    def rows(self, node: Node) -> Edge | None:
        """Rows that every step adds into a table of zeros, all added into one table."""
        into = added_into_zeros(node)
        shape = tuple(normal_size(self.widest(size)) for size in node.shape)
        if into is None or into[2] != 0 or shape[1:] != node.shape[1:] or dims_of(shape_symbols(shape)):
            return None
        places, rows = self.stack(self.in_range(into[0], node.shape[0], shape[0])), self.stack(into[1])
        if places is None or rows is None or set(rows[1]) != set(self.free):
            return None
        zeros = make(FULL, source=self.source, shape=shape, value=scalar(0, node.dtype))
        if node.op is SCATTER_ADD_ALONG_AXIS:
            # One line of all steps' elements.
            if places[1] != rows[1]:
                return None
            count = normal_size(math.prod(map(as_expr, rows[0].shape[: len(rows[1]) + 1])))
            lines = (reshaped(RESHAPE, edge, (count, *shape[1:])) for edge in (places[0], rows[0]))
            return make(SCATTER_ADD_ALONG_AXIS, zeros, *lines, source=self.source, axis=0)
        # What goes into the same row whatever the step of a dim is, is summed over it first.
        across = tuple(n for n, d in enumerate(rows[1]) if d not in places[1])
        if places[1] != tuple(d for d in rows[1] if d in places[1]):
            return None
        added = make(SUM, rows[0], source=self.source, axes=across) if across else rows[0]
        return make(SCATTER_ADD, zeros, places[0], added, source=self.source, axis=0)

    def contraction(self, node: Node) -> Edge | None:
        """The sum over free dims as one einsum over the stacked operands of one."""
        if node.op is not EINSUM:
            return None
        subscripts = node.attributes["subscripts"]
        inputs, out = subscripts.split("->")
        terms = inputs.split(",")
        letters = dict(zip(self.free, spare_letters(subscripts, len(self.free)), strict=True))
        edges: list[Edge] = []
        for n, edge in enumerate(node.edges):
            # Padded axes must be as long at every step; padding is zero, so that it adds nothing.
            stacked = self.stack(self.padded(edge) if self.fixed else self.placed(edge, terms[n], out))
            if stacked is None:
                return None
            new, order = stacked
            edges.append(new)
            terms[n] = "".join(letters[d] for d in order) + terms[n]
        if not all(letters[d] in term for d in self.free for term in terms):
            return None
        return make(EINSUM, *edges, source=self.source, subscripts=f"{','.join(terms)}->{out}")

    def placed(self, edge: Edge, term: str, out: str) -> Edge:
        """An operand with the axes that slices spread as long as all slices together, and zero outside of its own: what
        a step adds to a point is then at the same place at every step."""
        own = dict(zip(out, zip(self.spread, self.hull, strict=False), strict=False))
        starts: list[Expr | int] = []
        sizes: list[Expr | int] = []
        for letter, size in zip(term, edge.shape, strict=True):
            if letter in own:
                (_, s), (low, high) = own[letter]
                starts.append(normal_size(s.start - low))
                sizes.append(normal_size(high - low))
            else:
                starts.append(0)
                sizes.append(normal_size(self.widest(size)))
        if tuple(sizes) == edge.shape and not any(starts):
            return edge
        steps, zero = (1,) * len(sizes), scalar(0, edge.dtype)
        return make(PLACE, edge, source=self.source, shape=tuple(sizes), starts=tuple(starts), steps=steps, value=zero)

    @property
    def hull(self) -> list[tuple[Expr, Expr]]:
        """Where the slices of each spread axis begin and end, at all steps of the free dims."""
        ranges = self.ranges()
        return [(extremes(s.start, ranges)[0], extremes(s.stop, ranges)[1]) for _, s in self.spread]

    def stack(self, edge: Edge) -> tuple[Edge, Domain] | None:
        """An operand read over the spans of the free dims, and the order of its new leading axes. It is zero where the
        producer does not contribute, and where it need not be defined."""
        order: list[Dim] = []
        index: list[Expr | Slice] = []
        if self.only_where is not TRUE:
            if not set(self.free) <= set(edge.domain):
                return None
            edge = self.by_cases(self.only_where, with_domain(edge, COPY, self.domain), self.domain)
        if any(isinstance(item, Slice) for item in edge.index):
            edge = make(COPY, edge, source=self.source)
        for item in edge.index:
            assert isinstance(item, Expr)
            inside = [d for d in self.free if d in item.symbols()]
            if not inside:
                index.append(item.substitute(self.solved))
                continue
            (d, *others) = inside
            offset = item - d
            span = self.spans[d]
            if others or d in offset.symbols() or d in order:
                return None
            offset = offset.substitute(self.solved)
            index.append(Slice(span.start + offset, span.stop + offset))
            order.append(d)
        if set(order) & {d for size in edge.shape if isinstance(size, Expr) for d in size.symbols()}:
            return None
        return Edge(edge.node, tuple(index)), tuple(order)


def _ordered(span: Slice) -> Slice:
    """The span, if it ends before it begins as one without steps."""
    return span if at_least(span.stop, span.start) else Slice(span.start, maximum(span.start, span.stop))


def _is_few(size: Expr) -> bool:
    """Whether a number of steps has a limit that no bound changes."""
    return any(limit.is_constant for limit in (size.arguments if isinstance(size, Min) else (size,)))
