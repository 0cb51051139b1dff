"""Contraction, scale and mask, softmax, contraction become one operation where nothing else reads what is between."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax.attention import (
    WARPS,
    Layout,
    _shares,
    attention,
    kernel,
    products,
    shared_kernel,
    shared_products,
)
from tempo.backends.jax.circles import Behind, Hull
from tempo.backends.jax.reading import _Reader
from tempo.graph.node import Edge, Graph
from tempo.ops.attention import ATTENTION
from tempo.passes import apply_passes
from tempo.passes.attention import fuse_attention
from tempo.runtime.executable import Executable
from tempo.schedule import segments

SIZE = 16


def fused(graph: Graph) -> int:
    return sum(node.op is ATTENTION for node in fuse_attention(apply_passes(graph)).nodes)


def check(prog: tp.Program, bounds: dict[str, int], tolerance: float = 1e-4, **inputs: Any) -> Executable:
    """Both backends compute what the oracle does, with attention as one operation, in one loop and in pieces."""
    expected = prog.evaluate(bounds, **inputs)
    for backend, plan in (("numpy", None), ("jax", None), ("jax", {"buckets": {"t": [4]}})):
        run = Executable(prog.graph, bounds, backend, parallel=True, plan=plan)
        found = run(**inputs)
        for name, array in expected.outputs.items():
            kinds = (np.asarray(x, np.float32) for x in (found[name], array))
            np.testing.assert_allclose(*kinds, rtol=tolerance, atol=tolerance, err_msg=f"{backend} {name}")
    return run


def generate(
    window: int | None = None,
    heads: tuple[int, int] = (4, 2),
    given: bool = False,
    dtype: Any = tp.float32,
    layers: int = 1,
) -> tp.Program:
    """Steps that depend on attention to those before them, from a first one or from a prompt."""
    size = heads[0] * SIZE
    with tp.Program("generate") as prog:
        b, _ = prog.dim("b")
        p, P = prog.dim("p")
        t, _ = prog.dim("t")
        attentions = [tp.nn.Attention(size, *heads, window=window) for _ in range(layers)]
        attentions = [one.declare(prog, prefix=f"{n}.", init=False, dtype=dtype) for n, one in enumerate(attentions)]
        prompt = prog.input("prompt", size, (b, p))
        start = prog.input("start", (), b, dtype=tp.int32) if given else None
        x = prog.recurrent("x", size, (b, t), dtype=dtype)
        x[t < P] = prompt[b, t].astype(dtype)
        y = x
        for attention in attentions:
            y = tp.tanh(y + attention(y, t, start))
        x[b, t + 1] = y
        prog.output("x", x)
    return prog


def arrays(prog: tp.Program, bounds: dict[str, int]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, node in prog.graph.inputs.items():
        shape = tuple(bounds[d.name.upper()] for d in node.domain) + node.shape
        is_start = name == "start"
        values = random.integers(0, 2, shape) if is_start else random.normal(size=shape) / 4
        found[name] = values.astype(node.dtype)
    return found


@pytest.mark.parametrize(
    ("window", "heads", "given"),
    [(None, (1, 1), False), (None, (4, 2), True), (2, (4, 2), False), (5, (4, 2), False), (5, (1, 1), True)],
)
def test_generation(window: int | None, heads: tuple[int, int], given: bool) -> None:
    """Windows shorter than the prompt, and longer, which are not full at first."""
    prog = generate(window, heads, given)
    bounds = {"B": 2, "P": 3, "T": 12}
    assert fused(prog.graph) == 1
    check(prog, bounds, **arrays(prog, bounds))


def noted(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The objects of a kind by which operands are read, as they come."""
    found: list[Any] = []
    turned = kind.turned

    def noting(self: Any, *given: Any) -> Any:
        found.append(self)
        return turned(self, *given)

    monkeypatch.setattr(kind, "turned", noting)
    return found


