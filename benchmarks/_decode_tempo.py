"""Decoding with ``tempo.llm``: the program that ``llm.generate`` runs, compiled for exactly the context of a cell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from _decode_cells import PROMPT, Cell, Piece
from _decode_jax import weights

from tempo import llm
from tempo.backends.jax.building import Building
from tempo.backends.jax.footprint import held
from tempo.backends.jax.padded import jx
from tempo.backends.jax.prepared import zeros
from tempo.backends.jax.stages import Stages, stages
from tempo.given import check_bounds
from tempo.llm.generation import Kind, program
from tempo.runtime.compilation import Compilation, Request, Seconds
from tempo.schedule.looptree import Loop
from tempo.schedule.plan import Plan

GREEDY = Kind(used=(), ends=0, logprobs=False, emits=False)


class TempoSystem:
    def __init__(self, cell: Cell, device: Any) -> None:
        self.cell = cell
        self.device = device
        self.parameters = weights(cell.config)
        self.run: Any = None

    def build(self) -> None:
        model = llm.LanguageModel(self.cell.config, self.parameters, device=self.device.platform)
        bounds = {"B": self.cell.batch, "P": PROMPT, "T": self.cell.context}
        self.run = model.compiled(program, (GREEDY,), bounds)

    def settle(self) -> None:
        """Wait for what is compiled in the background, which would disturb what is timed."""
        if isinstance(self.run._whole.compiled, Stages):
            for program in self.run._whole.compiled.staged:
                program.result()

    def forget(self) -> None:
        self.run = None
        jax.clear_caches()

    def inputs(self, steps: int) -> dict[str, Any]:
        start, ends = np.zeros(self.cell.batch, np.int32), np.zeros(0, np.int32)
        return {**self.parameters, "prompt": self.cell.prompt, "start": start, "ends": ends, "steps": steps}

    def generate(self, count: int) -> np.ndarray[Any, Any]:
        tokens: np.ndarray[Any, Any] = self.run(**self.inputs(PROMPT + count)).tokens
        return tokens[:, PROMPT:]

    @property
    def pieces(self) -> list[Piece]:
        """Pieces of the loop over steps, each compiled for the longest context that it has."""
        return [Piece(loop.steps[0], len(loop.steps)) for _, loop in self._loops()]

    def _loops(self) -> Iterator[tuple[int, Loop]]:
        """The loops over steps, and which XLA program each is in. (The prompt is computed in one block.)"""
        for number, part in enumerate(stages(self.run.schedule.trees)):
            for tree in part.trees:
                if isinstance(tree, Loop) and not tree.block and len(tree.steps) > 1:
                    yield number, tree

    def steps(self, first: int, count: int) -> float:
        """The seconds of some steps at the beginning of a piece, with what its XLA program does before them.

        The programs of earlier pieces are left out: what they would have computed is zeros.
        """
        whole = self.run._whole
        arrays = self.run._inputs.checked(self.inputs(first + count), 0)
        with whole.place.settings():
            given: Any = (whole.place.put(arrays),)
            compiled = whole.compiled
            if isinstance(compiled, Stages):
                number = next(number for number, loop in self._loops() if loop.steps[0] == first)
                stage = compiled.recipe.stages[number]
                given = compiled.recipe.given(stage, compiled.load(*given), zeros, jx.fit)
                compiled = compiled.staged[number].result()
            jax.block_until_ready(given)
            start = time.perf_counter()
            jax.block_until_ready(compiled(*given))
            return time.perf_counter() - start

    def figures(self) -> dict[str, Any]:
        run = self.run
        found = {
            "pieces": len(self.pieces),
            "trace_s": sum(run.seconds.get(phase, 0.0) for phase in ("analysis", "passes", "plan")),
            "bytes_planned": run.storage.peak,
            "bytes_xla": sum(run._whole.memory().values()),
            "memory": self.memory(),
        }
        stats = self.device.memory_stats() or {}
        return {**found, "bytes_peak": stats["peak_bytes_in_use"]} if "peak_bytes_in_use" in stats else found

    def memory(self) -> list[tuple[int, int]]:
        """From which step on XLA programs take how many bytes."""
        whole = self.run._whole
        compiled = whole.compiled
        if not isinstance(compiled, Stages):
            return [(PROMPT, sum(whole.memory().values()))]
        firsts = {number: loop.steps[0] for number, loop in reversed([*self._loops()])}
        found = []
        for number, first in sorted(firsts.items()):
            used = compiled.staged[number].result().memory_analysis()
            fresh = used.output_size_in_bytes - used.alias_size_in_bytes + used.temp_size_in_bytes
            found.append((first, compiled.taken().beside[number] + used.argument_size_in_bytes + fresh))
        return found


def planned_memory(cell: Cell) -> list[tuple[int, int]]:
    """From which step on the stores of a GPU's program have how many bytes, weights among them: by its plan, for which
    neither weights nor a GPU are needed."""
    without_weights: Any = SimpleNamespace(decoder=llm.Decoder(cell.config), dtype=cell.config.dtype)
    prog = program(without_weights, GREEDY)
    numbers = check_bounds(prog.graph, {"B": cell.batch, "P": PROMPT, "T": cell.context})
    request = Request(prog.graph, numbers, "jax", "cpu", True, (), "fastest", Plan(), True, None, False)
    machine = Compilation(request, Seconds()).machine
    parts = stages(machine.lowering.schedule.trees)
    firsts = [[t.steps[0] for t in part.trees if isinstance(t, Loop) and len(t.steps) > 1] for part in parts]
    with machine.settings():
        if len(parts) == 1:
            return [(PROMPT, sum(store.bytes for store in machine.lowering.storage.stores.values()))]
        building = Building(machine.parts, parts, machine.inputs, machine.settings, None)
        given = building.shapes(building.lowered_loading().out_info)
        sizes = [held(arrays) + building.beside[n] for n, arrays in enumerate(given)]
    return [(first[0], size) for first, size in zip(firsts, sizes, strict=True) if first]
