"""Loops cut into pieces with sizes of their own: what is cut, what the pieces compute, and where cuts pay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax import stages
from tempo.backends.jax.building import Building
from tempo.backends.jax.small_loops import NAME
from tempo.errors import ProgramError
from tempo.passes import FUSE_ATTENTION
from tempo.runtime.executable import Executable
from tempo.schedule.buckets import GPU_SPEED, Buckets
from tempo.schedule.loops import Scheduler
from tempo.schedule.plan import Plan
from tests.schedule.common import outline

Built = tuple[tp.Program, dict[Any, int], dict[str, Any]]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def attention(steps: int = 12, window: int | None = None) -> Built:
    """Every step attends to all steps up to it, or to the last few."""
    with tp.Program("attention") as prog:
        t, T = prog.dim("t")
        start = prog.input("start", shape=4)
        weights = prog.input("weights", shape=(3, 4, 4))
        x = prog.recurrent("x", shape=4, domain=t)
        q, k, v = (tp.tanh(weights.space[n] @ x) for n in range(3))
        first = 0 if window is None else tp.max(0, t - window + 1)
        attended = tp.softmax(k[first : t + 1] @ q) @ v[first : t + 1]
        x[0] = start
        x[t + 1] = tp.tanh(x + attended)
        prog.output("x", x[0:T])
    return prog, {T: steps}, {"start": normal(4), "weights": normal(3, 4, 4)}


def windowed() -> Built:
    return attention(window=5)


def weighted() -> Built:
    """Products with windows: of one size, further back, summed over and not, with two at once."""
    with tp.Program("weighted") as prog:
        t, T = prog.dim("t")
        w = prog.input("w", shape=3)
        x = prog.recurrent("x", shape=(2, 2), domain=t)
        before = x[t - 4 : t - 1]
        mixed = tp.einsum("k,kij->ij", w, before) + tp.einsum("kij,kjl->il", before, x[t - 3 : t])
        turned = tp.einsum("kij,jl->kil", before, x[t - 1])
        x[t < 4] = 0.1 * (t.value + 1).astype("float32")
        x[t] = tp.tanh(mixed + turned.space[0] - turned.space[2])
        prog.output("y", tp.sum(x))
    return prog, {T: 11}, {"w": normal(3)}


def suffix() -> Built:
    """A loop backwards, over a range that shrinks."""
    with tp.Program("suffix") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape=3, domain=t)
        y = prog.recurrent("y", shape=3, domain=t)
        y[T - 1] = x[T - 1]
        y[t] = tp.tanh(x + tp.max(y[t + 1 : T], axis=0) * tp.sum(x[t:T], axis=0))
        prog.output("y", y)
    return prog, {T: 11}, {"x": normal(11, 3)}


def before() -> Built:
    """A range that is empty at first, and values whose own size grows."""
    with tp.Program("before") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        grown = tp.cumsum(y[0:t] * x[0:t])
        y[t] = tp.tanh(x + tp.sum(grown * grown) / (t.value + 1).astype("float32"))
        prog.output("y", y)
        prog.output("grown", tp.sum(grown[T - 1]))
    return prog, {T: 10}, {"x": normal(10)}


def nested() -> Built:
    """The loop with ranges inside of another."""
    with tp.Program("nested") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        w = prog.state("w", tp.constant(0.5), over=i)
        y = prog.recurrent("y", domain=(i, t))
        y[i, 0] = w
        y[i, t] = tp.tanh(x * w + tp.mean(y[i, 0:t]))
        w.next = w - 0.1 * tp.grad(tp.sum(tp.square(y[i, 0:T])), w)
        prog.output("y", y)
        prog.output("w", w[I])
    return prog, {I: 3, T: 9}, {"x": normal(9)}


def gradient() -> Built:
    """Back through attention: the adjoints' loop goes backwards, over ranges that shrink."""
    with tp.Program("gradient") as prog:
        t, T = prog.dim("t")
        weights = prog.input("weights", shape=(4, 4))
        x = prog.recurrent("x", shape=4, domain=t)
        k = weights @ x
        x[0] = 0.3
        x[t + 1] = tp.tanh(x + tp.softmax(k[0 : t + 1] @ x) @ k[0 : t + 1])
        prog.output("g", tp.grad(tp.sum(tp.square(x[T])), weights))
    return prog, {T: 8}, {"weights": normal(4, 4)}


