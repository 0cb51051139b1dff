"""The checkpoints of a training: directories that are there as a whole or not at all.

Each has the run's own checkpoint, what environments that run in Python remember, and how far the logs were.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tempo as tp
from tempo.rl.environments import Environment, Gymnasium

RUN, ENVIRONMENT, LOGS = "run.safetensors", "environment.pickle", "logs.json"
# The newest one, and one before it.
KEPT = 2


class Checkpoints:
    """In ``directory/checkpoints``, named by how many iterations had been logged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "checkpoints"

    def newest(self) -> Path | None:
        found = self._all()
        return found[-1] if found else None

    def save(self, run: Any, env: Environment | Gymnasium, logs: Mapping[str, Any]) -> None:
        """Write the run as it is now. Whatever ends the process meanwhile, older checkpoints stay."""
        final = self.directory / f"{logs['rows']:08}"
        if final.exists():  # the training was interrupted right after it had saved
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        unfinished = self.directory / f".{secrets.token_hex(4)}"
        unfinished.mkdir()
        try:
            run.save(unfinished / RUN)
            if isinstance(env, Gymnasium):
                _write(unfinished / ENVIRONMENT, env.state())
            _write(unfinished / LOGS, json.dumps(logs).encode())
            os.replace(unfinished, final)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        for old in self._all()[:-KEPT]:
            shutil.rmtree(old)

    def load(self, path: Path, run: Any, env: Environment | Gymnasium) -> dict[str, Any]:
        """Let the next stream go on from there; how far the logs were."""
        for name in (RUN, LOGS, ENVIRONMENT) if isinstance(env, Gymnasium) else (RUN, LOGS):
            if not (path / name).exists():
                raise tp.errors.CheckpointError(
                    f"the checkpoint '{path}' has no {name}",
                    hint="remove it: the training then goes on from the one before",
                )
        run.load(path / RUN)
        if isinstance(env, Gymnasium):
            env.restore((path / ENVIRONMENT).read_bytes())
        logs: dict[str, Any] = json.loads((path / LOGS).read_text())
        return logs

    def clear(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def _all(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if re.fullmatch(r"\d+", path.name))


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
