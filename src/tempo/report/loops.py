"""The loop tree of a program, with the lines of the user's program beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tempo.graph.node import Graph
from tempo.graph.structural import RECURRENT
from tempo.report.marks import Marks
from tempo.report.markup import Markup, tag
from tempo.schedule.looptree import Compute, Loop, Tree, computes, heading, show, statement

# Of loops whose bodies have at least so many statements, and the same ones, the body is shown once.
LEAST_REPEATED = 10


def loop_tree(trees: Sequence[Tree], graph: Graph, marks: Marks) -> Markup:
    """All loops, each of which can be folded."""
    return tag("div", *_Rows(graph, marks).of(trees), class_="tree")


class _Rows:
    def __init__(self, graph: Graph, marks: Marks) -> None:
        self.graph = graph
        self.marks = marks
        self.written = ""
        """The lines that the statement before was written in."""
        self.shown: dict[str, str] = {}
        """By their bodies, the loops that are there already."""

    def of(self, trees: Sequence[Tree]) -> Iterator[Markup]:
        for tree in trees:
            yield self.loop(tree) if isinstance(tree, Loop) else self.statement(tree)

    def loop(self, loop: Loop) -> Markup:
        head = heading(loop)
        self.written = ""
        count = sum(1 for _ in computes(loop.body))
        about = tag("span", "1 statement" if count == 1 else f"{count} statements", class_="count")
        body, first = show(loop.body), None
        if count >= LEAST_REPEATED:
            first = self.shown.setdefault(body, head)
        if first is None or first is head:
            rows = [*self.of(loop.body)]
        else:
            rows = [tag("div", f"the same as in: {first.removesuffix(':')}", class_="same")]
        self.written = ""
        return tag("details", tag("summary", tag("code", head), about), tag("div", *rows, class_="body"), open="")

    def statement(self, compute: Compute) -> Markup:
        written = self.lines(compute)
        # A line that several statements in a row come from is written beside the first.
        beside = tag("span", written, class_="line", title=written) if written != self.written else ""
        self.written = written
        return tag("div", tag("code", statement(compute)), beside, class_="row", data_k=self.marks.of(compute.node))

    def lines(self, compute: Compute) -> str:
        """Where it was written: of a tensor that is defined by cases, these."""
        node = compute.node
        sources = [self.graph.cases[node][n].source for n in compute.cases] if node.op is RECURRENT else [node.source]
        return "   ".join(dict.fromkeys(str(source) for source in sources if source is not None))
