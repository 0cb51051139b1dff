"""Choosing a plan: as much at once as fits into memory."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from tempo.errors import BudgetError, ProgramError
from tempo.graph.node import Graph, Node
from tempo.passes.ranges import tile_ranges
from tempo.schedule.buckets import Buckets
from tempo.schedule.cost import RATES, Rates, seconds
from tempo.schedule.loops import Schedule, Scheduler
from tempo.schedule.offload import offload, traffic
from tempo.schedule.plan import Plan, store_names
from tempo.schedule.recompute import recomputing, worth_recomputing
from tempo.schedule.storage import Storage, plan_storage
from tempo.symbolic import Dim

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
UNITS |= {"TB": 10**12, "TIB": 2**40}

# A plan for little memory takes up to this much more than it has to, for larger blocks.
SLACK = 1.1

# Each tile that is tried is this much smaller than the one before.
TILE_FACTOR = 4

# What Python takes to start a part of a program, and how many bytes a second go between host and device.
PART_SECONDS = 1e-3
HOST_SPEED = 1e10


@dataclass(frozen=True)
class Planned:
    """A plan and what comes of it."""

    plan: Plan
    graph: Graph
    schedule: Schedule
    storage: Storage
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why stores are in host memory that the plan that was wanted does not name."""
    tiled_because: str = ""
    """Why ranges are in tiles, if the plan that was wanted has none."""


Fitting = Callable[[Mapping[str, int], int], Planned | None]
"""Gives a plan with some blocks that fits into some bytes, if there is one."""


