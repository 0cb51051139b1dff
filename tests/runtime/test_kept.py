"""Compiled programs on disk: opened instead of compiled again, by what they are and by nothing less."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import tempo as tp
from tempo.backends.jax import library, whole
from tempo.graph.node import Primitive
from tempo.ops.common import broadcast_shapes
from tempo.runtime.executable import Executable
from tempo.tensor import apply

X = np.linspace(-1, 1, 12, dtype=np.float32)


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_records: None) -> Iterator[Path]:
    """An empty library, that keeps every program."""
    monkeypatch.setattr(whole, "LEAST_SECONDS", 0.0)
    settings: Any = jax.config
    before = settings.jax_compilation_cache_dir
    settings.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    yield tmp_path / "tempo"
    wait()
    settings.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def wait() -> None:
    """Until everything is on disk."""
    for thread in threading.enumerate():
        if thread.name == "tempo.keep":
            thread.join()


def compiled(prog: tp.Program, *arguments: Any, **options: Any) -> Executable:
    run = prog.compile(*arguments, **options)
    wait()
    return run


def is_opened(run: Executable) -> bool:
    """Whether nothing was planned for it."""
    return "plan" not in run.seconds


def decaying(factor: float = 0.5, name: str = "y", step: int = 1, scale: Any = None) -> tp.Program:
    with tp.Program("decaying") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[t < step] = x
        y[t] = factor * y[t - step] + x
        prog.output(name, y if scale is None else y * tp.constant(scale).sum())
    return prog


def growing() -> tp.Program:
    """Its loop is cut: several XLA programs."""
    with tp.Program("growing") as prog:
        t, _ = prog.dim("t")
        w = prog.input("w", (3, 3))
        x = prog.recurrent("x", (3,), t)
        x[0] = tp.ones(3)
        x[t] = tp.tanh(w @ x[0:t].sum(0))
        prog.stop(t, when=tp.index_value(t) >= prog.input("last", dtype="int32"))
        prog.output("x", x)
    return prog


CUT = tp.Plan(buckets={"t": [8, 16, 24]})
GROWN = {"w": np.eye(3, dtype=np.float32) / 3, "last": 30}


# -- the same again ----------------------------------------------------------------------------------------------


def test_a_program_is_opened() -> None:
    first, again = (compiled(decaying(), {"T": 12}) for _ in range(2))
    assert (is_opened(first), is_opened(again)) == (False, True)
    np.testing.assert_array_equal(first(x=X).y, again(x=X).y)


def test_programs_in_stages_that_stop() -> None:
    first, again = (compiled(growing(), {"T": 32}, plan=CUT) for _ in range(2))
    assert (is_opened(first), is_opened(again)) == (False, True)
    for last in (3, 17, 31):
        given = {**GROWN, "last": last}
        expected = first(**given).x
        assert len(expected) == last + 1
        np.testing.assert_array_equal(again(**given).x, expected)
        np.testing.assert_array_equal(again(**given).x, expected)  # what was given away is made anew
    assert is_opened(again)


def test_inputs_in_lists_and_wide_types() -> None:
    def layers() -> tp.Program:
        with tp.Program("layers") as prog:
            l, L = prog.dim("l")
            w = prog.input("w", (2, 2), l, dtype="float64")
            h = prog.recurrent("h", (2,), l, dtype="float64")
            h[-1] = np.ones(2)
            h[l] = tp.tanh(w @ h[l - 1])
            prog.output("h", h[L - 1])
        return prog

    w = np.arange(12.0).reshape(3, 2, 2) / 10
    first, again = (compiled(layers(), {"L": 3}, plan=tp.Plan(unroll=("l",))) for _ in range(2))
    assert is_opened(again)
    expected = first(w=w).h
    assert expected.dtype == np.float64
    np.testing.assert_array_equal(again(w=w).h, expected)
    np.testing.assert_array_equal(again(w=list(w)).h, expected)


def test_the_rest_is_made_when_it_is_asked_for() -> None:
    first, again = (compiled(decaying(), {"T": 12}) for _ in range(2))
    assert is_opened(again)
    assert "1 program" in again.explain()
    assert again.loop_tree("y") == first.loop_tree("y")
    assert again.plan == first.plan
    assert "XLA" not in again.seconds
    stream = again.stream(x=X)
    assert list(stream) == []
    assert stream.result is not None
    np.testing.assert_array_equal(stream.result.y, first(x=X).y)


def test_the_seed_is_an_input() -> None:
    def drawn() -> tp.Program:
        with tp.Program("drawn") as prog:
            t, _ = prog.dim("t")
            prog.output("x", tp.random.normal((), domain=t))
        return prog

    first, again = compiled(drawn(), {"T": 5}), compiled(drawn(), {"T": 5}, seed=1)
    assert is_opened(again)
    np.testing.assert_array_equal(first(seed=1).x, again().x)
    assert not np.array_equal(first().x, again().x)


# -- not the same ------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[], Executable]] = {
    "a number": lambda: compiled(decaying(0.25), {"T": 12}),
    "an index": lambda: compiled(decaying(step=2), {"T": 12}),
    "an output": lambda: compiled(decaying(name="z"), {"T": 12}),
    "a bound": lambda: compiled(decaying(), {"T": 13}),
    "a plan": lambda: compiled(decaying(), {"T": 12}, plan=tp.Plan({"t": 4})),
    "a goal": lambda: compiled(decaying(), {"T": 12}, plan="smallest"),
    "memory": lambda: compiled(decaying(), {"T": 12}, memory="1MB"),
    "where it runs": lambda: Executable(decaying().graph, {"T": 12}, parallel=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_program(change: str) -> None:
    compiled(decaying(), {"T": 12})
    assert not is_opened(CHANGES[change]())


def test_the_same_computation_with_other_names() -> None:
    def doubled_input(given: str, output: str) -> tp.Program:
        with tp.Program("doubled") as prog:
            prog.output(output, 2 * prog.input(given, (3,)))
        return prog

    for given, output in (("a", "x"), ("b", "x"), ("b", "y")):
        run = compiled(doubled_input(given, output), {})
        assert not is_opened(run)
        np.testing.assert_array_equal(run(**{given: np.ones(3, np.float32)})[output], [2, 2, 2])


def test_other_constants() -> None:
    table = np.arange(100, dtype=np.float32)
    other = table.copy()
    other[50] += 1
    first = compiled(decaying(scale=table), {"T": 12})
    changed = compiled(decaying(scale=other), {"T": 12})
    assert not is_opened(changed)
    np.testing.assert_allclose(changed(x=X).y / first(x=X).y, other.sum() / table.sum(), rtol=1e-5)
    assert is_opened(compiled(decaying(scale=other.copy()), {"T": 12}))


def test_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(decaying(), {"T": 12})
    with jax.default_matmul_precision("float32"):
        assert not is_opened(compiled(decaying(), {"T": 12}))
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert not is_opened(compiled(decaying(), {"T": 12}))
    monkeypatch.delenv("XLA_FLAGS")
    assert is_opened(compiled(decaying(), {"T": 12}))


def test_other_sources_of_tempo(monkeypatch: pytest.MonkeyPatch, shelf: Path) -> None:
    compiled(decaying(), {"T": 12})
    monkeypatch.setattr(library, "_sources", lambda: "others")
    before = len(list(shelf.iterdir()))
    assert not is_opened(compiled(decaying(), {"T": 12}))
    assert len(list(shelf.iterdir())) == before + 1  # a record for the same XLA program
    monkeypatch.setattr(library, "_sources", lambda: None)  # changed while the process runs
    assert not is_opened(compiled(decaying(), {"T": 12}))
    assert len(list(shelf.iterdir())) == before + 1


def test_less_memory_is_left() -> None:
    """What a device has left when a program is compiled is not a part of what is asked for; that it is enough, is."""
    run = compiled(decaying(), {"T": 12})
    shelves, text = run._library, run._request.text
    assert shelves is not None
    name = shelves.name_of_record(text)
    assert name is not None
    shelves.put(name, replace(shelves.get(name), peak=1000))

    def opened(left: int | None) -> bool:
        return whole.kept(shelves, text, left, run.source, run.numbers, lambda: None) is not None

    assert [opened(left) for left in (None, 1000, 999)] == [True, True, False]


# -- what nobody can tell the same -------------------------------------------------------------------------------


def doubled(x: Any) -> Any:
    return 2 * x


def with_function() -> tp.Program:
    with tp.Program("function") as prog:
        t, _ = prog.dim("t")
        prog.output("y", tp.jax_function(doubled, prog.input("x", domain=t), out=[tp.spec()])[0])
    return prog


def with_own_primitive() -> tp.Program:
    double = Primitive(
        "double",
        infer=lambda a: (broadcast_shapes("double", (a,)), a.dtype),
        reference=lambda a: 2 * a,
        jax=lambda jx, a: 2 * a.array,
    )
    with tp.Program("primitive") as prog:
        t, _ = prog.dim("t")
        prog.output("y", apply(double, (prog.input("x", domain=t),)))
    return prog


@pytest.mark.parametrize("write", [with_function, with_own_primitive])
def test_python_functions_are_not_opened(write: Callable[[], tp.Program]) -> None:
    for _ in range(2):
        run = compiled(write(), {"T": 12})
        assert not is_opened(run)
        np.testing.assert_array_equal(run(x=X).y, 2 * X)


def test_programs_that_need_python_are_not_opened() -> None:
    def emitting() -> tp.Program:
        with tp.Program("emitting") as prog:
            t, _ = prog.dim("t")
            prog.emit("y", 2 * prog.input("x", domain=t))
        return prog

    for _ in range(2):
        run = compiled(emitting(), {"T": 12})
        assert not is_opened(run)
        assert [float(record.value) for record in run.stream(x=X)] == [2 * float(x) for x in X]


def test_switched_off(shelf: Path) -> None:
    settings: Any = jax.config
    settings.update("jax_enable_compilation_cache", False)
    try:
        for _ in range(2):
            assert not is_opened(compiled(decaying(), {"T": 12}))
    finally:
        settings.update("jax_enable_compilation_cache", True)
    assert not shelf.exists()


def test_short_compilations_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LEAST_SECONDS", 1e9)
    for _ in range(2):
        assert not is_opened(compiled(decaying(), {"T": 12}))


# -- what happens to files ---------------------------------------------------------------------------------------


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [emptied, truncated, changed, Path.unlink])
def test_damaged_files_are_written_again(damage: Callable[[Path], None], shelf: Path) -> None:
    expected = compiled(growing(), {"T": 32}, plan=CUT)(**GROWN).x
    names = [path.name for path in shelf.iterdir()]
    for name in names:
        damage(shelf / name)
        run = compiled(growing(), {"T": 32}, plan=CUT)
        np.testing.assert_array_equal(run(**GROWN).x, expected)
        wait()
    assert {*names} == {path.name for path in shelf.iterdir()}
    run = compiled(growing(), {"T": 32}, plan=CUT)
    np.testing.assert_array_equal(run(**GROWN).x, expected)
    assert is_opened(run)


def test_a_directory_that_cannot_be_written(shelf: Path) -> None:
    shelf.write_text("no directory")
    for _ in range(2):
        run = compiled(decaying(), {"T": 12})
        assert not is_opened(run)
        assert run(x=X).y.shape == (12,)


def test_several_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: growing().compile({"T": 32}, plan=CUT), range(4)))
    wait()
    runs.append(compiled(growing(), {"T": 32}, plan=CUT))
    assert is_opened(runs[-1])
    results = [run(**GROWN).x for run in runs]
    for found in results:
        np.testing.assert_array_equal(found, results[0])


@pytest.mark.slow
def test_processes_share_it(shelf: Path) -> None:
    """Two at once, one of which may end while it compiles what it does not need; then one that finds what they kept."""
    script = """
        import sys
        import numpy as np
        import tempo as tp
        from tempo.backends.jax import whole

        whole.LEAST_SECONDS = 0.0
        with tp.Program("growing") as prog:
            t, T = prog.dim("t")
            x = prog.recurrent("x", (3,), t)
            x[0] = tp.ones(3)
            x[t] = tp.tanh(x[0:t].sum(0) / 3)
            prog.stop(t, when=tp.index_value(t) >= prog.input("last", dtype="int32"))
            prog.output("x", x)
        run = prog.compile({T: 32}, plan=tp.Plan(buckets={"t": [8, 16, 24]}))
        found = run(last=int(sys.argv[1])).x
        print("planned" if "plan" in run.seconds else "opened", found.tobytes().hex())
    """

    def started(last: int) -> subprocess.Popen[str]:
        code = textwrap.dedent(f"import jax; jax.config.update('jax_compilation_cache_dir', {str(shelf.parent)!r})")
        code += "\njax.config.update('jax_platforms', 'cpu')\n" + textwrap.dedent(script)
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-c", code, str(last)], stdout=subprocess.PIPE, text=True, env=paths)

    def said(process: subprocess.Popen[str]) -> list[str]:
        return process.communicate(timeout=300)[0].split()

    first, second = started(3), started(3)
    found = [said(first), said(second), said(started(3))]
    assert [how for how, _ in found][-1] == "opened"
    assert len({numbers for _, numbers in found}) == 1
    _, numbers = said(started(30))  # all stages
    assert numbers.startswith(found[0][1])
