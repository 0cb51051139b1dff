"""Checkpoints: a run that was saved and goes on gives what it would have given without that, to the last bit."""

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import tempo as tp

BACKENDS = ["numpy", "jax"]
backends = pytest.mark.parametrize("backend", BACKENDS)


def walk(steps: int, backend: str = "jax", seed: int = 7, name: str = "walk", factor: float = 0.9) -> Any:
    """A random walk, with something computed before and after its loop."""
    with tp.Program(name) as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 3, domain=t)
        s = prog.recurrent("s", 3, domain=t)
        s[-1] = 0
        s[t] = factor * s[t - 1] + tp.random.normal(3, domain=t) + tp.sin(x)
        prog.emit("norm", tp.sum(s * s))
        prog.output("mean", tp.mean(s[0:T], axis=0))
        prog.output("gradient", tp.grad(tp.sum(s[T - 1]), x))
    return prog.compile({T: steps}, backend, seed=seed)


DATA = np.linspace(0, 1, 60).reshape(20, 3)


def bits(result: tp.Result | None) -> dict[str, tuple[Any, bytes]]:
    assert result is not None
    return {name: (array.dtype, array.tobytes()) for name, array in result.outputs.items()}


def listed(records: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    return [(r.name, tuple(r.point.values()), r.value.tobytes()) for r in records]


# -- bit by bit -----------------------------------------------------------------------------------------------------


@backends
def test_a_stream_that_was_saved_goes_on(backend: str, tmp_path: Path) -> None:
    """After any number of records: none is lost, none comes twice."""
    run = walk(20, backend)
    other = walk(20, backend, seed=0)  # the seed is that of the run
    whole = run.stream(x=DATA)
    expected = listed(whole)
    for taken in (0, 1, 5, 12, 20):
        stream = run.stream(x=DATA)
        first = [next(stream) for _ in range(taken)]
        run.save(tmp_path / "run")
        other.load(tmp_path / "run")
        rest = other.stream(x=DATA)
        assert listed(first) + listed(rest) == expected
        assert bits(rest.result) == bits(whole.result)
        # The stream itself was not disturbed.
        assert listed(first) + listed(stream) == expected
    # Without a checkpoint to go on from, a run is a new one.
    assert listed(other.stream(seed=7, x=DATA)) == expected


@backends
def test_a_call_goes_on_where_a_stream_was_saved(backend: str, tmp_path: Path) -> None:
    run = walk(20, backend)
    whole = run(x=DATA)
    stream = run.stream(x=DATA)
    for _ in range(4):
        next(stream)
    run.save(tmp_path / "run")
    run.load(tmp_path / "run")
    rest = run(x=DATA)
    assert bits(rest) == bits(whole)
    assert [r.point["t"] for r in rest.emits["norm"]] == list(range(4, 20))


@backends
def test_a_program_without_emits(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be stopped between iterations, and saved then."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.state("w", prog.input("start"), over=i)
        w.next = tp.sin(3 * w)
        prog.output("w", w)
    run = prog.compile({I: 50}, backend)
    stream = run.stream(start=0.3)
    worker, chunk = stream._run.worker, stream._run.worker.chunk

    def interrupted(item: Any, at: Any, steps: range) -> Any:
        if steps[0] > 0:
            os.kill(os.getpid(), signal.SIGINT)
        return chunk(item, at, steps)

    monkeypatch.setattr(worker, "chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    run.save(tmp_path / "run")
    run.load(tmp_path / "run")
    rest, whole = run(start=0.3), run.stream(start=0.3)
    list(whole)
    assert bits(rest) == bits(whole.result)


@backends
def test_a_call_that_was_interrupted_keeps_its_records(backend: str, tmp_path: Path) -> None:
    """They were made, but never handed out."""
    fails = [3]

    def fail(t: Any) -> Any:
        if int(t) in fails:
            raise OSError("not now")
        return t.astype(np.float32)

    with tp.Program() as prog:
        t, T = prog.dim("t")
        s = prog.recurrent("s", domain=t)
        s[-1] = 0
        s[t] = s[t - 1] + tp.host(fail, t.value, out=tp.spec(()), sequence=t)
        prog.emit("s", s)
    run = prog.compile({T: 5}, backend)
    with pytest.raises(tp.errors.HostError):
        run()
    run.save(tmp_path / "run")
    fails.clear()
    run.load(tmp_path / "run")
    assert [r.value.item() for r in run().emits["s"]] == [0, 1, 3, 6, 10]


@backends
def test_host_calls_within_an_iteration(backend: str, tmp_path: Path) -> None:
    """A run with host calls is saved where it is, also between the calls of one iteration."""
    calls: list[tuple[int, ...]] = []

    def environment(i: Any, t: Any, w: Any) -> Any:
        calls.append((int(i), int(t)))
        return np.float32(w * (1 + t)), np.int16(3 * i + t)

    def made() -> Any:
        with tp.Program("acting") as prog:
            i, I = prog.dim("i")
            t, T = prog.dim("t")
            w = prog.state("w", 0.5, over=i)
            s = prog.recurrent("s", domain=(i, t))
            s[i, -1] = w
            r, n = tp.host(
                environment, i.value, t.value, s[i, t - 1], out=[tp.spec(()), tp.spec((), tp.int16)], sequence=(i, t)
            )
            s[i, t] = tp.cos(r) + n.astype(tp.float32)
            w.next = w + tp.sin(s[i, T - 1])
            prog.emit("s", s)
            prog.emit("w", w)
            prog.output("last", w[I])
        return prog.compile({I: 4, T: 3}, backend)

    whole = made().stream()
    expected = listed(whole)
    in_order, calls[:] = list(calls), []
    assert in_order == [(i, t) for i in range(4) for t in range(3)]
    for taken in range(0, len(expected), 3):
        calls.clear()
        run = made()
        stream = run.stream()
        first = [next(stream) for _ in range(taken)]
        run.save(tmp_path / "run")
        other = made()
        other.load(tmp_path / "run")
        rest = other.stream()
        assert listed(first) + listed(rest) == expected
        assert bits(rest.result) == bits(whole.result)
        assert calls == in_order


@pytest.mark.parametrize(("saves", "loads"), [("numpy", "jax"), ("jax", "numpy")])
def test_a_run_goes_on_with_another_backend(saves: str, loads: str, tmp_path: Path) -> None:
    run, other = walk(20, saves), walk(20, loads)
    stream = run.stream(x=DATA)
    for _ in range(9):
        next(stream)
    run.save(tmp_path / "run")
    other.load(tmp_path / "run")
    rest, whole = other(x=DATA), run(x=DATA)
    for name, array in whole.outputs.items():
        np.testing.assert_allclose(rest[name], array, rtol=1e-5)
    assert [r.point["t"] for r in rest.emits["norm"]] == list(range(9, 20))


def test_constants_in_double_precision_keep_all_bits(tmp_path: Path) -> None:
    """JAX made them when they were saved, in single precision; it reads none of them itself, but NumPy does."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        w = prog.state("w", tp.full((3,), 0.1, dtype=tp.float64), over=i)
        w.next = w * tp.full((3,), 1.1, dtype=tp.float64)
        prog.emit("w", w)
    first = prog.compile({I: 6}).stream()
    run = prog.compile({I: 6})
    stream = run.stream()
    for _ in range(3):
        next(stream)
    run.save(tmp_path / "run")
    later = prog.compile({I: 6}, backend="numpy")
    later.load(tmp_path / "run")
    values = [record.value for record in first][3:]
    np.testing.assert_allclose([record.value for record in later.stream()], values, rtol=1e-14)


@backends
def test_a_run_that_is_over_gives_its_outputs_again(backend: str, tmp_path: Path) -> None:
    run = walk(20, backend)
    whole = run(x=DATA)
    list(run.stream(x=DATA))
    run.save(tmp_path / "run")
    run.load(tmp_path / "run")
    rest = run(x=DATA)
    assert bits(rest) == bits(whole)
    assert rest.emits["norm"] == []


@backends
def test_a_run_that_stops_on_data(backend: str, tmp_path: Path) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t", bound="most steps")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t] = 2 * x[t - 1]
        prog.stop(t, when=x > 1000)
        prog.emit("x", x)
        prog.output("steps", T)
        prog.output("all", x)
    run = prog.compile({T: 100}, backend)
    for taken in (0, 3, 10, 11):
        stream = run.stream()
        first = [next(stream) for _ in range(taken)]
        run.save(tmp_path / "run")
        run.load(tmp_path / "run")
        rest = run.stream()
        values = [r.value.item() for r in (*first, *rest)]
        assert values == [2.0**t for t in range(11)]
        assert rest.result is not None
        assert rest.result.steps == 11
        assert rest.result.all.tolist() == values


def stepped(step: Any, scale: Any) -> tuple[tp.Program, Any]:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.recurrent("x", domain=t)
        x[0] = 1.0
        x[t + 1] = tp.jax_function(scale, tp.host(step, x, out=tp.spec(()), sequence=t), out=tp.spec(()))
        prog.emit("x", x[t + 1])
    return prog, T


def counting(by: float) -> Any:
    calls = 0

    def step(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x + 1 if by == 1 else x + by

    return step


def scaling(by: float) -> Any:
    def scale(x: Any) -> Any:
        return by * x

    return scale


def another(x: Any) -> Any:
    return x + 2


another.__name__ = "step"


@backends
@pytest.mark.parametrize(
    ("step", "scale", "changed"),
    [
        (counting(1.0), scaling(2.0), ""),
        (another, scaling(2.0), "step"),
        (counting(1.0), scaling(3.0), "scale"),
        (another, scaling(3.0), "scale, step"),
    ],
)
def test_functions_that_have_changed(backend: str, step: Any, scale: Any, changed: str, tmp_path: Path) -> None:
    """They are known by their names; that their text is another one is said."""
    path = tmp_path / "run"
    prog, T = stepped(counting(1.0), scaling(2.0))
    run = prog.compile({T: 2}, backend)
    assert next(run.stream()).value == 4
    run.save(path)
    prog, T = stepped(step, scale)
    run = prog.compile({T: 2}, backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.load(path)
    assert [str(w.message) for w in caught] == (
        [f"'{path}' was saved with other text of {changed}: the run goes on with what is there now"] if changed else []
    )
    assert all(w.filename == __file__ for w in caught)
    assert len(list(run.stream())) == 1


@backends
@pytest.mark.parametrize(
    "dtype",
    [tp.bool_, tp.int8, tp.int16, tp.int64, tp.uint8, tp.uint32, tp.uint64, tp.float16, tp.bfloat16, tp.float64],
    ids=str,
)
def test_all_dtypes(backend: str, dtype: Any, tmp_path: Path) -> None:
    with tp.Program() as prog:
        i, I = prog.dim("i")
        start = prog.input("start", 2, dtype=dtype)
        w = prog.state("w", start, over=i)
        w.next = ~w if dtype == tp.bool_ else w + start
        prog.emit("w", w)
        prog.output("last", w[I])
    run = prog.compile({I: 6}, backend)
    whole = run.stream(start=[1, 0] if dtype != tp.bool_ else [True, False])
    expected = listed(whole)
    stream = run.stream(start=[1, 0] if dtype != tp.bool_ else [True, False])
    first = [next(stream) for _ in range(2)]
    run.save(tmp_path / "run")
    run.load(tmp_path / "run")
    rest = run.stream(start=[1, 0] if dtype != tp.bool_ else [True, False])
    assert listed(first) + listed(rest) == expected
    assert bits(rest.result) == bits(whole.result)


@backends
def test_a_number_that_is_read_at_no_point(backend: str, tmp_path: Path) -> None:
    """Gradients may have cases for points that there are none of, and a checkpoint nothing for them."""
    with tp.Program() as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        w = prog.state("w", tp.constant([0.5, 0.1]), over=i)
        h = prog.recurrent("h", domain=(i, t))
        h[i, 0] = 1.0
        h[i, t] = tp.tanh(w.space[0] * h[i, t - 1] + w.space[1])
        loss = h[i, T - 1] ** 2
        tp.optim.Adam(0.1).update({"w": w}, {"w": tp.grad(loss, w)})
        prog.output("w", w.final)
        prog.emit("loss", loss)
    run = prog.compile({I: 5, T: 3}, backend)
    stream = run.stream()
    next(stream)
    run.save(tmp_path / "run")
    again = prog.compile({I: 5, T: 3}, backend)
    again.load(tmp_path / "run")
    rest = again.stream()
    assert len(list(rest)) == 4
    assert bits(rest.result) == bits(run())


# -- files ------------------------------------------------------------------------------------------------------------


def test_only_what_is_needed_is_saved(tmp_path: Path) -> None:
    """Inputs are given again, and what nothing reads any more is gone."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 100, domain=t)
        early = prog.recurrent("early", 100, domain=t)
        early[-1] = 0
        early[t] = early[t - 1] + x
        late = prog.recurrent("late", domain=t)
        late[T - 1] = tp.sum(early[T - 1])
        late[t] = late[t + 1] / 2
        prog.emit("late", late)
        prog.output("first", late[0])
    run = prog.compile({T: 200})
    stream = run.stream(x=np.ones((200, 100)))
    next(stream)
    run.save(tmp_path / "run")
    assert os.path.getsize(tmp_path / "run") < 20_000


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = walk(20)
    stream = run.stream(x=DATA)
    next(stream)
    run.save(tmp_path / "run")
    before = (tmp_path / "run").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            run.save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").read_bytes() == before
    for _ in range(10):
        next(stream)
    run.save(str(tmp_path / "run"))
    assert (tmp_path / "run").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


SCRIPT = """
import os, signal, sys
from tests.runtime.test_checkpoint import DATA, listed, walk
run, path = walk(20), sys.argv[1]
if os.path.exists(path):
    run.load(path)
for record in (stream := run.stream(x=DATA)):
    print(listed([record]), flush=True)
    run.save(path)
    if record.point["t"] == 11 and len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
print({name: array.tobytes() for name, array in stream.result.outputs.items()})
"""


def test_a_process_that_was_killed_is_resumed_by_another(tmp_path: Path) -> None:
    def start(*arguments: str) -> Any:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        root = Path(__file__).parents[2]
        return subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)

    killed = start(str(tmp_path / "run"), "killed")
    assert killed.returncode == -signal.SIGKILL
    resumed, whole = start(str(tmp_path / "run")), start(str(tmp_path / "other"))
    assert (resumed.returncode, whole.returncode) == (0, 0)
    assert len(killed.stdout.splitlines()) == 12
    assert killed.stdout + resumed.stdout == whole.stdout


# -- mistakes ---------------------------------------------------------------------------------------------------------


def saved(path: Path, **changes: Any) -> Path:
    run = walk(20, **changes)
    next(run.stream(x=DATA))
    run.save(path)
    return path


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"name": "other"}, "it is named 'other'"),
        ({"factor": 0.8}, "it has other definitions"),
        ({"name": "other", "factor": 0.8}, "it is named 'other', it has other definitions"),
    ],
)
def test_a_checkpoint_of_another_program(changes: dict[str, Any], difference: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "run", **changes)
    with pytest.raises(tp.errors.CheckpointError) as caught:
        walk(20).load(path)
    assert str(caught.value) == (
        f"'{path}' is not a checkpoint of this program: {difference}\n  hint: this is program 'walk' with T = 20"
    )


