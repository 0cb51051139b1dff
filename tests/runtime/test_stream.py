"""Streams: values handed out while a program runs, in chunks of iterations; Ctrl-C; threads."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo.runtime import run as running
from tempo.runtime.executable import Executable
from tempo.schedule import script

BACKENDS = ["numpy", "jax"]
backends = pytest.mark.parametrize("backend", BACKENDS)


def listed(records: Any) -> list[tuple[str, tuple[int, ...], Any]]:
    return [(r.name, tuple(r.point.values()), r.value.tolist()) for r in records]


def halving() -> tuple[tp.Program, Any]:
    """1, 1/2, 1/4, ..."""
    with tp.Program("halving") as prog:
        i, I = prog.dim("i")
        w = prog.state("w", 1.0, over=i)
        w.next = w / 2
        prog.emit("w", w)
        prog.output("last", w[I])
    return prog, I


def nested() -> tuple[tp.Program, Any, Any]:
    """Values of the outer loop, of the inner one, of a whole row at once, and of an inner loop that runs backwards."""
    with tp.Program("nested") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        w = prog.state("w", 1.0, over=i)
        up = prog.recurrent("up", domain=(i, t))
        up[i, 0] = w * x[0]
        up[i, t] = up[i, t - 1] + w * x
        down = prog.recurrent("down", domain=(i, t))
        down[i, T - 1] = up[i, T - 1]
        down[i, t] = down[i, t + 1] - up
        w.next = w + down[i, 0]
        prog.emit("w", w)
        prog.emit("up", up)
        prog.emit("down", down)
        prog.emit("row", up[i, 0:T])
        prog.emit("scaled", w * x)
        prog.output("weights", w)
    return prog, I, T


# -- order and values -------------------------------------------------------------------------------------------


@backends
def test_every_iteration_is_handed_out_once(backend: str) -> None:
    prog, I = halving()
    stream = prog.compile({I: 50}, backend).stream()
    assert listed(stream) == [("w", (i,), 0.5**i) for i in range(50)]
    assert stream.result is not None
    assert stream.result.last == 0.5**50
    assert list(stream) == []  # it is over


@backends
def test_a_call_and_a_stream_hand_out_the_same(backend: str) -> None:
    prog, I, T = nested()
    run = prog.compile({I: 5, T: 4}, backend)
    x = np.arange(4)
    records = list(run.stream(x=x))
    result, expected = run(x=x), prog.evaluate({I: 5, T: 4}, x=x)
    for name, found in result.emits.items():
        assert listed(r for r in records if r.name == name) == [
            (name, tuple(r.point.values()), r.value.tolist()) for r in found
        ]
        points = {tuple(r.point.values()): r.value for r in expected.emits[name]}
        assert points.keys() == {tuple(r.point.values()) for r in found}
        for r in found:
            np.testing.assert_allclose(r.value, points[tuple(r.point.values())], rtol=1e-6)
    np.testing.assert_allclose(result.weights, expected.weights, rtol=1e-6)


def test_both_backends_hand_out_in_the_same_order() -> None:
    """Iteration by iteration, and within one in the order in which the loops come to the values."""
    prog, I, T = nested()
    orders = []
    for backend in BACKENDS:
        records = prog.compile({I: 5, T: 3}, backend).stream(x=np.ones(3))
        orders.append([(r.name, tuple(r.point.values())) for r in records])
    assert orders[0] == orders[1]
    later = orders[0].index(("w", (1,)))
    assert all(point[0] == 0 for _, point in orders[0][:later] if point)
    downs = [point for name, point in orders[0] if name == "down" and point[0] == 3]
    assert downs == [(3, 2), (3, 1), (3, 0)]


@backends
def test_an_average_over_earlier_iterations_is_handed_out_with_its_own(backend: str) -> None:
    """Not after the loop, where a stream would hand out nothing until all iterations are made."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.state("w", 8.0, over=i)
        w.next = w / 2
        prog.emit("mean", 3 * tp.mean(w[tp.max(0, i - 1) : i + 1]))
    run = prog.compile({I: 5}, backend)
    assert [float(record.value) for record in run.stream()] == [24, 18, 9, 4.5, 2.25]
    tree = run.loop_tree()
    assert "\n    sum_" in tree and "\nsum_" not in tree


