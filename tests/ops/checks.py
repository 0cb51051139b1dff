"""What the tests of the functions share: run one on the oracle, compare it with NumPy, check its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import tempo as tp
from tempo import reference

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

# Half precision keeps 8 bits (bfloat16) or 11 (float16).
TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 2e-5, "float64": 1e-10}

bfloat16 = ml_dtypes.bfloat16


def numbers(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Array:
    """Random numbers without ties: normal floats, distinct integers of either sign, bools."""
    random = np.random.default_rng([seed, *shape])
    if np.dtype(dtype) == np.bool_:
        return random.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        count = int(np.prod(shape))
        low = 0 if np.dtype(dtype).kind == "u" else -(count // 2)
        return (random.permutation(count) + low).reshape(shape).astype(dtype)
    return random.normal(size=shape).astype(dtype)


def program(fn: Function, arrays: tuple[Array, ...]) -> tuple[tp.Program, Callable[..., list[Array]]]:
    """The program with one input per array and the results of ``fn`` as outputs, and a way to run it."""
    with tp.Program("check") as prog:
        inputs = [prog.input(f"x{n}", shape=a.shape, dtype=a.dtype) for n, a in enumerate(arrays)]
        results = fn(*inputs)
        listed = [results] if isinstance(results, tp.RecurrentTensor) else list(results)
        for n, y in enumerate(listed):
            prog.output(f"y{n}", y)

    used = {node.attributes.get("input") for node in prog.graph.nodes}

    def run(*values: Array) -> list[Array]:
        given = {f"x{n}": v for n, v in enumerate(values)}
        out = rerun(prog, {}, **{name: v for name, v in given.items() if name in used})
        return [out[f"y{n}"] for n in range(len(listed))]

    return prog, run


def rerun(prog: tp.Program, bounds: Any, **inputs: Array) -> tp.Result:
    """``prog.evaluate`` without the checks of definedness and causality, which take most of its time."""
    return reference.evaluate(prog.graph, bounds, inputs)


def evaluate(fn: Function, *arrays: Array) -> list[Array]:
    """What ``fn`` makes of the arrays on the oracle."""
    return program(fn, arrays)[1](*arrays)


def value(fn: Function, *arrays: Array) -> Array:
    """``evaluate`` for a function with one result."""
    (result,) = evaluate(fn, *arrays)
    return result


def narrow(expected: Array, arrays: tuple[Array, ...]) -> Array:
    """NumPy's result in the dtype that Tempo gives: no 64 bits that the inputs do not have."""
    small = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}
    if expected.dtype.name in small and not any(a.dtype == expected.dtype for a in arrays):
        return expected.astype(small[expected.dtype.name])
    return expected


def close(found: Array, expected: Any, tolerance: float | None = None) -> None:
    """Equal shapes and dtypes, and values up to rounding."""
    expected = np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    bound = TOLERANCE.get(found.dtype.name, 0) if tolerance is None else tolerance
    wide = [a.astype(np.float64) if a.dtype.kind in "fV" else a for a in (found, expected)]
    np.testing.assert_allclose(*wide, rtol=bound, atol=bound)


def same(fn: Function, numpy_fn: Function, *arrays: Array) -> None:
    """``fn`` on the oracle gives what ``numpy_fn`` gives, computed in at least single precision."""
    wide = [a.astype(np.float32) if a.dtype.name in ("bfloat16", "float16") else a for a in arrays]
    expected = numpy_fn(*wide)
    listed = list(expected) if isinstance(expected, list | tuple) else [expected]
    found = evaluate(fn, *arrays)
    assert len(found) == len(listed)
    for one, wanted in zip(found, listed, strict=True):
        wanted = np.asarray(wanted)
        halves = [a.dtype for a in arrays if a.dtype.name in ("bfloat16", "float16")]
        if halves and wanted.dtype in (np.float32, np.float64):
            wanted = wanted.astype(halves[0])
        close(one, narrow(wanted, arrays))


def gradients(fn: Function, *arrays: Array, order: int = 2, tolerance: float = 2e-6) -> None:
    """The gradients of a weighted sum of ``fn``'s result, and the gradients of those, agree with finite differences."""
    floats = [n for n, a in enumerate(arrays) if a.dtype == np.float64]

    def derivatives(*inputs: tp.RecurrentTensor) -> list[tp.RecurrentTensor]:
        wrt = [inputs[n] for n in floats]
        return differentiated(lambda: fn(*inputs), wrt, order)

    _, run = program(derivatives, arrays)
    finite_differences(run, arrays, floats, order, tolerance)