def bytes_of(memory: int | str) -> int:
    """A number of bytes: ``"8GiB"``, ``"500 MB"``, ``10**9``."""
    if isinstance(memory, int | np.integer) and not isinstance(memory, bool) and memory > 0:
        return int(memory)
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
            number = size / factor
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"
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
        source: Graph | None = None,
        rates: Rates = RATES["cpu"],
        tiles: Mapping[Dim, Dim] = MappingProxyType({}),
    ) -> None:
        """``source`` is the graph as the user wrote it, if passes have made another one of it; ``rates`` are those of
        the device; ``tiles`` are dims of the graph that count tiles of ranges, with the dims of the ranges."""
        self.graph = graph
        self.tiles = tiles
        self.source = source or graph
        self.rates = rates
        self.hosted = wanted.in_host_memory(self.source, graph)
        self.buckets = buckets
        self.unrolled = unrolled
        self.numbers = numbers
        self.wanted = wanted
        self.scheduler = Scheduler(graph, numbers)
        self.names = store_names(graph)
        self.scheduled: dict[Any, tuple[Schedule, Storage]] = {}
        self.found: dict[Any, Planned] = {}

    def planned(self, blocks: Mapping[str, int], host: Sequence[Node] = ()) -> Planned:
        """What comes of the plan that is wanted, with blocks of further dims, and further stores in host memory."""
        key = tuple(sorted(blocks.items())), frozenset(host)
        if key not in self.found:
            plan = replace(self.wanted, blocks={**blocks, **self.wanted.blocks})
            schedule, stores = self.on_device(plan)
            hosted = {node: self.names[node] for node in host if node not in self.hosted}
            storage = offload(self.graph, schedule, stores, {**self.hosted, **hosted})
            plan = replace(plan, host=(*plan.host, *hosted.values()))
            self.found[key] = Planned(plan, self.graph, schedule, storage)
        return self.found[key]

    def on_device(self, plan: Plan) -> tuple[Schedule, Storage]:
        """Loops, and stores that are all on the device."""
        key = tuple(sorted(plan.blocks.items()))
        if key not in self.scheduled:
            schedule = self.scheduler.schedule(plan.sizes(self.graph), self.unrolled, self.buckets, self.tiles)
            self.scheduled[key] = schedule, plan_storage(self.graph, schedule, self.rates.memory)
        return self.scheduled[key]

    def fastest(self) -> Planned:
        """Everything at once that can be."""
        return self.planned({})

    def smallest(self) -> Planned:
        """As little memory as possible without that of the host, or a tenth more for larger blocks."""
        planners = [self, *self.tilings[-1:]]
        steps = [planner.planned(blocks) for planner in planners for blocks in planner.single_steps()]
        least = min(self.fastest(), *steps, key=lambda found: found.storage.peak)
        return self.within(int(least.storage.peak * SLACK))

    def within(self, budget: int) -> Planned:
        """As much at once as fits into some bytes; if nothing does, with ranges in tiles, values computed again or
        stores in host memory, whichever takes less time; if that does not do either, with several of them."""
        fastest = self.fastest()
        if fastest.storage.peak <= budget:
            return fastest
        if (found := self.fitting(budget, self.without_host)) is not None:
            return found
        again = self.recomputing
        alternatives = [self.quickest(budget, self.with_host)]
        if again is not None:
            alternatives.append(again.fitting(budget, again.without_host))
        alternatives.append(self.in_tiles(budget))
        possible = [found for found in alternatives if found is not None]
        if not possible and again is not None and (both := again.quickest(budget, again.with_host)) is not None:
            possible = [both]
        if not possible and self.tilings and (found := self.tilings[-1].if_any_fits(budget)) is not None:
            possible = [self.because_of(found, budget)]
        if possible:
            return min(possible, key=self.seconds)
        smallest = self.least()
        host = " and stores in host memory" if smallest.plan.host != self.wanted.host else ""
        raise BudgetError(
            f"program '{self.graph.name}' does not fit into {show_bytes(budget)}: "
            f"with the smallest blocks{host} it takes {show_bytes(smallest.storage.peak)}",
            smallest=smallest.storage.peak,
            hint=f"give memory={smallest.storage.peak}, or smaller bounds",
        )

    def if_any_fits(self, budget: int) -> Planned | None:
        """``within``, but None if nothing fits."""
        try:
            return self.within(budget)
        except BudgetError:
            return None

    def in_tiles(self, budget: int) -> Planned | None:
        """The plan that takes least time of those with ranges in tiles that fit without other measures."""
        best: Planned | None = None
        # Where tiles and blocks of one step do not fit, no larger ones will.
        if not any(p.without_host(p.single_steps()[-1], budget) for p in self.tilings[-1:]):
            return None
        for planner in self.tilings:
            found = planner.fitting(budget, planner.without_host)
            if found is not None and best is not None and self.seconds(found) >= self.seconds(best):
                break
            best = found or best
        return best and self.because_of(best, budget)

    def because_of(self, found: Planned, budget: int) -> Planned:
        """A plan with the reason why it has tiles."""
        return replace(found, tiled_because=f"blocks alone do not fit into {show_bytes(budget)}")

    @cached_property
    def tilings(self) -> list[Planner]:
        """What plans the program with ranges in smaller and smaller tiles, if there are any to be tiled."""
        # With tiles, stores without names would be called something else.
        if self.wanted.tiles or self.wanted.host not in ((), ("*",)):
            return []
        steps = {d: d.bound.evaluate(self.numbers) for d in self.graph.dims if d.name in self.dims()}
        # Larger tiles are of fewer ranges.
        if not tile_ranges(self.graph, dict.fromkeys(steps, 1), self.numbers)[1]:
            return []
        part, found = 1, []
        while part < max(steps.values()):
            part *= TILE_FACTOR
            sizes = {d: max(count // part, 1) for d, count in steps.items()}
            graph, tiles = tile_ranges(self.graph, sizes, self.numbers)
            if tiles:
                plan = replace(self.wanted, tiles={d.name: sizes[d] for d in dict.fromkeys(tiles.values())})
                settings = plan, self.unrolled, self.buckets, self.source, self.rates, tiles
                found.append(Planner(graph, self.numbers, *settings))
        return found

    def fitting(self, budget: int, fits: Fitting) -> Planned | None:
        """The plan with the largest blocks of those that fit."""
        for blocks in ({}, *self.single_steps()):
            found = fits(blocks, budget)
            if found is not None:
                return self.enlarged(found, blocks, budget, fits)
        return None

    def quickest(self, budget: int, fits: Fitting) -> Planned | None:
        """A plan that fits, with larger blocks in place of those of one step that take least time: where an outer loop
        computes single steps, random draws of all of them are not sent to the host and back."""
        steps = self.single_steps()
        found = [(planned, blocks) for blocks in steps if (planned := fits(blocks, budget)) is not None]
        if not found:
            return None
        planned, blocks = min(found, key=lambda pair: self.seconds(pair[0]))
        return self.enlarged(planned, blocks, budget, fits)

    @cached_property
    def recomputing(self) -> Planner | None:
        """What plans the program in which values are computed again, if any are worth it."""
        found = None if self.wanted.recompute else self.again(replace(self.wanted, recompute=True))
        return None if found is None or found.graph is self.graph else found

    def again(self, wanted: Plan) -> Planner:
        """What plans the program in which values are computed again."""
        blocks = {**self.single_steps()[0], **self.wanted.blocks}
        schedule, storage = self.on_device(replace(self.wanted, blocks=blocks))
        again = worth_recomputing(self.graph, schedule, storage)
        graph = recomputing(self.graph, again) if again else self.graph
        return Planner(graph, self.numbers, wanted, self.unrolled, self.buckets, self.source, self.rates, self.tiles)

    def least(self) -> Planned:
        """The plan that takes least memory of those that were looked at."""
        others = [] if self.recomputing is None else [*self.recomputing.found.values()]
        others += [planned for planner in self.tilings for planned in planner.found.values()]
        return min([*self.found.values(), *others], key=lambda planned: planned.storage.peak)

    def without_host(self, blocks: Mapping[str, int], budget: int) -> Planned | None:
        """The plan with these blocks, if it fits."""
        found = self.planned(blocks)
        return found if found.storage.peak <= budget else None

    def with_host(self, blocks: Mapping[str, int], budget: int) -> Planned | None:
        """A plan with these blocks that fits because stores are in host memory, the largest ones and no more than must
        be there."""
        if not self.rates.host:
            return None
        schedule, stores = self.on_device(replace(self.wanted, blocks={**blocks, **self.wanted.blocks}))
        everything = offload(self.graph, schedule, stores, self.names)
        movable = sorted((s for s in everything.stores.values() if s.host), key=lambda store: -store.bytes)
        nodes = [store.node for store in movable]

        def fits(count: int) -> bool:
            return self.planned(blocks, nodes[:count]).storage.peak <= budget

        if not nodes or not fits(len(nodes)):
            return None
        found = self.planned(blocks, nodes[: bisect.bisect_left(range(len(nodes)), True, key=fits)])
        reason = f"the rest fits into {show_bytes(budget)}"
        return replace(found, reasons={name: reason for name in found.plan.host if name not in self.wanted.host})

    def enlarged(self, found: Planned, blocks: Mapping[str, int], budget: int, fitting: Fitting) -> Planned:
        """The plan that takes least time of those that fit with larger blocks of some dims."""
        steps = {d.name: d.bound.evaluate(self.numbers) for d in self.graph.dims if d.name in blocks}
        for name in sorted(blocks, key=self.depth):
            without = {other: size for other, size in blocks.items() if other != name}
            if (whole := fitting(without, budget)) is not None:
                found, blocks = whole, without
                continue
            larger = blocks
            # A block of all steps may fit where no blocks at all do not.
            while larger[name] < steps[name]:
                larger = {**larger, name: 2 * larger[name]}
                if (next_one := fitting(larger, budget)) is None:
                    break
                if self.seconds(next_one) <= self.seconds(found):
                    found, blocks = next_one, larger
        return found

    def seconds(self, planned: Planned) -> float:
        """How long a run takes, roughly: to compute, and for stores in host memory the time that Python takes for every
        block, and for every byte moved."""
        found = traffic(planned.graph, planned.schedule, planned.storage)
        computing = seconds(planned.graph, planned.schedule, planned.storage, self.rates)
        return computing + found.parts * PART_SECONDS + found.moved / HOST_SPEED

    def single_steps(self) -> list[dict[str, int]]:
        """Blocks of one step: of the innermost dims that have loops anyway, of more and more of these, of all dims."""
        free = [name for name in self.dims() if name not in self.wanted.blocks]
        looped = sorted((name for name in free if self.depth(name)), key=self.depth)
        return [*(dict.fromkeys(looped[:count], 1) for count in range(1, len(looped) + 1)), dict.fromkeys(free, 1)]

    def depth(self, name: str) -> int:
        """The order in which dims get larger blocks: from the inside out, and last those without loops."""
        places = (place for places in self.fastest().schedule.places.values() for place in places)
        depths = [n for place in places for n, (family, _) in enumerate(place) if family.name == name]
        return -max(depths) - 1 if depths else 0

    def dims(self) -> list[str]:
        """The dims of which there may be blocks: not those that Tempo made, which a plan could not name."""
        declared = {
            d.bound: d.name for d in reversed(self.source.dims)
        }  # others that have the same bound come after it
        return [
            d.name
            for d in self.graph.dims
            if d.origin is d
            and d.name in declared.values()
            and d not in self.unrolled
            and d.bound.evaluate(self.numbers) > 1
        ]
