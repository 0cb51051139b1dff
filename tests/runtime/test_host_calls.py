"""Host calls in compiled programs: what they are given and return, and how many XLA programs run between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax import host_calls, near, worker
from tempo.backends.jax.worker import JaxWorker
from tempo.given import call_host


def acting(count: int = 3) -> tuple[tp.Program, dict[Any, int]]:
    """A loop like that of a policy and an environment, whose results are needed afterwards."""

    def environment(action: Any, where: Any) -> Any:
        return np.tanh(where + action[:, None]), where.sum(axis=1) > 0.5

    with tp.Program("acting") as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        w = prog.state("w", 0.3, over=i)
        x = prog.recurrent("x", 2, (i, b, t))
        x[i, b, 0] = tp.random.normal(2, domain=(i, b))
        action = tp.sin(w * tp.sum(x) + t.value.astype("float32"))
        out = [tp.spec(2), tp.spec((), "bool")]
        after, ended = tp.host(environment, action, x, out=out, sequence=(i, t), batch=b)
        x[i, b, t + 1] = tp.where(ended, 0.1, after)
        w.next = w + tp.mean((x * action)[i, 0:B, 0:T])
        prog.emit("w", w)
        prog.output("x", x)
        prog.output("last", w[I])
    return prog, {I: 3, B: count, T: 5}


def assert_same(prog: tp.Program, bounds: dict[Any, int], **options: Any) -> None:
    """The compiled program gives what the reference interpreter gives."""
    expected, found = prog.evaluate(bounds), prog.compile(bounds, **options)()
    for name, array in expected.outputs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", [None, {"i": 1}], ids=["as it is", "i 1"])
def test_a_loop_with_an_environment(plan: Any) -> None:
    assert_same(*acting(), plan=None if plan is None else tp.Plan(blocks=plan))


def test_a_step_of_an_environment_starts_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a call and what comes before the next one are computed together."""
    prog, bounds = acting()
    run = prog.compile(bounds, plan=tp.Plan(blocks={"i": 1}))
    made: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(JaxWorker, name)

        def method(worker: JaxWorker, *given: Any) -> Any:
            made.append(name)
            return original(worker, *given)

        return method

    for name in ("run", "run_both", "call"):
        monkeypatch.setattr(JaxWorker, name, counted(name))
    run()
    first = made.index("call")
    last = first + 9  # five calls
    assert made[first:last] == ["call", "run_both", "call", "run_both", "call", "run_both", "call", "run_both", "call"]
    # In every iteration: what comes before the first call, what follows the last one, and the update.
    assert made.count("run_both") == 3 * 4
    assert made.count("run") <= 3 * 4 + 2


def test_programs_are_compiled_once() -> None:
    """What the first iteration is given is placed as what later ones are given: JAX would compile both."""
    with tp.Program("walk") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", tp.random.normal(()), over=i)
        x = prog.recurrent("x", domain=(i, t))
        x[i, 0] = 0.0
        x[i, t + 1] = tp.host(lambda x: x + 1, tp.tanh(x + w), out=tp.spec(), sequence=(i, t))
        prog.stop(i, when=x[i, T] > 1.5)
        w.next = w + tp.mean(x[i, 0:T])
        prog.output("w", w)
    run = prog.compile({I: 4, T: 3}, plan=tp.Plan(blocks={"i": 1}))
    assert len(run().w) > 2
    parts = run._machine.parts
    functions = [part.function.function for part in parts.compiled.values()]
    functions += [joint.function for joint in parts.joints.values() if joint is not None]
    functions += [call.function for call in parts.calls.calls.values()]
    assert max(function._cache_size() for function in functions) == 1


