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
from tempo.errors import ShapeError
from tempo.graph.node import Primitive
from tempo.ops import (
    attention,
    contraction,
    convolution,
    elementwise,
    gathering,
    indexing,
    reduction,
    scan,
    shaping,
    sorting,
)
from tests.backends.primitive_cases import CASES, SIZED, Case, Point, bfloat16, draw

Array = Any

# Those that compute with sizes, not only compare with them.
BY_PLACE = (
    shaping.RESHAPE,
    shaping.CONCATENATE,
    shaping.FLIP,
    indexing.SLICE,
    indexing.PLACE,
    gathering.TAKE,
    tempo.random.RANDOM_BITS,
)

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
            value = eval(expr, {**points[0], **values})
            return Extent(lambda: value, max(number(expr, p) for p in points))

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
    # Functions of JAX take no padding: tests/ops/test_jax_function.py.
    assert {name for name in records()} - {"jax_function"} == {case.op.name for case in CASES}


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

    for (dtype, arrays, others), found in zip(jobs, jax.device_get(compiled([job[1:] for job in jobs])), strict=True):
        expected = reference(case, dtype, point, arrays)
        assert found[0].shape == expected.shape
        check(found[0], expected)
        for n, (both, other) in enumerate(zip(found[1:], others, strict=False)):
            check(both[0], expected)
            check(both[1], reference(case, dtype, point, [*arrays[:n], other, *arrays[n + 1 :]]))


RAGGED = [(case, ragged) for case in CASES for ragged in case.ragged_sets()]


@pytest.mark.parametrize(("case", "ragged"), RAGGED, ids=[f"{case}, {'+'.join(sorted(r))} vary" for case, r in RAGGED])
def test_padded(case, ragged):
    """Sizes that depend on the point: traced at one point, vmapped over several, and numbers (a loop of one step)."""
    points, dtypes = case.at(ragged), case.padded_dtypes
    runs = [function(case, dtype, ragged) for dtype in dtypes]
    plain = [[operands(case, dtype, point) for dtype in dtypes] for point in points]
    inputs = [[lengthened(case, arrays, points, seed=n) for arrays in plain[n]] for n in range(len(points))]
    values = {name: np.array([p[name] for p in points], np.int32) for name in ragged}

    @quickly
    def compiled(values: dict[str, Array], inputs: Any) -> Any:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *inputs)
        return (
            [jax.vmap(run)(values, arrays) for run, arrays in zip(runs, stacked, strict=True)],
            runs[0]({name: v[0] for name, v in values.items()}, inputs[0][0]),
            runs[0]({name: points[0][name] for name in ragged}, inputs[0][0]) if case.op in BY_PLACE else None,
        )

    mapped, traced, known = jax.device_get(compiled(values, inputs))
    for n, dtype in enumerate(dtypes):
        expected = [reference(case, dtype, p, arrays[n]) for p, arrays in zip(points, plain, strict=True)]
        for found, wanted in zip(mapped[n], expected, strict=True):
            check(found, wanted)
        if not n:
            check(traced, expected[0])
            assert traced.shape == (tuple(np.max([e.shape for e in expected], axis=0)) if traced.ndim else ())
            if known is not None:
                check(known, expected[0])


# -- corners --------------------------------------------------------------------------------------------------


def whole(*arrays: Array) -> list[Padded]:
    return [Padded(jnp.asarray(a), a.shape) for a in arrays]


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1e30, -1e30, 1e-30], np.float32)
ELEMENTWISE = {case.op.name: case for case in CASES if case.op in vars(elementwise).values()}
UNARY = [c.op for c in ELEMENTWISE.values() if len(c.operands) == 1 and np.float32 in c.dtypes and not c.attributes]
BINARY = [c.op for c in ELEMENTWISE.values() if len(c.operands) == 2 and np.float32 in c.dtypes]


def test_special_values_element_by_element():
    pairs = np.meshgrid(SPECIAL, SPECIAL)

    @quickly
    def compiled(x: Array, a: Array, b: Array) -> Any:
        return [op.jax(jx, *whole(x)) for op in UNARY], [op.jax(jx, *whole(a, b)) for op in BINARY]

    unary, binary = jax.device_get(compiled(SPECIAL, *pairs))
    for op, found in zip([*UNARY, *BINARY], [*unary, *binary], strict=True):
        arrays = [SPECIAL] if op in UNARY else pairs
        with np.errstate(all="ignore"):
            expected = op.reference(*arrays)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=op.name)


