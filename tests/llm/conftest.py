"""Checkpoints that are written once, and copies of them to break."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.llm.checkpoints import write_checkpoint

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """``checkpoint(kind, dtype, max_shard_size)``: a directory, and the transformers model that was saved there."""
    written: dict[Any, tuple[Path, Any]] = {}

    def get(kind: str, dtype: str = "float32", max_shard_size: str = "1GB") -> tuple[Path, Any]:
        key = (kind, dtype, max_shard_size)
        if key not in written:
            directory = tmp_path_factory.mktemp(kind)
            written[key] = directory, write_checkpoint(directory, kind, DTYPES[dtype], max_shard_size)
        return written[key]

    return get


@pytest.fixture
def copy(checkpoint: Callable[..., tuple[Path, Any]], tmp_path: Path) -> Callable[..., Path]:
    """A checkpoint that a test may change."""

    def get(*args: str) -> Path:
        return Path(shutil.copytree(checkpoint(*args)[0], tmp_path / "checkpoint"))

    return get
