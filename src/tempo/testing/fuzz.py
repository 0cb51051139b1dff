"""Random programs through all checks: ``python -m tempo.testing.fuzz --count 5000 --seed 0``.

A program that fails is printed as source, made smaller, and printed again; ``--seed S --only K`` runs it alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tempo.testing.checks import CheckError, check
from tempo.testing.choices import RandomChoices
from tempo.testing.features import features
from tempo.testing.programs import Recipe, random_recipe
from tempo.testing.shrinking import shrink, without_gradients


@dataclass(frozen=True)
class Outcome:
    """What came of one program."""

    number: int
    features: frozenset[str]
    seconds: float
    failure: str = ""


def recipe_of(seed: int, number: int) -> Recipe:
    return random_recipe(f"{seed}:{number}")


def checked(recipe: Recipe, seed: int, number: int) -> CheckError | None:
    """The failure of a recipe under the choices of a seed and number, None if it passes."""
    try:
        check(recipe, RandomChoices(f"{seed}:{number}:checks"))
    except CheckError as failure:
        return failure
    except Exception as error:
        return CheckError("internal", recipe, error)
    return None


def run_one(task: tuple[int, int, bool]) -> Outcome:
    """One program through all checks."""
    seed, number, smaller = task
    start = time.perf_counter()
    recipe = recipe_of(seed, number)
    failure = checked(recipe, seed, number)
    text = "" if failure is None else report(recipe, failure, seed, number, smaller)
    return Outcome(number, features(recipe), time.perf_counter() - start, text)


def report(recipe: Recipe, failure: CheckError, seed: int, number: int, smaller: bool) -> str:
    """What is printed of a failure."""
    lines = [f"== program {number} fails (again: --seed {seed} --only {number})", str(failure), "", recipe.source]
    if smaller:
        found = shrunk(recipe, failure, seed, number)
        again = checked(found, seed, number)
        lines += ["-- smaller", str(again), "", found.source]
        failure = again or failure
    if failure.recipe.source not in lines:
        lines += ["-- in the form that fails", failure.recipe.source]
    return "\n".join(lines)


def shrunk(recipe: Recipe, failure: CheckError, seed: int, number: int) -> Recipe:
    """A smaller recipe that fails in the same way."""

    def fails(candidate: Recipe) -> bool:
        found = checked(candidate, seed, number)
        if found is None or found.kind != failure.kind:
            return False
        # A program whose gradient cannot be computed must not turn into one that cannot be computed at all.
        plain = without_gradients(candidate)
        unlike = None if plain is None or plain == candidate else checked(plain, seed, number)
        return unlike is None or unlike.kind != failure.kind

    return shrink(recipe, fails)


def outcomes(seed: int, numbers: range, jobs: int, smaller: bool) -> Iterator[Outcome]:
    tasks = ((seed, number, smaller) for number in numbers)
    if jobs == 1:
        yield from map(run_one, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_one, tasks, chunksize=8)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tempo.testing.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at the same time")
    parser.add_argument("--only", type=int, metavar="K", help="run program K alone, and print it")
    parser.add_argument("--most-failures", type=int, default=10, help="stop after so many failures")
    parser.add_argument("--no-shrink", action="store_true", help="print failing programs as they are")
    options = parser.parse_args(arguments)
    if options.only is not None:
        print(recipe_of(options.seed, options.only))
    numbers = range(options.count) if options.only is None else range(options.only, options.only + 1)
    jobs = min(options.jobs, len(numbers))
    start = time.perf_counter()
    counts: Counter[str] = Counter()
    done = failed = 0
    for outcome in outcomes(options.seed, numbers, jobs, not options.no_shrink):
        done += 1
        counts.update(outcome.features)
        if outcome.failure:
            failed += 1
            print(outcome.failure, flush=True)
            if failed >= options.most_failures:
                print(f"stopping after {failed} failures")
                break
        if done % 250 == 0:
            elapsed = time.perf_counter() - start
            print(f"{done} programs, {failed} failed, {done / elapsed:.1f} a second", flush=True)
    print(summary(done, failed, time.perf_counter() - start, counts))
    return 1 if failed else 0


def summary(done: int, failed: int, seconds: float, counts: Counter[str]) -> str:
    """The coverage table: how many programs used each feature."""
    width = max((len(name) for name in counts), default=0)
    rows = [f"  {name:<{width}} {count:>6}  {100 * count / done:5.1f}%" for name, count in sorted(counts.items())]
    head = f"{done} programs in {seconds:.1f} s ({done / max(seconds, 1e-9):.1f} a second), {failed} failed"
    return "\n".join(["programs that used each feature:", *rows, head])


if __name__ == "__main__":
    sys.exit(main())