@backends
def test_a_loop_that_runs_backwards(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        s = prog.recurrent("s", domain=t)
        s[T - 1] = x[T - 1]
        s[t] = s[t + 1] + x
        prog.emit("s", s)
    stream = prog.compile({T: 20}, backend).stream(x=np.ones(20))
    assert listed(stream) == [("s", (t,), 20 - t) for t in reversed(range(20))]


@backends
def test_values_whose_size_differs_from_step_to_step(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        s = prog.recurrent("s", domain=t)
        s[0] = 1.0
        s[t] = 2 * s[t - 1]
        prog.emit("all", s[0 : t + 1])
    assert [r.value.tolist() for r in prog.compile({T: 4}, backend).stream()] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


@backends
def test_a_call_begins_with_as_many_iterations_as_calls_before_it_found_good(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    chunk = running.Run._chunk

    def counted(self: running.Run, item: Any, at: Any, steps: range) -> Any:
        made.append(len(steps))
        return chunk(self, item, at, steps)

    monkeypatch.setattr(running.Run, "_chunk", counted)
    monkeypatch.setattr(running, "SHORT_SECONDS", 60.0)
    prog, I = halving()
    run = prog.compile({I: 20}, backend=backend)
    first = run()
    assert made == [1, 2, 4, 8, 5]
    made.clear()
    assert listed_emits(run()) == listed_emits(first)
    assert made == [16, 4]
    made.clear()
    next(run.stream())  # whoever streams wants the first records soon
    assert made == [1]


def listed_emits(result: Any) -> list[Any]:
    return [(dict(r.point), r.value.tolist()) for r in result.emits["w"]]


@backends
@pytest.mark.parametrize("steps", [1, 2, 3, 40])
def test_a_program_that_emits_nothing_can_be_streamed(backend: str, steps: int) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        s = prog.recurrent("s", domain=t)
        s[-1] = 0
        s[t] = s[t - 1] + x
        prog.output("s", s)
        prog.output("back", tp.grad(s[T - 1], x))
    run = prog.compile({T: steps}, backend)
    stream = run.stream(x=np.arange(steps))
    assert list(stream) == []
    assert stream.result is not None
    assert stream.result.s.tolist() == run(x=np.arange(steps)).s.tolist()
    assert stream.result.back.tolist() == [1] * steps


@backends
def test_a_stream_of_a_loop_that_stops_on_data(backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t] = 2 * x[t - 1]
        prog.stop(t, when=x > 1000)
        prog.emit("x", x)
        prog.output("steps", T)
    stream = prog.compile({T: 100}, backend).stream()
    assert listed(stream) == [("x", (t,), 2.0**t) for t in range(11)]
    assert stream.result is not None
    assert stream.result.steps == 11


# -- chunks -----------------------------------------------------------------------------------------------------


def chunks_of(run: Any, **inputs: Any) -> list[int]:
    """How many iterations each chunk of a run has."""
    stream = run.stream(**inputs)
    made = []
    while True:
        before = stream._run.script.iterations_before(stream._run.position)
        if not stream._run.advance():
            return [n for n in made if n]
        made.append(stream._run.script.iterations_before(stream._run.position) - before)


def test_chunks_grow_while_they_take_little_time() -> None:
    prog, I = halving()
    run = prog.compile({I: 1000})
    run()  # compiling takes time, too
    made = chunks_of(run)
    assert sum(made) == 1000
    assert made[:6] == [1, 2, 4, 8, 16, 32]


def test_chunks_stay_short_when_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    prog, I = halving()
    monkeypatch.setattr(running, "SHORT_SECONDS", 0.0)
    assert chunks_of(prog.compile({I: 5})) == [1] * 5


def test_a_loop_is_compiled_once_whatever_its_chunks() -> None:
    prog, I = halving()
    run = prog.compile({I: 300})
    run()
    functions = [part.function for part in run._machine.parts.compiled.values()]
    for _ in range(2):
        list(run.stream())
    assert [len(function.programs) for function in functions] == [1] * len(functions)
    assert not any(function.function._cache_size() for function in functions)


def test_chunks_of_unrolled_iterations() -> None:
    """As on a GPU: some iterations are made one, and those that remain are made one by one."""
    prog, I = halving()
    steps = 40
    run = Executable(prog.graph, {I: steps}, parallel=True)
    (loop,) = [item.loop for item in run._script.leaves() if isinstance(item, script.Chunks)]
    assert run._machine.lowering.iterated.unrolled(loop, run.storage.stores) > 4
    stream = run.stream()
    assert listed(stream) == [("w", (i,), 0.5**i) for i in range(steps)]
    assert stream.result is not None
    assert stream.result.last == 0.5**steps


def test_what_is_gathered_on_the_device_is_bounded() -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.state("w", np.ones(2**18, np.float32), over=i)  # 1 MiB
        w.next = w / 2
        prog.emit("w", w)
        prog.output("last", tp.sum(w[I]))
    (loop,) = [item for item in prog.compile({I: 1000})._script.leaves() if isinstance(item, script.Chunks)]
    assert loop.most == script.GATHERED_BYTES // 2**20


def test_an_iteration_that_emits_too_much_is_run_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All values of an inner loop are gathered on the device, unless there are too many of them."""
    prog, I, T = nested()
    whole = prog.compile({I: 3, T: 4})
    x = np.arange(4)
    expected = listed(whole.stream(x=x))
    monkeypatch.setattr(script, "MOST_BYTES", 16)
    parted = prog.compile({I: 3, T: 4})
    assert str(whole._script) != str(parted._script)
    assert "one by one" in str(parted._script)
    assert listed(parted.stream(x=x)) == expected


# -- host functions and errors ------------------------------------------------------------------------------------


def failing(fails: list[int], calls: list[int]) -> tuple[tp.Program, Any]:
    """A sum of t over t, by a function that raises at some steps."""

    def number(t: Any) -> Any:
        calls.append(int(t))
        if int(t) in fails:
            raise OSError("not now")
        return t.astype(np.float32)

    with tp.Program("failing") as prog:
        t, T = prog.dim("t")
        s = prog.recurrent("s", domain=t)
        s[-1] = 0
        s[t] = s[t - 1] + tp.host(number, t.value, out=tp.spec(()), sequence=t)
        prog.emit("s", s)
        prog.output("last", s[T - 1])
    return prog, T


@backends
def test_a_stream_goes_on_after_an_error_of_a_host_function(backend: str) -> None:
    fails, calls = [2], []
    prog, T = failing(fails, calls)
    stream = prog.compile({T: 4}, backend).stream()
    assert listed([next(stream), next(stream)]) == [("s", (0,), 0), ("s", (1,), 1)]
    with pytest.raises(tp.errors.HostError, match=r"^host function number raised OSError at t=2: not now"):
        next(stream)
    fails.clear()
    assert listed(stream) == [("s", (2,), 3), ("s", (3,), 6)]  # the call is made again
    assert calls == [0, 1, 2, 2, 3]


# -- Ctrl-C -------------------------------------------------------------------------------------------------------


@backends
def test_ctrl_c_stops_between_iterations(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk that is being made is finished, and the stream can go on."""
    prog, I = halving()
    run = prog.compile({I: 20}, backend)
    stream = run.stream()
    worker = stream._run.worker
    chunk = worker.chunk

    def interrupted(item: Any, at: Any, steps: range) -> Any:
        if 3 in steps:
            os.kill(os.getpid(), signal.SIGINT)
        return chunk(item, at, steps)

    monkeypatch.setattr(worker, "chunk", interrupted)
    found = []
    with pytest.raises(KeyboardInterrupt) as caught:
        found.extend(next(stream) for _ in range(20))
    assert type(caught.value) is KeyboardInterrupt
    assert 0 < len(found) <= 3
    found.extend(stream)
    assert listed(found) == [("w", (i,), 0.5**i) for i in range(20)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@backends
def test_ctrl_c_stops_a_host_function_at_once(backend: str) -> None:
    pressed = []

    def wait() -> Any:
        if not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # the signal arrives here
                pass
            raise AssertionError("was not interrupted")
        return np.float32(1)

    with tp.Program() as prog:
        t, T = prog.dim("t")
        s = prog.recurrent("s", domain=t)
        s[-1] = 0
        s[t] = s[t - 1] + tp.host(wait, out=tp.spec(()), sequence=t)
        prog.emit("s", s)
    stream = prog.compile({T: 3}, backend).stream()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert listed(stream) == [("s", (0,), 1), ("s", (1,), 2), ("s", (2,), 3)]


def test_pressing_ctrl_c_twice_stops_in_the_middle(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    prog, I = halving()
    run = prog.compile({I: 20}, "numpy")
    stream = run.stream()

    def interrupted(item: Any, at: Any, steps: range) -> Any:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        raise AssertionError("was not interrupted")

    monkeypatch.setattr(stream._run.worker, "chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    with pytest.raises(tp.TempoError) as caught:
        next(stream)
    assert str(caught.value) == (
        "this run failed in the middle of an iteration and cannot go on\n"
        "  hint: start another one, or load a checkpoint"
    )
    with pytest.raises(tp.errors.CheckpointError) as unsaved:
        run.save(tmp_path / "run")
    assert str(unsaved.value) == (
        "there is nothing to save: the run failed in the middle of an iteration\n"
        "  hint: iterate over run.stream(...), which can be saved at any time"
    )


@backends
def test_a_closed_stream_gives_its_memory_back(backend: str) -> None:
    prog, I = halving()
    run = prog.compile({I: 3}, backend)
    stream = run.stream()
    next(stream)
    stream.close()
    assert list(stream) == []
    assert stream.result is None
    with pytest.raises(tp.errors.CheckpointError) as unsaved:
        run.save("nowhere")
    assert str(unsaved.value).startswith("there is nothing to save: the call of program 'halving' is over\n")

    whole, other = run.stream(), run.stream()
    assert len(list(whole)) == 3
    whole.close()  # of which nothing is in memory any more: the other one is the latest
    assert whole.result is not None and whole.result.last == 0.125
    assert len(list(other)) == 3
    assert run._latest is other._run
    other.close()
    assert run._latest is None


# -- threads ------------------------------------------------------------------------------------------------------


@backends
def test_one_executable_streams_in_several_threads(backend: str) -> None:
    prog, I, T = nested()
    run = prog.compile({I: 6, T: 3}, backend)
    inputs = [np.full(3, 0.1 * n) for n in range(6)]
    expected = [listed(run.stream(x=x)) for x in inputs]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda x: listed(run.stream(x=x)), inputs)) == expected


def test_streams_of_different_precision_in_two_threads() -> None:
    """64-bit numbers are a setting of JAX, of each thread."""
    runs = []
    for dtype in (tp.float32, tp.float64):
        with tp.Program() as prog:
            i, I = prog.dim("i")
            w = prog.state("w", prog.input("start", dtype=dtype), over=i)
            w.next = w / 3
            prog.emit("w", w)
        runs.append(prog.compile({I: 30}))
    together = threading.Barrier(2)

    def values(n: int) -> list[Any]:
        together.wait()
        return [r.value for r in runs[n].stream(start=1)]

    with ThreadPoolExecutor(2) as pool:
        single, double = pool.map(values, range(2))
    assert {v.dtype for v in single} == {np.dtype(np.float32)}
    assert {v.dtype for v in double} == {np.dtype(np.float64)}
    assert double[-1] == pytest.approx(3.0**-29, rel=1e-14)


# -- inputs that are on a device already ------------------------------------------------------------------------------


class Foreign:
    """An array of a library that is neither NumPy nor JAX."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def doubling(dtype: Any) -> Any:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t, dtype=dtype)
        prog.output("y", x + x)
    return prog.compile({T: 3}, device="cpu")


@pytest.mark.parametrize("dtype", [tp.float32, tp.bfloat16, tp.int8], ids=str)
def test_arrays_of_jax_are_used_where_they_are(dtype: Any) -> None:
    run = doubling(dtype)
    array = jax.device_put(np.array([1, 0, 1]).astype(dtype), jax.devices("cpu")[0])
    adopted = run._inputs.checked({"x": array}, 0)["x"]
    assert adopted is array
    assert run._machine.put({"x": adopted})["x"] is array
    assert run(x=array).y.tolist() == run(x=np.asarray(array)).y.tolist()


def test_arrays_of_jax_are_converted_and_checked_like_others() -> None:
    run = doubling(tp.int8)
    assert run(x=jax.numpy.array([1, 2, 3])).y.tolist() == [2, 4, 6]
    with pytest.raises(tp.errors.InputError, match=r"^input 'x' has the value 300, which does not fit into int8"):
        run(x=jax.numpy.array([1, 2, 300]))
    with pytest.raises(tp.errors.InputError, match=r"^input 'x' has shape \(2,\), expected \(3,\)"):
        run(x=jax.numpy.array([1, 2], "int8"))


@pytest.mark.parametrize("dtype", [tp.float32, tp.bfloat16, tp.int16], ids=str)
def test_arrays_of_other_libraries_are_taken_over(dtype: Any) -> None:
    run = doubling(dtype)
    theirs = jax.device_put(np.array([1, 2, 3]).astype(dtype), jax.devices("cpu")[0])
    assert isinstance(run._inputs.checked({"x": Foreign(theirs)}, 0)["x"], jax.Array)
    assert run(x=Foreign(theirs)).y.tolist() == [2, 4, 6]


def test_wide_arrays_of_other_libraries_keep_their_bits() -> None:
    run = doubling(tp.int32)
    assert run(x=Foreign(np.array([1, 2, 3]))).y.tolist() == [2, 4, 6]
    with pytest.raises(tp.errors.InputError, match=r"^input 'x' has the value 4294967296, which does not fit"):
        run(x=Foreign(np.array([1, 2, 2**32])))


def test_what_their_owner_writes_later_does_not_matter() -> None:
    run = doubling(tp.float32)
    theirs = np.array([1, 2, 3], np.float32)
    adopted = run._machine.adopt(Foreign(theirs))
    theirs[:] = 0
    assert adopted.tolist() == [1, 2, 3]
