"""Two parts as one XLA program: the last one of a loop's body, and the first one of the next iteration.

With an environment in Python, what follows a call and what comes before the next one are so started together.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from tempo.backends.jax.state import State
from tempo.graph.node import Node
from tempo.schedule.looptree import BlockSteps
from tempo.schedule.script import Part
from tempo.symbolic import Bound, Dim

if TYPE_CHECKING:
    from tempo.backends.jax.parts import Parts

At = Mapping[Dim, int | BlockSteps]


@dataclass(frozen=True)
class Joint:
    """An XLA program for the last part of a loop's body and the first one of the next iteration."""

    last: Part
    first: Part
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    kept: tuple[Any, ...]
    """What it reads and does not write."""
    changed: tuple[Any, ...]
    """What it reads and writes."""
    over: tuple[Any, ...]
    """What is needed no more after it."""
    rooms: Mapping[Node, tuple[int, ...]]
    function: Any

    def is_last(self, at: At) -> bool:
        """Whether there is no next iteration."""
        loop = self.last.outer[-1]
        return bool(loop.at(loop.steps[-1]) == at[loop.dim])


def join(parts: Parts, last: Part) -> Joint | None:
    """The last part of a loop's body with the first one, if they can be one program."""
    if last not in parts.calls.around:
        return None
    first = parts.calls.around[last]
    a, b = parts[last], parts[first]
    if any((*part.gathered, *part.slices, *part.offloaded) for part in (a, b)):
        return None
    if any(a.rooms[key] != b.rooms[key] for key in a.rooms.keys() & b.rooms.keys()):
        return None
    reads = (*a.reads, *(key for key in b.reads if key not in {*a.reads, *a.writes}))
    over = {*parts.over[last], *parts.over[first]}
    writes = tuple(key for key in dict.fromkeys((*a.writes, *b.writes)) if key not in over)
    kept = tuple(key for key in reads if key not in writes)
    changed = tuple(key for key in reads if key in writes)

    @functools.partial(jax.jit, donate_argnums=1)
    def function(kept_values: Any, changed_values: Any, steps: Any) -> Any:
        there, here = ({number: row[n] for n, number in enumerate(outer)} for row in steps)
        state: State = dict(zip((*kept, *changed), (*kept_values, *changed_values), strict=True))
        a.execute(state, there, None, {})
        # What was computed just now was so at other steps.
        state = {key: value for key, value in state.items() if isinstance(key, Node | Bound)}
        _, _, arguments = b.execute(state, here, None, {})
        return [state[key] for key in writes], arguments

    outer = tuple(dict.fromkeys(loop.dim.number for loop in last.outer))
    return Joint(last, first, reads, writes, kept, changed, tuple(over), {**a.rooms, **b.rooms}, function)
