"""How calls are cut into launches, on a CPU and on a GPU, and how few kernels that takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tempo.batching.widths import _cut, chunk_widths, is_worth_a_search, launches, room, widest

from . import models


def test_launches_on_a_cpu() -> None:
    work = 6.5e5  # a step of 256 units: what a launch costs beside is that of 31 lanes
    assert _cut(1, work, "cpu") == ((1, 1),)
    assert _cut(100, work, "cpu") == ((128, 100),)
    assert _cut(128, work, "cpu") == ((128, 128),)
    assert _cut(165, work, "cpu") == ((128, 128), (48, 37))
    # Where lanes cost nothing, there are few launches.
    assert _cut(165, 1.0, "cpu") == ((256, 165),)
    assert _cut(2000, 1.0, "cpu") == ((1024, 1024), (1024, 976))


def test_launches_on_a_gpu() -> None:
    assert _cut(1, 6.5e5, "gpu") == ((16, 1),)
    assert _cut(165, 6.5e5, "gpu") == ((256, 165),)
    assert _cut(300, 7.3e6, "gpu") == ((256, 256), (64, 44))
    # A call that is as much work as a launch costs: no lane too many.
    assert _cut(5, 2e9, "gpu") == ((4, 4), (1, 1))
    assert _cut(58, 2e9, "gpu") == ((16, 16), (16, 16), (16, 16), (4, 4), (4, 4), (1, 1), (1, 1))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("work", [1.0, 1e5, 1e7, 1e10])
def test_launches_make_every_call(work: float, platform: str) -> None:
    for count in range(1, 3000, 7):
        cut = _cut(count, work, platform)
        assert sum(calls for _, calls in cut) == count
        assert all(0 < calls <= width for width, calls in cut)
        # Only the last has padding: results that others wrote stay.
        assert all(calls == width for width, calls in cut[:-1])


def test_launches_that_fit_a_cache() -> None:
    """Of calls with large arguments and results, fewer are made at once on a CPU."""
    matrices = 3 * 128 * 128 * 4
    assert widest(matrices) == 10
    assert widest(2**30) == 1
    assert launches(40, 1e7, matrices) == ((8, 8),) * 5
    assert launches(3, 1e7, 2**30) == ((1, 1),) * 3
    assert launches(40, 1e7, 1024) == ((32, 32), (8, 8))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_gpu_has_no_such_cache() -> None:
    assert launches(40, 1e7, 3 * 128 * 128 * 4) == launches(40, 1e7, 1) == ((64, 40),)


def test_widths_of_a_forests_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch costs a GPU as much as hundreds of lanes, unless a lane is much work; a turn of a CPU's loop, a few."""
    matrices = 3 * 128 * 128 * 4
    assert chunk_widths(1e6, 1024) == ((128, 64, 32, 16, 8, 4), 4)
    assert chunk_widths(1e6, matrices) == ((8, 4), 4)
    assert chunk_widths(1e6, 2**30) == ((4,), 4)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert chunk_widths(1e6, matrices) == ((1024, 256, 64, 16), 300)
    assert chunk_widths(3e9, 1024) == ((64, 16, 4, 1), 0.1)


def test_room_is_for_a_quarter_more_and_then_for_twice_as_many() -> None:
    assert room(100, 0, least=64) == 128
    assert room(110, 0, least=64) == 256
    assert room(120, 128, least=64) == 128
    assert room(130, 128, least=64) == 512
    assert room(3, 0, least=64) == 64


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as they are made for a GPU: few widths, and loops of several launches at a time."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@pytest.mark.usefixtures("as_on_a_gpu")
def test_kernels_for_a_gpu() -> None:
    trees = models.trees(20, most=30)
    batched = tp.batch(models.TreeLSTM(4))
    together, alone = batched(trees), batched.one_by_one(trees)
    for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert {run_width for *_, run_width in _widths(batched)} <= {16, 64, 256}
    assert batched.statistics.dispatches < batched.statistics.launches
    before = batched.programs
    for seed in range(1, 6):
        batched(models.trees(20, most=30, seed=seed))
    assert batched.programs - before <= 2


