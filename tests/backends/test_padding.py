"""Padding carries what it holds from operation to operation, so that ranges are masked once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax.padded import Extent, Padded, jx
from tempo.backends.jax.padding import Padding
from tempo.graph.node import Primitive
from tempo.ops import contraction, indexing, reduction
from tempo.runtime.executable import Executable

Build = Callable[[Any, Any], Any]


def compiled(build: Build) -> Executable:
    """A program over ``2 * x[0 : t + 1]``."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (), t)
        prog.output("y", build(2 * x[0 : t + 1], t))
    return prog.compile({T: 5})


def held(run: Executable) -> dict[str, Any]:
    """What the padding of operations holds, by the operations' names."""
    return {node.op.name: value for node, value in Padding(run.graph, run.schedule).known.items()}


def filled(run: Executable) -> dict[str, Any]:
    return {node.op.name: value for node, value in Padding(run.graph, run.schedule).filled.items()}


# -- what padding holds ------------------------------------------------------------------------------------------


def test_powers_of_what_was_masked_for_their_maximum_need_no_mask() -> None:
    run = compiled(lambda x, t: tp.logsumexp(x))
    assert filled(run) == {"multiply": -np.inf}
    assert held(run) == {"multiply": -np.inf, "subtract": -np.inf, "exp": 0.0}


def after_max(change: Build) -> Build:
    """A maximum, and a sum of something made of what it is the maximum of."""

    def build(x: Any, t: Any) -> Any:
        changed = change(x, t)
        return tp.max(x) + tp.sum(tp.exp(changed)) + tp.sum(tp.exp(changed * 1.5))

    return build


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        (lambda x, t: x + 3, "add", -np.inf),
        (lambda x, t: x + t.value.astype("float32"), "add", None),  # nobody knows that it is finite
        (lambda x, t: tp.where(x > 3, 1.0, x), "where", -np.inf),  # -inf > 3 is known to be false
        (lambda x, t: tp.where(t.value > 3, x, 1.0), "where", None),
        (lambda x, t: tp.where(t.value > 3, x, x + 1), "where", -np.inf),
        (lambda x, t: tp.minimum(x, 7), "minimum", -np.inf),
        (lambda x, t: -tp.abs(x), "negative", -np.inf),
        (lambda x, t: tp.maximum(x, 7), "maximum", None),  # it is 7, which spares nothing
        (lambda x, t: x - x, "subtract", None),  # nan
        (lambda x, t: x / 2, "divide", None),  # a device may multiply by the reciprocal
        (lambda x, t: x.astype(tp.float64), "cast", -np.inf),
        (lambda x, t: tp.stop_gradient(x) - 1, "subtract", -np.inf),
        (lambda x, t: tp.flip(x, 0), "flip", None),
    ],
)
def test_what_operations_make_of_it(change: Build, name: str, expected: Any) -> None:
    assert held(compiled(after_max(change))).get(name) == expected


def test_integers() -> None:
    """The least integer is in the padding of what a maximum is of; a comparison with it is known."""

    def build(x: Any, t: Any) -> Any:
        whole = x.astype(tp.int32)
        return tp.max(whole).astype(tp.float32) + tp.any(whole > 3).astype(tp.float32)

    run = compiled(build)
    assert filled(run) == {"cast": np.iinfo(np.int32).min}
    assert held(run)["less"] is False


def test_the_sign_of_a_zero_is_part_of_it() -> None:
    """``-0.0`` is no padding for what would be filled with ``0.0``."""

    def build(x: Any, t: Any) -> Any:
        e = tp.exp(x - 1)
        return tp.max(x) + tp.sum(e) + tp.sum(1 / tp.pad(-e, (0, 3)))

    run = compiled(build)
    assert math.copysign(1, held(run)["exp"]) == 1 and math.copysign(1, held(run)["negative"]) == -1
    assert np.all(run(x=np.ones(5)).y == np.inf)


def test_what_spares_no_mask_is_not_filled() -> None:
    assert filled(compiled(lambda x, t: tp.max(x) + tp.sum(tp.sin(x)))) == {}
    assert filled(compiled(lambda x, t: tp.sum(x * x))) == {}


def test_two_readers_with_the_same_mask_share_it() -> None:
    assert filled(compiled(lambda x, t: tp.sum(x) * tp.sum(tp.pad(x, (1, 0)) ** 2))) == {"multiply": 0}


