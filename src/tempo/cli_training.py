"""The commands ``tempo train`` and ``tempo evaluate``: policies in a terminal."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import tempo as tp
from tempo import rl
from tempo.rl.counts import expect_counts
from tempo.rl.training.train import begins_anew

ALGORITHMS = {
    "a2c": rl.a2c,
    "dqn": rl.dqn,
    "ppo": rl.ppo,
    "recurrent_ppo": rl.recurrent_ppo,
    "reinforce": rl.reinforce,
}
SETTINGS = "settings.json"


def add_commands(commands: Any) -> None:
    command = commands.add_parser(
        "train",
        help="train a policy",
        description="Train a policy. Logs, the learning curve, checkpoints and the parameters go into a directory.",
    )
    command.set_defaults(run=train)
    command.add_argument("algorithm", choices=ALGORITHMS, help="how to learn: %(choices)s", metavar="ALGORITHM")
    command.add_argument(
        "--env",
        required=True,
        metavar="NAME",
        help="an environment of Gymnasium, such as CartPole-v1, or without a version one of Tempo's, such as CartPole",
    )
    command.add_argument(
        "--total", type=int, metavar="N", help="steps of environments in all (default: by environment)"
    )
    command.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="arguments of the algorithm, such as rate=1e-3 count=16",
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="the same one repeats (default: %(default)s)")
    command.add_argument("--directory", metavar="DIR", help="default: runs/ALGORITHM-NAME-SEED")
    command.add_argument("--every", type=int, default=50, metavar="N", help="iterations between checkpoints")
    command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the directory")
    command.add_argument("--device", choices=("cpu", "gpu"), help="where to compute (default: what JAX picks)")
    command.add_argument(
        "--episodes", type=int, default=100, metavar="N", help="evaluate in so many afterwards (default: %(default)s)"
    )

    command = commands.add_parser(
        "evaluate", help="let a trained policy act", description="Let a policy that was trained act, and say how well."
    )
    command.set_defaults(run=evaluate)
    command.add_argument("directory", metavar="DIR", help="where it was trained")
    command.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (default: %(default)s)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    command.add_argument("--sample", action="store_true", help="draw actions instead of taking the likeliest")
    command.add_argument("--gif", metavar="PATH", help="also write an episode as a GIF")


def train(options: argparse.Namespace) -> int:
    settings = {**rl.preset(options.algorithm, options.env), **assignments(options.algorithm, options.set)}
    if options.total is not None:
        settings["total"] = options.total
    directory = Path(options.directory or f"runs/{options.algorithm}-{options.env.replace('/', '-')}-{options.seed}")
    algorithm = build(options.algorithm, options.env, settings, options.seed)
    directory.mkdir(parents=True, exist_ok=True)
    if begins_anew(directory, options.resume):  # a call before this one may have failed
        about = {"algorithm": options.algorithm, "env": options.env, "seed": options.seed, "settings": settings}
        (directory / SETTINGS).write_text(json.dumps(about, indent=2) + "\n")
    trained = rl.train(
        algorithm,
        directory,
        seed=options.seed,
        resume=options.resume,
        every=options.every,
        progress=True,
        device=options.device,
    )
    print(f"results: {directory}", file=sys.stderr)
    if options.episodes:
        report(rl.evaluate(algorithm.policy, trained.parameters, algorithm.env, options.episodes, seed=options.seed))
    return 0


def evaluate(options: argparse.Namespace) -> int:
    path = Path(options.directory) / SETTINGS
    if not path.exists():
        raise tp.errors.CheckpointError(
            f"nothing was trained in '{options.directory}': there is no {SETTINGS}",
            hint="tempo train ppo --env CartPole-v1 --directory DIR",
        )
    about = json.loads(path.read_text())
    algorithm = build(about["algorithm"], about["env"], about["settings"], about["seed"])
    parameters = rl.load_parameters(options.directory)
    how = {"seed": options.seed, "sample": options.sample}
    report(rl.evaluate(algorithm.policy, parameters, algorithm.env, options.episodes, **how))
    if options.gif is not None:
        if not isinstance(algorithm.env, rl.Gymnasium):
            raise tp.errors.ProgramError(
                f"{about['env']} has no pictures", hint="environments of Gymnasium have; train in one, e.g. CartPole-v1"
            )
        rl.render(algorithm.policy, parameters, algorithm.env, options.gif, **how)
    return 0


def build(name: str, env: str, settings: dict[str, Any], seed: int) -> rl.Algorithm:
    """The algorithm with these settings; how many iterations follows from the steps in all."""
    arguments = dict(settings)
    total, count, steps = arguments.pop("total"), arguments["count"], arguments.get("steps", 1)
    expect_counts(count=count, steps=steps)
    iterations = max(1, total // (count * steps))
    make: Any = ALGORITHMS[name]
    algorithm: rl.Algorithm = make(rl.make(env, arguments["count"], seed), iterations=iterations, **arguments)
    return algorithm


def assignments(algorithm: str, texts: list[str]) -> dict[str, Any]:
    """Arguments of an algorithm from texts such as ``rate=1e-3``."""
    make: Any = ALGORITHMS[algorithm]
    keywords = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
    known = [name for name in keywords if name not in ("iterations", "init")]
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            raise tp.errors.ProgramError(f"{algorithm} has no argument '{name}'", hint=f"it has {', '.join(known)}")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise tp.errors.ProgramError(
                f"'{text}' gives {name} no value", hint="write NAME=VALUE, such as rate=1e-3 or anneal=False"
            ) from None
    return found


def report(found: rl.Evaluation) -> None:
    returns = found.returns
    print(
        f"return over {len(returns)} episodes: mean {returns.mean():.1f}, "
        f"from {returns.min():.1f} to {returns.max():.1f}; mean length {found.lengths.mean():.1f}"
    )
