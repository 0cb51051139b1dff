"""Running a lowered program on a device.

A program without host calls, emits and stores in host memory is one XLA program, or one for every piece of a loop that
is cut. Otherwise, and to be stopped, watched and saved, it is run in parts, by a ``JaxWorker``.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from tempo.backends.jax.footprint import Footprint
from tempo.backends.jax.lowering import Lowering
from tempo.backends.jax.stages import Stages, stages
from tempo.backends.jax.worker import JaxWorker, Parts
from tempo.errors import ProgramError
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, INPUT
from tempo.schedule.loops import Schedule
from tempo.schedule.results import cut
from tempo.schedule.script import Script
from tempo.schedule.storage import Apart, Storage, Store

Array = Any


class JaxMachine:
    """A compiled program and the device it runs on."""

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        storage: Storage,
        numbers: Mapping[Any, int],
        script: Script,
        device: str | None,
        parallel: bool,
    ) -> None:
        use_disk_cache()
        self.calls = any(node.op is HOST for node in graph.nodes)
        if self.calls:
            _compute_at_once()
        self.graph = graph
        self.device = _device(device)
        self.wide = any(node.dtype.itemsize == 8 for node in graph.nodes)
        self.inputs = {
            node.attributes["input"]: _declared(node, numbers, storage.stores[node])
            for node in schedule.places
            if "input" in node.attributes
        }
        self.apart = frozenset(name for name, declared in self.inputs.items() if isinstance(declared, tuple))
        self.take_apart = jax.jit(tuple)
        self.lowering = Lowering(graph, schedule, storage, numbers, parallel)
        hosted = [node for node, store in storage.stores.items() if store.host]
        self.offloaded = {node.attributes["input"] for node in hosted if node.op is INPUT}
        self.whole = not (graph.emits or hosted or self.calls)
        with self.settings():
            self.parts = Parts(self.lowering, script)
            parts = stages(schedule.trees)
            if self.whole and len(parts) > 1:
                self.compiled: Any = Stages(self.parts, parts, self.inputs, self.settings)
            elif self.whole:
                self.compiled = jax.jit(self.lowering).lower(self.inputs).compile()

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """JAX with 64-bit types where the program has any, on the program's device."""
        with jax.enable_x64(self.wide), jax.default_device(self.device):
            yield

    def put(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {name: self.steps_on_device(name, inputs[name]) for name in self.inputs if name not in self.offloaded}

    def steps_on_device(self, name: str, given: Any) -> Any:
        """An input on the device, or one array for each step of its first dim, if that is unrolled."""
        if name not in self.apart:
            return self.on_device(given)
        if isinstance(given, jax.Array):
            given = self.take_apart(given)
        return tuple(map(self.on_device, given))

    def on_device(self, array: Array) -> Array:
        if isinstance(array, jax.Array) and array.devices() == {self.device}:
            return array
        return jax.device_put(array, self.device)

    def adopt(self, value: Any) -> Array | None:
        """The array of another library, or of JAX, without a detour over NumPy; None for anything else."""
        if isinstance(value, jax.Array):
            return value
        if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
            return None
        with jax.enable_x64(True):  # nothing may lose bits before its dtype is checked
            try:
                # Not the memory itself, in which its owner may write while the program runs.
                return jnp.array(jax.dlpack.from_dlpack(value), copy=True)
            except (TypeError, ValueError, RuntimeError, BufferError):  # a device or a dtype that JAX does not know
                return None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of a program without host calls and emits."""
        with self.settings():
            outputs, made = self.compiled(self.put(inputs))
            return self.cut(dict(outputs), made)

    def start(self, inputs: Mapping[str, Array], kept: Mapping[Any, Any] | None) -> JaxWorker:
        """A run in parts, from the beginning or with what a checkpoint has kept."""
        return JaxWorker(self, inputs, kept)

    def cut(self, outputs: dict[str, Array], made: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs at the points that there are when dims have stopped."""
        schedule = self.lowering.schedule
        if not schedule.open:
            return outputs
        numbers = {**schedule.numbers, **{bound: int(made[bound.name]) for bound in schedule.open}}
        return {name: cut(self.graph, numbers, name, schedule.results[name], a) for name, a in outputs.items()}

    def describe(self) -> str:
        """The XLA programs and what they take."""
        if not self.whole and "footprint" not in self.__dict__:
            return "one for every part between host calls and values that are handed out or fetched, compiled when run"
        bytes_ = ", ".join(f"{name} {size:,}" for name, size in self.memory().items())
        if not self.whole:
            return f"{len(self.parts.compiled)} programs, run one after the other, bytes: {bytes_}"
        count = f"{len(self.compiled.parts)} programs" if isinstance(self.compiled, Stages) else "1 program"
        return f"{count}, bytes: {bytes_}"

    @cached_property
    def footprint(self) -> Footprint:
        """What a run in parts takes, which compiles them all."""
        with self.settings():
            return Footprint(self)

    def memory(self) -> dict[str, int]:
        """What XLA says a program without host calls takes, in bytes."""
        if not self.whole:
            inputs, outputs = self.footprint.inputs, self.footprint.outputs
            return {"inputs": inputs, "outputs": outputs, "temporaries": self.footprint.most - inputs - outputs}
        if isinstance(self.compiled, Stages):
            return self.compiled.memory()
        found: Any = self.compiled.memory_analysis()
        return {
            "inputs": found.argument_size_in_bytes,
            "outputs": found.output_size_in_bytes,
            "temporaries": found.temp_size_in_bytes,
        }


def _declared(node: Node, numbers: Mapping[Any, int], store: Store) -> Any:
    """The shape and dtype of an input; of each step of its first dim, if that is unrolled."""
    shape = (*(d.bound.evaluate(numbers) for d in node.domain), *_sizes(node.shape, numbers))
    if node.domain and isinstance(store.dims[node.domain[0]], Apart):
        one = jax.ShapeDtypeStruct(shape[1:], node.dtype)  # type: ignore[no-untyped-call]
        return (one,) * shape[0]
    return jax.ShapeDtypeStruct(shape, node.dtype)  # type: ignore[no-untyped-call]


def _sizes(shape: Any, numbers: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple(s if isinstance(s, int) else s.evaluate(numbers) for s in shape)


def _device(name: str | None) -> Any:
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        raise ProgramError(
            f"there is no device '{name}' here: {error}",
            hint=f"this machine has: {', '.join(sorted({d.platform for d in jax.devices()}))}",
        ) from None


def _compute_at_once() -> None:
    """Let a CPU compute in the thread that starts an XLA program. Handing it to another one and waiting for that takes
    45 us, more than a small policy does: between host calls there is nothing else to do in the meantime. JAX heeds
    this if it has not been used before."""
    settings: Any = jax.config
    settings.update("jax_cpu_enable_async_dispatch", False)


def use_disk_cache() -> None:
    """Keep compiled XLA programs between processes, unless the user has set JAX's cache up otherwise."""
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is None:
        home = os.environ.get("TEMPO_CACHE_DIR") or pathlib.Path.home() / ".cache" / "tempo" / "xla"
        settings.update("jax_compilation_cache_dir", str(home))
        # By default only what takes a second is kept: the kernels of a recursive model take less, but are many.
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.05)
        # JAX decides at its first compilation whether there is a cache, and that may have been before us.
        compilation_cache.reset_cache()
