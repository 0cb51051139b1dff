"""From a program to what runs: analysis, passes, a plan, and XLA programs that keep to it."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tempo.analysis import check_program
from tempo.errors import BudgetError
from tempo.graph.fingerprint import identity
from tempo.graph.node import Graph
from tempo.passes import apply_parallel_passes, apply_passes, apply_sequential_passes, with_own_emits
from tempo.passes.pinned import split_fixed_reads
from tempo.passes.placed import place_at_steps
from tempo.passes.ranges import tile_ranges
from tempo.passes.rolling import Rolled, roll
from tempo.schedule.buckets import CPU_SPEED, GPU_SPEED, Buckets
from tempo.schedule.cost import RATES
from tempo.schedule.decisions import decisions, rolls
from tempo.schedule.nesting import ScheduleError
from tempo.schedule.plan import Plan
from tempo.schedule.planning import Planned, Planner, show_bytes
from tempo.schedule.script import Script
from tempo.schedule.unrolling import worth_unrolling
from tempo.symbolic import Dim

if TYPE_CHECKING:
    from tempo.backends.jax.library import Library
    from tempo.backends.jax.machine import JaxMachine

# How often a program is compiled again because XLA takes more memory than was planned.
MOST_ROUNDS = 6

# The least that is planned for then, of what would do if all that XLA takes got less with the stores.
LEAST_AIM = 0.95

# Where stores take this part of a device's memory, what XLA takes is looked at.
NEAR = 4


@dataclass(frozen=True)
class Request:
    """What is to be compiled, and how."""

    source: Graph
    numbers: Mapping[Any, int]
    backend: str
    device: str | None
    parallel: bool
    """Whether many steps at once take no longer than one."""
    skip: Container[str]
    """Passes that are left out."""
    goal: str
    wanted: Plan
    chooses: bool
    """Whether Tempo chooses the plan."""
    budget: int | None
    """The bytes that a program may take on the device, if there is a limit."""
    promised: bool
    """Whether the budget is a promise to the user, and not just what the device has."""

    @property
    def is_all_there_is(self) -> bool:
        """Whether the budget is the machine's memory, beside which there is none for stores in host memory."""
        return not (self.parallel or self.promised)

    @property
    def left(self) -> int | None:
        """The bytes that the device has, if they are what decides."""
        return None if self.promised or self.goal == "smallest" else self.budget

    @cached_property
    def text(self) -> str | None:
        """A text that two requests share if they give the same program, however much memory their devices have beyond
        what it takes; None if nobody can tell."""
        # A plan names the tensors that are in host memory, by names that the identity does not have.
        program = None if self.skip or self.wanted.host else identity(self.source)
        if program is None:
            return None
        bounds = sorted((bound.name, number) for bound, number in self.numbers.items())
        plan = (self.goal, self.wanted.settings(), self.chooses, self.budget if self.promised else None)
        return repr((program, bounds, self.device, self.parallel, plan))


class Seconds(dict[str, float]):
    """The time that phases took: ``with seconds.of("plan"): ...``."""

    def of(self, phase: str) -> _Timer:
        return _Timer(self, phase)


class _Timer:
    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self.seconds = seconds
        self.phase = phase

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + time.perf_counter() - self.start


