"""Large arrays are sent in pieces, and are the same when they are there."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import tempo as tp
from tempo.backends.jax import transfer


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device to which arrays of 64 bytes and more are sent in pieces: how many pieces, for each."""
    found: list[int] = []
    joined = transfer._joined

    def counted(pieces: Any, shape: tuple[int, ...]) -> Any:
        found.append(len(pieces))
        return joined(pieces, shape)

    monkeypatch.setattr(transfer, "LEAST", 64)
    monkeypatch.setattr(transfer, "_most", lambda device: 4096)
    monkeypatch.setattr(transfer, "_joined", counted)
    return found


@pytest.mark.parametrize("shape", ((16,), (3, 7), (1, 2, 50), (33,), (1024,)))
@pytest.mark.parametrize("dtype", (np.float32, np.int32, ml_dtypes.bfloat16, np.bool_))
def test_pieces(shape: tuple[int, ...], dtype: Any, sent: list[int]) -> None:
    array = (np.arange(np.prod(shape)) % 5).reshape(shape).astype(dtype)
    there = transfer.put(array, jax.devices()[0])
    assert there.dtype == array.dtype
    np.testing.assert_array_equal(np.asarray(there), array)
    assert sent == ([8] if 64 <= array.nbytes <= 4096 else [])


def test_what_goes_in_one_piece(sent: list[int]) -> None:
    device = jax.devices()[0]
    for array in (np.ones((6, 6), np.float32).T[:, ::2], np.ones(2000, np.float32), np.float32(1), jax.numpy.ones(99)):
        np.testing.assert_array_equal(np.asarray(transfer.put(array, device)), array)
    assert sent == []


def test_a_cpu_is_sent_nothing() -> None:
    assert transfer._most(jax.devices("cpu")[0]) == 0


def test_inputs_of_programs(sent: list[int]) -> None:
    with tp.Program("double") as prog:
        b, B = prog.dim("b")
        x = prog.input("x", 5, b)
        prog.output("y", 2 * x)
    run = prog.compile({B: 20})
    x = np.arange(100, dtype=np.float32).reshape(20, 5)
    np.testing.assert_array_equal(run(x=x).y, 2 * x)
    assert sent == [8]


def test_data_of_recursive_models(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacked in pieces, with what fills them up; and, if there are few, not."""
    monkeypatch.setattr(transfer, "_most", lambda device: 2**20)
    double = tp.cell(lambda x: 2 * x, name="double")
    data = [np.full(4, n, np.float64) for n in range(11)]
    batched = tp.batch(lambda x: double(double(x)))
    np.testing.assert_array_equal(batched(data), [4 * x for x in data])
    assert sent == [8]
    np.testing.assert_array_equal(batched(data[:9]), [4 * x for x in data[:9]])
    assert sent == [8, 8]
    assert batched.statistics.compiled == 0
    np.testing.assert_array_equal(tp.batch(lambda x: double(double(x)))(data[:3]), [4 * x for x in data[:3]])
    assert sent == [8, 8]


def test_data_in_the_order_of_levels(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_most", lambda device: 2**20)
    step = tp.cell(lambda h, x: 2 * h + x, name="step")

    def model(xs: Any) -> Any:
        h = np.zeros(4, np.float32)
        for x in xs:
            h = step(h, x)
        return h

    rng = np.random.default_rng(0)
    data = [list(rng.integers(9, size=(length, 4)).astype(np.float32)) for length in (5, 9, 2)]
    expected = [sum(2.0 ** (len(xs) - 1 - n) * x for n, x in enumerate(xs)) for xs in data]
    np.testing.assert_array_equal(tp.batch(model)(data), expected)
    assert 8 in sent


def test_what_is_stacked_does_not_change_when_more_is(sent: list[int]) -> None:
    """Though it is stacked in the same memory."""
    rows = [[np.full(4, n, np.float32) for n in range(start, start + 9)] for start in (0, 10)]
    first, second = (transfer.put_stacked(some, np.dtype(np.float32), jax.devices()[0]) for some in rows)
    np.testing.assert_array_equal(first, rows[0])
    np.testing.assert_array_equal(second, rows[1])
    assert transfer.put_stacked(rows[0][:3], np.dtype(np.float32), jax.devices()[0]) is None
    assert sent == [8, 8]


def test_inputs_that_are_lists(sent: list[int]) -> None:
    """Of arrays of one shape and type: stacked by threads. Anything else is what NumPy makes of it."""
    with tp.Program("listed") as prog:
        b, B = prog.dim("b")
        x = prog.input("x", 4, b)
        prog.output("y", 2 * x)
    run = prog.compile({B: 9})
    rows = [np.full(4, n, np.float32) for n in range(9)]
    np.testing.assert_array_equal(run(x=rows).y, [2 * row for row in rows])
    np.testing.assert_array_equal(run(x=tuple(rows)).y, [2 * row for row in rows])
    assert sent == [8, 8]
    for others in (
        [row.astype(np.float64) for row in rows],
        [*rows[:8], rows[8].astype(np.int32)],
        [*rows[:8], [8, 8, 8, 8]],
        [row.tolist() for row in rows],
    ):
        np.testing.assert_array_equal(run(x=others).y, [2 * row for row in rows])
    with pytest.raises(tp.TempoError, match=r"input 'x' has shape \(10, 4\), expected \(9, 4\)"):
        run(x=[*rows, rows[0]])
    with pytest.raises(tp.TempoError, match="input 'x'"):
        run(x=[*rows[:8], np.zeros(3, np.float32)])
    with pytest.raises(tp.TempoError, match="input 'x'"):
        run(x=[])


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    """Twice, with other numbers: what was sent is what was given."""
    device = jax.devices("gpu")[0]
    assert transfer._most(device) > transfer.LEAST
    with tp.Program("sums") as prog:
        b, B = prog.dim("b")
        x = prog.input("x", 3 * 2**20, b)
        prog.output("sum", tp.sum(x))
        prog.output("last", x.space[-1])
    run = prog.compile({B: 2}, device="gpu")
    for seed in range(2):
        x = np.random.default_rng(seed).integers(5, size=(2, 3 * 2**20)).astype(np.float32)
        found = run(x=x)
        np.testing.assert_array_equal(found.sum, x.sum(1, dtype=np.float64))
        np.testing.assert_array_equal(found.last, x[:, -1])
    data = [np.full((2**18,), n, np.float32) for n in range(20)]
    double = tp.cell(lambda x: 2 * x, name="double")
    np.testing.assert_array_equal([x[7] for x in tp.batch(lambda x: double(x))(data)], [2 * x[7] for x in data])