def test_an_axis_that_only_one_operand_has() -> None:
    """Beside one operand's elements lies the other's padding: nothing is known of their sum."""

    def build(x: Any, t: Any) -> Any:
        column = x.reshape((-1, 1))
        both = column + tp.exp(x)
        return tp.max(x) + tp.max(column) + tp.sum(tp.exp(both))

    run = compiled(build)
    assert "add" not in {node.op.name for node in Padding(run.graph, run.schedule).known if len(node.shape) == 2}


# -- what is said of primitives ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dtype", "attributes"),
    [
        (reduction.SUM, "float32", {"axes": (0,)}),
        (reduction.PROD, "float32", {"axes": (0,)}),
        (reduction.MAX, "float32", {"axes": (0,), "initial": None}),
        (reduction.MIN, "int32", {"axes": (0,), "initial": None}),
        (reduction.ANY, "bool", {"axes": (0,)}),
        (reduction.ALL, "bool", {"axes": (0,)}),
        (reduction.ARGMAX, "float32", {"axis": 0}),
        (reduction.ARGMIN, "int32", {"axis": 0}),
        (contraction.EINSUM, "float32", {"subscripts": "a,a->"}),
        (
            indexing.PLACE,
            "float32",
            {"shape": (9,), "starts": (0,), "steps": (1,), "value": np.asarray(3.0, np.float32)},
        ),
    ],
)
def test_neutral_elements_are_those_that_primitives_mask_with(op: Primitive, dtype: str, attributes: Any) -> None:
    assert op.neutral is not None and op.jax is not None
    fill = op.neutral(np.dtype(dtype), **attributes)
    random = np.random.default_rng(0).integers(0, 2, 6).astype(dtype)
    size = Extent(lambda: jnp.int32(4), 6)
    count = 2 if op is contraction.EINSUM else 1
    rubbish = op.jax(jx, *[Padded(jnp.asarray(random), (size,))] * count, **attributes)
    random[4:] = fill
    known = op.jax(jx, *[Padded(jnp.asarray(random), (size,), padding=fill)] * count, **attributes)
    np.testing.assert_array_equal(known, rubbish)


def test_known_padding_is_not_masked_again() -> None:
    x = Padded(jnp.zeros(6), (Extent(lambda: jnp.int32(4), 6),), padding=0)
    assert jx.masked(x, (0,), 0) is x.array
    assert jx.masked(x, (0,), 1).tolist() == [0, 0, 0, 0, 1, 1]
    assert jx.masked(x.other(x.array + 2), (0,), 0).tolist() == [2, 2, 2, 2, 0, 0]
    assert math.copysign(1, jx.masked(x, (0,), -0.0)[-1]) == -1


# -- programs ----------------------------------------------------------------------------------------------------


def attention(gradient: bool = False) -> tuple[tp.Program, Any]:
    with tp.Program("attention") as prog:
        t, T = prog.dim("t")
        q, k, v = (prog.input(name, 4, t) for name in "qkv")
        y = tp.softmax(0.5 * (k[0 : t + 1] @ q)) @ v[0 : t + 1]
        prog.output("y", y)
        if gradient:
            loss = tp.sum(tp.square(y[0:T]))
            for name, g in zip("qkv", tp.grad(loss, (q, k, v)), strict=True):
                prog.output(f"d{name}", g)
    return prog, T