def stopped() -> Built:
    """A loop that ends in the middle of a piece."""
    with tp.Program("stopped") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t + 1] = 0.5 * tp.sum(x[0 : t + 1]) + 0.25
        prog.stop(t, when=x > 4)
        prog.output("x", x)
    return prog, {T: 12}, {}


PROGRAMS = (attention, windowed, weighted, suffix, before, nested, gradient, stopped)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda b: b.__name__)
def test_values_do_not_depend_on_cuts(build: Callable[[], Built], backend: str) -> None:
    prog, bounds, inputs = build()
    expected = prog.evaluate(bounds, **inputs)
    random = np.random.default_rng(len(build.__name__))
    for cuts in ([4, 8], sorted(set(random.integers(1, 12, 4).tolist()))):
        found = Executable(prog.graph, bounds, backend, plan=Plan(buckets={"t": cuts}))(**inputs)
        for name, array in expected.outputs.items():
            np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=1e-5, err_msg=f"{name}, cut at {cuts}")


# -- what is cut -------------------------------------------------------------------------------------------------


def cut(built: Built, *cuts: int, skip: tuple[str, ...] = ()) -> Executable:
    prog, bounds, _ = built
    return Executable(prog.graph, bounds, "jax", plan=Plan(buckets={"t": list(cuts)}), skip=skip)


def test_pieces() -> None:
    assert (
        outline(cut(attention(), 4, 8, 30).schedule.trees, "x")
        == """\
for t in 0 .. 3:
    x = recurrent() (case 1, 2)
for t in 4 .. 7:
    x = recurrent() (case 2)
for t in 8 .. 11:
    x = recurrent() (case 2)
at t = 12:
    x = recurrent() (case 2)"""
    )


def test_pieces_of_a_loop_backwards() -> None:
    assert (
        outline(cut(suffix(), 4, 8).schedule.trees)
        == """\
at t = 10:
for t in 9 .. 8, backwards:
for t in 7 .. 4, backwards:
for t in 3 .. 0, backwards:"""
    )


def test_a_window_is_cut_only_while_it_grows() -> None:
    run = cut(attention(window=5), 3, 6, 9)
    assert outline(run.schedule.trees) == "for t in 0 .. 2:\nfor t in 3 .. 11:\nat t = 12:"
    kept = {str(kept) for store in run.storage.stores.values() for kept in store.dims.values()}
    assert kept == {"13 steps", "one value", "window of 5", "window of 2"}


def test_loops_without_ranges_are_not_cut() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t] = 0.5 * x[t - 1]
        prog.output("x", x)
    run = Executable(prog.graph, {T: 10}, "numpy", plan=Plan(buckets={"t": [5]}))
    assert outline(run.schedule.trees) == "at t = 0:\nfor t in 1 .. 9:"


# -- sizes and stores --------------------------------------------------------------------------------------------


def loops(run: Executable) -> list[Any]:
    """The loops of the traced program, each in a function of its own."""
    machine = run._machine
    traced = jax.make_jaxpr(machine.lowering)(machine.inputs)
    functions = [e.params["jaxpr"].jaxpr for e in traced.jaxpr.eqns if e.params.get("name") == NAME]
    return [e for inside in functions for e in inside.eqns if e.primitive.name in ("while", "scan")]


def products(text: str) -> set[int]:
    """The greatest sizes of the operands of matrix products."""
    lines = [line for line in text.splitlines() if "dot_general" in line]
    return {max(map(int, re.findall(r"\d+", line.split("=")[0].split("f32")[1]))) for line in lines}


def test_pieces_have_their_own_sizes_and_stores_grow() -> None:
    first, second, last = loops(cut(attention(24), 8, 16))
    for loop, size in ((first, 8), (second, 16), (last, 24)):
        assert max(products(str(loop.params))) == size
        carried = {aval.shape for aval in (v.aval for v in loop.outvars) if len(aval.shape) == 2}
        assert (size, 4) in carried
        assert not {shape[0] for shape in carried} - {size, size + 1, 2, 1}


@pytest.mark.parametrize(("skip", "turned"), [((), []), ((FUSE_ATTENTION,), [(5,), (5,)])])
def test_a_window_is_not_put_in_order(skip: tuple[str, ...], turned: list[Any]) -> None:
    """Of the gathers, none is of the window's values: only results of products, one number a step, are turned."""
    (loop,) = loops(cut(attention(window=5), skip=skip))
    body = loop.params["jaxpr" if "jaxpr" in loop.params else "body_jaxpr"].jaxpr
    gathered = [e.invars[0].aval.shape for e in equations(body) if e.primitive.name == "gather"]
    assert gathered == turned


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, also those inside of others."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from equations(getattr(inner, "jaxpr", inner))