@pytest.fixture
def hulls(monkeypatch: pytest.MonkeyPatch) -> list[Hull]:
    return noted(Hull, monkeypatch)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[Edge]:
    """What is copied for each point that reads it."""
    found: list[Edge] = []
    gather = _Reader.gather

    def noting(self: _Reader, items: Any) -> None:
        found.append(self.edge)
        gather(self, items)

    monkeypatch.setattr(_Reader, "gather", noting)
    return found


@pytest.mark.parametrize(
    ("window", "given", "found"),
    [(8, False, {(8, 14), (15, 14)}), (12, True, {(0, 18), (7, 22)}), (40, True, {(0, 29)}), (None, True, set())],
)
def test_prompts(window: int | None, given: bool, found: set[tuple[int, int]], hulls: list[Hull]) -> None:
    """Many steps of a prompt at once: keys and values of all of their windows are read once."""
    prog = generate(window, (4, 2), given, layers=3)
    bounds = {"B": 2, "P": 30, "T": 34}
    assert fused(prog.graph) == 3
    inputs = arrays(prog, bounds)
    if given:  # in the middle of a window
        inputs["start"] = np.array([3, 17], np.int32)
    check(prog, bounds, **inputs)
    assert {(hull.low, hull.size) for hull in hulls} == found


@pytest.mark.parametrize(("most", "sizes"), [(3000, {16}), (4500, set())])
def test_prompts_in_blocks(most: int, sizes: set[int], gathered: list[Edge], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody knows at which step a block begins, keys and values of its windows are read once as well."""
    behind = noted(Behind, monkeypatch)
    monkeypatch.setattr(segments, "KEEP_BYTES", most)
    prog = generate(12, (4, 2), True, layers=3)
    bounds = {"B": 2, "P": 60, "T": 70}
    check(prog, bounds, **arrays(prog, bounds))
    assert {one.size for one in behind} == sizes
    assert not gathered


@pytest.mark.parametrize(("window", "further", "sizes"), [(12, 0, {51}), (12, 20, set()), (2, 0, set())])
def test_blocks_of_which_windows_are_copied(
    window: int, further: int, sizes: set[int], gathered: list[Edge], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where values are kept for longer than keys, or blocks have many times as many steps as windows."""
    behind = noted(Behind, monkeypatch)
    monkeypatch.setattr(segments, "KEEP_BYTES", 40 * 4 * SIZE)
    with tp.Program("blocks") as prog:
        t, T = prog.dim("t")
        given = prog.input("given", SIZE, t)
        x = prog.recurrent("x", SIZE, t)
        k, v = x @ prog.input("key", (SIZE, SIZE)), x @ prog.input("value", (SIZE, SIZE))
        seen = slice(tp.max(0, t - window + 1), t + 1)
        y = tp.softmax(k[seen] @ x) @ v[seen]
        if further:
            y = y + 0.1 * v[tp.max(0, t - further)]
        x[t < 90] = given
        x[t] = tp.tanh(y[t - 1])
        prog.output("sum", tp.sum(y[0:T], 0))
    bounds = {"T": 100}
    check(prog, bounds, 1e-3, **arrays(prog, bounds))
    assert {one.size for one in behind} == sizes
    assert bool(gathered) == (not sizes)


def test_prompts_of_which_a_step_too_many_is_computed(hulls: list[Hull], gathered: list[Edge]) -> None:
    """The first step of one layer, which nobody needs, has keys that need not be numbers; no window has it."""
    prog = generate(12, (4, 2), True, layers=4)
    bounds = {"B": 2, "P": 24, "T": 28}
    check(prog, bounds, **arrays(prog, bounds))
    assert {hull.low for hull in hulls} == {0, 1}
    assert not gathered


@pytest.mark.parametrize(("window", "steps", "sizes"), [(4, 40, {40}), (4, 80, set()), (None, 40, None)])
def test_windows_on_a_cpu(window: int | None, steps: int, sizes: set[int] | None, hulls: list[Hull]) -> None:
    """Attention with windows is one operation there, too, whatever its sizes; if there are few windows, all that they
    have is read once."""
    with tp.Program("cpu") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", 20, t)
        attention = tp.nn.Attention(20, 2, 1, head_size=10, window=window).declare(prog, init=False)
        prog.output("y", attention(x, t))
    inputs = arrays(prog, {"T": steps})
    run = Executable(prog.graph, {"T": steps}, "jax", parallel=False)
    assert any(node.op is ATTENTION for node in run.graph.nodes) == (sizes is not None)
    np.testing.assert_allclose(run(**inputs).y, prog.evaluate({"T": steps}, **inputs).y, rtol=1e-4, atol=1e-5)
    assert {hull.size for hull in hulls} == (sizes or set())
    assert fused(prog.graph) == 0  # of no size that the kernel has


def test_a_window_is_not_copied_at_every_step_on_a_cpu() -> None:
    """Heads are a dim here, so that what is written at a step and what is read then have the same axes."""
    with tp.Program("windows") as prog:
        b, _ = prog.dim("b")
        h, _ = prog.dim("h")
        t, _ = prog.dim("t")
        start = prog.input("start", SIZE, (b, h))
        x = prog.recurrent("x", SIZE, (b, h, t))
        k = tp.tanh(x)
        first = tp.max(0, t - 31)
        x[b, h, 0] = start
        x[b, h, t + 1] = tp.softmax(k[b, h, first : t + 1] @ x) @ x[b, h, first : t + 1] - 0.5 * x
        prog.output("x", tp.sum(x))
    run = prog.compile({"B": 2, "H": 3, "T": 200}, device="cpu")
    loop, _, _ = run._whole.compiled.as_text().partition("ENTRY")
    assert "f32[2,3,32,16]" in loop
    assert not [line for line in loop.splitlines() if "32,16]" in line and " copy(" in line]


def test_in_half_precision() -> None:
    prog = generate(dtype=tp.bfloat16)
    bounds = {"B": 2, "P": 3, "T": 6}
    assert fused(prog.graph) == 1
    check(prog, bounds, 0.05, **arrays(prog, bounds))


def by_hand(name: str) -> tuple[tp.Program, Any]:
    """Attention of one head without any module: in several ways to write it."""
    with tp.Program(name) as prog:
        t, T = prog.dim("t")
        x = prog.input("x", SIZE, t)
        w = prog.input("w", (SIZE, SIZE))
        k, v = w @ x, tp.tanh(x)
        if name == "empty":  # the first step sees nothing
            scores = k[0:t] @ x / 4
            y = tp.softmax(scores) @ v[0:t]
        elif name == "window":  # so does it here, in a circle
            y = prog.recurrent("y", SIZE, t)
            scores = y[tp.max(t - 3, 0) : t] @ k
            seen = tp.softmax(scores) @ y[tp.max(t - 3, 0) : t]
            y[t] = tp.tanh(x + seen)
        elif name in ("fixed", "shifted"):  # as many steps for every point, of which only the first differs
            s, _ = prog.dim("s")
            z = prog.input("z", SIZE, s)
            y = tp.softmax(z[t : t + 3] @ w.space[0]) @ (z[t : t + 3] if name == "fixed" else z[t + 1 : t + 4])
        elif name == "future":
            scores = 0.25 * tp.einsum("d,sd->s", x, k[t:T])
            y = tp.einsum("sd,s->d", v[t:T], tp.softmax(scores))
        else:
            scores = tp.where(tp.arange(0, t + 1) % 2 == 0, k[0 : t + 1] @ x * 0.5, -np.inf) / 2
            y = tp.softmax(scores) @ v[0 : t + 1]
        prog.output("y", tp.sum(y) if name == "window" else y)  # of which no step is kept for long
    return prog, T


@pytest.mark.parametrize("name", ["empty", "window", "fixed", "shifted", "future", "masked"])
def test_by_hand(name: str, hulls: list[Hull]) -> None:
    prog, _ = by_hand(name)
    bounds = {"T": 7} | {"fixed": {"S": 9}, "shifted": {"S": 10}}.get(name, {})
    assert fused(prog.graph) == 1
    check(prog, bounds, **arrays(prog, bounds))
    assert {hull.size for hull in hulls} == {"fixed": {9}, "future": {7}}.get(name, set())


def test_queries_over_several_dims_with_the_same_keys() -> None:
    """They are all times at which keys are read, whichever dims they are over."""
    with tp.Program("several") as prog:
        i, _ = prog.dim("i")
        b, _ = prog.dim("b")
        t, _ = prog.dim("t")
        x = prog.input("x", SIZE, (b, t))
        z = prog.input("z", SIZE, i)
        y = tp.softmax(x[b, 0 : t + 1] @ (x + z)) @ x[b, 0 : t + 1]
        prog.output("y", y)
        prog.output("alone", tp.softmax(x[b, 0 : t + 1] @ z) @ x[b, 0 : t + 1])
    bounds = {"I": 3, "B": 2, "T": 7}
    assert fused(prog.graph) == 2
    check(prog, bounds, **arrays(prog, bounds))


def test_windows_beside_which_there_are_no_numbers() -> None:
    """Values of steps that nobody needs, but for which something is computed: they are not multiplied by zero."""
    with tp.Program("triangle") as prog:
        i, _ = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", SIZE, t)
        z = x * tp.log(t.value - i.value + 0.5)  # no number before step i
        seen = z[i, tp.max(0, t - 2) : t + 1]
        y = tp.softmax(seen @ x) @ seen
        prog.output("y", tp.sum(y[i, i + 3 : T], axis=0))
    bounds = {"I": 4, "T": 9}
    assert fused(prog.graph) == 1
    check(prog, bounds, **arrays(prog, bounds))


def test_weights_that_others_read_stay() -> None:
    with tp.Program("weights") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", SIZE, t)
        weights = tp.softmax(x[0 : t + 1] @ x)
        prog.output("y", weights @ x[0 : t + 1])
        prog.output("most", tp.max(weights))
    assert fused(prog.graph) == 0
    with tp.Program("training") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", SIZE, t)
        w = prog.input("w", (SIZE, SIZE))
        y = tp.softmax(x[0 : t + 1] @ (w @ x)) @ x[0 : t + 1]
        loss = tp.sum(tp.square(y[0:T]))
        prog.output("g", tp.grad(loss, w))
    assert fused(prog.graph) == 0
    check(prog, {"T": 5}, **arrays(prog, {"T": 5}))


@pytest.mark.parametrize(
    ("heads", "steps", "size", "parts", "tile", "stages"),
    [
        (8, 65536, 128, 32, 64, 3),
        (8, 1024, 128, 16, 64, 3),  # a tile each
        (96, 4096, 128, 2, 64, 3),  # with three parts, some programs would wait
        (128, 4096, 128, 1, 128, 3),  # one for each multiprocessor
        (128, 4096, 256, 1, 64, 3),
        (256, 4096, 128, 1, 64, 3),
        (512, 4096, 128, 1, 64, 2),
        (8, 4096, 256, 32, 32, 3),
    ],
)
def test_how_steps_are_shared_out(heads: int, steps: int, size: int, parts: int, tile: int, stages: int) -> None:
    assert _shares(heads, steps, 2 * size) == (parts, tile, WARPS, stages)


@pytest.mark.parametrize(
    ("sizes", "fill", "inside", "dtype"),
    [
        ((2, 100, 3, 2), -1e30, False, jnp.float32),
        ((1, 300, 1, 1), -np.inf, True, jnp.float32),
        ((3, 40, 2, 3), -1e30, False, jnp.bfloat16),
        ((2, 200, 1, 4), -np.inf, True, jnp.bfloat16),
        ((14, 150, 8, 1), -1e30, False, jnp.bfloat16),
    ],
)
def test_kernel(sizes: tuple[int, ...], fill: float, inside: bool, dtype: Any) -> None:
    """The kernel for GPUs, interpreted, computes what two products do; and it can be lowered."""
    batch, steps, heads, queries = sizes
    random = np.random.default_rng(0)
    layout = Layout(SIZE**-0.5, fill, inside, False)

    def normal(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape), dtype)

    q, values = normal(batch, heads, queries, SIZE), normal(batch, steps, heads, 2 * SIZE)
    keys = normal(batch, heads, steps, SIZE) if inside else normal(batch, steps, heads, SIZE)
    length = jnp.asarray([0 if batch > 1 else steps, *random.integers(1, steps, batch - 1)], jnp.int32)
    seen = jnp.asarray(random.integers(-1, 2, (batch, steps)), jnp.int32).at[:, 0].set(1)
    given = q, keys, values, length, seen
    found, expected = kernel(*given, layout, interpret=True), products(*given, layout)
    tolerance = 1e-5 if dtype == jnp.float32 else 0.02
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (found, expected)), atol=tolerance)
    for wide in (False, True):
        with jax.enable_x64(wide):
            traced = jax.jit(functools.partial(kernel, layout=layout)).trace(*given)
            assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("sizes", "fill", "inside", "dtype"),
    [
        ((2, 150, 150, 2, 3), -1e30, False, jnp.bfloat16),
        ((1, 130, 300, 1, 1), -np.inf, True, jnp.float16),
    ],
)
def test_kernel_for_many_times(sizes: tuple[int, ...], fill: float, inside: bool, dtype: Any) -> None:
    """The kernel for prompts, interpreted, computes what products do, also of windows; and it can be lowered."""
    batch, times, steps, heads, queries = sizes
    random = np.random.default_rng(0)
    layout = Layout(SIZE**-0.5, fill, inside, False)

    def normal(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape), dtype)

    q, values = normal(batch, times, heads, queries, SIZE), normal(batch, steps, heads, 2 * SIZE)
    keys = normal(batch, heads, steps, SIZE) if inside else normal(batch, steps, heads, SIZE)
    length = jnp.asarray(np.minimum(np.arange(times) + random.integers(0, 99, (batch, 1)), steps), jnp.int32)
    everywhere = random.integers(-1 if fill > -np.inf else 1, 2, (batch, times, steps))
    windows = np.where(np.arange(steps) > np.asarray(length)[:, :, None] - 40, 1, -1)
    for seen in (everywhere, windows, np.ones_like(windows)):
        # With a first step that is seen, if there is one: a softmax of -inf alone is no number.
        given = q, length, jnp.asarray(seen, jnp.int32).at[:, ::3, 0].set(1), keys, values
        found, expected = shared_kernel(*given, layout, interpret=True), shared_products(*given, layout)
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (found, expected)), atol=0.02)
    for wide in (False, True):
        with jax.enable_x64(wide):
            traced = jax.jit(functools.partial(shared_kernel, layout=layout)).trace(*given)
            assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("times", "dtype", "finite", "used"),
    [
        (512, jnp.bfloat16, True, True),
        (511, jnp.bfloat16, True, False),
        (512, jnp.float32, True, False),
        (512, jnp.bfloat16, False, False),  # values that may be no numbers would be multiplied by zero
    ],
)
def test_when_the_kernel_for_many_times_is_used(times: int, dtype: Any, finite: bool, used: bool) -> None:
    """On a GPU, for queries of many times within each of many sequences."""
    layout = Layout(1.0, -1e30, False, False, finite)
    of_time = jax.vmap(functools.partial(attention, layout=layout), in_axes=(0, None, None, 0, 0))
    caches = [jnp.zeros((2, 600, 1, SIZE), dtype) for _ in range(2)]
    length, seen = jnp.zeros((2, times), jnp.int32), jnp.ones((2, times, 600), jnp.int32)
    traced = jax.jit(jax.vmap(of_time)).trace(jnp.zeros((2, times, 1, 1, SIZE), dtype), *caches, length, seen)
    assert ("attention_of_many" in traced.lower(lowering_platforms=("cuda",)).as_text()) == used


@pytest.mark.parametrize("instances", [(), (3,), (2, 3)])
def test_attention_to_no_steps(instances: tuple[int, ...]) -> None:
    """However many instances there are: their number cannot be told from arrays without elements."""
    q, cache = jnp.ones((*instances, 2, 1, SIZE)), jnp.ones((*instances, 0, 2, SIZE))
    run = functools.partial(attention, length=0, seen=None, layout=Layout(1.0, 0.0, False, False))
    for _ in instances:
        run = jax.vmap(run)
    assert not run(q, cache, cache).any()
