"""Running a lowered program on a device."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from tempo.backends.jax.lowering import Lowering
from tempo.errors import ProgramError
from tempo.graph.node import Graph
from tempo.schedule.loops import Schedule
from tempo.schedule.storage import Storage

Array = Any


class JaxMachine:
    """A program without host calls: one XLA program."""

    def __init__(
        self, graph: Graph, schedule: Schedule, storage: Storage, numbers: Mapping[Any, int], device: str | None
    ) -> None:
        _use_disk_cache()
        self.device = _device(device)
        self.wide = any(node.dtype.itemsize == 8 for node in graph.nodes)
        self.inputs = {
            name: jax.ShapeDtypeStruct(
                (*(d.bound.evaluate(numbers) for d in node.domain), *_sizes(node.shape, numbers)), node.dtype
            )
            for name, node in graph.inputs.items()
            if node in set(graph.nodes)
        }
        lowering = Lowering(graph, schedule, storage, numbers)
        with self.settings():
            self.compiled = jax.jit(lowering).lower(self.inputs).compile()

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """JAX with 64-bit types where the program has any, on the program's device."""
        with jax.enable_x64(self.wide), jax.default_device(self.device):
            yield

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with self.settings():
            arrays = {name: jax.device_put(inputs[name], self.device) for name in self.inputs}
            return dict(self.compiled(arrays))

    def memory(self) -> dict[str, int]:
        """What XLA says the program takes, in bytes."""
        found = self.compiled.memory_analysis()
        return {
            "inputs": found.argument_size_in_bytes,
            "outputs": found.output_size_in_bytes,
            "temporaries": found.temp_size_in_bytes,
            "code": found.generated_code_size_in_bytes,
        }


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


def _use_disk_cache() -> None:
    """Keep compiled XLA programs between processes, unless the user has set JAX's cache up otherwise."""
    if jax.config.jax_compilation_cache_dir is None:
        home = os.environ.get("TEMPO_CACHE_DIR") or pathlib.Path.home() / ".cache" / "tempo" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(home))
