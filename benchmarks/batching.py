"""Recursive models: ours against PyTorch, one instance at a time and batched by hand, in one process, in turn.

    python benchmarks/batching.py [--quick] [--device cpu|gpu] [--only PART[/PART...][,...]] [--seconds N] [--jobs N]

A case is MODEL/BATCH/SIZE/WHAT, such as ``tree_lstm/64/small/forward``; ``--only 64/small`` runs all that have both
parts. The models are those of examples/batching. ``training`` is the gradient of the mean loss. ``--jobs`` takes
several cases at a time, each in a process of its own: they are compiled together, and each is timed alone. (On a CPU,
Berxit with more than eight instances takes many minutes: it is run where it is named, ``--only berxit/64``.)

Systems: ``tempo`` is the recursive Python function, recording and planning included; ``tempo forest`` gets trees as
arrays, and gives their roots' states, planning included, and ``tempo forest again`` is the same for trees that were
planned before, as in all epochs but the first; ``tempo program`` is the model as a program over time, with a dim for
the instances (examples/batching/programs.py), from lists to lists of results as the recursion; ``tempo unbatched``
computes every call of a cell by itself; ``torch eager`` runs one instance after another; ``torch by hand`` is batched
level by level. What runs for one instance at a time is timed for some of them, as many as take PyTorch a second, and
its time is multiplied where there are more. The others run in turn for ``--seconds`` (6), three times at least. Data
are on the host at first, for all of them.

On a CPU everything runs on one thread: the process is bound to one core before any library starts (sched_setaffinity),
and PyTorch is told, too. ``floor_ms`` is how long the model's multiply-adds would take at the rate of the best of two
libraries' large matrix products, measured in the same run.

``host_ms`` is what Python does before a result is there: for ours, running the model, planning, calling kernels, and
fetching, which waits for the device (the table has it without that). ``device_ms`` are our kernels alone, started one
after another without anything in between. ``kernels`` are launches of cells, ``dispatches`` calls of compiled
functions: launches in a row may be a loop. ``width`` is how many calls a launch makes, ``padding`` the part of its
lanes that make none. ``first_s`` is the first mini-batch, compilation included.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Recursive models against PyTorch.")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast is it")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="where to run (default: JAX's own choice)")
    parser.add_argument("--only", default="", metavar="PART[/PART...][,...]", help="e.g. 64/small, or tree_lstm/8")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long the systems of a case run (default: 6)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases that are compiled at the same time")
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)  # the file that such processes take turns by
    found = parser.parse_args()
    if found.jobs < 1:
        parser.error(f"{found.jobs} jobs do nothing; there must be at least one")
    return found


DEFAULTS = argparse.Namespace(quick=True, device="cpu", only="", seconds=0.3, jobs=1, turns=None)
OPTIONS = options_of() if __name__ == "__main__" else DEFAULTS
if OPTIONS.device == "cpu" and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "batching"))

from _turns import Turns  # noqa: E402

TURNS = Turns(OPTIONS.turns)
BEGUN = ExitStack()
"""What a process does before it is timed, its imports included: together with other processes."""
BEGUN.enter_context(TURNS.together())

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import programs  # noqa: E402
import torch  # noqa: E402
import workload  # noqa: E402
from _batching_torch import MODELS as TORCH  # noqa: E402
from common import Results, each, interleaved, least, medians, table, use_device  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tempo as tp  # noqa: E402

NAMES = ("tree_lstm", "mv_rnn", "bi_rnn", "nested_rnn", "drnn", "berxit", "stack_rnn")
FORESTS = ("tree_lstm", "mv_rnn")
BATCHES = (8, 64, 256)
MOST_ALONE, LEAST_ALONE = 64, 4
"""How many instances run one at a time: as many as take PyTorch a second, within these."""
TOLERANCE = 1e-4

TURN = 0.03
"""Seconds: mini-batches of less come several in a row, as they do in practice."""

Case = tuple[str, int, str, str]


def cases(only: str, quick: bool, device: str) -> list[Case]:
    wanted = [{part for part in one.split("/") if part} for one in only.split(",")]
    found = []
    for name in NAMES:
        for batch in (8,) if quick else BATCHES:
            for size in ("small",) if quick else ("small", "large"):
                for what in ("forward", "training"):
                    if what == "training" and TORCH[name].loss is None:
                        continue
                    asked = [one for one in wanted if one <= {name, str(batch), size, what}]
                    # 64 transformers of 12 layers take a CPU's core a quarter of a minute, for each system.
                    takes_minutes = name == "berxit" and device == "cpu" and batch > 8
                    if any(name in one or not takes_minutes for one in asked):
                        found.append((name, batch, size, what))
    return found


# -- what a model costs -----------------------------------------------------------------------------------------


def flops(name: str, h: int, instances: Sequence[Any], results: Sequence[Any]) -> float:
    """Twice the multiply-adds of the matrix products of a forward pass."""
    if name in FORESTS:
        leaves = sum(len(workload.words(tree)) for tree in instances)
        inner = leaves - len(instances)
        if name == "tree_lstm":
            return 2.0 * h * h * (3 * leaves + 5 * inner)
        return 2.0 * inner * (4 * h * h + 2 * h**3)
    if name == "bi_rnn":
        return 2.0 * sum(map(len, instances)) * (12 * h * h + 10 * h)
    if name == "nested_rnn":
        return 2.0 * h * h * sum(6 + 2 * len(sentence) for document in instances for sentence in document)
    if name == "drnn":
        return 2.0 * h * (14 * h + 7) * sum(map(nodes, results))
    if name == "berxit":
        length = len(instances[0])
        return sum(2.0 * depth * length * (12 * h * h + 2 * length * h) for _, depth in results)
    reduces = sum(sum(actions) for _, actions in results)
    return 2.0 * h * h * (4 * reduces + 3 * sum(len(actions) // 2 for _, actions in results))


def nodes(tree: Any) -> int:
    return 1 + sum(map(nodes, tree[1]))


def product_rate(device: Any, quick: bool) -> float:
    """How many operations a second large matrix products make, at best."""
    n = 256 if quick else 1024 if device.platform == "cpu" else 8192
    a = jax.device_put(np.random.default_rng(0).normal(size=(n, n)).astype(np.float32), device)
    t = torch.tensor(np.asarray(a), device=torch_device(device))
    product = jax.jit(jnp.matmul)

    def in_torch() -> None:
        t @ t
        synchronise(device)

    times = interleaved({"jax": lambda: product(a, a).block_until_ready(), "torch": in_torch}, 1.0)
    return 2.0 * n**3 / (1e-3 * min(min(ms) for ms in times.values()))


# -- PyTorch ----------------------------------------------------------------------------------------------------


def torch_device(device: Any) -> str:
    return "cpu" if device.platform == "cpu" else "cuda"


def synchronise(device: Any) -> None:
    if device.platform != "cpu":
        torch.cuda.synchronize()


class Operations(TorchDispatchMode):
    """Counts what PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