def _widths(batched: Any) -> list[tuple[Any, int]]:
    return [(key[0], key[1]) for step in batched._kernels.programs for key in step]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_gradients_for_a_gpu() -> None:
    """Launches that fill a turn of a loop up are made again, and must not count twice."""
    data = [(tree, n % 3) for n, tree in enumerate(models.trees(12, most=20))]
    batched = tp.batch(models.TreeLoss(4))
    loss, gradients = batched.value_and_grad(data)
    each = [batched.value_and_grad([one]) for one in data]
    assert loss == pytest.approx(np.mean([value for value, _ in each]), rel=1e-5)
    for name, gradient in gradients.items():
        expected = np.mean([np.asarray(found[name]) for _, found in each], 0)
        np.testing.assert_allclose(gradient, expected, atol=1e-6, err_msg=name)


def test_lanes_of_padding_have_no_gradient() -> None:
    """Behind a launch's rows there may be anything: here what an earlier mini-batch has left, infinities."""

    class Step(nn.Module):
        def __init__(self) -> None:
            self.of_x = nn.Linear(3, 3)
            self.of_h = nn.Linear(3, 3)

        def __call__(self, x: Any, h: Any) -> Any:
            return self.of_x(x) + self.of_h(h)

    class Model(nn.Module):
        def __init__(self) -> None:
            self.step = Step()

        def __call__(self, xs: Any) -> Any:
            h: Any = np.zeros(3, np.float32)
            for x in xs:
                h = self.step(x, h)
            return h[0] * h[1]

    data = list(np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32))  # 5 calls are a launch of 6 lanes
    batched, fresh = tp.batch(Model()), tp.batch(Model())
    batched([np.full((2, 3), np.inf, np.float32)] * 40)
    loss, gradients = batched.value_and_grad(data)
    expected, others = fresh.value_and_grad(data)
    assert loss == pytest.approx(expected)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, others[name], rtol=1e-6, err_msg=name)


def test_cells_of_one_form_share_kernels() -> None:
    class Two(nn.Module):
        def __init__(self, sizes: tuple[int, int]) -> None:
            self.first = nn.Linear(3, sizes[0])
            self.second = nn.Linear(3, sizes[1])

        def __call__(self, x: Any) -> Any:
            return self.first(x), self.second(x)

    x = np.arange(3, dtype=np.float32)
    same, other = tp.batch(Two((3, 3))), tp.batch(Two((3, 4)))
    ((a, b),) = same([x])
    ((c, d),) = same.one_by_one([x])
    np.testing.assert_allclose([a, b], [c, d], rtol=1e-6)
    assert not np.allclose(a, b)
    other([x])
    assert (same.programs, other.programs) == (1, 2)


def test_a_constant_is_part_of_a_form() -> None:
    once, twice = tp.cell(lambda x: x * 1.0, name="once"), tp.cell(lambda x: x * 2.0, name="twice")
    assert tp.batch(lambda x: (once(x), twice(x)))([3.0]) == [(3.0, 6.0)]


def test_another_process_finds_what_was_compiled(tmp_path: Path) -> None:
    script = """
import jax, numpy, tempo as tp
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
jax.jit(lambda x: x + 1)(1)  # JAX decides at its first compilation whether there is a cache
step = tp.cell(lambda x: tp.tanh(numpy.ones((20, 20), numpy.float32) @ x), name="step")
batched = tp.batch(lambda n: [x := numpy.ones(20, numpy.float32), *(x := step(x) for _ in range(n))][-1])
batched([9, 3, 4])
print(len(hits))
"""
    given = {**os.environ, "TEMPO_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    given.pop("JAX_COMPILATION_CACHE_DIR", None)
    found = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", script], env=given, capture_output=True, text=True, check=True)
        found.append(int(run.stdout))
    assert found[0] == 0
    assert found[1] >= 2


def test_what_is_worth_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU computes everything that is not found to be the same; a GPU has computed a little before it is found."""
    assert is_worth_a_search(1.0)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not is_worth_a_search(1e9)
    assert is_worth_a_search(1e10)
