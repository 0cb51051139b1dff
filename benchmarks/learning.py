"""Do the algorithms learn? Trainings with several seeds, each evaluated in 100 episodes of its own.

    python benchmarks/learning.py [--quick] [--only CASE] [--seeds 5] [--logs out/learning] [--plot curves.png]

Settings are those of ``rl.preset``. Environments named with a version are Gymnasium's; policies that were trained
within the program are evaluated in Gymnasium's environment as well, where there is one. ``--logs`` keeps the log of
every training; ``--plot`` draws all that are there.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import Results, table, use_device

from tempo import rl

EPISODES = 100


@dataclass(frozen=True)
class Case:
    """An algorithm in an environment, where its policy is evaluated, and the mean return that counts as solved."""

    algorithm: str
    env: str
    evaluated: str
    solved: float
    seen: tuple[int, ...] = ()
    """What is seen of the observation, if not all."""


CASES = {
    "ppo CartPole-v1": Case("ppo", "CartPole-v1", "CartPole-v1", 475),
    "ppo Acrobot": Case("ppo", "Acrobot", "Acrobot-v1", -100),
    "ppo Pendulum": Case("ppo", "Pendulum", "Pendulum-v1", -250),
    "a2c CartPole": Case("a2c", "CartPole", "CartPole-v1", 475),
    "dqn CartPole": Case("dqn", "CartPole", "CartPole-v1", 475),
    "recurrent_ppo CartPole, speeds hidden": Case("recurrent_ppo", "CartPole", "CartPole", 475, seen=(0, 2)),
}


def environment(name: str, count: int, seed: int, seen: tuple[int, ...]) -> Any:
    env = rl.make(name, count, seed)
    return rl.PartlySeen(env, seen) if seen and isinstance(env, rl.Environment) else env


def learn(case: Case, seed: int, quick: bool, directory: Path | None) -> dict[str, Any]:
    """Train once, and evaluate."""
    settings = rl.preset(case.algorithm, case.env)
    total = settings.pop("total")
    made_at_once = settings["count"] * settings.get("steps", 1)
    iterations = 3 if quick else total // made_at_once
    env = environment(case.env, settings["count"], seed, case.seen)
    build: Any = getattr(rl, case.algorithm)
    algorithm = build(env, iterations=iterations, **settings)
    start = time.perf_counter()
    trained = rl.train(algorithm, directory, seed=seed, every=iterations)
    seconds = time.perf_counter() - start
    where = environment(case.evaluated, 1, seed, case.seen)
    limit = 20 if quick else None
    found = rl.evaluate(algorithm.policy, trained.parameters, where, EPISODES, seed=1000 + seed, limit=limit)
    return {
        "seed": seed,
        "mean_return": float(found.returns.mean()),
        "min_return": float(found.returns.min()),
        "solved": bool(found.returns.mean() >= case.solved),
        "steps": iterations * made_at_once,
        "seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Trainings with several seeds, and how well their policies act.")
    parser.add_argument("--quick", action="store_true", help="three iterations: does it run, not does it learn")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="where to run (default: JAX's own choice)")
    parser.add_argument("--only", choices=CASES, metavar="CASE", help=f"one of: {'; '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="trainings per case (default: %(default)s)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs here")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw the curves of the logs that are there")
    options = parser.parse_args()
    device = use_device(options.device)
    results = Results("learning", device=device.device_kind, quick=options.quick)
    for name in [options.only] if options.only else CASES:
        for seed in range(1 if options.quick else options.seeds):
            print(f"{name}, seed {seed} ...", file=sys.stderr, flush=True)
            kept = None if options.logs is None else options.logs / name / str(seed)
            results.add(name, "tempo", **learn(CASES[name], seed, options.quick, kept))
    if options.plot is not None and options.logs is not None:
        logs = {name: [rl.read_log(path) for path in sorted((options.logs / name).glob("*"))] for name in CASES}
        rl.plot_curves(options.plot, {name: found for name, found in logs.items() if found})
    rows = []
    for name in dict.fromkeys(r["case"] for r in results.records):
        own = [r for r in results.records if r["case"] == name]
        returns = [r["mean_return"] for r in own]
        solved = f"{sum(r['solved'] for r in own)} of {len(own)}"
        mean = float(np.mean(returns))
        rows.append((name, own[0]["steps"], mean, min(returns), CASES[name].solved, solved, own[0]["seconds"]))
    print(table(("case", "steps", "mean", "worst seed", "goal", "solved", "seconds"), rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