# -- one case ---------------------------------------------------------------------------------------------------


class Comparison:
    """The systems of one case: made, compiled and checked, then timed."""

    def __init__(self, case: Case, device: Any, quick: bool) -> None:
        self.case, self.device, self.quick = case, device, quick
        self.name, batch, size, what = case
        self.training = what == "training"
        self.example = importlib.import_module(self.name)
        self.h = 16 if quick else self.example.SMALL if size == "small" else self.example.LARGE
        self.data = instances_of(self.name, self.example, batch, self.h, quick)
        self.batched = tp.batch((self.example.Training if self.training else self.example.MODEL)(self.h))
        if self.training:
            self.data = self.example.labelled(self.data)
        self.alone = self.data
        self.runs: dict[str, Callable[[], Any]] = {}
        self.first: dict[str, float] = {}
        """Per system of ours the seconds of its first mini-batch."""
        self._in_tempo()
        self._in_torch()
        self.found = self._checked("tempo", lambda found: found)
        self.compiled = self.batched.programs
        if self.name in FORESTS:
            self._as_forest()
        if self.name in programs.MODELS and not self.training:
            length = {"length": len(self.data[0])} if self.name == "berxit" else {}
            as_program = programs.MODELS[self.name][1](self.h, **length)
            self.runs["tempo program"] = lambda: as_program(self.data, self.batched.parameters)
            self._checked("tempo program", lambda found: found)
        self.operations = {}
        for system in ("torch eager", "torch by hand"):
            with Operations() as counted:
                self.runs[system]()
            self.operations[system] = counted.count

    def _in_torch(self) -> None:
        p = {
            key: torch.tensor(np.asarray(value), device=torch_device(self.device), requires_grad=self.training)
            for key, value in self.batched.parameters.items()
        }
        expected = TORCH[self.name]

        def on_device(some: Sequence[Any], by_hand: bool) -> Any:
            """Data are on the host at first, for every system."""
            if self.name not in ("drnn", "berxit"):
                return some
            if by_hand:
                return torch.from_numpy(np.stack(some)).to(torch_device(self.device))
            return (torch.from_numpy(one).to(torch_device(self.device)) for one in some)

        def run(some: Sequence[Any], by_hand: bool) -> Any:
            if self.training:
                loss = expected.mean_loss(p, some, by_hand)
                return loss, torch.autograd.grad(loss, list(p.values()), allow_unused=True)
            with torch.no_grad():
                there = on_device(some, by_hand)
                return expected.many(p, there) if by_hand else [expected.one(p, one) for one in there]

        run(self.data[:1], False)
        start = time.perf_counter()
        run(self.data[:LEAST_ALONE], False)
        synchronise(self.device)
        each = (time.perf_counter() - start) / LEAST_ALONE
        self.alone = self.data[: min(MOST_ALONE, max(LEAST_ALONE, int(1.0 / each)))]
        # Ours takes longer, and is of less interest.
        self.unbatched = self.alone if len(self.alone) == MOST_ALONE else self.alone[:LEAST_ALONE]
        self.runs["torch eager"] = lambda: run(self.alone, False)
        self.runs["torch by hand"] = lambda: run(self.data, True)
        self.expected = self.runs["torch by hand"]()

    def _in_tempo(self) -> None:
        batched = self.batched
        if self.training:
            self.runs["tempo"] = lambda: jax.block_until_ready(batched.value_and_grad(self.data))
        else:
            # Results are NumPy's: there is nothing to wait for.
            self.runs["tempo"] = lambda: batched(self.data)
            self.runs["tempo unbatched"] = lambda: jax.block_until_ready(batched.one_by_one(self.unbatched))

    def _as_forest(self) -> None:
        folded = self.folded = self.example.folded(self.h)
        start = time.perf_counter()
        forest = self.forest = workload.forest(self.data if self.training else [(tree, 0) for tree in self.data])
        self.forest_ms = 1e3 * (time.perf_counter() - start)
        names = as_folded(self.batched)
        folded.parameters = folded.parameters | names

        def again() -> Any:
            found = folded.value_and_grad(forest) if self.training else folded(forest, nodes=forest.roots)
            return jax.block_until_ready(found)

        def for_the_first_time() -> Any:
            folded._planned.clear()
            return again()

        self.runs |= {"tempo forest": for_the_first_time, "tempo forest again": again}
        if self.training:
            self._checked("tempo forest", lambda found: (found[0], {key: found[1][key] for key in names}))
        else:
            self._checked("tempo forest", lambda found: list(zip(*found, strict=True)))

    def _checked(self, system: str, as_results: Callable[[Any], Any]) -> Any:
        """A system's first results, which are PyTorch's."""
        start = time.perf_counter()
        found = self.runs[system]()
        self.first[system] = time.perf_counter() - start
        print(f"  {system}: first results after {self.first[system]:.1f} s", file=sys.stderr, flush=True)
        check(self.name, self.training, as_results(found), self.expected)
        return found

    def time(self, results: Results) -> None:
        host: dict[str, list[float]] = {}

        def finished(system: str) -> Callable[[], None]:
            def run() -> None:
                start = time.perf_counter()
                self.runs[system]()
                host.setdefault(system, []).append(1e3 * (time.perf_counter() - start))
                synchronise(self.device)

            return run

        timed = {system: finished(system) for system in self.runs if system != "tempo unbatched"}
        seconds = 0.3 if self.quick else OPTIONS.seconds
        times = interleaved(timed, seconds, least_rounds=3, most_rounds=51, turn=0.0 if self.quick else TURN)
        if "tempo unbatched" in self.runs:
            times |= interleaved({"tempo unbatched": self.runs["tempo unbatched"]}, 0.1, 1, 3)
        times_alone = {"torch eager": len(self.data) / len(self.alone)}
        times_alone["tempo unbatched"] = len(self.data) / len(self.unbatched)
        for system in times_alone.keys() & times:
            times[system] = [one * times_alone[system] for one in times[system]]
        ms, shortest = medians(times), least(times)

        plain = [one[0] for one in self.data] if self.training else self.data
        outcome = [] if self.training else self.found
        work = flops(self.name, self.h, plain, outcome) * (3 if self.training else 1)
        floor = 1e3 * work / (1e9 * results.common["gflops"])
        other = min(ms["torch eager"], ms["torch by hand"])
        for system in ms:
            figures: dict[str, Any] = {"ms": ms[system], "over_floor": ms[system] / floor}
            # On a machine that others use, too, the shortest time says most.
            figures |= {"ms_min": shortest[system], "over_floor_min": shortest[system] / floor}
            if system in self.operations:
                times_here = times_alone.get(system, 1)
                figures["host_ms"] = float(np.median(host[system])) * times_here
                figures["kernels"] = int(self.operations[system] * times_here)
            elif system == "tempo":
                s = self.batched.statistics
                host_ms = {key: 1e3 * seconds for key, seconds in s.seconds.items()}
                figures |= {"host_ms": host_ms, "device_ms": device_time(self.batched, self.data, self.training)}
                figures |= {"kernels": s.launches, "dispatches": s.dispatches, "calls": s.calls}
                figures |= {"repeated": s.repeated, "width": s.width, "padding": s.padding, "compiled": self.compiled}
            elif system == "tempo forest":
                figures |= of_a_forest(self.folded, self.forest, self.training) | {"forest_ms": self.forest_ms}
            if system in self.first:
                figures["first_s"] = self.first[system]
            if system.startswith("tempo") and system != "tempo unbatched":
                figures["ratio"] = ms[system] / other
                figures["eager_over_ours"] = ms["torch eager"] / ms[system]
                figures["by_hand_over_ours"] = ms["torch by hand"] / ms[system]
            results.add(
                "/".join(map(str, self.case)), system, **figures, hidden=self.h, floor_ms=floor, gflop=work / 1e9
            )


