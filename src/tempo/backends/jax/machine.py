"""Running a lowered program on a device.

A program without host calls, emits and stores in host memory is one XLA program, or one for every piece of a loop that
is cut. Otherwise, and to be stopped, watched and saved, it is run in parts, by a ``JaxWorker``.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from tempo.backends.jax import pallas, rows
from tempo.backends.jax.building import Building
from tempo.backends.jax.compiling import compile_lowered, has_matrix_units
from tempo.backends.jax.footprint import Footprint
from tempo.backends.jax.library import Library, traceable
from tempo.backends.jax.lowering import Lowering
from tempo.backends.jax.parts import Parts
from tempo.backends.jax.place import Place
from tempo.backends.jax.stages import stages
from tempo.backends.jax.whole import Whole, cut_all
from tempo.backends.jax.worker import JaxWorker
from tempo.backends.programs import Programs
from tempo.errors import ProgramError
from tempo.graph.node import Graph, Node
from tempo.graph.structural import HOST, INPUT
from tempo.schedule.loops import Schedule
from tempo.schedule.results import Cuts
from tempo.schedule.script import Script
from tempo.schedule.storage import Apart, Storage, Store

Array = Any


class JaxMachine(Place):
    """A program in parts, on a device."""

    def __init__(
        self,
        source: Graph,
        graph: Graph,
        schedule: Schedule,
        storage: Storage,
        numbers: Mapping[Any, int],
        script: Script,
        device: str | None,
        parallel: bool,
        kernels: bool | None = None,
        library: Library | None = None,
    ) -> None:
        """``source`` is the graph as the user wrote it; what is compiled goes through the ``library``. ``kernels``:
        whether loops become kernels of their own, all that can or none; without it, those that are faster then."""
        self.calls = any(node.op is HOST for node in graph.nodes)
        if self.calls:
            _compute_at_once()
        self.source = source
        self.graph = graph
        self.library = library
        hosted = [node for node, store in storage.stores.items() if store.host]
        inputs = {
            node.attributes["input"]: _declared(node, numbers, storage.stores[node])
            for node in schedule.places
            if "input" in node.attributes
        }
        wide = any(node.dtype.itemsize == 8 for node in graph.nodes)
        super().__init__(find_device(device), wide, inputs, {n.attributes["input"] for n in hosted if n.op is INPUT})
        compiled = has_matrix_units(self.device)
        wanted = compiled if kernels is None else kernels
        chosen = rows.Kernels(all=kernels is True, interpreted=not compiled) if wanted and pallas.IS_THERE else None
        self.lowering = Lowering(graph, schedule, storage, numbers, parallel, chosen)
        self.runs_whole = not (graph.emits or hosted or self.calls)
        with self.settings():
            self.parts = Parts(self.lowering, script)

    @property
    def compiles_at_once(self) -> bool:
        """Whether all of it is one XLA program, compiled before anything runs."""
        return self.runs_whole and len(stages(self.lowering.schedule.trees)) == 1

    @cached_property
    def whole(self) -> Whole | None:
        """The program without Python, if it needs none."""
        if not self.runs_whole:
            return None
        alone = partial(compile_lowered, device=self.device)
        compiler = alone if self.library is None else self.library.compile
        items = stages(self.lowering.schedule.trees)
        with self.settings():
            if len(items) > 1:
                compiled: Any = Building(self.parts, items, self.inputs, self.settings, compiler).start()
            else:
                compiled = compiler(traceable(self.lowering).lower(self.inputs))
        return Whole(self, compiled, self.source, self.lowering.limits, self.lowering.schedule.results)

    @cached_property
    def cuts(self) -> Cuts:
        return Cuts(self.source, self.lowering.schedule.results)

    def start(self, inputs: Mapping[str, Array], kept: Mapping[Any, Any] | None) -> JaxWorker:
        """A run in parts, from the beginning or with what a checkpoint has kept."""
        return JaxWorker(self, inputs, kept)

    def compile_parts(self) -> None:
        """Compile all parts at once, in threads. Those of a program with host calls are compiled when they run: what
        host functions return is not known before they do."""
        if not self.calls:
            self.footprint.compile()

    def cut(self, outputs: dict[str, Array], made: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs at the points that there are when dims have stopped."""
        return cut_all(self.cuts, self.lowering.limits, outputs, made)

    def programs(self) -> Programs:
        """The XLA programs and what they take."""
        if self.whole is not None:
            return self.whole.programs()
        if "footprint" not in self.__dict__:
            return Programs()
        return Programs(len(self.parts.compiled), self.memory(), by_python=True)

    def loops(self) -> list[str]:
        """Which loops were made kernels of their own, as far as they were compiled here."""
        notes = self.lowering.notes.values()
        return [f"loop over {loop.dim}, {loop.start} to {loop.stop - 1}: {note}" for loop, note in notes]

    @cached_property
    def footprint(self) -> Footprint:
        """What a run in parts takes, which traces them all."""
        with self.settings():
            return Footprint(self)

    def memory(self) -> dict[str, int]:
        """What XLA says a program without host calls takes, in bytes."""
        if self.whole is not None:
            return self.whole.memory()
        most = self.footprint.compile()
        inputs, outputs = self.footprint.inputs, self.footprint.outputs
        return {"inputs": inputs, "outputs": outputs, "temporaries": most - inputs - outputs}

    def taken(self, limit: int) -> int:
        """The bytes that XLA takes. If that is more than a limit, it is only looked at until that is clear."""
        return sum(self.memory().values()) if self.runs_whole else self.footprint.compile(limit)


def _declared(node: Node, numbers: Mapping[Any, int], store: Store) -> Any:
    """The shape and dtype of an input; of each step of its first dim, if that is unrolled."""
    shape = (*(d.bound.evaluate(numbers) for d in node.domain), *_sizes(node.shape, numbers))
    if node.domain and isinstance(store.dims[node.domain[0]], Apart):
        one = jax.ShapeDtypeStruct(shape[1:], node.dtype)  # type: ignore[no-untyped-call]
        return (one,) * shape[0]
    return jax.ShapeDtypeStruct(shape, node.dtype)  # type: ignore[no-untyped-call]


def _sizes(shape: Any, numbers: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple(s if isinstance(s, int) else s.evaluate(numbers) for s in shape)


def find_device(name: str | None) -> Any:
    """The first device of this kind; without a name, of the kind that JAX prefers."""
    hint = f"this machine has: {', '.join(sorted({d.platform for d in jax.devices()}))}"
    if not isinstance(name, str | None):
        raise ProgramError(f"the device is {name!r}, which is no name", hint=hint)
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        raise ProgramError(f"there is no device '{name}' here: {error}", hint=hint) from None


def _compute_at_once() -> None:
    """Let a CPU compute in the thread that starts an XLA program. Handing it to another one and waiting for that takes
    45 us, more than a small policy does: between host calls there is nothing else to do in the meantime. JAX heeds
    this if it has not been used before."""
    settings: Any = jax.config
    settings.update("jax_cpu_enable_async_dispatch", False)


def use_disk_cache() -> None:
    """Keep what is compiled between processes, unless the user has set JAX's cache up otherwise."""
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is None:
        home = os.environ.get("TEMPO_CACHE_DIR") or pathlib.Path.home() / ".cache" / "tempo" / "xla"
        settings.update("jax_compilation_cache_dir", str(home))
        # By default only what takes a second is kept: the kernels of a recursive model take less, but are many.
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.05)
        # JAX decides at its first compilation whether there is a cache, and that may have been before us.
        compilation_cache.reset_cache()
