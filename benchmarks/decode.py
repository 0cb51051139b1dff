"""Decoding with language models: ours, JAX and PyTorch by hand, and the time that reading memory takes at least.

    python benchmarks/decode.py [--quick] [--device cpu|gpu] [--only CELLS] [--systems NAMES] [--plot FILE]
        [--seconds S] [--jobs N]
    python benchmarks/decode.py --table RECORDS ... [--plot FILE]
    python benchmarks/decode.py --planned [--only CELLS] [--plot FILE]

A cell is MODEL/BATCH/CONTEXT/causal|window: llama has the shape of Llama-3.2-3B in bfloat16 (window 1024), gpt2 that of
GPT-2 small in float32 (window 512), both with random weights. From a prompt of 16 tokens, greedily, as many tokens are
generated as fit into the context. ``--only`` takes cells or beginnings of their names, with commas between them, or
"all"; ``--table`` puts the records of several runs into one table. Systems of a cell run one after the other, on a GPU
each in a process of its own. ``--jobs`` takes several cells at a time, if they fit into the device's memory: what is
compiled at the same time is timed alone, and times to the first token are left out. ``--planned`` runs nothing: it says
how many bytes our stores have from which step on, for which neither a GPU nor weights are needed.

``ms`` is per token, the mean of the whole context. It is ``timed`` "whole" where that takes no more than ``--seconds``
(20), or the loop is one piece: from the prompt to the last token. Otherwise it is "sampled": the mean of a line through
the times of some steps at several places of the context, on a cache of zeros (``ms_sampled``, which all have;
``ms_of_pieces`` has the places).
``floor_ms`` is what reading weights and live keys and values takes at the bandwidth of a copy. Times to the first token
that a step has made (the second after the prompt), in seconds: ``first_cold_s`` with an empty disk cache,
``first_warm_s`` when it has the compiled programs, ``first_s`` when everything is in memory. ``bytes_needed`` is
weights and the cache at its largest, ``bytes_peak`` what the allocator says, ``bytes_xla`` what XLA says. ``lag`` is by
how much the first tokens' logits are behind the best ones of PyTorch's, at most, in standard deviations.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _decode_cells import PROMPT, Cell, Piece, grid
from _turns import Room, Turns
from common import Results, table, use_device
from jax.experimental.compilation_cache.compilation_cache import reset_cache

# The reference comes last: it looks at the tokens of the others.
SYSTEMS = ("tempo", "jax step", "jax loop", "torch compile", "torch eager")
REFERENCE = "torch eager"
OURS = "tempo"
# Few enough for about ten minutes on one H200, most of which are compilations.
DEFAULT = ("llama/4/4k", "llama/64/4k/causal", "gpt2/64/2k/causal")

CHECKED = 8
"""How many tokens of every system are compared."""
# Of the best of 100,000 normal logits, another one is five standard deviations away. In half precision the best two may
# change places.
TOLERANCES = {"bfloat16": 0.3, "float32": 1e-3}

# The whole context is generated if that takes no longer than this, unless told otherwise.
WHOLE_SECONDS = 20.0
SAMPLE_SECONDS = 0.3
QUICK_SECONDS = 0.02
FEW = 2
ROUNDS = 3


# What a cell takes at most, over what it needs, and beside it: a copy of the cache, what a library takes.
MOST_TAKEN, BESIDE = 1.5, 2e9


# -- one system of a cell ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How systems are measured."""

    device: str | None
    caches: str
    """A folder for what is compiled."""
    whole_seconds: float
    turns: Turns
    is_shared: bool
    """Whether others are on the machine at the same time, so that what a process takes to get ready says nothing."""


