"""Choosing a plan: as much at once as fits into memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tempo.errors import BudgetError, ProgramError
from tempo.graph.node import Graph, Node
from tempo.schedule.buckets import Buckets
from tempo.schedule.loops import Schedule, Scheduler
from tempo.schedule.offload import offload
from tempo.schedule.plan import Plan
from tempo.schedule.storage import Storage, plan_storage
from tempo.symbolic import Dim

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

# A plan for little memory takes up to this much more than it has to, for larger blocks.
SLACK = 1.1


@dataclass(frozen=True)
class Planned:
    """A plan and what comes of it."""

    plan: Plan
    schedule: Schedule
    storage: Storage


def bytes_of(memory: int | str) -> int:
    """A number of bytes: ``"8GiB"``, ``"500 MB"``, ``10**9``."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
        if found and found[2].upper() in UNITS and float(found[1]) > 0:
            return int(float(found[1]) * UNITS[found[2].upper()])
    raise ProgramError(
        f"memory = {memory!r}: not an amount of memory", hint='give bytes or a text: 10**9, "500MB", "8GiB"'
    )


def show_bytes(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


class Planner:
    """Finds plans for a graph."""

    def __init__(
        self,
        graph: Graph,
        numbers: Mapping[Any, int],
        wanted: Plan,
        unrolled: frozenset[Dim] = frozenset(),
        buckets: Buckets | None = None,
        hosted: Mapping[Node, str] = MappingProxyType({}),
    ) -> None:
        self.graph = graph
        self.hosted = hosted
        self.buckets = buckets
        self.unrolled = unrolled
        self.numbers = numbers
        self.wanted = wanted
        self.scheduler = Scheduler(graph, numbers)
        self.found: dict[tuple[tuple[str, int], ...], Planned] = {}

    def planned(self, blocks: Mapping[str, int]) -> Planned:
        """What comes of the plan that is wanted, with blocks of further dims."""
        key = tuple(sorted(blocks.items()))
        if key not in self.found:
            plan = replace(self.wanted, blocks={**blocks, **self.wanted.blocks})
            schedule = self.scheduler.schedule(plan.sizes(self.graph), self.unrolled, self.buckets)
            stores = plan_storage(self.graph, schedule, self.numbers)
            self.found[key] = Planned(plan, schedule, offload(self.graph, schedule, stores, self.hosted))
        return self.found[key]

    def fastest(self) -> Planned:
        """Everything at once that can be."""
        return self.planned({})

    def smallest(self) -> Planned:
        """As little memory as possible, or a tenth more for larger blocks."""
        least = min(self.fastest(), *map(self.planned, self.single_steps()), key=lambda found: found.storage.peak)
        return self.within(int(least.storage.peak * SLACK))

    def within(self, budget: int) -> Planned:
        """As much at once as fits into some bytes."""
        fastest = self.fastest()
        if fastest.storage.peak <= budget:
            return fastest
        blocks = next((found for found in self.single_steps() if self.planned(found).storage.peak <= budget), None)
        if blocks is None:
            smallest = min(planned.storage.peak for planned in self.found.values())
            raise BudgetError(
                f"program '{self.graph.name}' does not fit into {show_bytes(budget)}: "
                f"with the smallest blocks it takes {show_bytes(smallest)}",
                smallest=smallest,
                hint=f"give memory={smallest}, or smaller bounds",
            )
        for name in sorted(blocks, key=self.depth):
            without = {other: size for other, size in blocks.items() if other != name}
            if self.planned(without).storage.peak <= budget:
                blocks = without
                continue
            while self.planned(larger := {**blocks, name: 2 * blocks[name]}).storage.peak <= budget:
                blocks = larger
        return self.planned(blocks)

    def single_steps(self) -> list[dict[str, int]]:
        """Blocks of one step: of the dims that have loops anyway; of all dims."""
        free = [name for name in self.dims() if name not in self.wanted.blocks]
        return [{name: 1 for name in free if self.depth(name)}, dict.fromkeys(free, 1)]

    def depth(self, name: str) -> int:
        """The order in which dims get larger blocks: from the inside out, and last those without loops."""
        places = (place for places in self.fastest().schedule.places.values() for place in places)
        depths = [n for place in places for n, (family, _) in enumerate(place) if family.name == name]
        return -max(depths) - 1 if depths else 0

    def dims(self) -> list[str]:
        """The dims of which there may be blocks."""
        return [
            d.name
            for d in self.graph.dims
            if d.origin is d
            # Dims that Tempo made have no names that a user could write.
            and d.name.isidentifier()
            and d not in self.unrolled
            and d.bound.evaluate(self.numbers) > 1
        ]


def free_memory(backend: str, device: str | None) -> int | None:
    """What a device has left, if it says so: a GPU does."""
    if backend != "jax":
        return None
    import jax

    try:
        found = (jax.devices(device) if device else jax.devices())[0].memory_stats()
    except RuntimeError:  # no such device, which is said elsewhere
        return None
    return None if not found or "bytes_limit" not in found else int(found["bytes_limit"] - found["bytes_in_use"])
