"""Rolling: n copies of some nodes become one, over a dim that counts the copies.

    y0 = f(x, w0)                          in(c)  is x if c == 0, else y[c - 1]
    y1 = f(y0, w1)            becomes      w(c) = stack(w0, w1, w2)[c]
    y2 = f(y1, w2)                         y(c) = f(in, w)

A loop over the copies is compiled once, whatever their number. What the copies are given, weights for example, is
copied into one array, and a loop cuts each out of it again: less code is paid for with memory and time.

An operand of a row of nodes is another row, so many copies on; or one node for all copies; or, copy by copy, several of
these, which then are the cases of a recurrent node. So nothing has to hold for the copies to be rolled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any

from tempo.graph.build import make, reshaped
from tempo.graph.node import Case, Edge, Graph, Node, dims_of, shape_symbols, substitute_shape
from tempo.graph.structural import RECURRENT
from tempo.graph.traversal import dependents
from tempo.ops.indexing import SLICE
from tempo.ops.shaping import CONCATENATE, RESHAPE
from tempo.passes.copies import Copies, Parts, Row, Source, find_copies
from tempo.passes.rewrite import Rebuilt, assemble, handed_out, over, refreshed
from tempo.passes.variables import attribute_in
from tempo.symbolic import Dim, as_expr, conjunction, constant, equal
from tempo.symbolic import index as indices
from tempo.temporal import recurrent_node


@dataclass(frozen=True)
class _Stack:
    """A tensor for every copy, none of which varies over dims: they are put into one array before the first copy. (As
    cases they would all be looked at for every copy.)"""

    nodes: tuple[Node, ...]


_Operand = Source | _Stack | Node
"""What a row reads: the same at all copies, one of a stack, or a node by cases."""


@dataclass(frozen=True)
class Rolled:
    """What was rolled: so many copies of so many nodes."""

    dim: Dim
    copies: int
    nodes: int
    stacked: tuple[Node, ...]
    """What is given to the copies, all of it in one tensor."""


def roll(graph: Graph) -> tuple[Graph, tuple[Rolled, ...]]:
    """The graph with repeated structure rolled, and what that was."""
    found: list[Rolled] = []
    while (copies := find_copies(graph)) is not None:
        change = _Rolling(copies, f"copy({len(found) + 1})")
        rolled = change.result()
        if _size(rolled) >= _size(graph):
            break
        graph = rolled
        found.append(change.summary())
    return graph, tuple(found)


class _Rolling:
    """One series of copies rolled."""

    def __init__(self, copies: Copies, name: str) -> None:
        self.copies = copies
        self.graph = copies.graph
        self.done = Rebuilt()
        # Copy by copy, what does not depend on other steps is computed for all of them: a layer's products, say.
        self.dim = Dim(name, len(copies.steps), outermost=True)
        self.dims = {copies.steps: self.dim}
        """A dim for all copies, and one for those that a row has."""
        self.rolled: dict[int, Node] = {}
        self.joints: dict[Any, Node] = {}
        self.stacks: dict[Any, Node] = {}
        places = copies.places()
        self.later = dependents(places, self.graph)
        self.operands: list[list[_Operand]] = []
        for row in copies.rows:
            if row.copies not in self.dims:
                start = row.first - copies.steps.start
                self.dims[row.copies] = Dim(f"{name}'{len(self.dims)}", len(row.copies), self.dim, start)
            parts = copies.sources(row, places)
            examples = copies.looks.reads(row.nodes[0])
            self.operands.append([self.operand(row, *both) for both in zip(parts, examples, strict=True)])

    def operand(self, row: Row, parts: Parts, example: Edge) -> _Operand:
        """What a row reads at all its copies: one source, a stack, or a node by cases."""
        if len(parts) == 1:
            return parts[0][1]
        if len(parts) == len(row.nodes) and all(isinstance(size, int) for size in example.shape):
            stack = tuple(source[0] for _, source in parts)
            if all(isinstance(node, Node) and not node.domain and node not in self.later for node in stack):
                return _Stack(stack)
        key = row.copies, tuple((tuple(copies), source) for copies, source in parts)
        if key not in self.joints:
            edges = [source[-1] for _, source in parts]
            symbols = frozenset().union(*map(indices.symbols, edges), shape_symbols(example.shape))
            domain = (self.dims[row.copies], *dims_of(symbols))
            name = _name([getattr(source[0], "name", "") for _, source in parts])
            self.joints[key] = recurrent_node(name, domain, example.shape, example.dtype, example.node.source)
        return self.joints[key]

    # -- the new graph --------------------------------------------------------------------------------------------

    def result(self) -> Graph:
        graph, done, rows = self.graph, self.done, self.copies.rows
        for n, row in enumerate(rows):
            if row.nodes[0].op is RECURRENT:
                self.put(n)
        members = self.copies.places()
        for node in graph.nodes:
            if node.op is RECURRENT and node not in members:
                done.edges[node] = node.here()
        for unit in self.order(members):
            if isinstance(unit, Node):
                done.edges[unit] = refreshed(unit, done)
            else:
                self.put(unit)
        for node, cases in graph.cases.items():
            if node not in members:
                done.cases[node] = tuple(replace(case, value=done.edge(case.value)) for case in cases)
        for n, row in enumerate(rows):
            if row.nodes[0].op is RECURRENT:
                done.cases[self.rolled[n]] = tuple(self.cases(n))
        for (steps, parts), joint in self.joints.items():
            done.cases[joint] = tuple(self.part(joint, range(*_ends(part)), source, steps) for part, source in parts)
        outputs = {name: self.output(edge) for name, edge in graph.outputs.items()}
        emits = {name: over(edge, done.edge(edge)) for name, edge in graph.emits.items()}
        stops = {dim: done.edge(edge) for dim, edge in graph.stops.items()}
        return assemble(graph, done.cases, outputs, emits, stops, done)

    def order(self, members: Mapping[Node, tuple[int, int]]) -> Iterable[int | Node]:
        """Rows, and nodes that are in none, operands first. What is recurrent is there already."""
        needs: dict[int | Node, set[int | Node]] = {}
        for n, operands in enumerate(self.operands):
            if n not in self.rolled:
                needs[n] = {own[0] for own in operands if isinstance(own, tuple)}
                needs[n].update(node for own in operands if isinstance(own, _Stack) for node in own.nodes)
        for node in self.graph.nodes:
            if node.op is not RECURRENT and node not in members:
                needs[node] = {members[e.node][0] if e.node in members else e.node for e in node.edges}
        return TopologicalSorter({unit: own & needs.keys() for unit, own in needs.items()}).static_order()

    def put(self, n: int) -> None:
        """Make the node of a row, and let it stand for all of its nodes."""
        row = self.copies.rows[n]
        first, names = row.nodes[0], self.copies.looks.variables(row.nodes[0])
        domain = (self.dims[row.copies], *names.values())
        shape = substitute_shape(first.shape, names)
        attributes = {key: attribute_in(value, names) for key, value in first.attributes.items()}
        edges = () if first.op is RECURRENT else tuple(self.read(row, own) for own in self.operands[n])
        name = _name([node.name for node in row.nodes])
        self.rolled[n] = new = Node(first.op, edges, domain, shape, first.dtype, first.source, attributes, name=name)
        for copy, node in enumerate(row.nodes):
            self.done.edges[node] = Edge(new, (constant(copy), *node.domain))

    def read(self, row: Row, operand: _Operand) -> Edge:
        """An operand of a row, as its node reads it."""
        if isinstance(operand, _Stack):
            return self.element(row, operand)
        return operand.here() if isinstance(operand, Node) else self.source(row.copies, operand)

    def element(self, row: Row, stack: _Stack) -> Edge:
        """One of several tensors, by the number of the copy."""
        shape = stack.nodes[0].shape or (1,)
        if stack not in self.stacks:
            edges = [reshaped(RESHAPE, self.done.edge(node.here()), shape) for node in stack.nodes]
            self.stacks[stack] = make(CONCATENATE, *edges, source=edges[0].node.source, axis=0).node
        key = stack, row.copies
        if key not in self.stacks:
            whole = self.stacks[stack].here()
            starts = (shape[0] * self.dims[row.copies], *(0 for _ in shape[1:]))
            one = make(SLICE, whole, starts=starts, sizes=shape, steps=(1,) * len(shape), source=whole.node.source)
            self.stacks[key] = reshaped(RESHAPE, one, stack.nodes[0].shape).node
        return self.stacks[key].here()

    def source(self, steps: range, source: Source) -> Edge:
        """What is read at the copies ``steps``."""
        if isinstance(source[0], Node):
            return self.done.edge(Edge(*source))
        n, distance, index = source
        step = self.dims[steps] + steps.start + distance - self.copies.rows[n].first
        return Edge(self.rolled[n], (step, *index))

    def cases(self, n: int) -> Iterator[Case]:
        """The cases of a recurrent row."""
        row, dim = self.copies.rows[n], self.dims[self.copies.rows[n].copies]
        names = self.copies.looks.variables(row.nodes[0])
        for case, operand in zip(self.graph.cases[row.nodes[0]], self.operands[n], strict=True):
            target = tuple(e.substitute(names) for e in case.target)
            guards = tuple((e.substitute(names), names.get(d, d)) for e, d in case.guards)
            value = self.read(row, operand)
            condition = case.condition.substitute(names)
            yield Case((dim, *target), ((dim, dim), *guards), condition, value, case.source)

    def part(self, joint: Node, copies: range, source: Source, steps: range) -> Case:
        """What a node by cases is at some copies."""
        dim, *others = joint.domain
        first, last = copies.start - steps.start, copies.stop - steps.start - 1
        value = self.source(steps, source)
        guards = tuple((as_expr(d), d) for d in others)
        if first == last:
            return Case((constant(first), *others), guards, equal(dim, first), value, joint.source)
        above = [dim >= first] if first > 0 else []
        below = [dim <= last] if last < len(steps) - 1 else []
        return Case(joint.domain, ((dim, dim), *guards), conjunction([*above, *below]), value, joint.source)

    def output(self, edge: Edge) -> Edge:
        """A result. A recurrent tensor is handed out wherever it is defined: so is what stands for it."""
        node, new = edge.node, self.done.edge(edge)
        if new.node is node or node.op is not RECURRENT or not edge.is_here:
            return handed_out(edge, new)
        alone = recurrent_node(node.name, node.domain, node.shape, node.dtype, node.source)
        self.done.cases[alone] = tuple(replace(case, value=new) for case in self.graph.cases[node])
        return alone.here()

    def summary(self) -> Rolled:
        rows = self.copies.rows
        given = [joint for (_, parts), joint in self.joints.items() if all(isinstance(s[0], Node) for _, s in parts)]
        given += [node for key, node in self.stacks.items() if isinstance(key, _Stack)]
        return Rolled(self.dim, len(self.copies.steps), len(rows), tuple(given))


def _name(names: Sequence[str]) -> str:
    """What stands for tensors of these names."""
    return f"{names[0]}..{names[-1]}" if all(names) else ""


def _ends(copies: tuple[int, ...]) -> tuple[int, int]:
    return copies[0], copies[-1] + 1


def _size(graph: Graph) -> int:
    return len(graph.nodes) + sum(map(len, graph.cases.values()))
