"""Back-propagation through a long time: all at once, in blocks, with stores in host memory, and within budgets.

    python benchmarks/offload.py [--quick] [--device cpu|gpu] [--only CASE]

One training step of a recurrent network: ``us_per_step`` is how long it takes for each of its time steps, and ``ratio``
how many times longer than all at once; ``bytes`` is what XLA says that the device has at the same time, ``bytes_host``
the stores in host memory. Budgets are parts of what the program takes all at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from _micro_cases import lstm_layer, normal
from common import Results, arguments, device_bytes, interleaved, least, medians, relative_error, table, use_device

import tempo as tp
from tempo.runtime.executable import Executable

CASES = ("rnn", "lstm")
BUDGETS = (2, 4, 8, 16)
TOLERANCE = 1e-3
RATE = 1e-3


def sizes(quick: bool, on_gpu: bool) -> tuple[int, int, int]:
    """Steps, batch and width."""
    if quick:
        return 512, 4, 16
    return (4096, 64, 512) if on_gpu else (1024, 16, 128)


def network(case: str, batch: int, width: int) -> tuple[tp.Program, Any]:
    """A step of gradient descent on the squares of all states."""
    gates = 4 * width if case == "lstm" else width
    with tp.Program(case) as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (batch, width), t)
        Wx, Wh, b = weights = [
            prog.input("Wx", (width, gates)),
            prog.input("Wh", (width, gates)),
            prog.input("b", gates),
        ]
        if case == "lstm":
            h = lstm_layer(prog, "", x, Wx, Wh, b, t)
        else:
            h = prog.recurrent("h", (batch, width), t)
            h[-1] = 0
            h[t] = tp.tanh(x @ Wx + b + h[t - 1] @ Wh)
        losses = tp.sum(tp.square(h))
        loss = tp.sum(losses[0:T])
        prog.output("loss", loss)
        for weight, gradient in zip(weights, tp.grad(loss, weights), strict=True):
            prog.output(weight.name, weight - RATE * gradient)
    return prog, T


def compiled(prog: tp.Program, T: Any, steps: int, device: Any) -> Iterator[tuple[str, int | None, Executable]]:
    """Systems, by name, with their budgets: everything at once, in blocks, and what a part of that memory allows."""

    def compile_with(**options: Any) -> Executable:
        return prog.compile({T: steps}, device=device.platform, **options)

    whole = compile_with(plan=tp.Plan())
    yield "all at once", None, whole
    for block in (steps // 64, steps // 16, steps // 4):
        yield f"blocks of {block}", None, compile_with(plan=tp.Plan({"t": block}))
        yield f"blocks of {block}, on the host", None, compile_with(plan=tp.Plan({"t": block}, host=("*",)))
    for part in BUDGETS:
        budget = device_bytes(whole) // part
        yield f"1/{part} of the memory", budget, compile_with(memory=budget)


def compare(case: str, quick: bool, device: Any, results: Results) -> None:
    steps, batch, width = sizes(quick, device.platform == "gpu")
    prog, T = network(case, batch, width)
    gates = 4 * width if case == "lstm" else width
    inputs = {
        "x": normal(steps, batch, width),
        "Wx": normal(width, gates, scale=width**-0.5),
        "Wh": normal(width, gates, scale=width**-0.5, seed=1),
        "b": np.zeros(gates, np.float32),
    }
    runs, expected = {}, None
    figures: dict[str, dict[str, Any]] = {}
    for system, budget, run in compiled(prog, T, steps, device):
        print(f"{case}, {system}: compiled", file=sys.stderr, flush=True)
        figures[system] = {
            "budget": budget,
            "bytes": device_bytes(run),
            "bytes_planned": run.storage.peak,
            "bytes_host": sum(store.bytes for store in run.storage.stores.values() if store.host),
            "blocks": dict(run.plan.blocks),
            "host": [store.host for store in run.storage.stores.values() if store.host],
        }
        found = run(**inputs).outputs
        expected = expected or found
        figures[system]["error"] = relative_error(found, expected)
        if figures[system]["error"] > TOLERANCE:
            raise ValueError(f"{case}, {system}: the results differ: {figures[system]['error']}")
        runs[system] = lambda run=run: run(**inputs)
    times = interleaved(runs, seconds=0.5 if quick else 30.0, least_rounds=3)
    ms, shortest = medians(times), least(times)
    for system, found in figures.items():
        size = f"{steps} steps, {batch} x {width}"
        results.add(
            case,
            system,
            us_per_step=1000 * ms[system] / steps,
            ratio=ms[system] / ms["all at once"],
            ms=ms[system],
            ms_min=shortest[system],
            **found,
            size=size,
            runs=len(times[system]),
        )


def main() -> int:
    options = arguments("Long back-propagation with stores on the device and on the host.", CASES)
    device = use_device(options.device)
    results = Results("offload", device=device.device_kind, quick=options.quick)
    for case in [options.only] if options.only else CASES:
        print(f"{case} ...", file=sys.stderr, flush=True)
        compare(case, options.quick, device, results)
    heads = ("case", "system", "size", "us a step", "ratio", "MB device", "MB planned", "MB host", "blocks", "error")
    rows = [
        (r["case"], r["system"], r["size"], r["us_per_step"], r["ratio"], r["bytes"] / 1e6, r["bytes_planned"] / 1e6)
        + (r["bytes_host"] / 1e6, str(r["blocks"]), r["error"])
        for r in results.records
    ]
    print(table(heads, rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