def test_a_run_is_saved_between_two_programs_that_are_one(tmp_path: Path) -> None:
    """At every position, also where the last part of an iteration waits for the next one."""
    prog, bounds = acting()
    run, other = (prog.compile(bounds, plan=tp.Plan(blocks={"i": 1})) for _ in range(2))
    expected = run()
    waited = 0
    for moves in range(60):
        stream = run.stream()
        if not all(stream._run.advance() for _ in range(moves)):
            break
        waited += stream._run.worker.deferred is not None  # type: ignore[attr-defined]
        run.save(tmp_path / "run")
        other.load(tmp_path / "run")
        found = other()
        for name, array in expected.outputs.items():
            assert found[name].tobytes() == array.tobytes()
    assert waited == 3 * 4


def test_a_function_may_use_its_arrays_again() -> None:
    """What it returns is what it was when it returned it."""
    buffer = np.zeros(2, np.float32)

    def count(x: Any) -> Any:
        buffer[:] = x + [1, 2]
        return buffer

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", 2, t)
        x[0] = tp.zeros(2)
        x[t + 1] = tp.host(count, x, out=tp.spec(2), sequence=t) * 1.0
        prog.output("x", x)
    found = prog.compile({T: 3})()
    assert found.x.tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]


def test_results_that_several_parts_read() -> None:
    """What a call returns once is read in a loop after it, at every step."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        table = tp.host(lambda: np.arange(4, dtype=np.float32), out=tp.spec(4))
        x = prog.recurrent("x", 4, t)
        x[0] = table
        x[t + 1] = tp.host(lambda x: x + 1, x, out=tp.spec(4), sequence=t) * 0.5 + table
        prog.output("x", x)
        prog.output("table", table)
    assert_same(prog, {T: 4})


@pytest.mark.parametrize("count", [1, 3])
def test_arguments_that_vary_over_some_batch_dims(count: int) -> None:
    """They have those as axes; one of a single step, too."""
    seen: list[tuple[Any, ...]] = []

    def shapes(x: Any, y: Any) -> Any:
        seen.append((x.shape, y.shape))
        return x.sum(-1) + y

    with tp.Program() as prog:
        a, A = prog.dim("a")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        s = prog.recurrent("s", 2, (a, b, t))
        s[a, b, 0] = tp.stack([a.value.astype("float32"), b.value.astype("float32")])
        y = tp.sin(b.value.astype("float32") + t.value)
        s[a, b, t + 1] = tp.cos(s + tp.host(shapes, s, y, out=tp.spec(()), sequence=t, batch=(a, b)))
        prog.output("s", s)
    assert_same(prog, {A: 2, B: count, T: 3})
    assert set(seen) == {((2, count, 2), (count,))}


def test_arguments_whose_size_varies() -> None:
    """They are cut to the size that they have at the step of the call."""
    lengths = []

    def total(x: Any) -> Any:
        lengths.append(len(x))
        return np.float32(x.sum())

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", (), t)
        x[0] = 1
        x[t + 1] = tp.cos(tp.host(total, x[0 : t + 1], out=tp.spec(()), sequence=t))
        prog.output("x", x)
    assert_same(prog, {T: 5})
    assert lengths == 2 * [1, 2, 3, 4, 5]


def test_a_loop_that_a_function_stops() -> None:
    """The stop condition is asked for between the parts that are otherwise one."""
    calls: list[int] = []

    def step(x: Any) -> Any:
        calls.append(1)
        return np.float32(x + 1), np.bool_(x > 2)

    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", (), t)
        x[0] = 0
        after, ended = tp.host(step, x, out=[tp.spec(), tp.spec((), "bool")], sequence=t)
        x[t + 1] = tp.sin(after) + after
        prog.stop(t, when=ended)
        prog.output("x", x)
    expected = prog.evaluate({T: 50})
    made = len(calls)
    found = prog.compile({T: 50})()
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-5)
    assert len(calls) == 2 * made < 100


def test_two_calls_in_a_step() -> None:
    """The second is given what the first returned, by a program of its own where none lies between."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", (), t)
        x[0] = 0.5
        first = tp.host(lambda x: np.float32(np.sin(x)), x, out=tp.spec(()), sequence=t)
        second = tp.host(lambda y: np.float32(y * y), first, out=tp.spec(()), sequence=t)
        x[t + 1] = first - second
        prog.output("x", x)
    assert_same(prog, {T: 4})


