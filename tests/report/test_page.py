"""The page that run.report writes: complete, well-formed, by itself, and the same for the same program."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tempo as tp
from tempo.report.memory import MOST_MOMENTS
from tempo.schedule.looptree import Loop, Tree, computes, heading
from tempo.schedule.planning import show_bytes
from tempo.testing import RandomChoices, build, random_recipe
from tempo.testing.compiled import planned
from tests.report.common import Element, Page, network, references

backends = pytest.mark.parametrize("backend", ["numpy", "jax"])


def read(run: Any, directory: Path) -> Element:
    """The page of a program, once it has been checked."""
    path = run.report(directory / "report.html")
    assert path == directory / "report.html"
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>\n")
    root = Page(text).root
    assert references(root) == []
    assert "�" not in text
    check_loops(run, root)
    check_stores(run, root)
    return root


def loops(trees: tuple[Tree, ...]) -> list[Loop]:
    return [each for tree in trees if isinstance(tree, Loop) for each in (tree, *loops(tree.body))]


def check_loops(run: Any, root: Element) -> None:
    """Every loop is there, and every statement, unless the same loop body is."""
    (tree,) = root.find("div", "tree")
    heads = [summary.find("code")[0].text for summary in tree.find("summary")]
    if not tree.find("div", "same"):
        assert heads == [heading(loop) for loop in loops(run.schedule.trees)]
        assert len(tree.find("div", "row")) == len([*computes(run.schedule.trees)])
    (chart,) = root.find("svg", "chart")
    bands = [band.find("title")[0].text + ":" for band in chart.find("g", "band")]
    assert bands == [heading(loop) for loop in loops(run.schedule.trees)]


def check_stores(run: Any, root: Element) -> None:
    (table,) = root.find("table", "stores")
    rows = [[cell.text for cell in row.find("td")] for row in table.find("tr")[1:]]
    listed = {row[0] for row in rows} | {
        line.split(":")[0] for pre in root.find("pre") for line in pre.text.split("\n")
    }
    assert listed >= {store.node.label for store in run.storage.stores.values()}
    sizes = [int(row[2].replace(",", "")) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes == sorted((s.bytes for s in run.storage.stores.values()), reverse=True)[: len(sizes)]


def summary(root: Element) -> dict[str, str]:
    return dict(zip((e.text for e in root.find("dt")), (e.text for e in root.find("dd")), strict=True))


@backends
def test_a_training(backend: str, tmp_path: Path) -> None:
    prog, bounds = network()
    run = prog.compile(bounds, backend)
    root = read(run, tmp_path)
    found = summary(root)
    assert root.find("h1")[0].text == "rnn"
    assert found["bounds"] == "I = 10, T = 5"
    assert found["backend"] == ("numpy" if backend == "numpy" else f"jax on {run.where}")
    assert ("XLA programs" in found) == (backend == "jax")
    assert [e.text for e in root.find("h2")] == ["Dependences", "Loop tree", "Plan", "Memory", "Stores", "As text"]
    phases = [e.text.split()[0] for e in root.find("div", "legend")[0].find("span")]
    assert phases == [*run.seconds]
    # The program as it was written and as it was simplified, and a reason for every decision.
    texts = [pre.text for pre in root.find("pre")]
    assert str(run.source) in texts
    assert str(run.graph) in texts
    reasons = [row.find("td")[2].text for row in root.find("table")[0].find("tr")[1:]]
    assert reasons == [decision.reason for decision in run.plan.decisions]


def test_recurrences_are_arrows_back(tmp_path: Path) -> None:
    prog, bounds = network()
    root = read(prog.compile(bounds, "numpy"), tmp_path)
    tensors = {e.attributes["data-n"]: e.find("text", "name")[0].text for e in root.find("g", "tensor")}
    back = [(tensors[e.attributes["data-from"]], e.find("text")[0].text) for e in root.find("g", "back")]
    assert ("h", "i, t - 1") in back
    forward = [e.find("text")[0].text for e in root.find("g", "shift")]
    assert "i, T - 1" in forward


def test_a_tensor_that_reads_itself(tmp_path: Path) -> None:
    with tp.Program("copies") as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", domain=t)
        y[0] = 1.0
        y[t] = y[t - 1]
        prog.output("y", y)
    root = read(prog.compile({T: 3}, "numpy"), tmp_path)
    (circle,) = root.find("g", "back")
    assert circle.attributes["data-from"] == circle.attributes["data-to"]
    assert circle.find("text")[0].text == "t - 1"


def test_a_tensor_and_its_statements_have_the_same_mark(tmp_path: Path) -> None:
    prog, bounds = network()
    root = read(prog.compile(bounds, "numpy"), tmp_path)
    tensors = {e.find("text", "name")[0].text: e.attributes.get("data-k") for e in root.find("g", "tensor")}
    rows: dict[str | None, list[str]] = {}
    for row in root.find("div", "row"):
        rows.setdefault(row.attributes["data-k"], []).append(row.find("code")[0].text)
    assert [text.split(" = ")[0] for text in rows[tensors["h"]]] == ["h", "h"]
    # By the line that they were written in.
    (tanh,) = (name for name in tensors if name.startswith("tanh"))
    assert [text.partition(" = ")[2].split("(")[0] for text in rows[tensors[tanh]]] == ["tanh"]


def test_statements_have_the_users_line_beside_them(tmp_path: Path) -> None:
    prog, bounds = network()
    root = read(prog.compile(bounds, "numpy"), tmp_path)
    (row,) = (row for row in root.find("div", "row") if "einsum(W, h[i, t - 1])" in row.find("code")[0].text)
    written = row.find("span", "line")[0].text
    assert re.fullmatch(r"common\.py:\d+: h\[i, t\] = tp\.tanh\(W @ h\[i, t - 1\] \+ U @ x\[t\]\)", written)


def test_names_are_escaped(tmp_path: Path) -> None:
    """They are any text."""
    nasty = "<script>alert('1')</script> & \"x\""
    with tp.Program(nasty) as prog:
        t, T = prog.dim("<t>")
        x = prog.input('"><img src=x onerror=alert(1)>', domain=t)
        y = prog.recurrent("</title></svg><b>", domain=t)
        y[0] = x[0]
        y[t] = y[t - 1] + x
        prog.output(nasty, y)
    root = read(prog.compile({T: 3}), tmp_path)
    assert len(root.find("script")) == 1
    assert not root.find("img") + root.find("b")
    assert root.find("h1")[0].text == nasty
    names = [e.text for e in root.find("text", "name")]
    assert "</title></svg><b>" in names
    assert any(title.text.startswith(f"output {nasty}") for title in root.find("title"))


@backends
def test_stops(backend: str, tmp_path: Path) -> None:
    with tp.Program("generate") as prog:
        t, T = prog.dim("t")
        prompt = prog.input("prompt", shape=(3,), dtype="int32")
        x = prog.recurrent("x", domain=t, dtype="int32")
        x[t < 3] = prompt.space[t]
        x[t] = x[t - 1] + x[t - 2] + x[t - 3]
        prog.stop(t, when=x > 40)
        prog.output("x", x)
    root = read(prog.compile({T: 100}, backend), tmp_path)
    assert "stop t" in [e.text for e in root.find("text", "name")]
    assert any(", until " in e.text for e in root.find("summary"))


@backends
def test_host_calls_and_emits(backend: str, tmp_path: Path) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        o = prog.recurrent("o", domain=t)
        o[0] = 0.0
        o[t + 1] = tp.host(lambda value: value + 1, o, out=tp.spec(()), sequence=t)
        prog.emit("o", o)
    run = prog.compile({T: 4}, backend)
    root = read(run, tmp_path)
    if backend == "jax":
        assert summary(root)["XLA programs"] == "compiled when they run"
    assert len(root.find("g", "host")) == 1
    run()
    read(run, tmp_path)


@backends
def test_buckets(backend: str, tmp_path: Path) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[0] = x[0]
        y[t] = tp.tanh(y[0:t].mean()) + x
        prog.output("y", y)
    run = prog.compile({T: 32}, backend, plan=tp.Plan(buckets={"t": [8, 16]}))
    root = read(run, tmp_path)
    assert len(loops(run.schedule.trees)) >= 3
    if backend == "jax":
        assert int(summary(root)["XLA programs"]) > 1


@backends
def test_unrolled_dims_blocks_and_host_memory(backend: str, tmp_path: Path) -> None:
    with tp.Program() as prog:
        l, L = prog.dim("l")
        t, T = prog.dim("t")
        W = prog.input("W", shape=(4, 4), domain=l)
        x = prog.input("x", shape=(4,), domain=t)
        h = prog.recurrent("h", shape=(4,), domain=(l, t))
        h[0, t] = x
        h[l, t] = tp.tanh(W @ h[l - 1, t])
        prog.output("y", h[L - 1])
    read(prog.compile({L: 3, T: 8}, backend, plan=tp.Plan(unroll=("l",))), tmp_path)
    hosted = prog.compile({L: 3, T: 8}, backend, plan=tp.Plan({"t": 2}, host=("x",)))
    root = read(hosted, tmp_path)
    assert summary(root)["in host memory"] == "128 bytes"
    assert "host, as x" in [cell.text for cell in root.find("td")]


def test_memory_from_statement_to_statement(tmp_path: Path) -> None:
    prog, bounds = network()
    run = prog.compile(bounds, "numpy")
    sizes = [show_bytes(size) for size, _ in itertools.groupby(run.storage.over_time())]
    assert [title.split(":")[0] for title in moments(read(run, tmp_path))] == sizes
    assert show_bytes(run.storage.peak) in sizes


def test_a_chart_of_many_statements_has_as_many_moments_as_can_be_seen(tmp_path: Path) -> None:
    """And the one that takes most is among them."""
    with tp.Program() as prog:
        x = y = prog.input("x", shape=(4, 4))
        for n in range(600):
            y = (tp.concatenate([y, y]) @ x).space[:4] if n == 333 else y @ x
        prog.output("y", y)
    run = prog.compile({}, "numpy")
    found = moments(read(run, tmp_path))
    statements = len([*computes(run.schedule.trees)])
    assert len(found) <= MOST_MOMENTS < statements
    assert sum(title.startswith(f"{show_bytes(run.storage.peak)}:") for title in found) == 1


def moments(root: Element) -> list[str]:
    """What is said of the parts of the chart."""
    return [g.find("title")[0].text for g in root.find("svg", "chart")[0].find("g") if g.find("rect", "moment")]


def test_programs_of_nothing(tmp_path: Path) -> None:
    with tp.Program() as prog:
        prog.output("one", tp.ones(()))
    read(prog.compile({}, "numpy"), tmp_path)
    with tp.Program() as prog:
        t, T = prog.dim("t")
        prog.output("nothing", prog.input("x", domain=t)[T:T])
    path = prog.compile({T: 3}, "numpy").report(tmp_path / "nothing.html")
    assert references(Page(path.read_text()).root) == []


def test_bodies_that_are_the_same_are_shown_once(tmp_path: Path) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        y = prog.recurrent("y", shape=(4,), domain=t)
        y[t < 2] = 1.0
        z = y[0:t].mean(0)
        for _ in range(6):
            z = tp.tanh(z) * tp.cos(z)
        y[t] = z
        prog.output("y", y)
    run = prog.compile({T: 64}, "numpy", plan=tp.Plan(buckets={"t": [16, 32, 48]}))
    root = read(run, tmp_path)
    same = [e.text for e in root.find("div", "same")]
    assert same == ["the same as in: for t in 2 .. 15"] * 3


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    prog, bounds = network()
    run = prog.compile(bounds)
    first = run.report(tmp_path / "a.html").read_text()
    assert run.report(str(tmp_path / "b.html")).read_text() == first


SCRIPT = """
import sys
from tests.report.common import network
prog, bounds = network()
prog.compile(bounds, "numpy").report(sys.argv[1])
"""


def test_the_page_is_the_same_in_another_process(tmp_path: Path) -> None:
    """But for the time that it took."""
    pages = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.html"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True, env=environment)
        pages.append(re.sub(r"[\d.]+ s\b|width:[\d.]+%", "", path.read_text()))
    assert pages[0] == pages[1]


def test_random_programs(tmp_path: Path) -> None:
    for seed in range(20):
        program, bounds, _ = build(random_recipe(f"report {seed}"))
        run = planned(program.graph, bounds, "numpy", RandomChoices(seed))
        read(run, tmp_path)
        assert max(run.storage.over_time()) == run.storage.peak
