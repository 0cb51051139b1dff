"""A stack of layers over time, with code and arrays for each or a loop over them: run time and compile time.

    python benchmarks/layers.py [--quick] [--device cpu|gpu] [--only CASE]

``decode``: as in decoding, ours and by hand. Each layer multiplies by a matrix of its own and attends to what it has
computed so far; a step begins with what the last layer made of the one before. ``tempo`` has the plan that unrolls the
layers, ``tempo rolled`` a loop over them. ``jax apart`` is written by hand with an array per layer, ``jax stacked``
with a loop over the layers that slices. Ratios are to ``jax apart``.

``written``: LSTM layers written with a Python loop, and their training step. ``tempo`` compiles every layer, ``tempo
rolled`` has the plan that makes a loop of them. Ratios are to ``tempo``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _micro_cases import stack
from common import (
    Results,
    arguments,
    compile_jax,
    compile_tempo,
    interleaved,
    least,
    medians,
    relative_error,
    table,
    use_device,
)
from jax import lax

import tempo as tp

Array = Any

# Rounding grows from step to step.
TOLERANCE = 1e-3


def program(batch: int, width: int) -> tuple[tp.Program, Any, Any]:
    with tp.Program("layers") as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        x = prog.input("x", (batch, width))
        w = prog.input("w", (width, width), l)
        y = prog.recurrent("y", (batch, width), t)
        h = prog.recurrent("h", (batch, width), (t, l))
        k = prog.recurrent("k", (batch, width), (t, l))
        k[t, l] = h[t, l - 1] @ w
        score = tp.einsum("bd,sbd->bs", k[t, l], k[0 : t + 1, l]) / math.sqrt(width)
        h[t, -1] = y[t - 1]
        h[t, l] = tp.tanh(h[t, l - 1] + tp.einsum("bs,sbd->bd", tp.softmax(score, axis=1), k[0 : t + 1, l]))
        y[-1] = x
        y[t] = h[t, L - 1]
        prog.output("y", y[T - 1])
    return prog, T, L


def attend(h: Array, w: Array, cache: Array, t: Array) -> tuple[Array, Array]:
    """One layer at one step: its result, and the cache with it."""
    k = h @ w
    cache = lax.dynamic_update_index_in_dim(cache, k, t, 0)
    score = jnp.einsum("bd,sbd->bs", k, cache) / math.sqrt(k.shape[-1])
    score = jnp.where(jnp.arange(len(cache)) <= t, score, -jnp.inf)
    return jnp.tanh(h + jnp.einsum("bs,sbd->bd", jax.nn.softmax(score, axis=1), cache)), cache


def apart(steps: int, x: Array, w: tuple[Array, ...]) -> dict[str, Array]:
    def step(t: Array, carry: tuple[Array, list[Array]]) -> tuple[Array, list[Array]]:
        h, caches = carry
        changed = []
        for weights, cache in zip(w, caches, strict=True):
            h, cache = attend(h, weights, cache, t)
            changed.append(cache)
        return h, changed

    return {"y": lax.fori_loop(0, steps, step, (x, [jnp.zeros((steps, *x.shape), x.dtype) for _ in w]))[0]}


def stacked(steps: int, x: Array, w: Array) -> dict[str, Array]:
    def step(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        def layer(n: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            h, caches = carry
            h, cache = attend(h, w[n], caches[n], t)
            return h, lax.dynamic_update_index_in_dim(caches, cache, n, 0)

        return lax.fori_loop(0, len(w), layer, carry)

    return {"y": lax.fori_loop(0, steps, step, (x, jnp.zeros((len(w), steps, *x.shape), x.dtype)))[0]}


def compare(quick: bool, device: Any, results: Results) -> None:
    steps, layers, batch, width = (8, 4, 2, 64) if quick else (64, 28, 4, 3072)
    random = np.random.default_rng(0)
    x = random.normal(size=(batch, width)).astype(np.float32)
    # Small weights: with larger ones, 1,800 layers one after the other turn the last bit of a sum into another result.
    w = random.normal(size=(layers, width, width), scale=0.1 * width**-0.5).astype(np.float32)
    together = {"x": jax.device_put(x, device), "w": jax.device_put(w, device)}
    each: Mapping[str, Any] = {**together, "w": tuple(jax.device_put(one, device) for one in w)}
    prog, T, L = program(batch, width)
    bounds = {T: steps, L: layers}
    runs = {
        "jax apart": compile_jax(lambda x, w: apart(steps, x, w), each),
        "jax stacked": compile_jax(lambda x, w: stacked(steps, x, w), together),
        "tempo": compile_tempo(prog, bounds, each, device, tp.Plan(unroll=("l",))),
        "tempo rolled": compile_tempo(prog, bounds, together, device, tp.Plan()),
    }
    expected = runs["jax apart"]()
    errors = {name: relative_error(run(), expected) for name, run in runs.items()}
    if max(errors.values()) > TOLERANCE:
        raise ValueError(f"the results differ: {errors}")
    times = interleaved(runs, seconds=0.5 if quick else 10.0)
    size = f"{layers} layers of {width} x {width}, {steps} steps, batch {batch}"
    report("decode", runs, times, steps, results, errors=errors, size=size)


def roll(quick: bool, device: Any, results: Results) -> None:
    """Layers written one by one: compiled each, and once for all."""
    steps, batch, width = (8, 2, 8) if quick else (32, 16, 128)
    random = np.random.default_rng(0)
    for layers in (1, 4) if quick else (1, 4, 16, 64):
        prog, T = stack(layers, batch, width)
        given = {name: node for name, node in prog.graph.inputs.items() if name != "seed"}
        shapes = {name: (*(steps for _ in node.domain), *node.shape) for name, node in given.items()}
        arrays = {
            name: jax.device_put(random.normal(size=shape, scale=width**-0.5).astype(np.float32), device)
            for name, shape in shapes.items()
        }
        plans = {"tempo": tp.Plan(), "tempo rolled": tp.Plan(roll=True)}
        runs = {name: compile_tempo(prog, {T: steps}, arrays, device, plan) for name, plan in plans.items()}
        errors = {name: relative_error(run(), runs["tempo"]()) for name, run in runs.items()}
        if max(errors.values()) > TOLERANCE:
            raise ValueError(f"the results differ: {errors}")
        times = interleaved(runs, seconds=0.5 if quick else 5.0)
        size = f"{layers} LSTM layers of {width}, {steps} steps, batch {batch}"
        report("written", runs, times, steps, results, errors=errors, size=size, layers=layers)


def report(
    case: str,
    runs: Mapping[str, Any],
    times: Mapping[str, Any],
    steps: int,
    results: Results,
    errors: Mapping[str, float],
    **common: Any,
) -> None:
    """Records of all systems, each against the first."""
    ms, shortest = medians(times), least(times)
    for name, run in runs.items():
        results.add(
            case,
            name,
            ms=ms[name],
            ratio=ms[name] / ms[next(iter(runs))],
            ms_step=ms[name] / steps,
            ms_min=shortest[name],
            error=errors[name],
            **run.figures,
            **common,
            runs=len(times[name]),
        )


CASES = {"decode": compare, "written": roll}


def main() -> int:
    options = arguments("A stack of layers, each compiled or a loop over them.", tuple(CASES))
    device = use_device(options.device)
    results = Results("layers", device=device.device_kind, quick=options.quick)
    for name, case in CASES.items():
        if options.only in (None, name):
            case(options.quick, device, results)
    heads = ("system", "size", "ms", "ratio", "ms a step", "trace s", "XLA s", "MB, XLA")
    rows = [
        (
            r["system"],
            r["size"],
            r["ms"],
            r["ratio"],
            r["ms_step"],
            r.get("trace_s", 0),
            r["xla_s"],
            r["bytes_xla"] / 1e6,
        )
        for r in results.records
    ]
    print(table(heads, rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
