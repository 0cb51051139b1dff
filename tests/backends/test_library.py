"""XLA programs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tempo.backends.jax.library import Library, traceable

ONES, TWOS = np.ones(3, np.float32), np.full(3, 2, np.float32)


def shelf(path: Path, surroundings: str = "here") -> Library:
    return Library(path, jax.devices("cpu")[0], surroundings, "sources")


def compiled(library: Library, function: Any, *given: Any) -> tuple[Any, bool]:
    """A program, which is then kept; and whether it was there before."""
    program = library.compile(traceable(function).lower(*given))
    before = library.made[id(program)].kept
    assert library.keep(program) is not None
    return program, before


def test_programs_are_found_by_what_they_compute(tmp_path: Path) -> None:
    for before in (False, True, True):
        program, found = compiled(shelf(tmp_path), lambda a: jnp.sort(a)[::-1] * 2, ONES)
        assert found == before
        np.testing.assert_array_equal(program(np.array([1, 3, 2], np.float32)), [6, 4, 2])
    assert not compiled(shelf(tmp_path), lambda a: jnp.sort(a)[::-1] * 3, ONES)[1]
    assert not compiled(shelf(tmp_path, "elsewhere"), lambda a: jnp.sort(a)[::-1] * 2, ONES)[1]


def test_unused_arguments(tmp_path: Path) -> None:
    """JAX leaves them out, and what remains of these two is the same."""
    for function, expected in ((lambda a, b: 2 * a, 2), (lambda a, b: 2 * b, 4)):
        program, found = compiled(shelf(tmp_path), function, ONES, TWOS)
        assert not found
        np.testing.assert_array_equal(program(ONES, TWOS), [expected] * 3)


def test_names_of_arguments_and_results(tmp_path: Path) -> None:
    for given in ("a", "b"):
        program, found = compiled(shelf(tmp_path), lambda d: {f"of {n}": 2 * x for n, x in d.items()}, {given: ONES})
        assert not found
        np.testing.assert_array_equal(program({given: ONES})[f"of {given}"], [2, 2, 2])


@pytest.mark.parametrize("size", [10, 100_000])
def test_constants(size: int, tmp_path: Path) -> None:
    table = np.zeros(size, np.float32)
    for last in (1, 2):
        table[-2] = last
        program, found = compiled(shelf(tmp_path), lambda a: a + jnp.asarray(table.copy()).max(), ONES)
        assert not found
        np.testing.assert_array_equal(program(ONES), [1 + last] * 3)


def test_what_is_given_away(tmp_path: Path) -> None:
    for _ in range(2):
        library = shelf(tmp_path)
        program = library.compile(traceable(lambda a, b: (a + b, b), donate=(0,)).lower(ONES, ONES))
        library.keep(program)
        a, b = jnp.array(ONES), jnp.array(ONES)
        np.testing.assert_array_equal(program(a, b)[0], [2, 2, 2])
        assert (a.is_deleted(), b.is_deleted()) == (True, False)


def test_what_xla_cannot_write_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a random program."""

    def refuse(program: Any) -> Any:
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: `LessThan` is not serializable.")

    library = shelf(tmp_path)
    program = library.compile(traceable(lambda a: a + 1).lower(ONES))
    monkeypatch.setattr("jax.experimental.serialize_executable.serialize", refuse)
    assert library.keep(program) is None
    assert not list(tmp_path.iterdir())


def test_what_jax_has_loaded_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it would fail when it runs: functions are missing in it."""
    library = shelf(tmp_path)
    lowered = traceable(lambda a: jnp.sort(a)).lower(ONES)

    def found(self: Any, **options: Any) -> Any:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        return "loaded"

    monkeypatch.setattr(type(lowered), "compile", found)
    assert library.compile(lowered) == "loaded"
    assert library.keep("loaded") is None
    assert not list(tmp_path.iterdir())
