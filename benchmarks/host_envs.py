"""PPO with environments of Gymnasium, which run in Python: ours against PyTorch (CleanRL's way), in one process.

    python benchmarks/host_envs.py [--quick] [--device cpu|gpu] [--only CASE]

The environments, ``gymnasium.vector.SyncVectorEnv`` with CartPole-v1, are the same for both, and so is PPO: 128 steps,
4 epochs of 4 minibatches, two networks of 2 x 64. ``ms`` is the time of an iteration within a run of many, ``steps_s``
how many steps of environments a second has. PyTorch is measured with CleanRL's critic in every step and with one for
all steps, and with one thread and as many as it likes; ``ratio`` is to the fastest of these.

A profile says where our time goes, in microseconds a step: ``env`` is Gymnasium's, ``host`` what we do around its
calls, ``acting`` the XLA programs between calls with what Python does to start them, ``other`` the rest of the runtime;
``learning`` is what is done once in an iteration. ``forward`` is what PyTorch's policy takes for a step.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import torch
from _host_envs_setting import EPOCHS, MINIBATCHES, Setting
from _host_envs_torch import HostPPO
from _ppo_setting import CLIP, ENTROPY, GAMMA, LAMBDA, MOST_NORM, RATE, VALUE
from common import TRACE_PHASES, Results, arguments, interleaved, least, medians, table, use_device

import tempo as tp
from tempo import rl
from tempo.runtime.executable import Executable

CASES = {f"{n} envs": Setting(n) for n in (8, 64)}
QUICK = {f"{n} envs": Setting(n, steps=16, hidden=(8,), iterations=2) for n in (8, 64)}
PARTS = ("env", "host", "acting", "other", "learning")


class Ours:
    """The program of ``rl.ppo`` with a Gymnasium environment."""

    def __init__(self, setting: Setting, device: Any) -> None:
        self.setting = setting
        self.env = rl.Gymnasium(setting.name, setting.envs, seed=0)
        algorithm = rl.ppo(
            self.env,
            rl.Policy(self.env, setting.hidden),
            rl.Critic(self.env, setting.hidden),
            iterations=setting.iterations,
            count=setting.envs,
            steps=setting.steps,
            epochs=EPOCHS,
            minibatches=MINIBATCHES,
            gamma=GAMMA,
            lam=LAMBDA,
            rate=RATE,
            clip=CLIP,
            value_weight=VALUE,
            entropy_weight=ENTROPY,
            most_norm=MOST_NORM,
        )
        start = time.perf_counter()
        # The plan of rl.train.
        self.executable: Executable = algorithm.program.compile(
            algorithm.bounds, device=device.platform, plan=tp.Plan(blocks={"i": 1})
        )
        self.executable()
        seconds = self.executable.seconds
        self.figures = {
            "trace_s": sum(seconds[phase] for phase in TRACE_PHASES),
            "first_s": time.perf_counter() - start,
            "bytes_planned": self.executable.storage.peak,
        }

    def __call__(self) -> None:
        self.executable()

    def profile(self) -> dict[str, float]:
        """Where the time of a run goes, in microseconds a step of all environments."""
        spent: Counter[str] = Counter()

        def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                start = time.perf_counter()
                found = function(*given)
                spent[name] += time.perf_counter() - start
                return found

            return call

        envs, machine = self.env.envs, self.executable._machine
        original = envs.step, machine.start

        def start(*given: Any) -> Any:
            worker = original[1](*given)
            acting, learning = timed("acting", worker.part), timed("learning", worker.part)

            def part(item: Any, at: Any) -> Any:
                within = any(loop.dim.name == "t" for loop in item.outer)
                return acting(item, at) if within else learning(item, at)

            worker.part, worker.call = part, timed("calls", worker.call)
            return worker

        envs.step, machine.start = timed("env", envs.step), start
        begin = time.perf_counter()
        try:
            self.executable()
        finally:
            envs.step, machine.start = original
        total = time.perf_counter() - begin
        spent["host"] = spent.pop("calls") - spent["env"]
        spent["other"] = total - spent.total()
        count = self.setting.iterations * self.setting.steps
        return {name: 1e6 * spent[name] / count for name in PARTS}

    def least_profile(self) -> dict[str, float]:
        """The profile of the shortest of some runs."""
        return min((self.profile() for _ in range(5)), key=lambda found: sum(found.values()))


def in_torch(setting: Setting, device: Any, apart: bool, threads: int) -> Callable[[], None]:
    ppo = HostPPO(setting, "cuda" if device.platform == "gpu" else "cpu", apart)

    def run() -> None:
        torch.set_num_threads(threads)
        ppo.start()
        for _ in range(setting.iterations):
            ppo.iteration()

    return run


def forward(setting: Setting, device: Any) -> float:
    """What PyTorch's policy alone takes for a step, in microseconds."""
    ppo = HostPPO(setting, "cuda" if device.platform == "gpu" else "cpu", apart=True)
    ppo.start()
    torch.set_num_threads(1)

    def run() -> None:
        with torch.no_grad():
            for _ in range(100):
                log_p = torch.log_softmax(ppo.policy(torch.from_numpy(ppo.observation).to(ppo.device)), -1)
                (log_p - torch.empty_like(log_p).exponential_().log()).argmax(-1).cpu().numpy()

    return 10 * least(interleaved({"forward": run}, 1.0))["forward"]