class Compilation:
    """A program with its loops and stores, and for JAX a ``machine`` that runs them."""

    def __init__(self, request: Request, seconds: Seconds, library: Library | None = None) -> None:
        self.request = request
        self.seconds = seconds
        self.library = library
        self.rolls: tuple[Rolled, ...] | None = ()
        """What was rolled; None if that left no loops."""
        self.peak = 0
        """The bytes that a device must have left for the same plan to be chosen again; more than there are, if it was
        chosen because of what this one had left."""
        with seconds.of("analysis"):
            check_program(request.source, request.numbers)
        planner = self.planned(request.wanted)
        if request.chooses and request.parallel:
            unroll = worth_unrolling(request.source, self.graph, self.schedule, self.storage)
            if unroll:
                planner = self.planned(replace(request.wanted, unroll=unroll))
        # A device's own memory is no promise, but there is no more of it: XLA may take a few times what is planned, and
        # what a single program takes is known before it runs in any case.
        near = request.budget is not None and self.storage.peak > request.budget // NEAR
        if request.backend == "jax" and (request.promised or near or self.machine.compiles_at_once):
            self.fit(planner)

    @cached_property
    def machine(self) -> JaxMachine:
        from tempo.backends.jax.machine import JaxMachine

        request = self.request
        return JaxMachine(
            request.source,
            self.graph,
            self.schedule,
            self.storage,
            request.numbers,
            self.script,
            request.device,
            request.parallel,
            request.wanted.kernels,
            self.library,
        )

    def planned(self, wanted: Plan) -> Planner:
        """Passes, loops and stores for what is wanted."""
        request = self.request
        with self.seconds.of("passes"):
            unrolled = wanted.unrolled(request.source)
            passed = apply_passes(request.source, request.skip, None, request.numbers, unrolled)
            rolled, found = roll(passed) if wanted.roll else (passed, ())
            self.graph = self.finished(rolled, unrolled.union(one.dim for one in found))
        with self.seconds.of("plan"):
            planner = self.without_tangles(self.graph, wanted)
            if wanted.roll:
                self.rolls = None if found and planner is None else found
            if planner is None and found:
                self.graph = self.finished(passed, unrolled)
                planner = self.without_tangles(self.graph, wanted)
            planner = planner or self.untangled(wanted) or self.planner(self.graph, wanted)
            if request.goal == "smallest":
                self.take(planner.smallest())
            elif request.budget is None:
                self.take(planner.fastest())
            else:
                try:
                    chosen = planner.within(request.budget)
                except BudgetError as error:
                    raise self.too_large(*self.least(planner, error)) from None
                if request.left is not None:
                    fits = chosen is planner.fastest()
                    self.peak = max(self.peak, chosen.storage.peak if fits else sys.maxsize)
                self.take(chosen)
        return planner

    def finished(self, graph: Graph, unrolled: frozenset[Dim]) -> Graph:
        """A graph after the last passes."""
        if self.request.parallel:
            graph = apply_parallel_passes(graph, self.request.skip, self.request.numbers, unrolled)
        elif self.request.backend == "jax":
            graph = apply_sequential_passes(graph, self.request.skip)
        return with_own_emits(graph)

    def without_tangles(self, graph: Graph, wanted: Plan) -> Planner | None:
        """What plans a graph, if there are loops for all of it."""
        try:
            planner = self.planner(graph, wanted)
            return None if planner.fastest().schedule.tangled else planner
        except ScheduleError:
            return None

    def planner(self, graph: Graph, wanted: Plan) -> Planner:
        source, numbers, parallel = self.request.source, self.request.numbers, self.request.parallel
        speed = GPU_SPEED if parallel else CPU_SPEED
        buckets = Buckets(wanted.cuts(source), speed)
        rates = RATES["gpu" if parallel else "cpu"]
        if self.request.backend != "jax":
            rates = replace(rates, memory=replace(rates.memory, reads_blocks_beside=False, grows_stores=False))
        if self.request.is_all_there_is:
            rates = replace(rates, host=False)
        # What is in host memory is named in terms of what is computed again.
        first = replace(wanted, host=(), recompute=False) if wanted.recompute else wanted
        unrolled = wanted.unrolled(source)
        graph, tiles = tile_ranges(graph, wanted.ranges(source), numbers)
        planner = Planner(graph, numbers, first, unrolled, buckets, source, rates, tiles)
        return planner.again(wanted) if wanted.recompute else planner

    def untangled(self, wanted: Plan) -> Planner | None:
        """What plans the program with some rows as tensors of their own, or what lacks a dim at a step of it, if that
        is what it takes to find loops."""
        for change in (split_fixed_reads, partial(place_at_steps, numbers=self.request.numbers)):
            graph = change(self.graph)
            if graph is not self.graph and (planner := self.without_tangles(graph, wanted)) is not None:
                return planner
        return None

    def least(self, planner: Planner, error: BudgetError) -> tuple[str, int]:
        """What to say of a program that no plan makes fit, and the memory that it would fit into: with JAX, as XLA
        compiles it, which may take more than was planned."""
        self.take(planner.least())
        if self.request.backend == "jax" and self.request.promised and not self.machine.calls:
            with self.seconds.of("XLA"):
                taken = sum(self.machine.memory().values())
            if taken > error.smallest:
                return f"{error.message}, and compiled {show_bytes(taken)}", taken
        return error.message, error.smallest

    def take(self, planned: Planned) -> None:
        self.chosen = planned
        self.graph, self.schedule, self.storage = planned.graph, planned.schedule, planned.storage
        rolled = rolls(self.rolls, self.storage) if planned.plan.roll else ()
        self.plan = replace(planned.plan, decisions=(*rolled, *decisions(planned)))
        self.script = Script(self.graph, self.schedule, self.storage)
        self.__dict__.pop("machine", None)

    def fit(self, planner: Planner) -> None:
        """Compile with XLA, and plan again for less where it takes more than was planned."""
        budget = self.request.budget
        # What host functions return is not known before they do.
        if budget is None or self.machine.calls:
            return
        target = budget
        for rounds in itertools.count(1):
            with self.seconds.of("XLA"):
                taken = self.machine.taken(budget)
            if taken <= budget:
                return
            # At last the least there is: what an error before this one may have named.
            target = less(min(target, self.storage.peak), taken, budget) if rounds + 1 < MOST_ROUNDS else 0
            with self.seconds.of("plan"):
                try:
                    planned = planner.within(target)
                except BudgetError:
                    planned = planner.least()
            if rounds == MOST_ROUNDS or planned is self.chosen:
                smallest = sum(self.machine.memory().values())
                raise self.too_large(
                    f"program '{self.request.source.name}' does not fit into {show_bytes(budget)}: "
                    f"compiled, it takes {show_bytes(smallest)}",
                    smallest,
                )
            self.take(planned)
            self.peak = sys.maxsize

    def too_large(self, message: str, smallest: int) -> BudgetError:
        """With a hint at what there is more of: the budget, what JAX takes of a device, or what is left to others."""
        hint = f"give memory={smallest}, or smaller bounds"
        if self.request.is_all_there_is:
            hint = f"give smaller bounds, or memory={smallest}: without it, 0.75 of the machine's memory is the limit"
        elif not self.request.promised:
            hint = (
                "give smaller bounds, or JAX more of the device, of which it takes 0.75: XLA_PYTHON_CLIENT_MEM_FRACTION"
            )
        return BudgetError(message, smallest=smallest, hint=hint)


def less(planned: int, taken: int, budget: int) -> int:
    """What to plan for, where a plan takes more than a budget when it is compiled: less by what is too much, as if all
    that XLA takes beyond the plan stayed. (Of REINFORCE's it does, to a thousandth.) To miss the budget by a little
    once more costs a round of compilations."""
    return max(planned - (taken - budget), int(LEAST_AIM * planned * budget / taken))
