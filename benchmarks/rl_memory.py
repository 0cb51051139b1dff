"""What algorithms take of memory: REINFORCE with returns of n steps and of all, and PPO with large observations.

    python benchmarks/rl_memory.py [--quick] [--device cpu|gpu] [--only CASE]

A synthetic environment on the device, 256 copies of it, 1000 steps, and a budget of 16 GiB. ``reinforce n`` looks n
steps ahead, with observations of 3x128x128, and ``reinforce all`` to the end, for which all 47 GiB of observations have
to be kept. ``ppo s`` has observations of 3 x s x s. Systems are ours within the budget (``tempo``) and without one
(``tempo, unlimited``), JAX and PyTorch written by hand, which keep everything on the device. Each runs in a process of
its own, which may run out of memory: ``error`` says so then.

``ms`` is the time of an iteration. ``bytes`` is what XLA, or PyTorch, says that the device has at the worst moment,
``bytes_host`` what we keep in host memory, ``bytes_process`` the most that the process had. JAX takes memory as it
needs it here (``XLA_PYTHON_CLIENT_PREALLOCATE=false``). With ``--quick``, everything is small, and the budget in
proportion.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

SYSTEMS = ("torch", "jax", "tempo, unlimited", "tempo")
OBSERVATION_BYTES = 4
LIMIT = 100
ROUNDS = 3
SECONDS = 560
"""How long a system may take, compilation included."""


@dataclass(frozen=True)
class Case:
    """Sizes of one case, and how far returns look ahead: ``ahead`` steps of REINFORCE, None for all, 0 for PPO."""

    ahead: int | None
    side: int
    envs: int = 256
    steps: int = 1000
    hidden: tuple[int, ...] = (64, 64)
    iterations: int = 2
    budget: int = 16 * 2**30

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.side, self.side

    @property
    def seen(self) -> int:
        """The bytes of all observations of an iteration."""
        return math.prod(self.shape) * OBSERVATION_BYTES * self.envs * self.steps


CASES = {
    **{f"reinforce {n}": Case(n, 128) for n in (1, 8, 64)},
    "reinforce all": Case(None, 128),
    **{f"ppo {side}": Case(0, side) for side in (8, 32, 64, 128)},
}


def quick(case: Case) -> Case:
    """The same, small, with a budget that is the same part of the largest observations."""
    largest = CASES["reinforce all"]
    ahead = case.ahead and max(case.ahead // 4, 1)
    small = replace(case, ahead=ahead, side=max(case.side // 16, 1), envs=8, steps=248, hidden=(4,))
    return replace(small, budget=int(largest.budget / largest.seen * replace(small, side=8).seen))


# -- the systems -------------------------------------------------------------------------------------------------


def in_tempo(case: Case, device: str | None, unlimited: bool) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    from common import device_bytes

    from tempo import rl

    env = rl.Synthetic(case.shape, limit=LIMIT)
    networks = rl.Policy(env, case.hidden), rl.Critic(env, case.hidden)
    sizes = {"iterations": case.iterations, "count": case.envs, "steps": case.steps}
    if case.ahead == 0:
        algorithm = rl.ppo(env, *networks, epochs=1, minibatches=1, **sizes)
    else:
        algorithm = rl.reinforce(env, *networks, n=case.ahead, **sizes)
    memory = None if unlimited else case.budget
    run = algorithm.program.compile(algorithm.bounds, device=device, memory=memory)
    loss = [record.value for record in run().emits["loss"]]
    if not all(map(math.isfinite, loss)):
        raise ValueError(f"the loss is {loss}")

    def figures() -> dict[str, Any]:
        stores = run.storage.stores.values()
        return {
            "bytes": device_bytes(run),
            "bytes_planned": run.storage.peak,
            "bytes_host": sum(store.bytes for store in stores if store.host),
            "host": [store.host for store in stores if store.host],
            "blocks": dict(run.plan.blocks),
            "recompute": run.plan.recompute,
            "compile_s": sum(run.seconds.values()),
        }

    return run, figures


def in_jax(case: Case) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    import _rl_memory_jax
    import jax
    from common import program_bytes

    key = jax.random.key(0)
    compiled: Any = jax.jit(lambda key: _rl_memory_jax.train(case, LIMIT, key)).lower(key).compile()

    def run() -> Any:
        return jax.block_until_ready(compiled(key))

    def figures() -> dict[str, Any]:
        return {"bytes": program_bytes(compiled), "bytes_host": 0}

    return run, figures


def in_torch(case: Case, device: str | None) -> tuple[Callable[[], Any], Callable[[], dict[str, Any]]]:
    import torch
    from _rl_memory_torch import Trainer

    trainer = Trainer(case, LIMIT, "cuda" if device == "gpu" else "cpu")

    def run() -> None:
        for _ in range(case.iterations):
            trainer.iteration()
        if device == "gpu":
            torch.cuda.synchronize()

    def figures() -> dict[str, Any]:
        return {"bytes": torch.cuda.max_memory_allocated(), "bytes_host": 0} if device == "gpu" else {"bytes_host": 0}

    return run, figures


def measure(name: str, system: str, device: str | None, small: bool) -> dict[str, Any]:
    """One system, in this process."""
    case = quick(CASES[name]) if small else CASES[name]
    if system == "torch":
        run, figures = in_torch(case, device)
    else:
        from common import use_device

        use_device(device)
        run, figures = in_jax(case) if system == "jax" else in_tempo(case, device, system != "tempo")
    run()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start) / case.iterations)
    process = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = f"{case.envs} x {case.steps}, 3x{case.side}x{case.side}"
    common = {"size": size, "budget": case.budget, "bytes_seen": case.seen, "bytes_process": process}
    return {"ms": sorted(times)[ROUNDS // 2], "ms_min": min(times), **figures(), **common}


# -- processes ---------------------------------------------------------------------------------------------------


def in_process(name: str, system: str, device: str | None, small: bool) -> dict[str, Any]:
    """What a process of its own measures, or why it could not."""
    command = [sys.executable, __file__, "--case", name, "--system", system]
    command += ["--quick"] if small else []
    command += ["--device", device] if device else []
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **own})
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {SECONDS} s"}
    if found.returncode == 0:
        result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
        return result
    return {"error": problem(found.returncode, found.stderr)}


def problem(code: int, text: str) -> str:
    """Why a process ended, in a few words."""
    signs = ("RESOURCE_EXHAUSTED", "OutOfMemoryError", "Out of memory", "MemoryError", "bad_alloc", "can't allocate")
    if code == -9 or any(sign in text for sign in signs):
        return "out of memory"
    return (text.strip().splitlines() or [f"ended with {code}"])[-1][:200]


def main() -> int:
    parser = argparse.ArgumentParser(description="What algorithms take of memory, ours and written by hand.")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="where to run (default: JAX's own choice)")
    parser.add_argument("--only", choices=CASES, metavar="CASE", help=f"one of: {', '.join(CASES)}")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.system:
        print(json.dumps(measure(options.case, options.system, options.device, options.quick)))
        return 0
    from common import Results, table

    results = Results("rl_memory", device=options.device, quick=options.quick)
    for name in [options.only] if options.only else CASES:
        times: list[float] = []  # of the others, which come first
        for system in SYSTEMS:
            print(f"{name}, {system} ...", file=sys.stderr, flush=True)
            found = in_process(name, system, options.device, options.quick)
            if "ms" in found and system.startswith("tempo") and times:
                found["ratio"] = found["ms"] / min(times)
            elif "ms" in found:
                times.append(found["ms"])
            results.add(name, system, **found)
    heads = ("case", "system", "size", "ms", "ratio", "MB device", "MB host", "MB process", "blocks", "error")
    rows = [
        (r["case"], r["system"], r.get("size", ""), r.get("ms", ""), r.get("ratio", ""))
        + tuple(r[key] / 1e6 if key in r else "" for key in ("bytes", "bytes_host", "bytes_process"))
        + (str(r.get("blocks", "")), r.get("error", ""))
        for r in results.records
    ]
    print(table(heads, rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
