"""The files of a Hugging Face checkpoint: JSON with checked fields, and safetensors mapped into memory."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tempo.errors import ModelError

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]

# What safetensors calls the element types.
_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}

_DOWNLOAD = "download it again; a checkout without Git LFS has small text files in place of the real ones"


class Fields:
    """The fields of a JSON object, each read as what it should be. A field that is null counts as not there."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def size(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if type(value) is not int or value <= 0:
            raise self.unexpected(name, "a positive integer")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if type(value) is not int or value < 0:
            raise self.unexpected(name, "a non-negative integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.unexpected(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.unexpected(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.unexpected(name, "a text")
        return value

    def tokens(self, name: str) -> tuple[int, ...]:
        """Token ids, of which there may be none, one or a list."""
        value = self._get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise self.unexpected(name, "a token id or a list of them")
        return tuple(ids)

    def inside(self, name: str) -> Fields:
        """The fields of an object in a field; none where there is no such object."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.unexpected(name, "an object")
        return Fields(self.path, value, f"{self.prefix}{name}.")

    def unexpected(self, name: str, expected: str) -> ModelError:
        return ModelError(
            f"field '{self.prefix}{name}' of '{self.path}' is {json.dumps(self.values.get(name))}, expected {expected}"
        )

    def unsupported(self, name: str, hint: str) -> ModelError:
        value = json.dumps(self.values[name])
        return ModelError(f"'{self.path}' has {self.prefix}{name} = {value}, which is not supported", hint=hint)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None and default is None:
            raise ModelError(f"'{self.path}' has no field '{self.prefix}{name}'")
        return default if value is None else value


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"'{path}' is not UTF-8: {error}", hint=_DOWNLOAD) from None


def read_fields(path: Path) -> Fields:
    """The fields of a JSON file."""
    if not path.is_file():
        raise ModelError(
            f"there is no file '{path}'",
            hint="name the directory of a checkpoint as Hugging Face transformers saves it; "
            "hf download NAME --local-dir DIRECTORY makes one",
        )
    text = read_text(path)
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ModelError(f"'{path}' is not JSON: {error}", hint=_DOWNLOAD) from None
    if not isinstance(values, dict):
        raise ModelError(f"'{path}' is not a JSON object")
    return Fields(path, values)


def map_safetensors(path: Path) -> dict[str, Array]:
    """The arrays of a safetensors file by name, read-only; the system reads a page of it when somebody looks there.

    (safetensors' own loader copies every NumPy array that it gives.)
    """
    with open(path, "rb") as file:
        file_size = os.fstat(file.fileno()).st_size
        header_size = int.from_bytes(file.read(8), "little")
        if not 2 <= header_size <= file_size - 8:
            raise ModelError(f"'{path}' is not a safetensors file, or only the beginning of one", hint=_DOWNLOAD)
        try:
            header = json.loads(file.read(header_size))
        except ValueError:
            header = None
        if not isinstance(header, dict):
            raise ModelError(f"'{path}' is not a safetensors file: its header is not a JSON object", hint=_DOWNLOAD)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header.pop("__metadata__", None)
    return {name: _array(path, data, 8 + header_size, name, entry) for name, entry in header.items()}


def _array(path: Path, data: mmap.mmap, start: int, name: str, entry: Any) -> Array:
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(first), int(end)]} if kind in _DTYPES and all(
            type(size) is int and size >= 0 for size in shape
        ):
            dtype = _DTYPES[kind]
        case _:
            raise ModelError(
                f"tensor '{name}' in '{path}' has an entry that cannot be read: {json.dumps(entry)}",
                hint=f"element types are {', '.join(_DTYPES)}",
            )
    if end - first != math.prod(shape) * dtype.itemsize or first < 0:
        raise ModelError(
            f"tensor '{name}' in '{path}' has shape {tuple(shape)} of {dtype.name}, "
            f"which does not fit its place, bytes {first} to {end}",
            hint=_DOWNLOAD,
        )
    if start + end > len(data):
        raise ModelError(
            f"'{path}' is truncated: tensor '{name}' ends at byte {start + end}, the file at byte {len(data)}",
            hint=_DOWNLOAD,
        )
    return np.ndarray(tuple(shape), dtype, buffer=data, offset=start + first)
