"""Fingerprints: the same for the same program, whoever builds it and when; another one for every difference."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo.graph.fingerprint import fingerprint, numbered


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