def instances_of(name: str, example: Any, batch: int, h: int, quick: bool) -> list[Any]:
    if name == "drnn":
        return example.instances(batch, size=h)
    if name == "berxit":
        return example.instances(batch, size=h, length=8 if quick else example.LENGTH)
    if name == "nested_rnn" and quick:
        return example.instances(batch, least=2, most=4)
    return example.instances(batch)


def as_folded(batched: Any) -> dict[str, Any]:
    """A tree model's parameters under the names that they have in a fold."""
    cells = dict(zip(batched.cells, ("leaf", "inner", "loss"), strict=False))
    split = {name: name.split(".", 1) for name in batched.parameters}
    return {f"{cells[cell]}.{rest}": batched.parameters[name] for name, (cell, rest) in split.items()}


def check(name: str, training: bool, ours: Any, theirs: Any) -> None:
    """Ours is what PyTorch's is."""
    if training:
        loss, gradients = ours
        expected, others = theirs
        pairs = [(loss, expected), *zip(gradients.values(), others, strict=True)]
    else:
        theirs = list(zip(*theirs, strict=True)) if name in FORESTS else list(theirs)
        leaves = jax.tree.leaves(theirs, is_leaf=lambda x: isinstance(x, torch.Tensor))
        pairs = list(zip(jax.tree.leaves(ours), leaves, strict=True))
    for a, b in pairs:
        b = b.detach().cpu().numpy() if isinstance(b, torch.Tensor) else np.asarray(b)
        worst = np.max(np.abs(np.asarray(a) - b), initial=0) / max(1.0, np.max(np.abs(b), initial=0))
        if not worst < TOLERANCE:
            raise ValueError(f"{name}: results differ by {worst}")


