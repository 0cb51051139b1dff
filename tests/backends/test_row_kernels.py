"""Loops over independent rows as kernels, interpreted, against the same loops as JAX runs them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tempo as tp
from tempo import rl
from tempo.backends.jax.compiling import has_matrix_units
from tempo.backends.jax.rows import Kernels, NotRowsError, blocks, iterate, kernel
from tempo.backends.jax.rows.axes import groups, rows_of
from tempo.backends.jax.rows.blocks import keeps_rest_behind
from tempo.backends.jax.rows.steps import Step, Var, flattened
from tempo.errors import ProgramError

Array = Any
Body = Callable[[Array, Any], Any]
HERE = Kernels(all=True, interpreted=True)
STEPS = 6


def data(*shape: int, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


def check(body: Body, start: Any, count: int = STEPS) -> Any:
    """Raise unless a kernel makes of ``start`` what a loop does."""
    found = jax.jit(lambda start, count: iterate(body, start, count, HERE))(start, count)
    expected = lax.fori_loop(0, count, lambda k, carry: body(k.astype(jnp.int32), carry), start)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    return found


@pytest.mark.parametrize("rows", [2, 16, 17, 40, 300])
def test_a_policy_that_acts(rows: int) -> None:
    first, second, draws = data(32, 20), data(3, 32, seed=1), data(STEPS, rows, 3, seed=2)

    def body(k: Array, carry: Any) -> Any:
        actions, seen, x = carry
        hidden = jnp.tanh(lax.dot_general(x, first, (((1,), (1,)), ((), ()))))
        logits = jax.nn.log_softmax(hidden @ second.T)
        action = jnp.argmax(logits + lax.dynamic_index_in_dim(draws, k, 0, keepdims=False), 1)
        actions = lax.dynamic_update_slice(actions, action[:, None].astype(jnp.int32), (0, k))
        seen = lax.dynamic_update_slice(seen, x[:, None], (0, k, 0))
        return actions, seen, 0.9 * x + 0.1 * action[:, None]

    start = jnp.zeros((rows, STEPS), jnp.int32), jnp.zeros((rows, STEPS, 20)), data(rows, 20, seed=3)
    check(body, start)


WEIGHTS = data(48, 100), data(100, 100, seed=1), data(7, 100, seed=2)


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices are read in parts where that is possible at all."""
    monkeypatch.setattr(kernel._Loop, "time", property(lambda loop: 0.0 if loop.streams else 1.0))


def wide_layers(k: Array, carry: Any) -> Any:
    """Products of each kind: rows with a matrix and the other way round, sums over either axis of it."""
    first, second, last = WEIGHTS
    kept, x = carry
    hidden = jnp.tanh(0.1 * lax.dot_general(second, jnp.tanh(0.1 * x @ first), (((1,), (1,)), ((), ()))))
    logits = lax.dot_general(last, hidden, (((1,), (0,)), ((), ())))
    kept = lax.dynamic_update_slice(kept, hidden.T[None], (k, 0 * k, 0 * k))
    return kept, 0.9 * x + 0.1 * logits.max(0)[:, None]


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("rows", [3, 64, 70, 600])
def test_matrices_that_are_read_in_parts(rows: int) -> None:
    start = jnp.zeros((STEPS, rows, 100)), data(rows, 48, seed=3)
    loop = kernel._loops(flattened(wide_layers, start))[-1]
    assert [(stream.given, stream.along, stream.part) for stream in loop.streams.values()] == [
        (0, (1, 0), 32),
        (1, (1, 1), 32),
    ]
    check(wide_layers, start)
    with jax.enable_x64(True):
        check(wide_layers, start)


def test_matrices_are_read_in_parts_if_they_are_large() -> None:
    def layer(size: int, rows: int) -> Any:
        weights = data(size, size)
        loops = kernel._loops(flattened(lambda _, x: jnp.tanh(jnp.tanh(x @ weights) @ weights), data(rows, size)))
        return min(loops, key=lambda loop: loop.time)

    wide = layer(256, 512)
    assert wide.streams and wide.rows.each == 4 and wide.time < wide.own_time
    assert layer(256, 4096).rows.each == 32
    with pytest.raises(NotRowsError, match="registers"):
        layer(1024, 512)


