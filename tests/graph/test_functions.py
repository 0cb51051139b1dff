"""Digests of Python functions: the same for the same text, another one where a user would call it another function."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from tempo.graph.functions import digest_of

TEXT = """
def helper(x): return x + {number}

def itself(x):
    return itself(x - 1) if x > {number} else x

class Called:
    def __call__(self, x): return x * {number}
    def method(self, x): return x * {number}

def holding(value):
    def function(x):
        return x + value
    return function

functions = dict(
    plain=lambda x: x in {{"a", "b", {number}}},
    calling=lambda x: helper(x),
    inner=lambda x: [helper(y) for y in x],
    itself=itself,
    called=Called(),
    method=Called().method,
    default=lambda x, y={number}: y,
    holding=holding({number}),
    array=holding(np.array([1, {number}])),
    partial=functools.partial(lambda x, y: x, y={number}),
    jitted=jax.jit(lambda x: x + {number}),
)
"""

PURE_ONLY = ("default", "holding", "array", "partial")


def written(number: int, lines: int = 0) -> Any:
    surroundings = {"functools": functools, "np": np, "jax": jax, "__name__": "written"}
    exec("\n" * lines + TEXT.format(number=number), surroundings)
    return surroundings["functions"]


@pytest.mark.parametrize("name", written(1))
def test_the_same_text_elsewhere_in_a_file(name: str) -> None:
    assert digest_of(written(1)[name], pure=True) == digest_of(written(1, lines=7)[name], pure=True)


@pytest.mark.parametrize("name", written(1))
def test_another_number(name: str) -> None:
    first, second = written(1)[name], written(2)[name]
    assert digest_of(first, pure=True) != digest_of(second, pure=True)
    # What a function holds that is not pure, it may have changed itself.
    assert (digest_of(first, pure=False) == digest_of(second, pure=False)) == (name in PURE_ONLY)


def test_another_process() -> None:
    """Where the elements of sets come in another order."""
    text = f"""
import functools, jax, numpy as np
from tempo.graph.functions import digest_of
exec({TEXT.format(number=1)!r})
for f in functions.values(): print(digest_of(f, pure=True))
"""
    here = {name: digest_of(f, pure=True) for name, f in written(1).items()}
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", text], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert done.stdout.split() == list(here.values()), done.stderr
