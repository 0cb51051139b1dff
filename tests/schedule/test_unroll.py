"""Unrolled dims: a piece of code per step instead of a loop, and an array per step instead of one for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp
from tempo.runtime.executable import Executable
from tests.schedule.common import outline

Array = Any
BACKENDS = ("numpy", "jax")
UNROLL = tp.Plan(unroll=("l",))


def rows(*shape: int) -> Array:
    """Small numbers, all different."""
    return np.sin(np.arange(np.prod(shape), dtype=np.float32) + 1).reshape(shape)


def check(prog: tp.Program, bounds: dict[Any, int], plan: tp.Plan, backend: str, **inputs: Any) -> Any:
    """A program gives what the oracle says; the executable."""
    run = prog.compile(bounds, backend, plan=plan)
    expected, found = prog.evaluate(bounds, **inputs), run(**inputs)
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, records in expected.emits.items():
        theirs = {tuple(r.point.items()): r.value for r in records}
        ours = {tuple(r.point.items()): r.value for r in found.emits[name]}
        assert ours.keys() == theirs.keys()
        for point, value in theirs.items():
            np.testing.assert_allclose(ours[point], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {point}")
    return run


def kept(run: Any, name: str) -> dict[str, str]:
    """How a named tensor is kept, by dim."""
    (store,) = (store for node, store in run.storage.stores.items() if node.name == name)
    return {d.name: str(k) for d, k in store.dims.items()}


# -- a stack of layers over time, with a cache -----------------------------------------------------------


def layers(gradient: bool = False, emit: bool = False) -> tuple[tp.Program, Any, Any]:
    """Each layer averages what it has seen so far."""
    with tp.Program("layers") as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        x = prog.input("x", 3, t)
        w = prog.input("w", (3, 3), l)
        y = prog.recurrent("y", 3, t)
        h = prog.recurrent("h", 3, (t, l))
        k = h[t, l - 1] @ w
        cache = prog.recurrent("cache", (1, 3), (t, l))
        cache[t, l] = tp.reshape(k, (1, 3))
        h[t, -1] = x + y[t - 1]
        h[t, l] = tp.tanh(k + tp.mean(cache[0 : t + 1, l], axis=(0, 1)))
        y[-1] = 0.0
        y[t] = h[t, L - 1]
        prog.output("y", y)
        if gradient:
            prog.output("dw", tp.grad(tp.sum(tp.square(y[0:T])), w))
        if emit:
            prog.emit("h", h)
    return prog, T, L


DATA = {"x": rows(4, 3), "w": rows(5, 3, 3)}


def test_a_loop_over_an_unrolled_dim_becomes_a_piece_per_step() -> None:
    prog, T, L = layers()
    run = check(prog, {T: 4, L: 3}, UNROLL, "numpy", x=DATA["x"], w=DATA["w"][:3])
    assert outline(run.schedule.trees, "h", "cache").splitlines() == [
        "at t = -1:",
        "for t in 0 .. 3:",
        "    at l = -1:",
        "        h = recurrent() (case 1)",
        "    at l = 0:",
        "        cache = recurrent() (case 1)",
        "        h = recurrent() (case 2)",
        "    at l = 1:",
        "        cache = recurrent() (case 1)",
        "        h = recurrent() (case 2)",
        "    at l = 2:",
        "        cache = recurrent() (case 1)",
        "        h = recurrent() (case 2)",
    ]
    assert kept(run, "w") == {"l": "3 steps apart"}
    assert kept(run, "cache") == {"t": "4 steps", "l": "3 steps apart"}
    assert kept(run, "h") == {"t": "one value", "l": "4 steps apart"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "plan", [UNROLL, tp.Plan({"t": 2}, unroll=("l",)), tp.Plan(unroll=("t",)), tp.Plan(unroll=("l", "t"))], ids=str
)
def test_layers_and_their_gradients(plan: tp.Plan, backend: str) -> None:
    prog, T, L = layers(gradient=True)
    check(prog, {T: 4, L: 5}, plan, backend, **DATA)


# -- what the XLA program does ------------------------------------------------------------------------------


def equations(jaxpr: Any, inside: bool = False) -> Iterator[tuple[Any, bool]]:
    """All equations, and whether they are in a loop."""
    for equation in jaxpr.eqns:
        yield equation, inside
        looped = inside or equation.primitive.name in ("while", "scan")
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner, looped)


def sliced_in_loops(run: Any, shape: tuple[int, ...]) -> list[str]:
    """What loops do to stacks of arrays of some shape."""
    machine = run._machine
    jaxpr = jax.make_jaxpr(machine.lowering)(machine.inputs).jaxpr
    return [
        equation.primitive.name
        for equation, inside in equations(jaxpr)
        if inside and any(getattr(v.aval, "shape", ())[1:] == shape for v in equation.invars)
        if equation.primitive.name not in ("while", "scan", "pjit", "jit")
    ]


def test_no_loop_slices_weights_or_caches() -> None:
    prog, T, L = layers()
    rolled = prog.compile({T: 4, L: 5})
    assert "dynamic_slice" in sliced_in_loops(rolled, (3, 3))
    unrolled = prog.compile({T: 4, L: 5}, plan=UNROLL)
    assert sliced_in_loops(unrolled, (3, 3)) == []
    # The caches are one (4, 1, 3) per layer: written at a step, read as a whole.
    assert not {"dynamic_slice", "gather"} & set(sliced_in_loops(unrolled, (1, 3)))
    assert sliced_in_loops(unrolled, (1, 3)).count("dynamic_update_slice") == 5


def test_gradients_of_weights_are_not_stacked_in_loops() -> None:
    prog, T, L = layers(gradient=True)
    run = prog.compile({T: 4, L: 5}, plan=UNROLL)
    assert sliced_in_loops(run, (3, 3)) == []


# -- inputs as lists -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [np.asarray, jnp.asarray, np.ndarray.tolist])
def test_an_input_may_be_a_list_with_an_array_per_step(backend: str, make: Any) -> None:
    prog, T, L = layers()
    run = prog.compile({T: 4, L: 5}, backend, plan=UNROLL)
    expected = run(**DATA).y
    for kind in (list, tuple):
        assert np.array_equal(run(x=DATA["x"], w=kind(make(w) for w in DATA["w"])).y, expected)
    assert np.array_equal(run(x=DATA["x"], w=jnp.asarray(DATA["w"])).y, expected)


def test_arrays_of_a_list_are_used_where_they_are() -> None:
    prog, T, L = layers()
    run = prog.compile({T: 4, L: 5}, plan=UNROLL)
    given = [jnp.asarray(w) for w in DATA["w"]]
    put = run._machine.put(run._inputs.checked({"x": DATA["x"], "w": given}, 0))
    assert all(ours is theirs for ours, theirs in zip(put["w"], given, strict=True))


@pytest.mark.parametrize(
    ("w", "problem"),
    [
        ([np.zeros((3, 3))] * 4, "has shape (4, 3, 3), expected (5, 3, 3)"),
        ([np.zeros((3, 2))] * 5, "has shape (5, 3, 2), expected (5, 3, 3)"),
        ([np.zeros((3, 3)), *[np.zeros((3, 2))] * 4], "has type list, which does not convert to float32"),
    ],
)
def test_lists_of_wrong_arrays_are_refused(w: Any, problem: str) -> None:
    prog, T, L = layers()
    run = prog.compile({T: 4, L: 5}, plan=UNROLL)
    with pytest.raises(tp.errors.InputError) as caught:
        run(x=DATA["x"], w=w)
    assert f"input 'w' {problem}" in str(caught.value)
    assert "give an array of shape (L, 3, 3) = (5, 3, 3), float32" in str(caught.value)


# -- reads of all kinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_over_an_unrolled_dim_alone(backend: str) -> None:
    """Without any loop: slices, steps before and after, turned round, clipped, and outputs over the dim."""
    with tp.Program() as prog:
        l, L = prog.dim("l")
        w = prog.input("w", (2, 2), l)
        h = prog.recurrent("h", 2, l)
        h[-1] = 1.0
        h[l] = tp.tanh(w @ h[l - 1])
        back = prog.recurrent("back", 2, l)
        back[L] = h[L - 1]
        back[l] = 0.5 * back[l + 1] + h[l]
        prog.output("h", h)
        prog.output("back", back)
        prog.output("transposed", w.T)
        prog.output("turned", w[L - 1 - l])
        prog.output("clipped", h[tp.min(l + 2, L - 1)] + h[tp.max(l - 2, 0)])
        prog.output("all", tp.sum(w[0:L], axis=0))
        prog.output("some", tp.sum(w[1:3], axis=0))
        prog.output("so_far", tp.sum(h[0 : l + 1], axis=0))
        prog.output("rest", tp.sum(h[l:L], axis=0))
        prog.output("first", h[0])
        prog.output("taken", h[0:L].take(np.array([3, 1])))
        prog.output("dw", tp.grad(tp.sum(back[0]), w))
    run = check(prog, {L: 5}, UNROLL, backend, w=rows(5, 2, 2))
    assert kept(run, "h") == {"l": "6 steps apart"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_that_are_only_known_while_running(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        w = prog.input("w", 2, l)
        y = prog.recurrent("y", 2, t)
        y[-1] = 1.0
        y[t] = tp.sin(y[t - 1] + w[t % 3]) + tp.sum(w[0 : tp.min(t + 1, L)], axis=0) * 0.1
        prog.output("y", y)
    check(prog, {T: 7, L: 3}, UNROLL, backend, w=rows(3, 2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("plan", [UNROLL, tp.Plan(unroll=("m",)), tp.Plan(unroll=("l", "m"))], ids=str)
def test_several_dims(plan: tp.Plan, backend: str) -> None:
    """The layers of several members, whose weights have both dims, one behind another that is not unrolled."""
    with tp.Program() as prog:
        m, M = prog.dim("m")
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        w = prog.input("w", (2, 2), (m, l))
        x = prog.input("x", 2, (t, l))
        h = prog.recurrent("h", 2, (m, t, l))
        h[m, -1, l] = 0.0
        h[m, t, -1] = 1.0
        h[m, t, l] = tp.tanh(w @ h[m, t, l - 1] + h[m, t - 1, l] + x)
        prog.output("h", h)
        prog.output("mean", tp.mean(h[0:M, T - 1, 0:L], axis=(0, 1)))
        prog.output("dw", tp.grad(tp.sum(tp.square(h[m, T - 1, L - 1])), w))
    check(prog, {M: 2, T: 3, L: 4}, plan, backend, w=rows(2, 4, 2, 2), x=rows(3, 4, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_inside_of_an_unrolled_dim(backend: str) -> None:
    """The layers of a recurrent network one after the other, each over all steps: a loop carries its own layer only."""
    with tp.Program() as prog:
        l, L = prog.dim("l")
        t, T = prog.dim("t")
        x = prog.input("x", 2, t)
        w = prog.input("w", (2, 2), l)
        h = prog.recurrent("h", 2, (l, t))
        h[-1, t] = x
        h[l, -1] = 0.0
        h[l, t] = tp.tanh(w[l] @ h[l, t - 1] + h[l - 1, t])
        prog.output("h", h[l, t])
    run = check(prog, {L: 3, T: 4}, UNROLL, backend, x=rows(4, 2), w=rows(3, 2, 2))
    if backend == "jax":
        machine = run._machine
        loops = [e for e, _ in equations(jax.make_jaxpr(machine.lowering)(machine.inputs).jaxpr)]
        carried = [len(e.outvars) for e in loops if e.primitive.name in ("while", "scan")]
        # A counter, the layer's store, its last value, and no other layer's; the layer below the first has no state.
        assert carried == [2, 3, 3, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_layers(backend: str) -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        l, L = prog.dim("l")
        w = prog.state("w", np.eye(2), over=i, domain=l)
        h = prog.recurrent("h", 2, (i, l))
        h[i, -1] = 1.0
        h[i, l] = tp.tanh(w @ h[i, l - 1])
        loss = tp.sum(tp.square(h[i, L - 1] - 0.3))
        w.next = w - 0.1 * tp.grad(loss, w)
        prog.output("loss", loss)
        prog.output("w", w[I, l])
    check(prog, {I: 5, L: 3}, UNROLL, backend)


# -- stops, emits, host calls, checkpoints ------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_until_a_stop(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        w = prog.input("w", (), l)
        h = prog.recurrent("h", (), (t, l))
        y = prog.recurrent("y", (), t)
        y[-1] = 0.0
        h[t, -1] = y[t - 1]
        h[t, l] = h[t, l - 1] + w
        y[t] = h[t, L - 1]
        prog.stop(t, when=y > 4)
        prog.output("h", h[t, l])
    check(prog, {T: 10, L: 3}, UNROLL, backend, w=[0.5, 0.25, 0.75])


@pytest.mark.parametrize("backend", BACKENDS)
def test_emits(backend: str) -> None:
    prog, T, L = layers(gradient=True, emit=True)
    check(prog, {T: 4, L: 5}, UNROLL, backend, **DATA)


def called(batch: bool) -> tuple[tp.Program, Any, Any]:
    """A host function between layers, for each of them or for all at once."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        w = prog.input("w", 2, l)
        h = prog.recurrent("h", 2, (t, l))
        h[-1, l] = 0.0
        if batch:
            before = tp.host(np.cos, h[t - 1, l] + w, out=tp.spec(2), sequence=t, batch=l)
            h[t, l] = before + w[L - 1 - l]
        else:
            h[t, -1] = 1.0
            before = tp.host(np.cos, h[t, l - 1] + h[t - 1, l], out=tp.spec(2), sequence=(t, l))
            h[t, l] = before * w
        prog.output("h", h[t, l])
        prog.output("last", h[T - 1, L - 1])
    return prog, T, L


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [False, True])
def test_host_calls(batch: bool, backend: str) -> None:
    prog, T, L = called(batch)
    check(prog, {T: 3, L: 4}, UNROLL, backend, w=rows(4, 2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("host", [False, True])
def test_a_run_goes_on_from_a_checkpoint(backend: str, host: bool, tmp_path: Path) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        w = prog.input("w", 2, l)
        h = prog.recurrent("h", 2, (t, l))
        h[-1, l] = 0.0
        h[t, -1] = 1.0
        seen = h[t, l - 1] + tp.sum(h[-1:t, l], axis=0)
        h[t, l] = tp.host(np.cos, seen, out=tp.spec(2), sequence=(t, l)) if host else tp.cos(seen) * w
        prog.emit("last", h[t, L - 1])
        prog.output("h", h[t, l])
    bounds, data = {T: 6, L: 3}, {"w": rows(3, 2)}
    whole = prog.compile(bounds, backend, plan=UNROLL)(**data)
    first = prog.compile(bounds, backend, plan=UNROLL)
    stream = first.stream(**data)
    records = list(itertools.islice(stream, 3))
    first.save(tmp_path / "run")
    second = prog.compile(bounds, backend, plan=UNROLL)
    second.load(tmp_path / "run")
    stream = second.stream(**data)
    records += list(stream)
    assert [r.point["t"] for r in records] == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(stream.result.h, whole.h)
    rolled = prog.compile(bounds, backend, plan=tp.Plan())
    with pytest.raises(tp.errors.CheckpointError, match="with another plan"):
        rolled.load(tmp_path / "run")


# -- plans that make no sense -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (tp.Plan(unroll=("s",)), "the plan has s unrolled, and program 'layers' has no such dim"),
        (tp.Plan({"l": 2}, unroll=("l",)), "the plan has blocks of l and unrolls it"),
        (tp.Plan(unroll="l"), "the plan unrolls 'l', which is one string"),
    ],
)
def test_plans_that_are_refused(plan: tp.Plan, message: str) -> None:
    prog, T, L = layers()
    with pytest.raises(tp.errors.ProgramError) as caught:
        prog.compile({T: 4, L: 5}, "numpy", plan=plan)
    assert str(caught.value).splitlines()[0] == message


