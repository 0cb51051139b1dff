"""Learning from returns of n steps, and of all that follow, with and without a plan for little memory.

REINFORCE over (b, i, t), one line different: what looks ahead by n steps is learned while acting, in blocks, n steps
late, in memory that does not grow with the number of steps; what looks ahead to the end cannot be.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import numpy as np
from common import Results, arguments, device_bytes, table, use_device

import tempo as tp

CASES = ("1", "8", "64", "all")
OBSERVATION, HIDDEN, ACTIONS = 4, 64, 2


def reinforce(ahead: int | None) -> tuple[tp.Program, Any]:
    """A policy with a hidden layer, acting in a linear world."""
    with tp.Program("reinforce") as prog:
        b, B = prog.dim("b")
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        first = prog.state("first", prog.input("first_0", (OBSERVATION, HIDDEN)), over=(i,))
        second = prog.state("second", prog.input("second_0", (HIDDEN, ACTIONS)), over=(i,))
        o = prog.recurrent("o", OBSERVATION, (b, i, t))
        logits = tp.tanh(o @ first) @ second
        noise = -tp.log(-tp.log(tp.random.uniform(ACTIONS, domain=(b, i, t))))
        action = tp.argmax(logits + noise, axis=0)
        chosen = tp.equal(tp.arange(ACTIONS), action).astype("float32")
        o[b, i, 0] = tp.random.normal(OBSERVATION, domain=(b, i))
        o[b, i, t + 1] = 0.95 * o + 0.1 * (action.astype("float32") - 0.5)
        reward = -tp.sum(o * o, axis=0)
        end = T if ahead is None else tp.min(t + ahead, T)
        returns = tp.sum(reward[b, i, t:end], axis=0)
        loss = -tp.stop_gradient(returns) * tp.sum(tp.log_softmax(logits, axis=0) * chosen, axis=0)
        mean = loss[0:B, i, 0:T].mean()
        by_first, by_second = tp.grad(mean, (first, second))
        first.next = first - 0.01 * by_first
        second.next = second - 0.01 * by_second
        prog.output("first", first[I])
    return prog, (B, I, T)


def measure(ahead: int | None, steps: int, batch: int, plan: str | None, quick: bool, results: Results) -> list[Any]:
    prog, (B, I, T) = reinforce(ahead)
    run = prog.compile({B: batch, I: 4, T: steps}, plan=plan)
    rng = np.random.default_rng(0)
    weights = {
        "first_0": rng.normal(size=(OBSERVATION, HIDDEN)).astype(np.float32),
        "second_0": rng.normal(size=(HIDDEN, ACTIONS)).astype(np.float32),
    }
    run(**weights)
    times = []
    for _ in range(3 if quick else 7):
        start = time.perf_counter()
        run(**weights)
        times.append(time.perf_counter() - start)
    ms = 1000 * median(times)
    taken = device_bytes(run)
    name = "all that follow" if ahead is None else f"{ahead} steps"
    system = plan or "fastest"
    blocks = dict(run.plan.blocks)
    results.add(name, system, steps=steps, ms=ms, bytes=taken, bytes_planned=run.storage.peak, blocks=blocks)
    return [name, steps, system, str(blocks), ms / 4, run.storage.peak / 1e6, taken / 1e6]


def main() -> int:
    options = arguments(
        "REINFORCE with returns of n steps and of all, in plans for speed and for little memory.", CASES
    )
    device = use_device(options.device)
    results = Results("nstep", device=device.device_kind, quick=options.quick)
    lengths, batch = ((25, 100), 8) if options.quick else ((250, 1000, 4000), 64)
    rows = []
    for case in CASES if options.only is None else (options.only,):
        for steps in lengths:
            for plan in (None, "smallest"):
                ahead = None if case == "all" else int(case)
                rows.append(measure(ahead, steps, batch, plan, options.quick, results))
    heads = ["returns of", "steps", "plan", "blocks", "ms an iteration", "MB planned", "MB XLA"]
    print(table(heads, rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
