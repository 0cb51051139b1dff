"""Fingerprints: the same for the same program, whoever builds it and when; another one for every difference."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.fingerprint import fingerprint, identity, numbered


def program(
    factor: float = 0.5,
    back: int = 1,
    name: str = "s",
    shape: Any = 3,
    dtype: Any = tp.float32,
    weights: Any = (1, 2, 3),
    function: Any = np.abs,
    output: str = "y",
) -> Any:
    with tp.Program("program") as prog:
        t, T = prog.dim("t")
        x = prog.input("x", shape, domain=t, dtype=dtype)
        s = prog.recurrent(name, shape, domain=t, dtype=dtype)
        s[t < back] = 0
        s[t] = factor * s[t - back] + x * np.asarray(weights, dtype)
        prog.output(output, tp.grad(tp.sum(s[T - 1]), x))
        prog.emit("host", tp.host(function, x, out=tp.spec(shape, dtype), sequence=t))
    return prog.graph


def test_the_same_program_twice() -> None:
    assert fingerprint(program()) == fingerprint(program())
    assert fingerprint(program(name="state")) == fingerprint(program())  # what a tensor is called says nothing


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": 0.25},
        {"back": 2},
        {"shape": (1, 3)},
        {"dtype": tp.float64},
        {"weights": (1, 2, 4)},
        {"function": np.square},
        {"output": "z"},
    ],
    ids=str,
)
def test_another_program(changes: dict[str, Any]) -> None:
    assert fingerprint(program(**changes)) != fingerprint(program())


def test_all_nodes_have_numbers() -> None:
    """Counted from the results on, not from when they were made."""
    first, second = program(), program()
    numbers = [list(numbered(graph).values()) for graph in (first, second)]
    assert numbers[0] == numbers[1] == list(range(len(first.nodes)))
    assert [n.op.name for n in numbered(first)] == [n.op.name for n in numbered(second)]


def test_another_process() -> None:
    code = (
        "from tempo.graph.fingerprint import fingerprint\n"
        "from tests.graph.test_fingerprint import program\n"
        "print(fingerprint(program()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == fingerprint(program())


# -- identity: what programs on disk are found by ----------------------------------------------------------------------


def trained(rate: Any = 0.5, steps: Any = (0, 3)) -> Any:
    with tp.Program("trained") as prog:
        i, I = prog.dim("i")
        w = prog.state("w", np.ones(3), over=i)
        w.next = w - rate * tp.grad(tp.sum(tp.square(w.space[slice(*steps)])), w)
        prog.output("w", w[I])
    return prog.graph


def test_gradients_have_names_of_their_own_in_every_process() -> None:
    """Those of Tempo count what was made before."""
    first, again = trained(), trained()
    assert {node.name for node in first.nodes} != {node.name for node in again.nodes}
    assert identity(first) == identity(again) is not None


@pytest.mark.parametrize("changes", [{"rate": 0.25}, {"rate": np.full(3, 0.5)}, {"steps": (0, 2)}], ids=str)
def test_another_identity(changes: dict[str, Any]) -> None:
    assert identity(trained(**changes)) != identity(trained())


def test_python_functions_have_no_identity() -> None:
    assert identity(program()) is None