def test_a_checkpoint_for_other_bounds(tmp_path: Path) -> None:
    path = saved(tmp_path / "run")
    with pytest.raises(tp.errors.CheckpointError) as caught:
        walk(30).load(path)
    assert str(caught.value) == (
        f"'{path}' is not a checkpoint of this program: T was 20\n  hint: this is program 'walk' with T = 30"
    )


def test_a_checkpoint_of_another_compiler(tmp_path: Path) -> None:
    path = saved(tmp_path / "run")
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about = json.loads(metadata["run"])
    about["identity"]["plan"] = "another"
    save_file(tensors, path, {**metadata, "run": json.dumps(about)})
    with pytest.raises(tp.errors.CheckpointError) as caught:
        walk(20).load(path)
    assert caught.value.message == (
        f"'{path}' is not a checkpoint of this program: "
        "it was compiled for another device or backend, with another plan or by another version of Tempo"
    )


@pytest.mark.parametrize(("saves", "loads"), [("numpy", "jax"), ("jax", "numpy")])
def test_host_memory_of_another_backend(saves: str, loads: str, tmp_path: Path) -> None:
    """What lies there differs between backends, and a run must not go on without it."""
    with tp.Program("walk") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        h = prog.recurrent("h", domain=t)
        h[0] = x[0]
        h[t] = tp.tanh(h[t - 1] + x[t])
        prog.emit("h", h)
        prog.output("g", tp.grad(h[T - 1], x))
    plan = tp.Plan(blocks={"t": 2}, host=("*",))
    run, other = (prog.compile({T: 6}, backend, plan=plan) for backend in (saves, loads))
    stream = run.stream(x=np.linspace(0, 1, 6))
    next(stream)
    run.save(tmp_path / "run")
    with pytest.raises(tp.errors.CheckpointError, match="it was compiled for another device or backend"):
        other.load(tmp_path / "run")
    run.load(tmp_path / "run")


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_a_part_of_a_checkpoint(length: int, tmp_path: Path) -> None:
    path = saved(tmp_path / "run")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(tp.errors.CheckpointError) as caught:
        walk(20).load(path)
    assert caught.value.message == f"'{path}' is not a checkpoint, or only a part of one"
    assert caught.value.hint.startswith("run.save(path) writes checkpoints. This file cannot be read: ")


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("Dear diary, today I trained a network.")
    with pytest.raises(tp.errors.CheckpointError) as text:
        walk(20).load(path)
    assert text.value.message == f"'{path}' is not a checkpoint, or only a part of one"
    save_file({"w": np.ones(3)}, path)
    with pytest.raises(tp.errors.CheckpointError) as weights:
        walk(20).load(path)
    assert str(weights.value) == (
        f"'{path}' is a safetensors file, but not a checkpoint of a run\n  hint: run.save(path) writes checkpoints"
    )


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        walk(20).load(tmp_path / "run")
    assert str(caught.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'run'}'"
    run = walk(20)
    run.stream(x=DATA)
    with pytest.raises(FileNotFoundError) as missing:
        run.save(tmp_path / "no" / "run")
    assert str(missing.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'no'}'"


