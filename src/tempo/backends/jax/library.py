"""What was compiled, on disk.

JAX keeps XLA programs by what they compute, which is known when a program has been planned and traced. A library
keeps XLA programs in the same way, and beside them *records*: by what a user wrote, all that it takes to run a whole
program. Where there is a record, nothing is planned or traced.

The programs of a library are not in JAX's own cache: what a CPU has loaded from there cannot be written again (it runs
into "function not found").
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax._src.config import persistent_cache_min_compile_time_secs
from jax.experimental import serialize_executable

from tempo.backends.jax.compiling import compile_prepared, prepared
from tempo.graph.fingerprint import digest
from tempo.source import IMPORTED_AT


class Library:
    """Files by name, in a directory that processes share: each is there as a whole or not at all."""

    def __init__(self, directory: Path, device: Any, surroundings: str, sources: str | None) -> None:
        """``surroundings`` has everything that changes what XLA makes of a program, ``sources`` what changes the
        program that Tempo makes; None if nobody knows."""
        self.directory = directory
        self.device = device
        self.surroundings = surroundings
        self.sources = sources
        self.made: dict[int, Made] = {}
        """XLA programs that come from here or were compiled to be kept here, by the ids of their objects."""

    def name_of_record(self, text: str | None) -> str | None:
        """The name of a record for what a text asks for, if it can have one."""
        if text is None or self.sources is None:
            return None
        return digest(["record", self.surroundings, self.sources, text])

    def get(self, name: str) -> Any:
        """What was put there, or None: also if a file is cut off, or was changed."""
        try:
            data = (self.directory / name).read_bytes()
        except OSError:
            return None
        check, content = data[:32], data[32:]
        return pickle.loads(content) if hashlib.sha256(content).digest() == check else None

    def put(self, name: str, value: Any) -> None:
        """Keep a value. That there is no room, or no permission, is no reason for a program not to run."""
        content = pickle.dumps(value)
        unfinished = self.directory / f".{name}.{secrets.token_hex(4)}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(hashlib.sha256(content).digest() + content)
            os.replace(unfinished, self.directory / name)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def load(self, content: Any) -> Any:
        """An XLA program, out of what ``get`` gave."""
        program, inputs, outputs = content
        load = serialize_executable.deserialize_and_load
        return load(program, inputs, outputs, self.device.client, [self.device])

    def compile(self, lowered: Any, once: bool = False) -> Any:
        """An XLA program, lowered from a ``traceable``: the one that is kept, or a new one, for which ``keep`` may be
        called. ``once`` is for what is done once, before a loop."""
        trees = str(lowered.in_tree), str(lowered.out_tree)
        wanted = prepared(lowered, self.device, once)
        name = digest(["XLA", self.surroundings, *trees, lowered.as_text(), repr(wanted)])
        content = self.get(name)
        start = time.perf_counter()
        if content is not None:
            compiled = self.load(content)
        else:
            with _noticing_hits() as hits, persistent_cache_min_compile_time_secs(float("inf")):
                compiled = compile_prepared(lowered, wanted)
            if hits:
                return compiled
        self.made[id(compiled)] = Made(compiled, name, content is not None, time.perf_counter() - start)
        return compiled

    def keep(self, compiled: Any, least_seconds: float = 0.0) -> str | None:
        """Put an XLA program there that took so many seconds to compile; its name, if it is there."""
        made = self.made.get(id(compiled))
        if made is None or (not made.kept and made.seconds < least_seconds):
            return None
        if not made.kept:
            try:
                self.put(made.name, serialize_executable.serialize(compiled))
            except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError):
                return None  # no support for it or for some operation, or constants that are not in the program
            self.made[id(compiled)] = replace(made, kept=True)
        return made.name


@dataclass(frozen=True)
class Made:
    """An XLA program, and what it is or would be called in a library."""

    compiled: Any
    name: str
    kept: bool
    seconds: float


def traceable(function: Callable[..., Any], donate: Sequence[int] = ()) -> Any:
    """A function to be traced and lowered. It is given all of its arguments: if JAX left those out that are not used,
    functions that use one argument each would have the same text."""
    return jax.jit(function, donate_argnums=donate, keep_unused=True)


def library_of(device: Any) -> Library | None:
    """Where programs for a device are kept: beside those of JAX. None if that is switched off, or on no disk."""
    settings = _settings()
    directory = settings.jax_compilation_cache_dir
    if not settings.jax_enable_compilation_cache or not directory or "://" in directory:
        return None
    return Library(Path(directory) / "tempo", device, digest(_surroundings(device)), _sources())


def least_seconds() -> float:
    """XLA programs that are compiled in less time are not kept."""
    return float(_settings().jax_persistent_cache_min_compile_time_secs)


def _settings() -> Any:
    return jax.config


def _surroundings(device: Any) -> Iterator[str]:
    """What XLA makes of a program depends on this, besides."""
    yield from (jax.__version__, jaxlib.version.__version__)
    yield from (device.platform, device.device_kind, device.client.platform_version)
    if device.platform == "cpu":
        yield _processor()
    yield from (f"{name}={os.environ.get(name)}" for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    settings = _settings()
    # As they are here: some may be set for a thread.
    for name, value in sorted(settings.values.items()):
        if "cache" not in name:
            yield f"{name}={getattr(settings, name, value)!r}"


@functools.cache
def _processor() -> str:
    """What a CPU can do: XLA uses all of it, and the programs fail on a lesser one."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return "\n".join(line for line in first if line.startswith(("model name", "flags", "Features", "CPU ")))


@functools.cache
def _sources() -> str | None:
    """The sources of Tempo; None if they have changed since it was imported."""
    lines = []
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        if path.stat().st_mtime > IMPORTED_AT:
            return None
        lines.append(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return digest(lines)


# -- whether JAX has found a program in its own cache ------------------------------------------------------------------

_noticed = threading.local()


@contextlib.contextmanager
def _noticing_hits() -> Iterator[list[str]]:
    """Has, afterwards, an entry for everything that this thread has found in JAX's cache."""
    _listen()
    hits: list[str] = []
    _noticed.hits = hits
    try:
        yield hits
    finally:
        _noticed.hits = None


@functools.cache
def _listen() -> None:
    def notice(event: str, **_: Any) -> None:
        hits = getattr(_noticed, "hits", None)
        if hits is not None and event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(notice)