def device_time(batched: Any, data: Any, training: bool) -> float:
    """How long the kernels of a mini-batch take, started one after another without anything in between."""
    run = batched._run(data, None, "raise")
    fewest = float("inf")
    for _ in range(3):
        for one in run.runs:
            one.lanes.status = None
        flows = {kind: jnp.zeros_like(arena) for kind, arena in run.store.arenas.items() if kind.is_float}
        jax.block_until_ready([*run.store.arenas.values(), *flows.values()])
        start = time.perf_counter()
        for step in run.steps:
            batched._kernels.forward(step, run._own, run.store.arenas)
        gradients = run.backward(flows) if training else {}
        jax.block_until_ready([*run.store.arenas.values(), *gradients.values()])
        fewest = min(fewest, time.perf_counter() - start)
    run.store.give_back()
    return 1e3 * fewest


def of_a_forest(folded: Any, forest: Any, training: bool) -> dict[str, Any]:
    """How long the host and the device work for a fold, and what the chunks of its levels are."""
    fewest = {"plan": float("inf"), "device": float("inf")}
    for _ in range(5):
        folded._planned.clear()
        start = time.perf_counter()
        prepared = folded._prepared(forest, None, "loss" if training else "some", forest.roots)
        planned = time.perf_counter()
        folded._run(folded._backward if training else folded._forward, *prepared)
        seconds = {"plan": planned - start, "device": time.perf_counter() - planned}
        fewest = {part: min(fewest[part], seconds[part]) for part in fewest}
    parts, shape, *_ = prepared
    chunks = [one[:2] for one in shape.chunks]
    if not shape.all_turns:
        chunks = [segment.nodes.shape for segment in folded._layout(forest, parts).segments]
    launches, lanes = sum(count for count, _ in chunks), sum(count * width for count, width in chunks)
    inner = int(np.count_nonzero(forest.heights))
    return {
        "host_ms": {"plan": 1e3 * fewest["plan"]},
        "device_ms": 1e3 * fewest["device"],
        "kernels": launches,
        "dispatches": 1,
        "width": inner / max(launches, 1),
        "padding": 1 - inner / max(lanes, 1),
    }


