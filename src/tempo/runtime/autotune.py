"""Measuring a handful of plans and keeping the fastest."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tempo.errors import ProgramError
from tempo.graph.fingerprint import digest, fingerprint
from tempo.passes.rolling import roll
from tempo.runtime.executable import Executable, on_gpu
from tempo.schedule.plan import Plan
from tempo.schedule.planning import Planner

if TYPE_CHECKING:
    from tempo.program import Program

# A plan is run until this many seconds have passed, and at least this often.
SECONDS = 0.5
FEWEST_RUNS = 3


def autotune(
    prog: Program,
    bounds: Mapping[Any, int],
    inputs: Mapping[str, Any],
    backend: str = "jax",
    device: str | None = None,
    memory: int | str | None = None,
) -> Plan:
    """The fastest of a handful of plans, measured with these inputs: ``prog.compile(bounds, plan=tp.autotune(...))``.

    What was found is kept on disk (under ``TEMPO_CACHE_DIR``, or ``~/.cache/tempo``) and given back when the same
    program is tuned again for the same bounds and device.
    """
    first = Executable(prog.graph, bounds, backend, device, memory=memory)
    place = _place(first, memory)
    if place.exists():
        # It may be cut off, or have been written by another version of Tempo: then it is found anew.
        with contextlib.suppress(ProgramError):
            return Plan.load(place)
    seconds = [(_seconds(first, inputs), first.plan)]
    for plan in _candidates(first, on_gpu(backend, device)):
        try:
            run = Executable(prog.graph, bounds, backend, device, plan=plan, memory=memory)
        except (ProgramError, MemoryError):
            continue
        seconds.append((_seconds(run, inputs), run.plan))
    best = min(seconds, key=lambda timed: timed[0])[1]
    # That there is no room, or no permission, is no reason not to give it.
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        best.save(place)
    return best


def _candidates(first: Executable, gpu: bool) -> Iterator[Plan]:
    """Blocks of a quarter and of a sixteenth of all steps, of each dim that has a loop and of all of them; what is
    repeated in a loop; no loop as a kernel."""
    if roll(first.graph)[1]:
        yield Plan(roll=True)
    planner = Planner(first.graph, first.numbers, Plan())
    looped = [name for name in planner.dims() if planner.depth(name)]
    if looped and gpu:
        yield Plan(kernels=False)
    steps = {d.name: d.bound.evaluate(first.numbers) for d in first.graph.dims if d.name in looped}
    outer, *inner = sorted(looped, key=planner.depth, reverse=True) or [""]
    for part in (4, 16):
        for name in looped:
            if steps[name] > part:
                yield Plan({name: max(steps[name] // part, 1)})
        if inner:
            yield Plan({outer: 1, **{name: max(steps[name] // part, 1) for name in inner}})


def _seconds(run: Executable, inputs: Mapping[str, Any]) -> float:
    run(**inputs)
    times: list[float] = []
    while len(times) < FEWEST_RUNS or sum(times) < SECONDS:
        start = time.perf_counter()
        run(**inputs)
        times.append(time.perf_counter() - start)
    return median(times)


def _place(run: Executable, memory: int | str | None) -> Path:
    """The file for the best plan of a program, for its bounds, on a device."""
    home = Path(os.environ.get("TEMPO_CACHE_DIR") or Path.home() / ".cache" / "tempo")
    numbers = sorted((str(bound), number) for bound, number in run.numbers.items())
    return home / "plans" / f"{digest([fingerprint(run.source), str(numbers), run.where, str(memory)])}.json"
