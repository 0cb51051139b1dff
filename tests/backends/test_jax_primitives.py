"""The JAX form of every primitive against its reference: as it is, vmapped, and with padded axes."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo.ops
import tempo.random
from tempo.backends.jax.padded import Extent, Padded, jx
from tempo.graph.node import Primitive
from tests.backends.primitive_cases import CASES, SIZED, Case, Point, draw

Array = Any

TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 3e-6, "float64": 1e-13}


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def quickly(function: Any) -> Any:
    """Compiled without the passes that make a program fast."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


# -- one case at one point --------------------------------------------------------------------------------


def resolved(case: Case, dtype: Any, size: Any) -> dict[str, Any]:
    """The attributes with every size replaced."""

    def visit(value: Any) -> Any:
        return tuple(map(visit, value)) if isinstance(value, tuple) else size(value)

    return {k: visit(v) if k in SIZED else v for k, v in case.attributes_for(dtype).items()}


def number(size: int | str, point: Point) -> int:
    return eval(size, dict(point)) if isinstance(size, str) else size


def operands(case: Case, dtype: Any, point: Point, seed: int = 0) -> list[Array]:
    random = np.random.default_rng([seed, *point.values()])
    return [
        (x.draw or draw)(random, tuple(number(s, point) for s in x.shape), x.dtype or dtype, point)
        for x in case.operands
    ]


def reference(case: Case, dtype: Any, point: Point, arrays: list[Array]) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(case.op.reference(*arrays, **resolved(case, dtype, lambda size: number(size, point))))


def function(case: Case, dtype: Any, ragged: frozenset[str]) -> Any:
    """The JAX form as a function of the sizes that vary, by name, and the operands."""
    points = case.at(ragged)

    def run(values: dict[str, Array], arrays: list[Array]) -> Array:
        def size(expr: int | str) -> Any:
            if not isinstance(expr, str) or not any(name in expr for name in ragged):
                return number(expr, points[0])
            return Extent(eval(expr, {**points[0], **values}), max(number(expr, p) for p in points))

        padded = [Padded(a, tuple(map(size, x.shape))) for a, x in zip(arrays, case.operands, strict=True)]
        return case.op.jax(jx, *padded, **resolved(case, dtype, size))

    return run


def lengthened(case: Case, arrays: list[Array], points: list[Point], seed: int) -> list[Array]:
    """The operands with rubbish behind the ends of their axes."""
    random = np.random.default_rng(seed)
    result = []
    for array, x in zip(arrays, case.operands, strict=True):
        lengths = tuple(max(number(s, p) for p in points) for s in x.shape)
        kind = array.dtype.kind
        rubbish = (
            [True, False]
            if kind == "b"
            else [np.iinfo(array.dtype).min, np.iinfo(array.dtype).max]
            if kind in "iu"
            else [np.nan, np.nan, np.inf, -np.inf]
        )
        whole = random.choice(rubbish, lengths).astype(array.dtype)
        whole[tuple(slice(0, n) for n in array.shape)] = array
        result.append(whole)
    return result


def check(found: Array, expected: Array, tolerance: float | None = None) -> None:
    """Equal dtypes, and the same values in as much of the result as is not padding."""
    found = np.asarray(found)
    assert found.dtype == expected.dtype
    valid = found[tuple(slice(0, n) for n in expected.shape)]
    assert valid.shape == expected.shape
    if found.dtype.kind in "fV":
        bound = TOLERANCE[found.dtype.name] if tolerance is None else tolerance
        a, b = (v.astype(np.float64) for v in (valid, expected))
        np.testing.assert_allclose(a, b, rtol=bound, atol=bound)
    else:
        np.testing.assert_array_equal(valid, expected)


# -- the table ----------------------------------------------------------------------------------------------


def records() -> dict[str, Primitive]:
    modules = [importlib.import_module(f"tempo.ops.{m.name}") for m in pkgutil.iter_modules(tempo.ops.__path__)]
    found = [v for m in (*modules, tempo.random) for v in vars(m).values() if isinstance(v, Primitive)]
    return {op.name: op for op in found if op.reference is not None}


def test_every_primitive_has_a_jax_form():
    assert len(records()) > 60
    assert [name for name, op in records().items() if op.jax is None] == []
    assert {name for name in records()} == {case.op.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_reference(case):
    """All sizes known: compiled, and in one dtype also vmapped over each operand in turn."""
    point = case.at(frozenset())[0]
    jobs = [(dtype, operands(case, dtype, point), operands(case, dtype, point, seed=1)) for dtype in case.dtypes]

    @quickly
    def compiled(values: list[Any]) -> list[Any]:
        results = []
        for dtype, (arrays, others) in zip(case.dtypes, values, strict=True):
            run = function(case, dtype, frozenset())
            results.append([run({}, arrays)])
            for n, (one, two) in enumerate(zip(arrays, others, strict=True)) if dtype == case.dtypes[0] else ():
                mapped = jax.vmap(run, ([], [0 if m == n else None for m in range(len(arrays))]))
                results[-1].append(mapped([], [*arrays[:n], jnp.stack([one, two]), *arrays[n + 1 :]]))
        return results

    for (dtype, arrays, others), found in zip(jobs, compiled([job[1:] for job in jobs]), strict=True):
        expected = reference(case, dtype, point, arrays)
        assert found[0].shape == expected.shape
        check(found[0], expected)
        for n, (both, other) in enumerate(zip(found[1:], others, strict=False)):
            check(both[0], expected)
            check(both[1], reference(case, dtype, point, [*arrays[:n], other, *arrays[n + 1 :]]))


RAGGED = [(case, ragged) for case in CASES for ragged in case.ragged_sets()]


@pytest.mark.parametrize(("case", "ragged"), RAGGED, ids=[f"{case}, {'+'.join(sorted(r))} vary" for case, r in RAGGED])
def test_padded(case, ragged):
    """Sizes that depend on the point: traced, one point at a time and vmapped over all of them."""
    points = case.at(ragged)
    dtypes = case.padded_dtypes
    runs = [function(case, dtype, ragged) for dtype in dtypes]
    together = jax.vmap(lambda values, jobs: [run(values, a) for run, a in zip(runs, jobs, strict=True)])
    plain, inputs = [], []
    for n, point in enumerate(points):
        plain.append([operands(case, dtype, point) for dtype in dtypes])
        inputs.append([lengthened(case, arrays, points, seed=n) for arrays in plain[-1]])
    values = {name: np.array([p[name] for p in points], np.int32) for name in ragged}
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *inputs)

    @quickly
    def compiled(values: dict[str, Array], stacked: Any) -> Any:
        last = jax.tree.map(lambda leaf: leaf[-1], (values, stacked))
        return together(values, stacked), runs[0](last[0], last[1][0])

    mapped, single = compiled(values, stacked)
    for n, dtype in enumerate(dtypes):
        expected = [reference(case, dtype, p, arrays[n]) for p, arrays in zip(points, plain, strict=True)]
        if not n:
            assert single.shape == (tuple(np.max([e.shape for e in expected], axis=0)) if single.ndim else ())
            check(single, expected[-1])
        for found, wanted in zip(mapped[n], expected, strict=True):
            check(found, wanted)