def test_what_is_not_written_stays() -> None:
    def body(k: Array, carry: Any) -> Any:
        kept, x = carry
        return lax.dynamic_update_slice(kept, x[:, None], (0, 2 * k)), x + 1

    kept, _ = check(body, (data(8, 12), data(8)))
    np.testing.assert_array_equal(kept[:, 1::2], data(8, 12)[:, 1::2])


@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_iterations(count: int) -> None:
    check(lambda k, x: x * 0.5 + jnp.mean(x, 1, keepdims=True) + k, data(6, 5), count)


OF_ROWS: dict[str, Callable[[Array], Array]] = {
    "sums of padded axes": lambda x: x + x.sum((1, 2))[:, None, None],
    "extremes of padded axes": lambda x: x - 0.5 * x.max((1, 2), keepdims=True) + 0.1 * x.min(2, keepdims=True),
    "truths": lambda x: x + (x > 0).all(2)[..., None] - (x > 0.5).any(1)[:, None],
    "positions": lambda x: x + 0.1 * x.argmax(2)[..., None] - 0.1 * x.argmin(1)[:, None],
    "axes in another order": lambda x: jnp.transpose(jnp.transpose(x, (0, 2, 1)) * jnp.arange(3.0), (0, 2, 1)) + 1,
    "one position": lambda x: x * 0.5 + x[:, 1:2] - x[:, :, 4:5],
    "positions put together": lambda x: jnp.stack([x[:, n, :] * n for n in range(3)], 1) + 1,
    "products within a row": lambda x: 0.1 * jnp.einsum("bij,bkj->bik", x, x) @ data(3, 5) + x,
    "parts of an axis": lambda x: (
        x + sum(((x @ data(5, 12))[..., 4 * n : 4 * n + 4].sum(2)[..., None] * 0.1**n for n in range(3)), jnp.zeros(()))
    ),
    "parts put together": lambda x: (
        x + jnp.concatenate([n * x[..., 4:].repeat(4, 2) for n in range(3)], 2).max(2)[..., None]
    ),
    "parts among zeros": lambda x: (
        x + jnp.pad(x[..., 2:3] * jnp.ones(4), ((0, 0), (0, 0), (8, 4)), constant_values=0.5).sum(2)[..., None]
    ),
    "numbers of rows": lambda x: x + jnp.arange(x.shape[0])[:, None, None],
    "clipped": lambda x: jnp.clip(x * 2, -0.5, 0.75),
    "bits": lambda x: x + (lax.bitcast_convert_type(x, jnp.uint32) >> 28 & 3).astype(jnp.float32),
}


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("rows", [4, 7])
def test_of_rows(name: str, rows: int) -> None:
    check(lambda _, x: OF_ROWS[name](x), data(rows, 3, 5), 3)


def test_axes_that_are_padded_behind_all_else_become_one() -> None:
    weights = data(48, 48)
    check(lambda _, x: (x.reshape(4, 48) @ weights).reshape(4, 3, 4, 4) * 0.1, data(4, 3, 4, 4), 2)


def test_first_of_equal_values_and_what_is_no_number() -> None:
    x = jnp.asarray([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, np.nan, 5.0], [np.inf, -1.0, 3.0]])

    def body(k: Array, carry: Any) -> Any:
        return carry[0], carry[0].argmax(1), (-carry[0]).argmin(1)

    _, most, least = iterate(body, (x, jnp.zeros(4, jnp.int32), jnp.zeros(4, jnp.int32)), 1, HERE)
    assert most.tolist() == [1, 0, 1, 0]
    assert least.tolist() == [1, 0, 1, 0]


