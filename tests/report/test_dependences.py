"""Which tensors and reads of a program are drawn."""

from __future__ import annotations

import tempo as tp
from tempo.report.dependences import MOST_DRAWN, Dependences, dependences


def arrows(found: Dependences) -> list[tuple[str, str, str]]:
    """What is read, what reads it, and where."""
    return [(found.tensors[r.start].title, found.tensors[r.end].title, r.index) for r in found.reads]


def test_tensors_and_reads_of_a_small_program() -> None:
    with tp.Program() as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", shape=(2,), domain=t)
        y = prog.recurrent("y", shape=(2,), domain=t)
        y[0] = x[0]
        y[t] = 0.5 * y[t - 1] + x[t]
        prog.output("all", y[0 : t + 1].sum(0))
    found = dependences(prog.graph)
    names = {node.op.name: node.label for node in prog.graph.nodes if not node.name}
    half, add, total = f"{names['multiply']}(0.5, ·)", names["add"], names["sum"]
    assert [(tensor.kind, tensor.title) for tensor in found.tensors] == [
        ("input", "x"),
        ("recurrent", "y"),
        ("operation", half),
        ("operation", add),
        ("operation", total),
        ("result", "output all"),
    ]
    assert {(tensor.title, tensor.type) for tensor in found.tensors[:2]} == {
        ("x", "(t) float32[2]"),
        ("y", "(t) float32[2]"),
    }
    assert sorted(arrows(found)) == sorted(
        [
            ("x", "y", "0"),
            (add, "y", ""),
            ("y", half, "t - 1"),
            (half, add, ""),
            ("x", add, ""),
            ("y", total, "0:t + 1"),
            (total, "output all", ""),
        ]
    )
    assert found.left_out == 0


def test_reads_at_several_steps_are_one_arrow_and_another_for_the_same_step() -> None:
    with tp.Program() as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", domain=t)
        prog.output("y", tp.maximum(x[0], x[1]))
        prog.output("z", tp.minimum(x, x[1]))
    found = dependences(prog.graph)
    read: dict[str, list[str]] = {"maximum": [], "minimum": []}
    for producer, reader, index in arrows(found):
        if producer == "x":
            read[reader.split("_")[0]].append(index)
    assert read == {"maximum": ["0 | 1"], "minimum": ["", "1"]}


def test_stops_emits_and_host_calls() -> None:
    with tp.Program() as prog:
        t, _ = prog.dim("t")
        o = prog.recurrent("o", domain=t)
        o[0] = 0.0
        o[t + 1] = tp.host(lambda value: value + 1, o, out=tp.spec(()), sequence=t)
        prog.stop(t, when=o > 3)
        prog.emit("o", o)
    found = dependences(prog.graph)
    assert [tensor.title for tensor in found.tensors if tensor.kind == "result"] == ["emit o", "stop t"]
    assert [tensor.kind for tensor in found.tensors].count("host") == 1


def deep(layers: int) -> tp.Program:
    """Attention after attention, each added to what it was given."""
    with tp.Program() as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", shape=(4,), domain=t)
        for n in range(layers):
            k, v = (tp.tanh(prog.input(f"{name}{n}", shape=(4, 4)) @ x) for name in "kv")
            x = x + tp.softmax(k[0 : t + 1] @ x) @ v[0 : t + 1]
            x = x + prog.input(f"out{n}", shape=(4, 4)) @ tp.tanh(prog.input(f"in{n}", shape=(4, 4)) @ x)
        prog.output("y", x)
    return prog


def test_of_a_large_program_some_tensors_are_drawn() -> None:
    prog = deep(10)
    found = dependences(prog.graph)
    count = sum(node.op.name != "constant" for node in prog.graph.nodes)
    assert count > MOST_DRAWN
    kinds = [(tensor.kind, tensor.title.split("_")[0]) for tensor in found.tensors]
    # Keys and values, because they are read at other steps; what joins a layer with its input; and the output.
    operations = [title for kind, title in kinds if kind == "operation"]
    assert operations.count("tanh") == 20
    assert operations.count("add") == 11 - 1  # the first layer joins inputs
    assert len(operations) <= 31
    # The weights of k and v are read by these alone; those of the rest of a layer are together.
    inputs = [title for kind, title in kinds if kind == "input"]
    assert inputs.count("2 inputs") == 10
    assert sorted(title for title in inputs if title != "2 inputs") == sorted(
        ["x", *(f"{name}{n}" for name in "kv" for n in range(10))]
    )
    assert found.left_out == count - len(operations) - 41


def test_arrows_of_a_large_program_grow_with_its_layers() -> None:
    """Without what joins a layer with its input, every layer would have arrows to all that follow."""
    ten, twenty = (len(dependences(deep(layers).graph).reads) for layers in (10, 20))
    assert twenty < 2.2 * ten


def test_everything_drawn_is_connected_as_in_the_program() -> None:
    """Whoever needs a tensor can be reached from it in the drawing."""
    prog = deep(10)
    found = dependences(prog.graph)
    following: dict[int, set[int]] = {n: set() for n in range(len(found.tensors))}
    for read in found.reads:
        following[read.start].add(read.end)
    (start,) = (n for n, tensor in enumerate(found.tensors) if tensor.title == "x")
    seen, ahead = {start}, [start]
    while ahead:
        more = following[ahead.pop()] - seen
        seen |= more
        ahead += more
    assert {tensor.kind for n, tensor in enumerate(found.tensors) if n not in seen} == {"input"}
