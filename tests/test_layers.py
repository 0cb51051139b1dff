"""Data flows one way: what a package may import when it is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tempo

ROOT = Path(tempo.__file__).parent

# Each imports from those before it, and from the frontend.
LAYERS = ["symbolic", "graph", "ops", "autodiff", "analysis", "passes", "schedule", "backends", "report", "runtime"]
FRONTEND = {
    *[
        "copying",
        "declared",
        "dtypes",
        "errors",
        "given",
        "mistakes",
        "random",
        "reference",
        "source",
        "temporal",
        "tensor",
    ]
}

# Written in the public API, which ``import tempo as tp`` gives, and in those before them.
LIBRARIES = ["nn", "optim", "rl", "llm"]
PUBLIC = {"", "errors"}
# Which type a name stands for has no public function yet.
EXCEPTIONS = {("llm/arguments.py", "dtypes")}


def imported(file: Path) -> Iterator[str]:
    """The packages of Tempo that a file imports when it is imported itself; the public API is the empty name."""
    for statement in ast.parse(file.read_text()).body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            is_root = statement.module == "tempo"
            names = [f"{statement.module}.{alias.name}" if is_root else statement.module for alias in statement.names]
        else:
            continue
        for name in names:
            first, *inside = name.split(".")
            if first == "tempo":
                yield inside[0] if inside else ""


def imports(package: str) -> set[tuple[str, str]]:
    """Files of a package with what they import."""
    files = (ROOT / package).rglob("*.py")
    return {(str(file.relative_to(ROOT)), name) for file in files for name in imported(file)}


@pytest.mark.parametrize("package", LAYERS)
def test_nothing_imports_from_above(package: str) -> None:
    allowed = FRONTEND.union(LAYERS[: LAYERS.index(package) + 1])
    assert not {found for found in imports(package) if found[1] not in allowed}


@pytest.mark.parametrize("package", LIBRARIES)
def test_libraries_are_written_in_the_public_api(package: str) -> None:
    allowed = PUBLIC.union(LIBRARIES[: LIBRARIES.index(package) + 1])
    assert not {found for found in imports(package) if found[1] not in allowed} - EXCEPTIONS