def test_what_all_rows_share_goes_from_iteration_to_iteration() -> None:
    def body(k: Array, carry: Any) -> Any:
        x, rate, table = carry
        return x * rate + table.sum(), rate * 0.5, table + rate

    check(body, (data(5, 3), jnp.float32(0.9), data(4)))


def test_in_64_bits() -> None:
    with jax.enable_x64(True):
        x = np.random.default_rng(0).uniform(-1, 1, (STEPS, 5, 3))

        def body(k: Array, carry: Any) -> Any:
            kept, h = carry
            h = jnp.tanh(h + lax.dynamic_index_in_dim(jnp.asarray(x), k, 0, keepdims=False).sum(1, keepdims=True))
            return lax.dynamic_update_slice(kept, h[:, None], (jnp.int32(0), k, jnp.int32(0))), h

        check(body, (jnp.zeros((5, STEPS, 3)), jnp.zeros((5, 3))))


def test_rows_in_the_middle() -> None:
    check(lambda _, x: x + x.sum((0, 2), keepdims=True) * 0.1, data(3, 8, 2))


def test_half_precision() -> None:
    weights, x = data(16, 16).astype(jnp.bfloat16), data(8, 16).astype(jnp.bfloat16)

    def body(_: Array, x: Array) -> Array:
        return jnp.tanh((x @ weights).astype(jnp.float32)).astype(jnp.bfloat16)

    found, expected = iterate(body, x, 2, HERE), lax.fori_loop(0, 2, body, x)
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), atol=0.02)


class Forgetful:
    """JAX with maxima that leave out what is no number, as Triton's do."""

    max, min = staticmethod(jnp.nanmax), staticmethod(jnp.nanmin)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


def test_what_is_no_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    x = data(4, 3).at[1, 2].set(np.nan)
    check(lambda _, x: jnp.clip(x, -1, 1) + jnp.sign(x), x, 1)
    monkeypatch.setattr(blocks, "jnp", Forgetful())
    check(lambda _, x: x.max(1, keepdims=True) - x.min(1, keepdims=True) + x, x, 1)
    greatest = Step(SimpleNamespace(name="max", bind=jnp.fmax), (), Var((2,), np.dtype("float32")), {})
    given = (blocks.Block(jnp.asarray(values), (2,)) for values in ([np.nan, 1.0], [2.0, np.nan]))
    assert np.isnan(blocks.RULES["max"](None, greatest, (2,), *given)).all()


