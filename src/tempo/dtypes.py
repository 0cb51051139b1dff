"""Element types and their promotion.

NumPy's rules, except that nothing becomes float64 (or int64) unless the user said so: an integer meeting a
float takes the float's type, and Python numbers take the type of the tensor they meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from tempo.errors import DtypeError

DType = np.dtype[Any]
DTypeLike = Any

bool_: DType = np.dtype(np.bool_)
int8: DType = np.dtype(np.int8)
int16: DType = np.dtype(np.int16)
int32: DType = np.dtype(np.int32)
int64: DType = np.dtype(np.int64)
uint8: DType = np.dtype(np.uint8)
uint16: DType = np.dtype(np.uint16)
uint32: DType = np.dtype(np.uint32)
uint64: DType = np.dtype(np.uint64)
float16: DType = np.dtype(np.float16)
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
float32: DType = np.dtype(np.float32)
float64: DType = np.dtype(np.float64)

FLOATS = (float16, bfloat16, float32, float64)
SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
ALL = (bool_, *SIGNED, *UNSIGNED, *FLOATS)

DEFAULT_FLOAT = float32
DEFAULT_INT = int32


def as_dtype(dtype: DTypeLike) -> DType:
    """A supported dtype from a dtype, a NumPy scalar type, a name, or Python's float, int, bool."""
    if dtype is float:
        return DEFAULT_FLOAT
    if dtype is int:
        return DEFAULT_INT
    try:
        result = bfloat16 if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)
    except TypeError:
        result = np.dtype(object)
    # None means float64 to NumPy, which nobody who wrote it meant.
    if dtype is None or result not in ALL:
        raise DtypeError(
            f"{dtype!r} is not a dtype of Tempo",
            hint=f"the dtypes are {', '.join(d.name for d in ALL)}",
        )
    return result


def spelling(dtype: DType) -> str:
    """A dtype as a user writes it."""
    return "tp.bool_" if dtype == bool_ else f"tp.{dtype.name}"


def is_float(dtype: DType) -> bool:
    return dtype in FLOATS


def is_integer(dtype: DType) -> bool:
    return dtype in SIGNED or dtype in UNSIGNED


def is_bool(dtype: DType) -> bool:
    return dtype == bool_


def promote(a: DType, b: DType) -> DType:
    """The type that holds both."""
    if a == b or is_bool(b):
        return a
    if is_bool(a):
        return b
    if is_float(a) != is_float(b):
        return a if is_float(a) else b
    if is_float(a):
        if a.itemsize == b.itemsize:  # float16 with bfloat16: neither holds the other
            return float32
        return a if a.itemsize > b.itemsize else b
    if (a in SIGNED) == (b in SIGNED):
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a in SIGNED else (b, a)
    for candidate in SIGNED:
        if candidate.itemsize > unsigned.itemsize and candidate.itemsize >= signed.itemsize:
            return candidate
    raise DtypeError(
        f"{a.name} and {b.name} have no common integer type",
        hint="cast one of them with .astype(...)",
    )


def promote_all(dtypes: Iterable[DType], scalars: Iterable[bool | int | float] = ()) -> DType:
    """The common type of tensors and of Python numbers, which only decide the *kind* of the result."""
    result: DType | None = None
    for dtype in dtypes:
        result = dtype if result is None else promote(result, dtype)
    for scalar in scalars:
        kind = scalar_dtype(scalar)
        if result is None or _rank(kind) > _rank(result):
            result = kind
    assert result is not None
    return result


def scalar_dtype(scalar: bool | int | float) -> DType:
    if isinstance(scalar, bool):
        return bool_
    return DEFAULT_INT if isinstance(scalar, int) else DEFAULT_FLOAT


def _rank(dtype: DType) -> int:
    return 2 if is_float(dtype) else 1 if is_integer(dtype) else 0


def float_of(dtype: DType) -> DType:
    """The float type in which a function such as exp of this type is computed."""
    return dtype if is_float(dtype) else DEFAULT_FLOAT


def accumulator_of(dtype: DType) -> DType:
    """The type in which sums and products of many elements of this type are kept."""
    return float32 if dtype in (float16, bfloat16) else dtype


def lowest(dtype: DType) -> Any:
    """The value that none of this type is below."""
    return False if is_bool(dtype) else -np.inf if is_float(dtype) else np.iinfo(dtype).min


def highest(dtype: DType) -> Any:
    """The value that none of this type is above (nan apart)."""
    return True if is_bool(dtype) else np.inf if is_float(dtype) else np.iinfo(dtype).max


def cast(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """What XLA computes: numbers beyond the ends of an integer type become its ends, and NaN becomes 0. (What NumPy
    makes of them depends on the machine.)"""
    if not (is_float(array.dtype) and is_integer(dtype)):
        return array.astype(dtype)
    wide, ends = array.astype(float64), np.iinfo(dtype)
    # Of 64 bits, the greatest integer is no float: the next one is the first that is too great.
    above, below = wide >= float(ends.max), wide <= ends.min
    inside = np.where(above | below | np.isnan(wide), 0, wide).astype(dtype)
    return np.where(above, dtype.type(ends.max), np.where(below, dtype.type(ends.min), inside))
