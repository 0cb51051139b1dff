"""What a training writes down while it runs: a CSV file and TensorBoard's event files."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tempo.rl.training.tensorboard import EventFile

CSV_NAME = "progress.csv"


class Logs:
    """The logs of a training in a directory. ``rows`` is how many rows are known to be right: what comes after them was
    made after the checkpoint from which the training goes on, and is made again."""

    def __init__(self, directory: Path, columns: Sequence[str], rows: int = 0, first_step: int = 0) -> None:
        path = directory / CSV_NAME
        _cut(path, columns, rows)
        self.columns = columns
        self.file = open(path, "a", newline="")  # noqa: SIM115 (closed by close)
        self.writer = csv.writer(self.file)
        self.events = EventFile(directory, first_step)

    def add(self, row: Mapping[str, float]) -> None:
        self.writer.writerow([row[name] for name in self.columns])
        scalars = {name: row[name] for name in self.columns if name not in ("iteration", "steps")}
        # A curve has no point where no episode ended.
        self.events.add(int(row["steps"]), {name: x for name, x in scalars.items() if x == x})

    def flush(self) -> None:
        """Have everything in the files, so that a checkpoint never knows of rows that are not there."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.events.flush()

    def close(self) -> None:
        self.file.close()
        self.events.close()


def _cut(path: Path, columns: Sequence[str], rows: int) -> None:
    """Leave the head and so many rows, replaced as a whole."""
    kept = []
    if rows:
        with open(path, newline="") as file:
            kept = file.readlines()[1 : rows + 1]
    unfinished = path.with_name(f".{path.name}")
    with open(unfinished, "w", newline="") as file:
        csv.writer(file).writerow(columns)
        file.writelines(kept)
    os.replace(unfinished, path)