def test_stores_inside_of_another_loop_stay_as_they_are() -> None:
    prog, bounds, _ = nested()
    run = Executable(prog.graph, bounds, "jax", plan=Plan(buckets={"t": [3, 6]}))
    pieces = outline(run.schedule.trees)
    assert "    for t in 1 .. 2:\n    for t in 3 .. 5:\n    for t in 6 .. 8:\n" in pieces


def test_pieces_are_the_same_programs_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would not be found in the disk cache."""
    given: list[str] = []
    compiled = Building.compiled

    def noted(self: Building, lowered: Any, *once: bool) -> Any:
        given.append(lowered.as_text())
        return compiled(self, lowered, *once)

    monkeypatch.setattr(Building, "compiled", noted)

    def programs() -> list[str]:
        given.clear()
        run = cut(attention(), 4, 8)
        run._machine.memory()  # waits for what threads compile
        return sorted(given)

    assert programs() == programs()


def test_a_piece_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled in the background; the run that needs it says so."""
    lowered = Building.lowered_stage

    def broken(self: Building, number: int, arrays: Any) -> Any:
        if number == stages.FIRST:
            raise MemoryError("no room for it")
        return lowered(self, number, arrays)

    monkeypatch.setattr(Building, "lowered_stage", broken)
    run = cut(attention(), 4, 8)
    with pytest.raises(MemoryError, match="no room for it"):
        run(**attention()[2])


def test_pieces_are_programs_of_their_own() -> None:
    run = cut(attention(), 4, 8)
    assert "4 programs, bytes: inputs 208, outputs 192" in run.explain()
    _, _, inputs = attention()
    first, again = run(**inputs), run(**inputs)  # stores that were given away are made anew
    np.testing.assert_array_equal(first.x, again.x)


# -- in parts ----------------------------------------------------------------------------------------------------


def streamed() -> Built:
    with tp.Program("streamed") as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", shape=2, domain=t)
        x[0] = 1.0
        x[t + 1] = tp.tanh(tp.sum(x[0 : t + 1], axis=0)) * 0.9
        prog.emit("so far", x[0 : t + 1])
        prog.output("x", x)
    return prog, {T: 12}, {}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_values_that_grow_are_handed_out(backend: str) -> None:
    prog, bounds, _ = streamed()
    expected = prog.evaluate(bounds)
    run = Executable(prog.graph, bounds, backend, plan=Plan(buckets={"t": [1, 5, 8]}))
    records = list(run.stream())
    assert [r.value.shape for r in records] == [(t + 1, 2) for t in range(12)]
    for record, theirs in zip(records, expected.emits["so far"], strict=True):
        np.testing.assert_allclose(record.value, theirs.value, rtol=1e-5)


@pytest.mark.parametrize("after", [2, 6, 9])
@pytest.mark.parametrize("backends", [("jax", "jax"), ("jax", "numpy"), ("numpy", "jax")])
def test_a_run_goes_on_in_any_piece(tmp_path: Path, backends: tuple[str, str], after: int) -> None:
    prog, bounds, _ = streamed()
    plan = Plan(buckets={"t": [5, 8]})
    expected = prog.evaluate(bounds)
    first, second = (Executable(prog.graph, bounds, backend, plan=plan) for backend in backends)
    stream = first.stream()
    for _ in range(after):
        next(stream)
    first.save(tmp_path / "run")
    second.load(tmp_path / "run")
    np.testing.assert_allclose(second().x, expected.x, rtol=1e-5)


def test_a_loop_with_a_host_call_in_pieces() -> None:
    def noise(seen: np.ndarray, step: np.ndarray) -> np.ndarray:
        return np.float32(0.1) * step + seen.mean()

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        heard = tp.host(noise, x[0 : t + 1], t.value, out=tp.spec((), "float32"), sequence=t)
        x[t + 1] = 0.5 * tp.sum(x[0 : t + 1]) / (t.value + 1).astype("float32") + heard
        prog.output("x", x)
    expected = prog.evaluate({T: 9}).x
    for backend in ("numpy", "jax"):
        run = Executable(prog.graph, {T: 9}, backend, plan=Plan(buckets={"t": [3, 6]}))
        np.testing.assert_allclose(run().x, expected, rtol=1e-5)


