"""What every program is checked for before it runs.

Each needed value must be defined, every read must be in range, and nothing may depend on itself. isl *proves* this for
almost every program, quickly and whatever the bounds. Where its sufficient conditions fail, an exact walk over the
program's points decides, and explains, in the user's names, what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from tempo.analysis.causality import is_causal
from tempo.analysis.coverage import is_covered
from tempo.analysis.relations import Relations
from tempo.analysis.stops import check_stops
from tempo.analysis.walk import walk
from tempo.given import check_bounds
from tempo.graph.node import Graph
from tempo.symbolic import Bound

__all__ = ["check_program"]


def check_program(graph: Graph, bounds: Mapping[Bound, int]) -> None:
    """Raise the error that describes the first thing wrong with a program, if there is any."""
    numbers = check_bounds(graph, bounds)
    check_stops(graph)
    relations = Relations(graph, numbers)
    if not (is_covered(relations) and is_causal(relations)):
        walk(graph, numbers)
