"""Turning accumulations into reads.

Gradients add values into other points (``Scatter``). For the point that is added into, this is a sum over what
reads it: ``x[t - 1]`` becomes the value of one step later, ``x[0:t + 1]`` a sum over ``t:T``, a parameter used at
every step a sum over all of them. What hits a point only under a condition is zero elsewhere, by cases or by a mask.

The rule that decides training speed is here too: a sum over time of a contraction *is* a contraction. A weight's
gradient, an outer product per step, becomes one matrix product over the stacked operands. Likewise the gradient of an
embedding: the rows of all steps are added into one table, and not those of each step into a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from tempo.analysis.causality import node_circles, remaining_circles
from tempo.graph.build import make, reshaped, scalar, with_domain
from tempo.graph.node import Case, Domain, Edge, Graph, Node, Scatter, Shape, dims_of, normal_size, shape_symbols
from tempo.graph.structural import ACCUMULATE
from tempo.ops.contraction import EINSUM, spare_letters
from tempo.ops.creation import FULL, GRID
from tempo.ops.elementwise import ADD, COPY, WHERE
from tempo.ops.gathering import SCATTER_ADD, TAKE_ALONG_AXIS
from tempo.ops.indexing import PLACE, SLICE
from tempo.ops.reduction import SUM
from tempo.ops.shaping import BROADCAST_TO, RESHAPE
from tempo.passes.rewrite import Rebuilt, rebuild
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
from tempo.symbolic.expr import Max, Min
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
        if together and not inside:
            # A training's iterations need those before. Within one, all steps are there when a contraction reads them.
            whole = _Part(node, scatter, done, together=False)
            if (value := whole.at_once()) is not None:
                return whole.finished(value)
        return _Part(node, scatter, done, together).value()

    def change(node: Node, done: Rebuilt) -> Edge | None:
        if node.op is not ACCUMULATE:
            return None
        parts = [part(node, scatter, done) for whole in node.scatters for scatter in _pieces(whole)]
        if not parts:
            return make(FULL, domain=node.domain, source=node.source, shape=node.shape, value=scalar(0, node.dtype))
        return reduce(lambda a, b: make(ADD, a, b, domain=node.domain, source=node.source), parts)

    return rebuild(graph, change)


def _pieces(scatter: Scatter) -> list[Scatter]:
    """A scatter to ``max(t - 1, 0)`` as one to ``t - 1`` where that is greater and one to ``0`` elsewhere.

    Each piece is then a read at a fixed distance or a sum over one range; the whole would read all steps from the first
    and mask most of them, and where those steps need the point that is added into, there would be no order of steps.
    """
    for n, item in enumerate(scatter.index):
        if isinstance(item, Slice):
            continue
        found = next(((a, c) for a, c in item.terms if isinstance(a, Min | Max)), None)
        if found is None:
            continue
        atom, factor = found
        rest = item - factor * atom
        pieces = []
        for k, argument in enumerate(atom.arguments):
            ahead = [argument - other if isinstance(atom, Max) else other - argument for other in atom.arguments]
            # Of equal arguments the first one counts.
            wins = [a >= (1 if m < k else 0) for m, a in enumerate(ahead) if m != k]
            index = (*scatter.index[:n], rest + factor * argument, *scatter.index[n + 1 :])
            pieces += _pieces(Scatter(scatter.node, index, conjunction([scatter.condition, *wins])))
        return pieces
    return [scatter]


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
        # What contributes at one step only is read at that step: D[0, j] = f(D[0, j - 1]) has no sum over rows.
        for d, step in pinned(condition, [d for d in self.domain if d not in self.solved]):
            if d not in self.solved:
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
        nothing, steps = (0,) * len(shape), (1,) * len(shape)
        wide = tuple(normal_size(maximum(a, b)) for a, b in zip(value.shape, shape, strict=True))
        if wide != value.shape:
            zero = scalar(0, value.dtype)
            value = make(PLACE, value, source=self.source, shape=wide, starts=nothing, steps=steps, value=zero)
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
        shape = edge.shape
        sizes = tuple(normal_size(self.widest(size)) for size in shape)
        if sizes == shape:
            return edge
        zero = scalar(0, edge.dtype)
        nothing = (0,) * len(shape)
        return make(PLACE, edge, source=self.source, shape=sizes, starts=nothing, steps=(1,) * len(shape), value=zero)

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
        shape = value.shape
        node = recurrent_node("", domain, shape, value.dtype, self.source)
        zero = make(FULL, source=self.source, shape=shape, value=scalar(0, value.dtype))
        guards = tuple((as_expr(d), d) for d in domain)
        self.done.cases[node] = (
            Case(domain, guards, condition, value, self.source),
            Case(domain, guards, TRUE, zero, self.source),
        )
        return node.here()

    def ranges(self) -> dict[Dim, tuple[Expr, Expr]]:
        return {d: (constant(0), d.bound - 1) for d in self.free}

    # -- a sum over time of a contraction is a contraction --------------------------------------------------------

    def at_once(self) -> Edge | None:
        """The sum over free dims as one operation on the stacked operands of the producer, where it is such a one."""
        if not self.free or self.mask or self.only_where is not TRUE:
            return None
        value = self.contraction()
        return self.rows() if value is None else value

    def rows(self) -> Edge | None:
        """Rows that every step adds into a table of zeros, all added into one table."""
        producer = self.producer.node
        if producer.op is not SCATTER_ADD or producer.attributes["axis"] != 0 or self.spread:
            return None
        table, indices, updates = producer.edges
        if table.node.op is not FULL or table.node.attributes["value"] != 0 or dims_of(shape_symbols(table.shape)):
            return None
        places, rows = self.stack(indices), self.stack(updates)
        if places is None or rows is None or set(rows[1]) != set(self.free):
            return None
        # What goes into the same row whatever the step of a dim is, is summed over it first.
        across = tuple(n for n, d in enumerate(rows[1]) if d not in places[1])
        if places[1] != tuple(d for d in rows[1] if d in places[1]):
            return None
        added = make(SUM, rows[0], source=self.source, axes=across) if across else rows[0]
        zeros = make(FULL, source=self.source, shape=table.shape, value=scalar(0, table.dtype))
        return make(SCATTER_ADD, zeros, places[0], added, source=self.source, axis=0)

    def contraction(self) -> Edge | None:
        """The sum over free dims as one einsum over the stacked operands, where the producer is one."""
        producer = self.producer.node
        if producer.op is not EINSUM:
            return None
        if self.spread and self.together:
            return None
        subscripts = producer.attributes["subscripts"]
        inputs, out = subscripts.split("->")
        terms = inputs.split(",")
        letters = dict(zip(self.free, spare_letters(subscripts, len(self.free)), strict=True))
        edges: list[Edge] = []
        for n, edge in enumerate(producer.edges):
            # Padded axes must be as long at every step; padding is zero, so that it adds nothing.
            stacked = self.stack(self.padded(edge) if self.fixed else self.placed(edge, terms[n], out))
            if stacked is None:
                return None
            new, order = stacked
            edges.append(new)
            terms[n] = "".join(letters[d] for d in order) + terms[n]
        if not all(letters[d] in term for d in self.free for term in terms):
            return None
        value = make(EINSUM, *edges, source=self.source, subscripts=f"{','.join(terms)}->{out}")
        if self.fixed:
            return self.elements(value)
        for (q, _), (low, _) in zip(self.spread, self.hull, strict=True):
            value = self.element(value, 0, q - low.substitute(self.solved))
        return value

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
        """An operand read over the spans of the free dims, and the order of its new leading axes."""
        order: list[Dim] = []
        index: list[Expr | Slice] = []
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
