"""Attention generated one step at a time: the loop in buckets, padded to the longest context, and over a window.

    python benchmarks/buckets.py [--quick] [--device cpu|gpu] [--only CASE]

``full`` attends to all steps so far: cut as the compiler chooses, not cut at all (``padded``), and by hand in JAX with
exact caches that grow eight times. ``window`` attends to the last steps only, by hand in a circular cache read in any
order. ``ms`` is per step over a whole run, ``eighths`` the milliseconds per step in each eighth of the context: ours
from a run in chunks, where the number of iterations is known at run time only (on a GPU, about 10 us a step more).
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import (
    TRACE_PHASES,
    Results,
    arguments,
    device_bytes,
    interleaved,
    least,
    medians,
    program_bytes,
    relative_error,
    table,
    use_device,
)
from jax import lax

import tempo as tp
from tempo.runtime.executable import Executable
from tempo.schedule.plan import Plan
from tempo.schedule.script import Chunks, Part

Array = Any
CASES = ("full", "window")
# What a step computes is what the next one starts from: rounding adds up over 4,096 of them, unless it fades.
DAMPING = 0.5
TOLERANCE = 1e-3
EIGHTHS = 8
ROUNDS = 4


@dataclass(frozen=True)
class Sizes:
    steps: int
    window: int
    batch: int = 16
    heads: int = 8
    size: int = 64

    @property
    def width(self) -> int:
        return self.heads * self.size

    def __str__(self) -> str:
        return f"{self.steps} steps, batch {self.batch}, {self.heads} x {self.size}"


def inputs(s: Sizes) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(size=(s.heads, s.size, s.width)) * s.width**-0.5 for name in ("wq", "wk", "wv", "wo")
    }
    arrays = {"start": random.normal(size=(s.batch, s.width)), **weights}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


# -- ours --------------------------------------------------------------------------------------------------------


def program(s: Sizes, window: int | None) -> tuple[tp.Program, dict[Any, int]]:
    """The definition as a user writes it."""
    with tp.Program("generate") as prog:
        b, B = prog.dim("b")
        h, H = prog.dim("h")
        t, T = prog.dim("t")
        start = prog.input("start", s.width, b)
        wq, wk, wv, wo = (prog.input(name, (s.size, s.width), h) for name in ("wq", "wk", "wv", "wo"))
        x = prog.recurrent("x", s.width, (b, t))
        q, k, v = wq @ x, wk @ x, wv @ x
        first = 0 if window is None else tp.max(0, t - window + 1)
        scores = k[b, h, first : t + 1] @ q * s.size**-0.5
        attended = tp.softmax(scores) @ v[b, h, first : t + 1]
        x[b, 0] = start
        x[b, t + 1] = tp.tanh(DAMPING * x + tp.einsum("hd,hdw->w", attended[b, 0:H, t], wo[0:H]))
        prog.output("score", tp.mean(x))
    return prog, {B: s.batch, H: s.heads, T: s.steps}


def ours(s: Sizes, window: int | None, plan: Plan | None, device: Any) -> Executable:
    prog, bounds = program(s, window)
    run = Executable(prog.graph, bounds, device=device.platform, plan=plan)
    with run.seconds.of("threads"):
        run._machine.memory()  # waits for what threads compile
    return run


def our_eighths(run: Executable, arrays: Mapping[str, Array], steps: int) -> list[float]:
    """The milliseconds per step in each eighth of a run in chunks, the least of several."""
    shortest = np.full(EIGHTHS, np.inf)
    for _ in range(ROUNDS):  # the first run compiles
        worker = run._machine.start(arrays, None)
        seconds = np.zeros(EIGHTHS)
        for item in run._script.items:
            if isinstance(item, Part):
                worker.part(item, {})
            elif isinstance(item, Chunks):
                for first, last in _within_eighths(item.loop.steps, steps):
                    start = time.perf_counter()
                    worker.chunk(item, {}, range(first, last))
                    seconds[first * EIGHTHS // steps] += time.perf_counter() - start
        shortest = np.minimum(shortest, seconds)
    return [1e3 * float(x) / (steps // EIGHTHS) for x in shortest]


def _within_eighths(loop: range, steps: int) -> list[tuple[int, int]]:
    cuts = [steps * n // EIGHTHS for n in range(1, EIGHTHS)]
    ends = [loop[0], *(c for c in cuts if loop[0] < c <= loop[-1]), loop[-1] + 1]
    return list(itertools.pairwise(ends))


# -- by hand -----------------------------------------------------------------------------------------------------


def step(s: Sizes, slot: Callable[[Array], Array], t: Array, carry: Any, weights: Mapping[str, Array]) -> Any:
    """One step with caches of exactly the context's padded length, or of the window, in any order."""
    k, v, x, scores = carry
    q, new_k, new_v = ((x @ weights[name]).reshape(s.batch, s.heads, 1, s.size) for name in ("wq", "wk", "wv"))
    k = lax.dynamic_update_slice(k, new_k, (0, 0, slot(t), 0))
    v = lax.dynamic_update_slice(v, new_v, (0, 0, slot(t), 0))
    logits = jnp.einsum("bhtd,bhd->bht", k, q[:, :, 0]) * s.size**-0.5
    logits = jnp.where(jnp.arange(k.shape[2]) <= t, logits, -jnp.inf)
    attended = jnp.einsum("bht,bhtd->bhd", jax.nn.softmax(logits), v)
    scores = lax.dynamic_update_slice(scores, jnp.mean(x, -1)[:, None], (0, t))
    return k, v, jnp.tanh(DAMPING * x + attended.reshape(s.batch, s.width) @ weights["wo"]), scores