def measure(name: str, cell: Cell, way: Way, tokens: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """All figures of a system, and its first tokens; of the reference, also how well those of others agree."""
    try:
        system = started(name, cell, way)
        with way.turns.together():
            cold = first_seconds(system)
            system.settle()
        with way.turns.alone():
            start = time.perf_counter()
            system.generate(2)
            found: dict[str, Any] = {"first_s": time.perf_counter() - start}
            found["tokens"] = system.generate(CHECKED)
            found |= token_times(system, cell, way.whole_seconds) | system.figures()
            if name == REFERENCE:
                all_tokens = {**tokens, name: found["tokens"]}
                found["lags"] = {other: system.lags(first) for other, first in all_tokens.items()}
        if way.is_shared:
            return found
        system.forget()
        return {**found, "first_cold_s": cold, "first_warm_s": first_seconds(system)}
    except Exception as error:
        key, said = wrong(error)
        if key == "failed":
            traceback.print_exc()
        return {key: said}


def first_seconds(system: Any) -> float:
    """How long it takes to build a system and to make the first token that a step makes."""
    start = time.perf_counter()
    system.build()
    system.generate(2)
    return time.perf_counter() - start


def started(name: str, cell: Cell, way: Way) -> Any:
    """A system with its weights on the device."""
    framework, _, kind = name.partition(" ")
    if framework == "torch":
        import _decode_torch

        if kind == "compile":
            fastest = _decode_torch.fastest_attention(cell, way.device, way.turns)
            with way.turns.together():
                return _decode_torch.CompiledSystem(cell, way.device, *fastest)
        with way.turns.together():
            return _decode_torch.EagerSystem(cell, way.device)
    import _decode_jax
    import _decode_tempo

    where = use_device(way.device)
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", way.caches)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    reset_cache()  # JAX asks only once whether there is one
    if cell.config.dtype.itemsize < 4:
        jax.config.update("jax_default_matmul_precision", None)
    if not kind:
        with way.turns.together():
            return _decode_tempo.TempoSystem(cell, where)
    kinds = {"step": _decode_jax.StepSystem, "loop": _decode_jax.LoopSystem}
    fastest = _decode_jax.fastest_attention(cell, way.turns)
    with way.turns.together():
        return kinds[kind](cell, where, *fastest)


def token_times(system: Any, cell: Cell, whole_seconds: float) -> dict[str, Any]:
    """Milliseconds per token: of samples, and of the whole context where that is affordable."""
    seconds = QUICK_SECONDS if cell.quick else SAMPLE_SECONDS
    pieces: Sequence[Piece] = system.pieces
    each = [step_ms(system, piece, seconds) for piece in pieces]
    sampled = mean_of(cell, [piece.first for piece in pieces], [ms for ms, _ in each])
    found = {"ms": sampled, "ms_sampled": sampled, "timed": "sampled", "steps": sum(count for _, count in each)}
    found["ms_of_pieces"] = [(piece.first, ms) for piece, (ms, _) in zip(pieces, each, strict=True)]
    expected = 1e-3 * sampled * cell.new
    # Of one piece, steps that see little were sampled: they say nothing of those that see more.
    is_known = len(pieces) > 1 or pieces[0].first > PROMPT or cell.slots < cell.context
    if expected > whole_seconds and is_known:
        return found
    times = []
    for _ in range(ROUNDS if expected < 1 else 1):
        start = time.perf_counter()
        system.generate(cell.new)
        times.append(time.perf_counter() - start)
    return {**found, "ms": 1e3 * statistics.median(times) / cell.new, "timed": "whole", "steps": cell.new}


def mean_of(cell: Cell, places: Sequence[int], times: Sequence[float]) -> float:
    """The mean over the context of a line through times at some places, which goes on beyond the last one as before it.

    Steps take longer the more of the cache is live; ours can only be timed from where a piece of their loop begins.
    """
    if len(places) > 1 and places[-1] < cell.context:
        slope = (times[-1] - times[-2]) / (places[-1] - places[-2])
        places = [*places, cell.context]
        times = [*times, times[-1] + slope * (cell.context - places[-2])]
    steps = np.arange(cell.context - cell.new, cell.context)
    return float(np.interp(steps, places, times).mean())


def step_ms(system: Any, piece: Piece, seconds: float) -> tuple[float, int]:
    """The milliseconds of a step in a piece, without what is done once; and how many steps that is the mean of."""

    def slope(count: int) -> float:
        few = system.steps(piece.first, FEW)
        return max(float(system.steps(piece.first, count) - few) / (count - FEW), 1e-7)

    short = min(FEW + 8, piece.steps)
    slope(short)  # not counted: the first run loads programs
    count = int(min(max(seconds / slope(short), short), piece.steps))
    return 1e3 * statistics.median(slope(count) for _ in range(ROUNDS)), count


def wrong(error: Exception) -> tuple[str, Any]:
    """What a record says about an error: no memory, no compiler, or a failure."""
    kind, text = type(error).__name__, str(error)
    if kind in ("OutOfMemoryError", "BudgetError", "MemoryError") or "RESOURCE_EXHAUSTED" in text:
        return "oom", True
    message = f"{kind}: {text.strip().splitlines()[0][:200] if text.strip() else ''}"
    if "InvalidCxxCompiler" in kind + text or "CppCompileError" in kind or isinstance(error, ImportError):
        return "skipped", message
    return "failed", message


def bandwidth(device: str | None, quick: bool) -> tuple[float, str, str, float]:
    """The bytes a second of a copy, what the device is, and how many bytes it has, if it says so."""
    import _decode_jax

    where = use_device(device)
    size = 2**24 if quick else 2**32 if where.platform == "gpu" else 2**28
    room = (where.memory_stats() or {}).get("bytes_limit", np.inf)
    return _decode_jax.bandwidth(size), where.platform, where.device_kind, room


def apart(isolated: bool, function: Any, *arguments: Any) -> Any:
    """A function's result, from a process of its own where systems would take each other's memory."""
    if not isolated:
        return function(*arguments)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# -- all systems of a cell ---------------------------------------------------------------------------------------


def compare(
    cell: Cell, systems: Sequence[str], way: Way, copied: float, isolated: bool, results: Results, room: Room
) -> None:
    with room.of(MOST_TAKEN * cell.bytes_needed + BESIDE):
        found = figures_of(cell, systems, way, isolated)
    record(cell, found, copied, results)


def figures_of(cell: Cell, systems: Sequence[str], way: Way, isolated: bool) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in systems:
        print(f"{cell.name}: {name} ...", file=sys.stderr, flush=True)
        first = {other: figures["tokens"] for other, figures in found.items() if "tokens" in figures}
        try:
            found[name] = apart(isolated, measure, name, cell, way, first)
        except BrokenProcessPool:  # killed, mostly for the host's memory
            found[name] = {"failed": "the process died"}
        # A run that is broken off has said what it knew; records have what was found of all systems.
        said = {key: value for key, value in found[name].items() if key not in ("tokens", "lags", "memory")}
        print(f"{cell.name}: {name}: {json.dumps(said, default=float)}", file=sys.stderr, flush=True)
    return found


def record(cell: Cell, found: Mapping[str, Mapping[str, Any]], copied: float, results: Results) -> None:
    lags = found.get(REFERENCE, {}).get("lags", {})
    tolerance = TOLERANCES[cell.config.dtype.name]
    floor = cell.floor_ms(copied)
    others = [figures["ms"] for name, figures in found.items() if name != OURS and "ms" in figures]
    for name, figures in found.items():
        said = {key: value for key, value in figures.items() if key not in ("tokens", "lags")}
        said |= {"floor_ms": floor, "bytes_needed": cell.bytes_needed}
        if name in lags:
            said["lag"] = lags[name]
            if lags[name] > tolerance:
                said["failed"] = f"its tokens are not the most likely ones: behind by {lags[name]:.3g}"
        if (peak := peak_bytes(said)) is not None:
            said["over_needed"] = peak / cell.bytes_needed
        if "ms" in said:
            said["over_floor"] = said["ms"] / floor
            if name == OURS and others:
                said["ratio"] = said["ms"] / min(others)
        results.add(cell.name, name, **said)


# -- results -----------------------------------------------------------------------------------------------------


def show_table(records: Sequence[Mapping[str, Any]]) -> str:
    heads = ("case", "system", "ms", "floor ms", "x floor", "ratio", "timed", "first cold s", "warm s", "hot s")
    heads = (*heads, "GB peak", "GB needed", "note")
    rows = []
    for r in records:
        figures = (r.get(key, "") for key in ("ms", "floor_ms", "over_floor", "ratio", "timed"))
        firsts = (r.get(key, "") for key in ("first_cold_s", "first_warm_s", "first_s"))
        peak = peak_bytes(r)
        sizes = ("" if peak is None else peak / 1e9, r["bytes_needed"] / 1e9)
        rows.append((r["case"], r["system"], *figures, *firsts, *sizes, note(r)))
    return table(heads, rows)


def peak_bytes(record: Mapping[str, Any]) -> int | None:
    """What was taken at most, where that is known: measured, or else by XLA's analysis."""
    return record.get("bytes_peak", record.get("bytes_xla", record.get("bytes")))


def note(record: Mapping[str, Any]) -> str:
    if record.get("oom"):
        return "out of memory"
    for key in ("failed", "skipped"):
        if key in record:
            return f"{key}: {record[key]}"
    if "graphs_per_step" in record and record["graphs_per_step"] != 1:
        return f"{record['graphs_per_step']:g} CUDA graphs a step"
    return ""


def plot(records: Sequence[Mapping[str, Any]], path: str) -> None:
    """Our memory over the steps of each cell, and what weights and live cache take."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ours = [r for r in records if "memory" in r]
    figure, axes = plt.subplots(len(ours), figsize=(7, 3 * len(ours)), squeeze=False, layout="constrained")
    for ax, record in zip(axes[:, 0], ours, strict=True):
        cell = next(c for c in grid(record["quick"]) if c.name == record["case"])
        firsts, sizes = zip(*record["memory"], strict=True)
        said = "its stores" if record.get("planned") else "by XLA's analysis"
        ax.stairs(np.array(sizes) / 1e9, [*firsts, cell.context], baseline=None, label=f"Tempo, {said}")
        t = np.arange(cell.context)
        live = cell.weight_bytes + cell.cache_bytes(1) * np.minimum(t + 1, cell.slots)
        ax.plot(t, live / 1e9, "k:", label="weights and live cache")
        for other in (r for r in records if r["case"] == record["case"] and "memory" not in r):
            if (taken := peak_bytes(other)) is not None:
                ax.plot([0, cell.context], [taken / 1e9] * 2, lw=0.8, label=other["system"])
        ax.set(title=record["case"], xlabel="step", ylabel="GB", ylim=(0, None))
        ax.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)


# -- the command line --------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Decoding with language models, against JAX and PyTorch by hand.")
    parser.add_argument("--quick", action="store_true", help="tiny models: does it run, not how fast is it")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="where to run (default: JAX's own choice)")
    parser.add_argument("--only", metavar="CELLS", help="cells, or beginnings of their names; all")
    parser.add_argument("--systems", metavar="NAMES", default=",".join(SYSTEMS), help=f"of: {', '.join(SYSTEMS)}")
    parser.add_argument("--seconds", type=float, default=WHOLE_SECONDS, help="generate whole contexts up to this long")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells whose systems are compiled at once")
    parser.add_argument("--table", nargs="+", metavar="RECORDS", help="files with records, to be shown as one table")
    parser.add_argument("--planned", action="store_true", help="how much memory it takes when, without running it")
    parser.add_argument("--plot", metavar="FILE", help="draw memory over time (needs matplotlib)")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"{options.jobs} jobs do nothing; there must be at least one")
    options.cells = chosen(options.only, options.quick)
    if not options.cells:
        parser.error(f"there is no cell '{options.only}'; cells are: {', '.join(c.name for c in grid(options.quick))}")
    options.systems = [name.strip() for name in options.systems.split(",")]
    for name in options.systems:
        if name not in SYSTEMS:
            parser.error(f"there is no system '{name}'; systems are: {', '.join(SYSTEMS)}")
    options.systems.sort(key=SYSTEMS.index)
    return options


def chosen(only: str | None, quick: bool) -> list[Cell]:
    cells = grid(quick)
    if only == "all" or (only is None and quick):
        return cells
    parts = DEFAULT if only is None else [part.strip() for part in only.split(",")]
    return [cell for cell in cells if any(f"{cell.name}/".startswith(f"{part}/") for part in parts)]


def main() -> int:
    options = arguments()
    if options.table:
        records = [json.loads(line) for path in options.table for line in Path(path).read_text().splitlines()]
    else:
        records = planned(options) if options.planned else run(options)
    print(show_table(records), file=sys.stderr)
    if options.plot:
        plot(records, options.plot)
    return 1 if any("failed" in record for record in records) else 0


def planned(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Records of our memory, without any times."""
    import _decode_tempo

    results = Results("decode", quick=options.quick, planned=True)
    for cell in options.cells:
        memory = _decode_tempo.planned_memory(cell)
        largest = max(size for _, size in memory)
        over = largest / cell.bytes_needed
        results.add(cell.name, OURS, bytes=largest, memory=memory, bytes_needed=cell.bytes_needed, over_needed=over)
    return results.records


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    # Everything that a process allocates, for a cell that fills the device.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    is_shared = options.jobs > 1
    if is_shared:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    isolated = options.device != "cpu" or is_shared
    copied, device, kind, size = apart(isolated, bandwidth, options.device, options.quick)
    results = Results("decode", device=kind, quick=options.quick, copy_gb_s=round(copied / 1e9, 1))
    room = Room(size)
    with tempfile.TemporaryDirectory() as caches, ThreadPoolExecutor(options.jobs) as pool:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches) / "torch")
        turns = Turns(Path(caches) / "turns" if is_shared else None)
        way = Way(device, str(Path(caches) / "jax"), options.seconds, turns, is_shared)
        # Those that leave room for others come first, in place of waiting for it.
        cells = sorted(options.cells, key=lambda cell: cell.bytes_needed) if is_shared else options.cells
        each = [pool.submit(compare, cell, options.systems, way, copied, isolated, results, room) for cell in cells]
        for one in each:
            one.result()
    order = [cell.name for cell in options.cells]
    return sorted(results.records, key=lambda found: order.index(found["case"]))


if __name__ == "__main__":
    sys.exit(main())
