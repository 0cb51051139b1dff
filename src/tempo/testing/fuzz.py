"""Random programs through all checks: ``python -m tempo.testing.fuzz --count 5000 --seed 0``.

A program that fails is printed as source, made smaller, and printed again; ``--seed S --only K`` runs it alone.
``--backends numpy,jax`` compiles every program with both. Programs run in processes of their own: one that crashes or
hangs is a failure like any other.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tempo.runtime.executable import BACKENDS
from tempo.testing.checks import CheckError, check
from tempo.testing.choices import RandomChoices
from tempo.testing.features import features
from tempo.testing.programs import LONGER, random_recipe
from tempo.testing.recipe import Recipe
from tempo.testing.shrinking import shrink, without_gradients
from tempo.testing.workers import Lost, calls

# One thread a process, and nothing is kept on disk. XLA's optimisations stay on: without them a check is a tenth
# faster, but what is checked is not what users run. The exception is that it may leave out rounding to half precision,
# which a recurrence can make any difference of.
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "0",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_allow_excess_precision=false",
    "NPROC": "1",
}

# For how long a failing program is made smaller.
SHRINKING_SECONDS = 120.0


@dataclass(frozen=True)
class Task:
    """A program, by number, and what it is compiled with (None: as ``check`` chooses); ``longer``: with a dim of many
    steps, if it may have one."""

    seed: int
    number: int
    backends: tuple[str, ...] | None = None
    longer: bool = False

    @property
    def recipe(self) -> Recipe:
        return recipe_of(self.seed, self.number, self.longer)

    def check(self, recipe: Recipe) -> frozenset[str]:
        """What ``check`` gives for a recipe under the choices of this task."""
        try:
            return check(recipe, RandomChoices(f"{self.seed}:{self.number}:checks"), self.backends)
        except CheckError:
            raise
        except Exception as error:
            raise CheckError("internal", recipe, error) from error

    def failure(self, recipe: Recipe) -> CheckError | None:
        """The failure of a recipe under the choices of this task, None if it passes."""
        try:
            self.check(recipe)
        except CheckError as failure:
            return failure
        return None

    def __str__(self) -> str:
        backends = f" --backends {','.join(self.backends)}" if self.backends else ""
        longer = " --longer" if self.longer else ""
        return f"--seed {self.seed} --only {self.number}{backends}{longer}"


@dataclass(frozen=True)
class Outcome:
    """What came of one program: what it uses, and what ``check`` says of it or (``failure``) what is wrong."""

    facts: frozenset[str]
    failure: str = ""


def recipe_of(seed: int, number: int, longer: bool = False) -> Recipe:
    return random_recipe(f"{seed}:{number}", 1.0 if longer else LONGER)


def run_one(task: Task) -> Outcome:
    """One program through all checks."""
    recipe = task.recipe
    try:
        return Outcome(features(recipe) | task.check(recipe))
    except CheckError as failure:
        return Outcome(features(recipe), f"{failure}\n\n{shown(recipe, failure)}")


def shown(recipe: Recipe, failure: CheckError) -> str:
    """A recipe that fails, and the form of it that fails where that is another."""
    if failure.recipe == recipe:
        return recipe.source
    return f"{recipe.source}\n-- in the form that fails\n{failure.recipe.source}"


def smaller(task: Task) -> str:
    """A program that fails, made smaller and printed."""
    recipe = task.recipe
    failure = task.failure(recipe)
    if failure is None:
        return "it does not fail a second time"
    found = shrunk(recipe, failure, task)
    failure = task.failure(found) or failure
    return f"{failure}\n\n{shown(found, failure)}"


def shrunk(recipe: Recipe, failure: CheckError, task: Task) -> Recipe:
    """A smaller recipe that fails in the same way."""
    end = time.monotonic() + SHRINKING_SECONDS

    def alike(candidate: Recipe) -> bool:
        found = task.failure(candidate)
        return found is not None and found.kind == failure.kind

    def plain_fails(candidate: Recipe) -> bool:
        plain = without_gradients(candidate)
        return plain is not None and plain != candidate and alike(plain)

    # A program whose gradient cannot be computed must not turn into one that cannot be computed at all.
    only_gradients = not plain_fails(recipe)

    def fails(candidate: Recipe) -> bool:
        if time.monotonic() > end:
            return False
        return alike(candidate) and not (only_gradients and plain_fails(candidate))

    return shrink(recipe, fails)


def outcomes(tasks: Sequence[Task], jobs: int, seconds: float) -> Iterator[tuple[Task, Outcome]]:
    if jobs == 0:
        yield from ((task, run_one(task)) for task in tasks)
        return
    for task, outcome in calls(run_one, tasks, jobs, seconds, SETTINGS):
        if isinstance(outcome, Lost):
            outcome = Outcome(features(task.recipe), f"{outcome.reason}\n\n{task.recipe.source}")
        yield task, outcome


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    numbers = range(options.count) if options.only is None else range(options.only, options.only + 1)
    tasks = [Task(options.seed, number, options.backends, options.longer) for number in numbers]
    if options.only is not None:
        print(tasks[0].recipe)
    start = time.perf_counter()
    counts: Counter[str] = Counter()
    failed: list[Task] = []
    refused: list[Task] = []
    done = 0
    for task, outcome in outcomes(tasks, min(options.jobs, len(tasks)), options.timeout):
        done += 1
        counts.update(outcome.facts)
        if any(fact.endswith(" refused") for fact in outcome.facts):
            refused.append(task)
        if outcome.failure:
            failed.append(task)
            print(f"== program {task.number} fails (again: {task})\n{outcome.failure}", flush=True)
            if len(failed) >= options.most_failures:
                print(f"stopping after {len(failed)} failures")
                break
        if done % 250 == 0:
            elapsed = time.perf_counter() - start
            print(f"{done} programs, {len(failed)} failed, {done / elapsed:.1f} a second", flush=True)
    seconds = time.perf_counter() - start
    if failed and not options.no_shrink:
        shrinking = functools.partial(calls, seconds=2 * SHRINKING_SECONDS, settings=SETTINGS)
        for task, text in shrinking(smaller, failed, min(options.jobs, len(failed)) or 1):
            print(f"== program {task.number}, smaller\n{text.reason if isinstance(text, Lost) else text}", flush=True)
    if refused:
        print(f"refused: {', '.join(str(task.number) for task in refused)}")
    print(coverage(done, counts))
    print(summary(done, len(failed), len(refused), seconds, counts))
    return 1 if failed else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tempo.testing.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at the same time; 0: in here")
    parser.add_argument("--only", type=int, metavar="K", help="run program K alone, and print it")
    parser.add_argument("--backends", type=backends, help="compile every program with all of these: numpy,jax")
    parser.add_argument("--longer", action="store_true", help="with many steps of one dim wherever that is possible")
    parser.add_argument("--timeout", type=float, default=120.0, help="how many seconds one program may take")
    parser.add_argument("--most-failures", type=int, default=10, help="stop after so many failures")
    parser.add_argument("--no-shrink", action="store_true", help="print failing programs as they are")
    return parser.parse_args(arguments)


def backends(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in BACKENDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no backend '{unknown[0]}': backends are {', '.join(BACKENDS)}")
    return names


def coverage(done: int, counts: Counter[str]) -> str:
    """The coverage table: how many programs used each feature."""
    width = max((len(name) for name in counts), default=0)
    rows = [f"  {name:<{width}} {count:>6}  {100 * count / done:5.1f}%" for name, count in sorted(counts.items())]
    return "\n".join(["programs that used each feature:", *rows])


def summary(done: int, failed: int, refused: int, seconds: float, counts: Counter[str]) -> str:
    """What was done, in one line."""
    compiled = ", ".join(f"{name} {counts[f'{name} compiled']}" for name in BACKENDS)
    kinds = {"stops": "stop", "gradients": "gradient", "host calls": "host call"}
    used = ", ".join(f"{name} {counts[feature]}" for name, feature in kinds.items())
    return (
        f"{done} programs in {seconds:.1f} s ({done / max(seconds, 1e-9):.1f} a second): "
        f"compiled with {compiled}; with {used}; {refused} refused, {failed} failed"
    )


if __name__ == "__main__":
    sys.exit(main())
