"""What the tests of checkpoints share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tempo.errors import ModelError, TempoError


@contextmanager
def fails(directory: Path, *lines: str, kind: type[TempoError] = ModelError) -> Iterator[None]:
    """Expect an error with exactly this message, in which DIR stands for the directory."""
    with pytest.raises(kind) as error:
        yield
    assert str(error.value).replace(str(directory), "DIR").split("\n") == list(lines)


def change_json(path: Path, **fields: Any) -> None:
    """Give fields of a JSON file other values; those that become ``...`` are removed."""
    values = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))