def compare(case: str, setting: Setting, device: Any, quick: bool, results: Results) -> None:
    tempo = Ours(setting, device)
    every = torch.get_num_threads()
    names = {"torch": False, "torch, values at once": True}
    variants = {
        (name, threads): in_torch(setting, device, apart, threads)
        for name, apart in names.items()
        for threads in sorted({1, every})
    }
    times = interleaved({("tempo", 0): tempo, **variants}, 1.0 if quick else 30.0, least_rounds=3, most_rounds=15)
    torch.set_num_threads(every)
    ms = {key: value / setting.iterations for key, value in medians(times).items()}
    shortest = {key: value / setting.iterations for key, value in least(times).items()}
    steps = setting.envs * setting.steps
    common = {"size": f"{setting.envs} x {setting.steps}", "iterations": setting.iterations}
    for name in names:
        key = min((k for k in variants if k[0] == name), key=ms.__getitem__)
        common_torch = {"threads": key[1], "runs": len(times[key]), **common}
        results.add(case, name, ms=ms[key], ms_min=shortest[key], steps_s=1000 * steps / ms[key], **common_torch)
    best = min(variants, key=ms.__getitem__)
    ours = "tempo", 0
    results.add(
        case,
        "tempo",
        ms=ms[ours],
        ms_min=shortest[ours],
        steps_s=1000 * steps / ms[ours],
        ratio=ms[ours] / ms[best],
        ratio_min=shortest[ours] / min(shortest[key] for key in variants),
        profile_us=tempo.least_profile(),
        forward=forward(setting, device),
        runs=len(times[ours]),
        **tempo.figures,
        **common,
    )
    tempo.env.close()


def main() -> int:
    options = arguments("PPO with environments in Python, against PyTorch.", tuple(CASES))
    # As our programs with host calls have it, if they are the first to use JAX: here, choosing a device is.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    device = use_device(options.device)
    if device.platform == "gpu" and not torch.cuda.is_available():
        sys.exit("the PyTorch that is installed has no CUDA")
    results = Results("host_envs", device=device.device_kind, quick=options.quick)
    cases = QUICK if options.quick else CASES
    for case in [options.only] if options.only else cases:
        print(f"{case} ...", file=sys.stderr, flush=True)
        compare(case, cases[case], device, options.quick, results)
    print(summary(results), file=sys.stderr)
    return 0


def summary(results: Results) -> str:
    heads = ("case", "system", "steps/s", "ms", "ratio", *(f"us {name}" for name in PARTS), "us torch's policy")
    rows = [
        (r["case"], r["system"], r["steps_s"], r["ms"], r.get("ratio", ""))
        + tuple(r["profile_us"][name] if "profile_us" in r else "" for name in PARTS)
        + (r.get("forward", ""),)
        for r in results.records
    ]
    return table(heads, rows)


if __name__ == "__main__":
    sys.exit(main())
