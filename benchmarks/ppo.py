"""PPO on the device: ours against JAX written by hand (PureJaxRL's way) and PyTorch (CleanRL's way), in one process.

    python benchmarks/ppo.py [--quick] [--device cpu|gpu] [--only CASE]

The synthetic environment runs on the device in all systems: an observation of 3x4x4, one epoch of one minibatch. From
the base (512 environments, 250 steps, 2 layers of 64) one size at a time is varied. ``ms`` is the time of an iteration,
within a run of many. Of two plans of ours the faster is taken, and of three variants of JAX, to which ``ratio`` is.
Draws differ between systems, so that what is checked is the mean reward over the iterations.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import _ppo_jax
import jax
import numpy as np
import torch
from _ppo_setting import CLIP, ENTROPY, GAMMA, LAMBDA, MOST_NORM, RATE, VALUE, Setting
from _ppo_torch import PPO
from common import TRACE_PHASES, Results, arguments, each, interleaved, least, medians, table, use_device

import tempo as tp
from tempo import rl

BASE = Setting()
CASES = {
    "base": BASE,
    **{f"steps {n}": replace(BASE, steps=n) for n in (125, 500, 2000)},
    **{f"width {n}": replace(BASE, width=n) for n in (16, 256)},
    **{f"layers {n}": replace(BASE, layers=n) for n in (1, 4, 16)},
    **{f"envs {n}": replace(BASE, envs=n) for n in (128, 2048)},
}
# Draws of all iterations at once, or of each by itself.
PLANS = {"as it is": None, "i 1": tp.Plan(blocks={"i": 1})}
# PyTorch takes seconds a run where the others take milliseconds.
TORCH_ITERATIONS = 2
TOLERANCE = 0.1


def quick(setting: Setting) -> Setting:
    """The same case, small."""
    return replace(
        setting,
        envs=max(setting.envs // 128, 2),
        steps=max(setting.steps // 25, 4),
        width=max(setting.width // 8, 2),
        iterations=3,
    )


def ours(setting: Setting, device: Any, plan: Any) -> tuple[Callable[[], Any], dict[str, Any]]:
    """The program of ``rl.ppo`` with a plan, and what compiling it took."""
    env = rl.Synthetic(setting.observation, limit=setting.limit)
    hidden = setting.layers * [setting.width]
    algorithm = rl.ppo(
        env,
        rl.Policy(env, hidden),
        rl.Critic(env, hidden),
        iterations=setting.iterations,
        count=setting.envs,
        steps=setting.steps,
        epochs=1,
        minibatches=1,
        gamma=GAMMA,
        lam=LAMBDA,
        rate=RATE,
        clip=CLIP,
        value_weight=VALUE,
        entropy_weight=ENTROPY,
        most_norm=MOST_NORM,
    )
    with algorithm.program as prog:
        i, b, t = (next(d for d in prog.dims if d.name == name) for name in "ibt")
        prog.emit("reward", tp.mean(algorithm.tensors["reward"][i, 0 : b.bound, 0 : t.bound]))
    start = time.perf_counter()
    run = prog.compile(algorithm.bounds, device=device.platform, plan=plan)
    run()
    first = time.perf_counter() - start
    trace = sum(run.seconds[phase] for phase in TRACE_PHASES)
    figures = {"trace_s": trace, "first_s": first, "bytes_planned": run.storage.peak}
    return lambda: np.array([record.value for record in run().emits["reward"]]), figures


def by_hand(setting: Setting, variant: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    start = time.perf_counter()
    key = jax.random.key(0)
    compiled = jax.jit(lambda key: _ppo_jax.train(setting, key, **_ppo_jax.VARIANTS[variant])).lower(key).compile()

    def run() -> Any:
        return np.asarray(jax.block_until_ready(compiled(key))["reward"])

    run()
    return run, {"first_s": time.perf_counter() - start}


def in_torch(setting: Setting, device: Any, cached: bool) -> Callable[[], Any]:
    ppo = PPO(setting, "cuda" if device.platform == "gpu" else "cpu", cached)

    def run() -> Any:
        return np.array([ppo.iteration().item() for _ in range(TORCH_ITERATIONS)])

    return run


def compare(case: str, setting: Setting, device: Any, fast: bool, results: Results) -> None:
    plans = {name: ours(setting, device, plan) for name, plan in PLANS.items()}
    hand = {variant: by_hand(setting, variant) for variant in _ppo_jax.VARIANTS}
    rewards = {name: run() for name, (run, _) in {**plans, **hand}.items()}
    means = {name: float(np.mean(reward)) for name, reward in rewards.items()}
    expected = means["scan"]
    # A few environments and steps say little about a mean.
    if not fast and max(abs(mean / expected - 1) for mean in means.values()) > TOLERANCE:
        raise ValueError(f"{case}: the mean rewards differ: {means}")
    seconds = 0.3 if fast else 3.0
    tried = least(interleaved({name: run for name, (run, _) in hand.items()}, seconds, least_rounds=3))
    best = min(tried, key=tried.__getitem__)
    own = least(interleaved({name: run for name, (run, _) in plans.items()}, seconds, least_rounds=3))
    plan = min(own, key=own.__getitem__)
    tempo, figures = plans[plan]
    times = interleaved({"tempo": tempo, "jax": hand[best][0]}, seconds)
    ms = {name: value / setting.iterations for name, value in medians(times).items()}
    shortest = {name: value / setting.iterations for name, value in least(times).items()}
    variants = {name: value / setting.iterations for name, value in tried.items()}
    of_plans = {name: value / setting.iterations for name, value in own.items()}
    size = f"{setting.envs} x {setting.steps}, {setting.layers} x {setting.width}"
    common = {"size": size, "iterations": setting.iterations, "runs": len(times["jax"])}
    results.add(
        case,
        "jax",
        ms=ms["jax"],
        ms_min=shortest["jax"],
        variant=best,
        ms_of_variants=variants,
        **hand[best][1],
        **common,
    )
    ratio = {"ratio": ms["tempo"] / ms["jax"], "ratio_min": shortest["tempo"] / shortest["jax"]}
    results.add(
        case,
        "tempo",
        ms=ms["tempo"],
        ms_min=shortest["tempo"],
        **ratio,
        plan=plan,
        ms_of_plans=of_plans,
        reward=means[plan],
        **figures,
        **common,
    )
    for cached in (False, True):
        found = interleaved({"torch": in_torch(setting, device, cached)}, seconds, least_rounds=2, most_rounds=7)
        per_iteration = medians(found)["torch"] / TORCH_ITERATIONS
        name = "torch cached" if cached else "torch"
        results.add(case, name, ms=per_iteration, ratio=per_iteration / ms["jax"], size=size, runs=len(found["torch"]))


def main() -> int:
    options = arguments("PPO with an environment on the device, against JAX and PyTorch.", tuple(CASES))
    device = use_device(options.device)
    if device.platform == "gpu" and not torch.cuda.is_available():
        sys.exit("the PyTorch that is installed has no CUDA")
    results = Results("ppo", device=device.device_kind, quick=options.quick)

    def measure(case: str) -> None:
        compare(case, quick(CASES[case]) if options.quick else CASES[case], device, options.quick, results)

    failed = each([options.only] if options.only else list(CASES)[: 2 if options.quick else None], measure)
    print(summary(results), file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def summary(results: Results) -> str:
    found = {(r["case"], r["system"]): r for r in results.records}
    heads = ("case", "size", "tempo ms", "jax ms", "ratio", "torch ms", "torch cached ms", "trace s", "first run s")
    heads += ("jax first run s", "MB planned", "jax variant")
    rows = []
    for case in dict.fromkeys(case for case, _ in found):
        parts = [found.get((case, name)) for name in ("tempo", "jax", "torch", "torch cached")]
        if None not in parts:
            a, b, c, d = parts
            row = (case, a["size"], a["ms"], b["ms"], a["ratio"], c["ms"], d["ms"], a["trace_s"], a["first_s"])
            rows.append((*row, b["first_s"], a["bytes_planned"] / 1e6, b["variant"]))
    return table(heads, rows)


if __name__ == "__main__":
    sys.exit(main())