# -- where cuts pay ----------------------------------------------------------------------------------------------


def pieces(steps: int, width: int, window: int | None = None, speed: float | None = None) -> str:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", shape=width, domain=t)
        x[0] = 1.0
        first = 0 if window is None else tp.max(0, t - window + 1)
        x[t + 1] = tp.mean(x[first : t + 1], axis=0)
        prog.output("x", x[T])
    buckets = Buckets() if speed is None else Buckets(speed=speed)
    return outline(Scheduler(prog.graph, {T: steps}).schedule(buckets=buckets).trees)


def test_short_and_cheap_loops_are_not_cut() -> None:
    assert pieces(steps=63, width=100_000).startswith("for t in 0 .. 62:")
    assert pieces(steps=1000, width=1).startswith("for t in 0 .. 999:")


def test_what_is_saved_is_weighed_against_compiling() -> None:
    assert pieces(steps=512, width=200).splitlines()[:-1] == [
        "for t in 0 .. 127:",
        "for t in 128 .. 255:",
        "for t in 256 .. 383:",
        "for t in 384 .. 511:",
    ]
    # A GPU reads so fast that nothing is worth compiling twice.
    assert pieces(steps=512, width=200, speed=GPU_SPEED).splitlines()[:-1] == ["for t in 0 .. 511:"]


def test_no_loop_has_more_than_a_few_pieces() -> None:
    assert len(pieces(steps=4096, width=100_000).splitlines()) == 8 + 1


def test_a_window_is_not_cut() -> None:
    assert len(pieces(steps=4096, width=100_000, window=64).splitlines()) == 1 + 1


def test_no_cuts_on_request() -> None:
    prog, bounds, _ = attention(4096)
    sized = Scheduler(prog.graph, bounds).schedule(buckets=Buckets(speed=1e6)).trees
    assert len(outline(sized).splitlines()) == 8 + 1
    (T,) = bounds
    dims = Plan(buckets={"t": []}).cuts(prog.graph)
    assert outline(Scheduler(prog.graph, {T: 4096}).schedule(buckets=Buckets(dims, 1e6)).trees) == (
        "for t in 0 .. 4095:\nat t = 4096:"
    )


# -- mistakes ----------------------------------------------------------------------------------------------------


def test_buckets_of_no_dim() -> None:
    prog, _, _ = attention()
    with pytest.raises(ProgramError) as caught:
        Plan(buckets={"s": [4]}).cuts(prog.graph)
    assert str(caught.value) == (
        "the plan has buckets of s, and program 'attention' has no such dim\n  hint: its dims are: t"
    )


@pytest.mark.parametrize("cuts", [[4, 4], [8, 4], [0], [1.5], [True]])
def test_cuts_that_are_none(cuts: list[Any]) -> None:
    prog, _, _ = attention()
    with pytest.raises(ProgramError) as caught:
        Plan(buckets={"t": cuts}).cuts(prog.graph)
    assert str(caught.value) == (
        f"buckets of t = {cuts!r}: not positive integers, each greater than the one before\n"
        "  hint: the steps at which the next bucket begins, or [] for none"
    )