def test_integers_divided_by_zero_are_zero():
    for dtype in (np.int32, np.int8, np.uint8):
        a, b = np.array([7, 0, 3], dtype), np.array([0, 0, 2], dtype)
        for op in (elementwise.FLOOR_DIVIDE, elementwise.MOD):
            check(op.jax(jx, *whole(a, b)), op.reference(a, b))


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_nan_and_infinity_are_ordered_before_padding(dtype):
    rows = [
        [np.nan, np.inf, np.nan, -np.inf, np.inf],
        [-np.inf, -np.inf, -np.inf, -np.inf, -np.inf],
        [np.inf, np.inf, np.nan, np.inf, np.inf],
        [0.0, -0.0, 0.0, -0.0, 1.0],
    ]
    x = np.array(rows).astype(dtype)
    jobs = [
        *((sorting.ARGSORT, {"axis": 1, "descending": d, "count": 5}) for d in (False, True)),
        *((op, {"axis": 1}) for op in (reduction.ARGMAX, reduction.ARGMIN)),
        *((op, {"axes": (1,), "initial": None}) for op in (reduction.MAX, reduction.MIN)),
        *((op, {"axis": 1, "reverse": r}) for op in (scan.CUMMAX, scan.CUMMIN, scan.CUMSUM) for r in (False, True)),
    ]

    @quickly
    def compiled(x: Array, size: Array) -> Any:
        return [op.jax(jx, Padded(x, (4, Extent(lambda: size, 8))), **attributes) for op, attributes in jobs]

    for fill in (np.nan, np.inf, -np.inf, 0):
        longer = np.concatenate([x, np.full((4, 3), fill, dtype)], 1)
        for (op, attributes), found in zip(jobs, jax.device_get(compiled(longer, 5)), strict=True):
            with np.errstate(all="ignore"):
                check(found, op.reference(x, **attributes))


def test_half_precision_is_accumulated_in_single():
    ones = np.ones(600, bfloat16)
    nothing, zeros = np.zeros(1, bfloat16), np.zeros(600, np.int32)

    @quickly
    def compiled(ones: Array, nothing: Array) -> Any:
        return [
            reduction.SUM.jax(jx, *whole(ones), axes=(0,)),
            scan.CUMSUM.jax(jx, *whole(ones), axis=0, reverse=False)[-1],
            scan.LINEAR_SCAN.jax(jx, *whole(ones, ones), axis=0, reverse=False)[-1],
            contraction.EINSUM.jax(jx, *whole(ones, ones), subscripts="i,i->"),
            gathering.SCATTER_ADD.jax(jx, *whole(nothing, zeros, ones), axis=0)[0],
            gathering.SCATTER_ADD_ALONG_AXIS.jax(jx, *whole(nothing, zeros, ones), axis=0)[0],
        ]

    assert [float(s) for s in compiled(ones, nothing)] == [600.0] * 6


def test_small_integers_index_long_axes():
    x = np.arange(1000)
    indices = np.array([-1, 5, -128], np.int8)
    np.testing.assert_array_equal(gathering.TAKE.jax(jx, *whole(x, indices), axis=0), x[[-1, 5, -128]])


def test_axes_of_no_length():
    """An axis may be empty at all points; what comes of it is not looked at, where it is not neutral."""
    x = np.zeros((2, 0), np.float32)
    assert reduction.SUM.jax(jx, *whole(x), axes=(1,)).tolist() == [0, 0]
    assert reduction.MAX.jax(jx, *whole(x), axes=(1,), initial=None).tolist() == [-np.inf, -np.inf]
    assert reduction.ARGMAX.jax(jx, *whole(x), axis=1).shape == (2,)
    assert sorting.ARGSORT.jax(jx, *whole(x), axis=1, descending=True, count=0).shape == (2, 0)
    assert scan.LINEAR_SCAN.jax(jx, *whole(x, x), axis=1, reverse=True).shape == (2, 0)


def test_taking_from_an_axis_of_no_length():
    x, indices = np.zeros((2, 0), np.float32), np.zeros((2, 3), np.int32)
    assert gathering.TAKE.jax(jx, *whole(x, indices), axis=1).shape == (2, 2, 3)
    assert gathering.TAKE_ALONG_AXIS.jax(jx, *whole(x, indices), axis=1).shape == (2, 3)


def test_concatenate_is_as_long_as_its_operands_may_be():
    """The whole always has 5 elements, which only whoever knows the expressions can tell."""

    @jax.jit
    def compiled(t: Array) -> Array:
        a = Padded(jnp.array([1, 2, 3, 4, 5]), (Extent(lambda: t, 5),))
        b = Padded(jnp.array([6, 7, 8, 9, 10]), (Extent(lambda: 5 - t, 5),))
        return shaping.CONCATENATE.jax(jx, a, b, axis=0)

    assert compiled(2).shape == (10,)
    assert jx.fit(compiled(2), (5,)).tolist() == [1, 2, 6, 7, 8]
    assert jx.fit(compiled(0), (5,)).tolist() == [6, 7, 8, 9, 10]


