"""The memory of stores on the host: pieces that a device has sent are the same to a reader as one array."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from tempo.backends.jax.host_arrays import Box, HostArray, OneArray, Pieces
from tempo.backends.jax.host_stores import pinned, pinned_bytes

PINNED = SingleDeviceSharding(jax.devices("cpu")[0], memory_kind="pinned_host")


def block(*shape: int, first: float = 1.0) -> Any:
    return jax.numpy.arange(np.prod(shape), dtype=np.float32).reshape(shape) + first


def put(store: HostArray, box: Box, array: Any) -> None:
    store.write(box, store.fetched(array))


def of_steps(count: int) -> Pieces:
    return Pieces((count, 2), 1, np.dtype("float32"), PINNED)


def test_a_read_of_what_was_written_is_the_piece_itself() -> None:
    store = of_steps(6)
    put(store, ((0, 3),), block(3, 2))
    put(store, ((3, 6),), block(3, 2, first=7.0))
    found = store.read(((3, 6),))
    assert found.sharding.memory_kind == "pinned_host"
    assert found is store.read(((3, 6),))
    np.testing.assert_array_equal(found, [[7, 8], [9, 10], [11, 12]])


def test_other_reads_are_put_together() -> None:
    """Across pieces, a part of one, where nothing was written, and outside of the store."""
    store = of_steps(6)
    put(store, ((0, 2),), block(2, 2))
    put(store, ((2, 4),), block(2, 2, first=5.0))
    np.testing.assert_array_equal(store.read(((1, 3),)), [[3, 4], [5, 6]])
    np.testing.assert_array_equal(store.read(((2, 3),)), [[5, 6]])
    np.testing.assert_array_equal(store.read(((3, 6),)), [[7, 8], [0, 0], [0, 0]])
    np.testing.assert_array_equal(store.read(((-1, 1),)), [[0, 0], [1, 2]])
    np.testing.assert_array_equal(store.read(((5, 8),)), np.zeros((3, 2)))
    np.testing.assert_array_equal(store.read(((7, 8),)), np.zeros((1, 2)))


def test_what_is_written_later_is_what_is_read() -> None:
    """A piece that has lost some of its points is not read as a whole, and is gone without any."""
    store = of_steps(4)
    put(store, ((0, 4),), block(4, 2))
    put(store, ((1, 3),), block(2, 2, first=20.0))
    np.testing.assert_array_equal(store.read(((0, 4),)), [[1, 2], [20, 21], [22, 23], [7, 8]])
    put(store, ((0, 2),), block(2, 2, first=30.0))
    np.testing.assert_array_equal(store.read(((1, 3),)), [[32, 33], [22, 23]])
    assert len(store.pieces) == 3
    put(store, ((0, 4),), block(4, 2, first=40.0))
    assert [piece.box for piece in store.pieces.values()] == [((0, 4),)]
    assert list(store.numbers) == [((0, 4),)]
    np.testing.assert_array_equal(store.read(((0, 4),)), block(4, 2, first=40.0))


def test_the_next_iteration_replaces_the_pieces_of_the_last() -> None:
    store = of_steps(6)
    for iteration in range(3):
        for start in (4, 2, 0):
            put(store, ((start, start + 2),), block(2, 2, first=10.0 * iteration + start))
    assert len(store.pieces) == 3
    np.testing.assert_array_equal(store.read(((2, 4),)), block(2, 2, first=22.0))


@pytest.mark.parametrize("seed", range(20))
def test_random_writes_and_reads(seed: int) -> None:
    """Blocks of two dims, of any sizes, each written and read anywhere: the same as of one array."""
    random = np.random.default_rng(seed)
    shape = (5, 7, 2)
    pieces = Pieces(shape, 2, np.dtype("int32"), PINNED)
    one = OneArray(np.zeros(shape, np.int32), copies=True)

    def box(beyond: int) -> Box:
        starts = [int(random.integers(-beyond, size)) for size in shape[:2]]
        return tuple((s, int(random.integers(s + 1, n + 1 + beyond))) for s, n in zip(starts, shape, strict=False))

    for _ in range(40):
        place = box(0)
        array = jax.numpy.asarray(random.integers(100, size=(*(b - a for a, b in place), 2)), "int32")
        put(pieces, place, array)
        put(one, place, array)
        for wanted in (place, box(0), box(2)):
            np.testing.assert_array_equal(pieces.read(wanted), one.read(wanted))
    assert sum(piece.left for piece in pieces.pieces.values()) == (pieces.latest >= 0).sum()


def test_what_a_cpu_reads_is_not_written_into_later() -> None:
    store = OneArray(np.zeros((4, 2), np.float32), copies=True)
    found = store.read(((0, 2),))
    put(store, ((0, 2),), block(2, 2))
    np.testing.assert_array_equal(found, np.zeros((2, 2)))


def test_a_cpu_has_no_use_for_pinned_memory() -> None:
    assert pinned(jax.devices("cpu")[0]) is None


def test_xla_pins_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", raising=False)
    assert pinned_bytes() == 56 * 2**30
    monkeypatch.setenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "16")
    assert pinned_bytes() == 14 * 2**30
