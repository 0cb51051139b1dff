"""``rl.train``: run a training program, with everything that a person wants of it meanwhile and afterwards."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

import tempo as tp
from tempo.rl.algorithms import Algorithm
from tempo.rl.environments import Gymnasium
from tempo.rl.training.checkpoints import Checkpoints
from tempo.rl.training.curve import plot_curves, read_log
from tempo.rl.training.display import display
from tempo.rl.training.logs import CSV_NAME, Logs

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]
Row = dict[str, float]

PARAMETERS, CURVE = "parameters.safetensors", "curve.png"


class Trained(NamedTuple):
    """What a training gives."""

    parameters: dict[str, Array]
    """The outputs of the program by name, those of the policy among them."""
    log: list[Row]
    """A row of numbers by name for every iteration: of this process, if the training went on from a checkpoint."""


def train(
    algorithm: Algorithm,
    directory: PathLike | None = None,
    *,
    seed: int = 0,
    resume: bool = False,
    every: int = 50,
    progress: bool = False,
    backend: str = "jax",
    device: str | None = None,
    plan: Any = None,
) -> Trained:
    """Run a training program, such as ``rl.ppo(...)`` gives.

    In ``directory`` it leaves ``progress.csv``, event files for TensorBoard, ``curve.png`` (if matplotlib is there),
    ``parameters.safetensors`` in the end, and a checkpoint after ``every`` iterations. With ``resume``, a training that
    was interrupted goes on from its newest checkpoint, with the results that it would have had, to the bit.
    ``progress`` shows how it goes on stderr. Without a ``plan``, a CPU makes iterations one by one, in little memory
    (``tp.Plan(blocks={"i": 1})``), and a GPU as many at once as fit.
    """
    if not isinstance(algorithm, Algorithm):
        raise tp.errors.ProgramError(
            f"{algorithm!r} is no algorithm to train",
            places=[("here", tp.errors.user_line())],
            hint="give what e.g. rl.ppo(env, iterations=100, count=8, steps=128) makes, or an rl.Algorithm of your own",
        )
    if every < 1:
        raise tp.errors.ProgramError(
            f"a checkpoint every {every} iterations",
            places=[("here", tp.errors.user_line())],
            hint="every is 1 or more",
        )
    if directory is not None:
        _check_directory(Path(directory), resume)
    plan = _plan(backend, device) if plan is None else plan
    run = algorithm.program.compile(algorithm.bounds, backend=backend, device=device, plan=plan)
    if directory is None:
        recorder = Recorder(algorithm, None, progress, 0)
        with contextlib.closing(recorder):
            stream = run.stream(seed=seed)
            for record in stream:
                recorder.take(record)
        return Trained(_outputs(stream), recorder.log)
    where = Path(directory)
    checkpoints = Checkpoints(where)
    newest = checkpoints.newest()
    where.mkdir(parents=True, exist_ok=True)
    before: dict[str, Any] = {"rows": 0, "partial": {}}
    if newest is not None:
        before = checkpoints.load(newest, run, algorithm.env)
    elif isinstance(algorithm.env, Gymnasium):
        algorithm.env.state()  # if it cannot be saved, now is the time to say so
    recorder = Recorder(algorithm, where, progress, before["rows"], before["partial"])
    with contextlib.closing(recorder):
        stream = run.stream(seed=seed)
        saved = recorder.rows
        try:
            for record in stream:
                recorder.take(record)
                if recorder.rows >= saved + every:
                    saved = recorder.rows
                    checkpoints.save(run, algorithm.env, recorder.position())
        except KeyboardInterrupt:
            # A step of Gymnasium may have been left half done.
            if not isinstance(algorithm.env, Gymnasium):
                with contextlib.suppress(tp.errors.CheckpointError):
                    checkpoints.save(run, algorithm.env, recorder.position())
            raise
    outputs = _outputs(stream)
    _save(where / PARAMETERS, outputs)
    if find_spec("matplotlib") is not None:
        plot_curves(where / CURVE, {algorithm.program.name: [read_log(where)]})
    return Trained(outputs, recorder.log)


def _check_directory(where: Path, resume: bool) -> None:
    if where.exists() and not where.is_dir():
        raise tp.errors.ProgramError(
            f"'{where}' is a file, not a directory",
            places=[("here", tp.errors.user_line())],
            hint="a training leaves several files; give the directory for them",
        )
    has_log, has_checkpoint = (where / CSV_NAME).exists(), Checkpoints(where).newest() is not None
    if (has_log or has_checkpoint) and not resume:
        raise tp.errors.ProgramError(
            f"'{where}' has a training already",
            places=[("here", tp.errors.user_line())],
            hint="resume=True goes on with it; take another directory for another one",
        )
    if has_checkpoint and not has_log:
        raise tp.errors.CheckpointError(
            f"'{where}' has checkpoints, but no {CSV_NAME} to go on with",
            places=[("here", tp.errors.user_line())],
            hint=f"put {CSV_NAME} back, or start anew in another directory",
        )


def begins_anew(where: Path, resume: bool) -> bool:
    """Whether ``train`` begins a training there, rather than go on with one or refuse to."""
    return Checkpoints(where).newest() is None and (resume or not (where / CSV_NAME).exists())


def load_parameters(directory: PathLike) -> dict[str, Array]:
    """The parameters that a training in this directory has ended with."""
    path = Path(directory) / PARAMETERS
    if not path.exists():
        raise tp.errors.CheckpointError(
            f"no training has ended in '{directory}': there is no {PARAMETERS}",
            hint="rl.train(algorithm, directory, resume=True) goes on with one that was interrupted",
        )
    return dict(load_file(path))


class Recorder:
    """Makes rows of what is emitted, one for every iteration, and has them logged and shown.

    ``rows`` and ``partial`` are those of a checkpoint: how many rows there are, and what is known of later ones.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        directory: Path | None,
        progress: bool,
        rows: int,
        partial: dict[str, Row] | None = None,
    ) -> None:
        self.steps = algorithm.steps
        self.names = list(algorithm.program.graph.emits)
        self.rows = rows
        self.partial: dict[int, Row] = {int(i): row for i, row in (partial or {}).items()}
        self.log: list[Row] = []
        columns = ["iteration", "steps", "seconds", "steps_per_second", *self.names]
        self.logs = None if directory is None else Logs(directory, columns, rows, rows * self.steps)
        self.display = display(algorithm.program.name, algorithm.iterations, rows) if progress else None
        self.start = self.latest = time.perf_counter()

    def take(self, record: Any) -> None:
        """A value that was emitted. Rows are written in the order of iterations."""
        if set(record.point) != {"i"} or record.value.size != 1:
            raise tp.errors.ProgramError(
                f"'{record.name}' is emitted over ({', '.join(record.point)}) with shape {record.value.shape}: "
                "a log has one number for every iteration",
                hint="emit numbers over i; outputs take the rest",
            )
        self.partial.setdefault(int(record.point["i"]), {})[record.name] = float(record.value.item())
        for row in self._complete():
            self.log.append(row)
            if self.logs is not None:
                self.logs.add(row)
            if self.display is not None:
                self.display.show(row)

    def position(self) -> dict[str, Any]:
        """How far the logs are, for a checkpoint."""
        if self.logs is not None:
            self.logs.flush()
        return {"rows": self.rows, "partial": self.partial}

    def close(self) -> None:
        if self.logs is not None:
            self.logs.close()
        if self.display is not None:
            self.display.stop()

    def _complete(self) -> Iterator[Row]:
        while len(self.partial.get(self.rows, ())) == len(self.names):
            known = self.partial.pop(self.rows)
            now = time.perf_counter()
            # Records come in bunches; the rate is that since the start.
            rate = (len(self.log) + 1) * self.steps / max(now - self.start, 1e-9)
            done = {"iteration": self.rows, "steps": (self.rows + 1) * self.steps, "seconds": now - self.start}
            yield {**done, "steps_per_second": rate, **{name: known[name] for name in self.names}}
            self.rows += 1


def _plan(backend: str, device: str | None) -> Any:
    """Draws for all iterations at once would take memory, and all of it would go into checkpoints. But on a GPU, where
    much is computed beside the loop that acts, blocks of i take it apart into several loops, the last of which emits
    everything in the end; there, what fits into its memory is the limit."""
    if backend == "jax":
        import jax

        if jax.devices(device)[0].platform != "cpu":
            return None
    return tp.Plan(blocks={"i": 1})


def _outputs(stream: Any) -> dict[str, Array]:
    return dict(stream.result.outputs)


def _save(path: Path, arrays: dict[str, Array]) -> None:
    unfinished = path.with_name(f".{path.name}")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, unfinished)
    os.replace(unfinished, path)
