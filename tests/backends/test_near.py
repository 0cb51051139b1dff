"""Results that are handed over to the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tempo.backends.jax import near


def kinds(found: Any) -> list[str]:
    return [array.sharding.memory_kind for array in found]


def test_results_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any) -> Any:
        return x + 1, near.handed_over(2 * x)

    x = jnp.arange(3.0)
    own = x.sharding.memory_kind
    assert kinds(jax.jit(function)(x)) == [own, own]
    assert near.is_handed_over(x)
    # As on a GPU: this platform has such memory, too, where nobody needs it.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    stays, goes = jax.jit(lambda x: function(x))(x)
    assert kinds([stays, goes]) == [own, near.PINNED]
    assert [near.is_handed_over(array) for array in (stays, goes)] == [False, True]
    np.testing.assert_array_equal(goes, [0, 2, 4])
    # But not where a program is for the CPU, whatever else there is; nor without such memory.
    with jax.default_device(jax.devices("cpu")[0]):
        assert kinds(jax.jit(lambda x: function(x))(x)) == [own, own]
    monkeypatch.setattr(near, "_has_pinned", lambda device: False)
    assert kinds(jax.jit(lambda x: function(x))(x)) == [own, own]


def test_devices_with_such_memory() -> None:
    def device(platform: str, *memories: str) -> Any:
        found = [SimpleNamespace(kind=kind) for kind in memories]
        return type("Device", (), {"platform": platform, "addressable_memories": lambda self: found})()

    assert near.has_pinned(device("gpu", "device", "pinned_host"))
    assert not near.has_pinned(device("metal", "device"))
    assert not near.has_pinned(device("cpu", "device", "pinned_host"))
