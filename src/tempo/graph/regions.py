"""Where tensors are defined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tempo.graph.node import Case, Domain, Node
from tempo.graph.structural import RECURRENT
from tempo.symbolic import Condition, Dim, Expr, conjunction, constant, disjunction, maximum, minimum
from tempo.symbolic.intervals import at_least


def _span(dim: Dim, target: Expr) -> tuple[Expr, Expr]:
    """The first point over ``dim`` that a case may define, and the one after the last."""
    coefficient = dict(target.terms).get(dim, 0)
    if coefficient == 0:
        return target, target + 1
    offset = target - coefficient * dim
    if coefficient == 1:
        return offset, offset + dim.bound
    return offset - dim.bound + 1, offset + 1


def hull(domain: Domain, cases: Sequence[Case]) -> tuple[tuple[Expr, Expr], ...]:
    """Per dim, the smallest range ``start, stop`` that holds every target of the cases."""
    spans = [[_span(d, e) for d, e in zip(domain, case.target, strict=True)] for case in cases]
    return tuple(
        (
            _least([span[n][0] for span in spans]),
            _greatest([span[n][1] for span in spans]),
        )
        for n in range(len(domain))
    )


def ends(node: Node, cases: Mapping[Node, Sequence[Case]]) -> tuple[tuple[Expr, Expr], ...]:
    """Per dim, the first step at which a node may have a value and the one after the last."""
    if node.op is RECURRENT:
        return hull(node.domain, cases[node])
    return tuple((constant(0), d.bound) for d in node.domain)


def defined(cases: Sequence[Case]) -> Condition:
    """Where any of the cases defines a value."""
    return disjunction(case.region for case in cases)


def by_case(cases: Sequence[Case]) -> Iterator[tuple[Case, Condition]]:
    """The cases, each with the points where it defines the value: where it applies, and none before it does."""
    earlier: list[Condition] = []
    for case in cases:
        yield case, conjunction([case.region, *(~e for e in earlier)])
        earlier.append(case.region)


def _least(candidates: Sequence[Expr]) -> Expr:
    """The one that is never above the others, where there is one: 0 rather than min(0, T - 1)."""
    known = (c for c in candidates if all(at_least(other, c) for other in candidates))
    chosen = next(known, None)
    return minimum(*candidates) if chosen is None else chosen


def _greatest(candidates: Sequence[Expr]) -> Expr:
    known = (c for c in candidates if all(at_least(c, other) for other in candidates))
    chosen = next(known, None)
    return maximum(*candidates) if chosen is None else chosen
