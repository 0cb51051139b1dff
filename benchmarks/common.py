"""What benchmarks share: the command line, a device, programs ready to run, interleaved timing, results as JSON lines.

A benchmark compares two systems in one process. Both get inputs that already lie on the device, both are compiled and
warm before the clock starts, and their runs alternate, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import tempo as tp
from tempo.runtime.executable import Executable

Array = Any
Run = Callable[[], Any]

# The phases of a compilation that are ours, from the checks to the storage plan.
TRACE_PHASES = ("analysis", "passes", "plan")


# -- the command line and the device -----------------------------------------------------------------------------


def arguments(description: str, cases: Sequence[str]) -> argparse.Namespace:
    """``--quick``, ``--device`` and ``--only``, which every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="where to run (default: JAX's own choice)")
    parser.add_argument("--only", choices=cases, metavar="CASE", help=f"one of: {', '.join(cases)}")
    return parser.parse_args()


def use_device(name: str | None) -> Any:
    """Make a device the one that everything runs on."""
    # Compile times are results here, so that compiled programs must not come from the disk.
    jax.config.update("jax_enable_compilation_cache", False)
    # Our products are exact in float32; on a GPU, JAX's default would be TF32, which is faster and less exact.
    jax.config.update("jax_default_matmul_precision", "highest")
    if name == "cpu":
        jax.config.update("jax_platforms", "cpu")
    try:
        device = jax.devices(name)[0]
    except RuntimeError as error:
        sys.exit(f"there is no device '{name}' here: {error}")
    jax.config.update("jax_default_device", device)
    return device


def each(cases: Iterable[str], do: Callable[[str], None]) -> list[str]:
    """Do something with one case after another; those that failed."""
    failed = []
    for case in cases:
        print(f"{case} ...", file=sys.stderr, flush=True)
        try:
            do(case)
        except Exception:
            traceback.print_exc()
            failed.append(case)
    return failed


# -- programs that are ready to run ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """A compiled program with its inputs on the device; calling it checks them and gives its outputs, on the device."""

    call: Run
    program: Run
    """The XLA program alone, without what our runtime does before it starts."""
    figures: Mapping[str, Any]
    """What is known before it runs: compile times, bytes."""

    def __call__(self) -> dict[str, Array]:
        found: dict[str, Array] = jax.block_until_ready(self.call())
        return found


def compile_tempo(
    prog: tp.Program,
    bounds: Mapping[Any, int],
    arrays: Mapping[str, Array],
    device: Any,
    plan: tp.Plan | None = None,
    skip: Sequence[str] = (),
) -> Ready:
    """One of our programs, without some passes."""
    run = Executable(prog.graph, bounds, device=device.platform, plan=plan, skip=skip)
    whole = run._whole
    memory = whole.memory()
    figures = {
        "dispatches": count_dispatches(run, arrays),
        "trace_s": sum(run.seconds[phase] for phase in TRACE_PHASES),
        "xla_s": run.seconds["XLA"],
        "bytes_stores": sum(store.bytes for store in run.storage.stores.values()),
        "bytes_planned": run.storage.peak,
        "bytes_library": run.storage.library,
        "bytes_xla": memory["temporaries"] + memory["outputs"] + memory["inputs"],
    }
    # Programs leave inputs out that nothing needs.
    needed = {name: arrays[name] for name in whole.place.inputs}
    return Ready(
        call=lambda: run._run_whole(whole, None, arrays),
        program=lambda: jax.block_until_ready(whole.compiled(needed)),
        figures=figures,
    )


def compile_jax(function: Callable[..., dict[str, Array]], arrays: Mapping[str, Array]) -> Ready:
    """A function of JAX arrays by name."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(**arrays).compile()
    seconds = time.perf_counter() - start

    def call() -> dict[str, Array]:
        found: dict[str, Array] = jax.block_until_ready(compiled(**arrays))
        return found

    return Ready(call, call, {"xla_s": seconds, "bytes_xla": program_bytes(compiled)})


def program_bytes(compiled: Any) -> int:
    """What XLA says that a program takes, with its inputs and outputs."""
    found = compiled.memory_analysis()
    sizes = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return int(sizes + found.temp_size_in_bytes)


def device_bytes(run: Executable) -> int:
    """What XLA says that a run takes on the device."""
    return sum(run._machine.memory().values())


def count_dispatches(run: Executable, arrays: Mapping[str, Array]) -> int:
    """How many XLA programs Python starts in one run."""
    whole, calls = run._whole, 0
    compiled = whole.compiled

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return compiled(*given)

    whole.compiled = counted
    try:
        jax.block_until_ready(run._run_whole(whole, None, arrays))
    finally:
        whole.compiled = compiled
    return calls


def relative_error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference of any output, relative to that output's largest value."""
    if set(found) != set(expected):
        raise ValueError(f"outputs differ: {sorted(found)} and {sorted(expected)}")
    worst = 0.0
    for name, array in expected.items():
        a, b = np.asarray(found[name], np.float64), np.asarray(array, np.float64)
        if a.shape != b.shape:
            raise ValueError(f"output {name} has shape {a.shape}, expected {b.shape}")
        difference = np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-30)
        # A nan would pass every comparison with a tolerance.
        worst = max(worst, float(difference) if np.isfinite(difference) else math.inf)
    return worst


# -- time --------------------------------------------------------------------------------------------------------


def interleaved(
    runs: Mapping[str, Run], seconds: float, least_rounds: int = 7, most_rounds: int = 201, turn: float = 0.0
) -> dict[str, list[float]]:
    """The milliseconds of each run of several systems, A B A B ..., after one that is not counted. What takes less than
    a ``turn``, in seconds, runs as often in a row as takes so long, A A A B B A A A ...: a call of a millisecond that
    comes after another system's is one with none of its own things in any cache."""
    for run in runs.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    begin = time.perf_counter()
    for n in range(most_rounds):
        if n >= least_rounds and time.perf_counter() - begin > seconds:
            break
        for name, run in runs.items():
            end = time.perf_counter() + turn
            while True:
                start = time.perf_counter()
                run()
                found[name].append(1e3 * (time.perf_counter() - start))
                if time.perf_counter() >= end:
                    break
    return found


def least(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The shortest time of each system: on a shared machine it says most about the program itself."""
    return {name: min(ms) for name, ms in times.items()}


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(ms) for name, ms in times.items()}


# -- results -----------------------------------------------------------------------------------------------------


class Results:
    """Records, printed as JSON lines when they come and as a table when all are there."""

    def __init__(self, bench: str, **common: Any) -> None:
        self.bench = bench
        self.common = common
        self.records: list[dict[str, Any]] = []

    def add(self, case: str, system: str, **figures: Any) -> None:
        record = {"bench": self.bench, "case": case, "system": system, **rounded(figures), **self.common}
        self.records.append(record)
        print(json.dumps(record), flush=True)


def rounded(value: Any) -> Any:
    """Floats with the digits that a measurement has."""
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown: words to the left, numbers to the right."""
    cells = [[show(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join([first, *others])} |"

    rule = [("-" * w) if n == 0 else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
    return "\n".join([line(heads), line(rule), *map(line, cells)])


def show(value: Any) -> str:
    """A number as a person reads it."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