REFUSED: dict[str, tuple[Body, Any, str]] = {
    "rows that need each other": (lambda _, x: x - x.mean(0), data(4), "no axis is one of rows"),
    "rows that are mixed": (lambda _, x: data(4, 4) @ x, data(4), "no axis is one of rows"),
    "rows that are summed": (lambda _, x: x @ data(4, 4), data(4), "no axis is one of rows"),
    "a store as a whole": (
        lambda k, s: lax.dynamic_update_slice(s, s.sum(1)[:, None], (0, k)),
        data(4, 8),
        "what was written is read again",
    ),
    "what it does not know": (lambda _, x: jnp.sort(x, 1), data(4, 3), "sort|several results"),
    "an inner loop": (lambda _, x: lax.fori_loop(0, 3, lambda _, y: y + 1, x), data(4), "not known|several results"),
    "steps that were written": (
        lambda k, s: lax.dynamic_update_slice(s, lax.dynamic_slice(s, (0, k), (4, 1)) + 1, (0, k + 1)),
        data(4, 8),
        "not in memory",
    ),
    "large values": (lambda _, x: x + 1, data(4, 2**14), "registers"),
    "many weights": (
        lambda k, x: sum((jnp.tanh(x @ data(64, 64, seed=n)) for n in range(80)), x),
        data(4, 64),
        "than is near",
    ),
    "padding in between": (lambda _, x: x.reshape(4, 15).reshape(4, 5, 3).reshape(4, 3, 5), data(4, 3, 5), "padded"),
    "parts that are not equal": (
        lambda _, x: jnp.concatenate([x[:, :2] * 2, x[:, 2:]], 1),
        data(4, 5),
        "no equal parts",
    ),
    "a part in between": (lambda _, x: x + x[:, 1:3].sum(1)[:, None], data(4, 5), "no equal parts"),
    "functions of half precision": (lambda _, x: jnp.tanh(x), data(4, 3).astype(jnp.bfloat16), "half precision"),
    "nothing in it": (lambda _, x: x + x[:, :0].reshape(4, 0, 3).reshape(0).sum(), data(4, 3), "nothing in an array"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, start, why = REFUSED[name]
    with pytest.raises(NotRowsError, match=why):
        iterate(body, start, STEPS, HERE)


def test_only_where_it_is_faster() -> None:
    small, large = data(64, 64), data(256, 1024)
    worth = Kernels(interpreted=True)
    iterate(lambda _, x: jnp.tanh(jnp.tanh(x @ small) @ small), data(64, 64), 1, worth)
    with pytest.raises(NotRowsError, match="us an iteration"):
        iterate(lambda _, x: jnp.tanh(x) + 1, data(64, 64), 1, worth)
    with pytest.raises(NotRowsError, match=r"us an iteration|registers"):
        iterate(lambda _, x: jnp.tanh(x @ large) @ large.T, data(64, 256), 1, worth)


def test_what_does_not_fit_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MOST_KEPT", 20)
    monkeypatch.setattr(kernel, "MOST_FETCHED", 4)
    weights, other, x = data(4, 4), data(4, 4, seed=1), data(STEPS, 8, 4, seed=2)

    def body(k: Array, h: Array) -> Array:
        there, again = (lax.dynamic_index_in_dim(x, n, 0, keepdims=False) for n in (k, STEPS - 1 - k))
        return jnp.tanh((h + there) @ weights) + again @ other

    check(body, data(8, 4, seed=3))


def test_what_is_read_as_a_whole_and_in_parts() -> None:
    x = data(STEPS, 4, 3)

    def body(k: Array, h: Array) -> Array:
        here = lax.dynamic_slice(x, (k, 0, 0), (2, 4, 3))
        return h + here.sum(0) * lax.dynamic_index_in_dim(here, 1, 0, keepdims=False) + x.sum(0)

    check(body, data(4, 3, seed=1))


def test_what_triton_refuses_is_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no tiles of this size")

    monkeypatch.setattr(kernel.lax, "fori_loop", refuse)
    with pytest.raises(NotRowsError, match="Triton refuses it: no tiles of this size"):
        iterate(lambda _, x: x + x.sum(1, keepdims=True), data(4, 4), 1, Kernels(all=True))


def test_the_axis_with_the_rows() -> None:
    flat = flattened(lambda _, x: x + x.sum(1, keepdims=True), data(7, 5))
    count, axes = rows_of(flat)
    assert count == 7 and set(axes.values()) == {0}
    assert axes[flat.carried[0]] == 0


# What an interpreter would put right by itself.


def test_parts_are_inside_of_what_they_are_parts_of() -> None:
    whole = blocks.View(None, (np.int32(0), np.int32(3)), (8, 5))
    assert [int(start) for start in whole.part([jnp.int32(7), jnp.int32(-2)], (2, 1)).starts] == [6, 3]
    assert int(whole.part([jnp.int32(4), jnp.int32(9)], (2, 5)).starts[1]) == 3


@pytest.mark.parametrize(("rows", "there"), [(32, None), (40, 8)])
def test_rows_that_are_not_there_are_neither_read_nor_written(rows: int, there: int | None) -> None:
    var = Var((3, rows), np.dtype("float32"))
    last = blocks.Blocks(blocks.Rows({var: 1}, rows, 16), jnp.int32(32), None)
    mask = last.view(var, None).inside()
    assert mask is not None
    assert int(mask[0].sum()) == (16 if there is None else there)


def test_what_all_rows_share_is_not_written_where_others_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    call = kernel.pl.pallas_call
    monkeypatch.setattr(kernel.pl, "pallas_call", lambda *a, **k: given.update(k) or call(*a, **k))
    iterate(lambda _, c: (c[0] * c[1] + c[0].sum(1, keepdims=True), c[1] + 1), (data(8, 3), jnp.float32(1)), 1, HERE)
    assert list(given["input_output_aliases"].values()) == [0]


def test_groups_of_reshaped_axes() -> None:
    assert groups((4, 3, 5), (4, 15)) == [([0], [0]), ([1, 2], [1])]
    assert groups((1, 6), (2, 3, 1)) == [([1], [0, 1])]
    assert keeps_rest_behind((4, 3, 4), (4, 12))
    assert not keeps_rest_behind((4, 4, 3), (4, 12))


# -- in programs -----------------------------------------------------------------------------------------------------


def trained(plan: tp.Plan | None) -> tp.Executable:
    env = rl.Synthetic((3, 4, 4), limit=7)
    algorithm = rl.ppo(
        env, rl.Policy(env, [16]), rl.Critic(env, [16]), iterations=2, count=6, steps=9, epochs=1, minibatches=1
    )
    return algorithm.program.compile(algorithm.bounds, plan=plan)


def test_acting_in_one_kernel_is_acting() -> None:
    run = trained(tp.Plan(kernels=True))
    found, expected = run(), trained(None)()
    for name, value in expected.outputs.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    assert "loop over t, 0 to 8: one kernel" in run.explain()


def test_a_cpu_gets_no_kernels() -> None:
    assert "kernel" not in trained(None).explain().partition("-- XLA programs --")[2]


@pytest.mark.parametrize(
    ("platform", "version", "capability", "has"),
    [("gpu", "cuda 12090", "9.0", True), ("gpu", "cuda 12090", "7.5", False), ("gpu", "rocm 6", "9.0", False)],
)
def test_where_kernels_are_compiled(platform: str, version: str, capability: str, has: bool) -> None:
    client = SimpleNamespace(platform_version=version)
    assert has_matrix_units(SimpleNamespace(platform=platform, client=client, compute_capability=capability)) is has
    assert not has_matrix_units(jax.devices("cpu")[0])


def test_why_a_loop_is_no_kernel() -> None:
    with tp.Program("mixed") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", shape=(3,), domain=t)
        x[0] = np.ones(3)
        x[t + 1] = tp.tanh(x[t]) - tp.mean(x[t])
        prog.output("x", x)
    run = prog.compile({T: 5}, plan=tp.Plan(kernels=True))
    run()
    assert "of several kernels: no axis is one of rows" in run.explain()


def test_a_loop_that_is_for_no_kernel_is_not_traced_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "flattened", lambda *_: pytest.fail("it was traced"))
    with tp.Program("large") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        w = prog.input("w", shape=(128, 128))
        h = prog.recurrent("h", shape=128, domain=(b, t))
        h[b, 0] = 1.0
        h[b, t + 1] = tp.tanh(w @ h)
        z = prog.recurrent("z", domain=(b, t))
        z[b, 0] = 1.0
        z[b, t + 1] = tp.tanh(tp.mean(z[b, 0 : t + 1]))
        prog.output("h", h)
        prog.output("z", z)
    run = prog.compile({B: 2, T: 5}, plan=tp.Plan(kernels=True))
    assert "registers" in run.explain() or "read again" in run.explain()


@pytest.mark.parametrize("value", [1, "yes", 0])
def test_kernels_are_wanted_or_not(value: Any) -> None:
    with pytest.raises(ProgramError, match="neither True nor False"):
        tp.Plan(kernels=value)


def test_a_plan_without_kernels_says_so() -> None:
    assert "kernels: of parts of loops only" in str(tp.Plan(kernels=False))
    assert "kernels" not in str(tp.Plan())


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [16, 40, 512])
def test_on_a_gpu(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "HERE", Kernels(all=True))
    with jax.default_matmul_precision("highest"):
        test_a_policy_that_acts(rows)
        test_matrices_that_are_read_in_parts(rows)
        for name in OF_ROWS:
            test_of_rows(name, rows)