def selections(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of all that is selected."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "select_n":
            yield equation.outvars[0].aval.shape
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from selections(value.jaxpr)


def test_attention_masks_its_scores_and_its_weights_once() -> None:
    prog, T = attention()
    machine = Executable(prog.graph, {T: 32}, "jax", parallel=False)._machine
    traced = jax.make_jaxpr(machine.lowering)(machine.inputs)
    # -inf for the maximum and the sum, 0 for the product with the values
    assert sum(shape == (32, 32) for shape in selections(traced.jaxpr)) == 2


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("plan", [None, {"t": 1}, {"t": 3}])
def test_attention_is_right(gradient: bool, plan: Any) -> None:
    prog, T = attention(gradient)
    random = np.random.default_rng(0)
    given = {name: random.normal(size=(7, 4)).astype(np.float32) for name in "qkv"}
    expected = prog.evaluate({T: 7}, **given)
    found = prog.compile({T: 7}, plan=None if plan is None else tp.Plan(blocks=plan))(**given)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(getattr(found, name), array, rtol=1e-4, atol=1e-5, err_msg=name)


def several(x: Any, t: Any) -> Any:
    """Everything that masks, of one tensor and of what is made of it."""
    shifted = x - tp.max(x, initial=-np.inf)
    e = tp.exp(x - 1)
    return tp.stack(
        [
            tp.logsumexp(x),
            tp.sum(tp.softmax(x) * tp.flip(x, 0)),
            tp.max(x, initial=-1.0),
            tp.min(x, initial=9.0),
            tp.min(e, initial=9.0),
            tp.sum(e),
            tp.prod(e),
            tp.prod(1 + e),
            tp.sum(tp.cumsum(e, reverse=True)),
            tp.sum(tp.cummax(x, reverse=True) * e),
            tp.sum(tp.sort(x) * tp.sort(e)),
            tp.sum(tp.sort(x, descending=True) * e),
            tp.sum(tp.linear_scan(tp.clip(e, 0, 3), tp.clip(x, -3, 3), 0, True)),
            tp.any(x > 0.5).astype("float32"),
            tp.all(x > -9.0).astype("float32"),
            e @ x,
            tp.sum(tp.pad(e, (2, 1)) * tp.pad(x, (1, 2))),
            tp.sum(tp.where(tp.isfinite(shifted), shifted, 0)),
        ]
    )


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 1)])
@pytest.mark.parametrize("blocks", [None, 2])
def test_everything_that_masks(first: int, last: int, blocks: int | None) -> None:
    """Of ranges that grow, and slide; of no elements at all, of infinities, and with nan in steps that are not read."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (), t)
        part = 2 * x[tp.max(0, first * (t - 2)) : t + last]
        y = several(part, t)
        prog.output("y", y)
        prog.output("dx", tp.grad(tp.sum(y[0:T]), x))
    plan = None if blocks is None else tp.Plan(blocks={"t": blocks})
    run = prog.compile({T: 6}, plan=plan)
    random = np.random.default_rng(first)
    plain = random.normal(size=6).astype(np.float32)
    for at, value in ((None, 0), (5, np.nan), (2, -np.inf), (0, -np.inf), (3, np.inf)):
        given = plain.copy()
        if at is not None:
            given[at] = value
        expected = prog.evaluate({T: 6}, x=given)
        found = run(x=given)
        np.testing.assert_allclose(found.y, expected.y, rtol=1e-4, atol=1e-5, err_msg=f"{value} at {at}")
        np.testing.assert_allclose(found.dx, expected.dx, rtol=1e-4, atol=1e-4, err_msg=f"{value} at {at}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_powers_of_infinity_are_zero_in_all_types(dtype: str) -> None:
    """In as many elements as take all paths of a vectorised exp."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (), t, dtype=dtype)
        prog.output("y", tp.logsumexp(2 * x[0 : t + 1]).astype("float32"))
        prog.output("n", tp.sum(tp.exp(2 * x[0 : t + 1]) * 0 + 1).astype("float32"))
    given = np.linspace(-2, 2, 67)
    found = prog.compile({T: 67})(x=given)
    powers = np.cumsum(np.exp(2 * given.astype(tp.dtypes.as_dtype(dtype)).astype(np.float64)))
    np.testing.assert_allclose(found.y, np.log(powers), atol=0.05 if "16" in dtype and dtype != "float64" else 1e-5)
    np.testing.assert_array_equal(found.n, np.arange(1, 68))


@pytest.mark.parametrize("stopping", [2, 9])
def test_a_range_up_to_where_a_dim_stops(stopping: int) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", (), t)
        prog.stop(t, when=x > 5)
        prog.output("y", tp.softmax(2 * x[0:T]) @ x[0:T])
        prog.output("z", tp.logsumexp(2 * x[0 : t + 1]))
    given = np.arange(6, dtype=np.float32) / 10
    if stopping < 6:
        given[stopping] = 6
    expected = prog.evaluate({T: 6}, x=given)
    found = prog.compile({T: 6})(x=given)
    np.testing.assert_allclose(found.y, expected.y, rtol=1e-5)
    np.testing.assert_allclose(found.z, expected.z, rtol=1e-5)
