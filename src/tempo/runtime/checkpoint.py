"""Runs in files: everything that a run needs to go on, from where it was saved.

A checkpoint is a safetensors file. Its tensors are the stores that still matter, the results of the latest host calls,
the steps made by dims that stop on data, and the records that were made but not handed out yet; its metadata says where
the run was and which program it belongs to.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tempo.errors import CheckpointError
from tempo.given import Record
from tempo.graph.fingerprint import digest, fingerprint, numbered
from tempo.graph.functions import functions
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST
from tempo.runtime.run import Run
from tempo.schedule.offload import Hosted
from tempo.schedule.script import Position, Script
from tempo.schedule.storage import Storage
from tempo.symbolic import Bound

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]

FORMAT = "tempo checkpoint 1"
PYTHON = platform.python_version()


@dataclass(frozen=True)
class Identity:
    """Which program a checkpoint belongs to, for which bounds, and how it was compiled."""

    name: str
    definitions: str
    bounds: Mapping[str, int]
    plan: str

    def differences(self, saved: Identity) -> list[str]:
        """What is different about a saved program, in words."""
        found = []
        if saved.name != self.name:
            found.append(f"it is named '{saved.name}'")
        if saved.definitions != self.definitions:
            found.append("it has other definitions")
        both = sorted(saved.bounds.keys() & self.bounds.keys())
        found += [f"{b} was {saved.bounds[b]}" for b in both if saved.bounds[b] != self.bounds[b]]
        if not found and saved.plan != self.plan:
            found.append(
                "it was compiled for another device or backend, with another plan or by another version of Tempo"
            )
        return found


@dataclass(frozen=True)
class Checkpoint:
    """A run at rest."""

    seed: int
    position: Position
    records: tuple[tuple[str, Record], ...]
    kept: Mapping[Any, Any]
    """Stores and results of host calls by node, numbers of steps by bound."""


class Checkpoints:
    """The checkpoints of one compiled program."""

    def __init__(
        self,
        source: Graph,
        graph: Graph,
        numbers: Mapping[Bound, int],
        storage: Storage,
        script: Script,
        backend: str,
    ) -> None:
        self.nodes = numbered(graph)
        stores = [
            f"{number} {store.shape} {list(map(str, store.dims.values()))}"
            for node, number in self.nodes.items()
            for store in (storage.stores.get(node), storage.local.get(node))
            if store is not None
        ]
        # What lies in host memory, and what of it on the device, differs between backends.
        if any(store.host for store in storage.stores.values()):
            stores.append(backend)
        self.identity = Identity(
            source.name,
            fingerprint(source),
            {bound.name: number for bound, number in numbers.items()},
            digest([fingerprint(graph), *stores, str(script)]),
        )
        self.bounds = {bound.name: bound for bound in numbers}
        self.functions = functions(source)

    def save(self, path: PathLike, run: Run) -> None:
        """Write a run as it is now."""
        tensors: dict[str, Array] = {}
        with run.held_back:  # a backend may still have something to compute
            kept = run.worker.kept(run.script.needed(run.position))
        for key, value in kept.items():
            if isinstance(key, Bound):
                tensors[f"bound {key.name}"] = np.asarray(value)
            elif isinstance(key, Hosted):
                tensors[f"host {self.nodes[key.node]}"] = np.asarray(value)
            elif isinstance(value, tuple):
                kind = "call" if key.op is HOST else "part"
                tensors.update({f"{kind} {self.nodes[key]} {n}": np.asarray(v) for n, v in enumerate(value)})
            else:
                tensors[f"store {self.nodes[key]}"] = np.asarray(value)
        records = []
        for n, (name, record) in enumerate(run.pending):
            tensors[f"record {n}"] = record.value
            records.append([name, dict(record.point)])
        about = {
            "identity": asdict(self.identity),
            "seed": run.seed,
            "position": run.position,
            "records": records,
            "tensors": _outlines(tensors),
            "functions": {"python": PYTHON, "digests": self.functions},
        }
        _write(Path(path), tensors, {"format": FORMAT, "run": json.dumps(about)})

    def load(self, path: PathLike) -> Checkpoint:
        """Read a run of the same program."""
        tensors, metadata = _read(Path(path))
        about = json.loads(metadata["run"])
        differences = self.identity.differences(Identity(**about["identity"]))
        if differences:
            bounds = ", ".join(f"{name} = {number}" for name, number in self.identity.bounds.items())
            raise CheckpointError(
                f"'{path}' is not a checkpoint of this program: {', '.join(differences)}",
                hint=f"this is program '{self.identity.name}'" + (f" with {bounds}" if bounds else ""),
            )
        if about.get("tensors") != _outlines(tensors):
            raise CheckpointError(
                f"'{path}' has other tensors than it was saved with",
                hint="something has changed it: give the file that run.save(path) wrote",
            )
        self._warn_of_other_functions(path, about.get("functions"))
        records = tuple(
            (name, Record(point, tensors[f"record {n}"])) for n, (name, point) in enumerate(about["records"])
        )
        return Checkpoint(about["seed"], tuple(about["position"]), records, self._kept(tensors))

    def _warn_of_other_functions(self, path: PathLike, saved: Mapping[str, Any] | None) -> None:
        """Nobody can tell whether another text of a function means something else, so the run may go on."""
        if saved is None or saved["python"] != PYTHON:  # which has other bytecode for the same text
            return
        pairs = zip(self.functions, saved["digests"], strict=True)
        changed = [name for (name, now), (_, then) in pairs if now != then]
        if changed:
            warnings.warn(
                f"'{path}' was saved with other text of {', '.join(changed)}: the run goes on with what is there now",
                stacklevel=4,
            )

    def _kept(self, tensors: Mapping[str, Array]) -> dict[Any, Any]:
        nodes = {str(number): node for node, number in self.nodes.items()}
        kept: dict[Any, Any] = {}
        several: dict[Node, dict[int, Array]] = {}
        for name, array in tensors.items():
            match name.split(" ", 1):
                case ["store", number]:
                    kept[nodes[number]] = array
                case ["host", number]:
                    kept[Hosted(nodes[number])] = array
                case ["call" | "part", numbers]:
                    number, position = numbers.split(" ")
                    several.setdefault(nodes[number], {})[int(position)] = array
                case ["bound", bound]:  # whose name may have spaces
                    kept[self.bounds[bound]] = array
        return {**kept, **{node: tuple(a for _, a in sorted(found.items())) for node, found in several.items()}}


def _outlines(tensors: Mapping[str, Array]) -> dict[str, str]:
    return {name: f"{array.dtype.name} {list(array.shape)}" for name, array in tensors.items()}


def _write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """A file that is there as a whole or not at all, whatever happens meanwhile."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        save_file({name: np.asarray(a, order="C") for name, a in tensors.items()}, unfinished, dict(metadata))
        _to_disk(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    if os.name == "posix":
        _to_disk(path.parent)


def _to_disk(path: Path) -> None:
    """Have the system write what it holds of a file, or of the names in a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    with open(path, "rb"):  # errors of the system come first: no such file, a directory, no permission
        pass
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except SafetensorError as error:
        raise CheckpointError(
            f"'{path}' is not a checkpoint, or only a part of one",
            hint=f"run.save(path) writes checkpoints. This file cannot be read: {error}",
        ) from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"'{path}' is a safetensors file, but not a checkpoint of a run", hint="run.save(path) writes checkpoints"
        )
    return tensors, metadata