def test_a_product_with_weights_is_one_matrix_product():
    """A vmap over points, with weights that do not depend on them, makes no batched product."""

    def product(x: Array, w: Array) -> Array:
        return contraction.EINSUM.jax(jx, *whole(x, w), subscripts="a,ab->b")

    x, w = jnp.zeros((7, 3), np.float32), jnp.zeros((3, 4), np.float32)
    text = jax.jit(jax.vmap(jax.vmap(product, (0, None)), (0, None))).lower(x[None], w).as_text()
    (line,) = [line for line in text.splitlines() if "dot_general" in line]
    assert "batching_dims" not in line
    assert "contracting_dims = [2] x [0]" in line
    assert "precision = [HIGHEST, HIGHEST]" in line


def test_reshape_without_a_gather():
    """Where a padded axis stays in front of what it is joined with or split from, nothing moves."""

    def gathers(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
        def run(n: Array, x: Array) -> Array:
            names = {"n": Extent(lambda: n, 5), "2n": Extent(lambda: 2 * n, 10)}
            sizes, shape = (tuple(names.get(s, s) for s in t) for t in (before, after))
            return shaping.RESHAPE.jax(jx, Padded(x, sizes), shape=shape)

        most = {"n": 5, "2n": 10}
        return "gather" in str(jax.make_jaxpr(run)(3, np.zeros([most.get(s, s) for s in before])))

    assert not gathers(("n", 2, 3), ("n", 6))
    assert not gathers((2, "n", 6), (2, "2n", 3))
    assert not gathers(("n", 1, "n", 2), (1, "n", "2n"))
    assert gathers((2, "n"), ("2n",))


def test_convolution_along_a_padded_axis():
    x = Padded(jnp.zeros((1, 1, 8)), (1, 1, Extent(lambda: jnp.int32(5), 8)))
    w = Padded(jnp.zeros((1, 1, 3)), (1, 1, 3))
    with pytest.raises(ShapeError) as error:
        convolution.CONVOLUTION.jax(jx, x, w, strides=(1,), dilations=(1,), groups=1)
    assert str(error.value) == (
        "convolution: an axis that the window moves along, or that is cut into groups, has a size that depends on the "
        "point\n  hint: give it a fixed size first, e.g. tp.pad(x, {2: (0, T - x.shape[2])})"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_convolutions_with_what_is_no_number(dtype):
    """NaN in one group, or at one of the steps that are computed at once, stays there."""
    values = np.ones((3, 1, 2, 4), dtype)
    values[1, :, 0] = np.nan
    windows = np.ones((3, 2, 1, 2), dtype)

    @jax.jit
    @jax.vmap
    def compiled(x: Array, w: Array) -> Array:
        return convolution.CONVOLUTION.jax(jx, *whole(x, w), strides=(2,), dilations=(1,), groups=2)

    expected = np.full((3, 1, 2, 2), 2, dtype)
    expected[1, :, 0] = np.nan
    np.testing.assert_array_equal(compiled(values, windows), expected)


def test_attention_to_values_that_are_no_numbers_beyond_their_length():
    """What some computation left in the padding has no weight, and must not count for all that."""
    steps = Extent(lambda: jnp.int32(2), 4)
    q = Padded(jnp.zeros(2, jnp.float32), (2,))
    k = Padded(jnp.ones((4, 2), jnp.float32), (steps, 2))
    v = Padded(jnp.array([[1], [3], [np.nan], [np.nan]], jnp.float32), (steps, 1))
    found = attention.ATTENTION.jax(jx, q, k, v, terms="d,sd,se->e", scale=1.0, fill=-np.inf)
    assert found.tolist() == [2.0]


def test_the_last_element_of_nothing():
    """At steps whose results are discarded, an empty range may be asked for its last element."""
    x = Padded(jnp.zeros((0,)), (0,))
    found = indexing.SLICE.jax(jx, x, starts=(Extent(lambda: jnp.int32(-1), -1),), sizes=(1,), steps=(1,))
    assert found.shape == (1,)


def test_the_key_of_random_numbers_is_not_seen_to_be_a_sum() -> None:
    """LLVM tries for seconds in which order to add its twenty terms and the positions of a row."""

    def draw(seed: Any) -> Any:
        padded = Padded(seed, seed.shape)
        return tempo.random.RANDOM_BITS.jax(jx, padded, stream=1, point=(2,), shape=(4,), dtype=tempo.dtypes.uint32)

    equations = jax.make_jaxpr(draw)(np.array([1, 2], np.uint32)).jaxpr.eqns
    makers = {id(made): equation for equation in equations for made in equation.outvars}
    (positions,) = (equation.outvars[0] for equation in equations if equation.primitive.name == "iota")
    (first,) = (e for e in equations if e.primitive.name == "add" and any(x is positions for x in e.invars))
    (key,) = (x for x in first.invars if x is not positions)
    assert makers[id(key)].primitive.name == "xor"