def test_a_dim_that_stops_on_data_is_not_unrolled() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", (), t)
        y[0] = 0.0
        y[t] = y[t - 1] + 1
        prog.stop(t, when=y > 2)
        prog.output("y", y)
    with pytest.raises(tp.errors.ProgramError, match="the plan unrolls t, which stops on data"):
        prog.compile({T: 4}, "numpy", plan=tp.Plan(unroll=("t",)))


# -- what is unrolled where nobody says ------------------------------------------------------------------------


def stack(width: int) -> tuple[tp.Program, Any, Any]:
    """Layers with weights of 4 * width**2 bytes."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        l, L = prog.dim("l")
        w = prog.input("w", (width, width), l)
        h = prog.recurrent("h", width, (t, l))
        y = prog.recurrent("y", width, t)
        y[-1] = 1.0
        h[t, -1] = y[t - 1]
        h[t, l] = tp.tanh(h[t, l - 1] @ w)
        y[t] = h[t, L - 1]
        prog.output("y", y)
    return prog, T, L


@pytest.mark.parametrize(
    ("width", "layers", "steps", "gpu", "expected"),
    [
        (512, 28, 8, True, ("l",)),  # 1 MiB a layer
        (512, 28, 8, False, ()),  # a CPU gains nothing
        (256, 28, 8, True, ()),  # small weights
        (512, 65, 8, True, ()),  # too many layers
        (512, 28, 1, True, ()),  # one step: what is sliced is sliced once
    ],
)
def test_short_inner_loops_over_large_operands_are_unrolled_on_a_gpu(
    width: int, layers: int, steps: int, gpu: bool, expected: tuple[str, ...]
) -> None:
    prog, T, L = stack(width)
    run = Executable(prog.graph, {T: steps, L: layers}, "numpy", parallel=gpu)
    assert run.plan.unroll == expected
    assert Executable(prog.graph, {T: steps, L: layers}, "numpy", parallel=gpu, plan=tp.Plan()).plan.unroll == ()
