"""Back-propagation through a long time: all at once, in blocks, and in blocks with the stores in host memory.

    python benchmarks/offload.py [--quick] [--device cpu|gpu] [--only CASE]

One training step of a recurrent network: ``ms`` is how long it takes, ``bytes`` the most that the device has at the
same time (arrays, and what XLA says its program needs besides), ``bytes_host`` the stores in host memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from _micro_cases import lstm_layer, normal
from common import Results, arguments, interleaved, least, medians, relative_error, table, use_device

import tempo as tp
from tempo.backends.jax.worker import JaxWorker
from tempo.runtime.executable import Executable
from tempo.schedule.plan import Plan

Array = Any
CASES = ("rnn", "lstm")
TOLERANCE = 1e-3
RATE = 1e-3


def sizes(quick: bool, on_gpu: bool) -> tuple[int, int, int]:
    """Steps, batch and width."""
    if quick:
        return 96, 4, 16
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


def plans(steps: int) -> Iterator[tuple[str, Plan]]:
    yield "all at once", Plan()
    for block in (steps // 64, steps // 16, steps // 4):
        yield f"blocks of {block}", Plan({"t": block})
        yield f"blocks of {block}, on the host", Plan({"t": block}, host=("*",))


def device_bytes(run: Executable, inputs: Mapping[str, Array]) -> int:
    """The most that one run has on the device."""
    machine = run._machine
    if machine.whole:
        return sum(machine.memory().values())
    most = 0
    temporaries: dict[Any, int] = {}
    unwatched = JaxWorker.run

    def watched(worker: JaxWorker, item: Any, compiled: Any, at: Any, chunk: Any) -> Any:
        nonlocal most
        slices = sum(worker.host.on_device(worker.host.cut(n, cut, at)).nbytes for n, cut in compiled.slices.items())
        function = compiled.function

        def once(*given: Any) -> Any:
            if item not in temporaries:
                analysis: Any = function.lower(*given).compile().memory_analysis()
                temporaries[item] = analysis.temp_size_in_bytes
            return function(*given)

        object.__setattr__(compiled, "function", once)
        try:
            emitted = unwatched(worker, item, compiled, at, chunk)
        finally:
            object.__setattr__(compiled, "function", function)
        # The slices of this block are still there while it is computed, and those of the next one already.
        most = max(most, sum(a.nbytes for a in jax.live_arrays()) + slices + temporaries[item])
        return emitted

    JaxWorker.run = watched  # type: ignore[method-assign]
    try:
        run(**inputs)
    finally:
        JaxWorker.run = unwatched  # type: ignore[method-assign]
    return most


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
    for system, plan in plans(steps):
        run = Executable(prog.graph, {T: steps}, device=device.platform, plan=plan)
        figures[system] = {
            "bytes": device_bytes(run, inputs),
            "bytes_planned": run.storage.peak,
            "bytes_host": sum(store.bytes for store in run.storage.stores.values() if store.host),
        }
        found = run(**inputs).outputs
        expected = expected or found
        figures[system]["error"] = relative_error(found, expected)
        if figures[system]["error"] > TOLERANCE:
            raise ValueError(f"{case}, {system}: the results differ: {figures[system]['error']}")
        runs[system] = lambda run=run: run(**inputs)
    times = interleaved(runs, seconds=0.5 if quick else 60.0, least_rounds=3)
    ms, shortest = medians(times), least(times)
    for system, found in figures.items():
        size = f"{steps} steps, {batch} x {width}"
        results.add(case, system, ms=ms[system], ms_min=shortest[system], **found, size=size, runs=len(times[system]))


def main() -> int:
    options = arguments("Long back-propagation with stores on the device and on the host.", CASES)
    device = use_device(options.device)
    results = Results("offload", device=device.device_kind, quick=options.quick)
    for case in [options.only] if options.only else CASES:
        print(f"{case} ...", file=sys.stderr, flush=True)
        compare(case, options.quick, device, results)
    heads = ("case", "system", "size", "ms", "ms min", "MB device", "MB planned", "MB host", "error")
    rows = [
        (r["case"], r["system"], r["size"], r["ms"], r["ms_min"])
        + (r["bytes"] / 1e6, r["bytes_planned"] / 1e6, r["bytes_host"] / 1e6, r["error"])
        for r in results.records
    ]
    print(table(heads, rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