def test_nothing_to_save(tmp_path: Path) -> None:
    hint = "\n  hint: iterate over run.stream(...), which can be saved at any time"
    with pytest.raises(tp.errors.CheckpointError) as unused:
        walk(20).save(tmp_path / "run")
    assert str(unused.value) == "there is nothing to save: program 'walk' has not been run" + hint
    with tp.Program("sum") as prog:
        t, T = prog.dim("t")
        prog.output("y", tp.sum(prog.input("x", 3, domain=t)[0:T]))
    for run, name in ((prog.compile({T: 20}), "sum"), (walk(20), "walk")):
        run(x=DATA)
        with pytest.raises(tp.errors.CheckpointError) as over:
            run.save(tmp_path / "run")
        assert str(over.value) == f"there is nothing to save: the call of program '{name}' is over" + hint


@backends
def test_the_seed_is_that_of_the_run(backend: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "run", backend=backend, seed=2**40)
    run = walk(20, backend)
    run.load(path)
    with pytest.raises(tp.errors.CheckpointError) as caught:
        run.stream(seed=1, x=DATA)
    assert str(caught.value) == f"seed = 1: the run that was loaded has the seed {2**40}\n  hint: leave the seed out"
    assert len(list(run.stream(seed=2**40, x=DATA))) == 19


@pytest.mark.parametrize("change", ["missing", "narrower"])
def test_a_file_whose_tensors_were_changed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "run.safetensors"
    run = walk(20)
    next(run.stream(x=DATA))
    run.save(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    first = next(name for name in tensors if name.startswith("store"))
    if change == "missing":
        del tensors[first]
    else:
        tensors[first] = tensors[first].astype(np.float16)
    save_file(tensors, path, metadata)
    with pytest.raises(tp.errors.CheckpointError) as caught:
        walk(20).load(path)
    assert str(caught.value) == (
        f"'{path}' has other tensors than it was saved with\n"
        "  hint: something has changed it: give the file that run.save(path) wrote"
    )