def differentiated(build: Callable[[], Any], wrt: list[tp.RecurrentTensor], order: int) -> list[tp.RecurrentTensor]:
    """A scalar made of the results, its gradients, and (for order 2) a scalar made of those and its gradients."""
    results = build()
    loss = scalar([results] if isinstance(results, tp.RecurrentTensor) else list(results), seed=1)
    first = tp.grad(loss, wrt)
    if order == 1:
        return [loss, *first]
    slope = scalar(first, seed=2)
    return [loss, *first, slope, *tp.grad(slope, wrt)]


def scalar(results: list[tp.RecurrentTensor], seed: int) -> tp.RecurrentTensor:
    """A sum of all elements, each with its own weight."""
    total = tp.constant(0.0, tp.float64)
    for n, y in enumerate(results):
        if y.dtype == tp.float64:
            total = total + tp.sum(y * numbers(*y.shape, seed=seed + 10 * n))
    return total


def finite_differences(
    run: Callable[..., list[Array]], arrays: tuple[Array, ...], floats: list[int], order: int, tolerance: float
) -> None:
    """The derivatives among the results of ``run`` fit differences of its scalars along random directions."""
    here = run(*arrays)
    step = 1e-5
    for seed in range(3):
        directions = [numbers(*a.shape, seed=100 + seed + n) if n in floats else None for n, a in enumerate(arrays)]
        ahead, behind = (
            run(*(a if d is None else a + sign * step * d for a, d in zip(arrays, directions, strict=True)))
            for sign in (1, -1)
        )
        for at in range(0, order * (len(floats) + 1), len(floats) + 1):
            slopes = here[at + 1 : at + 1 + len(floats)]
            expected = (ahead[at] - behind[at]) / (2 * step)
            found = sum(float(np.sum(g * directions[n])) for g, n in zip(slopes, floats, strict=True))
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# -- values of symbolic size --------------------------------------------------------------------------------


def prefixes(fn: Function, array: Array, start: int = 0) -> Array:
    """``fn(x[0:t + start], t, T)`` at every t, for the rows x of the array; results must have one shape."""
    return over_prefixes(lambda x, t, T: [fn(x, t, T)], array, start)[0]


def over_prefixes(fn: Function, array: Array, start: int) -> list[Array]:
    with tp.Program("prefixes") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=array.shape[1:], dtype=array.dtype, domain=(t,))
        results = fn(x[0 : t + start], t, T)
        for n, y in enumerate(results):
            prog.output(f"y{n}", y)
    out = prog.evaluate({T: len(array)}, x=array)
    return [out[f"y{n}"] for n in range(len(results))]


def same_prefixes(fn: Function, numpy_fn: Function, array: Array, start: int = 1) -> None:
    """``fn(x[0:t + start])`` gives at every t what ``numpy_fn`` gives for the array's first rows."""
    found = prefixes(lambda x, t, T: fn(x), array, start)
    rows = [np.asarray(numpy_fn(array[: t + start])) for t in range(len(array))]
    close(found, narrow(np.stack(rows), (array,)))


def same_padded(fn: Function, numpy_fn: Function, array: Array, start: int = 1) -> None:
    """``same_prefixes`` for functions that keep the symbolic axis in front: results are padded to size T."""
    found = prefixes(lambda x, t, T: padded(fn(x), T), array, start)
    rows = []
    for t in range(len(array)):
        row = np.asarray(numpy_fn(array[: t + start]))
        rows.append(np.pad(row, [(0, len(array) - len(row))] + [(0, 0)] * (row.ndim - 1)))
    close(found, narrow(np.stack(rows), (array,)))


def padded(y: tp.RecurrentTensor, T: Any) -> tp.RecurrentTensor:
    return tp.pad(y, {0: (0, T - y.shape[0])})


def prefix_gradients(fn: Function, array: Array, start: int = 1, order: int = 2, tolerance: float = 2e-6) -> None:
    """``gradients`` through ``fn(x[0:t + start])`` at all t at once; results must have one shape."""
    with tp.Program("prefix gradients") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=array.shape[1:], dtype=array.dtype, domain=(t,))

        def build() -> tp.RecurrentTensor:
            y = fn(x[0 : t + start])
            return tp.sum(y * numbers(*y.shape, seed=3) * tp.sin(t.value + 1.0), None)[0:T]

        y = tp.sum(build())
        (first,) = tp.grad(y, [x])
        outputs = [y, first]
        if order == 2:
            slope = tp.sum((first * numbers(*first.shape, seed=4) * tp.cos(t.value + 1.0))[0:T])
            outputs += [slope, *tp.grad(slope, [x])]
        for n, out in enumerate(outputs):
            prog.output(f"y{n}", out)

    def run(rows: Array) -> list[Array]:
        out = rerun(prog, {T: len(array)}, x=rows)
        return [out[f"y{n}"] for n in range(len(outputs))]

    finite_differences(run, (array,), [0], order, tolerance)
