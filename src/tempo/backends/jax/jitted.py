"""XLA programs within ``jax.disable_jit()``, which is about a user's own functions: what Tempo makes is compiled in any
case. (JAX would run our loops in Python while they are traced, and refuses to start what was compiled before.)"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


def is_disabled() -> bool:
    return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def enabled() -> contextlib.AbstractContextManager[Any]:
    """To ask first takes 0.2 us, to set what is set already 2."""
    return jax.disable_jit(False) if is_disabled() else contextlib.nullcontext()


def jitted(function: Callable[Arguments, Found]) -> Callable[Arguments, Found]:
    """A function that is run with compilation."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
        with enabled():
            return function(*args, **kwargs)

    return run