def test_a_loop_that_is_not_cut_keeps_its_stores_beside_one_that_is() -> None:
    """w has T + 1 values, and nothing to do with the pieces in which y grows."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=t)
        w = prog.recurrent("w", domain=t)
        y[0] = 0.0
        y[t] = tp.tanh(y[0:t].sum())
        w[0] = y[T - 1]
        w[t + 1] = 0.5 * w[t] + 1
        prog.output("w", w)
    run = prog.compile({T: 5}, plan=tp.Plan(buckets={"t": [4]}))
    assert run().w.tolist() == [0, 1, 1.5, 1.75, 1.875, 1.9375]


def test_a_piece_of_one_step_at_which_a_range_is_empty() -> None:
    """There, the gradient of the last element of the range has no place to go to."""
    with tp.Program() as prog:
        s, S = prog.dim("s")
        y = prog.recurrent("y", domain=s)
        y[S - 1] = 1.0
        y[s] = tp.tanh(y[s + 1] * tp.cumsum(y[s + 1 : tp.min(s + 2, S)], reverse=True).space[-1])
        prog.output("g", tp.grad(tp.sum(y[0:S]), y))
    run = prog.compile({S: 5}, plan=Plan(buckets={"s": [4]}))
    np.testing.assert_allclose(run().g, prog.evaluate({S: 5}).g, rtol=1e-6)


def test_pieces_behind_a_stop_are_not_run() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t] = 1.5 + tp.cos(x[0:t].sum()) / 4
        prog.stop(t, when=(tp.index_value(t) >= prog.input("last", dtype="int32")) | (x > 2))
        prog.output("x", x)
    run = prog.compile({T: 64}, plan=Plan(buckets={"t": [16, 32, 48]}))
    compiled = run._whole.compiled
    behind = [n for n, stage in enumerate(compiled.recipe.stages) if stage.end is not None and stage.end.start >= 32]
    assert len(behind) >= 2
    expected = prog.evaluate({T: 64}, last=60).x
    np.testing.assert_allclose(run(last=60).x, expected, rtol=1e-4)
    for n in behind:
        compiled.programs[compiled.programs.index(compiled.staged[n])] = None  # nobody asks for it
    for last in (3, 15, 16, 30):
        np.testing.assert_allclose(run(last=last).x, expected[: last + 1], rtol=1e-4)


def test_what_comes_before_a_large_loop_is_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that both are compiled at the same time."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        a = prog.input("a", domain=t)
        b = tp.tanh(a + 1)
        x = prog.recurrent("x", domain=t)
        x[0] = b[T - 1]
        x[t] = tp.cos(x[t - 1]) + tp.sin(b)
        prog.output("x", x)
    given = {"a": normal(6)}
    assert "1 program," in prog.compile({T: 6}).explain()
    monkeypatch.setattr(stages, "LARGE", 2)
    compiled = Building.compiled
    order: list[tuple[bool, ...]] = []

    def noted(self: Building, lowered: Any, *once: bool) -> Any:
        order.append(once)
        return compiled(self, lowered, *once)

    monkeypatch.setattr(Building, "compiled", noted)
    run = prog.compile({T: 6})
    assert "2 programs," in run.explain()
    # Inputs, the loop, which takes longest to compile, what is done once before it, and outputs.
    assert order == [(), (False,), (True,), ()]
    np.testing.assert_allclose(run(**given).x, prog.evaluate({T: 6}, **given).x, rtol=1e-6)


def test_what_comes_before_a_loop_has_arrays_of_different_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for every step of an unrolled dim, each as long as its step says: that is only known when it is traced."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        a = prog.input("a", domain=t)
        growing = tp.sin(tp.cos(a)[0 : t + 1])
        y = prog.recurrent("y", domain=s)
        y[0] = 1.0
        y[s + 1] = tp.tanh(tp.sum(tp.sum(growing * y)[0:T, s]))
        prog.output("y", y)
    given = {"a": normal(4)}
    monkeypatch.setattr(stages, "LARGE", 2)
    run = prog.compile({T: 4, S: 5}, plan=Plan(unroll=("t",)))
    assert "2 programs," in run.explain()
    np.testing.assert_allclose(run(**given).y, prog.evaluate({T: 4, S: 5}, **given).y, rtol=1e-5)


def test_the_last_piece_changes_its_stores_in_place() -> None:
    """Although nobody needs them after it: what a program is given to change, it gives back."""
    run = cut(attention(12), 4, 8)
    found = run._whole.compiled.recipe.stages
    assert any(stage.rooms.keys() - stage.later for stage in found)  # keys and values
    assert all(stage.rooms.keys() <= set(stage.writes) for stage in found)


def test_an_output_of_no_steps_in_a_program_with_pieces() -> None:
    """Nothing is stored of what it is made of."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        unused = prog.input("unused", domain=t)
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t] = tp.tanh(x[0:t].sum())
        prog.output("x", x)
        prog.output("none", unused[0:0])
    run = prog.compile({T: 8}, plan=Plan(buckets={"t": [4]}))
    found = run(unused=normal(8))
    assert found.none.shape == (0,)
    np.testing.assert_allclose(found.x, prog.evaluate({T: 8}, unused=normal(8)).x, rtol=1e-6)


def test_inputs_of_a_loop_that_is_cut_are_not_copied() -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        w = prog.input("w", (3, 3))
        x = prog.recurrent("x", (3,), t)
        x[0] = tp.ones(3)
        x[t] = tp.tanh(w @ x[0:t].sum(0))
        prog.output("x", x)
    run = prog.compile({T: 64}, plan=Plan(buckets={"t": [16, 32, 48]}))
    given = {"w": jax.numpy.ones((3, 3))}
    (loaded,) = run._machine.parts.load(given).values()
    assert loaded is given["w"]
