"""What a caller gives, as what it should be."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import Any

from tempo.dtypes import as_dtype, float64, is_float
from tempo.errors import DtypeError, ModelError

PROMPTS = "a prompt is a text or a list of tokens; several prompts are a list of them"


def listed(prompts: Any) -> Any:
    """A prompt, or several: a text as it is, arrays of whatever library as lists."""
    if isinstance(prompts, str):
        return prompts
    found = prompts.tolist() if hasattr(prompts, "tolist") else prompts
    if isinstance(found, bytes | bytearray) or not isinstance(found, Sequence):
        raise ModelError(f"{reprlib.repr(prompts)} is not a prompt", hint=PROMPTS)
    return found


def as_integer(value: Any, name: str, hint: str = "") -> int:
    """An integer, of whatever library; ``name`` says what it is for."""
    try:
        return operator.index(value)
    except TypeError:
        raise ModelError(f"{name} {value!r}: expected an integer", hint=hint) from None


def as_count(value: Any) -> int:
    """How many tokens to generate at most."""
    found = as_integer(value, "max_new_tokens =")
    if found < 1:
        raise ModelError(f"max_new_tokens = {value}: at least one token is generated")
    return found


def as_float(dtype: Any) -> Any:
    """A dtype that a model can be computed in."""
    try:
        found = as_dtype(dtype)
    except DtypeError:
        found = None
    if found is None or not is_float(found) or found == float64:
        raise ModelError(
            f"dtype = {dtype!r}: a model is not computed in that", hint="take float32, bfloat16 or float16"
        )
    return found