def test_a_part_that_only_hands_an_input_on() -> None:
    """What a call is given need not be computed by the part before it."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("y", tp.host(lambda x: 2 * x, x, out=tp.spec(()), batch=t) + 1)
    assert prog.compile({T: 3})(x=[1, 2, 3]).y.tolist() == [3, 5, 7]


def test_a_call_whose_results_nobody_needs() -> None:
    """It is made all the same; there is no part that reads them."""
    calls: list[int] = []

    def noted(s: Any) -> Any:
        calls.append(len(s))
        return s.astype(np.float32)

    with tp.Program() as prog:
        t, T = prog.dim("t")
        s, S = prog.dim("s")
        h = tp.host(noted, s.value, out=tp.spec(()), batch=s)
        y = prog.recurrent("y", domain=t)
        y[0] = 0.5
        y[T - 1] = h[0]
        prog.output("y", y)
    assert prog.compile({T: 1, S: 2})().y.tolist() == [0.5]
    assert calls == [2]


def test_what_a_function_is_given_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the host would have to fetch it: every argument of a call, whether a part or a program of its
    own computes it."""
    monkeypatch.setattr(near, "_is_away", lambda: True)
    handed: list[Any] = []
    fetched: list[Any] = []

    def counted(array: Any) -> Any:
        handed.append(array.shape)
        return near.handed_over(array)

    def noticed(node: Any, arrays: Any, *rest: Any) -> Any:
        fetched.extend(arrays)
        return call_host(node, arrays, *rest)

    monkeypatch.setattr(host_calls, "handed_over", counted)
    monkeypatch.setattr(worker, "call_host", noticed)
    with tp.Program("calls") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", shape=(2,), domain=t)
        y[-1] = 1.0
        y[t] = tp.host(
            lambda a, b: a + b.sum(), 2 * y[t - 1], y[t - 1] + np.ones(3)[:, None], out=tp.spec(2), sequence=t
        )
        prog.output("y", y)
    expected = prog.evaluate({T: 4}).y
    np.testing.assert_allclose(prog.compile({T: 4})().y, expected)
    assert {(2,), (3, 2)} <= set(handed)
    assert len(fetched) == 8


@pytest.mark.parametrize("backend", ["evaluate", "numpy", "jax"])
@pytest.mark.parametrize("grows", [False, True])
def test_arguments_can_be_kept_and_not_written_to(backend: str, grows: bool) -> None:
    kept: list[Any] = []

    def keep(x: Any, n: Any, so_far: Any) -> Any:
        assert all(isinstance(a, np.ndarray) and not a.flags.writeable for a in (x, n, so_far))
        kept.append((x, n))
        return x + 1

    def write(x: Any) -> Any:
        x += 1
        return x

    def run(prog: tp.Program, bounds: Any) -> None:
        if backend == "evaluate":
            prog.evaluate(bounds)
        else:
            prog.compile(bounds, backend)()

    def program(function: Callable[..., Any], *others: bool) -> tuple[tp.Program, Any]:
        with tp.Program() as prog:
            t, T = prog.dim("t")
            x = prog.recurrent("x", 2, domain=t)
            x[0] = tp.zeros(2)
            more = [t.value, x[0 : t + 1] if grows else x] if others else []
            x[t + 1] = tp.host(function, x, *more, out=tp.spec(2), sequence=t)
            prog.output("x", x)
        return prog, T

    prog, T = program(keep, True)
    run(prog, {T: 4})
    assert [(x.tolist(), n) for x, n in kept] == [([n, n], n) for n in range(4)]
    prog, T = program(write)
    with pytest.raises(tp.errors.HostError) as caught:
        run(prog, {T: 4})
    first, _, hint = str(caught.value).splitlines()
    assert first == "host function write raised ValueError at t=0: output array is read-only"
    assert hint == "  hint: arguments can only be read: write into copies, x = x.copy()"