class ByHand:
    """A program per bucket, on caches that have grown to its end; or on one circular cache."""

    def __init__(self, s: Sizes, window: int | None, arrays: Mapping[str, Array]) -> None:
        self.sizes = s
        self.arrays = arrays
        flat = {name: w.reshape(s.width, s.width) for name, w in arrays.items() if name != "start"}
        self.weights = {name: w if name == "wo" else jnp.array(w.T) for name, w in flat.items()}
        self.ends = [s.steps * (n + 1) // EIGHTHS for n in range(EIGHTHS)]
        self.lengths = [window or end for end in self.ends]
        self.slot = (lambda t: t % window) if window else (lambda t: t)
        self.grow = jax.jit(lambda cache, length: _grown(cache, length), static_argnums=1)
        begin = time.perf_counter()
        self.programs = [self.compile(n) for n in range(EIGHTHS)]
        self.figures = {"xla_s": time.perf_counter() - begin, "bytes_xla": max(map(program_bytes, self.programs))}

    def compile(self, n: int) -> Any:
        s, first = self.sizes, self.ends[n - 1] if n else 0
        caches = jax.ShapeDtypeStruct((s.batch, s.heads, self.lengths[n], s.size), np.float32)

        @functools.partial(jax.jit, donate_argnums=0)
        def bucket(carry: Any, weights: Any) -> Any:
            return lax.fori_loop(first, self.ends[n], lambda t, c: step(s, self.slot, t, c, weights), carry)

        carry = (caches, caches, self.arrays["start"], jax.ShapeDtypeStruct((s.batch, s.steps), np.float32))
        return bucket.lower(carry, self.weights).compile()

    def run(self, wait: Callable[[Any], None] = lambda carry: None) -> dict[str, Array]:
        s = self.sizes
        carry: Any = (*(jnp.zeros((s.batch, s.heads, self.lengths[0], s.size)) for _ in range(2)),)
        carry = (*carry, jnp.copy(self.arrays["start"]), jnp.zeros((s.batch, s.steps)))
        for program, length in zip(self.programs, self.lengths, strict=True):
            if carry[0].shape[2] != length:
                carry = (self.grow(carry[0], length), self.grow(carry[1], length), *carry[2:])
            carry = program(carry, self.weights)
            wait(carry)
        return {"score": carry[3]}

    def __call__(self) -> dict[str, Array]:
        found: dict[str, Array] = jax.block_until_ready(self.run())
        return found

    def eighths(self) -> list[float]:
        shortest = np.full(EIGHTHS, np.inf)
        for _ in range(ROUNDS):
            times = [time.perf_counter()]

            def wait(carry: Any, times: list[float] = times) -> None:
                jax.block_until_ready(carry)
                times.append(time.perf_counter())

            self.run(wait)
            shortest = np.minimum(shortest, np.diff(times))
        return [1e3 * float(x) / (self.sizes.steps // EIGHTHS) for x in shortest]


def _grown(cache: Array, length: int) -> Array:
    return jnp.pad(cache, ((0, 0), (0, 0), (0, length - cache.shape[2]), (0, 0)))


# -- together ----------------------------------------------------------------------------------------------------


def compare(case: str, s: Sizes, quick: bool, device: Any, results: Results) -> None:
    """All plans of a case and the same by hand, in turn."""
    arrays = {name: jax.device_put(array, device) for name, array in inputs(s).items()}
    window = s.window if case == "window" else None
    plans: dict[str, Plan | None] = {"tempo": None}
    if case == "full":
        plans["tempo padded"] = Plan(buckets={"t": []})
    runs = {name: ours(s, window, plan, device) for name, plan in plans.items()}
    hand = ByHand(s, window, arrays)
    calls: dict[str, Callable[[], Any]] = {
        name: functools.partial(_finished, run._whole, arrays) for name, run in runs.items()
    }
    expected = hand()
    errors = {name: relative_error(call(), expected) for name, call in calls.items()}
    if max(errors.values()) > TOLERANCE:
        raise ValueError(f"{case}: the results differ: {errors}")
    times = interleaved({**calls, "jax": hand}, seconds=0.5 if quick else 8.0, least_rounds=3)
    ms, shortest = medians(times), least(times)
    common = {"size": str(s), "runs": len(times["jax"])}
    results.add(
        case,
        "jax",
        ms=ms["jax"] / s.steps,
        ms_min=shortest["jax"] / s.steps,
        eighths=_rounded(hand.eighths()),
        pieces=EIGHTHS,
        **hand.figures,
        **common,
    )
    for name, run in runs.items():
        results.add(
            case,
            name,
            ms=ms[name] / s.steps,
            ms_min=shortest[name] / s.steps,
            ratio=ms[name] / ms["jax"],
            ratio_min=shortest[name] / shortest["jax"],
            eighths=_rounded(our_eighths(run, arrays, s.steps)),
            pieces=sum(1 for item in run._script.items if isinstance(item, Chunks)),
            trace_s=sum(run.seconds[phase] for phase in TRACE_PHASES),
            xla_s=run.seconds["XLA"] + run.seconds["threads"],
            bytes_planned=run.storage.peak,
            bytes_xla=device_bytes(run),
            error=errors[name],
            **common,
        )


def _finished(whole: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    found: dict[str, Array] = jax.block_until_ready(whole.run(arrays))
    return found


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.3g}") for value in values]


def main() -> int:
    options = arguments("Attention one step at a time: buckets, padding, windows.", CASES)
    device = use_device(options.device)
    results = Results("buckets", device=device.device_kind, quick=options.quick)
    if options.quick:
        sizes = Sizes(steps=256, window=64, batch=4)
    elif device.platform == "cpu":
        sizes = Sizes(steps=1024, window=256, batch=4)
    else:
        sizes = Sizes(steps=4096, window=256)
    for case in [options.only] if options.only else CASES:
        print(f"{case} ...", file=sys.stderr, flush=True)
        compare(case, sizes, options.quick, device, results)
    heads = ("case", "system", "pieces", "ms a step", "ratio", "first eighth", "last eighth", "XLA s", "MB XLA")
    rows = [
        (r["case"], r["system"], r["pieces"], r["ms"], r.get("ratio", 1.0), r["eighths"][0], r["eighths"][-1])
        + (r["xla_s"], r["bytes_xla"] / 1e6)
        for r in results.records
    ]
    print(table(heads, rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
