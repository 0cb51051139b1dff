"""Programs as data: a recipe prints as the Python source of a Tempo program, and is built by running that source.

What is built is therefore what is printed: a failing recipe can be pasted into a test as it is.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tempo import dtypes
from tempo.program import Program
from tempo.symbolic import Bound
from tempo.testing.syntax import (
    Gradients,
    Host,
    Input,
    Key,
    Let,
    Names,
    Output,
    Recurrent,
    State,
    Statement,
    Stop,
    Type,
    defines,
    expressions,
    parts,
    show,
    used,
)

# For every point that is defined: the number of the case that defines it, and the steps of the dims in it.
Assignment = dict[tuple[int, ...], tuple[int, dict[str, int]]]


@dataclass(frozen=True)
class Dim:
    """A dim, the number given for its bound, and the name by which Tempo knows it."""

    name: str
    bound: int
    label: str = ""

    @property
    def limit(self) -> str:
        """The bound's variable."""
        return self.name.upper()

    def __str__(self) -> str:
        label = self.label or self.name
        return f'{self.name}, {self.limit} = prog.dim("{label}")'


@dataclass(frozen=True)
class Recipe:
    """A whole program. ``smooth``: differentiable wherever it is differentiated, in float64."""

    dims: tuple[Dim, ...]
    statements: tuple[Statement, ...]
    smooth: bool = False

    @property
    def source(self) -> str:
        calls = any(isinstance(part, Host) for s in self.statements for e in expressions(s) for part in parts(e))
        helpers = "data, host_function" if calls else "data"
        lines = ["import tempo as tp", f"from tempo.testing import {helpers}", ""]
        lines.append('with tp.Program("fuzz") as prog:')
        lines += [f"    {line}" for line in (*self.dims, *self.statements)]
        lines.append(f"bounds = {{{', '.join(f'{d.limit}: {d.bound}' for d in self.dims)}}}")
        given = [f'"{s.name}": {self._data(s)}' for s in self.inputs]
        lines.append(f"inputs = {{{', '.join(given)}}}")
        return "\n".join(lines) + "\n"

    def _data(self, statement: Input) -> str:
        return f'data({show(self.shape_of(statement))}, "{statement.type.dtype}", seed={statement.seed})'

    def shape_of(self, statement: Input) -> tuple[int, ...]:
        """The shape of the array that is given for an input."""
        bounds = {d.name: d.bound for d in self.dims}
        sizes = (size if isinstance(size, int) else size.evaluate(self.values) for size in statement.type.shape)
        return (*(bounds[d] for d in statement.type.domain), *sizes)

    @property
    def inputs(self) -> list[Input]:
        return [s for s in self.statements if isinstance(s, Input)]

    @property
    def values(self) -> dict[str, int]:
        """The numbers of the bounds, by variable."""
        return {d.limit: d.bound for d in self.dims}

    def types(self) -> dict[str, Type]:
        """What every named tensor is."""
        found: dict[str, Type] = {}
        for s in self.statements:
            if isinstance(s, Input | Recurrent | State | Let):
                found[s.name] = s.type
            elif isinstance(s, Gradients):
                found.update({g: found[w] for g, w in zip(s.names, s.wrt, strict=True) if w in found})
        return found

    def __str__(self) -> str:
        return self.source


def depends(statements: Iterable[Statement], names: Iterable[str]) -> set[str]:
    """Every tensor that some tensors depend on, themselves among them only if they do."""
    listed = list(statements)
    found: set[str] = set()
    pending = set(names)
    while pending:
        reads = {r for s in listed if pending & set(defines(s)) for r in used(s)}
        pending = reads - found
        found |= reads
    return found


def without_unused(recipe: Recipe, needed: Iterable[str] = ()) -> Recipe:
    """The recipe without statements that neither results nor the ``needed`` tensors need."""
    results = [s for s in recipe.statements if isinstance(s, Output | Stop)]
    roots = {*needed, *(name for s in results for name in used(s))}
    live = roots | depends(recipe.statements, roots)
    kept = (s for s in recipe.statements if isinstance(s, Output | Stop) or live & set(defines(s)))
    return replace(recipe, statements=tuple(kept))


def places(dims: Sequence[Dim], domain: Names) -> list[dict[str, int]]:
    """Every point of a domain, with the numbers of all bounds, by variable."""
    limits = {d.limit: d.bound for d in dims}
    bounds = {d.name: d.bound for d in dims}
    ranges = (range(bounds[d]) for d in domain)
    return [{**limits, **dict(zip(domain, p, strict=True))} for p in itertools.product(*ranges)]


def free_dims(domain: Names, key: Key) -> Names:
    """The dims that the right side of a case may use."""
    if not isinstance(key, tuple):
        return domain
    return tuple(d for d, term in zip(domain, key, strict=True) if d in term.symbols())


def assignment(dims: Sequence[Dim], domain: Names, keys: Sequence[Key]) -> Assignment:
    """Which case defines which point: the first that matches it."""
    found: Assignment = {}
    for n, key in enumerate(keys):
        for place in places(dims, free_dims(domain, key)):
            if isinstance(key, tuple):
                found.setdefault(tuple(term.evaluate(place) for term in key), (n, place))
            elif key.evaluate(place):
                found.setdefault(tuple(place[d] for d in domain), (n, place))
    return found


# -- building ---------------------------------------------------------------------------------------------


class Built(NamedTuple):
    """A program, ready to be evaluated: ``program.evaluate(bounds, **inputs)``."""

    program: Program
    bounds: dict[Bound, int]
    inputs: dict[str, np.ndarray[Any, Any]]

    @property
    def needed(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of the inputs that the program needs."""
        names = {n.attributes["input"] for n in self.program.graph.nodes if n.op.name == "input"}
        return {name: array for name, array in self.inputs.items() if name in names}


def build(recipe: Recipe) -> Built:
    """The program that a recipe stands for."""
    return run(recipe.source)


def run(source: str, name: str = "<recipe>") -> Built:
    """The program that the source of a recipe makes."""
    namespace = execute(source, name)
    return Built(namespace["prog"], namespace["bounds"], namespace["inputs"])


def execute(source: str, name: str = "<recipe>") -> dict[str, Any]:
    """The variables that the source of a recipe leaves behind."""
    # So that errors show the lines of the program.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def data(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Small random numbers: floats in [-1, 1), integers from -3 to 3, truth values."""
    random = np.random.default_rng(seed)
    target = dtypes.as_dtype(dtype)
    if dtypes.is_bool(target):
        return random.integers(0, 2, shape).astype(target)
    if dtypes.is_integer(target):
        return random.integers(-3, 4, shape).astype(target)
    return random.uniform(-1, 1, shape).astype(target)
