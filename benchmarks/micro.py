"""Small recurrences: ours against JAX written by hand, in one process, run by run in turn.

    python benchmarks/micro.py [--quick] [--device cpu|gpu] [--only CASE]

Of the variants written by hand, the fastest on this machine is the one compared with; the ratios to all are reported.
Our side is the definition as a user writes it. ``lstm_stack`` runs nothing: it says how long compiling takes as a
program grows.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
from _micro_cases import PAIRS, stack
from common import (
    TRACE_PHASES,
    Results,
    arguments,
    compile_jax,
    compile_tempo,
    each,
    interleaved,
    least,
    medians,
    relative_error,
    table,
    use_device,
)

from tempo.runtime.executable import Executable

TOLERANCE = 1e-4


def compare(case: str, quick: bool, device: Any, results: Results) -> None:
    """Check that ours and the variants by hand agree, then time ours and the fastest of them in turn."""
    pair = PAIRS[case](quick)
    arrays = {name: jax.device_put(array, device) for name, array in pair.inputs.items()}
    ours = compile_tempo(pair.prog, pair.bounds, arrays, device)
    experts = {name: compile_jax(function, arrays) for name, function in pair.experts.items()}
    found = ours()
    errors = {name: relative_error(found, expert()) for name, expert in experts.items()}
    if max(errors.values()) > TOLERANCE:
        raise ValueError(f"{case}: the results differ: {errors}")
    tried = least(interleaved({"tempo": ours, **experts}, seconds=0.3 if quick else 2.0, least_rounds=3))
    best = min(experts, key=tried.__getitem__)
    runs = {"tempo": ours, "jax": experts[best], "program": ours.program}
    times = interleaved(runs, seconds=0.5 if quick else 8.0)
    ms, shortest = medians(times), least(times)
    common = {"size": pair.size, "runs": len(times["jax"])}
    results.add(
        case,
        "jax",
        ms=ms["jax"],
        ms_min=shortest["jax"],
        **experts[best].figures,
        variant=best,
        **common,
    )
    results.add(
        case,
        "tempo",
        ms=ms["tempo"],
        ratio=ms["tempo"] / ms["jax"],
        ms_program=ms["program"],
        ratio_program=ms["program"] / ms["jax"],
        ms_min=shortest["tempo"],
        ratio_min=shortest["tempo"] / shortest["jax"],
        # Against every variant that was tried, from the few runs that chose among them.
        ratios={name: tried["tempo"] / tried[name] for name in experts},
        error=max(errors.values()),
        **ours.figures,
        **common,
    )


def lstm_stack(quick: bool, results: Results) -> None:
    """How long compiling takes, phase by phase, up to the storage plan."""
    for layers in (1, 2, 4, 8, 16) if quick else (1, 2, 4, 8, 16, 64):
        start = time.perf_counter()
        prog, T = stack(layers)
        written = time.perf_counter()
        graph = prog.graph
        built = time.perf_counter()
        # The NumPy backend shares everything with JAX's up to the storage plan, and stops there.
        run = Executable(graph, {T: 32}, backend="numpy")
        results.add(
            "lstm_stack",
            "tempo",
            layers=layers,
            nodes=len(run.graph.nodes),
            trace_s=sum(run.seconds[phase] for phase in TRACE_PHASES),
            phases={"written": written - start, "gradients": built - written, **run.seconds},
        )


def main() -> int:
    cases = (*PAIRS, "lstm_stack")
    options = arguments("Small recurrences against hand-written JAX.", cases)
    device = use_device(options.device)
    results = Results("micro", device=device.device_kind, quick=options.quick)

    def measure(case: str) -> None:
        if case == "lstm_stack":
            lstm_stack(options.quick, results)
        else:
            compare(case, options.quick, device, results)

    failed = each([options.only] if options.only else cases, measure)
    print(summary(results), file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def summary(results: Results) -> str:
    """The results as tables."""
    by_system = {(r["case"], r["system"]): r for r in results.records if "ms" in r}
    pairs = [(r, by_system[case, "jax"]) for (case, system), r in by_system.items() if system == "tempo"]
    tables = []
    if pairs:
        heads = ("case", "size", "tempo ms", "jax ms", "ratio", "of minima", "program only", "error", "dispatches")
        heads += ("trace s", "XLA s", "jax XLA s", "MB planned", "of it library", "MB XLA", "jax MB XLA", "jax variant")
        rows = [
            (a["case"], a["size"], a["ms"], b["ms"], a["ratio"], a["ratio_min"], a["ratio_program"], a["error"])
            + (a["dispatches"], a["trace_s"], a["xla_s"], b["xla_s"])
            + (a["bytes_planned"] / 1e6, a["bytes_library"] / 1e6, a["bytes_xla"] / 1e6)
            + (b["bytes_xla"] / 1e6, b["variant"])
            for a, b in pairs
        ]
        tables.append(table(heads, rows))
    stacks = [r for r in results.records if r["case"] == "lstm_stack"]
    if stacks:
        phases = list(stacks[0]["phases"])
        heads = ("layers", "nodes", "trace s", *phases)
        tables.append(table(heads, [(r["layers"], r["nodes"], r["trace_s"], *r["phases"].values()) for r in stacks]))
    return "\n\n".join(tables)


if __name__ == "__main__":
    sys.exit(main())