COLUMNS = {
    "ms": "ms",
    "shortest": "ms_min",
    "x floor": "over_floor",
    "of shortest": "over_floor_min",
    "ratio": "ratio",
    "eager / ours": "eager_over_ours",
    "by hand / ours": "by_hand_over_ours",
    "host": "host_ms",
    "device": "device_ms",
    "first s": "first_s",
    "kernels": "kernels",
    "dispatches": "dispatches",
    "width": "width",
    "padding": "padding",
}


def summary(results: Results) -> str:
    def figure(record: Any, key: str) -> Any:
        value = record.get(key, "")
        # Of ours without the time that the host waits for the device.
        return sum(ms for part, ms in value.items() if part != "fetch") if isinstance(value, dict) else value

    rows = [(r["case"], r["system"], *(figure(r, key) for key in COLUMNS.values())) for r in results.records]
    return table(("case", "system", *COLUMNS), rows)


def compare(case: Case, device: Any, results: Results) -> None:
    comparison = Comparison(case, device, OPTIONS.quick)
    BEGUN.close()
    with TURNS.alone():
        if "gflops" not in results.common:
            results.common["gflops"] = round(product_rate(device, OPTIONS.quick) / 1e9, 1)
        comparison.time(results)


def in_processes(chosen: Sequence[Case], results: Results) -> list[str]:
    """Each case in a process of its own, ``--jobs`` at a time: the cases that failed."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def run(case: Case, file: Path) -> bool:
        command = [sys.executable, __file__, "--only", "/".join(map(str, case)), "--seconds", str(OPTIONS.seconds)]
        command += ["--turns", str(file), "--device", OPTIONS.device or "cpu", *(["--quick"] if OPTIONS.quick else [])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            print(line, flush=True)
            results.records.append(json.loads(line))
        if done.returncode:
            print(done.stderr, file=sys.stderr)
        return done.returncode == 0

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(OPTIONS.jobs) as pool:
        fine = pool.map(lambda case: run(case, Path(folder) / "turns"), chosen)
        return ["/".join(map(str, case)) for case, is_fine in zip(chosen, fine, strict=True) if not is_fine]


def in_this_process(chosen: Sequence[Case], device: Any, results: Results) -> list[str]:
    """One case after another: those that failed."""
    named = {"/".join(map(str, case)): case for case in chosen}
    return each(named, lambda name: compare(named[name], device, results))


def main() -> int:
    device = use_device(OPTIONS.device)
    if device.platform == "cpu":
        torch.set_num_threads(1)
    chosen = cases(OPTIONS.only, OPTIONS.quick, device.platform)
    if not chosen:
        print(f"there is no case with all of: {OPTIONS.only}", file=sys.stderr)
        return 1
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    results = Results("batching", device=device.device_kind, quick=OPTIONS.quick, cores=threads)
    failed = in_processes(chosen, results) if OPTIONS.jobs > 1 else in_this_process(chosen, device, results)
    print(summary(results), file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
