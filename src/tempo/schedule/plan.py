"""What a program's plan says: a value that can be printed, saved, changed and given back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from tempo.errors import ProgramError
from tempo.graph.fingerprint import numbered
from tempo.graph.node import Graph, Node
from tempo.symbolic import Dim


@dataclass(frozen=True)
class Plan:
    """How much is computed at once, how often it is compiled, and where it is kept.

    ``blocks``: by dims, or by their names, how many steps are computed at once; all of them where nothing is said.
    ``buckets``: by the names of dims, the steps at which loops over the dim begin another piece, each compiled for the
    sizes that ranges such as ``0:t + 1`` have in it; where nothing is said, Tempo chooses; ``[]`` for no cuts.
    ``unroll``: the names of dims, of few steps, that get no loop: each step is computed by code of its own, from arrays
    of its own, so that the weights of a layer are not cut out of those of all layers. ``host``: the names of tensors
    whose values of all steps are in host memory, from which every block gets its part; "*" for all that can be there.
    These are inputs, and what loops in blocks compute. ``run.explain()`` shows what those without a name are called:
    ``tanh#2``. ``recompute``: whether values that a later loop reads, back-propagation above all, are computed again
    there where that means that fewer bytes are kept. ``tiles``: by the names of dims, how many steps of a range such as
    ``0:t + 1`` are there at once where the range is reduced; all of them where nothing is said. ``roll``: whether parts
    of a program that do the same one after the other, such as layers written with a Python loop, become one that is
    compiled once, with a loop over them. What each of them is given, weights above all, is copied into one array.
    ``kernels``: whether loops over steps of rows that do not need each other, such as those of many environments, are a
    kernel each on a GPU: where that is faster, if nothing is said; with False none are, with True all that can be.
    Without a GPU, JAX interprets them then, which is slow: that is for tests. The NumPy backend has no kernels.
    """

    blocks: Mapping[Any, int] = field(default_factory=dict)
    buckets: Mapping[Any, Sequence[int]] = field(default_factory=dict)
    unroll: tuple[Any, ...] = ()
    host: tuple[str, ...] = ()
    recompute: bool = False
    tiles: Mapping[Any, int] = field(default_factory=dict)
    roll: bool = False
    kernels: bool | None = None
    decisions: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """Rows that say what was decided and why, of the plan of a compiled program."""

    def __post_init__(self) -> None:
        for name in ("blocks", "buckets", "tiles"):
            said = getattr(self, name)
            if not isinstance(said, Mapping):
                raise ProgramError(f"{name} = {said!r}: not by dims", hint=f'e.g. {name}={{"t": ...}}')
            object.__setattr__(self, name, {_name(dim): _plain(steps) for dim, steps in said.items()})
        for name in ("unroll", "host"):
            said = getattr(self, name)
            if not isinstance(said, str | tuple | list):
                raise ProgramError(f"{name} = {said!r}: not a tuple of names", hint=f'e.g. {name}=("x",)')
            if not isinstance(said, str):  # which is refused where it is used
                object.__setattr__(self, name, tuple(map(_name, said)))
        for name in ("recompute", "roll", "kernels"):
            value = getattr(self, name)
            if not isinstance(value, bool) and (name != "kernels" or value is not None):
                where = " (or None: where it is faster)" if name == "kernels" else ""
                raise ProgramError(f"{name} = {value!r}: neither True nor False", hint=f"give True or False{where}")

    def __str__(self) -> str:
        said = {name: value for name, value in self.settings().items() if value or (name, value) == ("kernels", False)}
        lines = [f"{name}: {_show(name, value)}" for name, value in said.items()]
        return "\n".join([*(lines or ["everything at once that can be"]), *map(str, self.decisions)])

    def settings(self) -> dict[str, Any]:
        """What the plan decides, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.compare}

    @classmethod
    def of(cls, decisions: Mapping[str, Any]) -> Plan:
        """A plan from its decisions by name: ``{"blocks": {"t": 32}}``."""
        known = [f.name for f in fields(cls) if f.compare]
        for name in decisions:
            if name not in known:
                raise ProgramError(f"a plan has no {name!r}", hint=f"what it may decide: {', '.join(known)}")
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in decisions.items()}
        return cls(**given)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """A plan that was saved."""
        try:
            found = json.loads(Path(path).read_text())
        except (OSError, TypeError):
            raise ProgramError(
                f"plan = {str(path)!r}: there is no such file",
                hint=f"a plan is {', '.join(map(repr, GOALS))}, a tp.Plan, a dict, or a file written by Plan.save",
            ) from None
        except ValueError:
            raise ProgramError(f"{path} is not a plan", hint="plans are written by Plan.save") from None
        if not isinstance(found, dict):
            raise ProgramError(f"{path} is not a plan", hint="plans are written by Plan.save")
        return cls.of(found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan into a file, as JSON."""
        Path(path).write_text(json.dumps(self.settings(), indent=2) + "\n")

    def sizes(self, graph: Graph) -> dict[Dim, int]:
        """The blocks by dim."""
        return _steps("block", self.blocks, graph)

    def ranges(self, graph: Graph) -> dict[Dim, int]:
        """The tiles by dim."""
        return _steps("tile", self.tiles, graph)

    def cuts(self, graph: Graph) -> dict[Dim, tuple[int, ...]]:
        """The steps at which buckets begin, by dim."""
        dims = _declared(graph)
        for name, cuts in self.buckets.items():
            _check_name(f"buckets of {name}", name, graph)
            whole = isinstance(cuts, Sequence) and all(isinstance(n, int) and not isinstance(n, bool) for n in cuts)
            if not whole or list(cuts) != sorted({*cuts}) or any(step < 1 for step in cuts):
                raise ProgramError(
                    f"buckets of {name} = {cuts!r}: not positive integers, each greater than the one before",
                    hint="the steps at which the next bucket begins, or [] for none",
                )
        return {dims[name]: tuple(cuts) for name, cuts in self.buckets.items()}

    def unrolled(self, graph: Graph) -> frozenset[Dim]:
        """The dims that get no loop."""
        if isinstance(self.unroll, str):
            raise ProgramError(
                f"the plan unrolls {self.unroll!r}, which is one string", hint=f"give a tuple: ({self.unroll!r},)"
            )
        dims = _declared(graph)
        stopped = {d.name for d in graph.stops}
        for name in self.unroll:
            _check_name(f"{name} unrolled", name, graph)
            if name in self.blocks:
                raise ProgramError(
                    f"the plan has blocks of {name} and unrolls it", hint="steps are in blocks, or each on its own"
                )
            if name in stopped:
                raise ProgramError(
                    f"the plan unrolls {name}, which stops on data",
                    hint="a dim is unrolled whose number of steps is known before the run",
                )
        return frozenset(dims[name] for name in self.unroll)

    def in_host_memory(self, source: Graph, graph: Graph) -> dict[Node, str]:
        """The nodes whose stores are to be in host memory, with their names: of a graph that passes have made of a
        program's own."""
        if isinstance(self.host, str):
            raise ProgramError(
                f"the plan keeps {self.host!r} on the host, which is one string",
                hint=f"give a tuple: ({self.host!r},)",
            )
        names = store_names(graph)
        known = {"*", *names.values(), *(node.name for node in source.nodes)}
        for name in self.host:
            if name not in known:
                named = dict.fromkeys(n.name for n in source.nodes if n.name.isidentifier() and n.domain)
                raise ProgramError(
                    f"the plan keeps {name} on the host, and program '{source.name}' has no such tensor",
                    hint=f"its tensors over dims are: {', '.join(named)}; "
                    'with host=("*",), run.explain() names all others',
                )
        return {node: name for node, name in names.items() if {"*", name, node.name} & {*self.host}}


def store_names(graph: Graph) -> dict[Node, str]:
    """What plans call the stores of a graph, in every process alike: the tensor's name; for a tensor without a name, or
    another one of the same name, which one it is."""
    found: dict[Node, str] = {}
    counts: dict[str, int] = {}
    for node in numbered(graph):
        name = node.name or node.op.name
        counts[name] = counts.get(name, 0) + 1
        found[node] = name if node.name and counts[name] == 1 else f"{name}#{counts[name]}"
    return found


def _steps(what: str, sizes: Mapping[str, int], graph: Graph) -> dict[Dim, int]:
    """Numbers of steps by dim."""
    for name, size in sizes.items():
        _check_name(f"{what}s of {name}", name, graph)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ProgramError(
                f"{what}s of {name} = {size!r}: a {what} is a positive integer", hint="the number of steps at once"
            )
    dims = _declared(graph)
    return {dims[name]: size for name, size in sizes.items()}


def _plain(steps: Any) -> Any:
    """Integers of Python's own, which can be saved, for those of NumPy's."""
    if isinstance(steps, list | tuple):
        return [_plain(step) for step in steps]
    return int(steps) if isinstance(steps, np.integer) else steps


def _name(dim: Any) -> Any:
    """A dim's name, where the dim itself is given."""
    return dim.name if isinstance(dim, Dim) else dim


def _declared(graph: Graph) -> dict[str, Dim]:
    return {d.name: d for d in graph.dims if d.origin is d}


def _check_name(what: str, name: str, graph: Graph) -> None:
    dims = _declared(graph)
    if name not in dims:
        raise ProgramError(
            f"the plan has {what}, and program '{graph.name}' has no such dim",
            hint=f"its dims are: {', '.join(dims)}",
        )


def _show(name: str, value: Any) -> str:
    if isinstance(value, bool):
        kernels = "all loops that can be" if value else "of parts of loops only"
        return {"recompute": "what takes fewer bytes", "roll": "what is repeated", "kernels": kernels}[name]
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {size}" for name, size in value.items())
    return ", ".join(map(str, value))


GOALS = ("fastest", "smallest")


def wanted_plan(plan: Plan | Mapping[str, Any] | str | os.PathLike[str] | None) -> tuple[str, Plan]:
    """What a user wants: a goal, and what is decided already."""
    if plan is None:
        return GOALS[0], Plan()
    if isinstance(plan, Plan):
        return GOALS[0], plan
    if isinstance(plan, str) and plan in GOALS:
        return plan, Plan()
    if isinstance(plan, Mapping):
        return GOALS[0], Plan.of(plan)
    return GOALS[0], Plan.load(plan)
